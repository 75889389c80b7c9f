"""Layers whose many copies run in one call without vmap, backwards without autograd.

The same numbers with less overhead, which is most of what a small network takes. A form takes a
layer, its copies' tensors by name (e, *shape) and their inputs (e, b, ...), each its own. A network
has such a form if all its layers have one and it calls them one after the other; any other goes
through vmap and autograd. Legend: e = models, b = examples.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

Own = Mapping[str, Tensor]
Form = Callable[[Any, Own, Tensor], Tensor]
Back = Callable[[Any, Own, Tensor, Tensor, Tensor], Tensor]
"""(layer, own, inputs, outputs, gradient of the outputs) -> gradient of the inputs."""

KEY = "dropout_key"


class Dropout(nn.Module):
    """Dropout whose mask is a pure function of a key, so that a peer's masks are its own.

    torch's dropout draws from one global stream; under vmap its masks would depend on which
    peers happen to be stacked together. Here the engine writes a key per model and step into a
    buffer, and a counter hash (MurmurHash3's finaliser) turns key and position into a uniform.

    Attributes
    ----------
    first : where in its minibatch the first example lies, when only a part of it is shown.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p
        self.first = 0
        self.register_buffer(KEY, torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.of_many(x[None], getattr(self, KEY)[None])[0]

    def of_many(self, x_eb: Tensor, keys_e: Tensor) -> Tensor:
        """Drops from inputs of many models, each by its own key."""
        if not self.training or self.p == 0.0:
            return x_eb
        shape = x_eb.shape[1:]
        position = torch.arange(shape.numel(), device=x_eb.device).view(shape)
        if self.first:
            position = position + self.first * (shape.numel() // shape[0])
        keys = keys_e.view(-1, *[1] * len(shape))
        uniform = hash32(hash32(position) ^ keys).to(torch.float32) / 2**32
        return x_eb * (uniform >= self.p) / (1.0 - self.p)


def hash32(h: Tensor) -> Tensor:
    """MurmurHash3's finaliser: whole numbers spread over 0 to 2^32 - 1."""
    low = 0xFFFFFFFF
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & low
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & low
    return h ^ (h >> 16)


def prepared(module: nn.Module) -> nn.Module:
    """The module with our dropout instead of torch's, and with ReLU after pooling.

    The largest value's ReLU is the largest of the ReLUs, with the same gradient, and there are
    fewer of it.
    """
    if isinstance(module, nn.Dropout):
        return Dropout(module.p)
    for name, child in module.named_children():
        setattr(module, name, prepared(child))
    if type(module) is nn.Sequential:
        layers = module._modules
        for (one, before), (other, after) in pairwise(list(layers.items())):
            if isinstance(before, nn.ReLU) and isinstance(after, nn.MaxPool2d):
                layers[one], layers[other] = after, before
    return module


class Step(NamedTuple):
    """One layer: its form, and where among the network's tensors its own are."""

    form: Form
    layer: nn.Module
    tensors: dict[str, str]

    def __call__(self, state: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return self.form(self.layer, self.own(state), x)

    def own(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The layer's tensors among those of the network."""
        return {name: state[full] for name, full in self.tensors.items()}


class Slope(NamedTuple):
    """A linear layer in a backward pass: what went into it, and the gradient of what came out."""

    step: Step
    inputs: Tensor
    gradient: Tensor


def vjp(
    steps: Sequence[Step], state: Mapping[str, Tensor], x: Tensor
) -> tuple[Tensor, Callable[[Tensor], Iterator[Slope]]]:
    """Outputs of layers that `BACK` has, and what takes their gradient back to linear layers.

    `sums` makes gradients of its findings, last layer first.
    """
    passed = [x]
    for step in steps:
        passed.append(step(state, passed[-1]))

    def back(gradient: Tensor) -> Iterator[Slope]:
        lowest = next(k for k, step in enumerate(steps) if isinstance(step.layer, nn.Linear))
        for k in reversed(range(lowest, len(steps))):
            layer, inputs = steps[k].layer, passed[k]
            if isinstance(layer, nn.Linear):
                yield Slope(steps[k], inputs, gradient)
            if k > lowest:
                own = steps[k].own(state)
                gradient = BACK[type(layer)](layer, own, inputs, passed[k + 1], gradient)

    return passed[-1], back


def sums(slopes: Iterable[Slope]) -> dict[str, Tensor]:
    """Gradients of the tensors of linear layers, summed over examples."""
    found: dict[str, Tensor] = {}
    for step, inputs, gradient in slopes:
        weight, bias = linear_sums(inputs, gradient)
        found[step.tensors["weight"]] = weight
        if "bias" in step.tensors:
            found[step.tensors["bias"]] = bias
    return found


def linear_sums(inputs: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of a linear layer's weight (e, o, i) and bias (e, o), summed over rows."""
    rows = _rows(gradient)
    # Transposed by a copy, which is small: read across, it would take longer.
    return torch.bmm(rows.mT.contiguous(), _rows(inputs)), rows.sum(dim=1)


def has_vjp(steps: Sequence[Step]) -> bool:
    """Whether `vjp` takes these layers; none of them may overwrite what went into it."""
    layers = [step.layer for step in steps]
    return any(isinstance(layer, nn.Linear) for layer in layers) and all(
        type(layer) in BACK and not getattr(layer, "inplace", False) for layer in layers
    )


def steps(module: nn.Module, known: Collection[str], name: str = "") -> list[Step] | None:
    """The layers of a network one after the other, or None where one has no form.

    Parameters
    ----------
    known : tensors that every model has for itself; a layer with others has no form.
    """
    if type(module) is nn.Sequential:
        found: list[Step] = []
        for key, child in module._modules.items():  # a layer that is there twice counts twice
            below = steps(child, known, f"{name}{key}.")
            if below is None:
                return None
            found += below
        return found
    if type(module) not in FORMS:
        return None
    own = [
        *dict(module.named_parameters(recurse=False)),
        *dict(module.named_buffers(recurse=False)),
    ]
    tensors = {key: name + key for key in own}
    if not set(tensors.values()) <= {*known}:
        return None
    return [Step(FORMS[type(module)], module, tensors)]


def in_line(module: nn.Module, name: str = "") -> list[tuple[str, nn.Module]]:
    """The layers of a network that calls them one after the other and nothing else, by name.

    None of another network, and of one that has a layer twice.
    """
    if type(module) is not nn.Sequential:
        known = type(module).__module__.startswith("torch.nn.") or isinstance(module, Dropout)
        return [(name, module)] if known else []
    found: list[tuple[str, nn.Module]] = []
    for key, child in module._modules.items():
        below = in_line(child, f"{name}.{key}" if name else key) if child is not None else []
        if not below:
            return []
        found += below
    return found if len({id(layer) for _, layer in found}) == len(found) else []


def places(module: nn.Module, names: Collection[str]) -> list[tuple[str, dict[str, Any], str]]:
    """Where in its layers the tensors of a module lie; one that layers share lies in several."""
    named = {id(value): name for name, value in module.named_parameters()}
    named |= {id(value): name for name, value in module.named_buffers()}
    return [
        (named[id(value)], place, key)
        for layer in module.modules()
        for place in cast("list[dict[str, Any]]", [layer._parameters, layer._buffers])
        for key, value in place.items()
        if value is not None and named[id(value)] in names
    ]


def _rows(x: Tensor) -> Tensor:
    """Inputs (e, b, ..., i) as (e, rows, i)."""
    return x if x.dim() == 3 else x.flatten(1, -2)


def _linear(layer: nn.Linear, own: Own, x: Tensor) -> Tensor:
    rows = _rows(x)
    if "bias" in own:
        found = torch.baddbmm(own["bias"][:, None], rows, own["weight"].mT)
    else:
        found = torch.bmm(rows, own["weight"].mT)
    return found if rows is x else found.view(*x.shape[:-1], found.shape[2])


def _flatten(layer: nn.Flatten, own: Own, x: Tensor) -> Tensor:
    first, last = (d if d < 0 else d + 1 for d in (layer.start_dim, layer.end_dim))
    return x.flatten(first, last)


def _dropout(layer: Dropout, own: Own, x: Tensor) -> Tensor:
    return layer.of_many(x, own[KEY])


def _elementwise(layer: nn.Module, own: Own, x: Tensor) -> Tensor:
    found: Tensor = layer(x)
    return found


FORMS: dict[type[nn.Module], Form] = {
    nn.Linear: _linear,
    nn.Flatten: _flatten,
    Dropout: _dropout,
    **dict.fromkeys(
        (nn.Identity, nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid),
        _elementwise,
    ),
}  # fmt: skip
"""Layer type -> what runs many of its copies."""

BACK: dict[type[nn.Module], Back] = {
    nn.Linear: lambda layer, own, x, y, g: torch.bmm(_rows(g), own["weight"]).view(x.shape),
    nn.Flatten: lambda layer, own, x, y, g: g.reshape(x.shape),
    Dropout: lambda layer, own, x, y, g: layer.of_many(g, own[KEY]),
    nn.Identity: lambda layer, own, x, y, g: g,
    nn.ReLU: lambda layer, own, x, y, g: torch.ops.aten.threshold_backward(g, y, 0),
    nn.Tanh: lambda layer, own, x, y, g: torch.ops.aten.tanh_backward(g, y),
    nn.Sigmoid: lambda layer, own, x, y, g: torch.ops.aten.sigmoid_backward(g, y),
    nn.GELU: lambda layer, own, x, y, g: torch.ops.aten.gelu_backward(
        g, x, approximate=layer.approximate
    ),
}
"""Layer type -> what takes a gradient back through many of its copies; those of a linear layer's
own tensors are `vjp`'s."""
