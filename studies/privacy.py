"""Accuracy under differential privacy, method by method: `python -m studies.privacy`.

Every method that supports private examples, at epsilon 1, 2, 4, 8 and without privacy, on two
settings: CoBo's clusters of permuted labels and a Dirichlet split. All gradients are over all
examples of a peer, so each costs the same, and the number of gradients determines the noise that
spends epsilon exactly. At epsilon 4 and without privacy a method has nine trials on validation data
of the first seed as in `compare --tune`; then two more clipping norms at epsilon 4, and three
learning rates at every other epsilon. Finished runs are kept in `runs/privacy`, so an interrupted
command continues. It writes `table.csv` and `figure.svg` there.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from scipy.optimize import brentq

from coterie.app.comparisons import tune
from coterie.app.config.config import Config
from coterie.app.config.schema import Scalar
from coterie.app.experiments.choice import Choice
from coterie.app.experiments.measures import deviation
from coterie.app.runs.rundir import Run
from coterie.app.runs.summary import recovery
from coterie.clients.engine import accountant
from studies.kept import kept
from studies.svg import save

METHODS = (
    *("local", "fedavg", "oracle", "pfedgraph", "clustered-fl", "ditto", "apfl"),
    *("cobo", "all-for-one", "wga", "bias-correction", "federated-clustering"),
)
GRAPHS = ("pfedgraph", "clustered-fl", "cobo", "all-for-one", "federated-clustering")
"""Methods that learn a collaboration graph."""
SETTINGS: Mapping[str, Mapping[str, Scalar]] = {
    "clusters": {"partition.kind": "label-permutation", "partition.clusters": 2},
    "dirichlet": {"partition.kind": "dirichlet", "partition.alpha": 0.3},
}
TUNED = 4.0
EPSILONS = (TUNED, 1.0, 2.0, 8.0, math.inf)
CLIPS = (0.3, 3.0)
DELTA = 1e-4
COMMON: Mapping[str, Scalar] = {
    "dataset": "digits", "model": "linear", "peers": 8, "num-server-rounds": 30,
    "evaluate-every": 30, "batch-size": 2000, "local-steps": 1, "optimizer": "sgd",
    "learning-rate": 1.0, "partition.samples-per-peer": 0, "partition.validation": 0.2,
    "device": "cpu",
}  # fmt: skip
OUT = Path("runs/privacy")
LEVELS = (-1, 0, 1)
"""Levels of the learning rates to try; see `tune.rate`."""


@dataclass(frozen=True)
class Outcome:
    """Result of a method at an epsilon, over seeds.

    Attributes
    ----------
    queries : int
        Maximum over peers of the number of gradients over all their examples.
    noise : float
        Noise multiplier that spends epsilon on these queries.
    accuracy, deviation : float
        Mean test accuracy over peers, and its standard deviation over seeds.
    spent : float
        Maximum epsilon of a peer.
    f1 : float or None
        F1 score of the learnt graph, if there are true clusters.
    """

    setting: str
    method: str
    epsilon: float
    queries: int
    noise: float
    seeds: int
    accuracy: float
    deviation: float
    spent: float
    f1: float | None
    settings: str


class Experiment:
    """Experiment: a method on a setting."""

    def __init__(self, setting: str, method: str) -> None:
        self.setting, self.method = setting, method
        self.flat: dict[str, Scalar] = {**COMMON, **SETTINGS[setting], "method": method}
        rehearsal = self.run(math.nan, {"privacy.kind": "examples", "privacy.noise": 10.0})
        assert rehearsal.samples is not None
        times_n = rehearsal.metric("gradient_evaluations")[-1] / rehearsal.samples
        self.queries = round(float(times_n.max()))

    def noise(self, epsilon: float) -> float:
        """Return the multiplier that spends epsilon on all queries."""
        return noise_for(epsilon, self.queries) if math.isfinite(epsilon) else 0.0

    def run(self, epsilon: float, settings: tune.Settings, seed: int = 0) -> Run:
        """Return the run; carry it out if its result is missing."""
        protection: tune.Settings = {}
        if math.isfinite(epsilon):
            protection = {
                "privacy.kind": "examples", "privacy.noise": self.noise(epsilon),
                "privacy.delta": DELTA, "privacy.budget": epsilon + 1e-3,
            }  # fmt: skip
        flat = {**self.flat, **protection, **settings, "seed": seed}
        return kept(Config.from_flat(flat), OUT)

    def chosen(self, epsilon: float) -> tune.Settings:
        """Return the settings that are best on validation data."""
        if epsilon not in (TUNED, math.inf):
            best = self.chosen(TUNED)
            rate = float(best["learning-rate"])
            trials = [{**best, "learning-rate": float(f"{rate * f:.3g}")} for f in (0.3, 1.0, 3.0)]
            return self._best(epsilon, trials)
        best = self._best(epsilon, tune.trials(Config.from_flat(self.flat), LEVELS))
        if epsilon == math.inf:
            return best
        rate = float(best["learning-rate"])
        others = [
            {**best, "learning-rate": float(f"{rate / c:.3g}"), "privacy.clip": c} for c in CLIPS
        ]
        return self._best(epsilon, [best, *others])

    def _best(self, epsilon: float, trials: Iterable[tune.Settings]) -> tune.Settings:
        runs = [tune.Trial(settings, self.run(epsilon, settings)) for settings in trials]
        return tune.best(runs)[0].settings

    def outcome(self, epsilon: float, seeds: int) -> Outcome:
        """Return the test accuracy with the chosen settings."""
        settings = self.chosen(epsilon)
        runs = [self.run(epsilon, settings, seed) for seed in range(seeds)]
        reached = [float(np.nanmean(run.metric("test_accuracy")[-1])) for run in runs]
        recovered = [recovery(run) for run in runs if self.method in GRAPHS]
        f1 = [scores["f1"] or 0.0 for scores in recovered if scores]
        return Outcome(
            self.setting, self.method, epsilon, self.queries, self.noise(epsilon), seeds,
            float(np.mean(reached)), deviation(reached),
            max(float(run.metric("epsilon")[-1].max()) for run in runs),
            float(np.mean(f1)) if f1 else None, Choice(settings).described(),
        )  # fmt: skip


def noise_for(epsilon: float, queries: int) -> float:
    """Return the noise with which a number of gradients over all examples spend epsilon."""

    def excess(log_noise: float) -> float:
        rdp_a = queries * accountant.query(2, 2, math.exp(log_noise), 1)
        return float(accountant.epsilon(rdp_a[None], DELTA)[0]) - epsilon

    return float(f"{math.exp(brentq(excess, -5.0, 10.0)) * 1.0005:.5g}")  # rounded, never below


def draw(outcomes: Iterable[Outcome], path: Path) -> None:
    """Draw accuracy against epsilon on each setting, and the recovery of the graph."""
    figure = Figure(figsize=(11, 4), layout="constrained")
    axes = dict(zip([*SETTINGS, "f1"], figure.subplots(1, 3), strict=True))
    rows = sorted(outcomes, key=lambda row: row.epsilon)
    ticks = sorted(EPSILONS)
    for number, method in enumerate(METHODS):
        style = {"color": f"C{number % 10}", "marker": "o" if number < 10 else "s"}
        for name, of in axes.items():
            setting, value = ("clusters", "f1") if name == "f1" else (name, "accuracy")
            selected = [row for row in rows if (row.setting, row.method) == (setting, method)]
            points = [(ticks.index(row.epsilon), getattr(row, value)) for row in selected]
            shown = [point for point in points if point[1] is not None]
            line = "--" if method in ("local", "oracle") else "-"
            if shown:
                of.plot(*zip(*shown, strict=True), line, label=method, markersize=3, **style)
    for name, of in axes.items():
        of.set(xlabel="epsilon", title="F1 of the graph, clusters" if name == "f1" else name)
        of.set_xticks(range(len(ticks)), [*(f"{tick:g}" for tick in ticks[:-1]), "none"])
        of.grid(alpha=0.3)
    axes["clusters"].set_ylabel("test accuracy")
    handles, labels = axes["clusters"].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=8)
    save(figure, path)


def main() -> None:
    """Carry out the missing runs, and show the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    console = Console()
    OUT.mkdir(parents=True, exist_ok=True)
    rows: list[Outcome] = []
    with (OUT / "table.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(Outcome.__dataclass_fields__), lineterminator="\n")
        writer.writeheader()
        for setting, method in itertools.product(
            arguments.settings.split(","), arguments.methods.split(",")
        ):
            if (setting, method) == ("dirichlet", "oracle"):  # no true clusters there
                continue
            experiment = Experiment(setting, method)
            for epsilon in EPSILONS:
                row = experiment.outcome(epsilon, arguments.seeds)
                rows.append(row)
                writer.writerow(asdict(row))
                file.flush()
                reached = f"{100 * row.accuracy:.1f} ± {100 * row.deviation:.1f}"
                f1 = "" if row.f1 is None else f"F1 {row.f1:.2f}"
                console.print(setting, method, epsilon, reached, f1, row.settings)
    draw(rows, OUT / "figure.svg")


if __name__ == "__main__":
    main()
