"""Methods under attack, with and without defence: `python -m benchmarks.hostile [--seeds 1 ...]`.

Every method, attack and defence on two settings (CoBo's clusters of permuted labels, DPFL's
Dirichlet split), a fifth of the peers attacking. The rule of "best" is chosen on validation data
of the honest peers, which an attacker never touches. A run is kept in `runs/hostile` and never made
twice, so the command can be stopped and started again; it prints the table of what is there, and
writes it to `runs/hostile/table.csv`.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from app.config.config import Config
from app.config.preflight import check
from app.config.schema import Scalar
from app.runners import inline
from app.runs.graph import weight_to
from app.runs.rundir import Run, create, held

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
COMMON: Mapping[str, Scalar] = {
    "dataset": "digits", "model": "mlp", "peers": 10, "num-server-rounds": 60,
    "evaluate-every": 10, "batch-size": 16, "local-steps": 5, "learning-rate": 0.1,
    "partition.samples-per-peer": 80, "partition.validation": 0.2, "ifca.clusters": 2,
}  # fmt: skip
OUT = Path("runs/hostile")


@dataclass(frozen=True)
class Case:
    """One run."""

    setting: str
    method: str
    attack: str
    rule: str
    seed: int

    def flat(self) -> dict[str, Scalar]:
        """The run's configuration."""
        own = {
            k: v for k, v in COMMON.items() if "." not in k or k.startswith(("part", self.method))
        }
        flat = {**own, **SETTINGS[self.setting], "method": self.method, "seed": self.seed}
        flat |= {"out": str(OUT), "name": "_".join(map(str, asdict(self).values()))}
        if self.attack != "none":
            flat |= {"attack.kind": self.attack, "attack.share": 0.2}
        if self.rule != "none":
            flat |= {"defence.rule": self.rule}
        return flat


@dataclass(frozen=True)
class Outcome:
    """What came of a method under an attack, over seeds; accuracies of honest peers.

    Attributes
    ----------
    undefended, defended : mean test accuracy, without a rule and with the best of the three.
    deviation : of `undefended`, over seeds.
    rule : the best one, by honest validation accuracy.
    to_attackers : share of the weight that honest peers give to others that attackers have at the
        end, without a rule.
    """

    setting: str
    method: str
    attack: str
    seeds: int
    undefended: float
    deviation: float
    defended: float
    rule: str
    to_attackers: float | None


def made(case: Case) -> Run:
    """The run, which is carried out if it was not before."""
    config = Config.from_flat(case.flat()).located("")
    directory = Path(config.run_dir)
    finished = directory / "models" / "peer-0000.safetensors"
    if not finished.exists():
        config = replace(config, resume=(directory / "relay" / "checkpoint.json").exists())
        with held(directory):
            create(config, check(config))
            inline.run(config)
    return Run.read(directory)


def outcomes(
    settings: list[str], methods: list[str], attacks: list[str], seeds: int
) -> Iterator[Outcome]:
    """Every line of the table, as soon as its runs are there."""
    for setting in settings:
        for attack in attacks:
            for method in methods:
                runs = {
                    rule: [made(Case(setting, method, attack, rule, s)) for s in range(seeds)]
                    for rule in ("none", *(RULES if method != "local" else ()))
                }
                rated = {rule: _mean(each, "validation_accuracy") for rule, each in runs.items()}
                best = max((r for r in runs if r != "none"), key=lambda r: rated[r], default="none")
                plain = [_mean([run], "test_accuracy") for run in runs["none"]]
                given = [weight_to(run.attackers, run.weights[-1]) for run in runs["none"]]
                shares = [share for share in given if share is not None]
                yield Outcome(
                    setting, method, attack, seeds, float(np.mean(plain)), float(np.std(plain)),
                    _mean(runs[best], "test_accuracy"), best,
                    float(np.mean(shares)) if shares and attack != "none" else None,
                )  # fmt: skip


def _mean(runs: list[Run], name: str) -> float:
    return float(np.mean([np.nanmean(run.at(name, run.last_row())) for run in runs]))


def main() -> None:
    """Make the runs that are missing, and show the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    for key, values in (("settings", SETTINGS), ("methods", METHODS), ("attacks", ATTACKS)):
        parser.add_argument(f"--{key}", default=",".join(values))
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    console, table = Console(), Table(title="Honest peers' test accuracy, %")
    for name in ("setting", "attack", "method", "no defence", "best rule", "", "to attackers"):
        table.add_column(name)
    settings, methods, attacks = (
        getattr(given, key).split(",") for key in ("settings", "methods", "attacks")
    )
    OUT.mkdir(parents=True, exist_ok=True)
    with (OUT / "table.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(Outcome.__dataclass_fields__), lineterminator="\n")
        writer.writeheader()
        for row in outcomes(settings, methods, attacks, given.seeds):
            writer.writerow(asdict(row))
            file.flush()
            share = "" if row.to_attackers is None else f"{row.to_attackers:.2f}"
            plain = f"{100 * row.undefended:.1f} ± {100 * row.deviation:.1f}"
            cells = plain, f"{100 * row.defended:.1f}", row.rule, share
            table.add_row(row.setting, row.attack, row.method, *cells)
            console.print(row.setting, row.attack, row.method, *cells)
    console.print(table)


if __name__ == "__main__":
    main()
