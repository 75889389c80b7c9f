"""Gain beside risk, of methods and models: `python -m studies.clearance [--data FOLDER]`.

Methods with `coterie compare --clearance`, seed 0: on the seven sets of real institutions that
`coterie data fetch` gets (those that are not in FOLDER are left out), and on two image problems of
four peers, without and with differential privacy (epsilon 8). All methods that can run on heart
disease and images, `SOME` on the other sets. Then models whose predictions are
combined (`mixture`), with defaults and as the default policy asks for. Risk is the area under the
ROC curve of the stronger of two attacks on membership by a peer's last letter. Fills in the tables
of docs/results/clearance.md and draws docs/images/clearance.svg; finished runs are kept.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console

from coterie.app.comparisons.run import ComparisonRequest, compare
from coterie.app.config.items import read_items
from coterie.app.config.registry import METHODS
from coterie.app.config.schema import Scalar
from coterie.app.institution.security.policy import AnswerPolicy
from studies import svg
from studies.institutions import CLASSIFIED
from studies.tables import fill

OUT = Path("runs/clearance")
PAGE = Path("docs/results/clearance.md")
FIGURE = Path("docs/images/clearance.svg")
IMAGES: dict[str, dict[str, Scalar]] = {
    "digits": {"dataset": "digits", "partition.samples-per-peer": 100},
    "fashion": {"dataset": "fashion-mnist", "partition.samples-per-peer": 200, "model": "mlp"},
}
PARTS: dict[str, Scalar] = {
    "peers": 4, "partition.kind": "dirichlet", "partition.alpha": 0.5, "num-server-rounds": 20,
    "evaluate-every": 20, "local-epochs": 2, "batch-size": 16, "device": "cpu",
}  # fmt: skip
PRIVACY: dict[str, Scalar] = {
    "privacy.kind": "examples", "privacy.noise": 2.0, "privacy.budget": 8.0, "privacy.delta": 1e-3,
}  # fmt: skip
MODELS = ("logistic", "linear", "mlp", "forest", "boosted-trees")
TREES = MODELS[-2:]
LARGE = ("heart-disease", "loans", "opt", "tcga-brca")
"""Sets whose institutions have enough rows for the default policy."""
Numbers = Mapping[str, Mapping[str, float]]
"""Row -> column -> mean over peers."""


def problems(data: Path) -> Iterator[tuple[str, dict[str, Scalar]]]:
    """Yield the problems that are here, by name, with their keys."""
    for name in CLASSIFIED:
        if (data / name).is_dir():
            keys = read_items([f"institutions/{name}"])[1]
            yield name, {**keys, "data-dir": str(data / name), "evaluate-every": 40}
        else:
            print(f"left out: {name}: coterie data fetch {name} --out {data}")
    for name, keys in IMAGES.items():
        yield name, PARTS | keys


def numbers(name: str, methods: list[str], keys: Mapping[str, Scalar]) -> Numbers:
    """Return the numbers of a comparison, which is carried out unless it is there."""
    directory = OUT / name
    if not (directory / "comparison.csv").exists():
        compare(
            ComparisonRequest(
                name, {**keys, "clearance": True}, methods, directory, seeds=1, yardsticks="none"
            ),
            Console(quiet=True),
        )
    with (directory / "comparison.csv").open(newline="", encoding="utf-8") as file:
        return {
            row["method"]: {key: float(row[key] or "nan") for key in ("gain", *RISKS)}
            for row in csv.DictReader(file)
        }


SOME = [
    "local", "fedavg", "ditto", "cobo", "wga", "dpfl", "fedamp", "mixture", "partial-pooling",
]  # fmt: skip
WHOLE = ("heart-disease", *IMAGES)
"""Problems of all methods."""
RISKS = ("accuracy", "letter_auc", "letter_tpr", "letter_fewest", "letter_readable")


def mean(values: list[float]) -> float:
    """Return the mean of the numbers that are there."""
    known = [value for value in values if np.isfinite(value)]
    return float(np.mean(known)) if known else float("nan")


def shown(value: float, form: str) -> str:
    """Write a number, or a dash."""
    return format(value, form) if np.isfinite(value) else "-"


def of_methods(plain: Mapping[str, Numbers], private: Mapping[str, Numbers]) -> list[str]:
    """Return the table of all methods: gain and risk, without and with privacy."""
    head = "| method |" + "".join(f" {n}: gain | AUC | private: gain | AUC |" for n in WHOLE)
    methods = dict.fromkeys(method for name in WHOLE for method in plain.get(name, ()))
    lines = []
    for method in methods:
        rows = [of.get(n, {}).get(method, {}) for n in WHOLE for of in (plain, private)]
        gains = [shown(100 * row.get("gain", np.nan), "+.1f") for row in rows]
        risks = [shown(row.get("letter_auc", np.nan), ".2f") for row in rows]
        cells = [cell for pair in zip(gains, risks, strict=True) for cell in pair]
        lines.append((mean([row.get("letter_auc", np.nan) for row in rows[::2]]), method, cells))
    lines.sort(key=lambda line: (not np.isnan(line[0]), line[0]))
    rule = "|---" * (1 + 4 * len(WHOLE)) + "|"
    return [head, rule, *(f"| {method} | {' | '.join(cells)} |" for _, method, cells in lines)]


def of_sets(plain: Mapping[str, Numbers], private: Mapping[str, Numbers]) -> list[str]:
    """Return the table of real institutions: AUC without and with privacy."""
    sets = [name for name in plain if name not in IMAGES]
    lines = [f"| method | {' | '.join(sets)} |", "|---" * (1 + len(sets)) + "|"]
    for method in SOME[1:]:
        cells = []
        for name in sets:
            pair = (of[name].get(method, {}).get("letter_auc", np.nan) for of in (plain, private))
            cells.append(" / ".join(shown(each, ".2f") for each in pair))
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return lines


def of_models(data: Path) -> list[str]:
    """Return the table of models on the tables."""
    limits = AnswerPolicy()
    lines = [
        "| model | accuracy % | AUC | found at 1 % | fewest behind a number |",
        "|---" * 5 + "|",
    ]
    for model in MODELS:
        for protected in (False, True) if model in TREES else (False,):
            keys: dict[str, Scalar] = {"model": model}
            if model in ("logistic", *TREES):
                keys["num-server-rounds"] = 1
            if protected:
                keys[f"{model}.min-samples-leaf"] = limits.min_examples
                keys[f"{model}.threshold-step"] = limits.threshold_step
            rows = []
            for name, of in problems(data):
                if name in LARGE:
                    place = f"models/{model}{'-policy' * protected}/{name}"
                    rows.append(numbers(place, ["mixture"], of | keys)["mixture"])
            means = [mean([row[key] for row in rows]) for key in RISKS]
            cells = [shown(100 * means[0], ".1f"), *(shown(each, ".2f") for each in means[1:3])]
            fewest = shown(min(row["letter_fewest"] for row in rows), ".0f")
            label = f"{model}, default policy" if protected else model
            lines.append(f"| {label} | {' | '.join([*cells, fewest])} |")
    return lines


def draw(plain: Mapping[str, Numbers], private: Mapping[str, Numbers]) -> None:
    """Draw gain against risk, a panel per problem; lines lead to the method with privacy."""
    figure = Figure(figsize=(13, 4.8), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(WHOLE)), WHOLE, strict=True):
        for method, row in plain.get(name, {}).items():
            x, y = row["letter_auc"], 100 * row["gain"]
            to = private[name].get(method)
            if not np.isfinite(x):
                continue
            if to is not None and np.isfinite(to["letter_auc"]):
                ends = [x, to["letter_auc"]], [y, 100 * to["gain"]]
                axes.plot(*ends, color="#b5a12e", lw=0.5)
                axes.plot(*(end[1] for end in ends), "o", color="#b5a12e", ms=3)
            axes.plot(x, y, "o", color="#3f7fb5", ms=4)
            axes.annotate(method, (x, y), (3, 2), textcoords="offset points", fontsize=6)
        axes.set(xlabel="AUC of the attack by the last letter", title=name)
        axes.axvline(0.5, color="#22252a", lw=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("gain over local, points")
    svg.save(figure, FIGURE)


def _private(methods: list[str]) -> list[str]:
    return [name for name in methods if name == "all" or not METHODS[name].exposes]


def main() -> None:
    """Carry out all comparisons, and fill in the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("data"))
    data = parser.parse_args().data
    plain, private = dict[str, Numbers](), dict[str, Numbers]()
    for name, keys in problems(data):
        methods = ["all"] if name in WHOLE else SOME
        plain[name] = numbers(f"plain/{name}", methods, keys)
        own = {} if name in IMAGES else {"table.scale": "own"}  # no statistics leave
        private[name] = numbers(f"private/{name}", _private(methods), keys | PRIVACY | own)
        print(name, flush=True)
    tables = {
        "methods": of_methods(plain, private), "sets": of_sets(plain, private),
        "models": of_models(data),
    }  # fmt: skip
    print("\n\n".join("\n".join(lines) for lines in tables.values()))
    fill(PAGE, tables)
    draw(plain, private)


if __name__ == "__main__":
    main()
