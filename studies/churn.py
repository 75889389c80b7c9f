"""Collaboration map of a population with churn: `python -m studies.churn FIGURE.svg`.

CoBo with clusters of permuted labels; each peer is up and down for some rounds at a time. Above:
awake peers per round. Below: the map at four rounds, with a row per peer as of its last awake
round.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from coterie.app.config.config import Config
from coterie.app.config.preflight import check
from coterie.app.config.schema import Scalar
from coterie.app.runners import inline
from coterie.app.runs.rundir import Bools, Run, create
from studies.svg import save

ROUNDS = 60
SHOWN = (1, 10, 30, 60)
FLAT: dict[str, Scalar] = {
    "method": "cobo", "dataset": "digits", "model": "mlp", "peers": 12, "device": "cpu",
    "partition.kind": "label-permutation", "partition.clusters": 3, "batch-size": 16,
    "local-steps": 5, "partition.samples-per-peer": 60, "num-server-rounds": ROUNDS,
    "cobo.gamma": 0.05, "evaluate-every": 1,
    "evaluate-peers": "participants", "schedule.kind": "churn", "schedule.mean-up": 8.0,
    "schedule.mean-down": 8.0, "schedule.max-age": 4,
}  # fmt: skip


def draw(run: Run, awake_tn: Bools, path: Path) -> None:
    """Draw presence over the rounds, and maps with peers ordered by true cluster."""
    from matplotlib.figure import Figure

    assert run.clusters is not None
    order = np.argsort(run.clusters, kind="stable")
    ends = np.flatnonzero(np.diff(run.clusters[order])) + 0.5
    maps, reported = run.weights.copy(), run.reported[np.isin(run.rounds, run.weight_rounds)]
    for r in range(1, len(maps)):
        maps[r] = np.where(reported[r][:, None], maps[r], maps[r - 1])
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=(1, 1.15))
    above, below = halves
    axes = above.subplots()
    extent = (0.5, ROUNDS + 0.5, len(order) - 0.5, -0.5)
    axes.imshow(awake_tn[:, order].T, cmap="Blues", vmax=1.6, aspect="auto", extent=extent)
    for t in SHOWN:
        axes.axvline(t, color="#d9822b", linewidth=1)
    axes.set(xlabel="round", ylabel="peer, by cluster", title="awake")
    axes.set_yticks(range(len(order)), order.tolist(), fontsize=7)
    for axes, t in zip(below.subplots(1, len(SHOWN)), SHOWN, strict=True):
        weights = maps[run.weight_rounds.tolist().index(t)][np.ix_(order, order)]
        axes.imshow(weights * (1 - np.eye(len(order))), cmap="Blues", vmin=0, vmax=1)
        for end in ends:
            axes.axhline(end, color="#d9822b", linewidth=0.8)
            axes.axvline(end, color="#d9822b", linewidth=0.8)
        accuracy = 100 * run.course("test_accuracy")[run.rounds.tolist().index(t)]
        axes.set(title=f"round {t}: {accuracy:.0f} %", xticks=[], yticks=[])
    save(figure, path)


def main() -> None:
    """Carry out the run, and draw it."""
    with tempfile.TemporaryDirectory() as directory:
        config = replace(Config.from_flat(FLAT), run_dir=f"{directory}/run")
        create(config, check(config))
        inline.run(config)
        schedule = config.strategy().schedule
        awake = np.array([schedule.awake(t) for t in range(1, ROUNDS + 1)])
        draw(Run.read(config.run_dir), awake, Path(sys.argv[1]))


if __name__ == "__main__":
    main()
