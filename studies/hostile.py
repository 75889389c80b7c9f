"""Methods under attack, with and without defence: `python -m studies.hostile [--seeds 1 ...]`.

Every method, attack and defence on two settings (CoBo's clusters of permuted labels, a Dirichlet
split like DPFL's), a fifth of the peers attacking. Every method is tuned first, with nine trials on
the first seed, without attackers (`coterie.app.comparisons.tune`). The rule of "best" is chosen
on validation data of the honest peers, which an attacker never touches. Finished runs are
kept in `runs/hostile`, so an interrupted command continues, and several commands can run different
settings in parallel. It prints the table, and writes it to `runs/hostile/table.csv` if it is
complete.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from coterie.app.comparisons import tune
from coterie.app.config.config import Config
from coterie.app.config.schema import Scalar
from coterie.app.experiments.measures import deviation
from coterie.app.runs import atomic
from coterie.app.runs.graph import weight_to
from coterie.app.runs.rundir import Run
from coterie.clients.attack import Attack
from studies.kept import kept

METHODS = (
    *("local", "fedavg", "ditto", "cobo", "wga", "bias-correction", "all-for-one", "federico"),
    *("dpfl", "pfedgraph", "federated-clustering", "ifca"),
)
ATTACKS = ("none", "scale", "sign-flip", "gaussian", "label-flip", "ipm", "alie")
RULES = ("multi-krum", "trimmed-mean", "geometric-median")
SETTINGS: Mapping[str, Mapping[str, Scalar]] = {
    "clusters": {"partition.kind": "label-permutation", "partition.clusters": 2},
    "dirichlet": {"partition.kind": "dirichlet", "partition.alpha": 0.3},
}
ROUNDS, EVERY, SHARE = 20, 10, 0.2
COMMON: Mapping[str, Scalar] = {
    "dataset": "digits", "model": "mlp", "peers": 10, "num-server-rounds": ROUNDS,
    "evaluate-every": EVERY, "batch-size": 16, "local-steps": 5, "learning-rate": 0.1,
    "partition.samples-per-peer": 80, "partition.validation": 0.2, "ifca.clusters": 2,
    "defence.norm": False,  # what methods and rules withstand by themselves
}  # fmt: skip
OUT = Path("runs/hostile")
LEVELS = (-1, 0, 1)
"""Levels of the learning rates to try; see `tune.rate`."""


@dataclass(frozen=True)
class Case:
    """Case of one run, evaluated at intervals."""

    setting: str
    method: str
    attack: str
    rule: str
    seed: int
    every: int = EVERY

    @property
    def run(self) -> Run:
        """Return the run with the method's tuned settings; carry it out if missing."""
        flat = {**_flat(self.setting, self.method), **tuned(self.setting, self.method)}
        flat |= {"seed": self.seed, "evaluate-every": self.every}
        if self.attack != "none":
            flat |= {"attack.kind": self.attack, "attack.share": SHARE}
        if self.rule != "none":
            flat |= {"defence.rule": self.rule}
        return kept(Config.from_flat(flat), OUT)

    def honest(self, name: str) -> float:
        """Return the final mean over the peers that are honest under attack."""
        run = self.run
        value_n = run.at(name, run.last_row())
        value_n[Attack("scale", share=SHARE).attackers(run.peers, self.seed)] = np.nan
        return float(np.nanmean(value_n))

    def to_attackers(self, t: int) -> float | None:
        """Return the attackers' share of the weight given to others after round `t`."""
        run = self.run
        return weight_to(run.attackers, run.weights[run.rounds.tolist().index(t)])


def _flat(setting: str, method: str) -> dict[str, Scalar]:
    shared = {k: v for k, v in COMMON.items() if "." not in k or k.startswith(("part", method))}
    return {**shared, **SETTINGS[setting], "method": method}


@cache
def tuned(setting: str, method: str) -> Mapping[str, Scalar]:
    """Return the best settings of a method without attackers."""
    config = Config.from_flat(_flat(setting, method))
    trials = [(of, tune.trial_configs(config, of, OUT)) for of in tune.trials(config, LEVELS)]
    runs = [tune.Trial(settings, kept(trial, OUT)) for settings, (trial,) in trials]
    return tune.best(runs)[0].settings


@dataclass(frozen=True)
class Outcome:
    """Result of a method under an attack, over seeds; accuracies of honest peers.

    Attributes
    ----------
    undefended, defended : float
        Mean test accuracy without a rule, and with the best of the three rules.
    deviation : float
        Standard deviation of `undefended` over seeds.
    rule : str
        Best rule by honest validation accuracy.
    halfway, to_attackers : float or None
        Share of attackers in the weight that honest peers give to others, after half of the rounds
        and at the end, without a rule.
    """

    setting: str
    method: str
    attack: str
    seeds: int
    undefended: float
    deviation: float
    defended: float
    rule: str
    halfway: float | None
    to_attackers: float | None


def outcomes(
    settings: list[str], methods: list[str], attacks: list[str], seeds: int
) -> Iterator[Outcome]:
    """Yield every line of the table as soon as its runs are finished."""
    for setting in settings:
        for attack in attacks:
            for method in methods:
                cases = {
                    rule: [Case(setting, method, attack, rule, s) for s in range(seeds)]
                    for rule in ("none", *(RULES if method != "local" else ()))
                }
                rated = {rule: _mean(of_rule, "validation") for rule, of_rule in cases.items()}
                best = max((r for r in cases if r != "none"), key=rated.__getitem__, default="none")
                plain = [case.honest("test_accuracy") for case in cases["none"]]
                half, end = (
                    mean_of_known(
                        case.to_attackers(t) for case in cases["none"] if attack != "none"
                    )
                    for t in (ROUNDS // 2, ROUNDS)
                )
                yield Outcome(
                    setting, method, attack, seeds, float(np.mean(plain)), deviation(plain),
                    _mean(cases[best], "test"), best, half, end,
                )  # fmt: skip


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """Return the mean of the known values, None without any."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _mean(cases: list[Case], part: str) -> float:
    return float(np.mean([case.honest(f"{part}_accuracy") for case in cases]))


def main() -> None:
    """Carry out the missing runs, and show the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    for key, values in (("settings", SETTINGS), ("methods", METHODS), ("attacks", ATTACKS)):
        parser.add_argument(f"--{key}", default=",".join(values))
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    console, table = Console(), Table(title="Honest peers' test accuracy, %")
    for name in ("setting", "attack", "method", "no defence", "best rule", "", "to attackers"):
        table.add_column(name)
    settings, methods, attacks = (
        getattr(arguments, key).split(",") for key in ("settings", "methods", "attacks")
    )
    rows = []
    for row in outcomes(settings, methods, attacks, arguments.seeds):
        rows.append(row)
        shares = [share for share in (row.halfway, row.to_attackers) if share is not None]
        plain = f"{100 * row.undefended:.1f} ± {100 * row.deviation:.1f}"
        cells = (
            plain,
            f"{100 * row.defended:.1f}",
            row.rule,
            ", ".join(f"{share:.2f}" for share in shares),
        )
        table.add_row(row.setting, row.attack, row.method, *cells)
        console.print(row.setting, row.attack, row.method, *cells)
    console.print(table)
    if (settings, methods, attacks) != ([*SETTINGS], [*METHODS], [*ATTACKS]):
        return  # do not replace the table by a part of it
    with atomic.replacing(OUT / "table.csv") as part, part.open("w", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(Outcome.__dataclass_fields__), lineterminator="\n")
        writer.writeheader()
        writer.writerows(map(asdict, rows))


if __name__ == "__main__":
    main()
