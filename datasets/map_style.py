"""Map-style data sets, as PyTorch's and Hugging Face's: `len(d)` examples `d[i]`, (inputs, label).

Each example is read once, with its transform, and kept in memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from coterie.datasets.per_peer import PARTS, source_of_arrays
from coterie.datasets.problem import DataError

_READ_TWICE = 8  # examples that are read again, to find random transforms
_REMEDIES = {"DataLoader": "loader.dataset", "IterableDataset": "a data set with __getitem__"}


def with_arrays(name: str, data: Any) -> Any:
    """Return data in which arrays replace map-style data sets.

    A data set, or a tuple (train, test), becomes a `Source`, which is partitioned among the peers.
    In a list for the peers, an entry may be a data set, such a tuple, or a dict with `train`,
    `test`, `validation` and `name`. Other data are returned unchanged.
    """
    # DataError: an example is no pair of numbers and a label; the message has the line to write.
    is_pair = isinstance(data, tuple) and all(map(is_map_style, data))
    if is_pair or isinstance(data, Mapping) or is_map_style(data):
        return source_of_arrays(name, _arrays(name, data))
    if isinstance(data, tuple) and any(hasattr(each, "shape") for each in data):
        raise DataError(f'{name}: a tuple is (train, test): name arrays, {{"x": ..., "y": ...}}')
    if isinstance(data, list | tuple):
        return [_arrays(f"{name}: peer {peer}", each) for peer, each in enumerate(data)]
    return data


def is_map_style(data: object) -> bool:
    """Return whether `data` is a data set of examples, rather than a list, a dict or an array."""
    for base in type(data).__mro__:
        if remedy := _REMEDIES.get(base.__name__):
            raise DataError(f"a {base.__name__} has no numbered examples: pass {remedy}")
    has_items = hasattr(data, "__getitem__") and hasattr(data, "__len__")
    is_array = hasattr(data, "shape") and not hasattr(data, "column_names")
    return has_items and not is_array and not isinstance(data, str | bytes | Sequence | Mapping)


def _arrays(where: str, data: Any) -> Any:
    """Return the arrays of a data set, or of a tuple or a dict of them; others unchanged."""
    if isinstance(data, tuple):
        data = dict(zip(PARTS, data, strict=False))
    elif is_map_style(data):
        data = {"train": data}
    if not isinstance(data, Mapping) or not PARTS.keys() & data.keys():
        return data
    arrays: dict[str, Any] = {}
    for key, value in data.items():
        arrays |= _read(f"{where}: {key}", value, *PARTS[key]) if key in PARTS else {key: value}
    return arrays


def _read(where: str, data: Any, x: str, y: str) -> dict[str, Any]:
    """Read the inputs (N, ...), the labels (N, ...) and the names of the classes, if known."""
    if not is_map_style(data) or not len(data):
        raise DataError(f"{where}: {type(data).__name__} is no data set with examples")
    columns = getattr(data, "column_names", ())
    if columns and len(columns) != 2:
        raise DataError(
            f"{where} has the columns {', '.join(columns)}: keep inputs and label, in this order, "
            'as in dataset.select_columns(["image", "label"])'
        )
    pairs = [_pair(where, data[i], columns) for i in range(len(data))]
    try:
        x_n, y_n = (np.stack(values) for values in zip(*pairs, strict=True))
    except ValueError:
        shapes = sorted({inputs.shape for inputs, _ in pairs})
        raise DataError(
            f"{where}: examples have different shapes, {shapes[0]} and {shapes[-1]}: add a "
            "transform, such as torchvision.transforms.Resize((32, 32))"
        ) from None
    again = (_pair(where, data[i], columns)[0] for i in range(len(x_n[:_READ_TWICE])))
    if not all(map(np.array_equal, again, x_n)):
        warnings.warn(
            f"{where}: its transform is random, but each example is read only once: remove random "
            'transforms, and set augment = "crop-flip" to vary images in training',
            stacklevel=2,
        )
    labels = getattr(data, "features", {}).get(columns[1]) if columns else None
    classes: Any = getattr(labels, "names", None) or getattr(data, "classes", ())
    is_number = y_n.dtype.kind in "iu" and isinstance(classes, list | tuple)
    is_named = is_number and y_n.min() >= 0 and y_n.max() < len(classes)
    return {x: x_n, y: y_n, **({"classes": classes} if is_named else {})}


def _pair(where: str, example: Any, columns: Sequence[str]) -> tuple[Any, Any]:
    """Return inputs and label of an example as arrays; an image as (C, H, W)."""
    if columns:
        example = tuple(example[column] for column in columns)
    if not isinstance(example, tuple | list) or len(example) != 2:
        known = [*map(repr, example)] if isinstance(example, Mapping) else []
        keys = known or ["0", "1"]
        raise DataError(
            f"{where}: an example is a {type(example).__name__}: __getitem__ must return a pair "
            f"(inputs, label), as in return example[{keys[0]}], example[{keys[-1]}]"
        )
    x, y = map(np.asarray, example)
    if x.dtype.kind not in "iubf":
        raise DataError(
            f"{where}: inputs are a {type(example[0]).__name__}, not numbers: add a transform that "
            "makes a tensor, such as torchvision.transforms.ToTensor()"
        )
    if hasattr(example[0], "getbands"):  # an image of Pillow, (H, W) or (H, W, C)
        x = x[None] if x.ndim == 2 else np.moveaxis(x, -1, 0)
    return x, y
