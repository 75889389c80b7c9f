"""The runs that a sweep carries out, in order: sweep.json in the directory that holds them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from coterie.app.runs import atomic

NAME = "sweep.json"


def write(directory: Path, runs: Iterable[str]) -> None:
    """Say which run directories inside `directory` the sweep is of, whether they exist or not."""
    directory.mkdir(parents=True, exist_ok=True)
    atomic.write(directory / NAME, json.dumps({"runs": list(runs)}) + "\n")


def read(directory: Path) -> tuple[str, ...] | None:
    """Their names; None where it is not known."""
    try:
        runs = json.loads((directory / NAME).read_text(encoding="utf-8"))["runs"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return tuple(map(str, runs)) if isinstance(runs, list) else None
