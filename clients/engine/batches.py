"""Minibatches: draw the examples of each step.

Legend: e = models to differentiate (edges or peers), t = steps, b = batch positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Plan:
    """Minibatches of one call, on the host."""

    rows_etb: Ints  # positions in the peer's split; 0 at or beyond the counts
    counts_et: Ints  # number of examples; 0 where a peer has finished before the others
    keys_et: Ints  # dropout keys; 0 in problems with gradient noise, which have no dropout
    noise_etd: npt.NDArray[np.float64] | None  # standard normal; None: no gradient noise

    @property
    def steps(self) -> int:
        return len(self.counts_et.T)


def plan(
    streams: Sequence[np.random.Generator],
    lengths: Sequence[int],
    batch_size: int,
    *,
    steps: int = 0,
    epochs: int = 0,
    halves: bool = False,
    noise_dimension: int = 0,
    min_count: int = 1,
) -> Plan:
    """Draw `steps` minibatches, `epochs` passes over the data, or two halves, from each stream.

    A step's minibatch is uniform without replacement (all data if there are at most `batch_size`
    examples). An epoch is one permutation cut into minibatches, of which the last may be smaller;
    peers with less data finish earlier. Halves are one draw of `batch_size` examples (or all) cut
    into two disjoint minibatches; a peer with a single example has it in both.

    `streams` and `lengths` have the random generator and the number of examples of each model. A
    rest of an epoch below `min_count` is dropped, as by PyTorch's DataLoader with drop_last.
    """

    def draw(g: np.random.Generator, n: int) -> tuple[Ints, list[int]]:
        if halves:
            return _halves(g, n, batch_size)
        return (
            _epochs(g, n, batch_size, epochs, min_count)
            if epochs
            else _steps(g, n, batch_size, steps)
        )

    if not epochs and not halves and batch_size >= max(lengths, default=0):
        rows_etb, counts_et = everything(lengths, steps)  # nothing to draw
    else:
        rows_etb, counts_et = _stacked([draw(*one) for one in zip(streams, lengths, strict=True)])
    keys_et = np.zeros(counts_et.shape, dtype=np.int64)
    noise_etd = np.zeros((*counts_et.shape, noise_dimension)) if noise_dimension else None
    for e, (g, taken) in enumerate(zip(streams, (counts_et > 0).sum(axis=1), strict=True)):
        # As many draws as this peer has steps: its stream must not depend on its neighbours.
        if noise_etd is None:
            keys_et[e, :taken] = g.integers(0, 2**32, size=taken)
        else:
            g.standard_normal(out=noise_etd[e, :taken])
    return Plan(rows_etb, counts_et, keys_et, noise_etd)


def everything(lengths: Sequence[int], steps: int) -> tuple[Ints, Ints]:
    """Return rows (E, t, b) and counts (E, t) of steps on all examples."""
    counts_et = np.repeat(np.asarray(lengths, dtype=np.int64)[:, None], steps, axis=1)
    slot_b = np.arange(max(lengths, default=0))
    return slot_b * (slot_b < counts_et[..., None]), counts_et


def _stacked(drawn: Sequence[tuple[Ints, list[int]]]) -> tuple[Ints, Ints]:
    """Return rows (E, t, b) and counts (E, t), padded to the longest and widest draw."""
    longest = max(len(counts) for _, counts in drawn)
    widest = max(rows.shape[1] for rows, _ in drawn)
    rows_etb = np.zeros((len(drawn), longest, widest), dtype=np.int64)
    counts_et = np.zeros((len(drawn), longest), dtype=np.int64)
    for e, (rows_tb, counts_t) in enumerate(drawn):
        rows_etb[e, : len(counts_t), : rows_tb.shape[1]] = rows_tb
        counts_et[e, : len(counts_t)] = counts_t
    return rows_etb, counts_et


def _steps(g: np.random.Generator, n: int, batch_size: int, steps: int) -> tuple[Ints, list[int]]:
    if batch_size >= n:
        rows = np.tile(np.arange(n), (steps, 1))
    elif n <= 16 * batch_size:  # one permutation of all rows is faster than a call per step
        rows = g.permuted(np.tile(np.arange(n), (steps, 1)), axis=1)[:, :batch_size]
    else:
        rows = np.stack([g.choice(n, batch_size, replace=False) for _ in range(steps)])
    return rows, [rows.shape[1]] * steps


def _halves(g: np.random.Generator, n: int, batch_size: int) -> tuple[Ints, list[int]]:
    rows = g.permutation(n)[:batch_size]
    first, second = rows[: max(1, len(rows) // 2)], rows[len(rows) // 2 :]
    rows_tb = np.zeros((2, len(second)), dtype=np.int64)
    rows_tb[0, : len(first)], rows_tb[1] = first, second
    return rows_tb, [len(first), len(second)]


def _epochs(
    g: np.random.Generator, n: int, batch_size: int, epochs: int, min_count: int
) -> tuple[Ints, list[int]]:
    width = max(1, min(batch_size, n))
    kept = n - n % width if n % width < min_count else n
    first_t = np.arange(0, kept, width)
    rows = np.zeros((epochs, len(first_t) * width), dtype=np.int64)
    for order in rows:
        order[:kept] = g.permutation(n)[:kept]
    return rows.reshape(-1, width), np.minimum(n - first_t, width).tolist() * epochs
