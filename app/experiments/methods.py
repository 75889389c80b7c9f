"""Properties of a run's method: learns a graph, is a reference, sends all-to-all."""

from __future__ import annotations

from coterie.app.config.registry import METHODS, YARDSTICKS
from coterie.app.runs.settings import RunSettings
from coterie.strategies.plans import Everyone


def reference(settings: RunSettings) -> str:
    """Return why the method is a reference; empty if it is ranked."""
    row = METHODS.get(settings.method) or YARDSTICKS.get(settings.method)
    return row.unranked(settings.options) if row else ""


def learns_graph(settings: RunSettings) -> bool:
    """Return whether the method learns weights between peers; assumed of methods of plugins."""
    method = METHODS.get(settings.method)
    return not reference(settings) and (method is None or method.learns_graph)


def all_to_all(settings: RunSettings) -> str:
    """Describe all-to-all communication, which explains the bytes sent; else an empty string."""
    method = METHODS.get(settings.method)
    if method is None or method.strategy is not Everyone:
        return ""
    is_full = settings.topology == "full"
    recipients = "every other peer" if is_full else "all its neighbours"
    who = "every peer" if settings.schedule_kind == "all" else "every participating peer"
    return f"{who} sends its model to {recipients} in every round"
