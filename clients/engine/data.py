"""Data of the peers that one node hosts, on the device, and minibatches drawn from it.

A pool stores each example once; a peer's split is a row of positions in it. Integers (images as
uint8) keep their type and are normalised when a batch is gathered, floats at once. Legend:
p = peers, n = examples of a split, e = models, t = steps, b = batch positions, d = parameters,
c = channels, h, w = height and width.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.clients.engine import tuning
from coterie.clients.engine.layers import hash32
from coterie.clients.engine.network import LAYER_STEP
from coterie.clients.engine.streams import Purpose, stream
from coterie.clients.letters import Floats, Ints, Part, no_peers
from coterie.clients.training import Training
from coterie.datasets.problem import Problem, Split

SplitName = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class Shard:
    """One split of the hosted peers, padded to the longest."""

    rows_pn: Tensor  # rows in the pool; padding repeats row 0
    targets_pn: Tensor  # (P, n, ...); padding is 0
    lengths_p: Ints  # number of examples of each peer
    same_p: Ints  # number of each peer's group of peers with the same examples

    def narrowed(self, rows: Ints, at: Tensor) -> Shard:
        """Select peers, given by local index on the host and on the device."""
        return Shard(self.rows_pn[at], self.targets_pn[at], self.lengths_p[rows], self.same_p[rows])


class Charge(IntEnum):
    """Privacy cost of a minibatch (`coterie.clients.engine.accountant`)."""

    DRAWN = 0  # an independent uniform draw without replacement
    WHOLE = 1  # charged as all examples
    FREE = 2  # no further cost: disjoint from the WHOLE minibatch before it


@dataclass(frozen=True)
class Batch:
    """One minibatch for each of E models.

    The weight of an example in the loss is 1 / count, times the weight of its class. Charges and
    uses are those of private training.
    """

    peers_e: Tensor  # local index of the peer that the examples belong to
    rows_eb: Tensor  # positions in that peer's split
    weights_eb: Tensor  # 0 for empty positions
    counts_e: Ints  # number of examples, on the host
    keys_e: Tensor  # dropout keys
    noise_ed: Tensor | None  # gradient noise to add
    augmented: bool = False  # by the run's augmentation, with draws from the keys
    round: int = 0  # that the minibatch was drawn for; 0 for none
    charges_e: Ints | None = None  # `Charge` of each minibatch
    uses_e: Ints | None = None  # number of earlier uses in this stage of the round
    hosted_e: Ints = field(default_factory=no_peers)  # `peers_e` on the host
    split: SplitName = "train"

    def part(self, at: Part) -> Batch:
        """Select the minibatches of some models, and drop positions that none of them fills."""
        counts_e = self.counts_e[at]
        width = int(counts_e.max(initial=1))
        if isinstance(at, slice) and (len(counts_e), width) == self.rows_eb.shape:
            return self
        noise = None if self.noise_ed is None else self.noise_ed[at]
        return Batch(
            self.peers_e[at], self.rows_eb[at, :width], self.weights_eb[at, :width],
            counts_e, self.keys_e[at], noise, self.augmented, self.round,
            None if self.charges_e is None else self.charges_e[at],
            None if self.uses_e is None else self.uses_e[at],
            self.hosted_e[at], self.split,
        )  # fmt: skip

    def weighted(self, weights_eb: Tensor) -> Batch:
        """Scale the loss of each example by a weight; padding keeps weight 0."""
        return replace(self, weights_eb=self.weights_eb * weights_eb)


@dataclass(frozen=True)
class Plan:
    """Minibatches of one call, on the host."""

    rows_etb: Ints  # positions in the peer's split; 0 at or beyond the counts
    counts_et: Ints  # number of examples; 0 where a peer has finished before the others
    keys_et: Ints  # dropout keys; 0 in problems with gradient noise, which have no dropout
    noise_etd: Floats | None  # standard normal; None: no gradient noise

    @property
    def steps(self) -> int:
        return len(self.counts_et.T)


class Data:
    """Pool and splits of the hosted peers; the data of others are not kept."""

    def __init__(
        self,
        problem: Problem,
        peers: Ints,
        training: Training,
        *,
        seed: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.peers, self.training, self.seed = peers, training, seed
        self.device, self.dtype = device, dtype
        splits: dict[SplitName, Split] = {
            "train": problem.train,
            "validation": problem.validation,
            "test": problem.test,
        }
        used = [split.rows[p] for split in splits.values() for p in peers]
        kept = np.unique(np.concatenate(used))
        self._pool = torch.from_numpy(np.ascontiguousarray(problem.inputs[kept])).to(device)
        self._groups_n = None if problem.groups is None else problem.groups[kept]
        self._mean, self._std = self._tensor(problem.mean), self._tensor(problem.std)
        self._tokens, self._channels_last = problem.task == "language", False
        self._whole = not self._pool.is_floating_point()
        if not self._whole:
            self._pool = self._normalised(self._pool)
        self.shards = {name: self._shard(split, kept) for name, split in splits.items()}
        self._class_weights_pn: Tensor | None = None
        if training.class_weights == "balanced":
            self._class_weights_pn = self._tensor(_balanced(problem.train, peers))
        noise = np.zeros(1) if problem.noise is None else problem.noise[peers]
        self._noise_p = self._tensor(noise) if noise.any() else None
        self._noise_dimension = problem.outputs if noise.any() else 0
        self.min_batch = 1  # of training examples

    def lay_channels_last(self) -> None:
        """Store images with channels innermost, the fast layout for convolutions on a CPU."""
        if self._pool.dim() == 4 and not self._channels_last:
            self._pool, self._channels_last = self._pool.movedim(1, -1).contiguous(), True

    def narrowed(self, rows: Ints) -> Data:
        """Return the data of some of these peers, given by local index; the pool is shared."""
        some, at = copy(self), torch.from_numpy(rows).to(self.device)
        some.peers = self.peers[rows]
        some.shards = {name: shard.narrowed(rows, at) for name, shard in self.shards.items()}
        if self._noise_p is not None:
            some._noise_p = self._noise_p[at]
        if self._class_weights_pn is not None:
            some._class_weights_pn = self._class_weights_pn[at]
        return some

    def _shard(self, split: Split, kept: Ints) -> Shard:
        rows = [np.searchsorted(kept, split.rows[p]) for p in self.peers]
        targets = [np.asarray(split.targets[p]) for p in self.peers]
        lengths = np.array([len(r) for r in rows], dtype=np.int64)
        longest = max(int(lengths.max()), 1)
        rows_pn = np.zeros((len(rows), longest), dtype=np.int64)
        targets_pn = np.zeros((len(rows), longest, *targets[0].shape[1:]), dtype=targets[0].dtype)
        for p, (r, y) in enumerate(zip(rows, targets, strict=True)):
            rows_pn[p, : len(r)], targets_pn[p, : len(y)] = r, y
        stacked = torch.from_numpy(targets_pn).to(self.device)
        if stacked.is_floating_point():
            stacked = stacked.to(self.dtype)
        elif stacked.dim() == 2:  # a number for each example; tokens and voxels stay small
            stacked = stacked.long()
        same = _numbered(split.rows[p] for p in self.peers), _numbered(targets)
        same_p = np.unique(np.stack(same), axis=1, return_inverse=True)[1].reshape(-1)
        return Shard(torch.from_numpy(rows_pn).to(self.device), stacked, lengths, same_p)

    def _tensor(self, values: npt.ArrayLike) -> Tensor:
        return torch.tensor(np.asarray(values), dtype=self.dtype, device=self.device)

    def examples(self, split: SplitName, peers_e: Tensor, rows_eb: Tensor) -> tuple[Tensor, Tensor]:
        """Return normalised inputs (E, b, *shape) and targets (E, b, ...) at rows of a split."""
        inputs, targets = self._gathered(split, peers_e, rows_eb)
        return self._readied(inputs), targets

    def groups(self, split: SplitName, peer: int) -> Ints | None:
        """Return the group of each example of a peer, by local index, (n,); None if unknown."""
        if self._groups_n is None:
            return None
        shard = self.shards[split]
        return np.asarray(self._groups_n[shard.rows_pn[peer].cpu()[: shard.lengths_p[peer]]])

    def minibatch(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the `examples` of a minibatch, with the run's augmentation."""
        return self.minibatches([batch])[0]

    def minibatches(self, batches: Sequence[Batch]) -> list[tuple[Tensor, Tensor]]:
        """Return the `minibatch` of batches of the same shape, split and peers, gathered at once.

        Images are padded with zeros (black) before normalisation.
        """
        rows_teb = torch.stack([batch.rows_eb for batch in batches])
        inputs, targets = self._gathered(batches[0].split, batches[0].peers_e, rows_teb)
        if batches[0].augmented:
            augment = AUGMENTATIONS[self.training.augment]
            keys = torch.cat([batch.keys_e for batch in batches])
            inputs = augment(inputs.flatten(0, 1), keys).view(inputs.shape)
        return [*zip(self._readied(inputs), targets, strict=True)]

    def in_turn(
        self, batches: Sequence[Batch]
    ) -> Iterator[tuple[Batch, tuple[Tensor, Tensor] | None]]:
        """Yield the batches, with their `minibatch` if it was gathered together with others."""
        for few in self._together(batches):
            yield from zip(few, self.minibatches(few) if few[1:] else [None], strict=True)

    def _together(self, batches: Sequence[Batch]) -> Iterator[Sequence[Batch]]:
        """Group full batches of the same shape, up to the size of one gather."""
        shape = self._pool.shape[1:]
        width = shape.numel() * (8 if self._tokens else self.dtype.itemsize)  # tokens: int64
        few: list[Batch] = []
        for batch in batches:
            models, examples = batch.rows_eb.shape
            full = bool((batch.counts_e == examples).all())
            room = tuning.GATHERED_BYTES.on(self.device) // max(1, models * examples * width)
            if few and (
                not full or len(few) >= room or batch.rows_eb.shape != few[0].rows_eb.shape
            ):
                yield few
                few = []
            few.append(batch)
            if not full:
                yield few
                few = []
        if few:
            yield few

    def _gathered(self, split: SplitName, peers_e: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets as stored in the pool, at rows (..., E, b)."""
        shard = self.shards[split]
        at = peers_e[:, None], rows
        targets = shard.targets_pn[at]
        pool_rows = shard.rows_pn[at]  # whole rows: an index would copy number by number
        inputs = self._pool.index_select(0, pool_rows.flatten())
        inputs = inputs.view(*pool_rows.shape, *self._pool.shape[1:])
        return inputs.movedim(-1, -3) if self._channels_last else inputs, (
            targets if targets.is_floating_point() else targets.long()
        )

    def _readied(self, inputs: Tensor) -> Tensor:
        if not self._whole:
            return inputs
        return inputs.long() if self._tokens else self._normalised(inputs)

    def _normalised(self, raw: Tensor) -> Tensor:
        return raw.to(self.dtype).sub_(self._mean).div_(self._std)  # `raw` is a copy

    def batches(
        self,
        round_: int,
        purpose: Purpose = Purpose.TRAIN,
        *,
        peers: Ints | None = None,
        partners: Ints | None = None,
        steps: int | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        halves: bool = False,
    ) -> list[Batch]:
        """Draw minibatches of training data for E models, one `Batch` per step.

        `peers` (E,) are local indices, None: every hosted peer once; `partners` (E,) separate
        several draws of one peer. Sizes are by default those of the run; `halves` returns one draw
        of `batch_size` examples as two disjoint minibatches instead.
        """
        peers = np.arange(len(self.peers)) if peers is None else np.asarray(peers)
        partners = np.zeros_like(peers) if partners is None else partners
        if steps is None and epochs is None:
            steps, epochs = self.training.local_steps, self.training.local_epochs
        streams = [
            stream(self.seed, int(self.peers[p]), round_, purpose, int(k))
            for p, k in zip(peers, partners, strict=True)
        ]
        drawn = plan(
            streams,
            self.shards["train"].lengths_p[peers].tolist(),
            batch_size or self.training.batch_size,
            steps=steps or 0,
            epochs=epochs or 0,
            halves=halves,
            noise_dimension=self._noise_dimension,
            min_count=self.min_batch,
        )
        augmented = self.training.augment != "none"
        # Estimates use the same minibatch in several stages of a round.
        if halves or purpose == Purpose.ESTIMATE:
            return self._upload(drawn, peers, round_, Charge.WHOLE, augmented=augmented)
        charges_et = np.full(drawn.counts_et.shape, int(Charge.DRAWN))
        if epochs:
            steps_e1 = (drawn.counts_et > 0).sum(axis=1, keepdims=True) // epochs
            begins_et = np.arange(drawn.steps) % np.maximum(steps_e1, 1) == 0
            charges_et = np.where(begins_et, int(Charge.WHOLE), int(Charge.FREE))
        return self._upload(drawn, peers, round_, charges_et, augmented=augmented)

    def everything(self, peers: Ints | None = None, split: SplitName = "train") -> Batch:
        """Return all examples of each peer's split as one batch, without noise or augmentation."""
        peers = np.arange(len(self.peers)) if peers is None else np.asarray(peers)
        rows_etb, counts_et = everything(self.shards[split].lengths_p[peers].tolist(), 1)
        whole = Plan(rows_etb, counts_et, np.zeros_like(counts_et), None)
        return replace(self._upload(whole, peers, 0, Charge.WHOLE)[0], split=split)

    def _upload(
        self,
        drawn: Plan,
        peers: Ints,
        round_: int,
        charges_et: Ints | Charge,
        *,
        augmented: bool = False,
    ) -> list[Batch]:
        charges_et = np.broadcast_to(charges_et, drawn.counts_et.shape)
        peers_e = torch.from_numpy(peers).to(self.device)
        counts_et1 = drawn.counts_et[..., None]
        valid_etb = np.arange(drawn.rows_etb.shape[2]) < counts_et1
        rows_etb = torch.from_numpy(drawn.rows_etb).to(self.device)
        weights_etb = self._tensor(valid_etb / np.maximum(counts_et1, 1))
        if self._class_weights_pn is not None:
            weights_etb *= self._class_weights_pn[peers_e[:, None, None], rows_etb]
        keys_et = torch.from_numpy(drawn.keys_et).to(self.device)
        noise_etd = None
        if drawn.noise_etd is not None and self._noise_p is not None:
            noise_etd = self._tensor(drawn.noise_etd) * self._noise_p[peers_e, None, None]
        return [
            Batch(
                peers_e, rows_etb[:, t], weights_etb[:, t], drawn.counts_et[:, t], keys_et[:, t],
                None if noise_etd is None else noise_etd[:, t], augmented, round_,
                charges_et[:, t], hosted_e=peers,
            )
            for t in range(drawn.steps)
        ]  # fmt: skip


def _balanced(split: Split, peers: Ints) -> Floats:
    """Return for each example n / (k n_c) of its peer and class, (P, n); padding is 0."""
    weights_pn = np.zeros((len(peers), max([1, *(len(split.rows[p]) for p in peers)])))
    for row_n, p in zip(weights_pn, peers, strict=True):
        labels = np.asarray(split.targets[p])
        _, class_n, count_k = np.unique(labels, return_inverse=True, return_counts=True)
        row_n[: len(labels)] = (len(labels) / (len(count_k) * count_k))[class_n]
    return weights_pn


def _numbered(arrays: Iterable[npt.NDArray[Any]]) -> Ints:
    """Number arrays by content (a digest of type, shape and bytes)."""
    digests: dict[int, bytes] = {}
    numbers: dict[bytes, int] = {}
    held = [*arrays]  # ids are unique only while the arrays live
    for array in held:
        if id(array) not in digests:
            digest = hashlib.sha256(np.ascontiguousarray(array).tobytes())
            digest.update(str((array.dtype, array.shape)).encode())
            digests[id(array)] = digest.digest()
    result = [numbers.setdefault(digests[id(array)], len(numbers)) for array in held]
    return np.array(result, dtype=np.int64)


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


def crop_flip(images_ebchw: Tensor, keys_e: Tensor) -> Tensor:
    """Crop randomly out of the zero-padded image, then mirror with probability 1/2.

    As on CIFAR since He et al. (2015). Like a dropout mask, that of layer -1, the draws are a hash
    of the model's key for the step, which comes from the peer's own stream, and of the example's
    position in the minibatch: they do not depend on the other models of the stack.
    """
    models, examples, _, height, width = images_ebchw.shape
    down, right = height // 8, width // 8  # maximum shifts: 4 pixels of 32, 3 of 28
    place_b3 = torch.arange(3 * examples, device=images_ebchw.device).view(examples, 3)
    keys_e11 = ((keys_e - LAYER_STEP) & 0xFFFFFFFF)[:, None, None]
    draws_eb3 = hash32(hash32(place_b3) ^ keys_e11)
    ranges = torch.tensor([2 * down + 1, 2 * right + 1, 2], device=images_ebchw.device)
    top_n, left_n, mirrored_n = ((draws_eb3 * ranges) >> 32).flatten(0, 1).unbind(dim=1)
    column_w = torch.arange(width, device=images_ebchw.device)
    column_nw = torch.where(mirrored_n[:, None] == 1, width - 1 - column_w, column_w)
    row_h = torch.arange(height, device=images_ebchw.device)
    n = torch.arange(models * examples, device=images_ebchw.device)[:, None, None]
    padded = F.pad(images_ebchw.flatten(0, 1), (right, right, down, down)).movedim(1, 3)
    cropped = padded[
        n, (top_n[:, None] + row_h)[:, :, None], (left_n[:, None] + column_nw)[:, None]
    ]
    return cropped.movedim(3, 1).contiguous().view_as(images_ebchw)


AUGMENTATIONS = {"crop-flip": crop_flip}
"""Name -> (images, keys) -> images; see `coterie.clients.training.Training.augment`."""
