"""Collaborators for any model, on real institutions: `python -m studies.any_model [SET ...]`.

For each set of two classes in `coterie data list` that has been fetched, and each model that
scikit-learn fits: alone, with the predictions of the others (`mixture`, `selection`, `stacking`),
and fitted to the rows of all institutions. Ten seeds, each with another random division into
training and test data; the settings are the defaults of models and methods, so nothing is tuned.
Writes a file per set and model into docs/results/any-model, and from all files there the tables of
docs/results/any-model.md; finished runs are kept, so an interrupted command continues.

Intervals: see `studies.institutions`. Bold: significant after Holm's correction among all models
and methods of a set; a difference selected as the best of m has the level of m tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from rich.console import Console

from coterie.app.comparisons.run import ComparisonRequest, compare
from coterie.app.config.schema import Scalar
from coterie.app.runs.rundir import Floats, Run
from studies import institutions
from studies.institutions import (
    ALONE,
    CLASSIFIED,
    SEEDS,
    arguments,
    fetched,
    interval,
    side,
    significant,
    written,
)
from studies.measured import Result, read, write
from studies.tables import fill

OUT = Path("runs/any-model")
PAGE = Path("docs/results/any-model.md")
RESULTS = PAGE.with_suffix("")
"""A file per set and model, with the values of every seed at every institution."""
MODELS = ("logistic", "forest", "boosted-trees")
PREDICTIONS = ("mixture", "selection", "stacking")
METHODS = (ALONE, *PREDICTIONS, "pooled")
AVERAGING = {*institutions.COMPARED} - {*METHODS, "partial-pooling"}
MEASURES: Mapping[str, tuple[str, float]] = {
    "accuracy": ("test_accuracy", 100.0),
    "auroc": ("auroc", 100.0),
    "log-loss": ("test_loss", 1.0),
    "calibration": ("expected_calibration_error", 100.0),
    "kB": ("bytes_sent", 0.001),
}
DECIMALS = {"accuracy": 1, "auroc": 1, "log-loss": 3, "calibration": 1}
"""Table of the page -> its decimals."""

Results = Mapping[tuple[str, str, str], Result]
"""Results by set, model and method."""


def results(directory: Path) -> list[Result]:
    """Read the runs of a set and a model, by method."""
    runs: dict[str, dict[int, Run]] = {}
    for path in directory.glob("*/summary.json"):
        run = Run.read(path.parent)
        runs.setdefault(run.config["method"], {})[run.config["seed"]] = run
    return [
        Result.of_runs(method, "", [runs[method][seed] for seed in range(SEEDS)], MEASURES)
        for method in METHODS
    ]


def measured() -> dict[tuple[str, str, str], Result]:
    """Return the results of every set with files of all models, in order of the catalogue."""
    files = {name: [RESULTS / name / f"{model}.csv" for model in MODELS] for name in CLASSIFIED}
    return {
        (name, file.stem, result.method): result
        for name, of_set in files.items()
        if all(file.exists() for file in of_set)
        for file in of_set
        for result in read(file)
    }


def gains(made: Results, measure: str) -> list[str]:
    """Return a measure alone, and each method's difference to it; a column per set."""
    decimals = DECIMALS[measure]
    sets = list(dict.fromkeys(name for name, _, _ in made))
    lines = [f"| model | method | {' | '.join(sets)} |", f"|---|---|{'---|' * len(sets)}"]
    of_sets: dict[str, dict[tuple[str, str], Floats]] = {name: {} for name in sets}
    for (name, model, method), result in made.items():
        gain_sn = result[measure] - made[name, model, ALONE][measure]
        of_sets[name][model, method] = gain_sn[:, ~np.isnan(gain_sn).any(axis=0)]
    ratios = {name: result.ratio for (name, _, _), result in made.items()}
    marked = {
        name: significant({k: of for k, of in gains.items() if k[1] != ALONE}, ratios[name])
        for name, gains in of_sets.items()
    }
    for model in MODELS:
        for method in METHODS:
            row = []
            for name in sets:
                if method == ALONE:
                    alone_sn = made[name, model, ALONE][measure]
                    is_defined_n = ~np.isnan(alone_sn).any(axis=0)
                    row.append(f"{alone_sn[:, is_defined_n].mean():.{decimals}f}")
                else:
                    each = interval(of_sets[name][model, method], ratios[name])
                    bold = (model, method) in marked[name]
                    row.append(written(*each, decimals, bold=bold))
            lines.append(f"| {model} | {method} | {' | '.join(row)} |")
    return lines


def costs(made: Results) -> list[str]:
    """Return kilobytes sent by a peer, mean over peers, sets and seeds."""
    lines = ["| model | method | kB sent by a peer |", "|---|---|---|"]
    for model in MODELS:
        for method in METHODS:
            of = [result for (_, *which), result in made.items() if which == [model, method]]
            if sent := np.mean([result["kB"].mean() for result in of]):
                lines.append(f"| {model} | {method} | {sent:.1f} |")
    return lines


def losers(made: Results) -> list[str]:
    """Return how many institutions gain, and lose, beyond their own interval, by model and method.

    In accuracy and in log loss, over all sets.
    """
    lines = [
        "| model | method | institutions | gain accuracy | lose accuracy "
        "| better log loss | worse log loss |",
        "|---|---|---|---|---|---|---|",
    ]
    for model in MODELS:
        for method in METHODS[1:]:
            sides = {"accuracy": list[int](), "log-loss": list[int]()}
            for (name, *which), result in made.items():
                if which == [model, method]:
                    for measure, signs in sides.items():
                        gain_sn = result[measure] - made[name, model, ALONE][measure]
                        signs += [
                            side(*interval(gain_s[:, None], result.ratio)) for gain_s in gain_sn.T
                        ]
            accuracy, loss = sides.values()
            counts = (accuracy.count(1), accuracy.count(-1), loss.count(-1), loss.count(1))
            lines.append(f"| {model} | {method} | {len(loss)} | {' | '.join(map(str, counts))} |")
    return lines


def beside_networks(made: Results) -> list[str]:
    """Return the best mean accuracies of a set, with their gains over logistic regression alone.

    Alone, with predictions, pooled, and the best method of `studies.institutions`. What is best is
    read from test data, so each cell is the maximum of several: an upper bound.
    """
    lines = [
        "| set | logistic, alone | best alone | with predictions of others | pooled "
        "| methods that average networks |",
        "|---|---|---|---|---|---|",
    ]
    for name, networks in institutions.measured(institutions.RESULTS).items():
        here = {(model, method): r for (of, model, method), r in made.items() if of == name}
        if here:
            base = here["logistic", ALONE]
            cells = (
                f"{base['accuracy'].mean():.1f}",
                best({model: r for (model, method), r in here.items() if method == ALONE}, base),
                best({", ".join(w): r for w, r in here.items() if w[1] in PREDICTIONS}, base),
                best({model: r for (model, method), r in here.items() if method == "pooled"}, base),
                best({r.method: r for r in networks if r.method in AVERAGING}, base),
            )
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def best(results: Mapping[str, Result], base: Result) -> str:
    """Return the name of the highest mean accuracy, and its gain over a base."""
    name = max(results, key=lambda name: float(results[name]["accuracy"].mean()))
    each = interval(results[name]["accuracy"] - base["accuracy"], base.ratio, len(results))
    return f"{name} {written(*each, bold=side(*each) != 0)}"


def blocks(made: Results) -> dict[str, list[str]]:
    """Return the tables by their names on the page."""
    tables = {measure: gains(made, measure) for measure in DECIMALS}
    tables |= {"institutions": losers(made), "networks": beside_networks(made)}
    return {**tables, "costs": costs(made)}


def main() -> None:
    """Run the sets that have been fetched, and write the tables."""
    options, console = arguments(__doc__), Console()
    for name, title, keys in fetched(options.sets, console):
        for model in MODELS:
            more: dict[str, Scalar] = {"model": model, "num-server-rounds": 1, "evaluate-every": 1}
            place = OUT / name / model
            compare(
                ComparisonRequest(
                    title, {**keys, **more}, METHODS, place, SEEDS, None, options.workers,
                    yardsticks="none",
                ),
                console,
            )  # fmt: skip
            write(RESULTS / name / f"{model}.csv", results(place))
    fill(PAGE, blocks(measured()))
    console.print(RESULTS, PAGE)


if __name__ == "__main__":
    main()
