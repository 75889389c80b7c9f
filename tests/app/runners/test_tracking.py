"""Test callbacks and trackers: each round is reported once."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from coterie.app.cli.main import main
from coterie.app.config.config import Config, ConfigError
from coterie.app.experiments.grid import with_run_dir
from coterie.app.runners import sweep
from coterie.app.runners.tracking import Observers, scalars

ROWS = [
    {"round": t, "peer": p, "peer_name": name, "test_loss": 1.0 / (t + p + 1), "epsilon": None}
    for t in (0, 5)
    for p, name in enumerate(("north", "south"))
]


def config(tmp_path: Path, **keys: Any) -> Config:
    (tmp_path / "run").mkdir(exist_ok=True)
    return Config.from_flat({"out": str(tmp_path), "name": "run", **keys}).located("")


def write(tmp_path: Path, rows: list[dict[str, Any]], end: str = "") -> None:
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows) + end)


def test_every_round_is_told_once(tmp_path: Path) -> None:
    received: list[tuple[int, list[str]]] = []
    calls = [lambda t, metrics: received.append((t, metrics["peer_name"].tolist()))]
    with Observers(config(tmp_path), calls) as observers:
        observers.show({"round": 0})
        write(tmp_path, ROWS[:2], end='{"round": 5, ')  # a line that is being written
        observers.show({"round": 1})
        observers.show({"round": 2})
    assert received == [(0, ["north", "south"])]


def test_a_resumed_run_tells_what_is_new(tmp_path: Path) -> None:
    resumed = config(tmp_path, resume=True)
    write(tmp_path, ROWS[:2])
    rounds: list[int] = []
    calls = [lambda t, _: rounds.append(t)]
    with Observers(resumed, calls) as observers:
        write(tmp_path, ROWS[2:])
        observers.show({"round": 5})
    assert rounds == [5]


def test_scalars_are_means_and_each_peer_s() -> None:
    assert scalars(pd.DataFrame(ROWS[:2])) == {
        "test_loss/mean": 0.75, "test_loss/north": 1.0, "test_loss/south": 0.5,
    }  # fmt: skip


def tracked(tmp_path: Path, track: str) -> None:
    with Observers(config(tmp_path, track=track)) as observers:
        write(tmp_path, ROWS)
        observers.show({"round": 5})


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    tracked(tmp_path, "tensorboard")
    (file,) = (tmp_path / "run").glob("events.out.tfevents.*")
    assert b"test_loss/south" in file.read_bytes()


def test_runs_of_a_comparison_are_tracked(tmp_path: Path) -> None:
    """Each into its own directory, to the last round."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing import event_accumulator  # type: ignore[import-untyped]

    flat: dict[str, Any] = {
        "method": "local", "peers": 2, "num-server-rounds": 4, "evaluate-every": 2,
        "dataset": "least-squares", "track": "tensorboard",
    }  # fmt: skip
    config = with_run_dir(Config.from_flat(flat), tmp_path)
    assert sweep.run_one(config) is None
    written = event_accumulator.EventAccumulator(config.run_dir).Reload()
    assert [event.step for event in written.Scalars("test_loss/mean")] == [0, 2, 4]


def test_a_run_without_numbers_leaves_no_events(tmp_path: Path) -> None:
    with Observers(config(tmp_path, track="tensorboard")) as observers:
        observers.show({"round": 0})
    assert not list((tmp_path / "run").iterdir())


def test_mlflow_and_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins that note how these libraries are called; their runs are context managers."""
    calls: list[tuple[str, Any]] = []
    mlflow, wandb = ModuleType("mlflow"), ModuleType("wandb")

    @contextmanager
    def started(kind: str, **keys: Any) -> Iterator[SimpleNamespace]:
        calls.append((kind, keys))
        yield SimpleNamespace(log=lambda m, step: calls.append(("wandb", step)))
        calls.append((kind, "ended"))

    monkeypatch.setattr(mlflow, "start_run", partial(started, "start_run"), raising=False)
    monkeypatch.setattr(mlflow, "log_params", lambda _: None, raising=False)
    monkeypatch.setattr(
        mlflow, "log_metrics", lambda m, step: calls.append(("mlflow", step)), raising=False
    )
    monkeypatch.setattr(wandb, "init", partial(started, "init"), raising=False)
    for module in (mlflow, wandb):
        module.__spec__ = SimpleNamespace()  # type: ignore[assignment]
        monkeypatch.setitem(sys.modules, module.__name__, module)
    tracked(tmp_path, "mlflow, wandb")
    assert ("start_run", {"run_name": "run"}) in calls
    assert [step for name, step in calls if name == "mlflow"] == [0, 5]
    assert [step for name, step in calls if name == "wandb"] == [0, 5]
    assert calls[-2:] == [("init", "ended"), ("start_run", "ended")]


def test_what_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match='unknown tracker "tensorbord", did you mean'):
        Observers(config(tmp_path, track="tensorbord"))
    monkeypatch.setattr("coterie.app.runners.tracking.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match='track = "wandb": pip install wandb'):
        Observers(config(tmp_path, track="wandb"))


def test_a_comparison_says_what_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "compared"
    command = ["compare", "track=mflow", "--methods", "local", "--out", str(out)]
    assert main(command) == 2
    assert 'unknown tracker "mflow", did you mean "mlflow"' in capsys.readouterr().err
    assert not out.exists()
