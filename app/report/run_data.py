"""The numbers a report page carries: a run, thinned to what a reader can see.

Shapes: R evaluated rounds, n peers, C recorded collaboration matrices.
"""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from app.report import captions
from app.runs.graph_scores import components, learnt_edges, score
from app.runs.rundir import Floats, Ints, Run

CURVE_POINTS = 10_000
"""Most numbers (rounds x peers) a page keeps of one metric."""
WEIGHTS = 300_000
"""Most numbers (rounds x peers x peers) a page keeps of the collaboration matrices."""
FIELDS = (
    "test_accuracy",
    "test_loss",
    "validation_accuracy",
    "validation_loss",
    "train_loss",
    "bytes_sent",
    "bytes_received",
    "gradient_evaluations",
)


def page_data(run: Run) -> dict[str, Any]:
    """Collect what the page draws, ready for JSON.

    Returns
    -------
    dict with `peers`; `rounds` (kept of `evaluated`) and `metrics`, each field (R, n) with null
    for what is missing, six significant digits; `last` and `best`, the same fields (n,) at each
    peer's last and best-on-validation round; `samples`, `clusters`, `labels` of the split or
    null; `order`, the peers as heat maps list them; `graph`, see `graph_data`; `captions`,
    the paragraph above each figure.
    """
    last_n, best_n = run.last_row(), run.best_row()
    keep = thin(len(run.rounds), CURVE_POINTS // run.peers)
    fields = [name for name in FIELDS if not np.isnan(run.metric(name)).all()]
    samples, clusters, labels = run.samples, run.clusters, run.labels("train")
    data = {
        "peers": run.peers,
        "evaluated": len(run.rounds),
        "rounds": run.rounds[keep].tolist(),
        "metrics": {name: rounded(run.metric(name)[keep]) for name in fields},
        "last": {name: rounded(run.at(name, last_n)) for name in fields},
        "best": None if best_n is None else _best(run, best_n),
        "samples": None if samples is None else rounded(samples),
        "clusters": None if clusters is None else clusters.tolist(),
        "labels": None if labels is None else labels.tolist(),
        "order": peer_order(run).tolist(),
        "graph": graph_data(run),
    }
    return data | {"captions": captions.of_run(data)}


def graph_data(run: Run) -> dict[str, Any] | None:
    """Collect the collaboration matrices; None where no peer ever gave another any weight.

    Returns
    -------
    dict with `rounds` (kept of `recorded`); `weights`, base64 of little-endian uint16, each
    frame's (n, n) rows in turn, 0 standing for `low` and 65535 for `high`; `top`, the largest
    weight between two peers; `own`, see `has_own_weights`; for each frame the number of learnt
    `edges` and mutual `groups`, and `scores` (precision, recall, f1, adjusted Rand index) where
    clusters are known.
    """
    weights = np.nan_to_num(run.weights, posinf=0.0, neginf=0.0)
    between = weights_between(run)
    if not between.any():
        return None
    keep = thin(len(weights), WEIGHTS // run.peers**2)
    low, high = min(0.0, float(weights.min())), float(weights.max())
    coded = np.round((weights[keep] - low) / (high - low) * 65535).astype("<u2")
    clusters = run.clusters_to_recover
    scores = None if clusters is None else [score(each, clusters) for each in weights[keep]]
    edges = [learnt_edges(each) for each in weights[keep]]
    return {
        "recorded": len(weights),
        "rounds": run.weight_rounds[keep].tolist(),
        "weights": base64.b64encode(coded.tobytes()).decode("ascii"),
        "low": low,
        "high": high,
        "top": float(between.max()),
        "own": has_own_weights(run),
        "edges": [int(each.sum()) for each in edges],
        "groups": [int(components(each).max()) + 1 for each in edges],
        "scores": scores
        and [
            {
                "precision": each.precision,
                "recall": each.recall,
                "f1": each.f1,
                "rand": each.adjusted_rand_index,
            }
            for each in scores
        ],
    }


def weights_between(run: Run) -> Floats:
    """Return the weights between different peers, (C, n (n - 1)), 0 for what is not finite."""
    between = run.weights[:, ~np.eye(run.peers, dtype=np.bool_)]
    return np.nan_to_num(between, posinf=0.0, neginf=0.0)


def has_own_weights(run: Run) -> bool:
    """Tell whether the diagonal means something: ones throughout say that there are none."""
    return bool((np.diagonal(run.weights, axis1=1, axis2=2) != 1).any())


def peer_order(run: Run) -> Ints:
    """Request the peers for display: by true cluster, else collaborators next to each other."""
    clusters = run.clusters
    if clusters is not None:
        return np.argsort(clusters, kind="stable")
    if run.peers < 3 or not len(run.weights):
        return np.arange(run.peers)
    tie_nn = np.nan_to_num(run.weights[-1], posinf=0.0, neginf=0.0)
    tie_nn = (tie_nn + tie_nn.T) / 2
    np.fill_diagonal(tie_nn, tie_nn.max())
    tree = linkage(squareform(tie_nn.max() - tie_nn), "average", optimal_ordering=True)
    return np.asarray(leaves_list(tree), dtype=np.int64)


def thin(count: int, most: int) -> Ints:
    """Pick at most `most` (but two) of `count` indices, evenly, the first and the last included."""
    most = min(count, max(2, most))
    return np.unique(np.linspace(0, count - 1, most).round().astype(np.int64))


def rounded(values: Floats) -> list[Any]:
    """Convert an array to nested lists of six significant digits; null for what is not finite."""
    if values.ndim > 1:
        return [rounded(row) for row in values]
    return [_plain(value) for value in values.tolist()]


def _plain(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    return int(value) if value.is_integer() else float(f"{value:.6g}")


def _best(run: Run, best_n: Ints) -> dict[str, Any]:
    rounds = [int(run.rounds[row]) if row >= 0 else None for row in best_n]
    names = ("test_accuracy", "test_loss")
    return {"round": rounds, **{name: rounded(run.at(name, best_n)) for name in names}}
