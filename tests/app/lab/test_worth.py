"""Worth of letters: laws of the values, from the definition, and what is refused."""

from __future__ import annotations

import json
import math
import re
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import coterie
from coterie.app.config.config import Config, ConfigError
from coterie.app.experiments.grid import with_run_dir
from coterie.app.lab.worth import FOLDER, worth
from coterie.app.report.worth import FILE, Worth, frame, read
from coterie.app.runners import sweep
from coterie.app.runs.files import ResultsError
from coterie.app.runs.rundir import Floats, Run
from coterie.errors import SweepError
from tests.kit import digits
from tests.output import Terminal
from tests.problems import write_quadratic

RATE = 0.3


def quadratics(directory: Path, peers: int, **more: Any) -> dict[str, Any]:
    """Noise-free quadratics of different peers; one round of one step."""
    g = np.random.default_rng(1)
    table: dict[str, Any] = {
        "curvature": g.uniform(0.2, 1.5, (peers, 3)),
        "centre": g.normal(size=(peers, 3)),
        "start": np.ones(3),
        "samples": [1, 2, 4, 3, 1, 2][:peers],
    }
    keys = {"method": "fedavg", "num-server-rounds": 1, "learning-rate": RATE}
    table |= {key: more.pop(key) for key in table.keys() & more.keys()}
    return {**write_quadratic(directory / "problem.json", **table), **keys, **more}


def executed(directory: Path, flat: dict[str, Any]) -> Path:
    """Execute a run and return its directory."""
    config = with_run_dir(Config.from_flat({"device": "cpu", **flat}), directory / "runs")
    assert sweep.run_one(config) is None
    return Path(config.run_dir)


def computed(run_dir: Path, orders: int = 100, **more: Any) -> Worth:
    """Return the worth of letters; few enough peers have exact values."""
    return worth(run_dir, Terminal(300), orders=orders, workers=1, **more)


def closed_form(flat: dict[str, Any]) -> tuple[Floats, Floats, Floats]:
    """Return Shapley values and the losses without and with all letters of `quadratics`.

    Peer k steps to y_k = x - eta a_k (x - c_k); with the letters of S, peer i ends at the mean of
    y_k over S and i, weighted by samples. The Shapley values are averaged over all n! orders.
    """
    table = json.loads(Path(flat["quadratic.file"]).read_text())
    a, c, p = (np.array(table[key], float) for key in ("curvature", "centre", "samples"))
    x, n = np.array(table["start"]), len(a)
    y = x - RATE * a * (x - c)

    def loss(i: int, senders: set[int]) -> float:
        heard = sorted(senders | {i})
        mean = p[heard] @ y[heard] / p[heard].sum() if p[heard].sum() else y[i]
        return float((a[i] * (mean - c[i]) ** 2).sum() / 2)

    values, every = np.zeros((n, n)), list(permutations(range(n)))
    for order in every:
        for k, j in enumerate(order):
            for i in range(n):
                before, after = (loss(i, set(order[:size])) for size in (k, k + 1))
                values[i, j] += (before - after) / len(every)
    ends = [np.array([loss(i, who) for i in range(n)]) for who in (set(), set(range(n)))]
    return values, ends[0], ends[1]


@pytest.mark.slow
def test_a_round_of_fedavg_has_the_values_of_the_closed_form(tmp_path: Path) -> None:
    flat = quadratics(tmp_path, 4)
    result = computed(executed(tmp_path, flat))
    values, alone, together = closed_form(flat)
    assert result.shapley is not None
    assert (result.measure, result.orders) == ("validation_loss", 0)
    assert np.allclose(result.alone, alone, rtol=1e-10)
    assert np.allclose(result.together, together, rtol=1e-10)
    assert np.allclose(result.shapley, values, rtol=1e-10, atol=1e-14)
    assert np.abs(values).max() > 0.01
    assert (result.errors == 0).all()
    assert np.allclose(result.shapley.diagonal(), 0), "in one round nothing comes back"


def test_two_senders_by_hand(tmp_path: Path) -> None:
    """A step of 1 on (x - c)^2 / 2 ends at c: 0 and 4; their mean, 2, has a loss of 2 for both."""
    flat = quadratics(
        tmp_path, 2, curvature=[[1.0], [1.0]], centre=[[0.0], [4.0]], start=[1.0], samples=[1, 1]
    ) | {"learning-rate": 1.0}
    result = computed(executed(tmp_path, flat), 0)
    assert result.alone.tolist() == [0, 0]
    assert result.together.tolist() == [2, 2]
    assert result.leave_one_out.tolist() == [[0, -2], [-2, 0]]
    assert result.shapley is None


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "cobo", "wga", "dpfl"])
def test_values_are_efficient_over_several_rounds(method: str, tmp_path: Path) -> None:
    more = {"num-server-rounds": 4, "cobo.gamma": 1.0, "cobo.rho": 0.5, "dpfl.init-epochs": 1}
    more["wga.alpha"] = 0.5
    run_dir = executed(tmp_path, quadratics(tmp_path, 3, method=method, **more))
    result = computed(run_dir)
    assert result.shapley is not None
    assert np.allclose(result.shapley.sum(axis=1), result.alone - result.together, atol=1e-14)
    assert (result.alone != result.together).any()
    run = Run.read(run_dir)
    recorded = run.at("validation_loss", run.last_row())
    assert np.allclose(result.together, recorded, rtol=1e-12)


@pytest.mark.slow
def test_a_sender_without_weight_is_worth_exactly_nothing(tmp_path: Path) -> None:
    """Peer 2 has no neighbour in the topology, so nobody gives it any weight."""
    (tmp_path / "edges.json").write_text("[[0, 1], [1, 3], [3, 0]]")
    flat = quadratics(tmp_path, 4) | {
        "num-server-rounds": 3, "topology": "file", "topology-file": str(tmp_path / "edges.json"),
    }  # fmt: skip
    result = computed(executed(tmp_path, flat))
    assert result.shapley is not None
    for values in (result.shapley, result.leave_one_out):
        assert (values[:, 2] == 0).all()
        assert (values[:2, 3] != 0).all()


@pytest.mark.slow
def test_peers_with_equal_data_are_worth_the_same(tmp_path: Path) -> None:
    centre = np.array([[1.0, 0, 2], [0.5, 1, 0], [-1, 2, 1], [0.5, 1, 0]])
    curvature = np.array([[1.0, 0.5, 1], [1, 1, 0.2], [0.3, 1, 1], [1, 1, 0.2]])
    flat = quadratics(tmp_path, 4, centre=centre, curvature=curvature, samples=[1, 2, 3, 2])
    result = computed(executed(tmp_path, flat | {"num-server-rounds": 3}))
    assert result.shapley is not None
    for values in (result.shapley, result.leave_one_out):
        assert np.allclose(values[[0, 2], 1], values[[0, 2], 3], rtol=1e-10)
        assert np.isclose(values[1, 3], values[3, 1], rtol=1e-10)
        assert not np.allclose(values[:, 0], values[:, 1], rtol=0.1)


@pytest.mark.slow
def test_sampled_values_are_efficient_and_near_the_exact_ones(tmp_path: Path) -> None:
    flat = quadratics(tmp_path, 6)
    run_dir = executed(tmp_path, flat)
    result = computed(run_dir, 6)
    assert result.orders == 6
    assert result.shapley is not None
    values, alone, together = closed_form(flat)
    assert np.allclose(result.shapley.sum(axis=1), alone - together, atol=1e-14)
    rms = np.sqrt(((result.shapley - values) ** 2).mean()), np.sqrt((result.errors**2).mean())
    assert rms[1] / 3 < rms[0] < 3 * rms[1] < np.abs(values).max()
    assert np.isnan(computed(run_dir, 2).errors).all(), "a pair of orders has no deviation"


@pytest.mark.slow
def test_an_attackers_letters_harm_and_its_own_result_does_not_count(tmp_path: Path) -> None:
    flat = quadratics(tmp_path, 4, samples=[1, 1, 1, 1]) | {
        "attack.kind": "gaussian", "attack.peers": "2", "attack.strength": 9.0,
    }  # fmt: skip
    result = computed(executed(tmp_path, flat))
    assert result.shapley is not None
    assert (result.shapley[[0, 1, 3], 2] < 0).all()
    assert np.isnan(result.shapley[2]).all()


@pytest.mark.slow
def test_accuracy_is_the_measure_where_there_is_one(tmp_path: Path) -> None:
    run_dir = executed(tmp_path, digits("fedavg"))
    assert computed(run_dir, 0).measure == "validation_accuracy"
    more = {"partition.validation": 0.0}
    run_dir = executed(tmp_path, digits("fedavg", **more))
    assert computed(run_dir, 0).measure == "test_accuracy"


@pytest.mark.slow
def test_the_kept_models_count(tmp_path: Path) -> None:
    """With keep-models = "best", the value is that of the round with the best validation loss."""
    more = {"num-server-rounds": 6, "evaluate-every": 1, "keep-models": "best"}
    flat = quadratics(tmp_path, 3, **more)
    problem = json.loads(Path(flat["quadratic.file"]).read_text())
    problem["validation_centre"] = np.full((3, 3), 0.8).tolist()  # passed on the way
    Path(flat["quadratic.file"]).write_text(json.dumps(problem))
    run_dir = executed(tmp_path, flat)
    lowest = Run.read(run_dir).metric("validation_loss").min(axis=0)
    result = computed(run_dir)
    assert np.allclose(result.together, lowest, rtol=1e-12)
    last = Run.read(run_dir).metric("validation_loss")[-1]
    assert (result.together < last).any()


def test_finished_runs_are_used_again_and_leave_only_metrics(tmp_path: Path) -> None:
    run_dir = executed(tmp_path, quadratics(tmp_path, 3))
    console = Terminal(300)
    first = worth(run_dir, console, orders=0, workers=1)
    text = console.text
    assert "leave-one-out, 3 senders: 5 runs" in text
    assert "without the letters of peer 1" in text
    assert [*(run_dir / FOLDER).rglob("metrics.jsonl")]
    assert not [*(run_dir / FOLDER).rglob("*.safetensors")]
    assert not [*(run_dir / FOLDER).rglob("*.state")]
    console = Terminal(300)
    second = worth(run_dir, console, orders=100, workers=1)
    text = console.text
    assert "exact Shapley values and leave-one-out, 3 senders: 8 runs, 5 of them finished" in text
    assert "3 runs to do" in text
    assert np.array_equal(first.leave_one_out, second.leave_one_out)


def test_a_run_that_comes_out_differently_is_said(tmp_path: Path) -> None:
    flat = quadratics(tmp_path, 3)
    run_dir = executed(tmp_path, flat)
    console = Terminal(300)
    worth(run_dir, console, orders=0, workers=1)
    assert "changed" not in console.text
    metrics = run_dir / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    lines[-1]["validation_loss"] += 0.1
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    worth(run_dir, (console := Terminal(300)), orders=0, workers=1)
    text = console.text
    assert "repeating the run changed the validation loss of 1 peer" in text


def test_files_hold_the_result(tmp_path: Path) -> None:
    run_dir = executed(tmp_path, quadratics(tmp_path, 3))
    result = computed(run_dir)
    again = read(run_dir, 3)
    assert again is not None
    assert again.shapley is not None
    assert result.shapley is not None
    assert (again.measure, again.orders) == (result.measure, 0)
    for name in ("alone", "together", "leave_one_out", "shapley", "errors"):
        assert np.array_equal(getattr(again, name), getattr(result, name)), name
    table = pd.read_csv(run_dir / FILE)
    pivot = table.pivot_table(index="recipient", columns="sender", values="shapley")
    assert np.allclose(pivot, result.shapley, rtol=1e-15)
    assert table.alone.to_numpy()[::3].tolist() == result.alone.tolist()


@pytest.mark.slow
def test_python(tmp_path: Path) -> None:
    run = coterie.load(executed(tmp_path, quadratics(tmp_path, 3)))
    table = coterie.contribution(run, orders=4)
    assert table.equals(coterie.contribution(run.directory, orders=4))
    assert len(table) == 9
    assert set(table.sender_name) == {"peer 0", "peer 1", "peer 2"}
    left_out = coterie.contribution(run, orders=0)
    assert left_out.shapley.isna().all()
    assert left_out.leave_one_out.equals(table.leave_one_out)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing is sent": ({"method": "local"}, "no letters, because the peers of local train alone"),
    "letters are withheld already": ({"withhold": "1"}, "this run withholds letters"),
}


@pytest.mark.parametrize(("keys", "why"), REFUSED.values(), ids=REFUSED)
def test_runs_without_an_answer_are_refused(keys: dict[str, Any], why: str, tmp_path: Path) -> None:
    run_dir = executed(tmp_path, quadratics(tmp_path, 3) | keys)
    with pytest.raises(ConfigError, match=why):
        computed(run_dir)
    assert not (run_dir / FOLDER).exists()


def test_a_deployment_is_refused(tmp_path: Path) -> None:
    run_dir = executed(tmp_path, quadratics(tmp_path, 3))
    (run_dir / "split.json").unlink()  # a relay has none
    with pytest.raises(ConfigError, match=r"a deployment's run cannot be repeated.* not on this"):
        computed(run_dir)
    assert not (run_dir / FOLDER).exists()


def test_an_unfinished_run_and_odd_numbers_are_refused(tmp_path: Path) -> None:
    run_dir = executed(tmp_path, quadratics(tmp_path, 3))
    for orders in (-2, 3):
        with pytest.raises(ConfigError, match="must be even"):
            computed(run_dir, orders)
    with pytest.raises(ConfigError, match="workers = 0"):
        worth(run_dir, Terminal(300), workers=0)
    (run_dir / "progress.json").write_text('{"status": "stopped", "round": 0, "rounds": 1}')
    with pytest.raises(ConfigError, match=f"coterie resume {re.escape(str(run_dir))}"):
        computed(run_dir)
    with pytest.raises(ConfigError, match="not a run directory"):
        computed(tmp_path)


def test_a_failed_run_is_named_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = executed(tmp_path, quadratics(tmp_path, 3))
    execute = sweep.run_one

    def fails(config: Config, watch: Any = None) -> Exception | None:
        return OSError("disk full") if config.withhold == "1" else execute(config, watch)

    monkeypatch.setattr(sweep, "run_one", fails)
    console = Terminal(300)
    with pytest.raises(SweepError, match="1 run failed"):
        worth(run_dir, console, orders=0, workers=1)
    assert "disk full" in console.text
    assert not (run_dir / FILE).exists()
    monkeypatch.undo()
    worth(run_dir, (console := Terminal(300)), orders=0, workers=1)
    assert "1 run to do" in console.text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("measure", "cost"),
        ("orders", -1),
        ("orders", "many"),
        ("alone", "=1"),
        ("shapley", "1" + 400 * "0"),
        ("leave_one_out", math.inf),
        ("together", None),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, key: str, value: object) -> None:
    zeros = np.zeros((3, 3))
    worth = Worth("test_loss", 0, np.zeros(3), np.full(3, np.nan), zeros, zeros, zeros)
    table = frame(worth, ("a", "b", "c"))
    table.to_csv(tmp_path / FILE, index=False)
    assert read(tmp_path, 3) is not None
    damaged = table.assign(**{key: value}) if value is not None else table.drop(columns=key)
    damaged.to_csv(tmp_path / FILE, index=False)
    with pytest.raises(ResultsError, match=FILE):
        read(tmp_path, 3)
    table[:-1].to_csv(tmp_path / FILE, index=False)
    with pytest.raises(ResultsError, match=FILE):
        read(tmp_path, 3)
