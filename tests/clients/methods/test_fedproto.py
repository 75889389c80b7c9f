"""FedProto: a plain loop, its letters, and limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.preflight import check
from coterie.clients.letters import Letters
from coterie.clients.methods.fedproto import AlignedState, FedProto
from coterie.clients.models.options import MODELS
from tests.clients.methods.test_fedpac import (
    CLASSES,
    WIDTH,
    Peer,
)
from tests.inline import Floats, run
from tests.kit import configured, digits, quadratic, stacked


def few(**more: Any) -> dict[str, Any]:
    """Three peers with 16 digits of six classes each, in float64."""
    keys = {"partition.kind": "pathological", "partition.classes-per-peer": 6, "dtype": "float64"}
    return digits("fedproto", **{**keys, **more})


def twin(flat: dict[str, Any]) -> tuple[list[dict[str, torch.Tensor]], Floats]:
    """Return the models of the last round, and the weights; the loss has both terms."""
    config, engine = Config.from_flat(flat), configured(flat)
    peers = [Peer(engine, p, config.model_options) for p in range(config.peers)]
    optimizers = [
        torch.optim.SGD(
            peer.module.parameters(), lr=engine.training.learning_rate,
            momentum=engine.training.momentum, weight_decay=engine.training.weight_decay,
        )
        for peer in peers
    ]  # fmt: skip
    strength, centres = flat.get("fedproto.lambda", 1.0), dict[int, torch.Tensor]()
    w = np.zeros((len(peers), len(peers)))
    for t in range(1, config.num_server_rounds + 1):
        for p, (peer, optimizer) in enumerate(zip(peers, optimizers, strict=True)):
            for batch in engine.batches(t):
                rows = batch.part(np.array([p])).rows_eb[0]
                targets, z = peer.targets[rows], peer.body(peer.inputs[rows])
                loss = F.cross_entropy(peer.head(z), targets)
                if centres:
                    near = torch.stack([centres[int(y)] for y in targets])
                    loss = loss + strength * F.mse_loss(z, near)
                peer.module.zero_grad()
                loss.backward()
                optimizer.step()
        share, mean, _ = map(np.array, zip(*(peer.statistics() for peer in peers), strict=True))
        w[:] = 0
        for k in range(CLASSES):
            count = share[:, k] * [peer.n for peer in peers]
            if count.any():
                centres[k] = torch.tensor(count @ mean[:, k] / count.sum())
                w += np.outer(share[:, k], count / count.sum())
    return [
        {name: value.detach() for name, value in peer.module.named_parameters()} for peer in peers
    ], w


def begun(**more: Any) -> tuple[FedProto, AlignedState, dict[str, torch.Tensor]]:
    """Return a rule, its state after the training of round 1, and the offers."""
    rule = FedProto().bind(configured(few(**more)), 3)
    state, offer = rule.offer(rule.init(), 1)
    return rule, state, dict(offer)


def to_all(tensors: dict[str, torch.Tensor]) -> Letters:
    recipients, senders = np.nonzero(~np.eye(3, dtype=bool))
    return Letters(senders, recipients, senders, np.arange(3), tensors)


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("strength", [1.0, 4.0])
def test_it_equals_a_plain_loop(tmp_path: Path, strength: float, nodes: int) -> None:
    flat = few(**{"fedproto.lambda": strength, "weight-decay": 0.1})
    models, w = twin(flat)
    result = run(flat, tmp_path, nodes)
    for model, expected in zip(result.models(), models, strict=True):
        for name, value in expected.items():
            assert (model[name] - value).abs().max() < 1e-8
    assert np.abs(result.weights() - w).max() < 1e-8
    assert ((w > 0) & (w < 1)).any()
    assert len({*np.round(w[w > 0], 3)}) > 3  # classes are shared by different peers


@pytest.mark.parametrize("more", [{"fedproto.lambda": 0.0}, {"num-server-rounds": 1}], ids=str)
def test_without_prototypes_it_is_local_bit_for_bit(tmp_path: Path, more: dict[str, Any]) -> None:
    """In round 1 there are no prototypes; with lambda = 0 they do not count."""
    flat = few(**{"dtype": "float32", **more})
    one, other = run(flat, tmp_path / "1"), run(flat | {"method": "local"}, tmp_path / "2")
    assert stacked(one).equal(stacked(other))
    assert (one.metric("test_loss") == other.metric("test_loss")).all()
    assert (one.metric("bytes_sent") > other.metric("bytes_sent")).all()
    pulled = run(flat | {"fedproto.lambda": 1.0, "num-server-rounds": 2}, tmp_path / "3")
    alone = run(flat | {"method": "local", "num-server-rounds": 2}, tmp_path / "4")
    assert not stacked(pulled).equal(stacked(alone))


def test_a_letter_holds_statistics_and_no_model() -> None:
    rule, state, offer = begun()
    assert {name: tuple(value.shape) for name, value in offer.items()} == {
        "prototypes": (3, CLASSES, WIDTH), "shares": (3, CLASSES),
    }  # fmt: skip
    for p in range(3):
        peer = Peer(rule.engine, p, Config.from_flat(few()).model_options)
        nn.utils.vector_to_parameters(state.x[p].clone(), peer.module.parameters())
        share, mean, _ = peer.statistics()
        assert np.allclose(offer["shares"][p], share, atol=1e-14)
        assert np.allclose(offer["prototypes"][p], mean, atol=1e-12)


def test_bytes_do_not_depend_on_the_networks_size(tmp_path: Path) -> None:
    """Only the width m of the last layer's inputs counts: C (m + 1) numbers of 8 bytes."""
    for name, hidden in (("small", "6"), ("large", "50-40-6")):
        result = run(few(**{"mlp.hidden": hidden, "num-server-rounds": 1}), tmp_path / name)
        assert (result.metric("bytes_sent") == 2 * 8 * CLASSES * (WIDTH + 1)).all()


def test_classes_that_a_peer_lacks_have_no_weight() -> None:
    """Its numbers for them, also those of a liar, change no prototype."""
    rule, state, offer = begun()
    result = rule.update(state, rule.inbox(1, to_all(offer)))
    absent = offer["shares"] == 0
    assert absent.any(dim=1).all()
    lies = offer["prototypes"].masked_fill(absent[..., None], 1e3)
    lied = rule.update(state, rule.inbox(1, to_all({**offer, "prototypes": lies})))
    assert lied.prototypes.equal(result.prototypes)
    n = torch.tensor(rule.engine.samples)[:, None] * offer["shares"]
    for k in range(CLASSES):
        mean = (n[:, k, None] * offer["prototypes"][:, k]).sum(0) / n[:, k].sum().clamp_min(1e-9)
        assert torch.allclose(result.prototypes[:, k], mean.expand(3, -1), atol=1e-12)
    assert np.allclose(result.w.sum(axis=1), 1, atol=1e-12)


def test_a_class_of_which_no_letter_tells_keeps_its_prototype() -> None:
    rule, state, offer = begun()
    first = rule.update(state, rule.inbox(1, to_all(offer)))
    nobody = np.empty(0, dtype=np.int64)
    alone = Letters(nobody, nobody, nobody, np.arange(3), offer)
    second = rule.update(first, rule.inbox(2, alone))
    for p in range(3):
        absent = offer["shares"][p] == 0
        assert second.prototypes[p, absent].equal(first.prototypes[p, absent])
        assert torch.allclose(second.prototypes[p, ~absent], offer["prototypes"][p, ~absent])
    assert np.allclose(second.w, np.eye(3), atol=1e-12)


def test_a_liar_counts_for_its_examples_at_most() -> None:
    rule, state, offer = begun(**{"partition.kind": "iid"})
    shares = offer["shares"].clone()
    shares[1] = 1e6
    result = rule.update(state, rule.inbox(1, to_all({**offer, "shares": shares})))
    shares[1] = 1
    most = rule.update(state, rule.inbox(1, to_all({**offer, "shares": shares})))
    assert result.prototypes.equal(most.prototypes)


def test_a_network_without_features_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"fedproto: a network of one layer.*model = \"mlp\""):
        Config.from_flat(few(model="linear"))

    def flat_only(shape: tuple[int, ...], outputs: int, *_: object) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), outputs))

    monkeypatch.setitem(MODELS, "mlp", replace(MODELS["mlp"], build=flat_only))
    with pytest.raises(ValueError, match="a network of one layer"):
        FedProto().bind(configured(few()), 3)


def test_problems_without_classes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"fedproto.*needs one class per example"):
        check(Config.from_flat(quadratic(tmp_path, "fedproto")))


def test_privacy_does_not_cover_it() -> None:
    with pytest.raises(ConfigError, match=r"privacy does not cover fedproto: its letters hold"):
        Config.from_flat(few(**{"privacy.kind": "examples", "privacy.noise": 1.0}))
