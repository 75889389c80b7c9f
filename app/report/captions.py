"""Captions of a run's figures: the quantity shown, averaging and omissions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.app.runs.units import plural


def of_run(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the caption of each figure from the page's data, see `run_data.page_data`."""
    figures = {
        "learning": _learning,
        "graph": _graph,
        "worth": _worth,
        "data": _split,
        "predictions": _predictions,
        "peers": _peers,
    }
    return {name: " ".join(write(data)) for name, write in figures.items()}


def _learning(data: Mapping[str, Any]) -> list[str]:
    if data["crowd"]:
        clusters = " Coloured lines: mean of each true cluster." if _few(data) else ""
        text = [
            "Personal models on their peers’ own data. Bands: the 25th to 75th and the 5th to 95th "
            f"percentile over {data['peers']:,} peers.{clusters} "
            "The selected peer has its own line."
        ]
    else:
        text = ["Personal models on their peers’ own data. Thin lines: peers; thick line: mean."]
    if len(data["rounds"]) < data["evaluated"]:
        text.append(
            f"The figure shows {len(data['rounds'])} of {data['evaluated']:,} evaluated rounds; "
            "metrics.jsonl has all of them."
        )
    return text


def _few(data: Mapping[str, Any]) -> bool:
    """Return whether each true cluster gets a separate line, as in static/run/curves.js."""
    return data["clusters"] is not None and len(set(data["clusters"])) <= 12


def _graph(data: Mapping[str, Any]) -> list[str]:
    graph = data["graph"]
    if graph is None:
        return ["No peer gave weight to another peer’s model in this run: no graph to show."]
    if links := graph["links"]:
        drawn = plural(links["drawn"], "strongest link").removeprefix("1 ")
        more = f" ({links['each']} for a selected peer)" if links["drawn"] < links["each"] else ""
        text = [
            f"Of {data['peers'] * (data['peers'] - 1):,} possible edges, the graph shows each "
            f"peer’s {drawn}{more}; ties are broken at random."
        ]
    else:
        text = [
            "Each half of an edge shows the weight that the nearer peer gives to the other one."
        ]
    if graph["learns"]:
        text.append(
            "Colours are relative to the largest weight that the row’s peer gives another peer (1 "
            "where weights are no shares); colours beyond the middle of the scale are learnt "
            "edges. A peer’s weight for itself has no colour."
        )
    else:
        text.append("The method fixes these weights: it learns no graph.")
    if blocks := _blocks(data):
        text.append(f"A cell of the heat map is the mean over two blocks of {blocks}.")
    if len(graph["rounds"]) < graph["recorded"]:
        text.append(
            f"The figure shows {len(graph['rounds'])} of {graph['recorded']:,} recorded rounds."
        )
    if graph["links"] or len(graph["rounds"]) < graph["recorded"]:
        text.append("collaboration.npz has every weight.")
    if data["recovered"] is not None:
        text.append("Peers are ordered by the groups of the last graph.")
    return text


def _worth(data: Mapping[str, Any]) -> list[str]:
    worth = data["worth"]
    if worth is None:
        return []
    measure = worth["measure"].replace("_", " ")
    better = "raised" if measure.endswith("accuracy") else "lowered"
    text = [f"How much the letters of the column’s peer {better} the {measure} of the row’s peer."]
    if worth["orders"] is not None:
        how = "exact" if not worth["orders"] else f"from {plural(worth['orders'], 'random order')}"
        text.append(
            f"Shapley values ({how}) add up, over a row, to the gain of all letters over none."
        )
    text.append(
        "Leave-one-out: the difference that this sender makes while all others send. Blue helps, "
        "orange harms; a peer’s own letters come back to it in the models of others. This is one "
        "seed: differences of a few test examples are chance."
    )
    if blocks := _blocks(data):
        text.append(f"A cell is the mean over two blocks of {blocks}; worth.csv has every value.")
    return text


def _split(data: Mapping[str, Any]) -> list[str]:
    order = [] if data["clusters"] is None else ["Peers are ordered by true cluster."]
    if blocks := _blocks(data):
        return [
            *order,
            f"Bars: training examples per peer, mean over a block of {blocks}. "
            "Cells: training examples per class, mean over the same block. "
            "split.json has every peer.",
        ]
    return [*order, "Bars: training examples per peer. Cells: training examples per class."]


def _predictions(data: Mapping[str, Any]) -> list[str]:
    if data["predictions"] is None:
        return []
    text = [
        "Final personal model of one peer on its own test examples: the selected peer, or the peer "
        "with the lowest score. Reliability: dot area is the number of examples in the bin."
    ]
    if len(data["predictions"]) < data["peers"]:
        text.append(
            f"The page has {len(data['predictions'])} of {data['peers']:,} peers; "
            "the model cards in models/ have all of them."
        )
    return text


def _blocks(data: Mapping[str, Any]) -> str:
    """Return the size of the blocks in words; empty if each block is a single peer."""
    ends = [*data["blocks"][1:], data["peers"]]
    sizes = {end - start for start, end in zip(data["blocks"], ends, strict=True)}
    if max(sizes) == 1:
        return ""
    low, high = min(sizes), max(sizes)
    count = plural(high, "peer") if low == high else f"{low} to {high} peers"
    return f"{count}, adjacent in display order"


def _peers(data: Mapping[str, Any]) -> list[str]:
    text = ["Click a heading to sort. Click a peer to highlight it in all figures."]
    if data["best"] is not None:
        text.append("“Best”: test result in the round with the peer’s best validation result.")
    return text
