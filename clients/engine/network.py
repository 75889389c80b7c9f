"""Many copies of one network as one stacked tensor.

A `torch.nn.Module` is the template; the parameters of all copies lie in one matrix `x_ed`
(e = models, d = parameters, in `named_parameters` order), their buffers in stacked tensors.
One batched call runs them all: layer by layer (`coterie.clients.engine.line`), or through
`torch.func.vmap`. A model alone is the module itself with other tensors in it; it is
differentiated layer by layer, too, where that is known.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import vmap

from coterie.clients.engine.layers import KEY, places, prepared, trains, without_head
from coterie.clients.engine.line import Line, Seen, Take, line_of
from coterie.clients.engine.mixed_precision import MixedPrecision

Buffers = dict[str, Tensor]
"""Buffers by name, each with a leading axis of models."""

LAYER_STEP = 0x9E3779B1  # between the keys of two dropout layers: 2^32 over the golden ratio


class Network:
    """The template of a stacked model: names, shapes and the batched call.

    Parameters
    ----------
    mixed_precision : compute in bfloat16 where `coterie.clients.engine.mixed_precision` says so; the
        outputs are of the models' type.
    channels_last : let the channels of images lie innermost in calls of a single model on a GPU,
        whose tensor cores like it; on a CPU they always do. Stacked models are grouped
        convolutions, for which torch would undo it.
    personal : names of trainable tensors that are among the buffers instead of `names`; see
        `coterie.clients.engine.personal`.

    Attributes
    ----------
    names, shapes, sizes : of the trainable tensors, in the order they lie in a row of `x_ed`.
    personal : names of those that lie in no row.
    d : parameters of one model.
    stacks : whether many models in one call are faster than one after the other on a CPU, where
        grouped convolutions are slow.
    alone : why its copies cannot share a call, if they cannot; then they are called one after the
        other, and what they draw comes from torch's generator, seeded by the model's own key.
    coupled : whether an example's output depends on the rest of its batch (batch norm).
    """

    def __init__(
        self,
        template: nn.Module,
        *,
        mixed_precision: bool = False,
        channels_last: bool = False,
        personal: Sequence[str] = (),
    ) -> None:
        self._mixed_precision, self._channels_last = mixed_precision, channels_last
        module = prepared(template).train()
        trainable = {k: v for k, v in module.named_parameters() if v.requires_grad}
        self._trainable = list(trainable)
        self.personal = [name for name in trainable if name in personal]
        self.names = [name for name in trainable if name not in personal]
        self.shapes = [tuple(trainable[name].shape) for name in self.names]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self.d = sum(self.sizes)
        buffers = dict(module.named_buffers()) | {k: trainable[k] for k in self.personal}
        self._dropouts = [name for name in buffers if name.endswith(KEY)]
        self._buffers = {
            name: value.detach().clone()
            for name, value in buffers.items()
            if name not in self._dropouts
        }
        self._take(module)
        self._twins: list[Network] = []
        self._seen: Seen | None = None
        self.stacks = self.is_layered or not any(
            isinstance(m, nn.modules.conv._ConvNd) for m in module.modules()
        )
        self.alone = ""
        self.coupled = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in module.modules())

    def _take(self, module: nn.Module) -> None:
        """Have a module run the calls."""
        known = {*self.names, *self._buffers, *self._dropouts}
        self.module, self._places = module, places(module, known)
        self._filters: dict[str, Tensor] = {}
        self._many, self._single = (
            # Mixed precision asks the layers themselves.
            None if self._mixed_precision else line_of(module, known, self.names, many=many)
            for many in (True, False)
        )

    def twins(self, count: int) -> Sequence[Network]:
        """Networks that may run beside it, each with a module of its own; fewer if it has none."""
        tensors = {id(t): t for t in (*self.module.parameters(), *self.module.buffers())}
        while len(self._twins) < count:
            try:
                module = copy.deepcopy(self.module, dict(tensors))
            except Exception:  # of code that is not ours
                break
            twin = copy.copy(self)
            vars(twin).pop("below_head", None)
            twin._take(module)
            self._twins.append(twin)
        return self._twins[:count]

    @contextmanager
    def watched(self, seen: Seen) -> Iterator[None]:
        """Meanwhile every layer with trainable parameters shows what goes in and comes out."""
        self._seen = seen
        overwrites = any(getattr(layer, "inplace", False) for layer in self.module.modules())

        def see(layer: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
            seen(layer, inputs[0], outputs)
            return outputs.clone() if overwrites else outputs  # what was seen stays as it is

        hooks = [m.register_forward_hook(see) for m in self.module.modules() if trains(m)]
        try:
            yield
        finally:
            self._seen = None
            for hook in hooks:
                hook.remove()

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

    def tensors(self, x_ed: Tensor) -> list[Tensor]:
        """The same without the names."""
        return [*self.named(x_ed).values()]

    def cut(self, x_ed: Tensor) -> dict[str, Tensor]:
        """`named` as `vjp` takes it: without the axis of models where a single one goes alone."""
        line = self.line(len(x_ed))
        return self.named(x_ed) if line is None or line.many else _only(self.named(x_ed))

    def leaves(self, x_ed: Tensor) -> dict[str, Tensor]:
        """`named`, to be differentiated by autograd; a single model without its axis."""
        # Not `detach`: while these are differentiated, other workers change other rows of `x_ed`.
        named = self.named(x_ed) if len(x_ed) > 1 else _only(self.named(x_ed))
        return {name: value.data.requires_grad_() for name, value in named.items()}

    def columns(self, names: Sequence[str]) -> Tensor:
        """Mask (d,) of the parameters whose tensor is called, or lies in a module called, so."""
        return torch.cat(
            [
                torch.full((size,), any(n == m or n.startswith(f"{m}.") for m in names))
                for n, size in zip(self.names, self.sizes, strict=True)
            ]
        )

    @property
    def is_layered(self) -> bool:
        """Whether many models in one call go through layer by layer."""
        return self._many is not None

    def line(self, models: int) -> Line | None:
        """The layers that so many models in one call are differentiated through by hand, if so.

        None, too, where some of what is trained lies in no row, or models draw from the generator.
        """
        # By the forms of many also one alone: the same bits, whoever else is in the call.
        many = self._many is not None and self._many.has_back
        line = self._many if many else self._single if models == 1 else None
        known = line is not None and line.has_back and not self.personal and not self.alone
        return line if known else None

    @property
    def head(self) -> list[str]:
        """Names of the tensors of the last layer that has any, the one that gives the outputs."""
        last = _layer(self._trainable[-1])
        return [name for name in self._trainable if _layer(name) == last]

    @cached_property
    def below_head(self) -> Network:
        """The network without its last layer: it puts out that layer's inputs."""
        below = Network(
            without_head(copy.deepcopy(self.module)),
            mixed_precision=self._mixed_precision,
            channels_last=self._channels_last,
            personal=self.personal,
        )
        below.alone = self.alone
        return below

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
        x_ed : the models, as rows or already as `leaves`.
        keys_e : dropout keys; None evaluates (no dropout, batch norm by its running statistics).
        first : where in the minibatch the inputs begin, if they are a part of it.

        Returns
        -------
        The outputs, and the buffers as the call left them (the arguments stay as they were).
        """
        self._set_training(keys_e is not None)
        others = {**buffers, **self._keys(keys_e, inputs_eb, first)}

        def one(own: dict[str, Tensor], inputs: Tensor) -> tuple[Tensor, Buffers]:
            own |= {name: own[name].clone() for name in buffers}
            with self._holding(own), MixedPrecision() if self._mixed_precision else nullcontext():
                outputs = self.module(inputs)
            if self._mixed_precision:
                outputs = outputs.float()
            return outputs, {name: own[name] for name in buffers}

        if len(inputs_eb) == 1:  # vmap would make grouped convolutions of it, at twice the time
            alone = _only(self.named(x_ed)) if isinstance(x_ed, Tensor) else x_ed
            with self._seeded(keys_e, first):
                outputs, after = one({**alone, **_only(others)}, self._laid_out(inputs_eb[0]))
            return outputs[None], {name: value[None] for name, value in after.items()}
        state = {**(self.named(x_ed) if isinstance(x_ed, Tensor) else x_ed), **others}
        if self._many is None:
            outputs, after = vmap(one)(state, inputs_eb)
            return outputs, after
        return self._many.outputs(state, inputs_eb, self._seen), buffers

    def _set_training(self, training: bool) -> None:
        if self.module.training != training:  # asking is cheap, setting it goes through all layers
            self.module.train(training)

    def vjp(
        self, named: Mapping[str, Tensor], buffers: Buffers, inputs_eb: Tensor, keys_e: Tensor,
        first: int = 0,
    ) -> tuple[Tensor, Callable[[Tensor, Take], object]]:  # fmt: skip
        """Outputs as in a call in training, and what takes their gradient back.

        Parameters
        ----------
        named : as many models as there is a `line` for, `cut`.
        buffers : changed where they lie.
        """
        line = self.line(len(inputs_eb))
        assert line is not None
        self._set_training(True)
        state = {**buffers, **self._keys(keys_e, inputs_eb, first)}
        if line.many:
            outputs_eb, trail = line({**named, **state}, inputs_eb)
            return outputs_eb, lambda gradient, take: line.back(trail, gradient, take)
        outputs, trail = line({**named, **_only(state)}, self._laid_out(inputs_eb[0]))
        return outputs[None], lambda gradient, take: line.back(trail, gradient[0], take)

    @contextmanager
    def _seeded(self, keys_e: Tensor | None, first: int) -> Iterator[None]:
        """Torch's generator as the model's key has it, for a network that draws from it."""
        if keys_e is None or not self.alone:
            yield
            return
        devices = [keys_e.device] if keys_e.is_cuda else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(int(keys_e[0]) + first)
            yield

    def _keys(self, keys_e: Tensor | None, inputs_eb: Tensor, first: int) -> dict[str, Tensor]:
        """A key for each model in each dropout layer."""
        found = {}
        for number, name in enumerate(self._dropouts):
            self.module.get_submodule(_layer(name)).first = first  # type: ignore[assignment]
            found[name] = (
                torch.zeros(len(inputs_eb), dtype=torch.int64, device=inputs_eb.device)
                if keys_e is None
                else keys_e + number * LAYER_STEP
            )
        return found

    @contextmanager
    def _holding(self, tensors: dict[str, Tensor]) -> Iterator[None]:
        """The module with other tensors in it; at the end they are what it made of them."""
        before = [(place, key, place[key]) for _, place, key in self._places]
        for name, place, key in self._places:
            place[key] = tensors[name]
        try:
            yield
        finally:
            for (name, *_), (place, key, value) in zip(self._places, before, strict=True):
                tensors[name], place[key] = place[key], value

    @contextmanager
    def laid_out(self, named: dict[str, Tensor]) -> Iterator[dict[str, Tensor]]:
        """A single model, `cut`, to be changed meanwhile: its filters lie as images do.

        Otherwise each pass would turn them and their gradients around.
        """
        filters = {k: v for k, v in named.items() if self._wants_channels_last(v)}
        for name, value in filters.items():  # kept: touching new memory takes most of a copy
            if name not in self._filters:
                self._filters[name] = torch.empty_like(value, memory_format=torch.channels_last)
            self._filters[name].copy_(value)
        yield named | self._filters
        for name, value in filters.items():
            value.copy_(self._filters[name])

    def _wants_channels_last(self, x: Tensor) -> bool:
        return x.dim() == 4 and (self._channels_last or x.device.type == "cpu")

    def _laid_out(self, inputs_b: Tensor) -> Tensor:
        """Images with their channels innermost: pooling is several times faster."""
        if not self._wants_channels_last(inputs_b):
            return inputs_b
        _, channels, height, width = inputs_b.shape
        if channels == 1:  # either layout; the strides tell which is meant
            return inputs_b.as_strided(inputs_b.shape, (height * width, 1, width, 1))
        return inputs_b.contiguous(memory_format=torch.channels_last)


def _only(stacks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a single model."""
    # Unlike that of an index, the gradient of a squeeze is a view: nothing is copied.
    return {name: value.squeeze(0) for name, value in stacks.items()}


def _layer(name: str) -> str:
    """The module that owns the tensor `name`."""
    return name.rpartition(".")[0]
