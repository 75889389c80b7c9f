"""Private gradients: each example's gradient is clipped before the sum, for every network.

An example is treated as a model of its own: a call of E models on b examples becomes a call of E b
models on one example each. Examples cannot influence each other's gradient then, whatever the
network does, and the clipped sum is that of Abadi et al., "Deep learning with differential
privacy", CCS 2016. Legend: e = models, b = examples.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from coterie.clients.engine.backends.backend import Backend, Examples, Models, Result
from coterie.clients.engine.network import Buffers


class Clipped(Backend):
    """Another backend, with gradients that are sums of clipped ones.

    Parameters
    ----------
    inner : the backend that computes single gradients.
    clip : maximum norm of one example's gradient, over all its tensors.
    """

    def __init__(self, inner: Backend, clip: float) -> None:
        super().__init__(inner.network, inner.task)
        self.inner, self.clip = inner, clip
        self.name, self.stacks = inner.name, inner.stacks  # type: ignore[misc]

    def twin(self) -> Clipped | None:
        inner = self.inner.twin()
        return None if inner is None else Clipped(inner, self.clip)

    def value_and_grad(self, models: Models, buffers: Buffers, examples: Examples) -> Result:
        inputs, targets, weights_eb, keys, first = examples
        count, width = weights_eb.shape
        position = torch.arange(width, device=inputs.device).repeat(count)
        ones = torch.ones_like(weights_eb).view(-1, 1)
        alone = Examples(
            inputs.flatten(0, 1)[:, None], targets.flatten(0, 1)[:, None], ones,
            keys.repeat_interleave(width), first.repeat_interleave(width) + position,
        )  # fmt: skip
        losses, single, _ = self.inner.value_and_grad(
            _repeated(models, width), _repeated(buffers, width), alone
        )
        weights_n = weights_eb.flatten() * factors(single, self.clip)
        # NaN times 0 is NaN: an example whose gradient is not finite is taken out, not weighted.
        sums = {
            name: _weighted_sums(weights_n, value.flatten(1), count).view(models[name].shape)
            for name, value in single.items()
        }
        return Result(losses.view(count, width), sums, dict(buffers))

    def outputs(self, models: Models, buffers: Buffers, inputs: Tensor) -> Tensor:
        return self.inner.outputs(models, buffers, inputs)

    def embed(self, models: Models, buffers: Buffers, inputs: Tensor) -> Tensor:
        return self.inner.embed(models, buffers, inputs)

    def _use(self, module: nn.Module) -> None:
        raise AssertionError("the inner backend has the module")


LONGEST = 1e24
"""Maximum norm of a gradient that is scaled down, in multiples of the clip."""


def factors(gradients: Mapping[str, Tensor], clip: float) -> Tensor:
    """Return min(1, clip / norm) of each example's gradient (n,).

    0 where the gradient is not finite, or too long for float32 to scale down: it would take the sum
    with it, and so reveal that its example is there. Norms are float64, in which the square of a
    float32 neither vanishes nor overflows.

    Parameters
    ----------
    gradients : Mapping of str to Tensor, (n, ...)
        Gradients of single examples.
    clip : float
        Maximum norm.
    """
    norms = [
        torch.linalg.vector_norm(g.flatten(1), dim=1, dtype=torch.float64)
        for g in gradients.values()
    ]
    norms_n = torch.linalg.vector_norm(torch.stack(norms), dim=0)
    factors_n = (clip / norms_n.clamp_min(1e-30)).clamp_max(1.0)
    sound_n = norms_n < LONGEST * clip  # false for NaN
    dtype = next(iter(gradients.values())).dtype
    return torch.where(sound_n, factors_n, 0.0).to(dtype)


def _weighted_sums(weights_n: Tensor, gradients_nk: Tensor, models: int) -> Tensor:
    """Weighted sums (models, k) over the examples of each model, without those of weight 0."""
    kept = torch.where(weights_n[:, None] != 0, gradients_nk, 0.0)
    rows = kept.view(models, -1, gradients_nk.shape[1])
    return torch.bmm(weights_n.view(models, 1, -1), rows)[:, 0]


def _repeated(stacks: Mapping[str, Tensor], times: int) -> dict[str, Tensor]:
    """Each model `times` times; a single model without a copy."""
    return {
        name: value.expand(times, *value.shape[1:])
        if len(value) == 1
        else value.repeat_interleave(times, 0)
        for name, value in stacks.items()
    }
