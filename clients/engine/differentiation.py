"""Gradients of stacked models on minibatches: in closed form, by hand, or by autograd.

Legend: e = models, b = batch positions, d = parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from clients.engine import optimizers
from clients.engine.chunks import held_bytes
from clients.engine.data import Batch
from clients.engine.line import Collected, Slopes, Take
from clients.engine.network import Buffers
from clients.engine.stack import Stack

if TYPE_CHECKING:
    from clients.training import Training

Examples = tuple[Tensor, Tensor]
"""Inputs (E, b, ...) and targets (E, b, ...)."""
_PROBE = 2  # examples; batch norm needs two, and activations grow in proportion


class Differentiation(Stack):
    """A stack that is differentiated."""

    def _by_hand(self, models: int) -> bool:
        """Whether gradients of so many models in one call are found without autograd."""
        line = self.network.line(models)
        return line is not None and (self.guard is None or self.guard.knows(line))

    def _leaves(self, x_ed: Tensor) -> dict[str, Tensor]:
        """Models, tensor by tensor, to be differentiated."""
        if self._by_hand(len(x_ed)):
            return self.network.cut(x_ed)
        return self.network.leaves(x_ed)

    def _batch_losses(
        self,
        x_ed: Tensor | Mapping[str, Tensor],
        buffers: Buffers,
        batch: Batch,
        examples: Examples,
        at: slice = slice(None),
    ) -> tuple[Tensor, Buffers]:
        """Losses (E, b) of minibatches, or of their places `at`, and the buffers after."""
        inputs, targets = _places(examples, at)
        outputs, after = self.network(x_ed, buffers, inputs, batch.keys_e, at.start or 0)
        return self.task.losses(outputs, targets), after

    def _loss_of(
        self,
        leaves: dict[str, Tensor],
        buffers: Buffers,
        batch: Batch,
        examples: Examples,
        first: int,
        place: int,
    ) -> Tensor:
        """Loss of one example of a minibatch, by a forward pass of its own."""
        at = slice(first + place, first + place + 1)
        return self._batch_losses(leaves, buffers, batch, examples, at)[0]

    def _found_by_hand(
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
        if self.guard is None:
            collected = Collected()
            losses_eb = self._taken_back(named, buffers, batch, examples, collected, at)
            return losses_eb, [collected.found[name] for name in named]
        slopes = Slopes()
        losses_eb = self._taken_back(named, buffers, batch, examples, slopes, at)
        sums = self.guard.clipped_sums(slopes.found, batch.weights_eb[:, at])
        return losses_eb, [sums[name].view(value.shape) for name, value in named.items()]

    def _taken_back(
        self,
        named: Mapping[str, Tensor],
        buffers: Buffers,
        batch: Batch,
        examples: Examples,
        take: Take,
        at: slice = slice(None),
    ) -> Tensor:
        """Losses of minibatches, or of their places `at`; gradients go to `take`.

        They are of the weighted sums of the losses, of their plain sums where they are private.
        The buffers are changed where they lie.
        """
        inputs, targets = _places(examples, at)
        outputs, back = self.network.vjp(named, buffers, inputs, batch.keys_e, at.start or 0)
        weights_eb = batch.weights_eb[:, at]
        if self.guard is not None:
            weights_eb = torch.ones_like(weights_eb)
        losses_eb, slopes = self._slopes(outputs, targets, weights_eb)
        back(slopes, take)
        return losses_eb

    def _slopes(
        self, outputs: Tensor, targets: Tensor, weights_eb: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Losses (E, b), and the gradient of their weighted sum over the outputs."""
        if self.task.slopes is not None:
            return self.task.slopes(outputs, targets, weights_eb)
        outputs = outputs.detach().requires_grad_()
        with torch.enable_grad():
            losses_eb = self.task.losses(outputs, targets)
        (slopes,) = torch.autograd.grad(losses_eb, outputs, weights_eb)
        return losses_eb.detach(), slopes

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
        by_hand = self._by_hand(len(batch.rows_eb))
        losses: list[Tensor] = []
        gradients: Sequence[Tensor] = ()
        found: Sequence[Tensor]
        own = self.personal.leaves(buffers)
        wanted = (*leaves.values(), *own.values())
        after = buffers
        for at in parts if len(parts) > 1 else [slice(None)]:
            if by_hand:
                after = {name: value.clone() for name, value in buffers.items()}
                losses_eb, found = self._found_by_hand(leaves, after, batch, examples, at)
            elif self.guard is not None:
                with self.guard.watching() as traces:
                    losses_eb, after = self._batch_losses(leaves, buffers, batch, examples, at)
                alone = partial(self._loss_of, leaves, buffers, batch, examples, at.start or 0)
                found = self.guard.clipped(
                    losses_eb, batch.weights_eb[:, at], traces, leaves, alone
                )
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

    def _steps_early(self, models: int, batches: Sequence[Batch], training: Training) -> bool:
        """Whether models can take their steps while they are differentiated to be trained."""
        line = self.network.line(1)
        plain = optimizers.is_plain(training) and self.guard is None
        if models > 1 or not plain or line is None or line.many or not line.once:
            return False
        widest = max((batch.rows_eb.shape[1] for batch in batches), default=0)
        return self._chunks.width(widest, self.holds(widest)) == widest

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
