"""Backends by autograd: one model at a time, the reference and for every network, or by vmap."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.func import vmap

from coterie.clients.engine.backends.backend import Backend, Examples, Models, Result
from coterie.clients.engine.network import Buffers


class Sequential(Backend):
    """Backend that loops over models and differentiates each by autograd."""

    name = "sequential"
    stacks = False

    def value_and_grad(
        self, models: Models, buffers: Buffers, examples: Examples,
        names: Collection[str] | None = None,
    ) -> Result:  # fmt: skip
        names = models if names is None else names
        results = [
            self._one(
                {name: value[e] for name, value in models.items()},
                {name: value[e] for name, value in buffers.items()},
                Examples(*(value[e] for value in examples)),
                names,
            )
            for e in range(len(examples.inputs))
        ]
        return Result(
            _stacked([losses for losses, _, _ in results]),
            {name: _stacked([gradients[name] for _, gradients, _ in results]) for name in names},
            {name: _stacked([after[name] for _, _, after in results]) for name in buffers},
        )

    def _one(
        self, model: Models, buffers: Buffers, examples: Examples, names: Collection[str]
    ) -> tuple[Tensor, dict[str, Tensor], Buffers]:
        self._set_training(True)
        leaves = {k: value.detach().requires_grad_(k in names) for k, value in model.items()}
        state = {name: value.clone() for name, value in buffers.items()}
        keys = self.network.keys(examples.keys, examples.first)
        with torch.enable_grad(), self._seeded(examples):
            outputs, after = self.network.run(
                self.module, {**leaves, **state, **keys}, self._laid_out(examples.inputs), buffers
            )
            losses = self.task.losses(outputs[None], examples.targets[None])[0]
            gradients = torch.autograd.grad(
                losses @ examples.weights, [leaves[name] for name in names], materialize_grads=True
            )
        after = {name: value.detach() for name, value in after.items()}
        return losses.detach(), dict(zip(names, gradients, strict=True)), after

    @torch.no_grad()
    def outputs(self, models: Models, buffers: Buffers, inputs: Tensor) -> Tensor:
        self._set_training(False)
        outputs = []
        for e, images in enumerate(inputs):
            model = {name: value[e] for name, value in models.items()}
            state = {name: value[e].clone() for name, value in buffers.items()}
            keys = self.network.no_keys(inputs)
            tensors = {**model, **state, **keys}
            outputs.append(self.network.run(self.module, tensors, self._laid_out(images), {})[0])
        return _stacked(outputs)

    def _laid_out(self, inputs: Tensor) -> Tensor:
        """Lay out images (b, channels, height, width) with channels innermost on a CPU: faster."""
        if inputs.dim() != 4 or inputs.device.type != "cpu":
            return inputs
        _, channels, height, width = inputs.shape
        if channels == 1:  # both layouts have the same bytes; torch's layers read the strides
            return inputs.contiguous().as_strided(inputs.shape, (height * width, 1, width, 1))
        return inputs.contiguous(memory_format=torch.channels_last)

    @contextmanager
    def _seeded(self, examples: Examples) -> Iterator[None]:
        """Seed torch's generator with the model's key, for a network that draws from it."""
        if not self.network.alone:
            yield
            return
        key = examples.keys
        with torch.random.fork_rng([key.device] if key.is_cuda else []):
            torch.manual_seed(int(key + examples.first))
            yield


class Vmapped(Sequential):
    """Backend with one call of `torch.func.vmap` for many models; a single one is not batched."""

    name = "vmapped"
    stacks = True

    def value_and_grad(
        self, models: Models, buffers: Buffers, examples: Examples,
        names: Collection[str] | None = None,
    ) -> Result:  # fmt: skip
        if len(examples.inputs) == 1:
            return super().value_and_grad(models, buffers, examples, names)
        names = models if names is None else names
        self._set_training(True)
        leaves = {
            name: value.detach().requires_grad_(name in names) for name, value in models.items()
        }
        keys = self.network.keys(examples.keys, examples.first)
        with torch.enable_grad():
            outputs, after = vmap(self._run)({**leaves, **buffers, **keys}, examples.inputs)
            losses = self.task.losses(outputs, examples.targets)
            # A scalar: with weights as `grad_outputs`, torch imports sympy.
            total = losses.flatten() @ examples.weights.flatten()
            wanted = [leaves[name] for name in names]
            gradients = torch.autograd.grad(total, wanted, materialize_grads=True)
        after = {name: after[name].detach() for name in buffers}
        return Result(losses.detach(), dict(zip(names, gradients, strict=True)), after)

    @torch.no_grad()
    def outputs(self, models: Models, buffers: Buffers, inputs: Tensor) -> Tensor:
        if len(inputs) == 1:
            return super().outputs(models, buffers, inputs)
        self._set_training(False)
        keys = {k: v.expand(len(inputs)) for k, v in self.network.no_keys(inputs).items()}
        outputs: Tensor = vmap(self._run)({**models, **buffers, **keys}, inputs)[0]
        return outputs

    def _run(self, tensors: dict[str, Tensor], inputs: Tensor) -> tuple[Tensor, Buffers]:
        buffers = self.network.buffer_names
        copies = tensors | {name: tensors[name].clone() for name in buffers}
        return self.network.run(self.module, copies, inputs, buffers)


def _stacked(values: Sequence[Tensor]) -> Tensor:
    return values[0][None] if len(values) == 1 else torch.stack([*values])
