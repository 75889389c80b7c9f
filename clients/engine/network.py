"""Many copies of one network as one stacked tensor.

A `torch.nn.Module` is the template; the parameters of all copies lie in one matrix `x_ed`
(e = models, d = parameters, in `named_parameters` order), their buffers in stacked tensors.
One batched call (`torch.func.vmap` over `functional_call`) runs them all.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from clients.engine.mixed_precision import MixedPrecision

Buffers = dict[str, Tensor]
"""Buffers by name, each with a leading axis of models."""

_KEY = "dropout_key"
LAYER_STEP = 0x9E3779B1  # between the keys of two dropout layers: 2^32 over the golden ratio


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
        self.register_buffer(_KEY, torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0.0:
            return x
        position = torch.arange(x.numel(), device=x.device).view(x.shape)
        if self.first:
            position = position + self.first * (x.numel() // len(x))
        key = getattr(self, _KEY)
        uniform = hash32(hash32(position) ^ key).to(torch.float32) / 2**32
        return x * (uniform >= self.p) / (1.0 - self.p)


def hash32(h: Tensor) -> Tensor:
    """MurmurHash3's finaliser: whole numbers spread over 0 to 2^32 - 1."""
    low = 0xFFFFFFFF
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & low
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & low
    return h ^ (h >> 16)


class Network:
    """The template of a stacked model: names, shapes and the batched call.

    Parameters
    ----------
    mixed_precision : compute in bfloat16 where `clients.engine.mixed_precision` says so; the
        outputs are of the models' type.
    channels_last : let the channels of images lie innermost in calls of a single model, which
        tensor cores like. Stacked models are grouped convolutions, for which torch would undo it.

    Attributes
    ----------
    names, shapes, sizes : of the trainable tensors, in the order they lie in a row of `x_ed`.
    d : parameters of one model.
    coupled : whether an example's output depends on the rest of its batch (batch norm).
    """

    def __init__(
        self, template: nn.Module, *, mixed_precision: bool = False, channels_last: bool = False
    ) -> None:
        self.module = _keyed(template)
        self._mixed_precision, self._channels_last = mixed_precision, channels_last
        trainable = [(k, v) for k, v in self.module.named_parameters() if v.requires_grad]
        self.names = [name for name, _ in trainable]
        self.shapes = [tuple(value.shape) for _, value in trainable]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.d = sum(self.sizes)
        self._dropouts = [name for name, _ in self.module.named_buffers() if name.endswith(_KEY)]
        self._buffers = {
            name: value.detach().clone()
            for name, value in self.module.named_buffers()
            if not name.endswith(_KEY)
        }
        self.coupled = any(
            isinstance(m, nn.modules.batchnorm._BatchNorm) for m in self.module.modules()
        )

    def flat(self, module: nn.Module) -> Tensor:
        """The parameters of a module like the template, as one row (d,)."""
        values = dict(module.named_parameters())
        return torch.cat([values[name].detach().reshape(-1) for name in self.names])

    def named(self, x_ed: Tensor) -> dict[str, Tensor]:
        """Views of the rows as named tensors (E, *shape)."""
        parts = x_ed.split(self.sizes, dim=1)
        return {
            name: part.view(len(x_ed), *shape)
            for name, part, shape in zip(self.names, parts, self.shapes, strict=True)
        }

    def columns(self, names: Sequence[str]) -> Tensor:
        """Mask (d,) of the parameters whose tensor is called, or lies in a module called, so."""
        return torch.cat(
            [
                torch.full((size,), any(n == m or n.startswith(f"{m}.") for m in names))
                for n, size in zip(self.names, self.sizes, strict=True)
            ]
        )

    @property
    def head(self) -> list[str]:
        """Names of the tensors of the last layer that has any, the one that gives the outputs."""
        return [name for name in self.names if _layer(name) == _layer(self.names[-1])]

    def below_head(self) -> Network:
        """The network without its last layer: it puts out that layer's inputs."""
        module = copy.deepcopy(self.module)
        parent, _, child = _layer(self.names[-1]).rpartition(".")
        setattr(module.get_submodule(parent), child, nn.Identity())
        return Network(
            module, mixed_precision=self._mixed_precision, channels_last=self._channels_last
        )

    def buffers(self, models: int) -> Buffers:
        """The template's buffers, once for each model."""
        return {k: v.expand(models, *v.shape).clone() for k, v in self._buffers.items()}

    def __call__(
        self,
        x_ed: Tensor | Mapping[str, Tensor],
        buffers: Buffers,
        inputs_eb: Tensor,
        keys_e: Tensor | None = None,
        first: int = 0,
    ) -> tuple[Tensor, Buffers]:
        """Outputs (E, b, ...) of each model on its own inputs (E, b, ...).

        Parameters
        ----------
        x_ed : the models, as rows or already as `named` tensors.
        keys_e : dropout keys; None evaluates (no dropout, batch norm by its running statistics).
        first : where in the minibatch the inputs begin, if they are a part of it.

        Returns
        -------
        The outputs, and the buffers as the call left them (the arguments stay as they were).
        """
        self.module.train(keys_e is not None)
        state = dict(buffers)
        for number, name in enumerate(self._dropouts):
            self.module.get_submodule(_layer(name)).first = first  # type: ignore[assignment]
            assert keys_e is not None or not self.module.training
            state[name] = (
                keys_e + number * LAYER_STEP
                if keys_e is not None
                else torch.zeros(len(inputs_eb), dtype=torch.int64, device=inputs_eb.device)
            )

        def one(
            parameters: dict[str, Tensor], before: Buffers, inputs: Tensor
        ) -> tuple[Tensor, Buffers]:
            after = {name: value.clone() for name, value in before.items()}
            with MixedPrecision() if self._mixed_precision else nullcontext():
                outputs = functional_call(self.module, (parameters, after), (inputs,))
            if self._mixed_precision:
                outputs = outputs.float()
            return outputs, {name: after[name] for name in buffers}

        parameters = self.named(x_ed) if isinstance(x_ed, Tensor) else dict(x_ed)
        if len(inputs_eb) == 1:  # vmap would make grouped convolutions of it, at twice the time
            outputs, after = one(_only(parameters), _only(state), self._laid_out(inputs_eb[0]))
            return outputs[None], {name: value[None] for name, value in after.items()}
        outputs, after = vmap(one)(parameters, state, inputs_eb)
        return outputs, after

    def _laid_out(self, inputs_b: Tensor) -> Tensor:
        if self._channels_last and inputs_b.dim() == 4:
            return inputs_b.contiguous(memory_format=torch.channels_last)
        return inputs_b


def _only(stacks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a single model."""
    # Unlike that of an index, the gradient of a squeeze is a view: nothing is copied.
    return {name: value.squeeze(0) for name, value in stacks.items()}


def _layer(name: str) -> str:
    """The module that owns the tensor `name`."""
    return name.rpartition(".")[0]


def _keyed(module: nn.Module) -> nn.Module:
    """The module with torch's dropout layers replaced by ours."""
    if isinstance(module, nn.Dropout):
        return Dropout(module.p)
    for name, child in module.named_children():
        setattr(module, name, _keyed(child))
    return module
