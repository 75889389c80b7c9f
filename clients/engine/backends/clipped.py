"""Private gradients: clip the gradient of each example before the sum, for every network.

The clipped sum is that of Abadi et al., "Deep learning with differential privacy", CCS 2016. A
backend gives norms and weighted sums of single examples' gradients (`Backend.per_example`). Legend:
e = models, b = examples.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from coterie.clients.engine.backends.backend import Backend, Examples, Models, Result
from coterie.clients.engine.network import Buffers

LONGEST = 1e24
"""Maximum norm of a gradient that is scaled down, in multiples of the clip."""


class Clipped(Backend):
    """Backend that wraps another one and returns sums of gradients that are clipped per example."""

    def __init__(self, inner: Backend, clip: float) -> None:
        super().__init__(inner.network, inner.task)
        self.inner, self.clip = inner, clip
        self.name, self.stacks = inner.name, inner.stacks  # type: ignore[misc]

    def twin(self) -> Clipped | None:
        inner = self.inner.twin()
        return None if inner is None else Clipped(inner, self.clip)

    def value_and_grad(
        self, models: Models, buffers: Buffers, examples: Examples,
        names: Collection[str] | None = None,
    ) -> Result:  # fmt: skip
        losses, norms_eb, weighted_sums = self.inner.per_example(models, buffers, examples)
        factors_eb = factors(norms_eb, self.clip).to(examples.weights.dtype)
        return Result(losses, weighted_sums(examples.weights * factors_eb), dict(buffers))

    def outputs(self, models: Models, buffers: Buffers, inputs: Tensor) -> Tensor:
        return self.inner.outputs(models, buffers, inputs)

    def embed(self, models: Models, buffers: Buffers, inputs: Tensor) -> Tensor:
        return self.inner.embed(models, buffers, inputs)

    def _use(self, module: nn.Module) -> None:
        raise AssertionError("the inner backend has the module")


def factors(norms: Tensor, clip: float) -> Tensor:
    """Return min(1, clip / norm) of gradients; 0 if the norm is not finite, or too large."""
    # Such a gradient would spoil the sum, and so reveal that its example is in the data.
    sound = norms < LONGEST * clip  # false for NaN
    return torch.where(sound, clip / norms.clamp_min(clip), 0.0)
