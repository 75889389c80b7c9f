"""Tables of institutions: train.csv or train.parquet, test.* and validation.*, or one data.*.

Every file has the columns that the run names, in any order and among others: numbers to learn
from, and the label. A missing number is refused, or becomes its column's mean.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from datasets.own.institutions import (  # fmt: skip
    PARTS,
    Expected,
    HeldOptions,
    Holding,
    RefusedError,
    held,
    numbers,
    words,
)
from datasets.preprocessing import Column
from datasets.problem import DataError

if TYPE_CHECKING:
    import pyarrow as pa

_FORMATS = (".csv", ".parquet")


@dataclass(frozen=True)
class TableOptions(HeldOptions):
    """What the run expects of every institution's table.

    Attributes
    ----------
    columns : names of the columns to learn from, "age, bmi, glucose", in the model's order; "all",
        in a simulation: every column but the label, by name.
    label : name of the column to predict.
    classes : values of the label in the order of the model's outputs, "no, yes"; empty: the label
        is a number to be predicted.
    missing : what a missing number is: "refuse" the table, or take the "mean" of its column (the
        run's `mean`, else of the peer's training rows).
    mean : mean of each column; empty: each peer's own.
    std : standard deviation of each column; empty: each peer's own.
    """

    columns: str = ""
    label: str = "label"
    classes: str = ""
    missing: Literal["refuse", "mean"] = "refuse"

    def __post_init__(self) -> None:
        self.check_held(None if self.columns == "all" else len(words(self.columns)) or None)

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


def read_table(
    folder: Path, options: TableOptions, seed: int, peer: int
) -> tuple[Expected, Holding]:
    """Read one institution's table.

    Raises
    ------
    DataError
        Columns, values or labels are not what the run expects, or no table is there.
    """
    classes = words(options.classes)
    files = {name: _file(folder, name) for name in PARTS}
    files["train"] = files["train"] or _file(folder, "data")
    if files["train"] is None:
        raise DataError("table: expected train or data (.csv or .parquet) in this peer's data-dir")
    tables = {name: _arrow(path, options) for name, path in files.items() if path}
    columns = words(options.columns)
    if options.columns == "all":
        columns = sorted({*tables["train"].column_names} - {options.label})
    expected = Expected(
        "table",
        "classification" if classes else "regression",
        len(classes) or 1,
        numbers("mean", options.mean),
        numbers("std", options.std),
        tuple(classes),
        tuple(map(Column, columns)),
    )
    parts = {
        name: _read_part(table, files[name] or folder, columns, options)
        for name, table in tables.items()
    }
    return expected, held(expected, parts, options, seed, peer)


def _file(folder: Path, name: str) -> Path | None:
    paths = (folder / f"{name}{suffix}" for suffix in _FORMATS)
    return next((path for path in paths if path.is_file()), None)


def _read_part(
    table: pa.Table, path: Path, columns: list[str], options: TableOptions
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    missing = [name for name in (*columns, options.label) if name not in table.column_names]
    if missing:
        raise DataError(f"table: {path.name} has no column {', '.join(missing)}")
    inputs = np.stack([_numbers(table, name, path) for name in columns], axis=1)
    if options.missing == "refuse":
        for name, values in zip(columns, inputs.T, strict=True):
            _check_whole(values, name, path, '; table.missing = "mean" fills them')
    classes = words(options.classes)
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


def _arrow(path: Path, options: TableOptions) -> pa.Table:
    import pyarrow as pa  # slow to import
    from pyarrow import csv, parquet

    try:
        if path.suffix == ".csv":
            as_text = {options.label: pa.string()} if options.classes else {}
            convert = csv.ConvertOptions(column_types=as_text, strings_can_be_null=True)
            found = csv.read_csv(path, convert_options=convert)
        else:
            found = parquet.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise RefusedError(f"table: {path.name} cannot be read", [str(error)]) from None
    twice = sorted(name for name, count in Counter(found.column_names).items() if count > 1)
    if twice:
        raise RefusedError(f"table: {path.name} has {len(twice)} columns more than once", twice)
    return found


def _numbers(table: pa.Table, name: str, path: Path) -> npt.NDArray[np.float64]:
    """(N,) a column as numbers; NaN where one is missing."""
    import pyarrow as pa

    column = table.column(name)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    try:
        values: npt.NDArray[np.float64] = column.cast(pa.float64()).to_numpy()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise RefusedError(
            f"table: column {name} of {path.name} is not numbers: leave it out, or write what it "
            "says as 0 and 1, the same way in every institution",
            [str(error)],
        ) from None
    return np.where(np.isfinite(values), values, np.nan)


def _check_whole(values: npt.NDArray[np.float64], name: str, path: Path, remedy: str = "") -> None:
    bad = np.flatnonzero(np.isnan(values))
    if len(bad):
        raise RefusedError(
            f"table: column {name} of {path.name} has {len(bad)} of {len(values)} values missing"
            f"{remedy}",
            [f"row {row + 1}" for row in bad],
        )
