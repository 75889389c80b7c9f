"""What may be said of a method: whether it learns a graph, is a yardstick, sends all to all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.app.config.registry import METHODS
from coterie.strategies.everyone import Everyone

_TOLD = ("cluster", "oracle", "truth")
"""Values of the methods' options that stand for the true clusters or the true distances."""


def is_yardstick(config: Mapping[str, Any]) -> bool:
    """Whether the peers of a run were told what those of other methods have to find out.

    Parameters
    ----------
    config : of the run, tables nested.
    """
    options = config.get(str(config["method"]))
    told = isinstance(options, dict) and any(value in _TOLD for value in options.values())
    return told or config["method"] == "oracle"


def learns_graph(config: Mapping[str, Any]) -> bool:
    """Whether the weights between peers are learnt; of a method that is not ours, they may be."""
    method = METHODS.get(str(config["method"]))
    return not is_yardstick(config) and (method is None or method.learns_graph)


def all_to_all(config: Mapping[str, Any]) -> str:
    """Who sends to whom, where the answer explains the bytes; else nothing.

    Parameters
    ----------
    config : of a run, or its summary: `method` and `topology`.
    """
    method = METHODS.get(str(config["method"]))
    if method is None or method.strategy is not Everyone:
        return ""
    whom = "every other" if config.get("topology", "full") == "full" else "all its neighbours"
    return f"every peer sends its model to {whom} in every round"
