"""Groups (such as patients) and times of rows; both divide the rows, and no model sees them.

Groups are compared as texts, without spaces at their ends and the ".0" that other programs add to
numbers. Times are numbers, or dates and timestamps in ISO 8601.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from coterie.datasets import grammar
from coterie.datasets.own.cells import Errors, Floats, Wrong, nested, require
from coterie.datasets.problem import DataError

if TYPE_CHECKING:
    import pyarrow as pa


def read_groups(
    table: pa.Table, name: str, path: Path, errors: Errors
) -> npt.NDArray[np.str_] | None:
    """Return the group of each row, (N,); None without `name`. Add rows without one to `errors`."""
    if not name:
        return None
    texts = [re.sub(r"^(\d+)\.0$", r"\1", text) for text in _texts(table, name, path)]
    for row in (row for row, text in enumerate(texts) if text in grammar.MISSING):
        errors.setdefault(row, []).append(Wrong(name, "is missing"))
    return np.array(texts, dtype=np.str_)


def read_times(table: pa.Table, name: str, path: Path, errors: Errors) -> Floats | None:
    """Return the time of each row, (N,); None without `name`. Add rows without one to `errors`."""
    import pandas as pd

    if not name:
        return None
    texts = pd.Series(_texts(table, name, path)).replace([*grammar.MISSING], None)
    times = pd.to_numeric(texts, errors="coerce")
    if (times.isna() & texts.notna()).any():
        stamps = pd.to_datetime(texts, format="ISO8601", utc=True, errors="coerce")
        times = (stamps - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
    times_n: Floats = times.to_numpy(dtype=np.float64)
    for row in np.flatnonzero(~np.isfinite(times_n)).tolist():
        why = "is not like 2024-01-31" if texts[row] else "is missing"
        errors.setdefault(row, []).append(Wrong(name, why, texts[row] or None))
    return times_n


def _texts(table: pa.Table, name: str, path: Path) -> list[str]:
    """Return the cells of a column as texts, "" if one is missing."""
    import pyarrow as pa

    require(table, [name], path)
    cells = table.column(grammar.plain(name))
    if why := nested(cells):
        raise DataError(f"table: column {name} of {path.name} cannot be used: {why}")
    return [grammar.plain(text or "") for text in cells.cast(pa.string()).to_pylist()]
