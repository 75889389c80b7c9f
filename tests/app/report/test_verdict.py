"""Verdict of a comparison: a winner if the test has one, and never a method given the clusters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coterie.app.experiments.choice import Choice
from coterie.app.experiments.table import Table
from coterie.app.report.verdict import cost_notes, notes, outcome
from coterie.app.runs.rundir import Run
from tests.app.fake_run import write_config, write_metrics, write_progress

CLEAR = {"local": (0.60, 0.61, 0.62), "cobo": (0.90, 0.91, 0.93), "fedavg": (0.50, 0.52, 0.51)}
CLOSE = CLEAR | {"dpfl": (0.91, 0.90, 0.92)}


def rows(
    directory: Path,
    means: Mapping[str, Sequence[float | None]],
    loss: float | None = 1.0,
    **config: Any,
) -> Table:
    """Return runs of three peers around these means, one per seed; None: diverged."""
    runs: dict[str, list[Run]] = {}
    for method, of_method in means.items():
        for seed, mean in enumerate(of_method):
            run = directory / f"{method}-{seed}"
            run.mkdir()
            write_config(run, {"method": method, "peers": 3, "seed": seed, **config})
            lines = [{"round": 0, "peer": p, "test_loss": 2.0} for p in range(3)]
            for p, off in enumerate((-0.01, 0.0, 0.01)):
                end = math.inf if mean is None else mean + off
                ends = {"test_loss": end}
                if loss is not None:
                    ends = {"test_accuracy": end, "test_loss": loss}
                lines.append({"round": 5, "peer": p, **ends})
            write_metrics(run, lines)
            runs.setdefault(method, []).append(Run.read(run))
    return Table.of_runs(runs)


def read(made: Table) -> str:
    return " ".join(outcome(made)).replace("\xa0", " ")


def test_a_winner_that_the_test_supports_is_named(tmp_path: Path) -> None:
    assert read(rows(tmp_path, CLEAR)) == (
        "cobo is the best of 3 methods (paired test over 3 seeds and their peers): mean test "
        "accuracy 91.33 ± 1.53 %, +30.33 ± 0.58 points over local; 100 % of the peers improve."
    )


def test_methods_that_the_test_cannot_separate_have_no_winner(tmp_path: Path) -> None:
    assert read(rows(tmp_path, CLOSE)).startswith(
        "No clear winner among cobo and dpfl: not significant with 3 seeds. cobo has the highest "
        "mean test accuracy: 91.33 ± 1.53 %"
    )


@pytest.mark.parametrize(("seeds", "count"), [(1, "1 seed"), (2, "2 seeds")])
def test_too_few_seeds_have_no_winner(tmp_path: Path, seeds: int, count: str) -> None:
    few = {method: means[:seeds] for method, means in CLEAR.items()}
    made = rows(tmp_path, few)
    verdict = read(made)
    assert f": not significant with {count} (no test possible). cobo has the highest " in verdict
    assert not any(made.bold(column) for column in made.shown())


def test_a_method_that_failed_with_a_seed_is_named(tmp_path: Path) -> None:
    """FedAvg has the best mean, of two seeds: too few for a test against the others."""
    made = rows(tmp_path, CLEAR | {"fedavg": (0.95, 0.96)})
    assert "not significant with 2 seeds (no test possible)" in read(made)
    assert notes(made) == ["means are over fewer than 3 seeds: fedavg 2"]


def test_seeds_without_a_test_are_no_sign_that_a_plain_model_is_as_good(tmp_path: Path) -> None:
    made = rows(tmp_path, {"cobo": (0.9, 0.91, 0.9), "logistic": (0.5,) * 3}, **{"split-seed": 3})
    assert "90.33 ± 0.58 % against 50.00 ± 0.00 % with 3 seeds (no test possible)." in read(made)


def test_settings_tuned_to_an_edge_have_a_footnote(tmp_path: Path) -> None:
    made = rows(tmp_path, {"local": CLEAR["local"], "cobo": CLEAR["cobo"]})
    settings = {"learning-rate": 3.0, "cobo.gamma": 0.03}
    choice = Choice(settings, {"learning-rate": "high"}, 15)
    made = replace(made, choices={"cobo": choice})
    assert notes(made) == [
        "tuned to the edge of the range, try values beyond: "
        "cobo (learning-rate = 3.0, highest tried)"
    ]


def test_runs_that_stopped_early_are_named(tmp_path: Path) -> None:
    made = rows(tmp_path, CLEAR, **{"num-server-rounds": 5})
    assert not any("rounds" in note for note in notes(made))
    runs = {}
    for row, planned in zip(made, (9, 9, 5), strict=False):
        for seed, run in enumerate(row.runs):
            keys = {"method": row.method, "peers": 3, "seed": seed, "num-server-rounds": planned}
            write_config(run.directory, keys)
            write_progress(run.directory, round=5)
        runs[row.method] = [Run.read(run.directory) for run in row.runs]
    first, second, *_ = runs
    of_rounds = [note for note in notes(Table.of_runs(runs)) if "rounds" in note]
    assert f"stopped early (patience): {first} after 5 of 9 rounds" in of_rounds[-1]
    assert of_rounds[-2].startswith("not the same number of rounds: ")
    same = notes(Table.of_runs({first: runs[first], second: runs[second]}))
    assert not any("not the same number of rounds" in note for note in same)


def test_the_privacy_of_all_runs_is_added_up(tmp_path: Path) -> None:
    """Runs of tuning count, too."""
    made = rows(tmp_path, CLOSE)
    assert not any("privacy" in note for note in notes(made))
    for name, epsilon in (("private-0", 1.5), ("private-1", 2.25), ("tuning/private-lr", 0.5)):
        run = tmp_path / name
        run.mkdir(parents=True)
        options = {"kind": "examples", "delta": 1e-5}
        write_config(run, {"method": "private", "peers": 3, "seed": 0, "privacy": options})
        lines = [{"round": 1, "peer": p, "test_loss": 1.0, "epsilon": epsilon} for p in range(3)]
        write_metrics(run, lines)
    private = Table.of_runs({"local": [Run.read(tmp_path / "private-0")]})
    (note,) = (note for note in notes(private) if "privacy" in note)
    assert "3 private runs" in note
    assert "ε ≤ 4.25 at δ = 3e-05 (sums)" in note
    assert "not in it: runs elsewhere on the same data" in note


def test_a_long_list_without_a_winner_is_shortened(tmp_path: Path) -> None:
    names = ("a", "b", "c", "d", "e", "f", "g")
    assert "among a, b, c, d and 3 others: not significant with 3 seeds." in read(
        rows(tmp_path, {name: (0.9 - k / 1e4, 0.8, 0.85) for k, name in enumerate(names)})
    )


def test_the_oracle_is_never_the_winner(tmp_path: Path) -> None:
    made = rows(tmp_path, CLEAR | {"oracle": (0.99, 0.98, 0.99)})
    assert read(made).startswith("cobo is the best of 3 methods")
    assert read(made).endswith("oracle, which is given the true clusters, reaches 98.67 ± 0.58 %.")
    assert notes(made)[0] == "* not ranked: oracle is given the true clusters"
    (tmp_path / "b").mkdir()
    alone = read(rows(tmp_path / "b", {"oracle": (0.9, 0.9)}))
    assert alone == "oracle, which is given the true clusters, reaches 90.00 ± 0.00 %."


@pytest.mark.parametrize(
    ("at_home", "first"),
    [
        ((0.95, 0.96, 0.97), "The best method, cobo, is not significantly better than plain "
         "logistic regression by each peer alone: 91.33 ± 1.53 % against 96.00 ± 1.00 % with 3 "
         "seeds. cobo is the best of 3 methods"),
        ((0.91, 0.90, 0.92), "The best method, cobo, is not significantly better than plain "
         "logistic regression by each peer alone: 91.33 ± 1.53 % against 91.00 ± 1.00 % with 3 "
         "seeds. cobo is"),
        ((0.70, 0.71, 0.73), "cobo is the best of 3 methods"),
    ],
)  # fmt: skip
def test_plain_logistic_regression_comes_first_if_no_method_beats_it(
    tmp_path: Path, at_home: tuple[float, ...], first: str
) -> None:
    made = rows(tmp_path, CLEAR | {"logistic": at_home, "forest": (0.99, 0.99, 0.99)})
    assert read(made).startswith(first)
    assert notes(made)[0] == "* not ranked: logistic and forest are scikit-learn's"


def test_diverged_methods_are_listed_and_not_ranked(tmp_path: Path) -> None:
    losses = {"local": (3.0, 3.1, 3.2), "cobo": (None, 0.1, 0.2), "wga": (2.0, 2.1, 2.2)}
    made = rows(tmp_path, losses, loss=None)
    assert read(made) == (
        "wga is the best of 2 methods (paired test over 3 seeds and their peers): mean test loss "
        "2.1 ± 0.1. Diverged: cobo (3 of 9 peers)."
    )
    (tmp_path / "b").mkdir()
    all_diverged = rows(tmp_path / "b", {"cobo": (None,), "wga": (None,)}, loss=None)
    assert read(all_diverged) == "Diverged: cobo (3 of 3 peers), wga (3 of 3 peers)."


def test_accuracies_of_a_method_whose_every_peer_diverged_do_not_count(tmp_path: Path) -> None:
    means = {"local": (0.5, 0.6, 0.7), "cobo": (0.9, 0.9, 0.9)}
    made = rows(tmp_path, means)
    assert read(made).startswith("cobo is the best of 2 methods")
    for run in tmp_path.glob("cobo-*"):
        file = run / "metrics.jsonl"
        file.write_text(file.read_text().replace('"test_loss": 1.0', '"test_loss": Infinity'))
    lost = Table.of_runs(
        {name: [Run.read(tmp_path / f"{name}-{k}") for k in range(3)] for name in means}
    )
    assert read(lost) == (
        "local reaches a mean test accuracy of 60.00 ± 10.00 %. Diverged: cobo (9 of 9 peers)."
    )
    columns = {column.key: column for column in lost.shown()}
    texts = [lost.rows[1].text(columns[key]) for key in ("accuracy", "gain", "diverged")]
    assert texts == ["diverged", "diverged", "3"]


@pytest.mark.parametrize(
    ("topology", "whom"), [("full", "every other peer"), ("ring", "all its neighbours")]
)
def test_bytes_of_all_to_all_are_explained(tmp_path: Path, topology: str, whom: str) -> None:
    made = rows(tmp_path, CLEAR | {"ditto": (0.5, 0.5)}, topology=topology)
    first, *_ = cost_notes(made)
    assert first == f"fedavg, ditto: every peer sends its model to {whom} in every round"


def test_sampled_peers_alone_send(tmp_path: Path) -> None:
    made = rows(tmp_path, CLEAR, schedule={"kind": "sample"})
    first, *_ = cost_notes(made)
    assert first.startswith("fedavg: every participating peer sends its model to every other peer")
