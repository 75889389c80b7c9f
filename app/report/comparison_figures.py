"""Figures of a comparison: the runs of all methods, thinned for the scripts of the page.

Shapes: M methods, S seeds, R kept rounds, F frames of the collaboration maps, n peers.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from coterie.app.experiments.measures import MEASURES, gains
from coterie.app.experiments.methods import learns_graph
from coterie.app.report.comparison import Comparison
from coterie.app.report.run_data import FIELDS, has_own_weights, peer_order, rounded
from coterie.app.report.section import Part
from coterie.app.report.thinning import encode, finite, thin
from coterie.app.runs.graph import row_scales, score
from coterie.app.runs.rundir import Floats, Ints, Run

CURVE_POINTS = 200
"""Maximum number of rounds of the curves in a page."""
MAP_BYTES = 1_500_000
"""Maximum number of weights of all collaboration maps in a page; at least two frames are kept."""
EMPTY: Mapping[str, Any] = {"rounds": [], "metrics": {}, "gains": None, "maps": None, "risks": None}
"""Data of a page without figures."""


def common_data(compared: Comparison) -> dict[str, Any]:
    """Return what all figures share, ready for JSON; `names`, `clusters` and `order` are (S, n)."""
    of_seed = {run.settings.seed: run for run in reversed(compared.runs)}
    runs = [of_seed[seed] for seed in compared.seeds]
    known = all(run.clusters is not None for run in runs)
    order = [peer_order(run) if known else np.arange(run.peers) for run in runs]
    return {
        "methods": [row.name for row in compared.table.rows],
        "seeds": compared.seeds,
        "peers": runs[0].peers,
        "names": [run.names for run in runs],
        "clusters": [run.clusters.tolist() for run in runs if run.clusters is not None] or None,
        "order": [each.tolist() for each in order],
    }


def curves(compared: Comparison) -> Part | None:
    """Return the learning curves: `mean` and `std` over seeds of the peers' mean, (M, R)."""
    every = union(run.rounds for run in compared.runs)
    rounds = every[thin(len(every), CURVE_POINTS)]
    metrics = {}
    for name in FIELDS:
        pairs = [over_seeds(row.runs, name, rounds) for row in compared.table.rows]
        if not all(np.isnan(mean_r).all() for mean_r, _ in pairs):
            mean, std = zip(*pairs, strict=True)
            metrics[name] = {"mean": rounded(np.stack(mean)), "std": rounded(np.stack(std))}
    drawn = {"rounds": rounds.tolist(), "metrics": metrics}
    return Part("curves.html.j2", drawn) if metrics else None


def over_seeds(runs: Sequence[Run], name: str, rounds: Ints) -> tuple[Floats, Floats]:
    """Return mean and deviation over seeds of a field's mean over peers, (R,) each."""
    import pandas as pd

    with np.errstate(invalid="ignore"):
        means = [pd.DataFrame(run.metric(name), run.rounds).mean(axis=1) for run in runs]
        table = pd.concat(means, axis=1).reindex(rounds)
        deviation = table.std(axis=1).mask(table.count(axis=1) == 1, 0.0)
        return table.mean(axis=1).to_numpy(), deviation.to_numpy()


def gain_dots(compared: Comparison) -> Part | None:
    """Return each peer's gain over Local; None if there is no run of Local."""
    # `gain` and `final` (the peer's final value): (M, S, n); empty for a missing seed.
    rows = compared.table.rows
    alone = [local for row in rows for _, local in row.pairs]
    if not alone or not compared.table.has_same_data:
        return None
    accuracy = alone[0].has_accuracy
    field = "test_accuracy" if accuracy else "test_loss"
    pairs = [{pair[0].settings.seed: pair for pair in row.pairs} for row in rows]

    def of_peers(number: Callable[[Run, Run], Floats]) -> list[list[Any]]:
        return [
            [rounded(number(*of[seed])) if seed in of else [] for seed in compared.seeds]
            for of in pairs
        ]

    drawn = {"gain": of_peers(gains), "final": of_peers(lambda run, _: run.last(field))}
    return Part("gains.html.j2", {"gains": {"accuracy": accuracy, **drawn}})


def risks(compared: Comparison) -> Part | None:
    """Return the gain over Local, without it the accuracy or loss, against the letters' AUC."""
    # `points`: name of a method, AUC, and value in the unit of the table; both means over seeds.
    risk, of = MEASURES["letter_auc"], ("gain", "loss_gain", "accuracy", "loss")
    rows = [row for row in compared.table.rows if row.summary(risk)]
    value = next((MEASURES[key] for key in of if any(r.summary(MEASURES[key]) for r in rows)), None)
    if value is None:
        return None
    means = [(row.name, row.summary(risk), row.summary(value)) for row in rows]
    points = [(name, x[0], float(value.show(y[0]))) for name, x, y in means if x and y]
    return Part("risks.html.j2", {"risks": {"title": value.title, "points": points}})


def maps(compared: Comparison) -> Part | None:
    """Return the collaboration matrices; None if no method has any.

    Keys: `rounds` (F,); `of`, one entry for each method and seed whose peers gave each other
    weights; and `shares`, base64 of one byte per weight between peers, as a share of its row's
    scale: the frames (n, n) of all entries in order, 0 standing for `low` and 255 for 1. An entry
    holds the indices `method` and `seed`, `scales` (F, n) (see `row_scales`) and `own` (F, n), the
    own weights or null (see `has_own_weights`), both encoded in two bytes per number, `low`, and
    `f1` per frame or null.
    """
    which = [
        (m, compared.seeds.index(run.settings.seed), run)
        for m, row in enumerate(compared.table.rows)
        for run in row.runs
        if run.weights_between().any()
    ]
    if not which or not compared.table.has_same_data:
        return None
    every = union(run.weight_rounds for _, _, run in which)
    rounds = every[thin(len(every), MAP_BYTES // (compared.runs[0].peers ** 2 * len(which)))]
    entries, coded = [], []
    for m, s, run in which:
        frame_f = np.maximum(np.searchsorted(run.weight_rounds, rounds, side="right") - 1, 0)
        weights_fnn = finite(run.weights[frame_f])
        scales_fn = np.stack([row_scales(weights_nn) for weights_nn in weights_fnn])
        scale_fn1 = np.where(scales_fn > 0, scales_fn, 1.0)[:, :, None]
        shares_fnn = weights_fnn / scale_fn1 * ~np.eye(run.peers, dtype=np.bool_)
        low = min(0.0, float(shares_fnn.min()))
        coded.append(np.round((shares_fnn - low) / (1 - low) * 255).astype(np.uint8).tobytes())
        own_fn = np.diagonal(weights_fnn, axis1=1, axis2=2)
        clusters = run.clusters if learns_graph(run.settings) else None
        entries.append({
            "method": m, "seed": s, "low": low, "scales": encode(scales_fn, 2),
            "own": encode(own_fn, 2) if has_own_weights(run) else None,
            "f1": None if clusters is None else [score(w, clusters).f1 for w in weights_fnn],
        })  # fmt: skip
    text = base64.b64encode(b"".join(coded)).decode("ascii")
    return Part(
        "maps.html.j2", {"maps": {"rounds": rounds.tolist(), "of": entries, "shares": text}}
    )


def union(rounds: Iterable[Ints]) -> Ints:
    """Return all rounds of several runs, ascending."""
    return np.unique(np.concatenate([np.empty(0, dtype=np.int64), *rounds]))
