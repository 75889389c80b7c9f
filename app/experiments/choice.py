"""Settings that tuning chose for each method: content of tuning.csv, and text for tables."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter

from coterie.app.config import schema
from coterie.app.runs import files
from coterie.app.runs.files import ResultsError

FILE = "tuning.csv"
_TABLE = TypeAdapter(dict[str, Any])
_EDGES = {"low": "lowest tried", "high": "highest tried"}


@dataclass(frozen=True)
class Choice:
    """The settings that tuning chose for a method."""

    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Chosen values by key; empty without tuning."""
    edges: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """For each key whose chosen value is the lowest or highest that was tried, "low" or "high": a
    better value may lie beyond it."""
    trials: int = 0  # number of trials of the method
    rates: tuple[float, ...] = field(default=(), compare=False)
    """Learning rates that were tried with every method; empty if read from a file."""

    def edge(self, key: str) -> str:
        """Describe the edge of the tried range at which a key's value lies; empty if at none."""
        return _EDGES.get(self.edges.get(key, ""), "")

    def described(self) -> str:
        """Write the settings in one line, edges in brackets."""
        return ", ".join(
            f"{key} = {schema.written(value)}" + (f" ({self.edge(key)})" if self.edge(key) else "")
            for key, value in self.settings.items()
        )


def read(directory: Path) -> dict[str, Choice]:
    """Read the choice of each method from a comparison's tuning.csv; nothing without the file."""
    rows = list(csv.DictReader((files.text(directory, FILE) or "").splitlines()))
    try:
        trials = Counter(row["method"] for row in rows)
        return {
            row["method"]: Choice(
                _TABLE.validate_json(row["settings"]),
                _TABLE.validate_json(row.get("edges") or "{}"),
                trials[row["method"]],
            )
            for row in rows
            if row["chosen"] == "1"
        }
    except (KeyError, ValueError):
        raise ResultsError(f"{directory / FILE}: damaged; compare again to rewrite it") from None
