"""Collaborators for any model, on real institutions: `python -m studies.any_model [SET ...]`.

For each set of two classes in `coterie data list` that has been fetched, and each model that
scikit-learn fits: alone, with the predictions of the others (`mixture`, `selection`, `stacking`),
and fitted to the rows of all institutions. Ten seeds, each with another random division into
training and test data; the settings are the defaults of models and methods, so nothing is tuned.
Writes the tables of docs/results/any-model.md, and runs/any-model/results.csv with a row per
institution; finished runs are kept, so an interrupted command continues.

Intervals: see `studies.institutions`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from coterie.app.comparisons.run import ComparisonRequest, compare
from coterie.app.config.schema import Scalar
from coterie.app.runs import atomic, cells
from coterie.app.runs.metrics import Floats
from coterie.app.runs.rundir import Run
from studies.institutions import ALONE, SEEDS, arguments, fetched, interval, written
from studies.tables import fill

OUT = Path("runs/any-model")
PAGE = Path("docs/results/any-model.md")
MODELS = ("logistic", "forest", "boosted-trees")
METHODS = (ALONE, "mixture", "selection", "stacking", "pooled")
MEASURES: Mapping[str, tuple[str, float, int]] = {
    "accuracy": ("test_accuracy", 100.0, 1),
    "auroc": ("auroc", 100.0, 1),
    "log-loss": ("test_loss", 1.0, 3),
    "calibration": ("expected_calibration_error", 100.0, 1),
}
"""Table of the page -> metric, its factor, and decimals."""

Results = Mapping[tuple[str, str, str], Sequence[Run]]
"""(Set, model, method) -> a run per seed."""


def results(directory: Path, name: str) -> dict[tuple[str, str, str], list[Run]]:
    """Read the runs of a set, in order of their seeds."""
    found: dict[tuple[str, str, str], list[Run]] = {}
    for model in MODELS:
        runs = [Run.read(path.parent) for path in directory.glob(f"{model}/*/summary.json")]
        for run in sorted(runs, key=lambda run: int(run.config["seed"])):
            found.setdefault((name, model, run.config["method"]), []).append(run)
    return {key: of for key, of in found.items() if len(of) == SEEDS}


def last(runs: Sequence[Run], metric: str) -> Floats:
    """Return a metric of the last round, (seeds, n); NaN where an institution has no value."""
    return np.array([run.at(metric, run.last_row()) for run in runs])


def gains(made: Results, measure: str) -> list[str]:
    """Return a measure alone, and each method's difference to it; a column per set."""
    metric, factor, decimals = MEASURES[measure]
    sets = list(dict.fromkeys(name for name, _, _ in made))
    lines = [f"| model | method | {' | '.join(sets)} |", f"|---|---|{'---|' * len(sets)}"]
    for model in MODELS:
        for method in METHODS:
            row = []
            for name in sets:
                alone_sn, values_sn = (
                    factor * last(made[name, model, each], metric) for each in (ALONE, method)
                )
                defined_n = ~np.isnan(alone_sn + values_sn).any(axis=0)
                shown_s = values_sn[:, defined_n].mean(axis=1)
                if method == ALONE:
                    row.append(f"{shown_s.mean():.{decimals}f}")
                    continue
                gain_s = shown_s - alone_sn[:, defined_n].mean(axis=1)
                row.append(written(*interval(gain_s, ratio(made[name, model, method])), decimals))
            lines.append(f"| {model} | {method} | {' | '.join(row)} |")
    return lines


def costs(made: Results) -> list[str]:
    """Return kilobytes sent by a peer, mean over peers, sets and seeds."""
    lines = ["| model | method | kB sent by a peer |", "|---|---|---|"]
    for model in MODELS:
        for method in METHODS:
            of = [runs for (_, *which), runs in made.items() if which == [model, method]]
            sent = np.mean([last(runs, "bytes_sent").mean() for runs in of]) / 1000
            if sent:
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
            sides = {"test_accuracy": list[int](), "test_loss": list[int]()}
            for name, runs in (
                (s, r) for (s, *which), r in made.items() if which == [model, method]
            ):
                for metric, signs in sides.items():
                    gain_sn = last(runs, metric) - last(made[name, model, ALONE], metric)
                    for gain_s in gain_sn.T:
                        mean, half = interval(gain_s, ratio(runs))
                        signs.append(int(mean > half) - int(mean < -half))
            accuracy, loss = sides.values()
            counts = (accuracy.count(1), accuracy.count(-1), loss.count(-1), loss.count(1))
            lines.append(f"| {model} | {method} | {len(loss)} | {' | '.join(map(str, counts))} |")
    return lines


def ratio(runs: Sequence[Run]) -> float:
    """Return the number of test examples per training example."""
    samples, tests = runs[0].samples, runs[0].sizes("test")
    assert samples is not None
    assert tests is not None
    return float(tests.sum() / samples.sum())


def as_csv(made: Results) -> Iterable[Sequence[object]]:
    """Yield the rows of results.csv: one per set, model, method and institution."""
    yield ("set", "model", "method", "institution", *MEASURES)
    for (name, model, method), runs in made.items():
        means = [
            factor * last(runs, metric).mean(axis=0) for metric, factor, _ in MEASURES.values()
        ]
        for n, institution in enumerate(runs[0].names):
            yield (name, model, method, institution, *(f"{mean[n]:.4g}" for mean in means))


def main() -> None:
    """Run the sets that have been fetched, and write the tables."""
    options, console = arguments(__doc__), Console()
    made = dict[tuple[str, str, str], list[Run]]()
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
        made |= results(OUT / name, name)
    atomic.write(OUT / "results.csv", cells.as_csv(as_csv(made)))
    tables = {measure: gains(made, measure) for measure in MEASURES}
    fill(PAGE, {**tables, "costs": costs(made), "institutions": losers(made)})
    console.print(OUT / "results.csv", PAGE)


if __name__ == "__main__":
    main()
