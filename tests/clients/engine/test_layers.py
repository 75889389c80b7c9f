"""Forms of many layers at once and the module alone, against their twin: vmap."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from coterie.clients.engine.layers import Dropout, prepared
from coterie.clients.engine.line import Collected, line_of
from coterie.clients.engine.network import Network
from coterie.clients.models.convnets import AtLeast, Residual


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
    assert network.is_layered == (build in (layered, called_twice))
    g = torch.Generator().manual_seed(0)
    x_ed = torch.randn(4, network.d, generator=g, dtype=torch.float64)
    inputs = torch.randn(4, 6, *shape, generator=g, dtype=torch.float64)
    keys = torch.arange(4) * 7919
    found = gradients(network, x_ed[:models], inputs[:models], keys[:models])
    network._many = None
    twin = gradients(network, x_ed, inputs, keys)
    for one, other in zip(found[:2], twin[:2], strict=True):
        assert torch.allclose(one, other[:models], rtol=1e-12, atol=1e-13)
    for name, value in found[2].items():
        assert torch.allclose(value, twin[2][name][:models], rtol=1e-12)


def residual() -> nn.Module:
    """Every form of a single layer, layers without one, and places where memory is shared."""
    normed = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
    views = nn.Sequential(
        nn.Identity(), nn.ReLU(), nn.Unflatten(1, (2, 2)), nn.Flatten(1, 2), nn.Identity()
    )
    return nn.Sequential(
        AtLeast(9), nn.Conv2d(2, 4, 3, stride=2, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
        Residual(normed), nn.GroupNorm(2, 4), Residual(views), nn.Tanh(),
        nn.Conv2d(4, 4, 2, groups=2, dilation=2), nn.Softplus(),
        nn.MaxPool2d(2, stride=1, padding=1, ceil_mode=True), nn.Dropout(0.3), nn.Flatten(),
        nn.Linear(36, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.AvgPool1d(2), nn.Tanh(),
        nn.Linear(3, 3, bias=False), nn.Tanh(),
    ).double()  # fmt: skip


def on_frozen() -> nn.Module:
    """What is trained lies upon layers that are not, and beside a frozen one without a form."""
    below = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU())
    kept = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Softplus())
    module = nn.Sequential(
        below, Residual(kept), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4),
        nn.Tanh(), Residual(nn.Sequential(nn.Conv2d(4, 4, 1), nn.Softplus())), nn.Flatten(),
        nn.Linear(36, 3),
    )  # fmt: skip
    for layer in (below, kept, module[4]):
        layer.requires_grad_(False)
    return module.double()


def overwriting() -> nn.Module:
    """ReLU where its inputs lie, after layers that want them no more."""
    first = nn.Sequential(nn.Linear(5, 5), nn.ReLU(inplace=True))
    return nn.Sequential(first, nn.Linear(5, 4), nn.ReLU(inplace=True), nn.Linear(4, 3)).double()


def partly_frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    module[0].requires_grad_(False)
    module[2].weight.requires_grad_(False)
    return module.double()


def shared() -> nn.Module:
    """A layer that is there twice: its gradients add up."""
    twice = nn.Linear(5, 5)
    return nn.Sequential(twice, nn.Tanh(), twice, nn.Linear(5, 3)).double()


@pytest.mark.parametrize("models", [1, 3])
@pytest.mark.parametrize(
    ("build", "shape"),
    [
        (layered, (3, 4)), (called_twice, (2, 5)), (activated, (5,)), (shared, (5,)),
        (convolved, (1, 8, 8)), (residual, (2, 7, 7)), (on_frozen, (2, 7, 7)),
        (partly_frozen, (5,)), (overwriting, (5,)),
    ],
)  # fmt: skip
def test_gradients_by_hand_are_those_of_autograd(
    build: Callable[[], nn.Module], shape: tuple[int, ...], models: int
) -> None:
    network = Network(build())
    line = network.line(models)
    if models > 1 and build not in (layered, called_twice, activated, overwriting):
        assert line is None
        return
    assert line is not None
    assert line.once == (build is not shared)
    g = torch.Generator().manual_seed(0)
    x_ed = torch.randn(models, network.d, generator=g, dtype=torch.float64)
    inputs = torch.randn(models, 6, *shape, generator=g, dtype=torch.float64)
    keys = torch.arange(models) * 7919
    outputs, expected, buffers = gradients(network, x_ed, inputs, keys)
    before, after = (inputs.clone(), x_ed.clone()), network.buffers(models)
    own, back = network.vjp(network.cut(x_ed), after, inputs, keys)
    collected = Collected()
    back(2 * own, collected)
    found = [collected.found[name].reshape(models, -1) for name in network.names]
    assert torch.allclose(own, outputs, rtol=1e-12, atol=1e-13)
    assert torch.allclose(torch.cat(found, dim=1), expected, rtol=1e-12, atol=1e-13)
    for name, value in buffers.items():
        assert torch.allclose(after[name], value, rtol=1e-12, atol=1e-13), name
    assert torch.equal(inputs, before[0])
    assert torch.equal(x_ed, before[1])


class Filled(nn.Sequential):
    """As people write a network of their own."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))


class Twice(Filled):
    """One that calls its layers in a way of its own."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in (*self, *self):
            x = layer(x)
        return x


class Scaled(Filled):
    """One with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))


class Still(Filled):
    """One whose batch norm keeps its statistics."""

    def train(self, mode: bool = True) -> Still:
        super().train(mode)
        self[1].eval()
        return self


def test_a_class_that_only_fills_a_sequence_is_one() -> None:
    assert Network(Filled()).line(1)
    assert not any(Network(kind()).line(1) for kind in (Twice, Scaled, Still))


class Foreign(nn.ReLU):
    """Of a user, who may do anything."""


def hooked() -> nn.Module:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[0].register_forward_pre_hook(lambda layer, inputs: (3 * inputs[0],))
    return module


@pytest.mark.parametrize(
    "module",
    [
        Tied(),
        hooked(),
        nn.Sequential(nn.Linear(2, 2), Foreign()),
        nn.Sequential(nn.ReLU(inplace=True), nn.Linear(2, 2)),
        nn.Sequential(nn.Linear(2, 2), nn.SiLU(inplace=True)),
        nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.ReLU()),
    ],
    ids=["calls", "hooked", "foreign", "overwrites", "overwrites", "trains-nothing"],
)
def test_whose_way_back_is_not_known_goes_through_autograd(module: nn.Module) -> None:
    assert Network(module.double()).line(1) is None


def test_batch_norm_of_one_example_is_the_error_that_torch_has() -> None:
    network = Network(Filled())
    x, inputs = torch.randn(1, network.d), torch.randn(1, 1, 2)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        network.vjp(network.cut(x), network.buffers(1), inputs, torch.zeros(1, dtype=torch.int64))


def test_a_network_with_a_layer_that_has_no_form_has_none() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Softplus())
    names = {"0.weight", "0.bias"}
    assert line_of(module, names, names, many=True) is None
    linear = nn.Sequential(nn.Linear(2, 2))
    assert line_of(linear, names, names, many=True) is not None
    shared_by_all = {"0.bias"}
    assert line_of(linear, shared_by_all, shared_by_all, many=True) is None


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
