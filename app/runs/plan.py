"""Read and write sweep.json: the run directories of a sweep, in order, and their swept values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from coterie.app.runs import atomic, files
from coterie.app.runs.files import ResultsError
from coterie.strategies.names import is_name

NAME = "sweep.json"


Values = Mapping[str, Any]
"""Swept key -> its value in a run."""


def write(directory: Path, runs: Iterable[str], values: Mapping[str, Values] | None = None) -> None:
    """Write the names of the sweep's run directories in `directory`, which need not exist yet.

    `values` has the values of the swept keys by name of the run; None if no keys are swept.
    """
    directory.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {"runs": list(runs)}
    if values:
        content["values"] = values
    atomic.write(directory / NAME, json.dumps(content) + "\n")


def read(directory: Path) -> tuple[str, ...] | None:
    """Return the names of the sweep's run directories; None without sweep.json."""
    runs = _content(directory).get("runs")
    if not isinstance(runs, list):
        return None
    sound = all(isinstance(name, str) and is_name(name) for name in runs)
    return tuple(runs) if sound else None


def values(directory: Path) -> dict[str, Values]:
    """Return name of a run -> values of the swept keys; empty if none are swept, or damaged."""
    content = _content(directory).get("values", {})
    sound = isinstance(content, dict) and all(
        isinstance(of_run, dict)
        and all(isinstance(value, bool | int | float | str) for value in of_run.values())
        for of_run in content.values()
    )
    return content if sound else {}


def label(method: str, values: Values) -> str:
    """Return the name of a row of a comparison: the method, or the swept values of its runs."""
    if not values:
        return method
    first = [str(values["method"])] if "method" in values else []
    others = (
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in values.items()
        if key != "method"
    )
    return " ".join([*first, *others])


def _content(directory: Path) -> dict[str, Any]:
    try:
        return dict(files.json_of(directory, NAME, dict) or {})
    except (OSError, ResultsError):
        return {}
