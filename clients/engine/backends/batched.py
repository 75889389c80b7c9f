"""Layers of many models at once, with a backward pass of their own.

It knows networks that call linear layers, activations, dropout and flatten in order, and the
quadratic problem. Calling modules and keeping a graph is most of what a small network's step takes
otherwise. In a chain nobody reads a gradient after the layer that takes it, so that a layer may
overwrite the one it is given. Legend: e = models, b = examples, i, o = inputs and outputs of a
linear layer, d = parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from coterie.clients.engine.backends.backend import Backend, Examples, Models, Result
from coterie.clients.engine.layers import FIRST, KEY, Dropout
from coterie.clients.engine.network import Buffers, Network
from coterie.clients.engine.tasks import Task
from coterie.clients.models.build import Theta

Own = Mapping[str, Tensor]
"""Tensors of a layer by their own names, each (E, ...)."""
Found = tuple[Tensor | None, dict[str, Tensor]]
"""Gradient of the inputs, None if not wanted, and gradients of the layer's tensors."""
_threshold_backward = torch.ops.aten.threshold_backward.grad_input


class Kernel(NamedTuple):
    """A kind of layer.

    Attributes
    ----------
    forward : (layer, own, inputs) -> outputs and what `backward` needs of them.
    backward : (layer, own, inputs, kept, gradient of the outputs, whether the gradient of the
        inputs is wanted) -> gradients. May overwrite the gradient of the outputs.
    """

    forward: Callable[[Any, Own, Tensor], tuple[Tensor, Any]]
    backward: Callable[[Any, Own, Tensor, Any, Tensor, bool], Found]


def _relu(layer: nn.Module, own: Own, x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.relu()
    return y, y


def _relu_backward(
    layer: nn.Module, own: Own, x: Tensor, y: Tensor, g: Tensor, wanted: bool
) -> Found:
    return _threshold_backward(g, y, 0, grad_input=g), {}


def _by_autograd(layer: nn.Module, own: Own, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """An elementwise layer without tensors."""
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        y = layer(x)
    return y.detach(), (x, y)


def _autograd_backward(
    layer: nn.Module, own: Own, x: Tensor, kept: tuple[Tensor, Tensor], g: Tensor, wanted: bool
) -> Found:
    leaf, y = kept
    return torch.autograd.grad(y, leaf, g)[0], {}


def _rows(x: Tensor) -> Tensor:
    """Inputs (e, b, ..., i) as (e, rows, i)."""
    return x if x.dim() == 3 else x.flatten(1, -2)


def _linear(layer: nn.Linear, own: Own, x: Tensor) -> tuple[Tensor, None]:
    rows = _rows(x)
    if "bias" in own:
        y = torch.baddbmm(own["bias"][:, None], rows, own["weight"].mT)
    else:
        y = torch.bmm(rows, own["weight"].mT)
    return y if rows is x else y.view(*x.shape[:-1], y.shape[2]), None


def _linear_backward(
    layer: nn.Linear, own: Own, x: Tensor, kept: None, g: Tensor, wanted: bool
) -> Found:
    rows = _rows(g)
    # Transposed by a copy, which is small: read across, it would take longer.
    found = {"weight": torch.bmm(rows.mT.contiguous(), _rows(x))}
    if "bias" in own:
        found["bias"] = rows.sum(dim=1)
    return torch.bmm(rows, own["weight"]).view(x.shape) if wanted else None, found


def _flatten(layer: nn.Flatten, own: Own, x: Tensor) -> tuple[Tensor, None]:
    first, last = (d if d < 0 else d + 1 for d in (layer.start_dim, layer.end_dim))
    return x.flatten(first, last), None


def _reshape(layer: nn.Module, own: Own, x: Tensor, kept: None, g: Tensor, wanted: bool) -> Found:
    return g.reshape(x.shape), {}


def _dropout(layer: Dropout, own: Own, x: Tensor) -> tuple[Tensor, None]:
    return layer.of_many(x, own[KEY], own[FIRST]), None


def _dropout_backward(
    layer: Dropout, own: Own, x: Tensor, kept: None, g: Tensor, wanted: bool
) -> Found:
    return layer.of_many(g, own[KEY], own[FIRST]), {}


def _theta(layer: Theta, own: Own, x: Tensor) -> tuple[Tensor, Tensor]:
    """1/2 sum_j a_j (theta_j - c_j)^2 of examples (e, b, 2, d): curvature a and centre c."""
    curvature, centre = x.unbind(dim=-2)
    away = own["theta"][:, None] - centre
    return 0.5 * (curvature * away.square()).sum(dim=-1), curvature * away


def _theta_backward(
    layer: Theta, own: Own, x: Tensor, slope: Tensor, g: Tensor, wanted: bool
) -> Found:
    return None, {"theta": (g[..., None] * slope).sum(dim=1)}


_ELEMENTWISE = Kernel(_by_autograd, _autograd_backward)
KERNELS: dict[type[nn.Module], Kernel] = {
    nn.Linear: Kernel(_linear, _linear_backward),
    nn.Flatten: Kernel(_flatten, _reshape),
    nn.Identity: Kernel(lambda layer, own, x: (x, None), _reshape),
    nn.ReLU: Kernel(_relu, _relu_backward),
    Dropout: Kernel(_dropout, _dropout_backward),
    Theta: Kernel(_theta, _theta_backward),
    **dict.fromkeys((nn.Tanh, nn.Sigmoid, nn.GELU, nn.LeakyReLU, nn.ELU, nn.SiLU), _ELEMENTWISE),
}
"""Layer type -> how many copies of it run."""


class Layer(NamedTuple):
    """A layer in its place.

    Attributes
    ----------
    tensors : its own name of each of its tensors -> the network's.
    """

    layer: nn.Module
    kernel: Kernel
    tensors: Mapping[str, str]


class Batched(Backend):
    """Layer by layer, each for all models at once.

    Raises
    ------
    ValueError
        A layer has no kernel; the message names it.
    """

    name = "batched"
    stacks = True

    def __init__(self, network: Network, task: Task) -> None:
        super().__init__(network, task)
        if network.mixed_precision:
            raise ValueError("mixed precision asks the layers themselves")
        self._use(self.module)
        placed = {full for at in self._layers for full in at.tensors.values()}
        if lost := [name for name in network.trained if name not in placed]:
            raise ValueError(f'parameter "{lost[0]}" belongs to no layer that is called in order')

    def _use(self, module: nn.Module) -> None:
        super()._use(module)
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        self._frozen = {k: v for k, v in tensors.items() if k not in self.network.trained}
        names = {id(value): name for name, value in tensors.items()}
        self._layers = [
            Layer(layer, _kernel(layer, place), _named(layer, names))
            for layer, place in _in_order(module, "")
        ]
        trained = [not self._frozen.keys() >= {*at.tensors.values()} for at in self._layers]
        self._lowest = trained.index(True) if any(trained) else len(self._layers)

    def value_and_grad(self, models: Models, buffers: Buffers, examples: Examples) -> Result:
        self._set_training(True)
        keys = self.network.keys(examples.keys, examples.first)
        x, trail = examples.inputs, []
        for layer, kernel, tensors in self._layers:
            own = self._own(tensors, {**models, **keys}, len(x))
            y, kept = kernel.forward(layer, own, x)
            trail.append((layer, kernel, tensors, own, x, kept))
            x = y
        losses, g = self._slopes(x, examples)
        found: dict[str, Tensor] = {}
        for k, (layer, kernel, tensors, own, x, kept) in reversed([*enumerate(trail)]):
            if k < self._lowest:
                break
            inputs, gradients = kernel.backward(layer, own, x, kept, g, k > self._lowest)
            for name, value in gradients.items():
                if (full := tensors[name]) in models:  # in several places, if layers share it
                    found[full] = found[full] + value if full in found else value
            if inputs is not None:
                g = inputs
        return Result(losses, {name: found[name] for name in models}, dict(buffers))

    @torch.no_grad()
    def outputs(self, models: Models, buffers: Buffers, inputs: Tensor) -> Tensor:
        self._set_training(False)
        keys = {k: v.expand(len(inputs)) for k, v in self.network.no_keys(inputs).items()}
        x = inputs
        for layer, kernel, tensors in self._layers:
            x, _ = kernel.forward(layer, self._own(tensors, {**models, **keys}, len(x)), x)
        return x

    def _own(self, tensors: Mapping[str, str], stacks: Models, models: int) -> Own:
        """A layer's tensors; frozen ones are the same for all models."""
        return {
            name: stacks[full] if full in stacks else self._frozen[full].expand(
                models, *self._frozen[full].shape
            )
            for name, full in tensors.items()
        }  # fmt: skip

    def _slopes(self, outputs: Tensor, examples: Examples) -> tuple[Tensor, Tensor]:
        """Losses (E, b), and the gradient of their weighted sum over the outputs."""
        if self.task.slopes is not None:
            return self.task.slopes(outputs, examples.targets, examples.weights)
        outputs = outputs.detach().requires_grad_()
        with torch.enable_grad():
            losses = self.task.losses(outputs, examples.targets)
        (slopes,) = torch.autograd.grad(losses, outputs, examples.weights)
        return losses.detach(), slopes


def _in_order(module: nn.Module, place: str) -> list[tuple[nn.Module, str]]:
    """The layers that a sequence of sequences calls, in order, with their names."""
    if type(module).forward is not nn.Sequential.forward:
        return [(module, place)]
    prefix = f"{place}." if place else ""
    assert isinstance(module, nn.Sequential)
    found: list[tuple[nn.Module, str]] = []
    for number, child in enumerate(module):  # a layer that is there twice counts twice
        found += _in_order(child, f"{prefix}{number}")
    return found


def _kernel(layer: nn.Module, place: str) -> Kernel:
    kernel = KERNELS.get(type(layer))
    overwrites = kernel is _ELEMENTWISE and getattr(layer, "inplace", False)
    if kernel is None or overwrites:
        raise ValueError(f'layer "{place}" ({type(layer).__name__}) has no batched kernel')
    return kernel


def _named(layer: nn.Module, names: Mapping[int, str]) -> dict[str, str]:
    own = (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False))
    return {name: names[id(value)] for name, value in own}
