"""Measures of figures, on runs and graphs with known values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from coterie.app.config.config import Config
from coterie.app.config.schema import Scalar
from coterie.app.experiments.measures import SameTrial
from coterie.app.experiments.table import Cell, Table, Trial
from coterie.app.lab.reproduction import claims, formulas, page, results
from coterie.app.lab.reproduction.figures import Claim, Figure, Panel, Row
from coterie.app.lab.reproduction.measures import MEASURES
from coterie.app.lab.reproduction.results import Numbers
from coterie.app.runs.rundir import PartSplit, PeerSplit, Run
from studies.papers import ours
from tests.output import csv_rows


def made_run(directory: Path, accuracy_rn: list[list[float]], **more: object) -> Run:
    """Make a run of n peers with test and validation accuracies at rounds 0, 10, 20, ..."""
    accuracy = np.array(accuracy_rn)
    rounds, n = accuracy.shape
    run = Run(
        directory=directory,
        config={"method": "dpfl", "peers": n},
        rounds=10 * np.arange(rounds),
        metrics={"test_accuracy": accuracy, "validation_accuracy": accuracy},
        names=tuple(f"peer {i}" for i in range(n)),
        reported=np.ones_like(accuracy, dtype=np.bool_),
        weight_rounds=np.zeros(0, dtype=np.int64),
        weights=np.zeros((0, n, n)),
        split=None,
        classes=(),
        progress={},
    )
    return replace(run, **more)  # type: ignore[arg-type]


def number(key: str, run: Run) -> float | None:
    """Return a measure of a run that stands alone."""
    return MEASURES[key].of(run, SameTrial())


def test_sparsity_and_symmetry_of_the_first_and_the_last_graph(tmp_path: Path) -> None:
    """Three peers: after round 0 four of six links, of which two are mutual; then one."""
    first = np.array([[1, 1, 1], [1, 1, 0], [0, 1, 1]]) / 3
    last = np.array([[0.5, 0.5, 0], [0, 1, 0], [0, 0, 1]])
    run = made_run(
        tmp_path, [[0.1] * 3], weight_rounds=np.array([0, 1, 30]),
        weights=np.stack([np.eye(3), first, last]),
    )  # fmt: skip
    assert number("first_sparsity", run) == pytest.approx(1 / 3)
    assert number("last_sparsity", run) == pytest.approx(5 / 6)
    assert number("sparsity_rise", run) == pytest.approx(1 / 2)
    assert number("first_symmetry", run) == pytest.approx(1 / 2)
    assert number("last_symmetry", run) == 0
    assert number("first_one_way", run) == pytest.approx(2 / 3)
    assert number("one_way_rise", run) == pytest.approx(-1 / 3)
    rounds, asymmetry = results.course(run, "asymmetry")
    assert rounds.tolist() == [0, 1, 30]
    np.testing.assert_allclose(asymmetry, [np.nan, 0.5, 1.0])
    assert number("components", run) == 2


def test_rounds_until_a_run_is_near_the_best_of_its_panel(tmp_path: Path) -> None:
    """90 % of the best mean, 0.8, are 0.72: reached at round 10, at round 20, and never."""
    fast, slow, never = (
        made_run(tmp_path, [[0.1], [x], [y]]) for x, y in ((0.8, 0.7), (0.6, 0.75), (0.2, 0.3))
    )
    runs = {
        Cell(name): {Trial(0, 0): run} for name, run in zip("abc", (fast, slow, never), strict=True)
    }
    rows = tuple(Row(name) for name in "abc")
    numbers = Numbers.of(Figure("f", "", "", columns=("rounds_to_best",), rows=rows), Table(runs))
    of = {name: numbers.at("", name, "rounds_to_best").mean for name in "abc"}
    assert of == {"a": 10, "b": 20, "c": np.inf}


def test_the_variance_is_of_the_best_rounds(tmp_path: Path) -> None:
    """Best accuracies 0.5 and 0.7: a variance of 100 squared points."""
    run = made_run(tmp_path, [[0.5, 0.2], [0.1, 0.7]])
    assert number("variance", run) == pytest.approx(100)


def test_models_before_averaging_are_those_of_the_lowest_validation_loss(tmp_path: Path) -> None:
    """Rounds 1 and 0: (0.2 + 0.9) / 2; DPFL's own records of such models: (0.4 + 0.6) / 2."""
    run = made_run(tmp_path, [[0.5, 0.9], [0.2, 0.7]])
    losses = {"validation_loss": np.array([[2.0, 1.0], [1.0, np.nan]])}
    run = replace(run, metrics={**run.metrics, **losses})
    assert number("before_averaging", run) == pytest.approx(0.55)
    own = {"best_before_averaging_test_accuracy": np.array([[0.1, 0.1], [0.4, 0.6]])}
    run = replace(run, metrics={**run.metrics, **own})
    assert number("before_averaging", run) == pytest.approx(0.5)


def test_the_distance_in_clusters_is_that_of_the_saved_models(tmp_path: Path) -> None:
    """Clusters {0, 1} at distance (3, 4) and {2}: |.|^2 / d = 12.5 in two of five ordered pairs."""
    (tmp_path / "models").mkdir()
    for i, x in enumerate(([0.0, 0.0], [3.0, 4.0], [9.0, 9.0])):
        save_file({"x": np.array(x)}, tmp_path / "models" / f"peer-{i:04d}.safetensors")
    run = made_run(tmp_path, [[0.1] * 3], split=tuple(PeerSplit(cluster=c) for c in (0, 0, 1)))
    assert number("consensus", run) == pytest.approx(2 * 12.5 / 5)


def test_the_bounds_of_theorem_1() -> None:
    """Clusters of two with curvatures 1 and 3, centres -2 and 2, noise 2, T = 1200.

    M = 1/2. F is the mean of (2/4)(4 + 1), twice (4/4)(4 + 1/2), and (6/4)(4 + 1):
    (2.5 + 9 + 7.5) / 4 = 4.75, so that L sigma^2 F / T = 3 * 4 * 4.75 / 1200 = 0.0475.
    """
    flat: dict[str, Scalar] = {
        "method": "cobo", "peers": 4, "num-server-rounds": 1200, "dataset": "noisy-quadratic",
        "noisy-quadratic.helpers": "1,1", "noisy-quadratic.user-curvature": 1.0,
        "noisy-quadratic.helper-curvature": 3.0, "noisy-quadratic.user-centre": "-2,2",
        "noisy-quadratic.helper-centre": "-2,2", "noisy-quadratic.noise": 2.0, "cobo.rho": 1.5,
    }  # fmt: skip
    config = Config.from_flat(flat).flat()
    nested: dict[str, Any] = {"num-server-rounds": config["num-server-rounds"]}
    for table in ("noisy-quadratic", "cobo"):
        nested[table] = {
            key.removeprefix(f"{table}."): value
            for key, value in config.items()
            if key.startswith(f"{table}.")
        }
    root = 0.0475**0.5
    bound = formulas.PREDICTIONS["cobo-consensus-bound"](nested)
    assert bound == pytest.approx(6 / 4 / (1.5 * 2) ** 2 * root, rel=1e-12)
    assert formulas.PREDICTIONS["cobo-gradient-bound"](nested) == pytest.approx(4 * root, rel=1e-12)


def test_a_claim_on_divisions_of_the_same_rows_needs_more(tmp_path: Path) -> None:
    """Differences 0.02, 0.025, 0.015: t = 6.9 (p = 0.02); with a test row per training row 0.07."""
    split = [PeerSplit(train=PartSplit(size=10), test=PartSplit(size=10))] * 2
    keys = {"method": "dpfl", "peers": 2, "dataset": "table", "table": {"test": 0.5}}
    claim = Claim("a is better", "beats", rows=("a", "b"))
    figure = Figure("f", "", "", rows=(Row("a"), Row("b")), panels=(Panel(small="default"),))
    for more, holds in (({}, True), ({"config": keys, "split": tuple(split)}, None)):
        cells: dict[Cell, dict[Trial, Run]] = {Cell("a"): {}, Cell("b"): {}}
        for seed, (a, b) in enumerate(((0.9, 0.88), (0.9, 0.875), (0.9, 0.885))):
            for name, end in (("a", a), ("b", b)):
                cells[Cell(name)][Trial(seed, seed)] = made_run(tmp_path, [[end, end]], **more)
        of = replace(figure, claims=(claim,))
        (verdict,) = claims.judge(of, "small", Numbers.of(of, Table(cells)))
        assert verdict.holds is holds, verdict.evidence


def test_a_seed_that_never_reaches_its_target_counts(tmp_path: Path) -> None:
    """Row "b" reaches 0.9 * 0.8 in one seed of four; the mean of that one would not be its mean."""
    runs: dict[Cell, dict[Trial, Run]] = {Cell("a"): {}, Cell("b"): {}, Cell("c"): {}}
    for seed in range(4):
        ends = {"a": 0.8, "b": 0.75 if seed == 0 else 0.5, "c": 0.2}
        for name, end in ends.items():
            runs[Cell(name)][Trial(seed, seed)] = made_run(tmp_path, [[0.1], [end]])
    rows = tuple(Row(name) for name in "abc")
    figure = Figure(
        "f", "", "", columns=("rounds_to_best",), rows=rows, panels=(Panel(small="default"),)
    )
    numbers = Numbers.of(figure, Table(runs))
    made = page.table(figure, "small", numbers)
    assert [made[name][0].reached for name in "abc"] == ["", "1 of 4 seeds", "never"]
    lines = csv_rows(page.as_csv(figure, numbers))
    assert [(line["mean"], line["seeds"], line["never"]) for line in lines] == [
        ("10.0", "4", "0"), ("inf", "4", "3"), ("inf", "4", "4"),
    ]  # fmt: skip
    assert [ours(line, "rounds_to_best") for line in lines] == [
        "10 ± 0", "1 of 4 seeds", "never",
    ]  # fmt: skip
