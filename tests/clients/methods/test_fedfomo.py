"""FedFomo: a plain loop, weights by hand, and the choice of models to pull."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.clients.letters import Letters
from coterie.clients.methods.fedfomo import FedFomo, first_order
from tests.inline import Floats, run
from tests.kit import CAMP, Plain, camps, rule_of
from tests.problems import write_quadratic


def twin(flat: dict[str, Any], baseline: str) -> tuple[Floats, Floats, Floats]:
    """Return models, weights, and their sum over rounds in which peers pull all models."""
    q = Plain(flat)
    x, total = q.start.copy(), np.zeros((q.n, q.n))
    for _ in range(q.rounds):
        before, shown = x, q.train(x)
        base = shown if baseline == "trained" else before
        x, w = base.copy(), np.eye(q.n)
        for i in range(q.n):
            value = np.zeros(q.n)
            for j in np.flatnonzero(q.heard[i]):
                distance = np.linalg.norm(shown[j] - base[i])
                if distance > 0:
                    value[j] = (q.loss(i, base[i], q.v) - q.loss(i, shown[j], q.v)) / distance
            good = np.maximum(value, 0)
            if good.sum() > 0:
                w[i] = good / good.sum()
                x[i] = base[i] + sum(w[i, j] * (shown[j] - base[i]) for j in range(q.n))
        total += w
    return x, w, total


@pytest.mark.parametrize(("topology", "nodes"), [("full", 1), ("ring", 6)])
@pytest.mark.parametrize("baseline", ["trained", "previous"])
def test_it_equals_a_plain_loop(tmp_path: Path, baseline: str, topology: str, nodes: int) -> None:
    options = {"fedfomo.models": 0, "fedfomo.baseline": baseline, "topology": topology}
    flat = camps(tmp_path, "fedfomo", **options, **{"local-steps": 1})
    x, w, total = twin(flat, baseline)
    result = run(flat, tmp_path, nodes)
    assert np.abs(result.theta() - x).max() < 1e-10
    assert np.abs(result.weights() - w).max() < 1e-9
    assert np.count_nonzero(total * (1 - np.eye(6))) >= 3  # some weights are positive
    assert np.count_nonzero(total[CAMP[:, None] != CAMP]) == 0


def test_weights_by_hand() -> None:
    """(5 - 3) / 4, (5 - 6) / 2, 0 at distance 0, 0 for an infinite loss."""
    others, distances = np.array([3.0, 6.0, 5.0, np.inf]), np.array([4.0, 2.0, 0.0, 1.0])
    value = first_order(np.full(4, 5.0), others, distances)
    assert value.tolist() == [0.5, -0.5, 0.0, 0.0]


def centred(directory: Path, centre: Sequence[float]) -> dict[str, Any]:
    """f_i(x) = (x - c_i)^2 / 2 in one dimension, from 0."""
    return write_quadratic(
        directory / "problem.json", [[1.0]] * len(centre), [[c] for c in centre], [0.0]
    )


def test_a_round_by_hand(tmp_path: Path) -> None:
    """Peer 0 at 4 has optimum 0: models 1 and 3 help, (8 - 1/2) / 3 = 2.5, (8 - 9/2) / 1 = 3.5."""
    rule = rule_of(FedFomo(models=0), centred(tmp_path, [0.0, 1.0, 6.0, 3.0]))
    x = torch.tensor([[4.0], [1.0], [6.0], [3.0]], dtype=torch.float64)
    state = replace(rule.init(), x=x)
    senders = np.array([1, 2, 3])
    offers = Letters(senders, senders * 0, senders, np.arange(4), {"x": x})
    after = rule.update(state, rule.inbox(1, offers))
    w1, w3 = 2.5 / 6, 3.5 / 6
    assert after.w[0].tolist() == pytest.approx([0, w1, 0, w3], rel=1e-14)
    assert after.x[0].item() == pytest.approx(w1 * 1 + w3 * 3, rel=1e-14)
    worse = (8 - 18) / 2  # the model at 6
    total = 2.5 + 3.5 - worse
    expected = [0, 2.5 / total, worse / total, 3.5 / total]
    assert after.affinity[0].tolist() == pytest.approx(expected, rel=1e-14)
    # The others received nothing: they keep their models, and affinities drop to the lowest.
    assert after.x[1:].flatten().tolist() == [1.0, 6.0, 3.0]
    assert np.array_equal(after.w[1:], np.eye(4)[1:])
    assert (after.affinity[1:] == 0).all()


def test_the_step_towards_an_old_model_is_shorter(tmp_path: Path) -> None:
    """The round above with model 3 three rounds old and a = 1: its weight is a fourth."""
    rule = rule_of(FedFomo(models=0), centred(tmp_path, [0.0, 1.0, 6.0, 3.0]))
    rule.engine.staleness_discount = 1.0
    x = torch.tensor([[4.0], [1.0], [6.0], [3.0]], dtype=torch.float64)
    senders, ages = np.array([1, 2, 3]), np.array([0, 0, 0, 3])
    offers = Letters(senders, senders * 0, senders, np.arange(4), {"x": x}, ages)
    after = rule.update(replace(rule.init(), x=x), rule.inbox(1, offers))
    w1, w3 = 2.5 / 6, 3.5 / 6 / 4
    assert after.w[0].tolist() == pytest.approx([1 - w1 - w3, w1, 0, w3], rel=1e-14)
    assert after.x[0].item() == pytest.approx((1 - w1 - w3) * 4 + w1 * 1 + w3 * 3, rel=1e-14)


def test_who_is_wanted_and_does_not_come_sinks_to_the_lowest(tmp_path: Path) -> None:
    rule = rule_of(FedFomo(models=2, epsilon=0.0), centred(tmp_path, [0.0, 1.0, 6.0, 3.0]))
    affinity = np.array([[0.0, 0.9, 0.8, -0.5]] * 4)
    x = torch.tensor([[4.0], [1.0], [6.0], [3.0]], dtype=torch.float64)
    state = replace(rule.init(), x=x, affinity=affinity)
    one = np.array([1])
    offers = Letters(one, one * 0, one, np.arange(4), {"x": x})
    after = rule.update(state, rule.inbox(5, offers)).affinity[0]
    assert after.tolist() == pytest.approx([0.0, 1.9, -0.5, -0.5])


def wanted(rule: FedFomo, affinity: Floats, round_: int) -> list[set[int]]:
    edges = rule.edges(rule.wants(replace(rule.init(), affinity=affinity), round_))
    return [set(edges[edges[:, 1] == i, 0].tolist()) for i in rule.engine.peers]


def test_without_exploration_the_largest_affinities_are_pulled(tmp_path: Path) -> None:
    rule = rule_of(FedFomo(models=3, epsilon=0.0), centred(tmp_path, [0.0] * 7))
    affinity = np.random.default_rng(0).normal(size=(7, 7))
    for i, pulled in enumerate(wanted(rule, affinity, 4)):
        ranked = [j for j in np.argsort(-affinity[i]).tolist() if j != i]
        assert pulled == set(ranked[:3])


def test_a_peer_pulls_m_others_whatever_it_explores(tmp_path: Path) -> None:
    affinity = np.random.default_rng(0).normal(size=(7, 7))
    for models, epsilon, expected in ((3, 0.5, 3), (0, 0.5, 6), (9, 1.0, 6), (1, 1.0, 1)):
        rule = rule_of(FedFomo(models, epsilon, 0.0), centred(tmp_path, [0.0] * 7))
        for round_ in range(1, 20):
            for i, pulled in enumerate(wanted(rule, affinity, round_)):
                assert len(pulled - {i}) == len(pulled) == expected


def test_exploration_has_its_chance_and_fades(tmp_path: Path) -> None:
    """One slot among 20: the best peer is not picked with probability epsilon * 19/20."""
    affinity = np.eye(21)[np.arange(1, 22) % 21]
    rule = rule_of(FedFomo(1, 0.4, 0.0), centred(tmp_path, [0.0] * 21))
    rounds = range(1, 101)
    strayed = [
        pulled != {(i + 1) % 21}
        for t in rounds
        for i, pulled in enumerate(wanted(rule, affinity, t))
    ]
    assert np.mean(strayed) == pytest.approx(0.4 * 19 / 20, abs=4 * (0.24 / len(strayed)) ** 0.5)
    fading = rule_of(FedFomo(1, 0.4, 0.1), centred(tmp_path, [0.0] * 21))
    strays = [
        sum(pulled != {(i + 1) % 21} for i, pulled in enumerate(wanted(fading, affinity, t)))
        for t in (1, 5, 6, 50)
    ]
    assert strays[0] > 0 == strays[1] == strays[2] == strays[3]


def test_ties_and_choices_do_not_depend_on_who_hosts_whom(tmp_path: Path) -> None:
    options = FedFomo(models=2, epsilon=0.3)
    whole = rule_of(options, centred(tmp_path, [0.0] * 7))
    part = rule_of(options, centred(tmp_path, [0.0] * 7), [2, 5])
    every = [wanted(whole, np.zeros((7, 7)), t) for t in (1, 2, 3)]
    some = [wanted(part, np.zeros((2, 7)), t) for t in (1, 2, 3)]
    assert some == [[all_[2], all_[5]] for all_ in every]
    assert every[0] != every[1]


def test_a_peer_whom_nobody_helps_trains_alone(tmp_path: Path) -> None:
    """Distant centres: every other peer's model has a higher loss."""
    n = 4
    flat: dict[str, Any] = write_quadratic(
        tmp_path / "far.json", np.ones((n, 2)), 10 * np.eye(n)[:, :2] - 20 * np.eye(n)[:, 2:],
        np.zeros(2),
    )  # fmt: skip
    flat |= {"num-server-rounds": 6, "local-steps": 2, "learning-rate": 0.2}
    result = run(flat | {"method": "fedfomo", "fedfomo.models": 0}, tmp_path)
    local = run(flat | {"method": "local"}, tmp_path / "local")
    assert np.array_equal(result.theta(), local.theta())
    assert np.array_equal(result.weights(), np.eye(n))
