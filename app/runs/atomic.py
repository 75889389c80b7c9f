"""Files that are there whole or as they were, whatever happens while they are written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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
