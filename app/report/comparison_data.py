"""Data of a comparison's page: the runs of all methods, thinned for figures.

Shapes: M methods, S seeds, R kept rounds, F frames of the collaboration maps, n peers.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from coterie.app.experiments.measures import gains
from coterie.app.experiments.methods import learns_graph
from coterie.app.experiments.table import Row, Table
from coterie.app.report.run_data import (
    FIELDS,
    has_own_weights,
    peer_order,
    rounded,
)
from coterie.app.report.thinning import encode, finite, thin
from coterie.app.runs.graph_scores import row_scales, score
from coterie.app.runs.rundir import Floats, Ints, Run

CURVE_POINTS = 200
"""Maximum number of rounds of the curves in a page."""
MAP_BYTES = 1_500_000
"""Maximum number of weights of all collaboration maps in a page; at least two frames are kept."""


def page_data(table: Table) -> dict[str, Any]:
    """Return the data of a comparison's page, ready for JSON.

    `methods`, `seeds`, `peers` (number). `rounds` and `metrics`: each field's `mean` and `std` over
    seeds of the mean over peers, (M, R). `names`, `clusters` and `order` of the peers, (S, n).
    `gains`: see `gain_data`. `maps`: see `map_data`. Missing parts are null.
    """
    made = table.rows
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
        "methods": [row.name for row in made],
        "seeds": seeds,
        "peers": runs[0].peers,
        "names": [run.names for run in runs],
        "rounds": rounds.tolist(),
        "metrics": metrics,
        "clusters": [run.clusters.tolist() for run in runs if run.clusters is not None] or None,
        "order": [each.tolist() for each in order],
        "gains": gain_data(made) if table.has_same_data else None,
        "maps": map_data(made) if table.has_same_data else None,
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
    accuracy = alone[0].has_accuracy
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
        "final": of_peers(lambda run, _: run.last(field)),
    }


def map_data(made: Sequence[Row]) -> dict[str, Any] | None:
    """Return the collaboration matrices; None if no method has any.

    Keys: `rounds` (F,); `of`, one entry for each method and seed whose peers gave each other
    weights; and `shares`, base64 of one byte per weight between peers, as a share of its row's
    scale: the frames (n, n) of all entries in order, 0 standing for `low` and 255 for 1. An entry
    holds the indices `method` and `seed`, `scales` (F, n) (see `row_scales`) and `own` (F, n), the
    own weights or null (see `has_own_weights`), both encoded in two bytes per number, `low`, and
    `f1` per frame or null.
    """
    seeds = seeds_of(made)
    which = [
        (m, seeds.index(run.config.get("seed")), run)
        for m, row in enumerate(made)
        for run in row.runs
        if run.weights_between().any()
    ]
    if not which:
        return None
    every = _union(run.weight_rounds for _, _, run in which)
    rounds = every[thin(len(every), MAP_BYTES // (made[0].runs[0].peers ** 2 * len(which)))]
    entries, coded = [], []
    for m, s, run in which:
        frame_f = np.maximum(np.searchsorted(run.weight_rounds, rounds, side="right") - 1, 0)
        weights_fnn = finite(run.weights[frame_f])
        scales_fn = np.stack([row_scales(weights_nn) for weights_nn in weights_fnn])
        own_fn = np.diagonal(weights_fnn, axis1=1, axis2=2)
        scale_fn1 = np.where(scales_fn > 0, scales_fn, 1.0)[:, :, None]
        shares_fnn = weights_fnn / scale_fn1 * ~np.eye(run.peers, dtype=np.bool_)
        low = min(0.0, float(shares_fnn.min()))
        coded.append(np.round((shares_fnn - low) / (1 - low) * 255).astype(np.uint8).tobytes())
        clusters = run.clusters_to_recover if learns_graph(run.config) else None
        entries.append(
            {
                "method": m,
                "seed": s,
                "scales": encode(scales_fn, 2),
                "own": encode(own_fn, 2) if has_own_weights(run) else None,
                "low": low,
                "f1": clusters is not None and [score(w_nn, clusters).f1 for w_nn in weights_fnn],
            }
        )
    text = base64.b64encode(b"".join(coded)).decode("ascii")
    return {"rounds": rounds.tolist(), "of": entries, "shares": text}


def _union(rounds: Iterable[Ints]) -> Ints:
    return np.unique(np.concatenate([np.empty(0, dtype=np.int64), *rounds]))


def _deviation(values: Floats) -> float:
    return float(values.std(ddof=1)) if np.isfinite(values).all() else np.inf
