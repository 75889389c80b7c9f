"""Read and write sweep.json: the run directories of a sweep, in order, and their swept values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Predicate

from coterie.app.runs import atomic, files
from coterie.app.runs.files import ResultsError
from coterie.ranges import Scalar
from coterie.strategies.names import is_name

NAME = "sweep.json"


Values = Mapping[str, Scalar]
"""Swept key -> its value in a run."""


def write(directory: Path, runs: Iterable[str], values: Mapping[str, Values] | None = None) -> None:
    """Write the names of the sweep's run directories, and by name the values of the swept keys."""
    directory.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {"runs": list(runs)}
    if values:
        content["values"] = values
    atomic.write(directory / NAME, json.dumps(content) + "\n")


@dataclass(frozen=True)
class Plan:
    """Content of sweep.json; empty without it."""

    runs: tuple[Annotated[str, Predicate(is_name)], ...] = ()  # names of the run directories
    values: Mapping[str, Values] = field(default_factory=dict)  # of swept keys, by run


def read(directory: Path) -> Plan:
    """Read sweep.json; empty if there is none, or it is damaged."""
    try:
        plan: Plan | None = files.json_of(directory, NAME, Plan)
    except (OSError, ResultsError):
        plan = None
    return plan or Plan()


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
