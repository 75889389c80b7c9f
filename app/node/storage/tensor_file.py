"""Read and write named tensors as safetensors files, replaced atomically."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from safetensors.torch import load, save_file
from torch import Tensor

from coterie.app.runs import atomic

_ABOUT = "about"
"""Only key in a checked file's metadata: safetensors writes several keys in random order."""
_SAME = "same"
"""Key of the tensors that are omitted because they equal another one: name -> name."""


def write(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    *,
    durable: bool = False,
) -> None:
    """Write tensors in the plain format, readable by other programs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic.replacing(path, durable=durable) as draft:
        distinct, same = _apart(tensors)
        distinct |= {name: distinct[first].clone() for name, first in same.items()}
        save_file(distinct, draft, None if metadata is None else dict(metadata))


def write_checked(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    *,
    bound: bytes,
    durable: bool = False,
) -> None:
    """Write tensors for `read_checked`, identical ones once; `durable`: sync the file to disk."""
    distinct, same = _apart(tensors)
    with atomic.replacing_checked(path, bound=bound, durable=durable) as draft:
        save_file(distinct, draft, {_ABOUT: json.dumps({**metadata, _SAME: same})})


def read_checked(path: Path, *, bound: bytes) -> dict[str, Tensor]:
    """Read a file of `write_checked`; DamagedError if damaged, or bound to something else."""
    content = atomic.read_checked(path, bound=bound)
    tensors = load(content)
    same = metadata(io.BytesIO(content)).get(_SAME, {})  # missing in older files
    del content
    for name, value in tensors.items():
        tensors[name] = value.clone()  # aligned as a new tensor: results depend on it
    return tensors | {name: tensors[first] for name, first in same.items()}


def metadata(file: BinaryIO) -> Mapping[str, Any]:
    """Return the metadata of a checked file."""
    # ValueError, TypeError, AttributeError, OverflowError or MemoryError: it is not such a file.
    header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    entries: Mapping[str, Any] = header.get("__metadata__", {})
    return json.loads(entries[_ABOUT]) if _ABOUT in entries else entries


def _apart(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return tensors without shared memory, as safetensors requires, and the omitted duplicates."""
    distinct, same = dict[str, Tensor](), dict[str, str]()
    names, seen = dict[object, str](), set[int]()
    for name, value in tensors.items():
        lies = value.untyped_storage().data_ptr()
        known = lies, value.storage_offset(), value.shape, value.stride(), value.dtype
        if value.numel() and known in names:
            same[name] = names[known]
            continue
        names[known] = name
        apart = value.detach().cpu()
        distinct[name] = (apart.clone() if lies in seen else apart).contiguous()
        seen.add(lies)
    return distinct, same
