"""The paragraph above each figure of a run: what is drawn, and what was aggregated or left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.app.runs.units import plural


def of_run(data: Mapping[str, Any]) -> dict[str, str]:
    """Write the captions of the figures that show `data`, made by `run_data.page_data`."""
    figures = {
        "learning": _learning,
        "graph": _graph,
        "data": _split,
        "predictions": _predictions,
        "peers": _peers,
    }
    return {name: " ".join(write(data)) for name, write in figures.items()}


def _learning(data: Mapping[str, Any]) -> list[str]:
    if data["crowd"]:
        clusters = "; coloured lines are the means of the true clusters" if _few(data) else ""
        text = [
            "Each peer is measured with its personal model on its own data. The bands hold the "
            f"middle half and nine tenths of the {data['peers']:,} peers in each round{clusters}. "
            "The peer that you follow has a line of its own."
        ]
    else:
        text = ["One thin line per peer, measured with its personal model on its own data."]
    if len(data["rounds"]) < data["evaluated"]:
        text.append(
            f"Drawn are {len(data['rounds'])} of {data['evaluated']:,} evaluated rounds; "
            "metrics.jsonl has all."
        )
    return text


def _few(data: Mapping[str, Any]) -> bool:
    """Whether the true clusters are few enough for a line each, see static/run/curves.js."""
    return data["clusters"] is not None and len(set(data["clusters"])) <= 12


def _graph(data: Mapping[str, Any]) -> list[str]:
    graph = data["graph"]
    if graph is None:
        return [
            "Nobody: in this run no peer gave another peer’s model any weight, "
            "so there is no graph to show."
        ]
    if links := graph["links"]:
        drawn = plural(links["drawn"], "strongest link").removeprefix("1 ")
        more = f" ({links['each']} of a peer that you follow)"
        text = [
            f"Of {data['peers'] * (data['peers'] - 1):,} possible edges, the graph draws each "
            f"peer’s {drawn}{more if links['drawn'] < links['each'] else ''}, "
            "at random among equals."
        ]
    else:
        text = [
            "Each half of an edge is as strong as the weight that the peer at its end gives to the "
            "other."
        ]
    if graph["learns"]:
        text.append(
            "Colours are relative to the largest weight that the row’s peer gives another peer (1 "
            "where weights are no shares); what is darker than the middle counts as a learnt edge. "
            "A peer’s weight for itself has no colour."
        )
    else:
        text.append("This method does not learn whom to listen to: the weights are given.")
    if blocks := _blocks(data):
        text.append(f"A cell of the heat map is the mean over two blocks of {blocks}.")
    if len(graph["rounds"]) < graph["recorded"]:
        text.append(f"Shown are {len(graph['rounds'])} of {graph['recorded']:,} recorded rounds.")
    if graph["links"] or len(graph["rounds"]) < graph["recorded"]:
        text.append("collaboration.npz has every weight.")
    if data["clusters"] is None:
        text.append("Peers that collaborate stand next to each other.")
    return text


def _split(data: Mapping[str, Any]) -> list[str]:
    listed = [] if data["clusters"] is None else ["Peers are listed by true cluster."]
    if blocks := _blocks(data):
        return [
            *listed,
            f"Bars: training examples per peer, mean over a block of {blocks}. "
            "Below: how many of each class, mean as well. split.json has every peer.",
        ]
    return [*listed, "Bars: training examples per peer. Below: how many of each class."]


def _predictions(data: Mapping[str, Any]) -> list[str]:
    if data["predictions"] is None:
        return []
    text = [
        "The personal model of one peer on its own test examples at the end: the peer that you "
        "follow, else the one that is worst off. A dot of the reliability curve is as large as "
        "there are examples."
    ]
    if len(data["predictions"]) < data["peers"]:
        text.append(
            f"The page has those of {len(data['predictions'])} of {data['peers']:,} peers; "
            "the model cards in models/ have all."
        )
    return text


def _blocks(data: Mapping[str, Any]) -> str:
    """Return the size of the blocks in words; empty where each peer is by itself."""
    ends = [*data["blocks"][1:], data["peers"]]
    sizes = {end - start for start, end in zip(data["blocks"], ends, strict=True)}
    if max(sizes) == 1:
        return ""
    least, most = min(sizes), max(sizes)
    count = plural(most, "peer") if least == most else f"{least} to {most} peers"
    return f"{count} that stand next to each other"


def _peers(data: Mapping[str, Any]) -> list[str]:
    text = ["Click a heading to sort, a row to follow that peer through the figures."]
    if data["best"] is not None:
        text.append(
            "“Best” is the test result at the round that was best on the peer’s validation data."
        )
    return text
