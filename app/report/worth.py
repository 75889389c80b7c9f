"""Worth of letters: worth.csv, which the lab writes, and its map in a run's page.

Shapes: n peers, [recipient, sender]; B blocks of peers.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coterie.app.report.run_data import display_blocks, rounded
from coterie.app.report.section import Part
from coterie.app.report.thinning import block_means, encode
from coterie.app.runs import atomic, files, quality
from coterie.app.runs.files import ResultsError
from coterie.app.runs.rundir import Floats, Run

if TYPE_CHECKING:
    from pandas import DataFrame

FILE = "worth.csv"
MEASURES = tuple(f"{split}_{of}" for split in ("validation", "test") for of in ("accuracy", "loss"))
_OF_RECIPIENT = ("alone", "together")
_OF_PAIR = {"leave_one_out": "leave_one_out", "shapley": "shapley", "errors": "standard_error"}
"""Array of pairs -> its column."""
_LARGEST = 1e300


@dataclass(frozen=True)
class Worth:
    """Worth of each sender's letters for each recipient, > 0 if they improve it; NaN if unknown."""

    measure: str  # field of metrics.jsonl, one of `MEASURES`
    orders: int
    """Number of random orders behind the Shapley values; 0: all coalitions, so they are exact."""
    alone: Floats  # (n,), the measure without any letters
    together: Floats  # (n,), with all letters
    leave_one_out: Floats  # (n, n), worth of a sender while all others send
    shapley: Floats | None  # (n, n); None if only leave-one-out was computed
    errors: Floats  # (n, n), standard errors of `shapley`; NaN if unknown, 0 if exact

    @property
    def is_accuracy(self) -> bool:
        return self.measure.endswith("accuracy")

    @property
    def main(self) -> Floats:
        """Shapley values; without them, leave-one-out values, (n, n)."""
        return self.leave_one_out if self.shapley is None else self.shapley

    @property
    def for_others(self) -> Floats:
        """The worth of each sender for the other recipients; NaN for itself, (n, n)."""
        return np.where(np.eye(len(self.main), dtype=np.bool_), np.nan, self.main)

    @property
    def to_others(self) -> Floats:
        """Mean worth of each sender for the other recipients, (n,)."""
        counts = np.isfinite(self.for_others).sum(axis=0)
        return np.where(counts, np.nansum(self.for_others, axis=0) / np.maximum(counts, 1), np.nan)

    def judged(self, run: Run) -> Worth:
        """Return the worth without the numbers of recipients with too few examples."""
        few = [*quality.too_few_rows(run, self.measure.partition("_")[0])]
        names = (*_OF_RECIPIENT, *_OF_PAIR)
        kept = {name: of.copy() for name in names if (of := getattr(self, name)) is not None}
        for values in kept.values():
            values[few] = np.nan
        return replace(self, **kept)


def frame(worth: Worth, names: Sequence[str]) -> DataFrame:
    """Return a row per recipient and sender; undefined numbers are NaN."""
    import pandas as pd

    n = len(names)
    i, j = np.divmod(np.arange(n * n), n)
    arrays = {
        **{name: getattr(worth, name)[i] for name in _OF_RECIPIENT},
        **{column: getattr(worth, name) for name, column in _OF_PAIR.items()},
    }
    if worth.shapley is None:
        arrays |= dict.fromkeys(("shapley", "standard_error"), np.full(n * n, np.nan))
    return pd.DataFrame({
        "recipient": i, "recipient_name": np.take(names, i),
        "sender": j, "sender_name": np.take(names, j), "measure": worth.measure,
        **{name: np.ravel(of) for name, of in arrays.items()}, "orders": worth.orders,
    }).replace([np.inf, -np.inf], np.nan)  # fmt: skip


def write(worth: Worth, directory: Path, names: Sequence[str]) -> None:
    """Write worth.csv."""
    atomic.write(directory / FILE, atomic.csv_of(frame(worth, names)))


def read(directory: Path, peers: int) -> Worth | None:
    """Read worth.csv of a run directory; None without it."""
    text = files.text(directory, FILE)
    if text is None:
        return None
    import pandas as pd

    try:
        table = pd.read_csv(io.StringIO(text), dtype=str)
        if "orders" not in table and "measure" in table:
            return None  # written before version 0.2
        measure, orders = table.at[0, "measure"], table.at[0, "orders"]
        columns = table[[*_OF_RECIPIENT, *_OF_PAIR.values()]].astype(np.float64)
        if len(table) != peers**2 or measure not in MEASURES or not 0 <= int(orders) < 1 << 53:
            raise ValueError(f"not a table of {peers} peers with a measure and orders")
        if (columns.abs() > _LARGEST).any(axis=None):
            raise ValueError("expected finite numbers")
    except (OverflowError, TypeError, ValueError, KeyError) as error:
        raise ResultsError(f"{directory / FILE}: {error}") from None
    arrays: dict[str, Any] = {
        name: columns[name].to_numpy()[::peers] for name in _OF_RECIPIENT
    } | {
        name: columns[of].to_numpy().reshape(peers, peers).copy() for name, of in _OF_PAIR.items()
    }  # fmt: skip
    if np.isnan(arrays["shapley"]).all():
        arrays["shapley"] = None
    return Worth(str(measure), int(orders), **arrays)


def as_map(run: Run) -> Part | None:
    """Return the map of the worth of letters; None without worth.csv.

    Keys of its data: `measure`, `orders` (null: no Shapley values); `shapley` (or null), `errors`
    and `leave_one_out`: (B, B) means over blocks, encoded in three bytes per number; `to_others`:
    see `Worth.to_others`, null for missing numbers.
    """
    recorded = read(run.directory, run.peers)
    if recorded is None:
        return None
    worth, (order, blocks) = recorded.judged(run), display_blocks(run)

    def means(values: Floats | None) -> str | None:
        return None if values is None else encode(block_means(values, order, blocks), 3)

    drawn = {
        "measure": worth.measure,
        "orders": None if worth.shapley is None else worth.orders,
        **{name: means(getattr(worth, name)) for name in ("shapley", "errors", "leave_one_out")},
        "to_others": rounded(worth.to_others),
    }
    return Part("worth.html.j2", {"worth": drawn})
