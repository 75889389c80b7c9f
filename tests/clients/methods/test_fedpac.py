"""FedPAC: a plain loop, its statistics and weights by hand, the letters, and limits."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.preflight import check, problem_of
from coterie.clients.engine.engine import Engine
from coterie.clients.engine.streams import Purpose
from coterie.clients.letters import Letters
from coterie.clients.methods.fedrep import FedPAC
from coterie.clients.models.build import build
from tests.inline import Floats, run
from tests.kit import configured, digits, quadratic, stacked

BODY, HEAD, CLASSES, WIDTH = 64 * 6 + 6, 6 * 10 + 10, 10, 6


def few(**more: Any) -> dict[str, Any]:
    """Three peers with 16 digits of any class each, in float64."""
    return digits("fedpac", **{"partition.kind": "iid", "dtype": "float64", **more})


def best_on_simplex(matrix: Floats) -> Floats:
    """Minimise a' P a over the simplex by trying every support."""
    n, best, value = len(matrix), np.zeros(len(matrix)), float("inf")
    for size in range(1, n + 1):
        for support in map(list, combinations(range(n), size)):
            inside = matrix[np.ix_(support, support)]
            system = np.block(
                [[inside, np.ones((size, 1))], [np.ones((1, size)), np.zeros((1, 1))]]
            )
            solved = np.linalg.lstsq(system, np.eye(size + 1)[-1], rcond=None)[0][:-1]
            a = np.zeros(n)
            a[support] = solved
            if solved.min() >= 0 and a @ matrix @ a < value - 1e-15:
                best, value = a, float(a @ matrix @ a)
    return best


class Peer:
    """A module with the data of one peer, and its statistics by loops over examples."""

    def __init__(self, engine: Engine, p: int, options: object) -> None:
        count = int(engine.data.shards["train"].lengths_p[p])
        self.inputs, targets = engine.data.examples(
            "train", torch.tensor([p]), torch.arange(count)[None]
        )
        self.inputs, self.targets, self.n = self.inputs[0], targets[0], count
        self.module = build("auto", options, "classification", self.inputs.shape[1:], CLASSES)
        assert isinstance(self.module, nn.Sequential)
        self.head, self.body = self.module[-1], self.module[:-1]
        x_pd, _ = engine.initial()
        nn.utils.vector_to_parameters(x_pd[p].clone(), self.module.parameters())
        self.module.to(torch.float64)
        training = engine.training
        self.optimizers = [
            torch.optim.SGD(
                list(part.parameters()), lr=training.learning_rate, momentum=training.momentum,
                weight_decay=training.weight_decay,
            )
            for part in (self.head, self.body)
        ]  # fmt: skip

    @torch.no_grad()
    def statistics(self) -> tuple[Floats, Floats, float]:
        """Return class shares, mean features, and V."""
        z = self.body(self.inputs).numpy()
        share, mean, v = np.zeros(CLASSES), np.zeros((CLASSES, WIDTH)), 0.0
        for k in range(CLASSES):
            own = z[self.targets.numpy() == k]
            if len(own):
                share[k], mean[k] = len(own) / self.n, own.mean(axis=0)
                v += share[k] * np.trace(own.T @ own / len(own)) - share[k] ** 2 * mean[k] @ mean[k]
        return share, mean, v / self.n


def twin(flat: dict[str, Any]) -> tuple[list[dict[str, torch.Tensor]], Floats]:
    """Return the trained models of the last round, and the weights; the loss has both terms."""
    config, engine = Config.from_flat(flat), configured(flat)
    peers = [Peer(engine, p, config.model_options) for p in range(config.peers)]
    strength, centres = flat.get("fedpac.lambda", 1.0), None
    for t in range(1, config.num_server_rounds + 1):
        share, mean, v = map(np.array, zip(*(peer.statistics() for peer in peers), strict=True))
        heads = engine.batches(t, Purpose.EXTRA, epochs=flat.get("fedpac.head-epochs", 1))
        for p, peer in enumerate(peers):
            for part, batches in enumerate((heads, engine.batches(t))):
                for batch in batches:
                    rows = batch.part(np.array([p])).rows_eb[0]
                    z = peer.body(peer.inputs[rows])
                    loss = F.cross_entropy(peer.head(z), peer.targets[rows])
                    if part == 1 and centres is not None:
                        near = torch.tensor(centres)[peer.targets[rows]]
                        loss = loss + strength * F.mse_loss(z, near)
                    peer.module.zero_grad()
                    loss.backward()
                    peer.optimizers[part].step()
        trained = [
            {name: value.detach().clone() for name, value in peer.module.named_parameters()}
            for peer in peers
        ]
        n = np.array([peer.n for peer in peers])
        total = (n[:, None] * share).sum(axis=0)
        centres = ((n[:, None] * share)[:, :, None] * mean).sum(axis=0)
        centres /= np.maximum(total, 1)[:, None]
        g = (share[:, :, None] * mean).reshape(len(peers), -1)
        a = np.zeros((len(peers), len(peers)))
        for i in range(len(peers)):
            a[i] = best_on_simplex(np.diag(v) + (g - g[i]) @ (g - g[i]).T)
            a[i] = np.where(a[i] < 1e-3, 0, a[i])
            a[i] /= a[i].sum()
        with torch.no_grad():
            bodies = [nn.utils.parameters_to_vector(peer.body.parameters()) for peer in peers]
            tops = [nn.utils.parameters_to_vector(peer.head.parameters()) for peer in peers]
            body = sum((w * x for w, x in zip(n / n.sum(), bodies, strict=True)), 0 * bodies[0])
            for i, peer in enumerate(peers):
                nn.utils.vector_to_parameters(body.clone(), peer.body.parameters())
                head = sum((a[i, j] * x for j, x in enumerate(tops)), 0 * tops[0])
                nn.utils.vector_to_parameters(head, peer.head.parameters())
    return trained, a


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("strength", [1.0, 4.0])
def test_it_equals_a_plain_loop(tmp_path: Path, strength: float, nodes: int) -> None:
    flat = few(**{"fedpac.lambda": strength, "weight-decay": 0.1, "fedpac.head-epochs": 2})
    models, a = twin(flat)
    result = run(flat, tmp_path, nodes)
    for model, expected in zip(result.models(), models, strict=True):
        for name, value in expected.items():
            assert (model[name] - value).abs().max() < 1e-8
    assert np.abs(result.weights() - a).max() < 1e-8
    assert (a > 0).sum() > 3  # some heads are mixed
    unaligned = stacked(run(flat | {"fedpac.lambda": 0.0}, tmp_path / "unaligned"))
    assert (unaligned - stacked(result)).abs().max() > 1e-3


def test_the_body_is_shared_by_all_and_the_trained_model_is_personal() -> None:
    rule = FedPAC().bind(configured(few()), 3)
    state, offer = rule.offer(rule.init(), 1)
    recipients, senders = np.nonzero(~np.eye(3, dtype=bool))
    letters = Letters(senders, recipients, senders, np.arange(3), offer)
    after = rule.update(state, rule.inbox(1, letters))
    assert (after.x[:, :BODY] == after.x[0, :BODY]).all()
    assert not after.x[0, BODY:].equal(after.x[1, BODY:])
    assert rule.personal(after).x.equal(state.x)


def test_a_letter_holds_the_model_and_statistics() -> None:
    engine = configured(few())
    rule = FedPAC().bind(engine, 3)
    _, offer = rule.offer(rule.init(), 1)
    assert {name: tuple(value.shape) for name, value in offer.items()} == {
        "body": (3, BODY), "head": (3, HEAD), "prototypes": (3, CLASSES, WIDTH),
        "shares": (3, CLASSES), "variance": (3, 1),
    }  # fmt: skip
    assert torch.allclose(offer["shares"].sum(dim=1), torch.ones(3, dtype=torch.float64))
    for p in range(3):
        share, mean, v = Peer(engine, p, Config.from_flat(few()).model_options).statistics()
        assert np.allclose(offer["shares"][p], share, atol=1e-14)
        assert np.allclose(offer["prototypes"][p], mean, atol=1e-12)
        assert offer["variance"][p].item() == pytest.approx(v, rel=1e-10)


def weights_of(prototypes: Floats, variance: list[float]) -> Floats:
    """Return the weights of peers with these mean features of their only class."""
    engine = configured(few())
    rule = FedPAC().bind(engine, 3)
    state, offer = rule.offer(rule.init(), 1)
    shares = torch.zeros(3, CLASSES, dtype=torch.float64)
    shares[:, 0] = 1.0
    features = torch.zeros(3, CLASSES, WIDTH, dtype=torch.float64)
    features[:, 0] = torch.tensor(prototypes)
    tensors = {
        **offer, "shares": shares, "prototypes": features,
        "variance": torch.tensor(variance, dtype=torch.float64)[:, None],
    }  # fmt: skip
    recipients, senders = np.nonzero(~np.eye(3, dtype=bool))
    letters = Letters(senders, recipients, senders, np.arange(3), tensors)
    return rule.update(state, rule.inbox(1, letters)).w


def test_equal_statistics_weigh_by_the_inverse_variance() -> None:
    """With g_i = g_j the program is sum a_j^2 V_j: a_j is proportional to 1 / V_j."""
    w = weights_of(np.ones((3, WIDTH)), [1.0, 2.0, 4.0])
    assert np.allclose(w, np.array([4, 2, 1]) / 7, atol=1e-12)


def test_exact_features_that_differ_are_not_mixed() -> None:
    assert np.array_equal(weights_of(np.eye(3, WIDTH), [0.0, 0.0, 0.0]), np.eye(3))


def test_negative_variances_of_a_liar_count_as_zero() -> None:
    w = weights_of(np.ones((3, WIDTH)), [1.0, -5.0, 1.0])
    assert np.allclose(w, np.array([0, 1, 0]), atol=1e-12)


def test_prototypes_are_means_over_the_examples_of_all_and_a_missing_class_has_none() -> None:
    engine = configured(few())
    rule = FedPAC().bind(engine, 3)
    state, offer = rule.offer(rule.init(), 1)
    recipients, senders = np.nonzero(~np.eye(3, dtype=bool))
    shares, means = offer["shares"].clone(), offer["prototypes"]
    shares[:, 7] = 0
    letters = Letters(senders, recipients, senders, np.arange(3), {**offer, "shares": shares})
    result = rule.update(state, rule.inbox(1, letters)).prototypes
    n = torch.tensor(engine.samples)[:, None] * shares
    for k in range(CLASSES):
        expected = (n[:, k, None] * means[:, k]).sum(0) / n[:, k].sum() if n[:, k].any() else 0.0
        assert torch.allclose(result[:, k], torch.zeros(3, WIDTH, dtype=torch.float64) + expected)


def test_the_gradient_of_the_alignment_is_autograds() -> None:
    """For each backend, on random models and centres."""
    for backend in ("sequential", "batched", "vmapped"):
        config = Config.from_flat(few() | {"engine.backend": backend})
        engine = Engine(
            problem_of(config), config.model, config.model_options, range(3), config.training,
            device="cpu", dtype="float64", backend=config.engine.backend,
        )  # fmt: skip
        g = torch.Generator().manual_seed(0)
        x_pd = torch.randn(3, BODY + HEAD, generator=g, dtype=torch.float64)
        centres = torch.randn(3, CLASSES, WIDTH, generator=g, dtype=torch.float64)
        (batch,) = engine.batches(1, steps=1)
        result = engine.feature_gradients(x_pd, {}, batch, centres)
        for p in range(3):
            drawn = batch.part(np.array([p]))
            inputs, targets = engine.data.examples("train", drawn.peers_e, drawn.rows_eb)
            leaf = x_pd[p].clone().requires_grad_()
            w, b = leaf[: 64 * 6].view(6, 64), leaf[64 * 6 : BODY]
            z = F.relu(inputs[0].flatten(1) @ w.T + b)
            (expected,) = torch.autograd.grad(F.mse_loss(z, centres[p][targets[0]]), leaf)
            assert torch.allclose(result[p], expected, rtol=1e-10, atol=1e-12)


def test_a_network_of_one_layer_is_refused() -> None:
    """Its features are the inputs, so its letters would hold means of records."""
    with pytest.raises(ConfigError, match=r"fedpac: a network of one layer.*model = \"mlp\""):
        Config.from_flat(few(model="linear"))


def test_problems_without_classes_are_refused(tmp_path: Path) -> None:
    flat = quadratic(tmp_path, "fedpac")
    with pytest.raises(ConfigError, match=r"fedpac.*needs one class per example"):
        check(Config.from_flat(flat))
