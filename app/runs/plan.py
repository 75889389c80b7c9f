"""The runs that a sweep carries out, in order: sweep.json in the directory that holds them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from coterie.app.runs import atomic, files
from coterie.app.runs.files import ResultsError
from coterie.strategies.names import is_name

NAME = "sweep.json"


def write(directory: Path, runs: Iterable[str]) -> None:
    """Say which run directories inside `directory` the sweep is of, whether they exist or not."""
    directory.mkdir(parents=True, exist_ok=True)
    atomic.write(directory / NAME, json.dumps({"runs": list(runs)}) + "\n")


def read(directory: Path) -> tuple[str, ...] | None:
    """Their names; None where it is not known."""
    try:
        runs = (files.json_of(directory, NAME, dict) or {}).get("runs")
    except (OSError, ResultsError):
        return None
    if not isinstance(runs, list):
        return None
    sound = all(isinstance(name, str) and is_name(name) for name in runs)
    return tuple(runs) if sound else None
