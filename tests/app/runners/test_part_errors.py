"""A user's part that raises: file, line, function, peers and round; the traceback; the cause."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from torch import Tensor, nn

import coterie
from coterie.app.cli import main

MINE = """
from dataclasses import replace

import torch
from torch import nn

import coterie
from coterie.clients.methods.fedamp import FedAMP
from coterie.clients.methods.fedavg import FedAvg
from coterie.strategies.plans import Everyone


class Mine(FedAvg, strategy=Everyone, summary="of a test"):
    # a method
    # with bugs

    bug: str = coterie.option("none", "Which.")

    def offer(self, s, t):
        if t == 3 and self.bug == "offer":
            return s, {"x": {}["weights"]}  # line 21
        if self.bug == "offered":
            return s, {"x": s.x[0]}
        return super().offer(s, t)

    def update(self, s, inbox):  # line 26
        s = super().update(s, inbox)
        if inbox.round == 2 and self.bug == "update":
            return replace(s, x=s.x.mean(dim=1))
        return s

    def weights(self, s):  # line 32
        weights = super().weights(s)
        return weights[:, :2] if self.bug == "weights" else weights


class Net(nn.Module):
    # a network
    # that fails

    steps = 0

    def __init__(self, shape, outputs):
        super().__init__()
        self.layer = nn.Linear(shape[0], outputs)

    def forward(self, x):
        Net.steps += 1
        if Net.steps > 40:
            raise ArithmeticError("of a network")  # line 50
        return self.layer(x)


def data(peers):
    return read(peers)


def read(peers):
    return [{"x": [[1.0]], "y": [1 // 0]}] * peers  # line 59


def divide(source, peers):
    raise LookupError(f"no share for {peers}")  # line 63


class Broken(FedAvg, strategy=Everyone, summary="divides by zero for one peer"):
    def update(self, s, inbox):
        s = super().update(s, inbox)
        ahead = torch.ones(len(s.x), 1)
        ahead[1] = 0  # of an average without letters, say
        mean = s.x / ahead  # line 71
        return replace(s, x=mean if inbox.round == 2 else s.x)


class Diverging(FedAvg, strategy=Everyone, summary="trains with steps that are too long"):
    def update(self, s, inbox):
        s = self.fit(s, inbox.round)
        return replace(s, x=s.x)


class Pulled(FedAMP, summary="divides the mean that training is pulled towards"):
    def update(self, s, inbox):
        s = super().update(s, inbox)
        total = torch.zeros(len(s.u), 1)
        return replace(s, u=s.u / total if inbox.round == 2 else s.u)  # line 85
"""
QUICK: dict[str, Any] = {
    "peers": 3, "num_server_rounds": 4, "evaluate_every": 2, "device": "cpu", "dataset": "digits",
    "partition__kind": "iid", "local_steps": 1,
}  # fmt: skip
IN_OFFER = [
    "method-options.bug=offer",
    "peers=3",
    "num-server-rounds=4",
    "partition.kind=iid",
    "--name=run",
]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working directory with a user's module, which each test imports again."""
    monkeypatch.chdir(tmp_path)
    module = f"mine_{tmp_path.name}"
    Path(f"{module}.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return Path(module)


@pytest.mark.parametrize(
    ("bug", "message"),
    [
        ("offer", ".py:21, in offer(), peers 0 to 2, round 3: KeyError: 'weights'"),
        (
            "offered",
            '.py:19, in offer(), peers 0 to 2, round 1: returned "x", a Tensor of shape (650,): '
            "expected (3, ...), a row per hosted peer",
        ),
        (
            "update",
            ".py:26, in update(), peers 0 to 2, round 2: returned x, a Tensor of shape (3,): "
            "expected (3, 650), a row of parameters per hosted peer",
        ),
        (
            "weights",
            ".py:32, in weights(), peers 0 to 2, round 0: returned a ndarray of shape (3, 2): "
            "expected numbers (3, 3), a row per hosted peer and a column per peer",
        ),
    ],
)
def test_a_method_s_bug_has_its_place_peers_and_round(
    elsewhere: Path, bug: str, message: str
) -> None:
    keys = {"method-options": {"bug": bug}, "model": "linear"}
    with pytest.raises(coterie.PartError) as failure:
        coterie.run(None, keys, method=f"{elsewhere}:Mine", name="run", **QUICK)
    error = failure.value
    assert str(error) == f"{elsewhere}{message}"
    round_ = re.search(r"round (\d)", message)
    assert round_ is not None
    assert (error.round, error.peers) == (int(round_[1]), (0, 1, 2))
    progress = json.loads(Path("runs/run/progress.json").read_text())
    assert (progress["status"], progress["error"]) == ("failed", str(error))
    if bug == "offer":
        assert isinstance(error.__cause__, KeyError)
        assert error.__cause__.__traceback__ is not None
        log = Path("runs/run/error.log").read_text()
        assert 'return s, {"x": {}["weights"]}  # line 21' in log
        assert "The above exception was the direct cause" in log


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("Broken", ".py:71, in update(), peer 1, round 2: x is not finite"),
        ("Pulled", ".py:85, in update(), peers 0 to 2, round 2: u is not finite"),
    ],
)
def test_a_state_that_a_method_makes_non_finite_is_told_at_once(
    elsewhere: Path, method: str, message: str
) -> None:
    with pytest.raises(coterie.PartError) as failure:
        coterie.run(None, method=f"{elsewhere}:{method}", name="run", model="linear", **QUICK)
    assert str(failure.value) == f"{elsewhere}{message}"


@pytest.mark.long
def test_training_that_diverges_is_no_fault_of_the_method(elsewhere: Path) -> None:
    keys = {**QUICK, "learning_rate": 1e38, "local_steps": 5}
    with pytest.raises(coterie.DivergedError):
        coterie.run(method=f"{elsewhere}:Diverging", model="linear", **keys)


def test_the_command_names_place_and_traceback(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["run", f"method={elsewhere}:Mine", *IN_OFFER]) == 1
    assert capsys.readouterr().err.endswith(
        f"the run failed: {elsewhere}.py:21, in offer(), peers 0 to 2, round 3: KeyError: "
        f"'weights' (traceback: {Path('runs/run/error.log').absolute()})\n"
    )


def test_a_network_s_error_while_it_trains(elsewhere: Path) -> None:
    keys = {**QUICK, "dataset": "breast-cancer", "model": f"{elsewhere}:Net", "method": "local"}
    with pytest.raises(coterie.PartError, match=r"\.py:50, in forward\(\), peers 0 to 2") as failed:
        coterie.run(**keys | {"num_server_rounds": 40})
    assert isinstance(failed.value.__cause__, ArithmeticError)
    assert failed.value.round is not None


class Breaking(nn.Module):
    """Breaks at one layer in the third round, in training or in evaluation."""

    round, training_breaks = 0, True

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(shape[0], 4), nn.Sequential(nn.ReLU(), Weak(4, outputs))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.last(self.first(x))
        return result


class Weak(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        if Breaking.round == 2 and self.training == Breaking.training_breaks:
            raise ArithmeticError("of a layer")
        return super().forward(x)


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("training", [True, False])
def test_an_error_of_a_layer_names_layer_peers_and_round(
    training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Breaking, "training_breaks", training)
    monkeypatch.setattr(Breaking, "round", 0)

    def on_round(t: int, metrics: pd.DataFrame) -> None:
        Breaking.round = t

    with pytest.raises(coterie.PartError) as failure:
        coterie.run(
            method="local", model=Breaking, callbacks=[on_round],
            **QUICK | {"dataset": "breast-cancer", "evaluate_every": 1},
        )  # fmt: skip
    when = "round 3" if training else "test data"
    assert re.search(
        r"in forward\(\), peers 0 to 2, round 3: ArithmeticError: of a layer "
        rf'\(layer "last.1" \(Weak\), peers 0 to 2, {when}\)$',
        str(failure.value),
    )
    assert isinstance(failure.value.__cause__, ArithmeticError)


@pytest.mark.parametrize(
    ("keys", "message", "cause"),
    [
        ({"dataset": "data"}, ".py:59, in read(): ZeroDivisionError", ZeroDivisionError),
        ({"partition__kind": "divide"}, ".py:63, in divide(): LookupError: no share", LookupError),
    ],
)
def test_a_part_that_fails_before_the_run_writes_nothing(
    elsewhere: Path, keys: dict[str, str], message: str, cause: type[Exception]
) -> None:
    named = {key: f"{elsewhere}:{name}" for key, name in keys.items()}
    with pytest.raises(coterie.Error, match=re.escape(message)) as refusal:
        coterie.run(**{**QUICK, "method": "local", **named})
    assert isinstance(refusal.value.__cause__, cause)
    assert not Path("runs").exists()


def test_a_callback_s_error(elsewhere: Path) -> None:
    def on_round(t: int, metrics: pd.DataFrame) -> None:
        if t == 2:
            raise IndexError("of a callback")

    with pytest.raises(
        coterie.PartError, match=r"in on_round\(\): IndexError: of a call"
    ) as failed:
        coterie.run(method="local", callbacks=[on_round], name="run", **QUICK)
    assert isinstance(failed.value.__cause__, IndexError)
    assert "IndexError" in Path("runs/run/error.log").read_text()


def test_a_failed_run_of_a_comparison_is_the_cause(elsewhere: Path) -> None:
    with pytest.raises(coterie.SweepError, match=r"^1 run failed") as failed:
        coterie.compare(
            ["local", f"{elsewhere}:Mine"], None, {"method-options": {"bug": "offer"}},
            seeds=1, **QUICK,
        )  # fmt: skip
    error = failed.value.__cause__
    assert isinstance(error, coterie.PartError)
    assert isinstance(error.__cause__, KeyError)


@pytest.mark.e2e
def test_the_same_through_flower(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["run", f"method={elsewhere}:Mine", *IN_OFFER, "--nodes", "2"]) == 1
    errors = capsys.readouterr().err
    assert re.search(
        r"mine_\w+\.py:21, in offer\(\), peers? [\d to]+, round 3: KeyError: 'wei", errors
    )
    assert 'return s, {"x": {}["weights"]}' in Path("runs/run/error.log").read_text()
