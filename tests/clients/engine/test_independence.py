"""Networks in which examples influence each other are refused where gradients are private."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clients.engine.engine import Engine
from clients.privacy import Privacy
from clients.training import Training
from datasets import plugins
from tests.problems import classification

Between = Callable[[nn.Module, Tensor], Tensor]


def refusal(between: Between, *, private: bool = True) -> str:
    """What an engine says of a network that does `between` with its hidden units; "" if nothing."""

    class Net(nn.Module):
        def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(16, 8), nn.Linear(8, outputs)
            self.register_buffer("mean", torch.zeros(8))

        def forward(self, x: Tensor) -> Tensor:
            hidden: Tensor = self.first(x.flatten(1))
            outputs: Tensor = self.last(torch.relu(between(self, hidden)))
            return outputs

    model = plugins.register("model", between.__name__, Net)
    privacy = Privacy("examples", noise=4.0) if private else None
    try:
        Engine(
            classification((9, 6)), model, None, [0, 1], Training(batch_size=4, local_steps=1),
            device="cpu", privacy=privacy,
        )  # fmt: skip
    except ValueError as error:
        return str(error)
    return ""


def batch_norm(net: nn.Module, h: Tensor) -> Tensor:
    return F.batch_norm(h, None, None, training=True) if net.training else h


def faint_mean(net: nn.Module, h: Tensor) -> Tensor:
    return h + 1e-9 * h.mean(dim=0)


def detached_mean(net: nn.Module, h: Tensor) -> Tensor:
    return h - h.detach().mean(dim=0)


def largest(net: nn.Module, h: Tensor) -> Tensor:
    return h / h.detach().abs().max().clamp_min(5.0)


def attention(net: nn.Module, h: Tensor) -> Tensor:
    return torch.softmax(h @ h.T, dim=1) @ h


def running_mean(net: nn.Module, h: Tensor) -> Tensor:
    net.mean = 0.9 * net.mean + 0.1 * h.detach().mean(dim=0)
    return h


def layer_norm(net: nn.Module, h: Tensor) -> Tensor:
    return F.layer_norm(h, (8,))


def gated(net: nn.Module, h: Tensor) -> Tensor:
    return torch.where(h.sum(dim=1, keepdim=True) > 0, h, -h)


@pytest.mark.parametrize("between", [batch_norm, faint_mean, detached_mean, largest, attention])
def test_what_sees_the_rest_of_its_batch_is_refused(between: Between) -> None:
    assert "changes the network's outputs for other examples" in refusal(between)
    assert not refusal(between, private=False)


def test_statistics_of_examples_in_a_buffer_are_refused() -> None:
    assert "keeps statistics of its examples in mean" in refusal(running_mean)


@pytest.mark.parametrize("between", [layer_norm, gated])
def test_what_treats_each_example_by_itself_is_not(between: Between) -> None:
    assert not refusal(between)
