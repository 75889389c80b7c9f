"""Every method on data of real institutions: `python -m studies.institutions [SET ...]`.

For each set of two classes in `coterie data list` that has been fetched: all methods, tuned equally
on validation data of the first seed (`coterie compare --tune`; `--halving` except for heart
disease), then ten seeds, each with another random division into training and test data. Writes a
file per set into docs/results/institutions, and from all files there the tables of
docs/results/institutions.md; finished runs are kept, so an interrupted command continues.

Intervals are those of Nadeau and Bengio (2003) for repeated random divisions: over J seeds the
variance of the mean is (1/J + test/training) times the sample variance, because the training sets
overlap; Student's t with J - 1 degrees of freedom, 95 %.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from rich.console import Console
from scipy import stats

from coterie.app.comparisons.run import ComparisonRequest, compare
from coterie.app.comparisons.tune import Tuning
from coterie.app.config.items import read_items
from coterie.app.config.keys import flatten
from coterie.app.config.registry import METHODS
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
LEVEL = 0.95
ALONE = "local"
AT_HOME = "logistic"
"""scikit-learn's logistic regression, each institution on its own rows."""
LEFT_OUT = ("oracle", "ifca", "fedpac", "fedproto", "boosting")
"""Methods that need the true clusters or their number, a network with a hidden layer, or trees."""
CLASSIFIED = tuple(name for name in SETS if name != "tcga-brca-survival")
"""Sets of two classes, which have an accuracy."""
COMPARED = (*(method for method in METHODS if method not in LEFT_OUT), "fedavg-own-intercept")
YARDSTICKS = ("logistic", "logistic-pooled", "forest", "forest-pooled")
"""scikit-learn's models, alone and on the rows of all institutions."""
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


def interval(values: Floats, ratio: float) -> tuple[float, float]:
    """Return the mean over seeds and half the width of its 95 % interval (Nadeau and Bengio).

    Parameters
    ----------
    values : ndarray, (seeds,)
        A value per random division.
    ratio : float
        Number of test examples per training example.
    """
    count = len(values)
    deviation = values.std(ddof=1) * np.sqrt(1 / count + ratio)
    return float(values.mean()), float(stats.t.ppf((1 + LEVEL) / 2, count - 1) * deviation)


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
    alone = next(result for result in made if result.method == ALONE)
    lines = [
        "| method | accuracy | gain over Local | worst institution | AUROC | gains | loses "
        "| tuned settings |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for result in made:
        gain, gains, losses = "", "", ""
        if result is not alone:
            gain_sn = result["accuracy"] - alone["accuracy"]
            gain = written(*interval(gain_sn.mean(axis=1), result.ratio))
            sides = [side(*interval(gain_n, result.ratio)) for gain_n in gain_sn.T]
            gains, losses = str(sides.count(1)), str(sides.count(-1))
        is_defined_n = ~np.isnan(result["auroc"]).any(axis=0)
        auroc = ""
        if is_defined_n.any():
            ranked_s = result["auroc"][:, is_defined_n].mean(axis=1)
            auroc = mean_written(*interval(ranked_s, result.ratio))
        accuracy = mean_written(*interval(result["accuracy"].mean(axis=1), result.ratio))
        lowest = "{} {:.1f}".format(*worst(result))
        cells = (result.method, accuracy, gain, lowest, auroc, gains, losses, result.settings)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def written(mean: float, half: float, decimals: int = 1) -> str:
    """Write a difference with its interval, bold if it excludes 0."""
    text = f"{mean:+.{decimals}f} ± {half:.{decimals}f}"
    return f"**{text}**" if side(mean, half) else text


def mean_written(mean: float, half: float) -> str:
    """Write a mean with its interval."""
    return f"{mean:.1f} ± {half:.1f}"


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
        cells = [
            mean_written(*interval(of[method]["accuracy"][:, n], first.ratio)) for method in methods
        ]
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
    """Return the gains over a method, a row per method and a column per set, and their mean.

    Institutions without the measure in some division (AUROC: test rows of one class) are left out.
    """
    lines = [f"| method | {' | '.join(sets)} | mean |", f"|---|{'---|' * len(sets)}---|"]
    for method in (*COMPARED, *YARDSTICKS):
        cells, means = [], []
        for made in sets.values():
            of = {result.method: result for result in made}
            cell = ""
            if method in of:
                gain_sn = of[method][measure] - of[base][measure]
                is_defined_n = ~np.isnan(gain_sn).any(axis=0)
                if is_defined_n.any():
                    gain_s = gain_sn[:, is_defined_n].mean(axis=1)
                    cell = written(*interval(gain_s, of[method].ratio))
                    means.append(gain_s.mean())
            cells.append(cell)
        if method != base and any(cells):
            mean = f"{np.mean(means):+.1f}" if all(cells) else ""
            lines.append(f"| {method} | {' | '.join(cells)} | {mean} |")
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
            of = {result.method: result for result in made}
            alone, row = of[ALONE], []
            for method in (*SCALED, *YARDSTICKS):
                gain_s = (of[method]["accuracy"] - alone["accuracy"]).mean(axis=1)
                text = "{:.1f}".format(alone["accuracy"].mean())
                row.append(text if method == ALONE else written(*interval(gain_s, alone.ratio)))
            lines.append(f"| {name}, {scale} | {' | '.join(row)} |")
    return lines


def blocks(
    sets: Mapping[str, Sequence[Result]], own: Mapping[str, Sequence[Result]]
) -> dict[str, list[str]]:
    """Return the tables by their names on the page."""
    made = {"gains": gains(sets), "kinds": by_kind(sets, SHOWN), "flamby": flamby()}
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
