"""Flatten state dataclasses into named arrays, and copy or replace rows of peers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from coterie.clients.letters import Ints

T = TypeVar("T")


def flatten(state: object) -> dict[str, Tensor]:
    """Return every array of a state dataclass by dotted name."""
    return {
        k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v
        for k, v in _arrays(state).items()
    }


def _arrays(state: object) -> dict[str, Any]:
    assert is_dataclass(state)
    flat: dict[str, Any] = {}
    for item in fields(state):
        value = getattr(state, item.name)
        flat |= (
            {f"{item.name}.{key}": v for key, v in value.items()}
            if isinstance(value, dict)
            else {item.name: value}
        )
    return flat


def unflatten(template: T, flat: Mapping[str, Tensor]) -> T:
    """Return a state like `template` with the values of `flat`, on the template's devices."""
    assert is_dataclass(template)
    values: dict[str, Any] = {}
    for item in fields(template):
        before = getattr(template, item.name)
        values[item.name] = (
            {k: _like(v, flat[f"{item.name}.{k}"]) for k, v in before.items()}
            if isinstance(before, dict)
            else _like(before, flat[item.name])
        )
    assert flat.keys() == flatten(template).keys(), "a state has the same arrays in every round"
    return replace(template, **values)  # type: ignore[type-var]  # `is_dataclass` does not narrow T


def _like(before: Any, value: Tensor) -> Any:
    return value.numpy() if isinstance(before, np.ndarray) else value.to(before.device)


def unsound(state: object) -> Tensor:
    """Mark the rows (P,) of a state with a tensor of two dimensions or more that is not finite."""
    return torch.stack([*non_finite(state).values()]).any(dim=0)


def non_finite(state: object) -> dict[str, Tensor]:
    """Mark the rows (P,) that are not finite, of each tensor of two dimensions or more."""
    # Infinity and NaN are valid in tensors of shape (P,), such as losses, and in NumPy arrays.
    tensors = {name: each for name, each in _arrays(state).items() if isinstance(each, Tensor)}
    wide = {k: v for k, v in tensors.items() if v.is_floating_point() and v.dim() > 1}
    return {name: ~finite(value) for name, value in wide.items() if value.numel()}


def on(rows: Ints, device: torch.device | None = None) -> Tensor:
    """Return indices as a tensor on a device."""
    return torch.from_numpy(rows).to(device)


def at(rows: Ints, device: torch.device | None = None) -> Tensor | slice:
    """Return ascending indices for reading; those of consecutive rows copy nothing."""
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return on(rows, device)


def finite(value: Tensor) -> Tensor:
    """Mark the rows of a tensor (P, ...) in which every number is finite, (P,)."""
    # min and max propagate NaN and infinity, and allocate no mask of the tensor's size.
    rows = value.reshape(len(value), -1)
    return (rows.amax(dim=1).isfinite() & rows.amin(dim=1).isfinite()).cpu()


def restored(before: T, after: T, rows_p: Tensor) -> T:
    """Return `after` with the marked rows replaced by those of `before`."""
    old, new = flatten(before), flatten(after)
    for name, value in new.items():
        mask = rows_p.to(value.device).view(-1, *(1,) * (value.dim() - 1))
        new[name] = torch.where(mask, old[name], value)
    return unflatten(after, new)


def rows_of(state: T, rows: Ints, *, reading: bool = False) -> T:
    """Return the rows of some peers: a copy, or if only for `reading`, perhaps a view."""
    where = at(rows) if reading else rows
    return unflatten(state, {name: value[where] for name, value in flatten(state).items()})


def put_rows(state: object, rows: Ints, part: object) -> None:
    """Overwrite the rows of some peers in place; no two arrays of `state` may share memory."""
    new = flatten(part)
    for name, value in flatten(state).items():
        value[on(rows, value.device)] = new[name].to(value.dtype)


def owned(state: T) -> T:
    """Return a copy in which no two arrays share memory."""
    layout = torch.contiguous_format
    return unflatten(
        state, {name: value.clone(memory_format=layout) for name, value in flatten(state).items()}
    )
