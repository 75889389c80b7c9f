"""Mixture, selection and stacking: laws, limits and plain twins; with trees and networks."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.app.config.config import Config, ConfigError
from coterie.clients.engine import linear
from coterie.clients.engine.tasks import TASKS
from coterie.clients.methods.mixture import Mixture, Selection, em_step
from tests.inline import run

METHODS = ("mixture", "selection", "stacking")
TREES: dict[str, Any] = {
    "dataset": "digits", "model": "boosted-trees", "boosted-trees.trees": 3, "peers": 3,
    "partition.samples-per-peer": 40, "partition.clusters": 1, "num-server-rounds": 2,
    "evaluate-every": 1, "device": "cpu",
}  # fmt: skip


def random_losses(seed: int, members: int = 4, rows: int = 30) -> np.ndarray:
    return np.random.default_rng(seed).gamma(1.0, size=(members, rows))


def objective(w: np.ndarray, losses: np.ndarray, prior: float) -> float:
    return float(np.log(w @ np.exp(-losses)).sum() + prior * np.log(w[0]))


@pytest.mark.parametrize("seed", range(10))
def test_em_never_lowers_the_penalised_likelihood(seed: int) -> None:
    losses, w = random_losses(seed), np.full(4, 0.25)
    for _ in range(50):
        after = em_step(w, losses, 3.0)
        assert objective(after, losses, 3.0) >= objective(w, losses, 3.0) - 1e-12
        w = after


def test_em_ends_at_the_maximum() -> None:
    """At the maximum no exchange of weight between two models helps."""
    losses = random_losses(1)
    w = Mixture(prior=3.0).chosen(losses)
    assert w.sum() == pytest.approx(1)
    for j, k in product(range(4), range(4)):
        moved = w.copy()
        step = min(1e-3, w[j] / 2)
        moved[j] -= step
        moved[k] += step
        assert objective(moved, losses, 3.0) <= objective(w, losses, 3.0) + 1e-6


def test_limits_of_the_mixture() -> None:
    losses = random_losses(2)
    assert Mixture(prior=1e12).chosen(losses)[0] == pytest.approx(1)
    assert Mixture().chosen(losses[:1]).tolist() == [1.0]
    assert Mixture().chosen(np.zeros((3, 0))).tolist() == [1.0, 0.0, 0.0]
    losses[1] = 1e30  # a model whose outputs are not finite
    assert Mixture().chosen(losses)[1] < 1e-12


@pytest.mark.parametrize("seed", range(10))
def test_selection_is_the_greedy_loop(seed: int) -> None:
    losses = random_losses(seed)
    added: list[int] = []
    for _ in range(12):
        scores = [
            -np.log(np.exp(-losses[[*added, j]]).mean(axis=0)).sum() for j in range(len(losses))
        ]
        added.append(int(np.argmin(scores)))
    expected = np.bincount(added, minlength=4) / 12
    assert np.allclose(Selection().chosen(losses), expected)


def test_ties_are_for_the_own_model_and_a_budget_limits_the_others() -> None:
    assert Selection().chosen(np.ones((3, 5))).tolist() == [1.0, 0.0, 0.0]
    for seed in range(10):
        assert (Selection(budget=1).chosen(random_losses(seed))[1:] > 0).sum() <= 1


def test_stacking_minimises_its_objective() -> None:
    """The gradient at the minimum, by hand, is 0; a large ridge leaves the own model."""
    g = np.random.default_rng(0)
    z, y = torch.from_numpy(g.normal(size=(3, 40, 2))), torch.from_numpy(g.integers(2, size=40))
    v, b = linear.ridge(TASKS["classification"], z, y, 2.0)
    scores = np.einsum("m,mrk->rk", v, z.numpy()) + b
    p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True) - np.eye(2)[y]
    slope_v = np.einsum("rk,mrk->m", p, z.numpy()) + 2.0 * (v - [1, 0, 0])
    assert np.abs(slope_v).max() < 1e-5
    assert np.abs(p.sum(axis=0) + 2.0 * b).max() < 1e-5
    v, b = linear.ridge(TASKS["classification"], z, y, 1e12)
    assert np.allclose([*v, *b], [1, 0, 0, 0, 0], atol=1e-9)
    z[1, 0, 0] = torch.nan
    assert linear.ridge(TASKS["classification"], z, y, 1.0)[0][1] == 0


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_trees_on_nodes_are_trees_in_process(tmp_path: Path, method: str) -> None:
    """Byte for byte; the second round neither fits nor sends again."""
    flat = TREES | {"method": method}
    one, other = run(flat, tmp_path / "one"), run(flat, tmp_path / "other", 3)
    assert not one.refused
    for name in ("test_loss", "test_accuracy", "bytes_sent", "gradient_evaluations"):
        assert (one.metric(name) == other.metric(name)).all()
        assert (one.metric(name, 1) == one.metric(name, 2)).all()
    assert (one.metric("gradient_evaluations") > 0).all()
    assert (one.metric("bytes_sent") > 0).all()
    assert (one.weights(2) == other.weights(2)).all()


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_hostile_tree_costs_its_sender_its_letters(tmp_path: Path, method: str) -> None:
    """The others' numbers are those of a run in which these letters are refused as not finite."""
    flat = TREES | {"method": method, "peers": 4, "attack.peers": "0"}
    hostile = run(flat | {"attack.kind": "gaussian"}, tmp_path / "hostile", 2)
    absent = run(flat | {"attack.kind": "nan"}, tmp_path / "absent", 2)
    for name in ("test_loss", "test_accuracy"):
        assert (hostile.metric(name)[1:] == absent.metric(name)[1:]).all()
    assert (hostile.weights(2)[1:, 0] == 0).all()
    assert all(hostile.reports[1, peer].metrics["refused_models"] for peer in (1, 2, 3))


@pytest.mark.parametrize("method", METHODS)
def test_without_other_peers_it_is_local(tmp_path: Path, method: str) -> None:
    flat = TREES | {"peers": 1, "num-server-rounds": 1}
    alone = run(flat | {"method": "local"}, tmp_path / "local")
    combined = run(flat | {"method": method}, tmp_path / method)
    loss = combined.metric("test_loss")
    assert loss == pytest.approx(alone.metric("test_loss"), rel=1e-6)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"method": "fedavg"}, "choose local, pooled, mixture, selection, stacking, boosting"),
        ({"method": "mixture", "payload": "int8"}, "payload"),
        ({"method": "mixture", "attack.kind": "scale", "attack.peers": "0"}, "sums of parameters"),
        ({"method": "mixture", "model.frozen": "feature"}, "a network's layers"),
        (
            {"method": "local", "privacy.kind": "examples"},
            "is fitted by .* at once: noise is added to gradients",
        ),
    ],
)
def test_what_trees_cannot_do_is_refused_with_the_reason(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Config.from_flat(TREES | keys)


def test_networks_need_validation_rows_and_trees_do_not() -> None:
    flat = TREES | {"method": "mixture"}
    assert Config.from_flat(flat).validation[1] == 0
    assert Config.from_flat(flat | {"model": "mlp"}).validation[1] > 0
