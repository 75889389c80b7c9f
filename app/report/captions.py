"""The paragraph above each figure of a run: what is drawn, and what was aggregated or left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def of_run(data: Mapping[str, Any]) -> dict[str, str]:
    """Write the captions of the figures that show `data`, made by `run_data.page_data`."""
    return {
        "learning": _learning(),
        "graph": _graph(data),
        "data": _data(data),
        "peers": _peers(data),
    }


def _learning() -> str:
    return "One thin line per peer, measured with its personal model on its own data."


def _graph(data: Mapping[str, Any]) -> str:
    graph = data["graph"]
    if graph is None:
        return (
            "Nobody: in this run no peer gave another peer’s model any weight, "
            "so there is no graph to show."
        )
    text = [
        "Each half of an edge is as strong as the weight that the peer at its end gives to the "
        "other. An edge counts as learnt when it exceeds half of the largest weight in its row, "
        "the peer’s own included."
    ]
    if len(graph["rounds"]) < graph["recorded"]:
        text.append(f"Shown are {len(graph['rounds'])} of {graph['recorded']} recorded rounds.")
    if data["clusters"] is None:
        text.append("Peers that collaborate stand next to each other.")
    return " ".join(text)


def _data(data: Mapping[str, Any]) -> str:
    text = "Bars: training examples per peer. Below: how many of each class."
    return text if data["clusters"] is None else f"Peers are listed by true cluster. {text}"


def _peers(data: Mapping[str, Any]) -> str:
    text = ["Click a heading to sort, a row to follow that peer through the figures."]
    if data["best"] is not None:
        text.append(
            "“Best” is the test result at the round that was best on the peer’s validation data."
        )
    return " ".join(text)
