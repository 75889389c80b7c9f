"""Weight that attackers get, over rounds: `python -m studies.hostile_weights [FIGURE.svg]`.

The runs of `studies.hostile` without a defence, with the settings tuned there, once more, now
evaluated in every round, for the methods that choose: the share of the weight that honest peers
give to others that goes to attackers. They are kept in `runs/hostile`, too. A panel for each
setting and attack, a line for each method; the same numbers are printed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from coterie.app.report.figures import COLOURS
from coterie.app.runs.graph import weight_to
from coterie.app.runs.rundir import Bools, Floats
from studies.hostile import (
    ATTACKS,
    COMMON,
    METHODS,
    ROUNDS,
    SETTINGS,
    SHARE,
    Case,
    mean_of_known,
)
from studies.hostile_map import FIXED
from studies.svg import save

HOSTILE = [attack for attack in ATTACKS if attack != "none"]
CHOOSING = [method for method in METHODS if method not in FIXED]
SEEDS = 3
Panel = tuple[str, str]
"""Setting, attack."""


def course(graphs: Iterable[tuple[Bools, Floats]]) -> Floats:
    """Return the attackers' share (R,) in each round, mean over seeds; NaN without weights.

    Parameters
    ----------
    graphs : Iterable of (ndarray of bool, ndarray)
        For each seed, the attackers (n,) and the weights (R, n, n). A round in which the honest
        peers give no weight to others does not count.
    """
    shares = [[weight_to(attackers, w_nn) for w_nn in w_rnn] for attackers, w_rnn in graphs]
    means = [mean_of_known(of_round) for of_round in zip(*shares, strict=True)]
    return np.array(means, dtype=np.float64)


def measured(setting: str, attack: str, method: str) -> Floats:
    """Return the course of a method under an attack; carry out missing runs."""
    runs = (Case(setting, method, attack, "none", seed, every=1).run for seed in range(SEEDS))
    return course((run.attackers, run.weights) for run in runs)


def draw(courses: Mapping[Panel, Mapping[str, Floats]]) -> Figure:
    """Draw attacks (columns) and settings (rows); dashed: the attackers' share of the peers."""
    figure = Figure(figsize=(10, 5), layout="constrained")
    grid = figure.subplots(len(SETTINGS), len(HOSTILE), sharex=True, sharey=True)
    n = int(COMMON["peers"])
    for axes, ((setting, attack), of_methods) in zip(grid.flat, courses.items(), strict=True):
        axes.axhline(SHARE * n / (n - 1), color="#22252a", linestyle="--", linewidth=0.8)
        for (method, share_r), colour in zip(of_methods.items(), COLOURS, strict=False):
            axes.plot(share_r, color=colour, linewidth=1.4, label=method)
        axes.set_title(f"{attack}, {setting}", loc="left", fontsize=9)
        axes.set_xticks([0, ROUNDS // 2, ROUNDS])
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.25)
    figure.supxlabel("round", fontsize=9)
    figure.supylabel("share of the weight that goes to attackers", fontsize=9)
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=7, frameon=False, fontsize=9)
    return figure


def main() -> None:
    """Carry out the missing runs; print and draw the numbers."""
    courses: dict[Panel, dict[str, Floats]] = {}
    for setting, attack in product(SETTINGS, HOSTILE):
        courses[setting, attack] = {}
        for method in CHOOSING:
            courses[setting, attack][method] = share_r = measured(setting, attack, method)
            print(setting, attack, method, *(f"{share:.2f}" for share in share_r), flush=True)
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images/hostile-weights.svg")
    save(draw(courses), path)


if __name__ == "__main__":
    main()
