"""Preprocessing of raw examples to model inputs, fitted on a peer's training examples.

It consists of numbers only and is saved with the model, which can then be used without the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
NO_CODE = -1
"""Value in `Preprocessing.code` for a numeric feature."""


@dataclass(frozen=True)
class Column:
    """Column of a table.

    Attributes
    ----------
    name : str
        Name in the header.
    kind : {"number", "category", "date"}
        A category is encoded as its index in `categories`, a date as days since 1970.
    categories : tuple of str
        Valid cells of a category.
    unit : str
        Unit of a number, for documentation and to compare peers.
    low, high : float or None
        Valid range of a number; a cell outside is an error.
    """

    name: str
    kind: Literal["number", "category", "date"] = "number"
    categories: tuple[str, ...] = ()
    unit: str = ""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """Preprocessing of raw examples, before the run's normalisation.

    Feature f of a table is the cell v of column `source[f]`, or `fill[f]` if the cell is missing;
    for a category, it is 1 if v equals `code[f]`, else 0. Then inputs become (v - mean) / std.

    Attributes
    ----------
    columns : tuple of Column
        Columns of the raw rows, in order; empty if the examples are not from a table.
    source : ndarray of int, (features,), or None
        Column of each feature; None if the examples are not from a table.
    code : ndarray of int, (features,), or None
        Category of each indicator feature, `NO_CODE` for a number.
    fill : ndarray, (features,), or None
        Value of each feature for a missing cell.
    mean, std : ndarray or None
        The peer's own statistics, broadcast over an example; None if the run has common ones.
    """

    columns: tuple[Column, ...] = ()
    source: Ints | None = None
    code: Ints | None = None
    fill: Floats | None = None
    mean: Floats | None = None
    std: Floats | None = None

    def apply(self, raw: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Transform raw examples to inputs (N, ...); float32 if they are standardised."""
        if self.source is not None and self.code is not None and self.fill is not None:
            raw = raw[:, self.source]
            raw = np.where(np.isnan(raw), self.fill, raw)
            raw = np.where(self.code == NO_CODE, raw, raw == self.code)
        if self.mean is None or self.std is None:
            return raw
        return np.asarray((raw - self.mean) / self.std, dtype=np.float32)

    def as_json(self) -> dict[str, Any]:
        """Convert to a JSON object."""
        content: dict[str, Any] = {"columns": [vars(column) for column in self.columns]}
        for name in ("source", "code", "fill", "mean", "std"):
            value = getattr(self, name)
            content[name] = None if value is None else value.tolist()
        return content

    @classmethod
    def of_json(cls, content: Mapping[str, Any]) -> Self:
        """Convert from the JSON object of `as_json`."""
        columns = tuple(
            Column(**{**entry, "categories": tuple(entry["categories"])})
            for entry in content["columns"]
        )
        integers, floats = (
            {
                name: None if content[name] is None else np.array(content[name], dtype)
                for name in names
            }
            for names, dtype in ((("source", "code"), np.int64), (("fill", "mean", "std"), float))
        )
        return cls(columns, **integers, **floats)
