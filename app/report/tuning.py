"""Tuned settings of each method, read from tuning.csv and formatted for tables."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from coterie.app.config import schema

FILE = "tuning.csv"
_EDGES = {"low": "lowest tried", "high": "highest tried"}


@dataclass(frozen=True)
class Choice:
    """Tuned settings of a method.

    Attributes
    ----------
    settings : Mapping[str, Any]
        Key -> value; empty without tuning.
    edges : Mapping[str, str]
        Key -> "low" or "high" if its value is the lowest or highest that was tried. A better value
        may lie beyond it.
    trials : int
        Number of trials.
    """

    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    edges: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    trials: int = 0

    def edge(self, key: str) -> str:
        """Return "lowest tried" or "highest tried"; empty if a key's value is neither."""
        return _EDGES.get(self.edges.get(key, ""), "")

    def described(self) -> str:
        """Return the settings as one line, edges in brackets."""
        return ", ".join(
            f"{key} = {schema.written(value)}" + (f" ({self.edge(key)})" if self.edge(key) else "")
            for key, value in self.settings.items()
        )


def read(tuning: Path) -> dict[str, Choice]:
    """Return the choice of each method from tuning.csv; empty if there is no such file."""
    if tuning.is_symlink() or not tuning.exists():
        return {}
    with tuning.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["method"]] = counts.get(row["method"], 0) + 1
    return {
        row["method"]: Choice(
            json.loads(row["settings"]), json.loads(row.get("edges") or "{}"), counts[row["method"]]
        )
        for row in rows
        if row["chosen"] == "1"
    }
