"""FedEM: a plain loop, FedAvg as its limit, and a likelihood that never decreases."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from coterie.app.config.preflight import problem_of
from coterie.clients.engine.engine import Engine
from coterie.clients.letters import Letters
from coterie.clients.methods.fedem import FedEM, FedEMState
from coterie.clients.models.options import MODELS
from coterie.clients.training import Training
from tests.inline import Floats, run
from tests.kit import CAMP, D, N, Plain, camps, digits, normed, rule_of, stacked
from tests.networks import outputs
from tests.problems import classification


def twin(flat: dict[str, Any], k: int) -> tuple[Floats, Floats, Floats]:
    """Return components (n, k, d), mixture weights (n, k) and collaboration weights (n, n)."""
    q = Plain(flat)
    x, pi = np.tile(q.start[np.arange(k) % q.n], (q.n, 1, 1)), np.full((q.n, k), 1 / k)
    velocity, w = np.zeros_like(x), np.eye(q.n)
    for _ in range(q.rounds):
        shown = x.copy()
        for i in range(q.n):
            odds = pi[i] * np.exp([-q.loss(i, theta) for theta in x[i]])
            pi[i] = odds / odds.sum()  # one example: its responsibilities are their mean
            for c in range(k):
                for _ in range(q.steps):
                    g = pi[i, c] * q.a[i] * (shown[i, c] - q.c[i])
                    velocity[i, c] = q.momentum * velocity[i, c] + g
                    shown[i, c] = shown[i, c] - q.eta * velocity[i, c]
        for i in range(q.n):
            senders = q.heard[i]
            for c in range(k):
                x[i, c] = q.mean(shown[:, c], senders)
            trained = q.samples * senders * pi.T
            w[i] = pi[i] @ (trained / trained.sum(axis=1, keepdims=True))
    return x, pi, w


@pytest.mark.parametrize(("topology", "nodes"), [("full", 1), ("ring", 6)])
@pytest.mark.parametrize("k", [2, 4])
def test_it_equals_a_plain_loop(tmp_path: Path, k: int, topology: str, nodes: int) -> None:
    flat = camps(tmp_path, "fedem", starts="own", topology=topology, **{"fedem.components": k})
    x, pi, w = twin(flat, k)
    result, q = run(flat, tmp_path, nodes), Plain(flat)
    assert np.abs(stacked(result, "members.theta").numpy() - x).max() < 1e-10
    assert np.abs(stacked(result, "mixture").numpy() - pi).max() < 1e-10
    assert np.abs(result.weights() - w).max() < 1e-10
    assert np.abs(result.theta() - x[np.arange(N), pi.argmax(axis=1)]).max() < 1e-10
    loss = [pi[i] @ [q.loss(i, theta) for theta in x[i]] for i in range(N)]
    assert np.allclose(result.metric("test_loss"), loss, rtol=1e-10)
    assert np.abs(pi - 1 / k).max() > 0.1
    reported = np.stack([result.metric(f"component_{c}") for c in range(k)], axis=1)
    assert np.abs(reported - pi).max() < 1e-10


@pytest.mark.parametrize("topology", ["full", "ring"])
def test_one_component_is_fedavg(tmp_path: Path, topology: str) -> None:
    one = {"fedem.components": 1, "topology": topology}
    for make in (camps, lambda _, method, **more: digits(method, **more)):
        result = run(make(tmp_path / "a", "fedem", **one), tmp_path / "a")
        fedavg = run(make(tmp_path / "b", "fedavg", topology=topology), tmp_path / "b")
        for mine, theirs in zip(result.models(), fedavg.models(), strict=True):
            assert all(mine[name].equal(value) for name, value in theirs.items())
        assert np.allclose(result.metric("test_loss"), fedavg.metric("test_loss"), rtol=1e-6)
        if topology == "full":
            assert np.allclose(result.weights(), fedavg.weights(), rtol=1e-12)


def test_one_component_is_fedavg_with_batch_norm_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "linear", replace(MODELS["linear"], build=normed))
    result = run(digits("fedem", model="linear", **{"fedem.components": 1}), tmp_path / "a")
    fedavg = run(digits("fedavg", model="linear"), tmp_path / "b")
    assert any("running_mean" in name for name in fedavg.models()[0])
    for mine, theirs in zip(result.models(), fedavg.models(), strict=True):
        assert all(mine[name].equal(value) for name, value in theirs.items())


def test_components_and_peers_have_batch_norm_statistics_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MODELS, "linear", replace(MODELS["linear"], build=normed))
    result = run(digits("fedem", model="linear", **{"fedem.components": 2}), tmp_path)
    means = stacked(result, "members.2.running_mean")  # (peers, components, units)
    assert means.shape == (3, 2, 5)
    assert len(torch.unique(means.flatten(0, 1), dim=0)) == 6
    weights = stacked(result, "members.1.weight")
    assert weights[1:].equal(weights[:1].expand(2, -1, -1, -1))  # parameters are shared


def everybody_hears(offers: dict[str, torch.Tensor]) -> Letters:
    recipients, senders = np.nonzero(~np.eye(N, dtype=bool))
    return Letters(senders, recipients, senders, np.arange(N), offers)


def log_likelihood(rule: FedEM, state: FedEMState) -> float:
    """Return sum_i p_i log sum_k pi_ik exp(-f_i(theta_k))."""
    a, c = rule.engine.data._pool[:, 0], rule.engine.data._pool[:, 1]
    total = 0.0
    for i, n_i in enumerate(rule.engine.samples):
        losses = (a[i] * (state.members[i] - c[i]) ** 2).sum(dim=1).numpy() / 2
        total += n_i * np.log(state.pi[i] @ np.exp(-losses))
    return float(total / rule.engine.samples.sum())


@pytest.mark.parametrize("k", [2, 3])
def test_the_likelihood_never_falls(tmp_path: Path, k: int) -> None:
    """A step of at most 1 / L down the M-step's objective raises it: generalised EM.

    The objective of theta_k is sum_i p_i q_ik f_i, whose curvature is at most max a <= 1.5.
    """
    more: dict[str, Any] = {"local-steps": 1, "momentum": 0.0, "learning-rate": 1 / 1.5}
    rule = rule_of(FedEM(k), camps(tmp_path, "fedem", starts="own", **more))
    state = rule.init()
    values = []
    for t in range(1, 80):
        state, offers = rule.offer(state, t)
        state = rule.update(state, rule.inbox(t, everybody_hears(dict(offers))))
        values.append(log_likelihood(rule, state))
        assert np.allclose(state.pi.sum(axis=1), 1, atol=1e-15)
    assert np.diff(values).min() > -1e-14
    assert values[-1] > values[0] + 0.1
    # Different camps end with different components.
    assert np.abs(state.pi @ state.pi.T)[CAMP[:, None] != CAMP].max() < 0.05


def test_on_digits_the_training_loss_is_minus_the_likelihood_and_never_rises(
    tmp_path: Path,
) -> None:
    """The loss is the cross-entropy of the averaged probabilities; small steps on all data."""
    more = {"fedem.components": 2, "batch-size": 32, "local-steps": 1, "momentum": 0.0}
    flat = digits("fedem", **more) | {"evaluate-every": 1, "num-server-rounds": 25}
    result = run(flat | {"learning-rate": 0.2, "dtype": "float64"}, tmp_path)
    losses = [result.metric("train_loss", t).mean() for t in result.rounds]  # equal samples
    assert np.diff(losses).max() < 1e-12
    assert losses[-1] < losses[0] - 0.3


def test_the_saved_components_make_the_reported_predictions(tmp_path: Path) -> None:
    flat = digits("fedem", **{"fedem.components": 3})
    result = run(flat, tmp_path)
    problem = problem_of(result.config)
    mean, std = torch.tensor(problem.mean), torch.tensor(problem.std)
    for i, model in enumerate(result.models()):
        raw = torch.tensor(problem.inputs[problem.test.rows[i]].astype(np.float64))
        inputs, targets = ((raw - mean) / std).flatten(1).float(), problem.test.targets[i]
        chances = torch.zeros(len(inputs), 10)
        for k, share in enumerate(model["mixture"]):
            w = {
                name.removeprefix("members."): v[k]
                for name, v in model.items()
                if "members" in name
            }
            hidden = F.linear(inputs, w["1.weight"], w["1.bias"]).relu()
            chances += share * F.linear(hidden, w["3.weight"], w["3.bias"]).softmax(dim=1)
        loss = -chances[torch.arange(len(targets)), torch.tensor(targets)].log().mean()
        assert result.metric("test_loss")[i] == pytest.approx(loss.item(), rel=1e-5)
        right = (chances.argmax(dim=1).numpy() == targets).mean()
        assert result.metric("test_accuracy")[i] == pytest.approx(right)


def test_responsibilities_weigh_example_by_example() -> None:
    """A round of peers of unequal size, by hand: pi is the mean of q, q scales the gradients."""
    training = Training(batch_size=16, local_steps=1)
    problem = classification((11, 5, 8))
    engine = Engine(problem, "linear", None, range(3), training, device="cpu", dtype="float64")
    rule = FedEM(2).bind(engine, 3)
    before = rule.init()
    after, _ = rule.offer(before, 1)
    for p in range(3):
        members = before.members[p].clone().requires_grad_()
        batch = engine.data.everything(np.array([p, p]))
        inputs, targets = engine.data.examples("train", batch.peers_e, batch.rows_eb)
        losses = engine.task.losses(outputs(engine.network, members, {}, inputs)[0], targets)
        q = (-losses.detach()).softmax(dim=0)  # pi starts uniform
        assert after.pi[p] == pytest.approx(q.mean(dim=1).numpy(), rel=1e-12)
        (g,) = torch.autograd.grad((q * losses).mean(dim=1).sum(), members)
        expected = before.members[p] - training.learning_rate * g
        assert torch.allclose(after.members[p], expected, rtol=0, atol=1e-12)


def test_losses_example_by_example_have_the_mean_of_losses(tmp_path: Path) -> None:
    rule = rule_of(FedEM(2), camps(tmp_path, "fedem", starts="own"), [1, 4])
    engine = rule.engine
    x_ed = torch.randn(4, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    peers = np.array([0, 1, 1, 0])
    each = engine.example_losses(x_ed, {}, "train", peers)
    assert torch.allclose(each[:, 0], engine.losses(x_ed, {}, "train", peers).losses)


def test_a_component_that_a_peer_has_given_up_stays_given_up(tmp_path: Path) -> None:
    rule = rule_of(FedEM(2), camps(tmp_path, "fedem", starts="own"))
    pi = np.tile([1.0, 0.0], (N, 1))
    state, _ = rule.offer(replace(rule.init(), pi=pi), 1)
    assert np.array_equal(state.pi, pi)
    assert state.members[:, 1].equal(rule.init().members[:, 1])  # and is not trained
