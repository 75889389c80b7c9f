"""Data of a report page: a run's numbers, thinned for figures.

Shapes: R evaluated rounds, n peers, C recorded collaboration matrices, B blocks of peers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.app.experiments.methods import learns_graph
from coterie.app.report.thinning import (
    block_means,
    block_rows,
    block_starts,
    encode,
    finite,
    strongest_links,
    thin,
)
from coterie.app.runs import diagnostics, quality, units
from coterie.app.runs.graph import components, learnt_edges, row_scales, score
from coterie.app.runs.rundir import Floats, Ints, Run

CURVE_POINTS = 16_000
"""Maximum number of values (rounds x peers) of one metric in a page."""
WEIGHTS = 256_000
"""Maximum number of collaboration weights in a page; at least two matrices are kept."""
BLOCKS = 100
"""Maximum number of rows of a heat map; more peers are averaged in blocks."""
CROWD = 60
"""Number of peers above which figures show bands and links instead of every line and weight."""
LINKS = 3
"""Number of strongest links per peer that a page keeps of a crowd."""
DRAWN_LINKS = 1_200
"""Approximate number of links in the graph of a crowd."""
PREDICTIONS = 120_000
"""Maximum number of characters of prediction curves in a page."""
FIELDS = (
    "test_accuracy",
    "test_loss",
    "validation_accuracy",
    "validation_loss",
    "train_accuracy",
    "train_loss",
    "bytes_sent",
    "gradient_evaluations",
    "bytes_received",
    "balanced_accuracy",
    "auroc",
    "c_index",
    "rmse",
    "virtual_seconds",
)
DRAWN = (*FIELDS[:8], "virtual_seconds")
"""Fields that curves use as measure or axis."""


def page_data(run: Run) -> dict[str, Any]:
    """Return the data of a run's page, ready for JSON.

    `peers` (number) and their `names`; `classes` (empty: classes are numbers). `rounds`: kept
    rounds, of `evaluated`. `metrics`: each field (R, n), three bytes per number, NaN if missing.
    `last`, `best`: fields (n,) at each peer's last round and at its best round on validation data,
    six significant digits.

    `samples`, `clusters`: (n,) from the split, or null. `held_out`: numbers of `validation` and
    `test` examples of institutions, and of groups, (n,), or null. `unjudged`: peer -> why its
    results are no numbers to judge by. `recovered`: (n,) groups of the last learnt graph if the
    true clusters are unknown, or null. `order`: peers in display order; `blocks`: (B,) index in
    `order` of the first peer of each block. `labels`: (B, classes) training examples per peer, mean
    over the block, or null.

    `diverged`: diverged peers. `predictions`: curves of `coterie.clients.measures` by peer, or
    null. `graph`: see `graph_data`. `worth`: see `worth.as_map`, or null. `took_part`: number of
    rounds in which each peer took part, if not all did in all rounds; `fewest`: number of peers in
    the round with the fewest reports, likewise.
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
        "held_out": _held_out(run),
        "unjudged": quality.too_few_rows(run),
        "clusters": None if clusters is None else clusters.tolist(),
        "recovered": None if recovered is None else recovered.tolist(),
        "order": order.tolist(),
        "blocks": blocks.tolist(),
        "labels": _labels(run, order, blocks),
        "diverged": np.flatnonzero(run.diverged).tolist(),
        "predictions": _predictions(run),
        "graph": graph_data(run, order, blocks),
        "worth": None,
    }
    if (fewest := int(run.reported.sum(axis=1).min(initial=run.peers))) < run.peers:
        data["fewest"] = fewest
    if took_part := run.progress.get("took_part"):
        data["took_part"] = {"rounds": took_part, "of": run.progress["round"]}
    return data


def _held_out(run: Run) -> dict[str, list[int]] | None:
    if not quality.is_of_institutions(run):
        return None
    sizes = {part: run.sizes(part) for part in ("validation", "test")}
    if run.is_grouped:
        sizes |= {f"{part} groups": run.sizes(part, in_groups=True) for part in ("train", *sizes)}
    return {part: s_n.astype(int).tolist() for part, s_n in sizes.items() if s_n is not None}


def _predictions(run: Run) -> dict[int, Any] | None:
    """Return the prediction curves of the first peers, from cards that are here, up to a length."""
    curves: dict[int, Any] = {}
    room = PREDICTIONS
    for peer in range(run.peers):
        of_peer = diagnostics.card(run, peer).curves
        room -= len(json.dumps(of_peer))
        if room < 0 or not of_peer:
            break
        curves[peer] = of_peer
    return curves or None


def graph_data(run: Run, order: Ints, blocks: Ints) -> dict[str, Any] | None:
    """Return the collaboration matrices; None if no peer ever gave another one any weight.

    Keys: `rounds`, those kept of `recorded`; `weights`, for each of them (B, B) means over blocks
    of `order`, encoded in two bytes per number; `links`, null unless the peers are a crowd; `top`,
    the largest weight between two peers; `scales` (B,) of each round's rows, means over blocks of
    `row_scales`, encoded in two bytes per number; `own`, see `has_own_weights`; for each round the
    number of learnt `edges` and mutual `groups`, and `scores` (precision, recall, f1, adjusted Rand
    index) if clusters are known and the method `learns` the graph. `links` holds `each` (K), the
    number per peer, `drawn`, the number in the graph, and `to` and `weights`, the (n, K) strongest
    links of each round, encoded in three and two bytes per number.
    """
    between = run.weights_between()
    if not between.any():
        return None
    each = 2 * LINKS * run.peers if run.peers > CROWD else 0
    keep = thin(len(run.weights), WEIGHTS // (len(blocks) ** 2 + each))
    learns = learns_graph(run.settings)
    clusters = run.clusters if learns else None
    weights_cnn = [finite(run.weights[k]) for k in keep]
    edges = [learnt_edges(w_nn) for w_nn in weights_cnn] if learns else None
    scores = None if clusters is None else [score(w_nn, clusters) for w_nn in weights_cnn]
    scales = [block_rows(row_scales(w_nn)[:, None], order, blocks)[:, 0] for w_nn in weights_cnn]
    means = [block_means(w_nn, order, blocks) for w_nn in weights_cnn]
    return {
        "recorded": len(run.weights),
        "learns": learns,
        "rounds": run.weight_rounds[keep].tolist(),
        "weights": encode(np.stack(means), 2),
        "links": _links(weights_cnn) if run.peers > CROWD else None,
        "top": float(between.max()),
        "scales": encode(np.stack(scales), 2),
        "own": has_own_weights(run),
        "edges": edges and [int(e_nn.sum()) for e_nn in edges],
        "groups": edges and [int(components(e_nn).max()) + 1 for e_nn in edges],
        "scores": scores and [
            {"precision": each.precision, "recall": each.recall, "f1": each.f1,
             "rand": each.adjusted_rand_index} for each in scores
        ],
    }  # fmt: skip


def has_own_weights(run: Run) -> bool:
    """Return whether the method has own weights: a diagonal of ones means that it has none."""
    return bool((np.diagonal(run.weights, axis1=1, axis2=2) != 1).any())


def peer_order(run: Run) -> Ints:
    """Return the display order of the peers: by true cluster, else by recovered group."""
    clusters = run.clusters
    if clusters is not None:
        return np.argsort(clusters, kind="stable")
    recovered = recovered_clusters(run)
    if run.peers < 3 or recovered is None:
        return np.arange(run.peers)
    from scipy.cluster.hierarchy import leaves_list, linkage  # half a second, rarely needed
    from scipy.spatial.distance import squareform

    tie_nn = finite(run.weights[-1])
    tie_nn = (tie_nn + tie_nn.T) / 2
    np.fill_diagonal(tie_nn, tie_nn.max())
    far_p = squareform(tie_nn.max() - tie_nn)
    leaf_n = leaves_list(linkage(far_p, "average", optimal_ordering=run.peers <= 300))  # O(n^3)
    _, first, group_n = np.unique(recovered[leaf_n], return_index=True, return_inverse=True)
    return np.asarray(leaf_n[np.argsort(first[group_n], kind="stable")], dtype=np.int64)


def recovered_clusters(run: Run) -> Ints | None:
    """Return the groups of the last learnt graph, (n,), if clusters are unknown; else None."""
    if run.clusters is not None or not len(run.weights) or not learns_graph(run.settings):
        return None
    return components(learnt_edges(run.weights[-1]))


def display_blocks(run: Run) -> tuple[Ints, Ints]:
    """Return the display order of the peers, (n,), and the first index of each block, (B,)."""
    order, groups = peer_order(run), run.clusters
    if groups is None:
        groups = recovered_clusters(run)
    return order, block_starts(np.zeros_like(order) if groups is None else groups[order], BLOCKS)


def block_sizes(blocks: Ints, peers: int) -> str:
    """Return the size of the blocks in words; empty if each block is a single peer."""
    sizes = np.diff(blocks, append=peers)
    low, high = int(sizes.min()), int(sizes.max())
    if high == 1:
        return ""
    count = units.plural(high, "peer") if low == high else f"{low} to {high} peers"
    return f"{count}, adjacent in display order"


def rounded(values: Floats) -> list[Any]:
    """Convert an array to nested lists, six significant digits; null replaces non-finite values."""
    if values.ndim > 1:
        return [rounded(row) for row in values]
    return [_plain(value) for value in values.tolist()]


def _plain(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() else float(f"{value:.6g}")


def _links(weights_cnn: Sequence[Floats]) -> dict[str, Any]:
    links = [strongest_links(weights_nn, LINKS) for weights_nn in weights_cnn]
    to, weights = map(np.stack, zip(*links, strict=True))
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
