"""Groups (such as patients) and times of rows; both divide the rows, and no model sees them.

Groups are compared as text, without surrounding spaces and a final ".0", which other programs add
to numbers. Times are numbers, or dates and timestamps in ISO 8601.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from coterie.datasets.own.cells import Errors, Floats, require
from coterie.datasets.problem import DataError

if TYPE_CHECKING:
    import pyarrow as pa

_MISSING = ("", "NA", "NaN", "NULL", "nan", "null")


def read_groups(
    table: pa.Table, name: str, path: Path, errors: Errors
) -> npt.NDArray[np.str_] | None:
    """Return the group of each row, (N,); None without `name`. Add rows without one to `errors`."""
    if not name:
        return None
    texts = [unicodedata.normalize("NFC", text or "").strip() for text in _texts(table, name, path)]
    texts = [re.sub(r"^(\d+)\.0$", r"\1", text) for text in texts]
    for row, text in enumerate(texts):
        if text in _MISSING:
            errors.setdefault(row, []).append(f"{name} is missing")
    return np.array(texts, dtype=np.str_)


def read_times(table: pa.Table, name: str, path: Path, errors: Errors) -> Floats | None:
    """Return the time of each row, (N,); None without `name`. Add rows without one to `errors`."""
    import pandas as pd
    import pyarrow as pa

    if not name:
        return None
    texts = _texts(table, name, path)
    try:
        times: Floats = table.column(name).cast(pa.float64()).to_numpy()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        stamps = pd.to_datetime(pd.Series(texts), format="ISO8601", utc=True, errors="coerce")
        days = (stamps - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
        times = days.to_numpy(dtype=np.float64)
    for row in np.flatnonzero(~np.isfinite(times)):
        text = texts[row]
        why = "is missing" if text in (None, *_MISSING) else f"{text!r} is not like 2024-01-31"
        errors.setdefault(int(row), []).append(f"{name} {why}")
    return times


def _texts(table: pa.Table, name: str, path: Path) -> list[str | None]:
    import pyarrow as pa

    require(table, [name], path)
    try:
        texts: list[str | None] = table.column(name).cast(pa.string()).to_pylist()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise DataError(f"table: column {name} of {path.name} has no texts or numbers") from None
    return texts
