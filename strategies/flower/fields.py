"""Checked reading of the fields of Flower's records; a `WireError` names the key."""

from __future__ import annotations

from typing import Any, TypeVar, get_args

import numpy as np
import numpy.typing as npt
from flwr.app import ConfigRecord, RecordDict

from coterie.strategies.errors import WireError

T = TypeVar("T")


def require(fields: RecordDict | ConfigRecord, key: str, kind: type[T]) -> T:
    """Return the field `key`, which must have exactly the type `kind`."""
    if key not in fields:
        raise WireError(f"no {key}")
    value = fields[key]
    if type(value) is not kind:  # a bool is not an int
        raise WireError(f"{key} is {type(value).__name__}, not {kind.__name__}")
    return value


def list_of(header: ConfigRecord, key: str, kind: type[T]) -> list[T]:
    """Return the field `key`, a list of exactly the type `kind`."""
    values: list[Any] = require(header, key, list)
    if any(type(value) is not kind for value in values):
        raise WireError(f"{key} is not a list of {kind.__name__}")
    return values


def count(header: ConfigRecord, key: str) -> int:
    """Return the field `key`, a non-negative int."""
    return not_negative(key, [require(header, key, int)])[0]


def counts(header: ConfigRecord, key: str) -> list[int]:
    """Return the field `key`, a list of non-negative ints."""
    return not_negative(key, list_of(header, key, int))


def not_negative(key: str, values: list[int]) -> list[int]:
    """Return the values of field `key` if none is negative."""
    if any(value < 0 for value in values):
        raise WireError(f"{key}: {min(values)} is negative")
    return values


def one_of(value: str, names: Any) -> Any:
    """Return the value if it is one of a `Literal`'s."""
    if value not in get_args(names):
        raise WireError(f"{value!r} is not one of {', '.join(get_args(names))}")
    return value


def packed(values: npt.ArrayLike, dtype: str) -> bytes:
    """Convert numbers to bytes."""
    return np.ascontiguousarray(values, dtype=dtype).tobytes()


def unpacked(header: ConfigRecord, key: str, dtype: str) -> npt.NDArray[Any]:
    """Return the numbers in the bytes of field `key`, (m,)."""
    buffer = require(header, key, bytes)
    if len(buffer) % np.dtype(dtype).itemsize:
        raise WireError(f"{key}: {len(buffer)} bytes are not {np.dtype(dtype).name} numbers")
    return np.frombuffer(buffer, dtype=dtype)
