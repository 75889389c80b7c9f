"""Test late peers, with the method and with fine-tuning as the control."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.preflight import check
from coterie.app.experiments.measures import COLUMNS, SameTrial
from coterie.app.runners import inline, local
from coterie.app.runners.local import config_of
from coterie.app.runs.rundir import Run, create
from tests.problems import write_quadratic

MEASURES = {column.key: column.of for column in COLUMNS}


def held_out(directory: Path, **keys: bool | int | float | str) -> Run:
    options = {name.replace("__", ".").replace("_", "-"): value for name, value in keys.items()}
    flat = options | {
        "peers": 5, "num-server-rounds": 10, "evaluate-every": 10, "late-peers": 0.4,
        "device": "cpu", "out": str(directory), "name": "run",
    }  # fmt: skip
    config = Config.from_flat(flat).located("")
    create(config, check(config))
    inline.run(config)
    return Run.read(config.run_dir)


def quadratic(path: Path) -> dict[str, str | int]:
    """Every peer has the same optimum, 1, and starts at 0."""
    ones = np.ones((5, 2))
    return write_quadratic(path / "problem.json", ones, ones, 0 * ones)


@pytest.mark.parametrize("method", ["fedavg", "all-for-one", "local"])
def test_newcomers_come_for_the_last_fifth(tmp_path: Path, method: str) -> None:
    """By hand: a peer that trains for 8 or 10 rounds of one step of size 0.5 on its own.

    FedAvg's newcomer has trained once when it hears the three others, and then has their model but
    for its share; with the same optimum for all, what is left of the way is 2^-t for the others.
    """
    run = held_out(tmp_path, method=method, learning_rate=0.5, local_steps=1, **quadratic(tmp_path))
    config = Config.from_flat({"peers": 5, "num-server-rounds": 10, "late-peers": 0.4})
    late = np.isin(np.arange(5), config.newcomers)
    assert (late.sum(), config.join_round) == (2, 8)
    loss_n = run.at("test_loss", run.last_row())
    assert run.rounds.tolist() == [0, 8, 10]
    assert np.array_equal(run.reported[0], ~late)
    assert np.array_equal(run.reported[1], late)
    if method != "fedavg":  # the others' gradients are one's own
        assert loss_n[late] == pytest.approx(2.0**-4)  # two steps: f = x^2 at x = 1/4
        assert loss_n[~late] == pytest.approx(2.0**-20)
    else:
        first = 3 / 5 * 2.0**-9 + 2 / 5 * 2.0**-1  # round 9: everybody averages
        assert loss_n == pytest.approx(np.full(5, (first / 2) ** 2))
    control = json.loads((run.directory / "newcomers.json").read_text())
    at = np.sqrt(loss_n[~late][0])  # where the others end
    assert control["fine_tuned_test_loss"] == pytest.approx([(at / 4) ** 2] * 2)


def test_they_are_columns_of_a_comparison(tmp_path: Path) -> None:
    run = held_out(
        tmp_path, method="fedavg", dataset="digits", partition__kind="iid",
        partition__samples_per_peer=40,
    )  # fmt: skip
    late = json.loads((run.directory / "newcomers.json").read_text())["peers"]
    value = MEASURES["newcomers"](run, SameTrial())
    assert value == pytest.approx(run.at("test_accuracy", run.last_row())[late].mean())
    tuned = MEASURES["fine_tuned"](run, SameTrial())
    assert tuned is not None
    assert 0.3 < tuned <= 1


def test_without_flower_only(tmp_path: Path) -> None:
    config = Config.from_flat({"late-peers": 0.2, "out": str(tmp_path)}).located("x")
    with pytest.raises(ConfigError, match="leave --nodes out"):
        local.run(config, 2, Console(file=io.StringIO()))


@pytest.mark.parametrize("method", ["local", "fedavg"])
def test_the_control_is_as_private_as_the_run(tmp_path: Path, method: str) -> None:
    """A budget below the cost of one gradient: nobody trains, so the control keeps the start."""
    run = held_out(
        tmp_path, method=method, dataset="digits", partition__kind="iid", learning_rate=0.5,
        partition__samples_per_peer=40, privacy__kind="examples", privacy__budget=1e-6,
    )  # fmt: skip
    control = json.loads((run.directory / "newcomers.json").read_text())
    loss_n = run.at("test_loss", run.last_row())
    assert control["fine_tuned_test_loss"] == pytest.approx(loss_n[control["peers"]], abs=1e-12)


def test_a_run_of_the_former_key_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("hold-out = 0.4\n")
    (tmp_path / "split.json").write_text("[]")
    assert config_of(tmp_path).late_peers == 0.4
