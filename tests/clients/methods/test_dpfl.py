"""DPFL and the random graph: plain loops over peers, and their limits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.preflight import check
from coterie.app.node.node import Node
from coterie.clients.engine.streams import Purpose, stream
from coterie.clients.letters import Letters
from tests.inline import run
from tests.problems import write_quadratic

Floats = npt.NDArray[np.float64]
Flat = dict[str, bool | int | float | str]

N, D, ROUNDS, RATE, STEPS, INIT = 6, 3, 6, 0.1, 2, 4


@pytest.fixture
def problem(tmp_path: Path) -> tuple[Flat, dict[str, Floats]]:
    """Make two camps of quadratics, whose validation and training losses differ slightly."""
    g = np.random.default_rng(7)
    camp = np.where(np.arange(N)[:, None] % 2, 1.0, -1.0)
    parts = {
        "curvature": g.uniform(0.5, 3.0, (N, D)),
        "centre": camp + g.normal(size=(N, D)),
        "validation_centre": camp + g.normal(size=(N, D)),
        "start": np.zeros(D),
        "samples": np.array([5.0, 1, 3, 8, 2, 4]),
    }
    made = write_quadratic(
        tmp_path / "problem.json",
        parts["curvature"],
        parts["centre"],
        parts["start"],
        samples=[int(s) for s in parts["samples"]],
        validation_centre=parts["validation_centre"],
    )
    flat: Flat = {
        **made,
        "method": "dpfl",
        "num-server-rounds": ROUNDS,
        "evaluate-every": ROUNDS,
        "local-steps": STEPS,
        "learning-rate": RATE,
        "dpfl.init-epochs": INIT,
    }
    return flat, parts


class Twin:
    """DPFL peer by peer and set by set; only the order of trials is that of the implementation."""

    def __init__(self, parts: dict[str, Floats], flat: Flat) -> None:
        self.a, self.c, self.v = parts["curvature"], parts["centre"], parts["validation_centre"]
        self.p = parts["samples"]
        budget = int(flat.get("dpfl.budget", 0))
        self.max_peers = budget + (not flat.get("dpfl.budget-counts-self", True)) if budget else N
        self.strict = flat.get("dpfl.tie") == "strict"
        self.period, self.skip = int(flat.get("dpfl.period", 1)), flat.get("dpfl.refresh") == "skip"
        self.x = np.tile(parts["start"], (N, 1))
        self.best = dict.fromkeys(("before", "after"), (np.full(N, np.inf), self.x))
        self.keep("before")
        self.keep("after")
        self.passes, self.received = np.zeros(N), np.zeros(N)
        self.sets = [{k} for k in range(N)]
        self.run()

    def loss(self, k: int, x: Floats, centre: Floats) -> float:
        return float(0.5 * (self.a[k] * (x - centre[k]) ** 2).sum())

    def average(self, members: set[int]) -> Floats:
        rows = sorted(members)
        mean: Floats = self.p[rows] / self.p[rows].sum() @ self.shown[rows]
        return mean

    def choose(self, k: int, among: set[int], t: int) -> set[int]:
        g = stream(0, k, t, Purpose.CHOICE)
        order = g.permutation(np.array(sorted(among - {k}), dtype=np.int64)).tolist()
        coins = g.random(len(order))

        def reward(s: set[int]) -> float:
            return -self.loss(k, self.average(s), self.v)

        x, y = {k}, among | {k}
        for j, coin in zip(order, coins, strict=True):
            if len(x) < self.max_peers:
                self.passes[k] += 2 + 2 * (j == order[0])
                a = max(reward(x | {j}) - reward(x), 0)
                b = max(reward(y - {j}) - reward(y), 0)
                add = coin < (a / (a + b) if a + b else 1)
                if add and not (self.strict and reward(x | {j}) < reward(x)):
                    x = x | {j}
                else:
                    y = y - {j}
        return x

    def keep(self, name: str) -> None:
        losses = np.array([self.loss(k, self.x[k], self.v) for k in range(N)])
        lowest, models = self.best[name]
        better = losses < lowest
        self.best[name] = (
            np.where(better, losses, lowest),
            np.where(better[:, None], self.x, models),
        )

    def run(self) -> None:
        for t in range(1, ROUNDS + 1):
            for _ in range(INIT if t == 1 else STEPS):
                self.x = self.x - RATE * self.a * (self.x - self.c)
            self.shown = self.before = self.x
            self.keep("before")
            if t == 1:
                self.sets = self.omega = [self.choose(k, set(range(N)), t) for k in range(N)]
                self.received += N - 1
            elif (t - 2) % self.period == 0:
                self.received += [len(s) - 1 for s in self.omega]
                self.sets = [self.choose(k, self.omega[k], t) for k in range(N)]
            elif not self.skip:
                self.received += [len(s) - 1 for s in self.sets]
            averages = t == 1 or (t - 2) % self.period == 0 or not self.skip
            self.used = self.sets if averages else [{k} for k in range(N)]
            self.x = np.stack([self.average(s) for s in self.used])
            self.keep("after")


@pytest.mark.parametrize(
    ("nodes", "options"),
    [
        (1, {}),
        (1, {"dpfl.budget": 2, "dpfl.budget-counts-self": False, "dpfl.tie": "strict"}),
        (2, {"dpfl.budget": 3}),
        (2, {"dpfl.period": 3}),
        (N, {"dpfl.period": 2, "dpfl.refresh": "skip", "dpfl.budget": 4}),
    ],
    ids=str,
)
def test_a_run_is_the_plain_loop(
    problem: tuple[Flat, dict[str, Floats]], nodes: int, options: Flat, tmp_path: Path
) -> None:
    flat, parts = problem
    twin = Twin(parts, flat | options)
    assert 0 < sum(len(s) - 1 for s in twin.omega) < N * (N - 1)
    result = run(flat | options, tmp_path, nodes)
    np.testing.assert_allclose(result.theta(), twin.x, rtol=0, atol=1e-12)
    members = np.array([[j in s for j in range(N)] for s in twin.used])
    shares = members * twin.p
    shares /= shares.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(result.weights(), shares, rtol=1e-12)
    assert (result.metric("validation_passes") == twin.passes).all()
    assert result.metric("candidates").tolist() == [len(s) - 1 for s in twin.omega]
    assert (result.metric("bytes_received") == twin.received * D * 8).all()
    for name, models in (
        ("before_averaging", twin.before),
        ("best_before_averaging", twin.best["before"][1]),
        ("best_after_averaging", twin.best["after"][1]),
    ):
        losses = [twin.loss(k, models[k], twin.c) for k in range(N)]
        np.testing.assert_allclose(result.metric(f"{name}_test_loss"), losses, rtol=1e-10)
        assert np.isnan(result.metric(f"{name}_test_accuracy")).all()


def plain(flat: Flat, **keys: bool | int | float | str) -> Flat:
    """Return the options of another method: one local step from the first round on."""
    kept = {k: v for k, v in flat.items() if not k.startswith("dpfl.")}
    return (
        kept
        | {"local-steps": 1}
        | {k.replace("__", ".").replace("_", "-"): v for k, v in keys.items()}
    )


def test_a_budget_of_one_is_local_training(
    problem: tuple[Flat, dict[str, Floats]], tmp_path: Path
) -> None:
    flat, _ = problem
    alone = run(plain(flat, dpfl__budget=1, dpfl__init_epochs=1), tmp_path / "alone")
    local = run(plain(flat, method="local"), tmp_path / "local")
    assert (alone.theta() == local.theta()).all()
    assert not alone.metric("validation_passes").any()


def test_an_unlimited_random_graph_is_federated_averaging(
    problem: tuple[Flat, dict[str, Floats]], tmp_path: Path
) -> None:
    flat, _ = problem
    keys = plain(flat, method="random-graph", random_graph__init_epochs=1)
    graph, fedavg = run(keys, tmp_path / "graph"), run(plain(flat, method="fedavg"), tmp_path / "f")
    np.testing.assert_allclose(graph.theta(), fedavg.theta(), rtol=0, atol=1e-15)


def test_a_random_graph_is_drawn_once_within_its_budget(
    problem: tuple[Flat, dict[str, Floats]], tmp_path: Path
) -> None:
    graphs = []
    keys = plain(problem[0], method="random-graph", random_graph__budget=3, evaluate_every=1)
    for seed in (0, 1):
        result = run(keys | {"seed": seed}, tmp_path / str(seed), 1 + seed)
        graphs.append(result.weights(1) > 0)
        assert all((result.weights(t) == result.weights(1)).all() for t in range(2, ROUNDS + 1))
    assert (graphs[0].sum(axis=1) == 3).all()
    assert graphs[0].diagonal().all()
    assert (graphs[0] != graphs[1]).any()


def test_who_heard_nobody_keeps_looking(
    problem: tuple[Flat, dict[str, Floats]], tmp_path: Path
) -> None:
    node = Node(Config.from_flat(problem[0]), [0, 2], tmp_path)
    rule = node._cohort.rule
    none, hosted = np.empty(0, dtype=np.int64), np.array([0, 2])

    def update(state: object, t: int, senders: Sequence[int]) -> object:
        state, shown = rule.offer(state, t)  # peer 0 receives from `senders`, peer 2 nothing
        rows = np.searchsorted(hosted, senders)
        offers = Letters(
            np.array(senders, dtype=np.int64), np.zeros_like(rows), rows, hosted, shown
        )
        return rule.update(
            state, rule.inbox(t, offers, Letters(none, none, none, none, {}), offers)
        )

    state = update(rule.init(), 1, [])
    assert len(rule.edges(rule.wants(state, 2))) == 2 * (N - 1)
    assert rule.weights(state).tolist() == np.eye(N)[hosted].tolist()
    state = update(state, 2, [2])
    wanted = rule.edges(rule.wants(state, 3))
    assert (wanted[:, 1] == 2).sum() == N - 1
    assert set(wanted[wanted[:, 1] == 0, 0]) <= {2}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"dpfl.budget": -1}, "budget"),
        ({"dpfl.init-epochs": 0}, "init-epochs"),
        ({"dpfl.period": 0}, "period"),
        ({"dpfl.tie": "never"}, "strict"),
        ({"method": "random-graph", "random-graph.budget": -1}, "budget"),
    ],
)
def test_refusals(keys: Flat, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Config.from_flat({"method": "dpfl", **keys})


@pytest.mark.parametrize("method", ["dpfl", "fedfomo"])
def test_validation_examples_are_asked_of_the_data(tmp_path: Path, method: str) -> None:
    def refused(**keys: Any) -> str:
        config = Config.from_flat({"method": method, "peers": 4, **keys})
        with pytest.raises(ConfigError, match=f"^{method}: needs validation data") as caught:
            check(config)
        return str(caught.value)

    none = {"partition.validation": 0.0}
    remedy = "digits has no validation examples: set partition.validation = 0.2"
    assert refused(**none).endswith(remedy)
    assert "partition" not in refused(dataset="sine")
    check(Config.from_flat({"method": method, "partition.validation": 0.2}))
    problem = write_quadratic(tmp_path / "problem.json", [[1.0]] * 4, [[0.0]] * 4, [0.0])
    check(Config.from_flat({"method": method, **problem}))
    check(Config.from_flat({"method": "random-graph"}))


@pytest.mark.parametrize("budget", [0, 3])
def test_the_graph_of_round_1_is_omega(
    problem: tuple[Flat, dict[str, Floats]], tmp_path: Path, budget: int
) -> None:
    """Recorded in round 1, it is all that a figure of candidates and chosen peers needs.

    Its links are the candidates, whose number is reported; no later round has another link.
    """
    flat, _ = problem
    flat = {**flat, "evaluate-every": 1, "dpfl.budget": budget}
    reports = run(flat, tmp_path / "run").reports
    links = {
        t: np.array([reports[t, k].weights for k in range(N)]) > 0 for t in range(1, ROUNDS + 1)
    }
    candidates = [reports[ROUNDS, k].metrics["candidates"] for k in range(N)]
    assert (links[1].sum(axis=1) - 1).tolist() == candidates
    assert any((links[t] != links[1]).any() for t in links)
    assert all((links[t] <= links[1]).all() for t in links)
