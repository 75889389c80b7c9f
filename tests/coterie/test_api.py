"""`import coterie`: arrays, classes and keys in, data frames out."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import coterie
from coterie.app.config.registry import METHODS
from tests import plugins

QUICK: dict[str, Any] = {"num_server_rounds": 4, "evaluate_every": 2, "device": "cpu"}


class Mine(nn.Module):
    """A network of this module."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(shape[0], outputs)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.layer(x)
        return scores


def clinics(count: int = 3, size: int = 20) -> list[dict[str, Any]]:
    return plugins.arrays(count, 0, plugins.DataOptions(size))


class Counting(nn.Module):
    """Notes the number of examples of each call in evaluation mode."""

    seen: ClassVar[list[int]] = []

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(64, outputs)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            Counting.seen.append(len(x))
        scores: Tensor = self.layer(x.flatten(1))
        return scores


@pytest.mark.slow
def test_an_iid_fedavg_run_evaluates_its_model_once_per_round(tmp_path: Path) -> None:
    """Eight equal models on 360 equal test images; the 60 training images are each peer's own.

    The measures of the last round are those of one model, too.
    """
    Counting.seen.clear()
    rounds: list[list[int]] = []

    def on_round(t: int, metrics: pd.DataFrame) -> None:
        rounds.append(sorted(Counting.seen))
        Counting.seen.clear()

    run = coterie.run(
        method="fedavg", dataset="digits", partition__kind="iid", model=Counting, peers=8,
        engine__backend="sequential", callbacks=[on_round], out=tmp_path,
        **QUICK | {"evaluate_every": 1},
    )  # fmt: skip
    assert rounds[1:] == [[60] * 8 + [360]] * 4
    last = run.metrics.query("round == 4")
    assert last["auroc"].notna().all()
    assert last["auroc"].nunique() == last["test_loss"].nunique() == 1


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[coterie.Run, list[Any]]:
    """Return a run of arrays and a class, and the calls of its callbacks."""
    reports: list[Any] = []

    class Listener:
        def on_round(self, round: int, metrics: pd.DataFrame) -> None:  # noqa: A002
            reports.append(("object", round, len(metrics)))

    run = coterie.run(
        None, {"method": "fedavg", "partition": {"validation": 0.2}},
        peers_data=clinics(), model=Mine, out=tmp_path_factory.mktemp("runs"), **QUICK,
        callbacks=[Listener(), lambda t, metrics: reports.append(("function", t, len(metrics)))],
    )  # fmt: skip
    return run, reports


@pytest.mark.slow
def test_a_run_of_arrays_and_a_class(done: tuple[coterie.Run, list[Any]]) -> None:
    run, reports = done
    assert list(run.metrics["round"].unique()) == [0, 2, 4]
    assert run.metrics.shape[0] == 9
    assert run.metrics.query("peer == 1")["peer_name"].unique().tolist() == ["site 1"]
    assert run.metrics["validation_loss"].notna().all()
    assert run.weights.shape == (3, 3, 3)
    assert run.summary["method"] == "fedavg"
    assert run.report.is_file()
    assert reports == [(who, t, 3) for t in (0, 2, 4) for who in ("object", "function")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x[0], r"x is \(.*, the model takes \(N, "),
        (lambda x: x[:, :1], "the model takes"),
        (lambda x: x.astype(str), "the model takes numbers"),
        (lambda x: x * [[1], [np.nan]], "x: 1 of 2 examples have NaN or infinity, .* number 2"),
    ],
)
def test_inputs_that_the_model_does_not_take(
    done: tuple[coterie.Run, list[Any]], change: Callable[[Any], Any], message: str
) -> None:
    run, _ = done
    inputs = clinics()[0]["x"][:2]
    with pytest.raises(coterie.ConfigError, match=message):
        run.predict(0, change(inputs))


def test_predictions_for_arrays_and_for_a_file(
    done: tuple[coterie.Run, list[Any]], tmp_path: Path
) -> None:
    run, _ = done
    inputs = clinics()[0]["x"][:2]
    np.savez(tmp_path / "new.npz", x=inputs)
    predictions = run.predict(0, inputs)
    assert len(predictions) == 2
    np.testing.assert_array_equal(run.predict(0, tmp_path / "new.npz"), predictions)


def test_the_graph_s_edges_lead_to_who_uses_a_model(done: tuple[coterie.Run, list[Any]]) -> None:
    run, _ = done
    assert list(run.graph) == ["round", "from", "to", "weight"]
    for t, source, to, weight in run.graph.itertuples(index=False):
        at = list(run.weight_rounds).index(t)
        assert run.weights[at, run.names.index(to), run.names.index(source)] == weight
    assert len(run.graph) == 3 * 6


def test_what_was_written_is_loaded(done: tuple[coterie.Run, list[Any]]) -> None:
    run, _ = done
    again = coterie.load(run.directory)
    pd.testing.assert_frame_equal(again.metrics, run.metrics)
    assert "site 2" in again._repr_html_()
    with pytest.raises(coterie.ResultsError, match="no such run directory"):
        coterie.load(run.directory / "none")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"methd": "x"}, 'unknown key "methd", did you mean "method"?'),
        ({"method": "fedvag"}, 'unknown method "fedvag", did you mean "fedavg"?'),
        ({"partition__alfa": 1.0}, 'unknown key "partition.alfa", did you mean "partition.alpha"?'),
        ({"peers": 8.5}, "peers = 8.5: must be an integer"),
        ({"track": "tensorbord"}, 'unknown tracker "tensorbord", did you mean "tensorboard"?'),
        ({"peers_data": clinics(), "dataset": "digits"}, "pass only one of them"),
        (
            {"callbacks": ["mlflow"]},
            "'mlflow' is not a callable object: it must be a function (round, metr",
        ),
        ({"callbacks": ["mlflow"]}, "it must be a function (round, metrics)"),
        ({"callbacks": [[]]}, "[] is not a callable object"),
        ({"callbacks": [lambda t: t]}, "too many positional arguments: it must be a function"),
        ({"nodes": 9}, "8 peers need 1 to 8 nodes"),
    ],
)
def test_errors_are_one_clear_line(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(coterie.ConfigError) as refusal:
        coterie.run(out=tmp_path, **keys)
    assert message in str(refusal.value)
    assert not list(tmp_path.iterdir())


TENSORS = TensorDataset(torch.ones(40, 2), torch.arange(40) % 2)
SOUND: dict[str, Any] = {"x": np.ones((9, 2)), "y": [0, 1, 0] * 3}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([{"x": np.ones((4, 2))}], 'peer 0 has no "y"'),
        ([{"y": [1, 2]}], 'peer 0 has no "x"'),
        ([{"x": np.ones((4, 2)), "y": [0, 1, 0]}], "one row per example"),
        ([{"x": np.ones((4, 2)), "y": [0, 1, 0, 1], "z": 1}], 'peer 0: unknown key "z"'),
        ([SOUND | {"y": [0, 1, 2] * 3, "classes": "ab"}], 'unknown class; known: a, b, or their'),
        ([SOUND | {"y": ["a", None, "b"] * 3}], "peer 0 has no label in 3 of 9 examples of y"),
        ([SOUND | {"y": ["a", "None", "b"] * 3}], 'name all classes in "classes"'),
        ([SOUND | {"y": np.ma.masked_equal([0, 1, 2] * 3, 2)}], "no label in 3 of 9"),
        ([SOUND | {"x": [[1], [2, 3]] * 4 + [[1]]}], "x and y must be arrays"),
        ([{"x": np.ones((9, 2)), "y": [0, 1, 0] * 3},
          {"x": np.ones((9, 3)), "y": [0, 1, 0] * 3}], "different shapes"),
        ([{"x": np.ones((9, 2)), "y": [0, 1, 0] * 3},
          {"x": np.ones((9, 2)), "y": [0.5] * 9}], "make y one type"),
        ([{"x": np.ones((9, 2)), "y": ["a", "b", "c"] * 3, "classes": ["a", "b"]}],
         'y has an unknown class; known: a, b, or their numbers from 0: c'),
        ([SOUND, SOUND | {"x": np.full((9, 2), np.nan)}], "peer 1 has NaN or infinity in x"),
        ([SOUND | {"y": [np.inf] * 9}], "peer 0 has NaN or infinity in y"),
        ([SOUND | {"x": [["a", 1.0]] * 9}], "peer 0 has x of <U32, not of numbers"),
        ([SOUND | {"name": "north"}] * 2, 'two peers have the name "north"'),
        ([SOUND, {"x": np.ones((1, 2)), "y": [0]}], "peer 1: here:peers_data: this peer has no te"),
        ([[1, 2]], "a list instead of a dict with x and y"),
    ],
)  # fmt: skip
def test_arrays_that_make_no_problem(data: list[Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(coterie.DataError) as refusal:
        coterie.run(peers_data=data, method="local", out=tmp_path, **QUICK)
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("data", "name", "peers"),
    [
        ({"x": np.ones((40, 2)), "y": [0, 1] * 20}, "here:dict", 2),
        ([SOUND, SOUND, SOUND], "here:peers_data", 3),
        ((TENSORS, TENSORS), "here:TensorDataset", 2),
    ],
)
def test_data_of_this_process_are_divided_or_one_for_each_peer(
    data: Any, name: str, peers: int, tmp_path: Path
) -> None:
    keys: dict[str, Any] = {} if peers == 3 else {"peers": peers, "partition__kind": "iid"}
    run = coterie.run(dataset=data, method="local", out=tmp_path, **QUICK, **keys)
    assert (run.config["dataset"], len(run.names)) == (name, peers)


def test_a_dict_in_the_place_of_the_preset() -> None:
    keys: Any = {"method": "fedavg"}
    with pytest.raises(coterie.ConfigError, match=r"comes after the preset.*run\(None, \{"):
        coterie.run(keys)


def test_a_comparison_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(coterie.ConfigError, match="there are no methods to compare"):
        coterie.compare([], out=tmp_path)


def test_a_comparison_of_objects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def compared(**more: Any) -> coterie.Comparison:
        return coterie.compare(
            ["local", METHODS["fedavg"]],
            seeds=2,
            peers_data=clinics(),
            out=tmp_path,
            **QUICK,
            **more,
        )

    comparison = compared()
    assert "4/4  " in capsys.readouterr().err  # progress without a terminal, as in a batch job
    assert {"method", "seed", "peer_name", "test_accuracy", "gain"} <= {*comparison.peers}
    assert comparison.peers.groupby(["method", "seed"]).size().tolist() == [3] * 4
    with pytest.raises(coterie.ResultsError, match=r"coterie\.Comparison\(DIR\) reads"):
        coterie.load(comparison.directory)
    assert list(comparison.table.index) == ["local", "coterie.clients.methods.fedavg:FedAvg"]
    assert comparison.table.loc["local", ("gain", "mean")] == 0
    mean = 100 * comparison.table["accuracy"]["mean"]["local"]
    assert comparison.shown["accuracy %"]["local"].startswith(f"{mean:.2f} ± ")
    assert comparison.shown.to_html() in comparison._repr_html_()
    assert {method: len(runs) for method, runs in comparison.runs.items()} == {
        "local": 2, "coterie.clients.methods.fedavg:FedAvg": 2,
    }  # fmt: skip
    assert set(comparison.metrics["seed"]) == {0, 1}
    assert comparison.report.is_file()
    assert "tabular" in comparison.latex
    with pytest.raises(coterie.ConfigError, match="put them into a module"):
        compared(workers=2)


@pytest.mark.slow
def test_a_tuned_comparison(tmp_path: Path) -> None:
    done = coterie.compare(
        ["local", "fedavg"], None, {"partition": {"validation": 0.25}}, seeds=1, tune="halving",
        peers_data=clinics(), out=tmp_path, **QUICK | {"num_server_rounds": 9},
    )  # fmt: skip
    assert list(done.tuned) == ["local", "fedavg"]
    local, fedavg = done.tuned.values()
    assert local.trials == fedavg.trials >= 15 + 5 + 1
    for method, choice in done.tuned.items():
        assert choice.settings.keys() == {"learning-rate", "weight-decay"}
        (run,) = done.runs[method]
        assert {key: run.config[key] for key in choice.settings} == choice.settings


def test_a_run_whose_every_peer_diverged_raises_and_can_be_loaded(tmp_path: Path) -> None:
    with pytest.raises(coterie.DivergedError, match="every peer diverged"):
        coterie.run(
            method="local", dataset="sine", peers=2, learning_rate=1e30, out=tmp_path, name="run",
            num_server_rounds=2,
        )  # fmt: skip
    run = coterie.load(tmp_path / "run")
    assert (run.summary["status"], run.summary["diverged_peers"]) == ("diverged", 2)


@pytest.mark.e2e
def test_it_is_there_from_any_directory(tmp_path: Path) -> None:
    """Import from another directory; a plugin's imports load no torch, pandas or reports."""
    code = (
        "import sys; from coterie import Inbox, Rule, Source, Everyone, option\n"
        "assert not {'torch', 'pandas', 'coterie.app.report'} & sys.modules.keys()\n"
        "import coterie; print(len(dir(coterie)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
