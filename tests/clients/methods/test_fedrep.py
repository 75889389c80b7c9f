"""FedRep: a plain loop, the letters, and limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from coterie.app.config.config import Config
from coterie.clients.engine.network import Network
from coterie.clients.engine.streams import Purpose
from coterie.clients.methods import fedrep
from coterie.clients.models.build import build
from tests.inline import run
from tests.kit import configured, digits, quadratic, stacked

BODY, HEAD = 64 * 6 + 6, 6 * 10 + 10


def twin(flat: dict[str, Any]) -> list[nn.Module]:
    """Run modules with frozen parts and a torch optimizer per part, with the engine's batches."""
    config, engine = Config.from_flat(flat), configured(flat)
    x_pd, _ = engine.initial()
    modules, optimizers = [], []
    for p in range(config.peers):
        inputs = engine.data.examples("train", torch.tensor([p]), torch.tensor([[0]]))[0]
        module = build("auto", config.model_options, "classification", inputs.shape[2:], 10)
        nn.utils.vector_to_parameters(x_pd[p].clone(), module.parameters())
        parts = module[-1].parameters(), module[:-1].parameters()  # type: ignore[index]
        modules.append(module.to(engine.dtype))
        optimizers.append([
            torch.optim.SGD(
                list(part), lr=config.training.learning_rate, momentum=config.training.momentum,
                weight_decay=config.training.weight_decay,
            )
            for part in parts
        ])  # fmt: skip
    for t in range(1, config.num_server_rounds + 1):
        heads = engine.batches(t, Purpose.EXTRA, epochs=flat["fedrep.head-epochs"])
        for p, module in enumerate(modules):
            for part, batches in enumerate((heads, engine.batches(t))):
                for batch in batches:
                    drawn = batch.part(np.array([p]))
                    inputs, targets = engine.data.examples("train", drawn.peers_e, drawn.rows_eb)
                    module.zero_grad()
                    F.cross_entropy(module(inputs[0]), targets[0]).backward()
                    optimizers[p][part].step()
        with torch.no_grad():
            for name in ("1.weight", "1.bias"):
                values = [dict(m.named_parameters())[name].detach() for m in modules]
                mean = torch.stack(values).mean(dim=0)
                for value in values:
                    value.copy_(mean)
    return modules


@pytest.mark.parametrize("nodes", [1, 3])
def test_it_equals_a_plain_loop(tmp_path: Path, nodes: int) -> None:
    flat = digits("fedrep", **{"fedrep.head-epochs": 2, "dtype": "float64", "weight-decay": 0.1})
    result = run(flat, tmp_path, nodes).models()
    for model, module in zip(result, twin(flat), strict=True):
        for name, value in module.named_parameters():
            assert (model[name] - value).abs().max() < 1e-12


def test_only_the_body_travels_and_is_shared(tmp_path: Path) -> None:
    result = run(digits("fedrep"), tmp_path, 3)
    sent = 3 * 2 * BODY * 4  # rounds, other peers, parameters, bytes
    assert result.metric("bytes_sent").tolist() == [sent] * 3
    assert result.metric("bytes_received").tolist() == [sent] * 3
    for name in ("1.weight", "1.bias", "3.weight", "3.bias"):
        tensor = stacked(result, name)
        shared = bool(tensor[0].equal(tensor[1]) and tensor[0].equal(tensor[2]))
        assert shared == name.startswith("1.")


def test_an_offer_holds_the_body_alone() -> None:
    engine = configured(digits("fedrep"))
    rule: fedrep.FedRep[fedrep.FedRepState] = fedrep.FedRep().bind(engine, 3)
    before = rule.init()
    after, offer = rule.offer(before, 1)
    assert {name: tuple(value.shape) for name, value in offer.items()} == {"body": (3, BODY)}
    assert engine.d == BODY + HEAD
    assert (after.x[:, BODY:] != before.x[:, BODY:]).any()


def test_with_an_empty_head_it_is_fedavg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fedavg = run(digits("fedavg"), tmp_path / "fedavg")
    monkeypatch.setattr(Network, "head", [])
    result = run(digits("fedrep"), tmp_path / "fedrep")
    assert stacked(result).equal(stacked(fedavg))
    for name in ("gradient_evaluations", "bytes_sent", "test_loss"):
        assert result.metric(name).tolist() == fedavg.metric(name).tolist()


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_network_of_one_layer_is_all_head(tmp_path: Path, nodes: int) -> None:
    """On a quadratic problem an epoch is one step, so head training is local training."""
    result = run(quadratic(tmp_path, "fedrep", **{"fedrep.head-epochs": 3}), tmp_path / "a", nodes)
    local = run(quadratic(tmp_path, "local"), tmp_path / "b")
    assert np.array_equal(result.theta(), local.theta())
    assert not result.metric("bytes_sent").any()
