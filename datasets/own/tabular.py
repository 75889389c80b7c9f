"""Tables of institutions: train.csv or train.parquet, test.* and validation.*, or one data.*.

Every file has the columns that the run names, in any order and among others: numbers to learn
from, and the label. A missing number is refused, or becomes its column's mean. With a schema
(`coterie.datasets.own.schema`) columns may be categories and dates too, and cells are checked.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from coterie.datasets.own.cells import FORMATS, encoded, named, open_table, require
from coterie.datasets.own.institutions import (  # fmt: skip
    PARTS,
    Expected,
    Holding,
    NormalisedOptions,
    RefusedError,
    held,
    numbers,
    words,
)
from coterie.datasets.own.schema import Schema, digest, read_schema
from coterie.datasets.preprocessing import Column
from coterie.datasets.problem import DataError

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger("coterie.data")


@dataclass(frozen=True)
class TableOptions(NormalisedOptions):
    """What the run expects of every institution's table.

    Attributes
    ----------
    columns : names of the columns to learn from, "age, bmi, glucose", in the model's order; "all",
        in a simulation: every column but the label, by name.
    label : name of the column to predict.
    classes : values of the label in the order of the model's outputs, "no, yes"; empty: the label
        is a number to be predicted.
    missing : what a missing number is: "refuse" the table, or take the "mean" of its column (the
        run's `mean`, else of the peer's training rows); a missing category is then none of them.
    schema : whether schema.toml describes the columns: the digest that every peer's must have
        (coterie schema), in a simulation also "file"; empty: all columns are numbers.
    bad_rows : of a table with a schema, rows whose cells it does not allow, or that have no label:
        "refuse" the table, or "leave-out" those rows. The node's log names them by line.
    mean : mean of each column; empty: each peer's own.
    std : standard deviation of each column; empty: each peer's own.
    """

    columns: str = ""
    label: str = "label"
    classes: str = ""
    missing: Literal["refuse", "mean"] = "refuse"
    schema: str = ""
    bad_rows: Literal["refuse", "leave-out"] = "refuse"

    def __post_init__(self) -> None:
        self.check_normalised(None if self.columns == "all" else len(words(self.columns)) or None)

    def check_peers(self, peers: int) -> None:
        """A run names its columns."""
        columns = words(self.columns)
        if not columns or len(set(columns)) != len(columns) or self.label in columns:
            raise ValueError(
                'columns must name each column but the label once, like "age, bmi", or be "all"'
            )
        if self.columns == "all" and self.mean:
            raise ValueError('columns = "all": mean and std need columns that are named')
        if len(set(words(self.classes))) != len(words(self.classes)):
            raise ValueError("classes must name each class once")

    def check_node(self) -> None:
        """A node cannot see which columns the others have."""
        if self.columns == "all":
            raise DataError('table.columns = "all" is for simulations: name the columns')


def read_table(
    folder: Path, options: TableOptions, seed: int, peer: int
) -> tuple[Expected, Holding]:
    """Read one institution's table.

    Raises
    ------
    DataError
        Columns, values or labels are not what the run expects, or no table is there.
    """
    files = {name: _file(folder, name) for name in PARTS}
    files["train"] = files["train"] or _file(folder, "data")
    if files["train"] is None:
        raise DataError("table: expected train or data (.csv or .parquet) in this peer's data-dir")
    described = _described(folder, options)
    label = described.get(options.label, Column(options.label))
    classes = words(options.classes) or list(label.categories)
    as_text = {options.label, *described} if described or classes else ()
    tables = {name: open_table(path, as_text) for name, path in files.items() if path}
    names = words(options.columns)
    if options.columns == "all":
        names = sorted({*(described or tables["train"].column_names)} - {options.label})
    columns = tuple(described.get(name, Column(name)) for name in names)
    expected = Expected(
        "table",
        "classification" if classes else "regression",
        len(classes) or 1,
        numbers("mean", options.mean),
        numbers("std", options.std),
        tuple(classes),
        columns,
    )
    read = _checked_part if described else _read_part
    parts = {
        name: read(table, files[name] or folder, expected, options)
        for name, table in tables.items()
    }
    return expected, held(expected, parts, options, seed, peer)


def _file(folder: Path, name: str) -> Path | None:
    paths = (folder / f"{name}{suffix}" for suffix in FORMATS)
    return next((path for path in paths if path.is_file()), None)


def _described(folder: Path, options: TableOptions) -> Schema:
    """The schema that the run wants; empty where it wants none.

    Raises
    ------
    DataError : this peer's is another one, or does not have the run's columns.
    """
    if not options.schema:
        return {}
    if options.mean:
        raise DataError("table: mean and std are for tables without a schema")
    schema = read_schema(folder)
    if options.schema not in ("file", digest(schema)):
        raise DataError(
            f"table: schema.toml is not the one that the run wants ({options.schema}): compare it "
            "with the other institutions"
        )
    wanted = [options.label, *(words(options.columns) if options.columns != "all" else ())]
    if missing := [name for name in wanted if name not in schema]:
        raise DataError(f"table: schema.toml does not describe {', '.join(missing)}")
    return schema


def _checked_part(
    table: pa.Table, path: Path, expected: Expected, options: TableOptions
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Inputs and targets of a table with a schema."""
    schema = _described(path.parent, options)
    label = schema[options.label]
    if expected.classes:
        label = replace(label, kind="category", categories=expected.classes)
    columns = (*expected.columns, label)
    require(table, [column.name for column in columns], path)
    values, wrong = encoded(table, columns)
    checked = values if options.missing == "refuse" else values[:, -1:]
    for row in np.flatnonzero(np.isnan(checked).any(axis=1)):
        wrong.setdefault(int(row), []).append("has gaps")
    if wrong:
        what = f"table: {len(wrong)} of {len(values)} rows of {path.name} are not as in schema.toml"
        if options.bad_rows == "refuse":
            raise RefusedError(f'{what}; table.bad-rows = "leave-out" goes on', named(wrong, path))
        for entry in named(wrong, path):
            _log.warning("left out: %s", entry)
        values = np.delete(values, sorted(wrong), axis=0)
    inputs, targets = values[:, :-1], values[:, -1]
    return inputs, targets.astype(np.int64) if expected.classes else targets[:, None]


def _read_part(
    table: pa.Table, path: Path, expected: Expected, options: TableOptions
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Inputs and targets of a table of numbers."""
    columns = [column.name for column in expected.columns]
    require(table, [*columns, options.label], path)
    inputs = np.stack([_numbers(table, name, path) for name in columns], axis=1)
    if options.missing == "refuse":
        for name, values in zip(columns, inputs.T, strict=True):
            _check_whole(values, name, path, '; table.missing = "mean" fills them')
    classes = expected.classes
    if not classes:
        values = _numbers(table, options.label, path)
        _check_whole(values, options.label, path)
        return inputs, values[:, None]
    labels = [str(value) for value in table.column(options.label).cast("string").to_pylist()]
    strange = sorted({label for label in labels if label not in classes})
    if strange:
        rows = sum(label in strange for label in labels)
        raise RefusedError(
            f"table: {rows} of {len(labels)} rows of {path.name} have labels other than the run's "
            f"classes {', '.join(classes)}",
            strange,
        )
    return inputs, np.array([classes.index(label) for label in labels], dtype=np.int64)


def _numbers(table: pa.Table, name: str, path: Path) -> npt.NDArray[np.float64]:
    """(N,) a column as numbers; NaN where one is missing."""
    values, wrong = encoded(table.select([name]), [Column(name)])
    if wrong:
        raise RefusedError(
            f"table: column {name} of {path.name} is not numbers: leave it out, describe it in "
            "schema.toml, or write what it says as 0 and 1, the same way in every institution",
            named(wrong, path),
        )
    return values[:, 0]


def _check_whole(values: npt.NDArray[np.float64], name: str, path: Path, remedy: str = "") -> None:
    bad = np.flatnonzero(np.isnan(values))
    if len(bad):
        raise RefusedError(
            f"table: column {name} of {path.name} has {len(bad)} of {len(values)} values missing"
            f"{remedy}",
            [f"row {row + 1}" for row in bad],
        )
