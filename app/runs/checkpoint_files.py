"""Names of a node's checkpoints below `nodes/` of a run; `app.node.storage` writes the files."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = re.compile(r"peers?-(\d{4,6})(?:-(\d{4,6})-[0-9a-f]{8})?")
"""Folder with the states of a node's peers: the first one, and the last if there are several."""
_VERSION = re.compile(r"(\d{8,})-([01])(?:-\d{4,})?\.state")
"""File of states in it: round and step."""
_BESIDE = re.compile(r"(letters|copies)-\d{4,}\.state")


def letters(nodes: Path, peer: int) -> Path:
    """Return the file with the letters of a round, of the node whose first peer is `peer`."""
    return nodes / f"letters-{peer:04d}.state"


def copies(nodes: Path, peer: int) -> Path:
    """Return the file with the node's copies of other nodes' peers."""
    return nodes / f"copies-{peer:04d}.state"


def state_files(folder: Path) -> list[tuple[tuple[int, int], Path]]:
    """Return the files of states in a folder, oldest first; files of other names are ignored."""
    named = ((_VERSION.fullmatch(path.name), path) for path in folder.glob("*.state"))
    return sorted(((int(match[1]), int(match[2])), path) for match, path in named if match)


def delete(nodes: Path) -> None:
    """Delete all checkpoints; files of other names stay."""
    for path in nodes.rglob("*.state"):
        if _VERSION.fullmatch(path.name) or _BESIDE.fullmatch(path.name):
            path.unlink(missing_ok=True)
