"""Read and write sweep.json: the run directories of a sweep, in order."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from coterie.app.runs import atomic, files
from coterie.app.runs.files import ResultsError
from coterie.strategies.names import is_name

NAME = "sweep.json"


def write(directory: Path, runs: Iterable[str]) -> None:
    """Write the names of the sweep's run directories in `directory`, which need not exist yet."""
    directory.mkdir(parents=True, exist_ok=True)
    atomic.write(directory / NAME, json.dumps({"runs": list(runs)}) + "\n")


def read(directory: Path) -> tuple[str, ...] | None:
    """Return the names of the sweep's run directories; None without sweep.json."""
    try:
        runs = (files.json_of(directory, NAME, dict) or {}).get("runs")
    except (OSError, ResultsError):
        return None
    if not isinstance(runs, list):
        return None
    sound = all(isinstance(name, str) and is_name(name) for name in runs)
    return tuple(runs) if sound else None
