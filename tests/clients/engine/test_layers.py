"""Forms of many layers at once and the module alone, against their twin: vmap."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from clients.engine.layers import Dropout, prepared, steps, sums
from clients.engine.network import Network


def layered() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(12, 7), nn.Tanh(), nn.Dropout(0.4),
        nn.Sequential(nn.Linear(7, 6, bias=False), nn.ReLU()), nn.Identity(), nn.Linear(6, 3),
    ).double()  # fmt: skip


def called_twice() -> nn.Module:
    """As people write it: one activation in several places."""
    activation = nn.Tanh()
    return nn.Sequential(
        nn.Linear(5, 4), activation, nn.Linear(4, 4), activation, nn.Linear(4, 3)
    ).double()


def activated() -> nn.Module:
    return nn.Sequential(
        nn.Linear(5, 4), nn.Sigmoid(), nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4),
        nn.GELU("tanh"), nn.Linear(4, 3, bias=False), nn.ReLU(),
    ).double()  # fmt: skip


def convolved() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(4), nn.Conv2d(4, 5, 2),
        nn.Flatten(), nn.Dropout(0.3), nn.Linear(5 * 4, 3),
    ).double()  # fmt: skip


class Tied(nn.Module):
    """One weight in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.there, self.back = nn.Linear(5, 5), nn.Linear(5, 5)
        self.back.weight = self.there.weight

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.back(self.there(x).tanh())
        return found


def gradients(
    network: Network, x_ed: Tensor, inputs: Tensor, keys: Tensor
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Outputs, gradients as rows, and buffers."""
    leaves = network.leaves(x_ed)
    outputs, buffers = network(leaves, network.buffers(len(x_ed)), inputs, keys)
    found = torch.autograd.grad(outputs.square().sum(), list(leaves.values()))
    return outputs, torch.cat([g.reshape(len(x_ed), -1) for g in found], dim=1), buffers


@pytest.mark.parametrize("models", [1, 3])
@pytest.mark.parametrize(
    ("build", "shape"),
    [(layered, (3, 4)), (called_twice, (5,)), (convolved, (1, 8, 8)), (Tied, (5,))],
)
def test_every_way_to_run_a_network_gives_what_vmap_gives(
    build: type[nn.Module], shape: tuple[int, ...], models: int
) -> None:
    network = Network(build().double())
    assert (network._steps is not None) == (build in (layered, called_twice))
    g = torch.Generator().manual_seed(0)
    x_ed = torch.randn(4, network.d, generator=g, dtype=torch.float64)
    inputs = torch.randn(4, 6, *shape, generator=g, dtype=torch.float64)
    keys = torch.arange(4) * 7919
    found = gradients(network, x_ed[:models], inputs[:models], keys[:models])
    network._steps = None
    twin = gradients(network, x_ed, inputs, keys)
    for one, other in zip(found[:2], twin[:2], strict=True):
        assert torch.allclose(one, other[:models], rtol=1e-12, atol=1e-13)
    for name, value in found[2].items():
        assert torch.allclose(value, twin[2][name][:models], rtol=1e-12)


@pytest.mark.parametrize("models", [1, 3])
@pytest.mark.parametrize(
    ("build", "shape"), [(layered, (3, 4)), (called_twice, (2, 5)), (activated, (5,))]
)
def test_gradients_by_hand_are_those_of_autograd(
    build: Callable[[], nn.Module], shape: tuple[int, ...], models: int
) -> None:
    network = Network(build())
    assert network.has_vjp
    g = torch.Generator().manual_seed(0)
    x_ed = torch.randn(models, network.d, generator=g, dtype=torch.float64)
    inputs = torch.randn(models, 6, *shape, generator=g, dtype=torch.float64)
    keys = torch.arange(models) * 7919
    outputs, expected, _ = gradients(network, x_ed, inputs, keys)
    own, back = network.vjp(network.named(x_ed), {}, inputs, keys)
    named = sums(back(2 * own))
    found = torch.cat([named[name].reshape(models, -1) for name in network.names], dim=1)
    assert torch.allclose(own, outputs, rtol=1e-12, atol=1e-13)
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    "layer", [nn.ReLU(inplace=True), nn.SiLU(), nn.Conv1d(2, 2, 1)], ids=lambda layer: str(layer)
)
def test_a_layer_that_is_unknown_backwards_or_overwrites_its_inputs_goes_through_autograd(
    layer: nn.Module,
) -> None:
    assert not Network(nn.Sequential(nn.Linear(2, 2), layer)).has_vjp


def test_a_network_with_a_layer_that_has_no_form_has_none() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Softplus())
    assert steps(module, {"0.weight", "0.bias"}) is None
    linear = nn.Sequential(nn.Linear(2, 2))
    assert steps(linear, {"0.weight", "0.bias"}) is not None
    assert steps(linear, {"0.bias"}) is None  # a weight that all models share


def test_the_module_is_as_it_was_after_a_call() -> None:
    network = Network(convolved())
    before = dict(network.module.state_dict(keep_vars=True))
    x_ed = torch.randn(1, network.d, dtype=torch.float64)
    keys = torch.zeros(1, dtype=torch.int64)
    for inputs in (torch.randn(1, 6, 1, 8, 8), torch.randn(1, 6, 9)):
        try:
            network(x_ed, network.buffers(1), inputs.double(), keys)
        except RuntimeError:
            assert inputs.dim() == 3
        after = network.module.state_dict(keep_vars=True)
        assert all(value is before[name] for name, value in after.items())


def test_pooling_before_relu_is_the_same_and_less() -> None:
    module, keys = convolved().eval(), ["0", "1", "2"]
    x = torch.randn(2, 1, 8, 8, dtype=torch.float64)
    parameters: dict[str, Tensor] = dict(module.named_parameters())
    expected = module(x)
    slopes = torch.autograd.grad(expected.square().sum(), list(parameters.values()))
    ready = prepared(module).eval()
    assert [type(ready.get_submodule(key)) for key in keys] == [nn.Conv2d, nn.MaxPool2d, nn.ReLU]
    assert any(isinstance(layer, Dropout) for layer in ready.modules())
    found = functional_call(ready, parameters, (x,))
    again = torch.autograd.grad(found.square().sum(), list(parameters.values()))
    assert torch.equal(found, expected)
    assert all(torch.equal(one, other) for one, other in zip(slopes, again, strict=True))
