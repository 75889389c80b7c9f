"""CoBo: a plain NumPy loop, and the laws of its penalty and its weights."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from coterie.app.config.config import Config
from coterie.app.config.preflight import problem_of
from coterie.app.node.assembly import compares_in_pairs
from coterie.clients.engine import tuning
from coterie.clients.letters import Letters
from coterie.clients.methods.cobo import CoBo
from coterie.clients.parts.simplex import project_onto_simplex
from tests.inline import Floats, run
from tests.kit import digits, rule_of, stacked
from tests.problems import write_quadratic
from tests.stepping import Stepping

ROUNDS = 30


def two_clusters(path: Path, **more: Any) -> dict[str, Any]:
    """Make six peers around two centres, with different starts and curvatures."""
    g = np.random.default_rng(3)
    centre = np.repeat(g.normal(size=(2, 5)), 3, axis=0) + 0.2 * g.normal(size=(6, 5))
    flat: dict[str, Any] = write_quadratic(
        path / "problem.json", g.uniform(0.5, 1.5, (6, 5)), centre, g.normal(size=(6, 5)), **more
    )
    return flat | {
        "num-server-rounds": ROUNDS, "evaluate-every": ROUNDS, "local-steps": 1,
        "learning-rate": 0.1, "cobo.gamma": 0.04, "cobo.rho": 0.3,
    }  # fmt: skip


def twin(flat: dict[str, Any]) -> tuple[Floats, Floats]:
    """Run algorithm 1 with every pair in every round, peer by peer and pair by pair."""
    problem = problem_of(Config.from_flat({"method": "cobo", **flat}))
    n = problem.peers
    assert problem.start is not None
    a, c = problem.inputs[:n, 0], problem.inputs[:n, 1]
    eta, gamma, rho = (flat[key] for key in ("learning-rate", "cobo.gamma", "cobo.rho"))
    momentum, decay = flat.get("momentum", 0.0), flat.get("weight-decay", 0.0)
    simplex = flat.get("cobo.simplex", False)
    x = [start.copy() for start in problem.start]
    velocity = [np.zeros_like(row) for row in x]
    w = np.ones((n, n)) / ((n - 1) if simplex else 1)
    for _ in range(flat["num-server-rounds"]):
        products = np.zeros((n, n))
        for i in range(n):
            for j in range(n):
                z = (x[i] + x[j]) / 2
                products[i, j] = np.dot(a[i] * (z - c[i]), a[j] * (z - c[j]))
        w = w + gamma * products
        if simplex:
            for i in range(n):
                others = [j for j in range(n) if j != i]
                w[i, others] = by_bisection(w[i, others])
        else:
            w = np.clip(w, 0, 1)
        received = [row.copy() for row in x]
        for i in range(n):
            for _ in range(flat.get("local-steps", 1)):
                pull = sum(
                    (w[i, k] * (x[i] - received[k]) for k in range(n) if k != i), np.zeros(1)
                )
                velocity[i] = momentum * velocity[i] + a[i] * (x[i] - c[i]) + decay * x[i]
                x[i] = x[i] - eta * (velocity[i] + rho * pull)
    np.fill_diagonal(w, 1.0)
    return np.array(x), w


def by_bisection(row: Floats) -> Floats:
    """Project onto the simplex by bisection on the threshold."""
    low, high = row.min() - 1, row.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(row - middle, 0).sum() > 1 else (low, middle)
    projected: Floats = np.maximum(row - low, 0)
    return projected


@pytest.mark.some(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "nodes"),
    [
        ({}, 1),
        ({"num-server-rounds": 20}, 2),
        ({"num-server-rounds": 15}, 6),
        ({"momentum": 0.9}, 1),
        ({"momentum": 0.5, "weight-decay": 0.1, "local-steps": 3, "num-server-rounds": 20}, 2),
        ({"cobo.simplex": True, "cobo.gamma": 0.05}, 1),
        ({"cobo.simplex": True, "cobo.gamma": 0.05, "num-server-rounds": 20}, 2),
    ],
    ids=str,
)
def test_it_equals_a_plain_loop(tmp_path: Path, more: dict[str, Any], nodes: int) -> None:
    flat = two_clusters(tmp_path) | {"method": "cobo"} | more
    result = run(flat, tmp_path, nodes)
    x, w = twin(flat)
    assert np.abs(result.theta() - x).max() < 1e-10
    assert np.abs(result.weights() - w).max() < 1e-10
    off = ~np.eye(6, dtype=bool)
    assert w[off].max() > 0  # W has changed, and not to 0 everywhere
    assert w[off].min() < 0.5


def test_weights_are_symmetric_and_in_the_unit_interval(tmp_path: Path) -> None:
    flat = two_clusters(tmp_path, noise=0.5) | {"cobo.sampling": "official", "evaluate-every": 10}
    result = run(flat | {"num-server-rounds": 20}, tmp_path, 2)
    for t in result.rounds:
        w = result.weights(t)
        assert np.array_equal(w, w.T)
        assert w.min() >= 0
        assert w.max() <= 1
    assert len(np.unique(result.weights())) > 5


@pytest.mark.parametrize("sampling", ["constant", "full"])
def test_the_penalty_alone_keeps_the_sum_of_all_models(tmp_path: Path, sampling: str) -> None:
    """Without curvature there is no gradient: W stays 1 and every pull has its counterpart."""
    g = np.random.default_rng(0)
    start = g.normal(size=(5, 4))
    flat = write_quadratic(tmp_path / "flat.json", np.zeros((5, 4)), np.ones((5, 4)), start)
    rounds, eta, rho = 30, 0.1, 0.2
    result = run(
        {**flat, "num-server-rounds": rounds, "learning-rate": eta, "local-steps": 1,
         "cobo.rho": rho, "cobo.sampling": sampling},
        tmp_path,
    )  # fmt: skip
    assert np.allclose(result.theta().sum(axis=0), start.sum(axis=0), atol=1e-13)
    shrunk = (1 - eta * rho * 5) ** rounds * (start - start.mean(axis=0))
    assert np.allclose(result.theta(), start.mean(axis=0) + shrunk, atol=1e-13)
    assert (result.weights() == 1).all()


@pytest.mark.slow
def test_clusters_separate_and_each_contracts_at_the_known_rate(tmp_path: Path) -> None:
    """c equal quadratics of curvature L: differences shrink by |1 - eta (L + rho c)| per step."""
    size, curvature, eta, rho = 3, 0.5, 0.1, 1.0
    g = np.random.default_rng(1)
    centre = np.repeat([[2.0, 1.0], [-2.0, -1.0]], size, axis=0)
    flat = write_quadratic(
        tmp_path / "problem.json", np.full((6, 2), curvature), centre, g.normal(size=(6, 2)) * 0.1
    )
    settings: dict[str, Any] = {
        **flat, "method": "cobo", "num-server-rounds": 100, "learning-rate": eta,
        "local-steps": 1, "cobo.rho": rho, "cobo.gamma": 0.05,
    }  # fmt: skip
    stepping, truth = Stepping(settings), np.kron(np.eye(2), np.ones((size, size)))
    exact, apart = [], []  # rounds; differences of models inside the clusters
    for t in range(1, 101):
        state = stepping.to(t)
        exact += [t] if np.array_equal(stepping.rule.weights(state), truth) else []
        blocks = state.x.numpy().reshape(2, size, 2)
        apart.append(blocks - blocks.mean(axis=1, keepdims=True))
    assert exact == list(range(exact[0], 101))  # it stays exact
    assert exact[0] < 80
    ends = apart[exact[0] - 1], apart[exact[0] + 9]
    rate = abs(1 - eta * (curvature + rho * size))
    assert np.abs(ends[0]).max() > 1e-14
    assert np.allclose(ends[1], rate**10 * ends[0], rtol=1e-6, atol=1e-16)


def pulls(tmp_path: Path, curvature: npt.ArrayLike, centre: npt.ArrayLike) -> dict[str, Any]:
    n, d = np.shape(centre)
    flat = write_quadratic(tmp_path / "rule.json", curvature, centre, np.zeros((n, d)))
    return {**flat, "learning-rate": 0.1, "local-steps": 1}


def letters(ends: list[tuple[int, int]], stack: torch.Tensor, name: str) -> Letters:
    """Make letters (sender, recipient); row of the stack = position."""
    senders, recipients = np.array(ends, dtype=np.int64).reshape(-1, 2).T
    return Letters(senders, recipients, np.arange(len(ends)), senders, {name: stack})


def test_answers_are_gradients_at_the_midpoint_and_collaborators_align(tmp_path: Path) -> None:
    """With f_j = s f_i the pair is collaborative with M = (1 - s) / (1 + s) everywhere, and
    4 <grad f_i, grad f_j> >= (1 - M^2) |grad f_i + grad f_j|^2 holds with equality."""
    s, centre = 0.25, np.array([1.0, -2.0, 0.5])
    rule = rule_of(CoBo(), pulls(tmp_path, np.outer([1, s], np.ones(3)), np.tile(centre, (2, 1))))
    g = np.random.default_rng(0)
    x = torch.from_numpy(g.normal(size=(2, 3)))
    state = rule.init()
    state = type(state)(x, state.buffers, state.opt_state, state.w)
    answers = rule.answer(state, rule.inbox(1, letters([(1, 0), (0, 1)], x[[1, 0]], "x")))
    first, second = answers["g"].numpy()
    z = x.mean(dim=0).numpy()
    assert np.allclose(first, z - centre, rtol=1e-14)
    assert np.allclose(second, s * (z - centre), rtol=1e-14)
    m = (1 - s) / (1 + s)
    aligned = (1 - m**2) * np.sum((first + second) ** 2)
    assert 4 * first @ second == pytest.approx(aligned, rel=1e-12)


def test_a_pair_moves_only_if_both_answered(tmp_path: Path) -> None:
    rule = rule_of(
        CoBo(gamma=0.1), pulls(tmp_path, np.ones((3, 2)), np.array([[1.0, 0], [-1, 0], [0, 1]]))
    )
    state, nothing = rule.init(), letters([], torch.empty(0, 2), "g")
    x = letters([(k, i) for i in range(3) for k in range(3) if k != i], state.x[[0] * 6], "x")
    gradient = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    sent = letters([(0, 1), (1, 0), (2, 0)], gradient, "g")
    got = letters([(1, 0), (0, 1)], gradient[[1, 0]], "g")  # the answer of 0 to 2 was lost
    w = rule.update(state, rule.inbox(1, x, sent, got)).w
    assert w.tolist() == [[0, 0.9, 1], [0.9, 0, 1], [1, 1, 0]]
    assert rule.update(state, rule.inbox(1, x, nothing, got)).w.tolist() == state.w.tolist()


def test_only_who_was_heard_pulls(tmp_path: Path) -> None:
    rule = rule_of(CoBo(rho=0.5), pulls(tmp_path, np.zeros((3, 1)), np.zeros((3, 1))))
    state = rule.init()
    x = torch.tensor([[0.0], [1.0], [5.0]], dtype=torch.float64)
    state = type(state)(x, state.buffers, state.opt_state, state.w)
    offers = Letters(np.array([2, 0]), np.array([0, 2]), np.array([2, 0]), np.arange(3), {"x": x})
    after = rule.update(state, rule.inbox(1, offers))
    # 0 and 2 pull each other by eta rho |difference| = 0.1 * 0.5 * 5; 1 received nothing
    assert after.x.flatten().tolist() == pytest.approx([0.25, 1.0, 4.75])


def test_a_pull_that_overshoots_is_told_once(tmp_path: Path) -> None:
    """Learning rate 0.1 times rho times n - 1 = 3 weights of 1."""
    for rho, warned in ((3.3, False), (3.4, True)):
        rule = rule_of(CoBo(rho=rho), pulls(tmp_path, np.zeros((4, 1)), np.zeros((4, 1))))
        state = rule.init()
        ends = [(k, i) for i in range(4) for k in range(4) if k != i]
        rows = np.array([k for k, _ in ends])
        senders, recipients = np.array(ends).T
        offers = Letters(senders, recipients, rows, np.arange(4), {"x": state.x})
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for t in (1, 2):
                rule.update(state, rule.inbox(t, offers))
        assert len(caught) == warned
        assert all("1.02 > 1" in str(warning.message) for warning in caught)


@pytest.mark.parametrize("count", [1, 2, 3, 10, 100])
def test_the_simplex_projection_is_the_nearest_point(count: int) -> None:
    g = np.random.default_rng(count)
    rows = np.concatenate(
        [
            g.normal(size=(20, count)) * g.uniform(0.01, 10, (20, 1)),
            np.full((1, count), 1 / count),
            np.full((1, count), -3.0),  # ties
            np.eye(count)[:1] * 100,
        ]
    )
    projected = project_onto_simplex(rows)
    assert projected.min() >= 0
    assert np.allclose(projected.sum(axis=1), 1, rtol=1e-12)
    assert np.allclose(project_onto_simplex(projected), projected, atol=1e-12)
    for row, result in zip(rows, projected, strict=True):
        assert np.allclose(result, by_bisection(row), atol=1e-11)
        # variational inequality of a projection, at every vertex of the simplex
        assert (((row - result) @ (np.eye(count) - result).T) <= 1e-9).all()


@pytest.mark.slow
def test_a_simplex_row_sums_to_one(tmp_path: Path) -> None:
    flat = two_clusters(tmp_path, noise=0.3) | {
        "cobo.simplex": True,
        "num-server-rounds": 20,
        "evaluate-every": 5,
    }
    result = run(flat, tmp_path, 2)
    for t in result.rounds:
        off = result.weights(t) - np.eye(6)
        assert np.allclose(off.sum(axis=1), 1, rtol=1e-12)
        assert off.min() >= 0


def test_wants_are_those_with_weight(tmp_path: Path) -> None:
    rule = rule_of(CoBo(), pulls(tmp_path, np.ones((3, 1)), np.zeros((3, 1))))
    w = np.array([[0, 0.2, 0], [0.2, 0, 1], [0, 1, 0]])
    state = rule.init()
    wanted = rule.edges(rule.wants(type(state)(state.x, state.buffers, state.opt_state, w), 2))
    assert sorted(map(tuple, wanted.tolist())) == [(0, 1), (1, 0), (1, 2), (2, 1)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"probability": 0.5}, {"simplex": True, "sampling": "constant"},
    ],
    ids=str,
)  # fmt: skip
def test_impossible_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        CoBo(**wrong)


@pytest.mark.parametrize("more", [{"cobo.sampling": "official"}, {"cobo.simplex": True}])
def test_pairs_in_blocks_are_the_pairs_of_answers_that_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    """Blocks of one pair, of two, of all: the same models and reports, to the bit."""
    flat = digits("cobo", **{"peers": 5, "partition.clusters": 2, "cobo.gamma": 0.5, **more})
    monkeypatch.setattr(CoBo, "compares_pairs", False)
    kept = run(flat, tmp_path / "kept")
    monkeypatch.setattr(CoBo, "compares_pairs", True)
    row = stacked(kept)[0].numel() * 4
    for pairs in (1, 2, 10):
        monkeypatch.setattr(tuning, "ANSWER_BYTES", tuning.Threshold(2 * pairs * row, 0))
        blocks = run(flat, tmp_path / str(pairs))
        assert torch.equal(stacked(blocks), stacked(kept))
        assert blocks.reports == kept.reports


@pytest.mark.parametrize(
    "more",
    [
        {"attack.kind": "nan", "attack.peers": "2"}, {"privacy.kind": "examples"},
        {"schedule.kind": "sample", "schedule.fraction": 0.5},
    ],
)  # fmt: skip
def test_answers_that_are_looked_at_together_are_kept(more: dict[str, Any]) -> None:
    config = Config.from_flat(digits("cobo", peers=5))
    assert compares_in_pairs(config, config.options)
    looked_at = Config.from_flat(digits("cobo", **{"peers": 5, "momentum": 0.0, **more}))
    assert not compares_in_pairs(looked_at, looked_at.options)
