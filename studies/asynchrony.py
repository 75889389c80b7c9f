"""Synchronous rounds against asynchrony: `python -m studies.asynchrony [--seeds 3] [FIGURE.svg]`.

Each method in rounds that wait for all peers, and by the clock: each peer continues as soon as its
own work is done and uses the letters received since, with and without the staleness discount. All
variants run for the virtual time of the rounds. Methods that average everything learn Dirichlet
splits, methods that choose clusters of permuted labels. Finished runs are kept in
`runs/asynchrony`, so an interrupted command continues; the table shows all finished runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from coterie.app.config.config import Config
from coterie.app.config.schema import Scalar
from coterie.app.experiments.measures import deviation
from coterie.app.runs.rundir import Floats, Run
from studies.kept import kept
from studies.svg import save

METHODS: Mapping[str, Mapping[str, Scalar]] = {
    "fedavg": {"method": "fedavg"},
    "gossip": {"method": "fedavg", "topology": "ring"},
    "dpfl": {"method": "dpfl", "dpfl.init-epochs": 1},
    "cobo": {"method": "cobo"},
    "all-for-one": {"method": "all-for-one"},
}
"""Name -> its keys. Gossip is local training and an average over a ring, as in D-PSGD."""
AVERAGING: Mapping[str, Scalar] = {"partition.kind": "dirichlet", "partition.alpha": 0.3}
CHOOSING: Mapping[str, Scalar] = {
    "partition.kind": "label-permutation", "partition.clusters": 2,
}  # fmt: skip
COMMON: Mapping[str, Scalar] = {
    "dataset": "digits", "model": "mlp", "peers": 8, "device": "cpu", "batch-size": 16,
    "local-steps": 5, "learning-rate": 0.1, "partition.samples-per-peer": 60,
    "partition.validation": 0.2, "evaluate-every": 1,
}  # fmt: skip
OUT = Path("runs/asynchrony")
ROUNDS = 30
TICKS = 3  # to the mean round that waits
MAX_AGE = 4 * TICKS
DISCOUNT = 0.5
MODES = ("rounds", "clock", "discount")
PROFILES = ("hospitals", "phones")
_COLOURS = dict(zip(MODES, ("#6a6f77", "#1f6f6f", "#d9822b"), strict=True))


@dataclass(frozen=True)
class Case:
    """Case of one run."""

    method: str
    mode: str
    profile: str
    seed: int

    def made(self) -> Run:
        """Return the run; carry it out if its result is missing."""
        return kept(Config.from_flat(self._flat()), OUT)

    def _flat(self) -> dict[str, Scalar]:
        split = AVERAGING if self.method in ("fedavg", "gossip") else CHOOSING
        flat = {**COMMON, **split, **METHODS[self.method], "seed": self.seed}
        flat |= {"clock.profile": self.profile, "num-server-rounds": ROUNDS}
        if self.mode == "rounds":
            return flat
        took = float(seconds(replace(self, mode="rounds").made())[-1])
        return flat | {
            "num-server-rounds": ROUNDS * TICKS, "clock.tick": took / ROUNDS / TICKS,
            "schedule.kind": "clock", "schedule.max-age": MAX_AGE,
            "schedule.staleness-discount": DISCOUNT if self.mode == "discount" else 0.0,
        }  # fmt: skip


@dataclass(frozen=True)
class Curve:
    """Mean of the peers' latest accuracies over virtual time (T,)."""

    seconds: Floats
    accuracy: Floats

    @classmethod
    def of(cls, case: Case) -> Curve:
        """Return the curve of a run; carry it out if its result is missing."""
        run = case.made()
        return cls(seconds(run), run.course("test_accuracy"))

    def at(self, share: float) -> float:
        """Return the accuracy after a share of the time."""
        before = self.seconds <= share * self.seconds[-1] * (1 + 1e-9)
        return float(self.accuracy[before][-1])

    def reaches(self, accuracy: float) -> float:
        """Return the share of the time until it first has an accuracy; inf if never."""
        there = np.flatnonzero(self.accuracy >= accuracy)
        return float(self.seconds[there[0]] / self.seconds[-1]) if len(there) else np.inf


def seconds(run: Run) -> Floats:
    """Virtual seconds (R,) at each measurement."""
    return np.asarray(np.fmax.reduce(run.metric("virtual_seconds"), axis=1), dtype=np.float64)


def row(curves: Mapping[str, list[Curve]], mode: str) -> list[str]:
    """Return a line of the table: one mode of a method, over seeds."""
    mine = curves[mode]
    cells = []
    for share in (0.25, 0.5, 1.0):
        values = [100 * curve.at(share) for curve in mine]
        cells.append(f"{np.mean(values):.1f} ± {deviation(values):.1f}")
    best = [
        max(c.accuracy.max() for c in of_seed) for of_seed in zip(*curves.values(), strict=True)
    ]
    times = [curve.reaches(0.9 * top) for curve, top in zip(mine, best, strict=True)]
    cells.append("never" if np.isinf(times).any() else f"{100 * np.mean(times):.0f} %")
    return [*cells, f"{np.mean([curve.seconds[-1] for curve in mine]):.3g} s"]


def draw(results: Mapping[tuple[str, str], Mapping[str, list[Curve]]], path: Path) -> None:
    """Draw a panel for each profile and method: mean curves over seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.3 * len(METHODS), 4.6), layout="constrained")
    panels = figure.subplots(len(PROFILES), len(METHODS), sharex=True, sharey="col")
    share = np.linspace(0, 1, 121)
    for (profile, method), curves in results.items():
        axes = panels[PROFILES.index(profile)][[*METHODS].index(method)]
        for mode, of_seeds in curves.items():
            mean = np.mean([[100 * c.at(s) for s in share] for c in of_seeds], axis=0)
            axes.plot(100 * share, mean, color=_COLOURS[mode], linewidth=1.5, label=mode)
        axes.set_title(f"{method}, {profile}", fontsize=9)
        axes.grid(alpha=0.25)
    figure.supxlabel("% of the virtual time that the rounds take", fontsize=9)
    figure.supylabel("test accuracy, %", fontsize=9)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(MODES), frameon=False)
    save(figure, path)


def main() -> None:
    """Carry out the missing runs; print the table and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("figure", nargs="?", type=Path)
    arguments = parser.parse_args()
    console, table = Console(), Table(title="Mean test accuracy, %, after a share of the time")
    for name in ("profile", "method", "mode", "25 %", "50 %", "100 %", "90 % of best", "time"):
        table.add_column(name)
    results = {}
    for profile in PROFILES:
        for method in METHODS:
            curves = {
                mode: [
                    Curve.of(Case(method, mode, profile, seed)) for seed in range(arguments.seeds)
                ]
                for mode in MODES
                if mode != "discount" or method != "all-for-one"  # answers are never old
            }
            for mode in curves:
                table.add_row(profile, method, mode, *row(curves, mode))
            results[profile, method] = curves
            console.print(profile, method, *(row(curves, mode) for mode in curves))
    console.print(table)
    if arguments.figure:
        draw(results, arguments.figure)


if __name__ == "__main__":
    main()
