"""Batched kernels: each layer computes all models in one call, with a hand-written backward pass.

Supports networks that call linear layers, activations, dropout and flatten in order, and the
quadratic problem. Without it, calling modules and recording the autograd graph takes most of the
time of a small network's step. Each gradient is read once: a layer may overwrite its outputs'.

The gradient of a linear layer is a sum of outer products, of the output gradient and the input of
each example. Norms of single examples follow from the two factors, without a gradient per
example (Goodfellow, "Efficient per-example gradient computations", 2015). Legend: e = models, b =
examples, r = rows, i, o = inputs and outputs of a linear layer, d = parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Set
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import hardshrink

from coterie.clients.engine.backends.backend import (
    Backend,
    Examples,
    Models,
    PerExample,
    Result,
    masked,
)
from coterie.clients.engine.layers import FIRST, KEY, Dropout
from coterie.clients.engine.network import Buffers, Network
from coterie.clients.engine.tasks import Task
from coterie.clients.models.build import Theta

Own = Mapping[str, Tensor]
"""Tensors of a layer by their own names, each (E, ...)."""
_threshold_backward = torch.ops.aten.threshold_backward.grad_input


class Outer(NamedTuple):
    """Gradient of a tensor as a sum of outer products of rows, one or more per example."""

    left: Tensor  # left factors of the products, (E, r, o)
    right: Tensor | None  # (E, r, i); right factors; None: the sum of the rows of `left`

    def sum(self) -> Tensor:
        """Return the sum over all rows, (E, o, i) or (E, o)."""
        if self.right is None:
            return self.left.sum(dim=1)
        # Copy the small transposed factor: a strided read is slower.
        return torch.bmm(self.left.mT.contiguous(), self.right)

    def weighted(self, weights_er: Tensor) -> Outer:
        """Return the products times their weights, without products of weight 0.

        Subnormal factors become 0: their rounding error could grow in a product with a large one.
        """
        each = weights_er[..., None]
        left = hardshrink(masked(self.left, each) * each, torch.finfo(each.dtype).tiny)
        return Outer(left, None if self.right is None else masked(self.right, each))

    def norms(self) -> Tensor:
        """Return the norm of each product, (E, r) in float64.

        In float32 the square of a small factor may vanish although the product is not small.
        """
        norms: Tensor = torch.linalg.vector_norm(self.left, dim=2, dtype=torch.float64)
        if self.right is not None:
            norms *= torch.linalg.vector_norm(self.right, dim=2, dtype=torch.float64)
        return norms


class Kernel(NamedTuple):
    """Kernel of a layer type.

    `forward` maps (layer, own, inputs) to the outputs and values kept for `backward`, which maps
    (layer, own, inputs, kept, gradient of the outputs) to the gradient of the inputs; it may
    overwrite the gradient of the outputs if the layer has no tensors. `gradients` maps (inputs,
    kept, gradient of the outputs) to the gradients of the layer's tensors, by their names in it.
    """

    forward: Callable[[Any, Own, Tensor], tuple[Tensor, Any]]
    backward: Callable[[Any, Own, Tensor, Any, Tensor], Tensor]
    gradients: Callable[[Tensor, Any, Tensor], dict[str, Outer]] = lambda x, kept, g: {}


def _relu(layer: nn.Module, own: Own, x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.relu()
    return y, y


def _relu_backward(layer: nn.Module, own: Own, x: Tensor, y: Tensor, g: Tensor) -> Tensor:
    slopes: Tensor = _threshold_backward(g, y, 0, grad_input=g)
    return slopes


def _by_autograd(layer: nn.Module, own: Own, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Run an elementwise layer without tensors under autograd."""
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        y = layer(x)
    return y.detach(), (x, y)


def _autograd_backward(
    layer: nn.Module, own: Own, x: Tensor, kept: tuple[Tensor, Tensor], g: Tensor
) -> Tensor:
    leaf, y = kept
    return torch.autograd.grad(y, leaf, g)[0]


def _rows(x: Tensor) -> Tensor:
    return x if x.dim() == 3 else x.flatten(1, -2)


def _linear(layer: nn.Linear, own: Own, x: Tensor) -> tuple[Tensor, None]:
    rows = _rows(x)
    if "bias" in own:
        y = torch.baddbmm(own["bias"][:, None], rows, own["weight"].mT)
    else:
        y = torch.bmm(rows, own["weight"].mT)
    return y if rows is x else y.view(*x.shape[:-1], y.shape[2]), None


def _linear_backward(layer: nn.Linear, own: Own, x: Tensor, kept: None, g: Tensor) -> Tensor:
    return torch.bmm(_rows(g), own["weight"]).view(x.shape)


def _linear_gradients(x: Tensor, kept: None, g: Tensor) -> dict[str, Outer]:
    rows = _rows(g)
    return {"weight": Outer(rows, _rows(x)), "bias": Outer(rows, None)}


def _flatten(layer: nn.Flatten, own: Own, x: Tensor) -> tuple[Tensor, None]:
    first, last = (d if d < 0 else d + 1 for d in (layer.start_dim, layer.end_dim))
    return x.flatten(first, last), None


def _reshape(layer: nn.Module, own: Own, x: Tensor, kept: None, g: Tensor) -> Tensor:
    return g.reshape(x.shape)


def _dropout(layer: Dropout, own: Own, x: Tensor) -> tuple[Tensor, None]:
    return layer.of_many(x, own[KEY], own[FIRST]), None


def _dropout_backward(layer: Dropout, own: Own, x: Tensor, kept: None, g: Tensor) -> Tensor:
    return layer.of_many(g, own[KEY], own[FIRST])


def _theta(layer: Theta, own: Own, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return 1/2 sum_j a_j (theta_j - c_j)^2 of examples (e, b, 2, d): curvature a, centre c."""
    curvature, centre = x.unbind(dim=-2)
    away = own["theta"][:, None] - centre
    return 0.5 * (curvature * away.square()).sum(dim=-1), curvature * away


def _theta_backward(layer: Theta, own: Own, x: Tensor, slope: Tensor, g: Tensor) -> Tensor:
    away = own["theta"][:, None] - x.unbind(dim=-2)[1]
    return torch.stack((0.5 * away.square(), -slope), dim=-2) * g[..., None, None]


_ELEMENTWISE = Kernel(_by_autograd, _autograd_backward)
KERNELS: dict[type[nn.Module], Kernel] = {
    nn.Linear: Kernel(_linear, _linear_backward, _linear_gradients),
    nn.Flatten: Kernel(_flatten, _reshape),
    nn.Identity: Kernel(lambda layer, own, x: (x, None), _reshape),
    nn.ReLU: Kernel(_relu, _relu_backward),
    Dropout: Kernel(_dropout, _dropout_backward),
    Theta: Kernel(
        _theta, _theta_backward, lambda x, slope, g: {"theta": Outer(g[..., None] * slope, None)}
    ),
    **dict.fromkeys((nn.Tanh, nn.Sigmoid, nn.GELU, nn.LeakyReLU, nn.ELU, nn.SiLU), _ELEMENTWISE),
}
"""Layer type -> its kernel."""


class Layer(NamedTuple):
    """Layer of a network, with its kernel."""

    layer: nn.Module
    kernel: Kernel
    tensors: Mapping[str, str]  # name of each tensor in the network, by its name in the layer


class Batched(Backend):
    """Backend that runs each layer for all models in one call; ValueError: one has no kernel."""

    name = "batched"
    stacks = True
    materializes = False

    def __init__(self, network: Network, task: Task) -> None:
        super().__init__(network, task)
        if network.mixed_precision:
            raise ValueError("mixed precision needs the layers' own forward pass")
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

    def value_and_grad(
        self, models: Models, buffers: Buffers, examples: Examples,
        names: Collection[str] | None = None,
    ) -> Result:  # fmt: skip
        names = {*models} if names is None else {*names}
        losses, products = self._differentiate(models, examples, names)
        sums: dict[str, Tensor] = {}
        for name, outer in products:  # layers may share a tensor
            value = outer.sum()
            sums[name] = sums[name] + value if name in sums else value
        return Result(losses, {name: sums[name] for name in models if name in names}, dict(buffers))

    def per_example(self, models: Models, buffers: Buffers, examples: Examples) -> PerExample:
        """Return norms and weighted sums of single examples' gradients."""
        # ValueError: an example adds several products to a tensor. If they cancel, rounding may add
        # more to the weighted sum than to the norm, so clipping would be incorrect.
        ones = torch.ones_like(examples.weights)
        losses, pairs = self._differentiate(models, examples._replace(weights=ones), models.keys())
        products: dict[str, Outer] = {}
        for name, outer in pairs:
            if name in products or outer.left.shape[1] != ones.shape[1]:
                raise ValueError(f'with privacy, an example may use "{name}" only once')
            products[name] = outer
        norms = torch.stack([outer.norms() for outer in products.values()])

        def weighted_sums(weights_eb: Tensor) -> dict[str, Tensor]:
            return {name: products[name].weighted(weights_eb).sum() for name in models}

        return PerExample(losses, torch.linalg.vector_norm(norms, dim=0), weighted_sums)

    def _differentiate(
        self, models: Models, examples: Examples, names: Set[str]
    ) -> tuple[Tensor, Iterator[tuple[str, Outer]]]:
        """Return losses (E, b) and the gradients of their weighted sum, last layer first."""
        self._set_training(True)
        keys = self.network.keys(examples.keys, examples.first)
        x, trail = examples.inputs, []
        for at in self._layers:
            own = self._own(at.tensors, {**models, **keys}, len(x))
            y, kept = at.kernel.forward(at.layer, own, x)
            trail.append((at, own, x, kept))
            x = y
        losses, slopes = self._slopes(x, examples)
        trained = (not names.isdisjoint(at.tensors.values()) for at in self._layers)
        lowest = next((k for k, trains in enumerate(trained) if trains), len(trail))

        def products() -> Iterator[tuple[str, Outer]]:
            g = slopes
            for k, ((layer, kernel, tensors), own, x, kept) in reversed([*enumerate(trail)]):
                if k < lowest:
                    return
                gradients = kernel.gradients(x, kept, g)
                for name, outer in gradients.items():
                    if (full := tensors.get(name)) in names:
                        yield full, outer
                if k > lowest:
                    g = kernel.backward(layer, own, x, kept, g)

        return losses, products()

    @torch.no_grad()
    def outputs(self, models: Models, buffers: Buffers, inputs: Tensor) -> Tensor:
        self._set_training(False)
        keys = {k: v.expand(len(inputs)) for k, v in self.network.no_keys(inputs).items()}
        x = inputs
        for layer, kernel, tensors in self._layers:
            x, _ = kernel.forward(layer, self._own(tensors, {**models, **keys}, len(x)), x)
        return x

    def _own(self, tensors: Mapping[str, str], stacks: Models, models: int) -> Own:
        """Return a layer's tensors; frozen ones are the same for all models."""
        return {
            name: stacks[full] if full in stacks else self._frozen[full].expand(
                models, *self._frozen[full].shape
            )
            for name, full in tensors.items()
        }  # fmt: skip

    def _slopes(self, outputs: Tensor, examples: Examples) -> tuple[Tensor, Tensor]:
        if self.task.slopes is not None:
            return self.task.slopes(outputs, examples.targets, examples.weights)
        outputs = outputs.detach().requires_grad_()
        with torch.enable_grad():
            losses = self.task.losses(outputs, examples.targets)
        (slopes,) = torch.autograd.grad(losses, outputs, examples.weights)
        return losses.detach(), slopes


def _in_order(module: nn.Module, place: str) -> list[tuple[nn.Module, str]]:
    """Return the layers of nested `nn.Sequential` modules in order, with their names."""
    if type(module).forward is not nn.Sequential.forward:
        return [(module, place)]
    prefix = f"{place}." if place else ""
    assert isinstance(module, nn.Sequential)
    layers: list[tuple[nn.Module, str]] = []
    for number, child in enumerate(module):  # a repeated layer counts twice
        layers += _in_order(child, f"{prefix}{number}")
    return layers


def _kernel(layer: nn.Module, place: str) -> Kernel:
    kernel = KERNELS.get(type(layer))
    overwrites = kernel is _ELEMENTWISE and getattr(layer, "inplace", False)
    if kernel is None or overwrites:
        raise ValueError(f'layer "{place}" ({type(layer).__name__}) has no batched kernel')
    return kernel


def _named(layer: nn.Module, names: Mapping[int, str]) -> dict[str, str]:
    tensors = (*layer.named_parameters(recurse=False), *layer.named_buffers(recurse=False))
    return {name: names[id(value)] for name, value in tensors}
