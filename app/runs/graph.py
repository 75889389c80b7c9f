"""Write the collaboration graph over the rounds: graph.csv and graph-measures.csv."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np

from coterie.app.runs import atomic
from coterie.app.runs.rundir import Bools, Floats, Ints, Run

_FLOOR = 0.1
"""Minimum scale of a row, as a share of the largest weight between two peers."""


@dataclass(frozen=True)
class GraphScores:
    """Scores of a learnt graph against the true clusters; None if a score is undefined."""

    precision: float | None  # share of the learnt directed edges that are inside a true cluster
    # Share of the true directed edges (all pairs inside a cluster) that were learnt.
    recall: float | None
    f1: float | None  # harmonic mean of precision and recall
    # Of the true clusters and the connected components of the mutual graph.
    adjusted_rand_index: float
    exact: bool  # the learnt edges equal the true edges
    # Share of the peers with cluster mates whose largest weight goes to mates only, including ties.
    largest_weight_on_own_cluster: float | None


def learnt_edges(weights_nn: Floats) -> Bools:
    """Return the directed graph (n, n) of each peer's collaborators, from weights (n, n)."""
    return np.asarray(_off_diagonal(weights_nn) > row_scales(weights_nn)[:, None] / 2)


def row_scales(weights_nn: Floats) -> Floats:
    """Return the weight of each row, (n,), of which a learnt edge has more than half."""
    off_nn = _off_diagonal(weights_nn)
    scale_n = np.maximum(off_nn.max(axis=1, initial=0.0), _FLOOR * off_nn.max(initial=0.0))
    is_share_n = np.isclose(off_nn.sum(axis=1), 1.0, atol=1e-6)
    has_unit_n = (np.diag(weights_nn) == 1.0) & ~is_share_n
    return np.asarray(np.where(has_unit_n, np.maximum(scale_n, 1.0), scale_n))


def components(edges_nn: Bools) -> Ints:
    """Number the connected components of the mutual graph (both directions learnt), (n,)."""
    # scipy.sparse.csgraph would take longer to import than the rest of a report.
    near_nn = (edges_nn & edges_nn.T) | np.eye(len(edges_nn), dtype=np.bool_)
    label_n = np.arange(len(edges_nn))
    while True:  # a label is a peer of the component; it falls to the lowest label around, and on
        lowest_n = np.where(near_nn, label_n, len(label_n)).min(axis=1, initial=len(label_n))
        lowest_n = lowest_n[lowest_n]
        if (lowest_n == label_n).all():
            return np.unique(label_n, return_inverse=True)[1].astype(np.int64)
        label_n = lowest_n


def score(weights_nn: Floats, clusters_n: Ints) -> GraphScores:
    """Compare one learnt weight matrix (n, n) with the true clusters (n,)."""
    learnt_nn, true_nn = learnt_edges(weights_nn), clusters_n[:, None] == clusters_n
    np.fill_diagonal(true_nn, False)
    hits_nn = learnt_nn & true_nn
    precision = _ratio(hits_nn.sum(), learnt_nn.sum())
    recall = _ratio(hits_nn.sum(), true_nn.sum())
    return GraphScores(
        precision=precision,
        recall=recall,
        f1=_ratio(2 * hits_nn.sum(), learnt_nn.sum() + true_nn.sum()),
        adjusted_rand_index=adjusted_rand_index(clusters_n, components(learnt_nn)),
        exact=bool((learnt_nn == true_nn).all()),
        largest_weight_on_own_cluster=_largest_on_own(weights_nn, true_nn),
    )


def _off_diagonal(weights_nn: Floats) -> Floats:
    off_nn = np.nan_to_num(np.array(weights_nn, dtype=np.float64), posinf=0.0, neginf=0.0)
    np.fill_diagonal(off_nn, 0.0)
    return off_nn


def adjusted_rand_index(one_n: Ints, other_n: Ints) -> float:
    """Return the agreement of two clusterings (Hubert and Arabie 1985), over ordered pairs.

    scikit-learn's gives the same number, but takes a second of every run to import.
    """
    n = len(one_n)
    both, first, second = (
        int((np.unique(labels, axis=0, return_counts=True)[1] ** 2).sum()) - n
        for labels in (np.stack([one_n, other_n], axis=1), one_n, other_n)
    )
    if first == second == both:
        return 1.0
    neither = n * (n - 1) - first - second + both
    only_first, only_second = first - both, second - both
    return (
        2.0
        * (both * neither - only_first * only_second)
        / (first * (only_first + neither) + second * (only_second + neither))
    )


def _largest_on_own(weights_nn: Floats, true_nn: Bools) -> float | None:
    off_nn = _off_diagonal(weights_nn)
    largest_n = off_nn.max(axis=1, initial=0.0)
    top_nn = (off_nn == largest_n[:, None]) & (largest_n[:, None] > 0)
    good_n = top_nn.any(axis=1) & ~(top_nn & ~true_nn).any(axis=1)
    has_mate_n = true_nn.any(axis=1)
    return _ratio(good_n[has_mate_n].sum(), has_mate_n.sum())


def _ratio(part: float, whole: float) -> float | None:
    return float(part / whole) if whole else None


_EDGES = 1_000_000
"""Maximum edges of graph.csv; beyond, rounds are left out, but never the last one."""
_MEASURED = 5_000
"""Maximum number of measured matrices; each takes about a millisecond."""
_SCORES = ("precision", "recall", "f1")


def thinned(count: int, every: int) -> range:
    """Return the indices of every `every`-th of `count` matrices, counted back from the last."""
    return range((count - 1) % every, count, every)


def rounds_measured(count: int) -> range:
    """Return the matrices that are measured: all, unless there are very many."""
    return thinned(count, max(1, math.ceil(count / _MEASURED)))


def edges_csv(run: Run) -> str:
    """Write graph.csv: the weight that the peer `from` gives to `to`, in the kept rounds; not 0."""
    lines = ["round,from,to,weight"]
    if not len(run.weights):
        return "\n".join([*lines, ""])
    names = [_cell(name) for name in run.names]  # once: a large graph has a million lines
    between = (run.weights != 0) & ~np.eye(run.peers, dtype=np.bool_)
    for c in thinned(len(run.weights), max(1, math.ceil(between.sum() / _EDGES))):
        for i, row in enumerate(between[c]):
            (others,) = np.nonzero(row)
            weights = run.weights[c, i, others].tolist()
            # A number takes longer to write than the rest of its line.
            same = len(set(weights)) == 1
            texts = repeat(str(weights[0]), len(weights)) if same else map(str, weights)
            start = f"{run.weight_rounds[c]},{names[i]},"
            edges = zip(others.tolist(), texts, strict=True)
            lines += [f"{start}{names[j]},{weight}" for j, weight in edges]
    return "\n".join([*lines, ""])


def _cell(text: str) -> str:
    """Return text as a cell of a CSV file, quoted if necessary, and safe for spreadsheets."""
    return atomic.as_csv([[atomic.safe(text), ""]]).removesuffix(",\n")


def measures_csv(run: Run) -> str:
    """Write graph-measures.csv: a line per recorded round, an empty cell for an undefined number.

    With very many rounds, some are left out, but never the last one. `sparsity` is the share of the
    possible edges that are missing, `symmetry` that of the edges whose reverse exists too, and
    `to_attackers` the result of `weight_to`.
    """
    rows = [
        {"round": int(run.weight_rounds[c]), **measured(run.weights[c], run)}
        for c in rounds_measured(len(run.weights))
    ]
    return atomic.as_csv([rows[0] if rows else ["round"], *(row.values() for row in rows)])


def measured(weights_nn: Floats, run: Run) -> dict[str, Any]:
    """Measure a graph of a run: the columns of `measures_csv` but the round."""
    n = run.peers
    edges_nn = learnt_edges(weights_nn)
    edges = int(edges_nn.sum())
    possible = n * (n - 1)
    row: dict[str, Any] = {
        "edges": edges,
        "collaborators": edges / n,
        "sparsity": 1 - edges / possible if possible else None,
        "symmetry": float((edges_nn & edges_nn.T).sum() / edges) if edges else None,
    }
    if run.clusters is not None:
        scores = score(np.asarray(weights_nn), run.clusters)
        row |= {name: getattr(scores, name) for name in _SCORES}
    if run.attackers.any():
        row["to_attackers"] = weight_to(run.attackers, weights_nn)
    return row


def weight_to(attackers_n: Bools, weights_nn: Floats) -> float | None:
    """Return the mean share of an honest peer's absolute weight for others that attackers get."""
    others_nn = np.abs(weights_nn) * ~np.eye(len(weights_nn), dtype=np.bool_)
    others_nn = others_nn[~attackers_n & (others_nn.sum(axis=1) > 0)]
    if not len(others_nn):
        return None
    return float((others_nn[:, attackers_n].sum(axis=1) / others_nn.sum(axis=1)).mean())
