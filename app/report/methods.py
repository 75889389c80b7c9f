"""Properties of a run's method: learns a graph, knows the true clusters, sends all-to-all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.app.config.registry import METHODS
from coterie.strategies.everyone import Everyone

_TRUTH = ("cluster", "oracle", "truth")
"""Values of method options that stand for the true clusters or the true distances."""


def is_yardstick(config: Mapping[str, Any]) -> bool:
    """Return whether the method is given the true clusters, which other methods must learn.

    Parameters
    ----------
    config : Mapping[str, Any]
        Configuration of the run, with nested tables.
    """
    options = config.get(str(config["method"]))
    knows = isinstance(options, dict) and any(value in _TRUTH for value in options.values())
    return knows or config["method"] == "oracle"


def learns_graph(config: Mapping[str, Any]) -> bool:
    """Return whether the method learns weights between peers; assumed of methods of plugins."""
    method = METHODS.get(str(config["method"]))
    return not is_yardstick(config) and (method is None or method.learns_graph)


def all_to_all(config: Mapping[str, Any]) -> str:
    """Describe all-to-all communication, which explains the bytes sent; else an empty string.

    Parameters
    ----------
    config : Mapping[str, Any]
        Configuration or summary of a run: `method` and `topology`.
    """
    method = METHODS.get(str(config["method"]))
    if method is None or method.strategy is not Everyone:
        return ""
    is_full = config.get("topology", "full") == "full"
    recipients = "every other peer" if is_full else "all its neighbours"
    return f"every peer sends its model to {recipients} in every round"
