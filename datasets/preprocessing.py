"""How raw examples become a model's inputs, as one peer fitted it on its training examples.

It is plain numbers, so it is saved with the model, and a model can be used without the data.
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
"""Stands in `Preprocessing.code` for a feature that is a number."""


@dataclass(frozen=True)
class Column:
    """A column of raw rows.

    Attributes
    ----------
    name : in the header of the table.
    kind : "number"; "category", whose cells become their place in `categories`; "date", whose cells
        become days since 1970.
    categories : what a cell may say, in the order of their codes.
    unit : of the numbers, for people and for comparing peers.
    low, high : the numbers that are possible; a cell outside is an error, not a patient.
    """

    name: str
    kind: Literal["number", "category", "date"] = "number"
    categories: tuple[str, ...] = ()
    unit: str = ""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """The steps from raw examples to what the run's normalisation gets.

    A table's feature f takes the cell v of column `source[f]`, `fill[f]` where it is missing; of a
    category it takes whether v is `code[f]`. Then all inputs become (v - mean) / std.

    Attributes
    ----------
    columns : of the raw rows, in order; empty where examples are no rows of a table.
    source, code, fill : (features,), None where examples are no rows of a table.
    mean, std : broadcast over an example, the peer's own; None where the run's are used alone.
    """

    columns: tuple[Column, ...] = ()
    source: Ints | None = None
    code: Ints | None = None
    fill: Floats | None = None
    mean: Floats | None = None
    std: Floats | None = None

    def apply(self, raw: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Inputs (N, ...) of raw examples; float32 where they are standardised here."""
        if self.source is not None and self.code is not None and self.fill is not None:
            raw = raw[:, self.source]
            raw = np.where(np.isnan(raw), self.fill, raw)
            raw = np.where(self.code == NO_CODE, raw, raw == self.code)
        if self.mean is None or self.std is None:
            return raw
        return np.asarray((raw - self.mean) / self.std, dtype=np.float32)

    def as_json(self) -> dict[str, Any]:
        """What `of_json` reads."""
        found: dict[str, Any] = {"columns": [vars(column) for column in self.columns]}
        for name in ("source", "code", "fill", "mean", "std"):
            value = getattr(self, name)
            found[name] = None if value is None else value.tolist()
        return found

    @classmethod
    def of_json(cls, found: Mapping[str, Any]) -> Self:
        """The inverse of `as_json`."""
        columns = tuple(
            Column(**{**each, "categories": tuple(each["categories"])}) for each in found["columns"]
        )
        whole, broken = (
            {name: None if found[name] is None else np.array(found[name], kind) for name in names}
            for names, kind in ((("source", "code"), np.int64), (("fill", "mean", "std"), float))
        )
        return cls(columns, **whole, **broken)
