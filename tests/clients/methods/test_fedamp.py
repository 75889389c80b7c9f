"""FedAMP: a plain loop, weights by hand, and limits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.clients.letters import Letters
from coterie.clients.methods.fedamp import FedAMP
from tests.inline import Floats, run
from tests.kit import CAMP, Plain, camps, digits, one_peer, rule_of, stacked
from tests.problems import parabolas


def twin(flat: dict[str, Any]) -> tuple[Floats, Floats]:
    """Return models and weights of a plain loop."""
    q, strength, alpha = Plain(flat), flat["fedamp.lambda"], flat["fedamp.alpha"]
    x, u = q.start.copy(), q.start.copy()
    for _ in range(q.rounds):
        x = q.train(x, lambda i, at, u=u: strength * (at - u[i]))  # type: ignore[misc]
        w = np.zeros((q.n, q.n))
        for i in range(q.n):
            others = [j for j in range(q.n) if q.heard[i, j] and j != i]
            squares = [float(((x[i] - x[j]) ** 2).sum()) for j in others]
            sigma = flat["fedamp.sigma"]
            sigma = float(np.median(squares)) if sigma == "auto" else sigma
            for j, z in zip(others, squares, strict=True):
                w[i, j] = alpha * np.exp(-z / sigma)
            w[i] /= max(1.0, w[i].sum())
            w[i, i] = 1 - w[i].sum()
        u = np.array([sum(w[i, j] * x[j] for j in range(q.n)) for i in range(q.n)])
    return x, w


@pytest.mark.some(4)
@pytest.mark.parametrize(("topology", "nodes"), [("full", 1), ("ring", 6)])
@pytest.mark.parametrize("starts", ["common", "own"])
@pytest.mark.parametrize(("sigma", "alpha"), [("auto", 0.1), ("auto", 0.9), (0.5, 0.3)])
def test_it_equals_a_plain_loop(
    tmp_path: Path, starts: str, sigma: float | str, alpha: float, topology: str, nodes: int
) -> None:
    flat = camps(
        tmp_path, "fedamp", starts=starts, topology=topology,
        **{"fedamp.sigma": sigma, "fedamp.alpha": alpha, "fedamp.lambda": 0.7},
    )  # fmt: skip
    x, w = twin(flat)
    result = run(flat, tmp_path, nodes)
    assert np.abs(result.theta() - x).max() < 1e-12
    assert np.abs(result.weights() - w).max() < 1e-12
    assert np.abs(twin(flat | {"fedamp.lambda": 0.0})[0] - x).max() > 1e-3  # the pull has an effect


def offers_of(x: Floats, ages: list[int] | None = None, heard: Any = None) -> Letters:
    """Return the letters of a round, along a mask [recipient, sender]; default all."""
    n = len(x)
    recipients, senders = np.nonzero(~np.eye(n, dtype=bool) if heard is None else heard)
    tensors = {"x": torch.tensor(x, dtype=torch.float64)}
    return Letters(
        senders, recipients, senders, np.arange(n), tensors, np.array(ages or [], dtype=np.int64)
    )


def after(rule: FedAMP, offers: Letters) -> tuple[Floats, Floats]:
    state = rule.update(rule.init(), rule.inbox(1, offers))
    return state.u.numpy(), rule.weights(state)


X = np.array([[0.0], [1.0], [3.0], [7.0]])


def test_weights_by_hand(tmp_path: Path) -> None:
    """Squared distances of peer 0: 1, 9, 49, so sigma is 9; of peer 3: 49, 36, 16, so 36."""
    u, w = after(rule_of(FedAMP(alpha=0.2), parabolas(tmp_path, 4)), offers_of(X))
    first = [0.2 * np.exp(-z / 9) for z in (1, 9, 49)]
    last = [0.2 * np.exp(-z / 36) for z in (49, 36, 16)]
    assert w[0].tolist() == pytest.approx([1 - sum(first), *first], rel=1e-14)
    assert w[3].tolist() == pytest.approx([*last, 1 - sum(last)], rel=1e-14)
    assert np.allclose(u, w @ X, rtol=1e-14)


def test_with_one_sigma_messages_conserve_the_sum_of_the_models(tmp_path: Path) -> None:
    """A' depends on the distance alone, so xi is symmetric: what one receives another gives."""
    u, w = after(rule_of(FedAMP(alpha=0.2, sigma=5.0), parabolas(tmp_path, 4)), offers_of(X))
    assert np.abs(w - w.T).max() < 1e-15
    assert u.sum() == pytest.approx(X.sum(), rel=1e-14)
    assert np.abs(u - X).max() > 0.1


def test_a_large_sigma_weighs_all_alike(tmp_path: Path) -> None:
    _, w = after(rule_of(FedAMP(alpha=0.2, sigma=1e300), parabolas(tmp_path, 4)), offers_of(X))
    assert np.allclose(w, np.full((4, 4), 0.2) + 0.2 * np.eye(4), atol=1e-15)


def test_weights_above_one_are_divided_by_their_sum(tmp_path: Path) -> None:
    u, w = after(rule_of(FedAMP(alpha=1.0, sigma=1e300), parabolas(tmp_path, 4)), offers_of(X))
    assert np.allclose(w, (1 - np.eye(4)) / 3, atol=1e-15)
    assert u.ravel().tolist() == pytest.approx(((X.sum() - X) / 3).ravel().tolist(), rel=1e-14)


def test_equal_models_stay(tmp_path: Path) -> None:
    u, w = after(
        rule_of(FedAMP(alpha=0.2), parabolas(tmp_path, 4)), offers_of(np.full((4, 1), 0.7))
    )
    assert np.allclose(u, 0.7, rtol=1e-15)
    assert np.allclose(w.sum(axis=1), 1, atol=1e-15)


def test_where_most_models_are_equal_the_others_have_no_weight(tmp_path: Path) -> None:
    """The median of 0, 0 and 9 is 0."""
    x = np.array([[1.0], [1.0], [1.0], [4.0]])
    _, w = after(rule_of(FedAMP(alpha=0.2), parabolas(tmp_path, 4)), offers_of(x))
    assert w[0].tolist() == pytest.approx([0.6, 0.2, 0.2, 0], rel=1e-14)
    _, w = after(rule_of(FedAMP(alpha=1.0), parabolas(tmp_path, 4)), offers_of(X / 7))
    assert w.min() >= 0


def test_an_old_model_has_a_smaller_weight_and_a_missing_one_has_none(tmp_path: Path) -> None:
    """Model 1 is three rounds old and a = 1: a fourth; peer 2 receives nothing."""
    rule = rule_of(FedAMP(alpha=0.2, sigma=5.0), parabolas(tmp_path, 4))
    rule.engine.staleness_discount = 1.0
    heard = ~np.eye(4, dtype=bool)
    heard[2], heard[0, 3] = False, False
    u, w = after(rule, offers_of(X, [0, 3, 0, 0], heard))
    a, b = 0.2 * np.exp(-1 / 5) / 4, 0.2 * np.exp(-9 / 5)
    assert w[0].tolist() == pytest.approx([1 - a - b, a, b, 0], rel=1e-14)
    assert w[2].tolist() == [0, 0, 1, 0]
    assert u[2] == X[2]


def test_far_groups_do_not_see_each_other(tmp_path: Path) -> None:
    flat = camps(tmp_path, "fedamp", **{"fedamp.alpha": 0.2, "fedamp.sigma": 0.2})
    result = run(flat, tmp_path)
    x, w, same = result.theta(), result.weights(), CAMP[:, None] == CAMP
    squares = ((x[:, None] - x) ** 2).sum(axis=2)
    nearest = 0.2 * np.exp(-squares[~same].min() / 0.2)
    assert w[~same].max() == pytest.approx(nearest, rel=1e-9)
    assert nearest < 1e-4
    assert w[same].min() > 0.03


def test_the_median_makes_it_independent_of_the_scale(tmp_path: Path) -> None:
    """A problem in other units: the same weights, and models in these units."""
    options = {"fedamp.alpha": 0.2, "fedamp.lambda": 0.5}
    flat = camps(tmp_path / "a", "fedamp", **options)
    one = run(flat, tmp_path / "a")
    problem = json.loads((tmp_path / "a" / "problem.json").read_text(encoding="utf-8"))
    for name in ("centre", "start", "validation_centre"):
        problem[name] = (1024 * np.array(problem[name])).tolist()
    (tmp_path / "b.json").write_text(json.dumps(problem), encoding="utf-8")
    other = run(flat | {"quadratic.file": str(tmp_path / "b.json")}, tmp_path / "b")
    assert np.array_equal(one.weights(), other.weights())
    assert np.array_equal(1024 * one.theta(), other.theta())


def test_without_a_pull_it_is_local_training(tmp_path: Path) -> None:
    result = run(digits("fedamp", **{"fedamp.lambda": 0.0}), tmp_path / "a")
    assert stacked(result).equal(stacked(run(digits("local"), tmp_path / "b")))


def test_one_peer_alone_is_pulled_to_its_last_model(tmp_path: Path) -> None:
    """As FedProx's only peer; so is every peer with alpha = 0."""
    alone = run(one_peer(tmp_path / "a", "fedamp", **{"fedamp.lambda": 0.4}), tmp_path / "a")
    prox = run(one_peer(tmp_path / "b", "fedprox", **{"fedprox.mu": 0.4}), tmp_path / "b")
    assert np.array_equal(alone.theta(), prox.theta())
    options = {"fedamp.alpha": 0.0, "fedamp.lambda": 0.4}
    apart = run(camps(tmp_path / "c", "fedamp", **options), tmp_path / "c")
    graph = tmp_path / "graph.json"
    graph.write_text("[]", encoding="utf-8")
    nobody = {"fedprox.mu": 0.4, "topology": "file", "topology-file": str(graph)}
    each = run(camps(tmp_path / "d", "fedprox", **nobody), tmp_path / "d")
    assert np.array_equal(apart.theta(), each.theta())
    assert np.array_equal(apart.weights(), np.eye(6))
