"""Attackers: what they send, and that it is the same wherever they are hosted."""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.app.config.config import Config, ConfigError
from coterie.app.runs.graph import weight_to
from coterie.app.runs.recorder import RunRecorder
from coterie.app.runs.rundir import Run as Results
from coterie.app.runs.summary import summarise
from coterie.clients.attack import ATTACKS, Attack
from coterie.strategies.protocol import Report
from coterie.strategies.relay.commit import Commit, Ledger, means
from tests.inline import run
from tests.problems import classification, write_quadratic

PEERS, D, RATE = 5, 3, 0.5
LIAR = 4
KINDS = ("nan", "scale", "sign-flip", "gaussian", "ipm", "alie", "mimic", "samples")
DIGITS: dict[str, Any] = {
    "dataset": "digits", "model": "linear", "peers": PEERS, "partition.kind": "iid",
    "partition.samples-per-peer": 20, "partition.validation": 0.25, "num-server-rounds": 3,
    "attack.peers": str(LIAR),
}  # fmt: skip
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "cobo": {},
    "wga": {"wga.alpha": 0.5},
    "all-for-one": {"all-for-one.refresh-every": 2},
    "ifca": {"ifca.clusters": 2},
}


def flat(path: Path, **keys: Any) -> dict[str, Any]:
    g = np.random.default_rng(3)
    problem = write_quadratic(
        path / "problem.json", np.ones((PEERS, D)), g.normal(size=(PEERS, D)), [0.0] * D
    )
    training = {"local-steps": 1, "learning-rate": RATE, "num-server-rounds": 3}
    attack = {"attack.peers": str(LIAR), "evaluate-every": 1}
    return problem | training | attack | {k.replace("_", "-"): v for k, v in keys.items()}


def centres(path: Path) -> np.ndarray[Any, Any]:
    return np.array(json.loads((path / "problem.json").read_text())["centre"])


@pytest.mark.some(4)
@pytest.mark.parametrize(("kind", "method"), [*zip(KINDS, cycle(METHODS), strict=False)])
def test_the_same_wherever_attackers_are_hosted(tmp_path: Path, method: str, kind: str) -> None:
    keys = flat(tmp_path, method=method) | METHODS[method] | {"attack.kind": kind}
    alone, apart = run(keys, tmp_path / "one", 1), run(keys, tmp_path / "two", 2)
    np.testing.assert_allclose(alone.theta(), apart.theta(), rtol=1e-10, atol=1e-12)
    assert [r.metrics.get("attacker") for (t, _), r in sorted(alone.reports.items()) if t == 3] == [
        None, None, None, None, 1,
    ]  # fmt: skip


@pytest.mark.some(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "method"),
    [("alie", "fedavg"), ("mimic", "ifca"), ("gaussian", "cobo"), ("ipm", "wga")],
)
def test_the_same_wherever_attackers_are_hosted_while_others_sleep(
    tmp_path: Path, method: str, kind: str
) -> None:
    """The attacker sleeps too; a robust rule averages over the peers that are awake."""
    trace = tmp_path / "trace.csv"
    trace.write_text("peer,from,to\n0,1,5\n1,1,2\n2,2,5\n3,4,5\n4,1,1\n4,3,5\n")
    keys = flat(tmp_path, method=method) | METHODS[method] | {
        "attack.kind": kind, "num-server-rounds": 5, "schedule.kind": "trace",
        "schedule.file": str(trace), "schedule.max-age": 1, "defence.rule": "geometric-median",
    }  # fmt: skip
    alone, apart = run(keys, tmp_path / "one", 1), run(keys, tmp_path / "two", PEERS)
    np.testing.assert_allclose(alone.theta(), apart.theta(), rtol=1e-10, atol=1e-12)


def test_attacks_on_a_schedule_where_nobody_sleeps_are_those_without_one(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("peer,from,to\n" + "".join(f"{peer},1,3\n" for peer in range(PEERS)))
    always = {"schedule.kind": "trace", "schedule.file": str(trace)}
    keys = flat(tmp_path, method="cobo") | {"attack.kind": "alie", "defence.rule": "multi-krum"}
    plain, awake = (run(keys | more, tmp_path / str(len(more))).theta() for more in ({}, always))
    np.testing.assert_array_equal(plain, awake)


def played(path: Path, lie: Any) -> np.ndarray[Any, Any]:
    """FedAvg on these quadratics by hand: x <- mean of y_k = x_k - rate (x_k - c_k)."""
    c, x = centres(path), np.zeros((PEERS, D))
    received = None
    for _ in range(3):
        y = x - RATE * (x - c)
        y[LIAR] = lie(y[LIAR], received, c)
        received = y[:LIAR]
        x = np.tile(y.mean(axis=0), (PEERS, 1))
    return x


@pytest.mark.parametrize("kind", ["scale", "sign-flip", "ipm", "alie", "mimic"])
def test_fedavg_gets_what_the_formula_says(tmp_path: Path, kind: str) -> None:
    s = ATTACKS[kind].strength

    def lie(y: Any, received: Any, c: Any) -> Any:
        if received is None:
            return y
        m = received.mean(axis=0)
        return {
            "scale": m + s * (y - m), "sign-flip": m - s * (y - m), "ipm": -s * m,
            "alie": m - s * received.std(axis=0), "mimic": received[0],
        }[kind]  # fmt: skip

    keys = {"attack.kind": kind, "defence.norm": False}
    result = run(flat(tmp_path, method="fedavg") | keys, tmp_path)
    np.testing.assert_allclose(result.theta(), played(tmp_path, lie), rtol=1e-12, atol=1e-14)


def test_answers_are_lies_too(tmp_path: Path) -> None:
    """WGA with all weight on its helpers: x_0 <- x_0 - rate/4 (sum of honest g_k + the lie)."""
    keys = flat(tmp_path, method="wga") | {"wga.alpha": 1.0, "num-server-rounds": 1}
    result = run(keys | {"attack.kind": "scale"}, tmp_path)
    g = -centres(tmp_path)  # at the start, 0
    expected = -RATE / 4 * (g[1] + g[2] + g[3] + 10 * g[LIAR])
    np.testing.assert_allclose(result.theta()[0], expected, rtol=1e-12)


def test_noise_belongs_to_peer_and_round(tmp_path: Path) -> None:
    keys = flat(tmp_path, method="fedavg") | {"attack.kind": "gaussian"}
    again = run(keys, tmp_path).theta(), run(keys, tmp_path, 2).theta()
    other = run(keys | {"seed": 1}, tmp_path).theta()
    np.testing.assert_allclose(*again, rtol=1e-12)
    assert (again[0] != other).any()


def test_nan_changes_nobody_else(tmp_path: Path) -> None:
    keys = flat(tmp_path, method="fedavg")
    edges = [[i, j] for i in range(LIAR) for j in range(i)]
    (tmp_path / "graph.json").write_text(json.dumps(edges))
    without = {"topology": "file", "topology-file": str(tmp_path / "graph.json")}
    lied = run(keys | {"attack.kind": "nan"}, tmp_path).theta()[:LIAR]
    honest = run({k: v for k, v in keys.items() if k != "attack.peers"} | without, tmp_path)
    np.testing.assert_allclose(lied, honest.theta()[:LIAR], rtol=1e-12)


def test_labels_and_numbers_are_lies_about_the_own_data_only() -> None:
    problem = classification([4, 6], classes=3)
    flip, inflate = ATTACKS["label-flip"].data, ATTACKS["samples"].data
    assert flip is not None
    assert inflate is not None
    flipped = flip(problem, np.array([1]), Attack("label-flip", peers="1").power)
    np.testing.assert_array_equal(flipped.train.targets[1], 2 - problem.train.targets[1])
    np.testing.assert_array_equal(flipped.train.targets[0], problem.train.targets[0])
    assert flipped.test is problem.test
    claimed = inflate(problem, np.array([1]), Attack("samples", peers="1").power)
    assert claimed.samples.tolist() == [4, 6000]
    assert problem.samples.tolist() == [4, 6]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedavg", "wga"])
def test_who_hears_nobody_learns_what_it_would_learn_alone(tmp_path: Path, method: str) -> None:
    """DPFL's figure 12, but for answers, too."""
    keys = DIGITS | {"method": method} | METHODS.get(method, {})
    one, apart = (
        run(keys | {"attack.kind": "label-flip-alone"}, tmp_path / str(k), k).models()
        for k in (1, 2)
    )
    attacked = run(keys | {"attack.kind": "label-flip"}, tmp_path / "heard").models()
    graph = tmp_path / "graph.json"
    graph.write_text(json.dumps([[i, j] for i in range(LIAR) for j in range(i)]))
    keys |= {"attack.kind": "label-flip", "topology": "file", "topology-file": str(graph)}
    cut = run(keys, tmp_path / "cut").models()
    for name, value in one[LIAR].items():
        torch.testing.assert_close(value, cut[LIAR][name])
        torch.testing.assert_close(value, apart[LIAR][name])
    assert any((value != attacked[LIAR][name]).any() for name, value in one[LIAR].items())
    assert any((value != cut[0][name]).any() for name, value in one[0].items())


def test_a_share_is_drawn_by_the_seed() -> None:
    attack = Attack("nan", share=0.2)
    drawn = [tuple(attack.attackers(20, seed)) for seed in range(5)]
    assert all(len(ids) == 4 and sorted(ids) == list(ids) for ids in drawn)
    assert len(set(drawn)) > 1
    assert drawn[0] == tuple(attack.attackers(20, 0))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"attack.kind": "nan"}, "either peers or share"),
        ({"attack.peers": "0"}, "selects attackers"),
        ({"attack.kind": "nan", "attack.peers": "8"}, "peers are 0 to 7"),
        ({"attack.kind": "nan", "attack.peers": "0", "attack.strength": 2.0}, "strength applies"),
        ({"attack.kind": "nan", "attack.peers": "x"}, "must be ids"),
        ({"attack.kind": "nan", "attack.share": 0.999}, "all peers attack"),
    ],
)
def test_what_cannot_be_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.from_flat(keys)


def test_off_is_not_in_the_file_that_starts_the_run_again() -> None:
    assert "attack" not in Config.from_flat({}).toml()
    on = Config.from_flat({"attack.kind": "nan", "attack.peers": "0,3"})
    assert '[attack]\nkind = "nan"\npeers = "0,3"' in on.toml()


def test_means_are_over_honest_peers(tmp_path: Path) -> None:
    metrics = [{"test_loss": 1.0, "test_accuracy": 0.5, "bytes_sent": 8}] * 2
    metrics += [{"test_loss": 9.0, "test_accuracy": 0.0, "bytes_sent": 8, "attacker": 1}]
    reports = tuple(Report(1, p, m, (1.0, 0.0, 0.0)) for p, m in enumerate(metrics))
    assert means(reports)["test_accuracy"] == 0.5
    recorder = RunRecorder(tmp_path, 3, 1)
    recorder.round(Commit(Ledger(1, ended=(1, 1, 1)), reports))
    recorder.finish()
    (tmp_path / "config.toml").write_text('method = "fedavg"\npeers = 3\n')
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line.get("attacker") for line in lines] == [None, None, True]
    summary = summarise(Results.read(tmp_path))
    assert summary["mean_test_accuracy"] == recorder.progress["mean_test_accuracy"] == 0.5
    assert summary["mean_test_loss"] == 1.0
    assert summary["total_bytes"] == 24, "attackers cost, too"
    assert not summary["diverged_peers"]


def test_the_report_says_what_honest_peers_gave_them() -> None:
    weights = np.array([[1, 0.5, 1.5], [0, 1, 1], [9, 9, 1.0]])
    attackers = np.array([False, False, True])
    assert weight_to(attackers, weights) == pytest.approx((0.75 + 1.0) / 2)
    assert weight_to(attackers, np.eye(3)) is None
