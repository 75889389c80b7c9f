"""Properties of a run's method: learns a graph, knows the true clusters, sends all-to-all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.app.config.registry import METHODS
from coterie.strategies.everyone import Everyone


def is_yardstick(config: Mapping[str, Any]) -> bool:
    """Return whether the method is given the true clusters, which other methods must learn.

    Parameters
    ----------
    config : Mapping of str to Any
        Configuration of the run, with nested tables.
    """
    name = str(config["method"])
    options = config.get(name)
    return name in METHODS and METHODS[name].is_told(options if isinstance(options, dict) else {})


def learns_graph(config: Mapping[str, Any]) -> bool:
    """Return whether the method learns weights between peers; assumed of methods of plugins."""
    method = METHODS.get(str(config["method"]))
    return not is_yardstick(config) and (method is None or method.learns_graph)


def all_to_all(config: Mapping[str, Any]) -> str:
    """Describe all-to-all communication, which explains the bytes sent; else an empty string.

    Parameters
    ----------
    config : Mapping of str to Any
        Configuration or summary of a run: `method` and `topology`.
    """
    method = METHODS.get(str(config["method"]))
    if method is None or method.strategy is not Everyone:
        return ""
    is_full = config.get("topology", "full") == "full"
    recipients = "every other peer" if is_full else "all its neighbours"
    return f"every peer sends its model to {recipients} in every round"
