"""Preprocessing of raw examples to model inputs: numbers only, saved with the model."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from coterie.datasets import grammar
from coterie.ranges import adapter

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Kind = Literal["number", "category", "date"]
_TEXT = 100
"""Maximum number of characters of `Preprocessing.depth`."""
NO_CODE = -1
"""Value in `Preprocessing.code` for a numeric feature."""
_OF_SCHEMA = ("cuts", "mean", "scale", "role")
"""Fields of a column that a model file does not have."""
IS_MISSING = -2
"""Value in `Preprocessing.code` for an indicator of missing cells."""


@dataclass(frozen=True)
class Column:
    """Column of a table."""

    name: str
    kind: Kind = "number"
    """A category is encoded as its index in `categories`, a date as days since 1970."""
    categories: tuple[str, ...] = ()  # valid cells of a category
    unit: str = ""  # unit of a number, for documentation and to compare peers
    low: int | float | None = None
    high: int | float | None = None
    """Valid range of a number; a cell outside is an error."""
    na_values: tuple[str, ...] = ()
    """Cells that mean a missing value, besides empty ones, by value: "-9" is also -9.0."""
    cuts: tuple[int | float, ...] = ()
    """Ends of the intervals of a time to an event, ascending, from 0; empty for other columns."""
    mean: int | float | None = None
    scale: int | float | None = None
    """Values on which all institutions agree: an input is (cell - mean) / scale."""
    role: Literal["", "group", "time"] = ""
    """Use of a column that is no feature: group of a row, such as a patient, or its time."""
    __pydantic_config__: ClassVar[dict[str, bool | str]] = {
        "extra": "forbid",
        "strict": True,
        "allow_inf_nan": False,
    }

    @property
    def na_numbers(self) -> tuple[float, ...]:
        """Numbers among `na_values`, for a column of numbers."""
        values = map(_number, self.na_values)
        return tuple(value for value in values if not math.isnan(value))

    @classmethod
    def of_json(cls, data: Any) -> Self:
        """Read a column from its JSON form; the ValueError names the key."""
        from pydantic import ValidationError  # slow to import

        try:
            column: Self = adapter(Column).validate_json(json.dumps(data, default=str))
            return column
        except ValidationError as error:
            last = error.errors()[-1]
            where = str(last["loc"][0]) if last["loc"] else "column"
            raise ValueError(f"{where}: {last['msg']}".replace("_", "-")) from None

    def as_json(self) -> dict[str, Any]:
        """Convert to a JSON object, without what a fitted feature does not need."""
        return {name: value for name, value in vars(self).items() if name not in _OF_SCHEMA}


@dataclass(frozen=True, eq=False)
class RawTable:
    """Cells of a table before preprocessing."""

    columns: tuple[Column, ...]
    cells: Floats  # (N, columns)
    """A number, the index of a category, or days since 1970; NaN where a cell is missing."""


@dataclass(frozen=True, eq=False)
class Preprocessing:
    """Preprocessing of raw examples, before the run's normalisation.

    Feature f of a table is the cell v of column `source[f]`, or `fill[f]` if it is missing (also
    a number in `na_values`); for a category, 1 if v equals `code[f]`, else 0; for an indicator, 1
    if the cell is missing, else 0. Then inputs become (v - mean) / std.
    """

    # Of the raw rows, in order; empty, and `source`, `code`, `fill` None, if there is no table.
    columns: tuple[Column, ...] = ()
    source: Ints | None = None  # column of each feature, (features,)
    # Category of each feature, `NO_CODE` for a number, `IS_MISSING` for an indicator.
    code: Ints | None = None
    fill: Floats | None = None  # value of each feature for a missing cell, (features,)
    mean: Floats | None = None  # broadcast over an example; None if the run's keys have a scale
    std: Floats | None = None  # likewise
    schema: str = ""  # digest of the schema.toml that describes the columns; empty if there is none
    depth: str = ""  # of the images; empty if there are several, or none

    def apply(self, raw: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Transform raw examples to inputs (N, ...); float32 if they are standardised."""
        if self.source is not None and self.code is not None and self.fill is not None:
            for absent in self.absent():
                raw = np.where(raw == absent, np.nan, raw)
            raw = raw[:, self.source]
            missing = np.isnan(raw)
            raw = np.where(missing, self.fill, raw)
            raw = np.where(self.code == NO_CODE, raw, raw == self.code)
            raw = np.where(self.code == IS_MISSING, missing, raw)
        if self.mean is None or self.std is None:
            return raw
        return np.asarray((raw - self.mean) / self.std, dtype=np.float32)

    def absent(self) -> Floats:
        """Return the numbers that mean a missing cell, (k, columns), padded with NaN."""
        of_columns = [
            column.na_numbers if column.kind == "number" else () for column in self.columns
        ]
        absent = np.full((max(map(len, of_columns), default=0), len(of_columns)), np.nan)
        for c, values in enumerate(of_columns):
            absent[: len(values), c] = values
        return absent

    def as_json(self) -> dict[str, Any]:
        content: dict[str, Any] = {"columns": [column.as_json() for column in self.columns]}
        for name in ("source", "code", "fill", "mean", "std"):
            value = getattr(self, name)
            content[name] = None if value is None else value.tolist()
        return {**content, "schema": self.schema, **({"depth": self.depth} if self.depth else {})}

    @classmethod
    def of_json(cls, data: Any) -> Self:
        """Read the result of `as_json`; ValueError if the dict is invalid."""
        if not isinstance(data, dict) or not isinstance(data.get("columns"), list):
            raise ValueError("its preprocessing has no list of columns")
        columns = tuple(map(Column.of_json, data["columns"]))
        if any(column != Column(**column.as_json()) for column in columns):
            raise ValueError("its preprocessing has a column of a schema")
        arrays: dict[str, Any] = {}
        for name in ("source", "code", "fill", "mean", "std"):
            if data.get(name) is not None:
                values = numbers(data[name], name)
                arrays[name] = values.astype(np.int64) if name in ("source", "code") else values
        schema, depth = data.get("schema", ""), data.get("depth", "")  # version 0.1.0 wrote none
        if not isinstance(depth, str) or len(depth) > _TEXT:
            raise ValueError("its preprocessing has no depth of images")
        if not isinstance(schema, str) or not re.fullmatch(r"([0-9a-f]{16})?", schema):
            raise ValueError("its preprocessing has no digest of a schema")
        return cls(columns, **arrays, schema=schema, depth=depth)

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuse steps that do not lead to examples of a shape; ValueError names the step."""
        steps = self.source, self.code, self.fill
        if self.columns:
            width = math.prod(shape)
            if any(step is None or step.shape != (width,) for step in steps):
                raise ValueError(f"its preprocessing does not make {width} features")
            assert self.source is not None
            if ((self.source < 0) | (self.source >= len(self.columns))).any():
                raise ValueError("its preprocessing uses an unknown column")
        elif any(step is not None for step in steps):
            raise ValueError("its preprocessing has steps without columns")
        if (self.mean is None) != (self.std is None):
            raise ValueError("its preprocessing has one of mean and std")
        if self.mean is not None and self.std is not None:
            check_scale(self.mean, self.std, shape)


def by_column(statistic: Callable[..., Any], cells: Floats) -> Floats:
    """Return a statistic such as np.nanmean of each column, (columns,); NaN without values."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # about columns without values
        return np.asarray(statistic(cells, axis=0), dtype=np.float64)


def _number(text: str) -> float:
    """Parse a number; NaN for other texts."""
    try:
        return grammar.number(grammar.plain(text))
    except ValueError:
        return np.nan


def numbers(value: Any, name: str) -> Floats:
    """Convert nested lists of numbers to an array; ValueError if the value is invalid."""
    try:
        result = np.array(value)
    except ValueError:
        raise ValueError(f"{name} is ragged") from None
    has_bools = any(isinstance(each, bool) for each in np.array(value, dtype=object).flat)
    if result.dtype.kind not in "iuf" or has_bools or not np.isfinite(result).all():
        raise ValueError(f"{name} holds something else than finite numbers")
    return result.astype(np.float64)


def check_scale(mean: Floats, std: Floats, shape: tuple[int, ...]) -> None:
    """Refuse a mean or a deviation that no example of a shape has."""
    # The ValueError says why.
    for name, values in (("mean", mean), ("std", std)):
        if np.broadcast_shapes(values.shape, shape) != shape:
            raise ValueError(f"{name} of shape {values.shape} for examples of {shape}")
    if (std <= 0).any():
        raise ValueError("std is not above 0")
