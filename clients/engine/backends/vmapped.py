"""Backend that runs many models in one call of `torch.func.vmap`."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor
from torch.func import vmap

from coterie.clients.engine.backends.backend import Examples, Models, Result
from coterie.clients.engine.backends.sequential import Sequential
from coterie.clients.engine.network import Buffers


class Vmapped(Sequential):
    """Backend with one batched call of the module; a single model is not batched."""

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
