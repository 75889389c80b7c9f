"""Write the collaboration graph over the rounds: graph.csv and graph-measures.csv."""

from __future__ import annotations

import math
from itertools import repeat
from typing import Any

import numpy as np

from coterie.app.runs import cells
from coterie.app.runs.graph_scores import learnt_edges, score
from coterie.app.runs.rundir import Bools, Floats, Run

_EDGES = 1_000_000
"""Maximum edges of graph.csv; beyond, rounds are left out, but never the last one."""
_MEASURED = 5_000
"""Maximum number of measured matrices; each takes about a millisecond."""
_SCORES = ("precision", "recall", "f1", "overlap_within", "overlap_across")


def thinned(count: int, every: int) -> range:
    """Return the indices of every `every`-th of `count` matrices, counted back from the last."""
    return range((count - 1) % every, count, every)


def rounds_measured(count: int) -> range:
    """Return the matrices that are measured: all, unless there are very many."""
    return thinned(count, max(1, math.ceil(count / _MEASURED)))


def edges_csv(run: Run) -> str:
    """Write graph.csv: a line for each edge of the kept rounds.

    `weight` is the weight that the peer `from` gives to models or answers of the peer `to`; zero
    weights and a peer's own weight are omitted.
    """
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
    return cells.as_csv([[cells.safe(text), ""]]).removesuffix(",\n")


def measures_csv(run: Run) -> str:
    """Write graph-measures.csv: a line per recorded round, an empty cell for an undefined number.

        With very many rounds, some are left out, but never the last one.

    Columns: `round`; `edges`, directed, by the rule of `coterie.app.runs.graph_scores`;
    `collaborators`, edges that leave a peer, mean over peers; `sparsity`, the share of the possible
    edges that are missing; `symmetry`, the share of the edges whose reverse exists too; if
    clusters must be recovered, precision, recall, F1 and row overlap of
    `coterie.app.runs.graph_scores.GraphScores`, and `precision_<cluster>`, the share of the edges
    leaving that cluster's peers that stay inside it (label flips: cluster 0 is honest, so 1 -
    `precision_0` of its links lead to flipped peers); where peers attack, `to_attackers`, the share
    that they get of an honest peer's weight for others, mean over honest peers with such weight.
    """
    rows = [
        {"round": int(run.weight_rounds[c]), **measured(run.weights[c], run)}
        for c in rounds_measured(len(run.weights))
    ]
    return cells.as_csv([rows[0] if rows else ["round"], *(row.values() for row in rows)])


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
    if run.clusters_to_recover is not None:
        scores = score(np.asarray(weights_nn), run.clusters_to_recover)
        row |= {name: getattr(scores, name) for name in _SCORES}
        row |= {f"precision_{k}": share for k, share in scores.precision_by_cluster.items()}
    if run.attackers.any():
        row["to_attackers"] = weight_to(run.attackers, weights_nn)
    return row


def weight_to(attackers_n: Bools, weights_nn: Floats) -> float | None:
    """Return the share of honest peers' weight for others that attackers get; None if it is 0.

    Absolute weights of each peer are normalised to sum 1; the mean is over honest peers.
    """
    others_nn = np.abs(weights_nn) * ~np.eye(len(weights_nn), dtype=np.bool_)
    others_nn = others_nn[~attackers_n & (others_nn.sum(axis=1) > 0)]
    if not len(others_nn):
        return None
    return float((others_nn[:, attackers_n].sum(axis=1) / others_nn.sum(axis=1)).mean())
