"""Tables of institutions: train.csv or train.parquet, test.* and validation.*, or one data.*.

Every file has the columns that the run names, in any order and among others: numbers to learn
from, and the label. Values are not imputed: a table with gaps is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from datasets.own.institutions import (  # fmt: skip
    PARTS,
    Expected,
    HeldOptions,
    Holding,
    held,
    numbers,
    refuse,
    words,
)
from datasets.problem import DataError

if TYPE_CHECKING:
    import pyarrow as pa

_FORMATS = (".csv", ".parquet")


@dataclass(frozen=True)
class TableOptions(HeldOptions):
    """What the run expects of every institution's table.

    Attributes
    ----------
    columns : names of the columns to learn from, "age, bmi, glucose", in the model's order.
    label : name of the column to predict.
    classes : values of the label in the order of the model's outputs, "no, yes"; empty: the label
        is a number to be predicted.
    mean : mean of each column; empty: each peer's own.
    std : standard deviation of each column; empty: each peer's own.
    """

    columns: str = ""
    label: str = "label"
    classes: str = ""

    def __post_init__(self) -> None:
        self.check_held(len(words(self.columns)) or None)

    def check_peers(self, peers: int) -> None:
        """A run names its columns."""
        columns = words(self.columns)
        if not columns or len(set(columns)) != len(columns) or self.label in columns:
            raise ValueError('columns must name each column but the label once, like "age, bmi"')
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
    expected = Expected(
        "table",
        "classification" if classes else "regression",
        len(classes) or 1,
        numbers("mean", options.mean),
        numbers("std", options.std),
        tuple(classes),
    )
    files = {name: _file(folder, name) for name in PARTS}
    files["train"] = files["train"] or _file(folder, "data")
    if files["train"] is None:
        raise DataError("table: expected train or data (.csv or .parquet) in this peer's data-dir")
    parts = {name: _read_part(path, options) for name, path in files.items() if path}
    return expected, held(expected, parts, options, seed, peer)


def _file(folder: Path, name: str) -> Path | None:
    paths = (folder / f"{name}{suffix}" for suffix in _FORMATS)
    return next((path for path in paths if path.is_file()), None)


def _read_part(path: Path, options: TableOptions) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    table = _arrow(path, [*words(options.columns), options.label], options)
    inputs = np.stack([_numbers(table, name, path) for name in words(options.columns)], axis=1)
    classes = words(options.classes)
    if not classes:
        return inputs, _numbers(table, options.label, path)[:, None]
    labels = [str(value) for value in table.column(options.label).cast("string").to_pylist()]
    strange = sorted({label for label in labels if label not in classes})
    if strange:
        rows = sum(label in strange for label in labels)
        raise refuse(
            f"table: {rows} of {len(labels)} rows of {path.name} have labels other than the run's "
            f"classes {', '.join(classes)}",
            strange,
        )
    return inputs, np.array([classes.index(label) for label in labels], dtype=np.int64)


def _arrow(path: Path, columns: list[str], options: TableOptions) -> pa.Table:
    import pyarrow as pa  # slow to import
    from pyarrow import csv, parquet

    try:
        if path.suffix == ".csv":
            as_text = {options.label: pa.string()} if options.classes else {}
            convert = csv.ConvertOptions(column_types=as_text, strings_can_be_null=True)
            table = csv.read_csv(path, convert_options=convert)
        else:
            table = parquet.read_table(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise refuse(f"table: {path.name} cannot be read", [str(error)]) from None
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise DataError(f"table: {path.name} has no column {', '.join(missing)}")
    return table.select(columns)


def _numbers(table: pa.Table, name: str, path: Path) -> npt.NDArray[np.float64]:
    """(N,) a column as numbers."""
    import pyarrow as pa

    column = table.column(name)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    try:
        values: npt.NDArray[np.float64] = column.cast(pa.float64()).to_numpy()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise refuse(f"table: column {name} of {path.name} is not numbers", [str(error)]) from None
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise refuse(
            f"table: column {name} of {path.name} has {len(bad)} of {len(values)} values missing",
            [f"row {row + 1}" for row in bad],
        )
    return values
