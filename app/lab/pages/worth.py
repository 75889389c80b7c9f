"""Worth of letters: the files of `coterie contribution`, its tables, and its map in a run's page.

Shapes: n peers, [recipient, sender]; B blocks of peers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from coterie.app.report.thinning import block_means, encode
from coterie.app.runs import atomic, cells, files, judged, units
from coterie.app.runs.files import ResultsError
from coterie.app.runs.rundir import Floats, Ints, Run

FILE, TABLE = "worth.json", "worth.csv"
MEASURES = tuple(f"{split}_{of}" for split in ("validation", "test") for of in ("accuracy", "loss"))
COLUMNS = (
    *("recipient", "recipient_name", "sender", "sender_name", "measure", "alone", "together"),
    *("leave_one_out", "shapley", "standard_error"),
)
SHOWN = 40
"""Number of peers that the terminal lists; the file has all."""
_LARGEST = 1e300


@dataclass(frozen=True)
class Worth:
    """Worth of the letters of each sender for each recipient.

    A worth is positive if letters improve the recipient's measure: if they raise its accuracy, or
    lower its loss. Numbers of a recipient that diverged or attacks are NaN.
    """

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
        """Return True if worth is in accuracy, False if it is in loss."""
        return self.measure.endswith("accuracy")

    @property
    def main(self) -> Floats:
        """Shapley values; without them, leave-one-out values, (n, n)."""
        return self.leave_one_out if self.shapley is None else self.shapley

    @property
    def what(self) -> str:
        """Name of the main values and of the measure in words."""
        if self.shapley is None:
            name = "leave-one-out values"
        elif not self.orders:
            name = "Shapley values, exact"
        else:
            name = f"Shapley values ± standard error, {self.orders} orders"
        measure = self.measure.replace("_", " ")
        return f"{measure} in points ({name})" if self.is_accuracy else f"{measure} ({name})"

    def judged(self, run: Run) -> Worth:
        """Return the worth without the numbers of recipients with too few examples of the measure.

        See `coterie.app.runs.judged`.
        """
        few = [*judged.unjudged(run, self.measure.partition("_")[0])]
        names = [name for name in _SHAPES if getattr(self, name) is not None]
        kept = {name: getattr(self, name).copy() for name in names}
        for values in kept.values():
            values[few] = np.nan
        return replace(self, **kept)

    def shown(self, value: float) -> str:
        """Write a worth with its sign: points of accuracy, or loss."""
        if not math.isfinite(value):
            return units.NONE
        text = f"{100 * value:+.1f}" if self.is_accuracy else f"{value:+.3g}"
        return text.replace("+", "") if float(text) == 0 else text

    def level(self, value: float) -> str:
        """Write a value of the measure."""
        if not math.isfinite(value):
            return units.NONE
        return units.percent(value) if self.is_accuracy else units.number(value)


def write(worth: Worth, directory: Path, names: Sequence[str]) -> None:
    """Write worth.json and worth.csv."""
    content = {"measure": worth.measure, "orders": worth.orders}
    arrays = {key: _listed(getattr(worth, key)) for key in _SHAPES if key != "shapley"}
    arrays["shapley"] = None if worth.shapley is None else _listed(worth.shapley)
    atomic.write(directory / FILE, json.dumps(content | arrays) + "\n")
    atomic.write(directory / TABLE, cells.as_csv([COLUMNS, *rows(worth, names)]))


def rows(worth: Worth, names: Sequence[str]) -> list[list[Any]]:
    """Return the rows of worth.csv, one per recipient and sender; undefined numbers are None."""
    safe = [cells.safe(name) for name in names]
    tables = [worth.leave_one_out, worth.main, worth.errors]
    if worth.shapley is None:
        tables[1:] = [np.full_like(worth.errors, np.nan)] * 2
    return [
        [i, safe[i], j, safe[j], worth.measure]
        + [_number(each) for each in (worth.alone[i], worth.together[i])]
        + [_number(table[i, j]) for table in tables]
        for i in range(len(safe))
        for j in range(len(safe))
    ]


_SHAPES: Mapping[str, int] = {
    "alone": 1, "together": 1, "leave_one_out": 2, "shapley": 2, "errors": 2,
}  # fmt: skip
"""Array -> its number of dimensions."""


def read(directory: Path, peers: int) -> Worth | None:
    """Read worth.json of a run directory; None without it.

    ResultsError: the file is damaged, or of another number of peers.
    """
    content = files.json_of(directory, FILE, dict)
    if content is None:
        return None
    measure, orders = content.get("measure"), content.get("orders")
    try:
        if measure not in MEASURES or type(orders) is not int or not 0 <= orders < 1 << 53:
            raise ValueError("no measure or number of orders")
        arrays: dict[str, Any] = {
            key: None if key == "shapley" and content.get(key) is None
            else _array(content.get(key), (peers,) * dimensions)
            for key, dimensions in _SHAPES.items()
        }  # fmt: skip
    except ValueError as error:
        raise ResultsError(f"{directory / FILE}: {error}") from None
    return Worth(measure, orders, **arrays)


def _array(value: Any, shape: tuple[int, ...]) -> Floats:
    """Return nested lists of numbers and nulls as an array of this shape, or raise ValueError."""
    lines = value if len(shape) == 2 else [value]
    if not isinstance(lines, list) or len(lines) != (shape[0] if len(shape) == 2 else 1):
        raise ValueError(f"expected an array of shape {shape}")
    for line in lines:
        if not isinstance(line, list) or len(line) != shape[-1]:
            raise ValueError(f"expected an array of shape {shape}")
        if not all(x is None or (type(x) in (int, float) and abs(x) < _LARGEST) for x in line):
            raise ValueError("expected numbers")
    return np.array(value, dtype=np.float64)


def _listed(values: Floats) -> Any:
    """Return an array as nested lists, with null for numbers that are not finite."""
    if values.ndim > 1:
        return [_listed(row) for row in values]
    return [_number(value) for value in values.tolist()]


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def by_recipient(
    worth: Worth, names: Sequence[str], top: int, unjudged: Mapping[int, str] = MappingProxyType({})
) -> Table:
    """Return a table of the `top` senders of each recipient, those with the largest effect.

    Recipients in `unjudged` are grey, with the reason instead of numbers.
    """
    table = Table(title=f"Worth of letters: {worth.what}", box=SIMPLE_HEAD, title_justify="left")
    for heading in ("recipient", "alone", "together"):
        table.add_column(heading, justify="left" if heading == "recipient" else "right")
    table.add_column("senders with the largest effect")
    for i, name in list(enumerate(names))[:SHOWN]:
        effect = np.nan_to_num(np.abs(worth.main[i]))
        chosen = np.argsort(-effect, kind="stable")[:top]
        chosen = chosen[np.argsort(-worth.main[i][chosen], kind="stable")]
        senders = ", ".join(
            f"{'itself' if j == i else names[j]} {_with_error(worth, i, int(j))}"
            for j in chosen
            if effect[j] > 0
        )
        levels = worth.level(worth.alone[i]), worth.level(worth.together[i])
        table.add_row(
            name, *levels, unjudged.get(i) or senders or units.NONE,
            style="dim" if i in unjudged else None,
        )  # fmt: skip
    return table


def by_sender(worth: Worth, names: Sequence[str]) -> Table:
    """Return a table of the mean worth of each sender for the others, the largest first."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column("sender")
    for heading in ("mean for others", "min", "max"):
        table.add_column(heading, justify="right")
    others = np.where(np.eye(len(names), dtype=np.bool_), np.nan, worth.main)
    means = to_others(worth)
    for j in np.argsort(-np.nan_to_num(means, nan=-np.inf), kind="stable")[:SHOWN]:
        known = others[:, j][np.isfinite(others[:, j])]
        ends = (known.min(), known.max()) if len(known) else (np.nan, np.nan)
        table.add_row(names[j], worth.shown(means[j]), *map(worth.shown, ends))
    return table


def to_others(worth: Worth) -> Floats:
    """Return the mean worth of each sender for the other recipients, (n,)."""
    others = np.where(np.eye(len(worth.main), dtype=np.bool_), np.nan, worth.main)
    counts = np.isfinite(others).sum(axis=0)
    return np.where(counts > 0, np.nansum(others, axis=0) / np.maximum(counts, 1), np.nan)


def _with_error(worth: Worth, i: int, j: int) -> str:
    text, error = worth.shown(worth.main[i, j]), worth.errors[i, j]
    if worth.shapley is None or not worth.orders or not math.isfinite(error):
        return text
    return f"{text} ± {worth.shown(error).removeprefix('+')}"


def page_data(worth: Worth | None, order: Ints, blocks: Ints) -> dict[str, Any] | None:
    """Return the data of the map in a run's page; None without values.

    `order` (n,) has the peers in display order, `blocks` (B,) the index in it of the first peer of
    each block. Keys: `measure`, `orders` (null: no Shapley values); `shapley` (or null), `errors`
    and `leave_one_out`: (B, B) means over blocks, encoded in three bytes per number; `to_others`:
    see `to_others`, null for missing numbers.
    """
    if worth is None:
        return None

    def means(values: Floats) -> str:
        return encode(block_means(values, order, blocks), 3)

    return {
        "measure": worth.measure,
        "orders": None if worth.shapley is None else worth.orders,
        "shapley": None if worth.shapley is None else means(worth.shapley),
        "errors": means(worth.errors),
        "leave_one_out": means(worth.leave_one_out),
        "to_others": _listed(to_others(worth)),
    }
