"""Files that are there whole or as they were, whatever happens while they are written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write; what lies there takes the place of `path` unless something is raised."""
    draft = path.with_name(f"{path.name}.part")
    try:
        yield draft
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def write(path: Path, content: str | bytes) -> None:
    """Write text in UTF-8, or bytes."""
    with replacing(path) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Add a line of JSON to a file; it is on the disk when this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def lines(path: Path, start: int = 0) -> list[dict[str, Any]]:
    """What `append` added from byte `start` on; nothing where there is no such file.

    Raises
    ------
    ValueError
        A line is damaged; names the file.
    """
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(start)
        content = file.read()
    try:
        found = [json.loads(line) for line in content.splitlines()]
    except ValueError:
        found = [None]
    if not all(isinstance(line, dict) for line in found):
        raise ValueError(f"{path} has a line that is damaged")
    return found
