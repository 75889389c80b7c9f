"""The numbers a report page carries: a run, thinned to what a reader can see.

Shapes: R evaluated rounds, n peers, C recorded collaboration matrices, B blocks of peers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from coterie.app.report import captions
from coterie.app.report.methods import learns_graph
from coterie.app.report.thinning import (
    block_means,
    block_rows,
    block_starts,
    encode,
    finite,
    strongest_links,
    thin,
)
from coterie.app.runs import files
from coterie.app.runs.graph_scores import components, learnt_edges, score
from coterie.app.runs.rundir import Floats, Ints, Run

CURVE_POINTS = 16_000
"""Most numbers (rounds x peers) a page keeps of one metric."""
WEIGHTS = 256_000
"""Most numbers a page keeps of the collaboration matrices, unless two of them have more."""
BLOCKS = 100
"""Most rows of a heat map; more peers than that are averaged in blocks."""
CROWD = 60
"""Peers beyond which figures show bands for lines, and links for all weights."""
LINKS = 3
"""Links that a page keeps from each peer of a crowd, its strongest."""
DRAWN_LINKS = 1_200
"""About how many links the graph of a crowd draws."""
PREDICTIONS = 120_000
"""Most characters a page keeps of what is drawn of predictions."""
FIELDS = (
    "test_accuracy",
    "test_loss",
    "validation_accuracy",
    "validation_loss",
    "train_loss",
    "bytes_sent",
    "gradient_evaluations",
    "bytes_received",
    "balanced_accuracy",
    "auroc",
    "rmse",
    "virtual_seconds",
)
DRAWN = (*FIELDS[:7], "virtual_seconds")
"""The fields that curves have as a measure or as their axis."""


def page_data(run: Run) -> dict[str, Any]:
    """Collect what the page draws, ready for JSON.

    Returns
    -------
    dict with `peers`; their `names`; `classes` (none: numbers name them); `rounds` (kept of
    `evaluated`) and `metrics`, each field (R, n) encoded in three bytes a number, NaN for what is
    missing; `last` and `best`, the fields (n,) at each peer's last and best-on-validation
    round, six significant digits; `samples` and `clusters` of the split or null; `recovered`, the
    clusters of the last graph where the true ones are not known, or null; `order`, the peers as
    figures list them; `blocks`, where in `order` each block of peers starts, (B,); `labels`,
    (B, classes) training examples of a peer, mean over the block, or null; `diverged`, the peers
    that did; `predictions`, what `coterie.clients.measures` draws of some peers, by peer, or null; `graph`,
    see `graph_data`; `captions`, the paragraph above each figure; and where not everybody always
    took part `took_part`, in how many of the rounds so far each peer did.
    """
    last_n, best_n = run.last_row(), run.best_row()
    keep = thin(len(run.rounds), CURVE_POINTS // run.peers)
    fields = [name for name in FIELDS if not np.isnan(run.metric(name)).all()]
    samples, clusters, recovered = run.samples, run.clusters, recovered_clusters(run)
    order, blocks = display_blocks(run)
    data = {
        "peers": run.peers,
        "names": run.names,
        "classes": run.classes,
        "crowd": run.peers > CROWD,
        "evaluated": len(run.rounds),
        "rounds": run.rounds[keep].tolist(),
        "metrics": {name: encode(run.metric(name)[keep], 3) for name in fields if name in DRAWN},
        "last": {name: rounded(run.at(name, last_n)) for name in fields},
        "best": None if best_n is None else _best(run, best_n),
        "samples": None if samples is None else rounded(samples),
        "clusters": None if clusters is None else clusters.tolist(),
        "recovered": None if recovered is None else recovered.tolist(),
        "order": order.tolist(),
        "blocks": blocks.tolist(),
        "labels": _labels(run, order, blocks),
        "diverged": np.flatnonzero(run.diverged).tolist(),
        "predictions": _predictions(run),
        "graph": graph_data(run, order, blocks),
    }
    if took_part := run.progress.get("took_part"):
        data["took_part"] = {"rounds": took_part, "of": run.progress["round"]}
    return data | {"captions": captions.of_run(data)}


def _predictions(run: Run) -> dict[int, Any] | None:
    """What the model cards of the first peers have to draw, as much as a page can hold.

    In a deployment the cards are the nodes', and the relay's pages have none.
    """
    found: dict[int, Any] = {}
    room = PREDICTIONS
    for peer in range(run.peers):
        card = files.json_of(run.directory, f"models/peer-{peer:04d}.json", dict) or {}
        room -= len(json.dumps(card.get("curves", {})))
        if room < 0 or not card.get("curves"):
            break
        found[peer] = card["curves"]
    return found or None


def graph_data(run: Run, order: Ints, blocks: Ints) -> dict[str, Any] | None:
    """Collect the collaboration matrices; None where no peer ever gave another any weight.

    Returns
    -------
    dict with `rounds` (kept of `recorded`); `weights`, for each of them (B, B) means over blocks of
    `order`, encoded in two bytes a number; `links`, null unless the peers are a crowd: `each` (K),
    how many of them the graph draws (`drawn`), `to` and `weights`, every round's (n, K) strongest
    links, encoded in three and two bytes; `top`, the largest weight between two peers; `darkest`,
    the largest of `weights` but a peer's own; `own`, see `has_own_weights`; for each round the
    number of learnt `edges` and mutual `groups`, and `scores` (precision, recall, f1, adjusted
    Rand index) where clusters are known and the method `learns` the graph.
    """
    between = weights_between(run)
    if not between.any():
        return None
    each = 2 * LINKS * run.peers if run.peers > CROWD else 0
    keep = thin(len(run.weights), WEIGHTS // (len(blocks) ** 2 + each))
    learns = learns_graph(run.config)
    clusters = run.clusters_to_recover if learns else None
    frames = [_frame(finite(run.weights[k]), order, blocks, clusters) for k in keep]
    means = np.stack([frame.means for frame in frames])
    return {
        "recorded": len(run.weights),
        "learns": learns,
        "rounds": run.weight_rounds[keep].tolist(),
        "weights": encode(means, 2),
        "links": _links([frame.links for frame in frames if frame.links]),
        "top": float(between.max()),
        "darkest": _darkest(means, blocks, run.peers) or float(between.max()),
        "own": has_own_weights(run),
        "edges": [frame.edges for frame in frames],
        "groups": [frame.groups for frame in frames],
        "scores": [frame.scores for frame in frames] if clusters is not None else None,
    }


class Frame(NamedTuple):
    """What a page keeps of one collaboration matrix, see `graph_data`."""

    means: Floats
    links: tuple[Ints, Floats] | None
    edges: int
    groups: int
    scores: dict[str, float | None] | None


def _frame(weights_nn: Floats, order: Ints, blocks: Ints, clusters: Ints | None) -> Frame:
    edges = learnt_edges(weights_nn)
    found = None if clusters is None else score(weights_nn, clusters)
    return Frame(
        means=block_means(weights_nn, order, blocks),
        links=strongest_links(weights_nn, LINKS) if len(weights_nn) > CROWD else None,
        edges=int(edges.sum()),
        groups=int(components(edges).max()) + 1,
        scores=None
        if found is None
        else {
            "precision": found.precision,
            "recall": found.recall,
            "f1": found.f1,
            "rand": found.adjusted_rand_index,
        },
    )


def weights_between(run: Run) -> Floats:
    """Return the weights between different peers, (C, n - 1, n), 0 for what is not finite."""
    count, n = run.weights.shape[:2]
    flat = np.ascontiguousarray(run.weights).reshape(count, n * n)
    between = flat[:, 1:].reshape(count, n - 1, n + 1)[:, :, :-1]  # all but every (n + 1)th
    return between if np.isfinite(between).all() else finite(between)


def has_own_weights(run: Run) -> bool:
    """Tell whether the diagonal means something: ones throughout say that there are none."""
    return bool((np.diagonal(run.weights, axis1=1, axis2=2) != 1).any())


def peer_order(run: Run) -> Ints:
    """List the peers for display: by true cluster, else by recovered one and by how they tie."""
    clusters = run.clusters
    if clusters is not None:
        return np.argsort(clusters, kind="stable")
    recovered = recovered_clusters(run)
    if run.peers < 3 or recovered is None:
        return np.arange(run.peers)
    from scipy.cluster.hierarchy import leaves_list, linkage  # half a second that few need
    from scipy.spatial.distance import squareform

    tie_nn = finite(run.weights[-1])
    tie_nn = (tie_nn + tie_nn.T) / 2
    np.fill_diagonal(tie_nn, tie_nn.max())
    far_p = squareform(tie_nn.max() - tie_nn)
    leaf_n = leaves_list(linkage(far_p, "average", optimal_ordering=run.peers <= 300))  # n^3 else
    _, first, group_n = np.unique(recovered[leaf_n], return_index=True, return_inverse=True)
    return np.asarray(leaf_n[np.argsort(first[group_n], kind="stable")], dtype=np.int64)


def recovered_clusters(run: Run) -> Ints | None:
    """Number the groups of the last learnt graph, (n,); None if the true ones are known."""
    if run.clusters is not None or not len(run.weights):
        return None
    return components(learnt_edges(run.weights[-1]))


def display_blocks(run: Run) -> tuple[Ints, Ints]:
    """Return the peers in display order, (n,), and where in it each block starts, (B,)."""
    order, groups = peer_order(run), run.clusters
    if groups is None:
        groups = recovered_clusters(run)
    return order, block_starts(np.zeros_like(order) if groups is None else groups[order], BLOCKS)


def rounded(values: Floats) -> list[Any]:
    """Convert an array to nested lists of six significant digits; null for what is not finite."""
    if values.ndim > 1:
        return [rounded(row) for row in values]
    return [_plain(value) for value in values.tolist()]


def _plain(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() else float(f"{value:.6g}")


def _darkest(means_kbb: Floats, blocks: Ints, peers: int) -> float:
    is_own = np.diag(np.diff(blocks, append=peers) == 1)
    return float(means_kbb[:, ~is_own].max())


def _links(frames: Sequence[tuple[Ints, Floats]]) -> dict[str, Any] | None:
    if not frames:
        return None
    to, weights = map(np.stack, zip(*frames, strict=True))
    drawn = int(np.clip(DRAWN_LINKS // to.shape[1], 1, LINKS))
    return {"each": LINKS, "drawn": drawn, "to": encode(to, 3), "weights": encode(weights, 2)}


def _labels(run: Run, order: Ints, blocks: Ints) -> list[Any] | None:
    labels = run.labels("train")
    if labels is None:
        return None
    return rounded(block_rows(labels.astype(np.float64), order, blocks).round(1))


def _best(run: Run, best_n: Ints) -> dict[str, Any]:
    rounds = [int(run.rounds[row]) if row >= 0 else None for row in best_n]
    names = ("test_accuracy", "test_loss")
    return {"round": rounds, **{name: rounded(run.at(name, best_n)) for name in names}}
