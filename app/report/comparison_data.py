"""Data of a comparison's page: the runs of all methods, thinned to what figures can show.

Shapes: M methods, S seeds, R kept rounds, F frames of the collaboration maps, n peers.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from app.report.comparison import Row
from app.report.measures import gains, has_accuracy, last
from app.report.methods import learns_graph
from app.report.run_data import (
    FIELDS,
    has_own_weights,
    peer_order,
    rounded,
    weights_between,
)
from app.report.thinning import thin
from app.runs.graph_scores import score
from app.runs.rundir import Floats, Ints, Run

CURVE_POINTS = 200
"""Maximum number of rounds of the curves in a page."""
MAP_BYTES = 1_500_000
"""Maximum number of weights of all collaboration maps in a page; at least two frames are kept."""


def page_data(made: Sequence[Row]) -> dict[str, Any]:
    """Return the data of a comparison's page, ready for JSON.

    Returns
    -------
    dict[str, Any]
        `methods`, `seeds`, `peers` (number). `rounds` and `metrics`: each field's `mean` and `std`
        over seeds of the mean over peers, (M, R). `names`, `clusters` and `order` of the peers,
        (S, n). `gains`: see `gain_data`. `maps`: see `map_data`. Missing parts are null.
    """
    of_seed = {run.config.get("seed"): run for row in reversed(made) for run in row.runs}
    seeds = seeds_of(made)
    runs = [of_seed[seed] for seed in seeds]
    every = _union(run.rounds for row in made for run in row.runs)
    rounds = every[thin(len(every), CURVE_POINTS)]
    metrics = {}
    for name in FIELDS:
        pairs = [over_seeds(row.runs, name, rounds) for row in made]
        if any(not np.isnan(mean).all() for mean, _ in pairs):
            mean, std = zip(*pairs, strict=True)
            metrics[name] = {"mean": rounded(np.stack(mean)), "std": rounded(np.stack(std))}
    known = all(run.clusters is not None for run in runs)
    order = [peer_order(run) if known else np.arange(run.peers) for run in runs]
    return {
        "methods": [row.method for row in made],
        "seeds": seeds,
        "peers": runs[0].peers,
        "names": [run.names for run in runs],
        "rounds": rounds.tolist(),
        "metrics": metrics,
        "clusters": [run.clusters.tolist() for run in runs if run.clusters is not None] or None,
        "order": [each.tolist() for each in order],
        "gains": gain_data(made),
        "maps": map_data(made),
    }


def seeds_of(made: Sequence[Row]) -> list[Any]:
    """Return the seeds of a comparison, sorted; a method may lack a seed whose run failed."""
    return sorted({run.config.get("seed") for row in made for run in row.runs})


def over_seeds(runs: Sequence[Run], name: str, rounds: Ints) -> tuple[Floats, Floats]:
    """Return mean and sample deviation over seeds of a field's mean over peers, (R,) each.

    The deviation is 0 for one seed. Values are NaN if no seed has the field, and infinite or NaN if
    a peer diverged.
    """
    mean_sr = np.full((len(runs), len(rounds)), np.nan)
    for k, run in enumerate(runs):
        values_rn = run.metric(name)
        has_rn = ~np.isnan(values_rn)
        count_r = has_rn.sum(axis=1)
        sum_r = np.where(has_rn, values_rn, 0.0).sum(axis=1)
        mean_r = np.divide(sum_r, count_r, out=np.full(len(sum_r), np.nan), where=count_r > 0)
        kept, where = np.isin(run.rounds, rounds), np.searchsorted(rounds, run.rounds)
        mean_sr[k, where[kept]] = mean_r[kept]
    mean_r, std_r = np.full(len(rounds), np.nan), np.full(len(rounds), np.nan)
    for r, column_s in enumerate(mean_sr.T):
        values = column_s[~np.isnan(column_s)]
        if len(values):
            mean_r[r] = values.mean()
            std_r[r] = 0.0 if len(values) == 1 else _deviation(values)
    return mean_r, std_r


def gain_data(made: Sequence[Row]) -> dict[str, Any] | None:
    """Return each peer's gain over Local; None if there is no run of Local.

    Returns
    -------
    dict[str, Any] | None
        `accuracy`: whether gains are of accuracy or of loss. `gain` and `final` (the peer's final
        value): (M, S, n); empty for a seed that the method or Local lacks.
    """
    pairs = [
        {
            run.config.get("seed"): (run, local)
            for run, local in zip(row.runs, row.local, strict=True)
        }
        for row in made
    ]
    alone = [local for row in made for local in row.local if local is not None]
    if not alone:
        return None
    accuracy = has_accuracy(alone[0])
    field = "test_accuracy" if accuracy else "test_loss"

    def of_peers(number: Callable[[Run, Run], Floats]) -> list[list[Any]]:
        by_seed = [[of_row.get(seed, (None, None)) for seed in seeds_of(made)] for of_row in pairs]
        return [
            [rounded(number(run, local)) if run and local else [] for run, local in of_row]
            for of_row in by_seed
        ]

    return {
        "accuracy": accuracy,
        "gain": of_peers(gains),
        "final": of_peers(lambda run, _: last(run, field)),
    }


def map_data(made: Sequence[Row]) -> dict[str, Any] | None:
    """Return the collaboration matrices; None if no method has any.

    Returns
    -------
    dict[str, Any] | None
        `rounds`: (F,). `of`: one entry per method and seed with weights between peers: `method` and
        `seed` (indices), `low` and `high` (range), `top` (largest weight between two peers), `own`
        (see `has_own_weights`), `f1` per frame or null.
        `weights`: base64, one byte per weight, the (n, n) frames of the entries in order; 0 stands
        for `low`, 255 for `high`.
    """
    seeds = seeds_of(made)
    which = [
        (m, seeds.index(run.config.get("seed")), run)
        for m, row in enumerate(made)
        for run in row.runs
        if weights_between(run).any()
    ]
    if not which:
        return None
    every = _union(run.weight_rounds for _, _, run in which)
    rounds = every[thin(len(every), MAP_BYTES // (made[0].runs[0].peers ** 2 * len(which)))]
    entries, coded = [], []
    for m, s, run in which:
        frame_f = np.maximum(np.searchsorted(run.weight_rounds, rounds, side="right") - 1, 0)
        weights = np.nan_to_num(run.weights, posinf=0.0, neginf=0.0)
        low, high = min(0.0, float(weights.min())), float(weights.max())
        shares = (weights[frame_f] - low) / (high - low)
        coded.append(np.round(shares * 255).astype(np.uint8).tobytes())
        clusters = run.clusters_to_recover if learns_graph(run.config) else None
        entries.append(
            {
                "method": m,
                "seed": s,
                "low": low,
                "high": high,
                "top": float(weights_between(run).max()),
                "own": has_own_weights(run),
                "f1": clusters is not None and [score(weights[f], clusters).f1 for f in frame_f],
            }
        )
    text = base64.b64encode(b"".join(coded)).decode("ascii")
    return {"rounds": rounds.tolist(), "of": entries, "weights": text}


def _union(rounds: Iterable[Ints]) -> Ints:
    return np.unique(np.concatenate([np.empty(0, dtype=np.int64), *rounds]))


def _deviation(values: Floats) -> float:
    return float(values.std(ddof=1)) if np.isfinite(values).all() else np.inf
