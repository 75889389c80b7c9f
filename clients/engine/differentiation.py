"""Gradients of stacked models on minibatches: in closed form, by hand, or by autograd.

Legend: e = models, b = batch positions, d = parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from clients.engine import optimizers
from clients.engine.chunks import held_bytes
from clients.engine.data import Batch
from clients.engine.layers import sums
from clients.engine.network import Buffers
from clients.engine.stack import Stack

if TYPE_CHECKING:
    from clients.training import Training

Examples = tuple[Tensor, Tensor]
"""Inputs (E, b, ...) and targets (E, b, ...)."""
_PROBE = 2  # examples; batch norm needs two, and activations grow in proportion


class Differentiation(Stack):
    """A stack that is differentiated."""

    @property
    def _by_vjp(self) -> bool:
        """Whether gradients of a loss are found without autograd."""
        known = self.network.has_vjp and self.task.slopes is not None
        return known and not self.network.personal

    def _leaves(self, x_ed: Tensor, but: Sequence[str] = ()) -> dict[str, Tensor]:
        """Models, tensor by tensor, to be differentiated, but for some of their tensors."""
        if self._by_vjp:
            return self.network.named(x_ed)
        leaves = self.network.leaves(x_ed)
        return {k: v.requires_grad_(k not in but) for k, v in leaves.items()}

    def _batch_losses(
        self,
        x_ed: Tensor | Mapping[str, Tensor],
        buffers: Buffers,
        batch: Batch,
        examples: Examples,
        at: slice = slice(None),
        rate: float | None = None,
    ) -> tuple[Tensor, Buffers]:
        """Losses (E, b) of minibatches, or of their places `at`, and the buffers after."""
        inputs, targets = _places(examples, at)
        outputs, after = self.network(x_ed, buffers, inputs, batch.keys_e, at.start or 0, rate)
        return self.task.losses(outputs, targets), after

    def _pulled_back(
        self,
        named: dict[str, Tensor],
        buffers: Buffers,
        batch: Batch,
        examples: Examples,
        at: slice,
    ) -> tuple[Tensor, list[Tensor]]:
        """Losses of places of minibatches, and the gradients of their sums, tensor by tensor.

        Single gradients are clipped where they are private.
        """
        assert self.task.slopes is not None
        inputs, targets = _places(examples, at)
        outputs, back = self.network.vjp(named, buffers, inputs, batch.keys_e, at.start or 0)
        weights_eb = batch.weights_eb[:, at]
        if self.guard is None:
            losses_eb, slopes = self.task.slopes(outputs, targets, weights_eb)
            found = sums(back(slopes))
        else:
            losses_eb, slopes = self.task.slopes(outputs, targets, torch.ones_like(weights_eb))
            found = self.guard.clipped_sums(
                [(step.layer, inputs, g) for step, inputs, g in back(slopes)], weights_eb
            )
        return losses_eb, [found[name] for name in self.network.names]

    def _differentiate(
        self,
        leaves: dict[str, Tensor],
        buffers: Buffers,
        batch: Batch,
        examples: Examples | None = None,
    ) -> tuple[Tensor, Sequence[Tensor], Buffers]:
        """Losses (E, b), weighted gradients tensor by tensor, and buffers.

        Parameters
        ----------
        examples : of the batch, where they are gathered already.
        """
        examples = examples or self.data.minibatch(batch)
        if self.task.gradients is None:
            return self._descents(leaves, buffers, batch, examples)
        (x,) = leaves.values()
        inputs, _ = examples
        x_ed = x.detach().view(len(inputs), -1)
        losses, values = self.task.gradients(x_ed, inputs, batch.weights_eb)
        if batch.noise_ed is not None:
            values = values + batch.noise_ed
        return losses, [values], buffers

    def _descents(
        self,
        leaves: dict[str, Tensor],
        buffers: Buffers,
        batch: Batch,
        examples: Examples,
    ) -> tuple[Tensor, Sequence[Tensor], Buffers]:
        """The same, where there is no closed form.

        A batch of which one model alone holds more than fits is worked off in parts. Their sum is
        what the whole gives, unless examples of a batch see each other (batch norm).
        """
        width = whole = batch.rows_eb.shape[1]
        if not self.network.coupled:
            width = self._chunks.width(whole, self.holds(whole))
        parts = [slice(first, first + width) for first in range(0, whole, width)]
        losses: list[Tensor] = []
        gradients: Sequence[Tensor] = ()
        found: Sequence[Tensor]
        own = self.personal.leaves(buffers)
        wanted = (*leaves.values(), *own.values())
        for at in parts if len(parts) > 1 else [slice(None)]:
            if self._by_vjp:
                losses_eb, found = self._pulled_back(leaves, buffers, batch, examples, at)
                after = buffers  # its layers have none
            elif self.guard is not None:
                with self.guard.watching() as traces:
                    losses_eb, after = self._batch_losses(leaves, buffers, batch, examples, at)
                found = self.guard.clipped(losses_eb, batch.weights_eb[:, at], traces, leaves)
            else:
                more = {**buffers, **own}
                losses_eb, after = self._batch_losses(leaves, more, batch, examples, at)
                # A single number: torch would import sympy for the weights as another argument.
                total = losses_eb.flatten() @ batch.weights_eb[:, at].flatten()
                found = torch.autograd.grad(total, wanted, materialize_grads=True)
            losses.append(losses_eb.detach())
            for summed, part in zip(gradients, found, strict=False):
                summed.add_(part)
            gradients = gradients or found
        if self.guard is not None:
            self.guard.add_noise(gradients, batch)
        after = {name: value.detach() for name, value in after.items()}
        if own:
            gradients, of_own = gradients[: len(leaves)], gradients[len(leaves) :]
            after |= self.personal.stepped(buffers, of_own, batch.round)
        return torch.cat(losses, dim=1) if losses[1:] else losses[0], gradients, after

    def _descending(
        self, models: int, batches: Sequence[Batch], training: Training
    ) -> Sequence[str]:
        """Weights that take their steps while some models are differentiated to be trained."""
        by_autograd = not self._by_vjp and self.task.gradients is None and self.guard is None
        if models > 1 or not by_autograd or not optimizers.is_plain(training):
            return ()
        widest = max((batch.rows_eb.shape[1] for batch in batches), default=0)
        whole = self._chunks.width(widest, self.holds(widest)) == widest
        return self.network.descending if whole and not self.network.personal else ()

    def _descend_in_passing(
        self,
        leaves: dict[str, Tensor],
        buffers: Buffers,
        batch: Batch,
        examples: Examples,
        rate: float,
    ) -> tuple[Sequence[Tensor | None], Buffers]:
        """The gradients of a single model, None of those that took their step, and buffers."""
        losses_eb, after = self._batch_losses(leaves, buffers, batch, examples, rate=rate)
        total = losses_eb.flatten() @ batch.weights_eb.flatten()
        wanted = [value for value in leaves.values() if value.requires_grad]
        found = iter(torch.autograd.grad(total, wanted, materialize_grads=True))
        gradients = [next(found) if value.requires_grad else None for value in leaves.values()]
        return gradients, {name: value.detach() for name, value in after.items()}

    def holds(self, examples: int) -> int:
        """Bytes that one model holds for a backward pass over `examples` examples."""
        # Beside activations: the gradient tensor by tensor, as a row, and what backward puts aside.
        return self.activations * examples + 5 * self.d * self.dtype.itemsize

    @cached_property
    def activations(self) -> int:
        """Bytes that a forward pass leaves behind for each example."""
        zeros = torch.zeros(1, dtype=torch.int64, device=self.device)
        weights = torch.zeros(1, _PROBE, dtype=self.dtype, device=self.device)
        batch = Batch(zeros, zeros.expand(1, _PROBE), weights, np.array([_PROBE]), zeros, None)
        x = torch.zeros(1, self.d, dtype=self.dtype, device=self.device, requires_grad=True)
        examples = self.data.minibatch(batch)
        held = held_bytes(
            lambda: self._batch_losses(x, self.network.buffers(1), batch, examples)[0],
            shared=[x, *self.network.module.parameters()],  # they do not grow with the examples
        )
        return held // _PROBE


def _places(examples: Examples, at: slice) -> Examples:
    """The inputs and targets at some places of minibatches."""
    inputs, targets = examples
    return examples if at == slice(None) else (inputs[:, at], targets[:, at])
