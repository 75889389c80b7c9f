"""Properties of a run's method: learns a graph, is a reference, sends all-to-all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.app.config.registry import METHODS, YARDSTICKS
from coterie.strategies.everyone import Everyone


def reference(config: Mapping[str, Any]) -> str:
    """Return why the method is a reference, as "is given the true clusters"; empty if it is ranked.

    `config` is that of a run, with nested tables.
    """
    name = str(config["method"])
    options = config.get(name)
    row = METHODS.get(name) or YARDSTICKS.get(name)
    return row.unranked(options if isinstance(options, dict) else {}) if row else ""


def learns_graph(config: Mapping[str, Any]) -> bool:
    """Return whether the method learns weights between peers; assumed of methods of plugins."""
    method = METHODS.get(str(config["method"]))
    return not reference(config) and (method is None or method.learns_graph)


def all_to_all(config: Mapping[str, Any]) -> str:
    """Describe all-to-all communication, which explains the bytes sent; else an empty string.

    `config` is a configuration or a summary of a run, with `method` and `topology`.
    """
    method = METHODS.get(str(config["method"]))
    if method is None or method.strategy is not Everyone:
        return ""
    is_full = config.get("topology", "full") == "full"
    recipients = "every other peer" if is_full else "all its neighbours"
    return f"every peer sends its model to {recipients} in every round"
