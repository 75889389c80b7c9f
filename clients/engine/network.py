"""Layout of stacked models: names and shapes of one network, rows of parameters, buffers.

A `torch.nn.Module` is the template. The trainable parameters of many copies lie in one matrix
`x_ed` (e = models, d = parameters, in `named_parameters` order), their buffers in stacked tensors.
Backends (`coterie.clients.engine.backends`) run the copies.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call

from coterie.clients.engine.layers import (
    FIRST,
    KEY,
    MixedPrecision,
    with_keyed_dropout,
    without_head,
)
from coterie.errors import Error

Buffers = dict[str, Tensor]
"""Buffers by name, each with a leading axis of models."""

LAYER_STEP = 0x9E3779B1
"""Distance between the keys of two dropout layers: 2^32 over the golden ratio."""


class ModelError(Error, ValueError):
    """Error: a network cannot learn the problem; the message names layer and remedy."""


class Network:
    """Names, shapes and buffers of a network, with a method that runs one copy.

    `names`, `shapes` and `sizes` are those of the tensors in a row of `x_ed`, `d` in all; the
    `personal` tensors (see `coterie.clients.engine.optimizers`) are kept with the buffers.
    `coupled`: the output for an example depends on the rest of its batch (batch norm). `alone` is
    the reason why torch.func.vmap cannot batch copies, "" if it can: such a network runs one copy
    at a time, and draws from torch's generator, seeded with the model's key.
    """

    def __init__(
        self,
        template: nn.Module,
        *,
        mixed_precision: bool = False,
        personal: Sequence[str] = (),
    ) -> None:
        self.mixed_precision = mixed_precision
        self.module = module = with_keyed_dropout(template).train()
        trainable = {k: v for k, v in module.named_parameters() if v.requires_grad}
        self.personal = [name for name in trainable if name in personal]
        self.names = [name for name in trainable if name not in personal]
        self.trained = [*self.names, *self.personal]
        self._order = list(trainable)
        self.shapes = [tuple(trainable[name].shape) for name in self.names]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.d = sum(self.sizes)
        buffers = dict(module.named_buffers())
        self._dropouts = [_owner(name) for name in buffers if name.rpartition(".")[2] == KEY]
        self.buffer_names = [k for k in buffers if k.rpartition(".")[2] not in (KEY, FIRST)]
        per_model = {name: buffers[name] for name in self.buffer_names}
        per_model |= {name: trainable[name] for name in self.personal}
        self._buffers = {name: value.detach().clone() for name, value in per_model.items()}
        self._aliases = _aliases(module)
        self.alone = ""
        layers = [*module.modules()]
        self.convolves = any(isinstance(m, nn.modules.conv._ConvNd) for m in layers)
        self.coupled = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in layers)

    def run(
        self, module: nn.Module, tensors: dict[str, Tensor], inputs: Tensor, kept: Collection[str]
    ) -> tuple[Tensor, Buffers]:
        """Run one copy; return outputs (b, ...), and the tensors in `kept` after the call."""
        # `tensors` are parameters and buffers of the copy; buffers may be changed in place. The
        # tensors of `module`, the template or a copy of it, stay as they are.
        placed = {name: tensors[of] for name, of in self._aliases.items() if of in tensors}
        with MixedPrecision() if self.mixed_precision else nullcontext():
            outputs = functional_call(module, placed, (inputs,), tie_weights=False)
        if not isinstance(outputs, Tensor):
            raise TypeError(f"the network gives a {type(outputs).__name__} instead of a tensor")
        if self.mixed_precision:
            outputs = outputs.float()
        return outputs, {name: placed[name] for name in kept}

    def keys(self, keys: Tensor, first: Tensor) -> dict[str, Tensor]:
        """Return the dropout buffers of models with these keys, () or (E,)."""
        result = {}
        for number, layer in enumerate(self._dropouts):
            prefix = f"{layer}." if layer else ""
            result[f"{prefix}{KEY}"] = keys + number * LAYER_STEP
            result[f"{prefix}{FIRST}"] = first
        return result

    def no_keys(self, like: Tensor) -> dict[str, Tensor]:
        """Return dropout buffers for evaluation, on the device of `like`."""
        zero = torch.zeros((), dtype=torch.int64, device=like.device) if self._dropouts else like
        return self.keys(zero, zero)

    def flat(self, module: nn.Module) -> Tensor:
        """Return the parameters of a module like the template, as one row (d,)."""
        values = dict(module.named_parameters())
        return torch.cat([values[name].detach().reshape(-1) for name in self.names])

    def named(self, x_ed: Tensor) -> dict[str, Tensor]:
        """Return views of rows as named tensors (E, *shape)."""
        return dict(zip(self.names, self.tensors(x_ed), strict=True))

    def tensors(self, x_ed: Tensor, places: Sequence[int] | None = None) -> list[Tensor]:
        """Return views of rows as tensors (E, *shape), in the order of `names` or of `places`."""
        places = range(len(self.names)) if places is None else places
        parts = x_ed.split([self.sizes[k] for k in places], dim=1)
        return [p.view(len(x_ed), *self.shapes[k]) for p, k in zip(parts, places, strict=True)]

    def places(self, names: Sequence[str] | None) -> list[int]:
        """Return the places of tensors in a row; None: all tensors."""
        return [k for k, name in enumerate(self.names) if names is None or name in names]

    def columns(self, names: Sequence[str]) -> Tensor:
        """Return a mask (d,) of the parameters of some tensors or modules."""
        return torch.cat(
            [
                torch.full((size,), any(n == m or n.startswith(f"{m}.") for m in names))
                for n, size in zip(self.names, self.sizes, strict=True)
            ]
        )

    @property
    def head(self) -> list[str]:
        """Return the names of the tensors of the last trained layer, the output layer."""
        last = _owner(self._order[-1])
        return [name for name in self._order if _owner(name) == last]

    def below_head(self, module: nn.Module) -> Network:
        """Return the network up to its last layer's inputs; it shares the tensors of `module`."""
        shared = {id(t): t for t in (*module.parameters(), *module.buffers())}
        below = Network(
            without_head(copy.deepcopy(module, shared)),
            mixed_precision=self.mixed_precision,
            personal=self.personal,
        )
        below.alone = self.alone
        return below

    def copies(self, models: int) -> tuple[Buffers, Buffers]:
        """Return copies of the template as stacks: trainable tensors, and buffers."""
        values = {name: self.module.get_parameter(name).detach() for name in self.trained}
        stacks = {name: value.expand(models, *value.shape) for name, value in values.items()}
        buffers = self.buffers(models)
        return stacks, {name: buffers[name] for name in self.buffer_names}

    def release(self) -> None:
        """Free the template's trainable tensors, which calls replace by those of a copy."""
        for name in self.trained:
            tensor = self.module.get_parameter(name)
            tensor.data = tensor.data.new_zeros(()).expand(tensor.shape)

    def buffers(self, models: int) -> Buffers:
        """Return a copy of the template's buffers per model."""
        return {k: v.expand(models, *v.shape).clone() for k, v in self._buffers.items()}


def _aliases(module: nn.Module) -> dict[str, str]:
    """Map each place of a tensor to the tensor's name; tied tensors have several places."""
    # A layer that is called in several places is one place, which may be written only once.
    names = {id(value): name for name, value in module.named_buffers()}
    names |= {id(value): name for name, value in module.named_parameters()}
    result = {}
    for place, layer in module.named_modules():
        for named_tensors in (layer.named_parameters, layer.named_buffers):
            for key, value in named_tensors(recurse=False, remove_duplicate=False):
                result[f"{place}.{key}" if place else key] = names[id(value)]
    return result


def _owner(name: str) -> str:
    return name.rpartition(".")[0]
