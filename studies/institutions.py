"""Every method on data of real institutions: `python -m studies.institutions [SET ...]`.

For each set of two classes in `coterie data list` that has been fetched: all methods, tuned equally
on validation data of the first seed (`coterie compare --tune`; `--halving` except for heart
disease), then ten seeds, each with another random division into training and test data. Writes a
file per set into docs/results/institutions, and from all files there the tables of
docs/results/institutions.md; finished runs are kept, so an interrupted command continues.

Intervals are those of the product's paired test (`coterie.app.experiments.paired`): over S seeds
the variance of the mean is (1/S + test/training) times that of the seeds' means (Nadeau and Bengio,
2003), which is not taken to be smaller than the spread over institutions alone would make it;
Student's t with S - 1 degrees of freedom, 95 %. Bold: significant at 5 % after Holm's correction
among the methods of a set, the planned ones (`PLANNED`) for themselves.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from coterie.app.comparisons.run import ComparisonRequest, compare
from coterie.app.comparisons.tune import Tuning
from coterie.app.config.items import read_items
from coterie.app.config.keys import flatten
from coterie.app.config.registry import METHODS
from coterie.app.experiments import paired
from coterie.app.experiments.choice import FILE as TUNING
from coterie.app.experiments.grid import Keys
from coterie.app.lab.catalogue.fetch import fetch
from coterie.app.lab.catalogue.sets import SETS
from coterie.app.runs.rundir import Floats, Run
from studies.measured import Result, read, write
from studies.tables import fill

OUT = Path("runs/institutions")
DATA = Path("data")
PAGE = Path("docs/results/institutions.md")
RESULTS = PAGE.with_suffix("")
"""A file per set, with the values of every seed at every institution."""
MEASURES = {"accuracy": ("test_accuracy", 100.0), "auroc": ("auroc", 100.0)}
SEEDS = 10
WHOLE = ("heart-disease",)
"""Sets on which every trial has all rounds; successive halving on the others."""
ALONE = "local"
AT_HOME = "logistic"
"""scikit-learn's logistic regression, each institution on its own rows."""
LEFT_OUT = ("oracle", "ifca", "fedpac", "fedproto", "boosting")
"""Methods that need the true clusters or their number, a network with a hidden layer, or trees."""
CLASSIFIED = tuple(name for name in SETS if name != "tcga-brca-survival")
"""Sets of two classes, which have an accuracy."""
COMPARED = (*(method for method in METHODS if method not in LEFT_OUT), "fedavg-own-intercept")
YARDSTICKS = ("logistic", "logistic-pooled", "mixed", "forest", "forest-pooled")
"""scikit-learn's models, alone and on the rows of all institutions, and a mixed model of these."""
PLANNED = ("mixed", "fedavg-own-intercept", "ditto", "partial-pooling")
"""Methods of the questions that we ask of every set; the tests of all others only explore."""
SCALED = ("local", "fedavg", "fedavg-ft", "ditto", "cobo", "pfedgraph", "knn-per", "pooled")
"""Methods that are also compared where each institution is on its own scale."""
OWN = "own-scale"
"""Name of the folder of these comparisons."""
BOTH = ("heart-disease", "contraception")
"""Sets that are compared on both scales."""
SHOWN = (
    "fedavg", "fedavg-own-intercept", "fedavg-ft", "ditto", "cobo", "all-for-one", "dpfl",
    "pfedgraph",
)  # fmt: skip
"""Methods of the tables by institution."""
FEW = 8
"""Maximum number of institutions of a set with a table by institution."""
FLAMBY: Mapping[str, tuple[float, ...]] = {
    "each hospital alone": (74.6, 74.6, 72.5, 70.2),
    "FedAvg": (73.1, 71.9, 65.0, 64.0),
    "FedProx": (73.1, 71.9, 65.0, 64.0),
    "Scaffold": (72.7, 71.9, 65.0, 64.0),
    "FedAdam": (75.2, 74.6, 73.8, 66.7),
    "FedAdagrad, FedYogi": (76.0, 75.3, 73.8, 67.6),
    "pooled data": (78.3, 76.4, 75.0, 64.4),
}
"""FLamby's accuracy by hospital on heart disease: means over its five result files."""


def interval(values: Floats, ratio: float, tests: int = 1) -> tuple[float, float]:
    """Return the mean over seeds and half the width of its interval, that of the product.

    Parameters
    ----------
    values : ndarray, (seeds, n)
        Differences by random division and institution; or (seeds, 1), a mean of each division.
    ratio : float
        Number of test examples per training example.
    tests : int
        Number of methods of which this one was selected.
    """
    mean, low, high = paired.interval([*values], ratio, tests)
    is_constant = np.isnan(low) and len(values) >= paired.MIN_SEEDS
    return mean, 0.0 if is_constant else (high - low) / 2


def significant(gains: Mapping[Any, Floats], ratio: float) -> set[Any]:
    """Return the methods whose gain, (seeds, n), differs from 0 after Holm's correction."""
    # The planned methods are a family, and the others one.
    found = set[Any]()
    for family in (gains.keys() & {*PLANNED}, gains.keys() - {*PLANNED}):
        names = sorted(family)
        p_m = paired.holm([paired.p_value([*gains[name]], ratio) for name in names])
        found |= {name for name, p in zip(names, p_m, strict=True) if p <= paired.LEVEL}
    return found


def differences(made: Sequence[Result], base: str, measure: str) -> dict[str, Floats]:
    """Return the gain of each method over another, (seeds, n).

    Institutions without the measure in some division (AUROC: test rows of one class) are left out.
    """
    of = {result.method: result[measure] for result in made}
    gains = {method: of_sn - of[base] for method, of_sn in of.items() if method != base}
    kept = {method: gain_sn[:, ~np.isnan(gain_sn).any(axis=0)] for method, gain_sn in gains.items()}
    return {method: gain_sn for method, gain_sn in kept.items() if gain_sn.size}


def results(directory: Path) -> list[Result]:
    """Read the runs of a tuned comparison, by method."""
    with (directory / TUNING).open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["chosen"] == "1"]
    chosen = {row["method"]: json.loads(row["settings"]) for row in rows}
    runs: dict[str, dict[int, Run]] = {}
    for path in sorted(directory.glob("*/summary.json")):
        run = Run.read(path.parent)
        flat = flatten(run.config)
        method = run.config["recipe"] or run.config["method"]
        if all(flat[key] == value for key, value in chosen.get(method, {}).items()):
            runs.setdefault(method, {})[run.config["seed"]] = run
    return [
        Result.of_runs(
            method,
            ", ".join(f"{k.rpartition('.')[2]} {v}" for k, v in chosen.get(method, {}).items()),
            [runs[method][seed] for seed in sorted(runs[method])],
            MEASURES,
        )
        for method in (*COMPARED, *YARDSTICKS)
        if len(runs.get(method, ())) == SEEDS
    ]


def worst(result: Result) -> tuple[str, float]:
    """Return the institution with the smallest mean accuracy, and that mean."""
    mean_n = result["accuracy"].mean(axis=0)
    return result.names[int(mean_n.argmin())], float(mean_n.min())


def by_method(made: Sequence[Result]) -> list[str]:
    """Return the table of a set, a row per method."""
    gains, ratio = differences(made, ALONE, "accuracy"), made[0].ratio
    marked = significant(gains, ratio)
    lines = [
        "| method | accuracy | gain over Local | worst institution | AUROC | gains | loses "
        "| tuned settings |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in made:
        gain, winners, losers = "", "", ""
        if (gain_sn := gains.get(result.method)) is not None:
            gain = written(*interval(gain_sn, ratio), bold=result.method in marked)
            sides = [side(*interval(gain_s[:, None], ratio)) for gain_s in gain_sn.T]
            winners, losers = str(sides.count(1)), str(sides.count(-1))
        is_defined_n = ~np.isnan(result["auroc"]).any(axis=0)
        auroc = ""
        if is_defined_n.any():
            auroc = level(result["auroc"][:, is_defined_n], ratio)
        lowest = "{} {:.1f}".format(*worst(result))
        accuracy = level(result["accuracy"], ratio)
        cells = (result.method, accuracy, gain, lowest, auroc, winners, losers, result.settings)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def written(mean: float, half: float, decimals: int = 1, *, bold: bool) -> str:
    """Write a difference with its interval."""
    text = f"{mean:+.{decimals}f} ± {half:.{decimals}f}"
    return f"**{text}**" if bold else text


def level(values_sn: Floats, ratio: float) -> str:
    """Write the mean of a measure over institutions, with its interval over divisions."""
    return "{:.1f} ± {:.1f}".format(*interval(values_sn.mean(axis=1, keepdims=True), ratio))


def side(mean: float, half: float) -> int:
    """Return 1 or -1 if the interval lies above or below 0, else 0."""
    return int(mean > half) - int(mean < -half)


def by_institution(made: Sequence[Result], methods: Sequence[str]) -> list[str]:
    """Return the table of a set with few institutions: accuracy of some methods."""
    of = {result.method: result for result in made}
    first = made[0]
    lines = [
        f"| institution | training rows | positive | {' | '.join(methods)} |",
        f"|---|---|---|{'---|' * len(methods)}",
    ]
    for n, name in enumerate(first.names):
        cells = [level(of[method]["accuracy"][:, [n]], first.ratio) for method in methods]
        share = f"{100 * first.positives[n]:.0f} %"
        lines.append(f"| {name} | {first.samples[n]:.0f} | {share} | {' | '.join(cells)} |")
    return lines


def by_kind(sets: Mapping[str, Sequence[Result]], methods: Sequence[str]) -> list[str]:
    """Return gains over Local of the institutions of all sets, by size and by distance.

    The distance of an institution is that of its share of positives from the mean over its set.
    """
    rows: list[tuple[float, float, list[float]]] = []
    for made in sets.values():
        of = {result.method: result for result in made}
        alone = of[ALONE]
        distance_n = 100 * np.abs(alone.positives - alone.positives.mean())
        gain_mn = np.array([(of[m]["accuracy"] - alone["accuracy"]).mean(axis=0) for m in methods])
        rows += zip(alone.samples, distance_n, gain_mn.T.tolist(), strict=True)
    size_i, distance_i = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    gain_im = np.array([row[2] for row in rows])
    lines = [
        f"| institutions | number | {' | '.join(methods)} |",
        "|---|---|" + "---|" * len(methods),
    ]
    for title, value_i, edges in (
        ("training rows", size_i, (0, 40, 60, 100, 1e9)),
        ("distance of positives, points", distance_i, (0, 5, 10, 20, 1e9)),
    ):
        for low, high in itertools.pairwise(edges):
            inside_i = (value_i >= low) & (value_i < high)
            if inside_i.any():
                gain_jm = gain_im[inside_i]
                cells = [f"{g.mean():+.1f} ({100 * (g < 0).mean():.0f} %)" for g in gain_jm.T]
                label = f"{title} {low:g} to {high:g}" if high < 1e9 else f"{title} from {low:g}"
                lines.append(f"| {label} | {inside_i.sum()} | {' | '.join(cells)} |")
    return lines


def flamby() -> list[str]:
    """Return FLamby's table of heart disease."""
    lines = [
        "| FLamby | mean | Cleveland | Hungarian | Switzerland | VA |",
        "|---|---|---|---|---|---|",
    ]
    for name, values in FLAMBY.items():
        cells = [f"{value:.1f}" for value in (float(np.mean(values)), *values)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def gains(
    sets: Mapping[str, Sequence[Result]], base: str = ALONE, measure: str = "accuracy"
) -> list[str]:
    """Return the gains over a method, a row per method and a column per set, and their mean."""
    lines = [f"| method | {' | '.join(sets)} | mean |", f"|---|{'---|' * len(sets)}---|"]
    of_sets = {name: differences(made, base, measure) for name, made in sets.items()}
    ratios = {name: made[0].ratio for name, made in sets.items()}
    marked = {name: significant(of, ratios[name]) for name, of in of_sets.items()}
    for method in (*COMPARED, *YARDSTICKS):
        cells, means = [], []
        for name, of in of_sets.items():
            cell = ""
            if method in of:
                bold = method in marked[name]
                cell = written(*interval(of[method], ratios[name]), bold=bold)
                means.append(of[method].mean())
            cells.append(cell)
        if any(cells):
            mean = f"{np.mean(means):+.1f}" if all(cells) else ""
            lines.append(f"| {method} | {' | '.join(cells)} | {mean} |")
    return lines


def counts(sets: Mapping[str, Sequence[Result]]) -> list[str]:
    """Return how many gains have an interval without 0, and which are left after correction."""
    lines = [
        "| gain over | measure | comparisons | interval above 0 | interval below 0 "
        "| above after Holm | below after Holm |",
        "|---|---|---|---|---|---|---|",
    ]
    for base, measure in itertools.product((ALONE, AT_HOME), MEASURES):
        sides, left = list[int](), {1: list[str](), -1: list[str]()}
        for name, made in sets.items():
            of, ratio = differences(made, base, measure), made[0].ratio
            marked = significant(of, ratio)
            for method, gain_sn in of.items():
                sides.append(side(*interval(gain_sn, ratio)))
                if method in marked:
                    left[sides[-1]].append(f"{method} ({name})")
        names = [", ".join(of) or "none" for of in left.values()]
        lines.append(
            f"| {base} | {measure} | {len(sides)} | {sides.count(1)} | {sides.count(-1)} "
            f"| {' | '.join(names)} |"
        )
    return lines


def by_scale(
    common: Mapping[str, Sequence[Result]], own: Mapping[str, Sequence[Result]]
) -> list[str]:
    """Return the gains over Local on a common scale and on each institution's own scale."""
    lines = [
        f"| set, scale | {' | '.join((*SCALED, *YARDSTICKS))} |",
        f"|---|{'---|' * len((*SCALED, *YARDSTICKS))}",
    ]
    for name, scales in {key: {"common": common[key], "own": own[key]} for key in own}.items():
        for scale, made in scales.items():
            of, row = differences(made, ALONE, "accuracy"), []
            marked = significant(of, made[0].ratio)
            alone = next(result for result in made if result.method == ALONE)
            for method in (*SCALED, *YARDSTICKS):
                if method in of:
                    half = interval(of[method], alone.ratio)
                    row.append(written(*half, bold=method in marked))
                else:
                    row.append("{:.1f}".format(alone["accuracy"].mean()) * (method == ALONE))
            lines.append(f"| {name}, {scale} | {' | '.join(row)} |")
    return lines


def blocks(
    sets: Mapping[str, Sequence[Result]], own: Mapping[str, Sequence[Result]]
) -> dict[str, list[str]]:
    """Return the tables by their names on the page."""
    made = {"gains": gains(sets), "kinds": by_kind(sets, SHOWN), "flamby": flamby()}
    made["counts"] = counts(sets)
    for measure in MEASURES:
        made[f"gains over {AT_HOME} in {measure}"] = gains(sets, AT_HOME, measure)
    made["scales"] = by_scale(sets, own)
    for name, of_set in sets.items():
        made[f"{name} methods"] = by_method(of_set)
        if len(of_set[0].names) <= FEW:
            made[f"{name} institutions"] = by_institution(of_set, [ALONE, *SHOWN])
    return made


def measured(directory: Path) -> dict[str, list[Result]]:
    """Return the results of every set with a file in a directory, in order of the catalogue."""
    files = {name: directory / f"{name}.csv" for name in CLASSIFIED}
    return {name: read(file) for name, file in files.items() if file.exists()}


def fetched(names: Sequence[str], console: Console) -> Iterator[tuple[str, str, Keys]]:
    """Yield name, title and keys of the sets whose data are here; included ones are unpacked."""
    for name in names:
        if not SETS[name].files:
            fetch(name, SETS[name], DATA)
        if (DATA / name).is_dir():
            yield (name, *read_items([f"institutions/{name}"]))
        else:
            console.print(f"left out: coterie data fetch {name}")


def arguments(description: str) -> argparse.Namespace:
    """Return the sets and the number of workers of the command line."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument(
        "sets", nargs="*", default=CLASSIFIED, metavar="SET", help=", ".join(CLASSIFIED)
    )
    parser.add_argument("--workers", type=int, help="number of parallel runs")
    return parser.parse_args()


def main() -> None:
    """Run the sets that have been fetched, and write the tables."""
    options, console = arguments(__doc__), Console()
    for name, title, keys in fetched(options.sets, console):
        tuning: Tuning = "whole" if name in WHOLE else "halving"
        common = ComparisonRequest(
            title, keys, COMPARED, OUT / name, SEEDS, tuning, options.workers
        )
        requests = {RESULTS: common}
        if name in BOTH:
            requests[RESULTS / OWN] = replace(
                common,
                keys={**keys, "table.scale": "own"},
                methods=SCALED,
                directory=OUT / OWN / name,
            )
        for folder, request in requests.items():
            compare(request, console)
            write(folder / f"{name}.csv", results(request.directory))
    fill(PAGE, blocks(measured(RESULTS), measured(RESULTS / OWN)))
    console.print(RESULTS, PAGE)


if __name__ == "__main__":
    main()
