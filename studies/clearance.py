"""Gain beside risk, of methods and models: `python -m studies.clearance [--data FOLDER]`.

Each method with `coterie compare --clearance`, seed 0: on the seven sets of real institutions that
`coterie data fetch` gets (those that are not in FOLDER are left out), and on two image problems of
eight peers, without and with differential privacy (epsilon 8). Then models whose predictions are
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
    "peers": 8, "partition.kind": "dirichlet", "partition.alpha": 0.5, "num-server-rounds": 40,
    "evaluate-every": 40, "local-epochs": 1, "batch-size": 16, "device": "cpu",
}  # fmt: skip
PRIVACY: dict[str, Scalar] = {
    "privacy.kind": "examples", "privacy.noise": 2.0, "privacy.budget": 8.0, "privacy.delta": 1e-3,
}  # fmt: skip
MODELS = ("logistic", "linear", "mlp", "forest", "boosted-trees")
TREES = MODELS[-2:]
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


RISKS = ("accuracy", "letter_auc", "letter_tpr", "letter_fewest", "letter_readable")


def mean(values: list[float]) -> float:
    """Return the mean of the numbers that are there."""
    known = [value for value in values if np.isfinite(value)]
    return float(np.mean(known)) if known else float("nan")


def shown(value: float, form: str) -> str:
    """Write a number, or a dash."""
    return format(value, form) if np.isfinite(value) else "-"


def of_methods(plain: Mapping[str, Numbers], private: Mapping[str, Numbers]) -> list[str]:
    """Return the table of methods: gain and risk on tables and images, without and with privacy."""
    tables, images = ([n for n in plain if (n in IMAGES) is here] for here in (False, True))
    parts = [(tables, plain), (tables, private), (images, plain), (images, private)]
    head = "| method | tables: gain | AUC | private: gain | AUC | images: gain | AUC | private: gain | AUC |"
    methods = list(dict.fromkeys(method for of in plain.values() for method in of))
    lines = []
    for method in methods:
        cells, risk = [], 0.0
        for names, of in parts:
            rows = [of[name][method] for name in names if method in of[name]]
            gain, auc = (mean([row[key] for row in rows]) for key in ("gain", "letter_auc"))
            cells += [shown(100 * gain, "+.1f"), shown(auc, ".2f")]
        risk = float(cells[1]) if cells[1] != "-" else 0.0
        lines.append((risk, f"| {method} | {' | '.join(cells)} |"))
    return [head, "|---" * 9 + "|", *(line for _, line in sorted(lines))]


def of_problems(plain: Mapping[str, Numbers], private: Mapping[str, Numbers]) -> list[str]:
    """Return the table of problems: risk of all methods, without and with privacy."""
    head = "| problem | AUC, median of methods | largest | private: median | largest |"
    lines = [head, "|---" * 5 + "|"]
    for name in plain:
        cells = []
        for of in (plain, private):
            risks = {method: row["letter_auc"] for method, row in of[name].items()}
            risks = {method: risk for method, risk in risks.items() if np.isfinite(risk)}
            worst = max(risks, key=lambda method: risks[method])
            cells += [f"{np.median([*risks.values()]):.2f}", f"{risks[worst]:.2f} ({worst})"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
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
                if name not in IMAGES:
                    place = f"models/{model}{'-policy' * protected}/{name}"
                    rows.append(numbers(place, ["mixture"], of | keys)["mixture"])
            means = [mean([row[key] for row in rows]) for key in RISKS]
            cells = [shown(100 * means[0], ".1f"), *(shown(each, ".2f") for each in means[1:3])]
            fewest = shown(min(row["letter_fewest"] for row in rows), ".0f")
            label = f"{model}, default policy" if protected else model
            lines.append(f"| {label} | {' | '.join([*cells, fewest])} |")
    return lines


def draw(plain: Mapping[str, Numbers], private: Mapping[str, Numbers]) -> None:
    """Draw gain against risk, of tables and of images; lines lead to the method with privacy."""
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    for axes, here in zip(figure.subplots(1, 2), (False, True), strict=True):
        names = [name for name in plain if (name in IMAGES) is here]
        for method in dict.fromkeys(method for name in names for method in plain[name]):
            points = []
            for of in (plain, private):
                rows = [of[name][method] for name in names if method in of[name]]
                points.append([mean([row[key] for row in rows]) for key in ("letter_auc", "gain")])
            (x, y), (to_x, to_y) = points
            if not np.isfinite(x):
                continue
            if np.isfinite(to_x):
                axes.plot([x, to_x], [100 * y, 100 * to_y], color="#b5a12e", lw=0.6)
                axes.plot(to_x, 100 * to_y, "o", color="#b5a12e", ms=4)
            axes.plot(x, 100 * y, "o", color="#3f7fb5", ms=4)
            axes.annotate(method, (x, 100 * y), (3, 2), textcoords="offset points", fontsize=6)
        axes.set(
            xlabel="AUC of the attack by the last letter", title="images" if here else "tables"
        )
        axes.axvline(0.5, color="#22252a", lw=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("gain over local, points")
    svg.save(figure, FIGURE)


def main() -> None:
    """Carry out all comparisons, and fill in the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path("data"))
    data = parser.parse_args().data
    plain, private = dict[str, Numbers](), dict[str, Numbers]()
    for name, keys in problems(data):
        plain[name] = numbers(f"plain/{name}", ["all"], keys)
        private[name] = numbers(f"private/{name}", ["all"], keys | PRIVACY)
        print(name, flush=True)
    tables = {
        "methods": of_methods(plain, private), "problems": of_problems(plain, private),
        "models": of_models(data),
    }  # fmt: skip
    print("\n\n".join("\n".join(lines) for lines in tables.values()))
    fill(PAGE, tables)
    draw(plain, private)


if __name__ == "__main__":
    main()
