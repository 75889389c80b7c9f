"""Summarise a run: summary.json, graph.csv and graph-measures.csv; None if there is no number."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from coterie.app.runs import atomic, diagnostics, graph, progress, units
from coterie.app.runs.graph import score
from coterie.app.runs.rundir import Floats, Run
from coterie.strategies.protocol import MEASURES


def summarise(run: Run) -> dict[str, Any]:
    """Compute summary.json; "last" is each peer's last report, so one that dropped out counts."""
    last_n, best_n = run.last_row(), run.best_row()
    loss_n = run.at("test_loss", last_n)
    diverged = int(run.diverged.sum())
    best = np.full(run.peers, np.nan) if best_n is None else run.at("test_accuracy", best_n)
    return {
        "method": run.settings.method,
        "dataset": run.settings.dataset,
        "topology": run.settings.topology,
        "seed": run.settings.seed,
        "status": run.progress.get("status"),
        "peers": run.peers,
        "rounds": run.progress.get("round", int(run.rounds[-1]) if len(run.rounds) else 0),
        **accuracy_statistics(run.at("test_accuracy", last_n), run.samples),
        **{f"best_{name}": value for name, value in accuracy_statistics(best, run.samples).items()},
        "mean_test_loss": None if diverged else mean(loss_n),
        "diverged_peers": diverged,
        "measures": {
            name: mean(run.at(name, last_n)) for name in sorted(MEASURES & run.metrics.keys())
        },
        "breaks": run.progress.get("breaks", []),
        **({"away": lines} if (lines := progress.away(run.progress)) else {}),
        **_attendance(run),
        "recovery": recovery(run),
        **privacy(run),
        "total_bytes": _total(run.at("bytes_sent", last_n)),
        "bytes_received": _total(run.at("bytes_received", last_n)),
        "gradient_evaluations": _total(run.at("gradient_evaluations", last_n)),
        "backend": run.progress.get("backend"),
        "messages": run.progress.get("messages"),
        "wall_seconds": run.progress.get("seconds"),
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in ("torch", "flwr", "numpy")},
        },
    }


def accuracy_statistics(accuracy_n: Floats, samples_n: Floats | None) -> dict[str, float | None]:
    """Return mean, n_i-weighted mean, standard deviation over peers (population) and worst decile.

    The worst decile is the mean of the floor(n / 10) lowest peers, at least one. Peers without test
    data (NaN) are left out.
    """
    has_n = ~np.isnan(accuracy_n)
    values = np.sort(accuracy_n[has_n])
    weighted = None
    if samples_n is not None and samples_n[has_n].sum() > 0:
        weighted = float(np.average(accuracy_n[has_n], weights=samples_n[has_n]))
    return {
        "mean_test_accuracy": mean(accuracy_n),  # in the peers' order, as everywhere
        "weighted_mean_test_accuracy": weighted,
        "std_test_accuracy": float(values.std()) if len(values) else None,
        "worst_decile_test_accuracy": mean(values[: max(1, len(values) // 10)]),
    }


def _attendance(run: Run) -> dict[str, Any]:
    """Return peer name -> number of `rounds` in which it took part; empty if all in all rounds."""
    took_part = run.progress.get("took_part")
    return {"took_part": dict(zip(run.names, took_part, strict=True))} if took_part else {}


def privacy(run: Run) -> dict[str, Any]:
    """Return delta and the peers' largest epsilon, None if infinite or not reported.

    `untrained_peers` is the number of peers that computed no gradient.
    """
    if run.settings.privacy_kind == "none":
        return {}
    epsilon_n = run.at("epsilon", run.last_row())
    known = np.isfinite(epsilon_n).all()
    idle = int((run.at("gradient_evaluations", run.last_row()) == 0).sum())
    return {
        "epsilon": float(epsilon_n.max()) if known else None,
        "delta": run.settings.privacy_delta,
        **({"untrained_peers": idle} if idle and run.settings.privacy_budget else {}),
    }


def spent_below(directory: Path) -> str:
    """Return a sentence on the privacy that runs on the same examples spend together."""
    every = [Run.read(file.parent) for file in sorted(directory.rglob("metrics.jsonl"))]
    spent = [each for each in map(privacy, every) if each]
    if not spent:
        return ""
    known = [each["epsilon"] for each in spent if each["epsilon"] is not None]
    epsilon = f"ε ≤ {sum(known):.3g}" if len(known) == len(spent) else "an unknown ε"
    delta = sum(each["delta"] for each in spent)
    runs = units.plural(len(spent), "private run")
    return (
        f"privacy of {runs} in {directory.name} together, tuning included: "
        f"{epsilon} at δ = {delta:.3g} (sums); not in it: runs elsewhere on the same "
        "data, and runs that were removed"
    )


def recovery(run: Run) -> dict[str, Any] | None:
    """Score the learnt graph at the end and at its best F1; None without true clusters or weights.

    CoBo's weights between twins decay late in training, so the best scores show whether the graph
    was recovered, the final scores whether it still is.
    """
    clusters_n = run.clusters
    if clusters_n is None or not len(run.weights):
        return None
    kept = graph.rounds_measured(len(run.weights))
    rounds = run.weight_rounds[kept]
    scores = [score(run.weights[c], clusters_n) for c in kept]
    best = int(np.argmax([each.f1 or 0.0 for each in scores]))
    exact = np.flatnonzero([each.exact for each in scores])
    return {
        **asdict(scores[-1]),
        "rounds_to_recovery": int(rounds[exact[0]]) if len(exact) else None,
        "best": {"round": int(rounds[best]), **asdict(scores[best])},
    }


def finish(run_dir: str | Path) -> dict[str, Any]:
    """Write summary.json, graph.csv, graph-measures.csv, diagnostics.csv; return the summary."""
    run = Run.read(run_dir)
    summary = summarise(run)
    atomic.write(run.directory / "graph.csv", graph.edges_csv(run))
    atomic.write(run.directory / "graph-measures.csv", graph.measures_csv(run))
    diagnostics.write(run)
    text = json.dumps(summary, indent=2, allow_nan=False) + "\n"
    atomic.write(run.directory / "summary.json", text)  # written last: it marks the run as finished
    return summary


def mean(values: Floats) -> float | None:
    """Return the mean of the values that are not NaN; None without values or if one is infinite."""
    values = values[~np.isnan(values)]
    return float(values.mean()) if len(values) and np.isfinite(values).all() else None


def _total(values: Floats) -> int | None:
    return int(np.nansum(values)) if np.isfinite(values).any() else None
