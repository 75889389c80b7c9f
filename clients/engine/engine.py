"""The engine: all peers of a node trained, differentiated and evaluated as one stacked tensor.

Four batched operations carry every method: `fit`, `gradients`, `losses` and `mix`; rules are
formulas over them. What is stacked is in `clients.engine.stack`, evaluation in
`clients.engine.scoring`. Legend: p = peers of this node, e = models or edges, s = rows to mix, d =
parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from clients.engine import optimizers, sums
from clients.engine.batches import Ints
from clients.engine.data import Batch
from clients.engine.network import Buffers
from clients.engine.scoring import Scores, Scoring
from clients.letters import Part

if TYPE_CHECKING:
    from clients.training import Training

__all__ = ["Engine", "Fit", "GradientFunction", "Gradients", "Scores"]


class Gradients(NamedTuple):
    """Gradients (E, d), losses (E,), and the buffers as the forward pass left them."""

    values: Tensor
    losses: Tensor
    buffers: Buffers


class Fit(NamedTuple):
    """What training changed: models, buffers, optimizer state."""

    x: Tensor
    buffers: Buffers
    opt_state: optimizers.OptState


class Models(Protocol):
    """A stack (E, d) of which a part is made when it is asked for; a tensor is one."""

    def __len__(self) -> int: ...
    def __getitem__(self, at: Part, /) -> Tensor: ...


GradientFunction = Callable[[Tensor, Buffers, Batch], Gradients]
Drift = Callable[[Tensor, Part], Tensor]


class Engine(Scoring):
    """The stacked models of a node's peers, to be trained, differentiated and mixed."""

    def fit(
        self,
        x_ed: Tensor,
        buffers: Buffers,
        opt_state: optimizers.OptState,
        batches: Sequence[Batch],
        *,
        gradient: GradientFunction | None = None,
        drift: Drift | None = None,
        training: Training | None = None,
    ) -> Fit:
        """Train on own data: the one training loop.

        Models and opt_state are copied once and then changed where they lie. Without `gradient` a
        chunk takes its step before the next one is differentiated: beside the copies there are
        gradients and activations of one chunk only.

        Parameters
        ----------
        gradient : what to descend, default the own loss; objectives wrap `gradients`. Its first
            call gets `x_ed` itself.
        drift : (models, which rows of `x_ed` they are) -> a further direction that is subtracted,
            times the learning rate, beside the optimizer: neither momentum nor Adam's scaling
            touch it.
        training : an optimizer other than the run's; `opt_state` are its own.
        """
        training = training or self.training
        after = _copied(Fit(x_ed, buffers, opt_state))
        for number, batch in enumerate(batches):
            rate = training.rate(batch.round)
            if gradient is not None:
                found = gradient(after.x if number else x_ed, after.buffers, batch)
                after = after._replace(buffers=dict(found.buffers))
                working = _working(batch.counts_e)
                self._descend(after, found.values[working], working, training, rate, drift)
                continue
            for at in self._parts(after.x, after.buffers, batch):
                piece = self._differentiate_part(after.x, after.buffers, batch, at)
                _store(after.buffers, piece.buffers, at)
                self._descend(after, piece.values, at, training, rate, drift)
        return after

    def step(self, x_ed: Tensor, g_ed: Tensor, opt_state: optimizers.OptState, round_: int) -> Fit:
        """One optimizer step of a round, down gradients that came from elsewhere."""
        after = _copied(Fit(x_ed, {}, opt_state))
        optimizers.step(self.training, self.training.rate(round_), after.x, g_ed, after.opt_state)
        return after

    def _descend(
        self, fit: Fit, g_ed: Tensor, at: Part, training: Training, rate: float, drift: Drift | None
    ) -> None:
        """One step of the models `at` down their gradients."""
        x_ed, opt_state = fit.x[at], {name: value[at] for name, value in fit.opt_state.items()}
        pull_ed = None if drift is None else drift(x_ed, at)
        optimizers.step(training, rate, x_ed, g_ed, opt_state)
        if pull_ed is not None:
            x_ed.sub_(pull_ed, alpha=rate)
        if not isinstance(at, slice):  # else they are views
            fit.x[at] = x_ed
            _store(fit.opt_state, opt_state, at)

    def gradients(self, x_ed: Models, buffers: Buffers, batch: Batch) -> Gradients:
        """Gradient of each model's loss on its minibatch, in training mode.

        Models that are made part by part are never there all at once. The returned buffers hold
        updated running statistics; a caller that only computes an answer drops them.
        """
        parts = self._parts(x_ed, buffers, batch)
        if len(parts) == 1 and isinstance(parts[0], slice):
            return self._differentiate(x_ed[parts[0]], buffers, batch)
        values = torch.zeros(len(x_ed), self.d, dtype=self.dtype, device=self.device)
        losses = values.new_zeros(len(x_ed))
        after = {name: value.clone() for name, value in buffers.items()}
        for at in parts:
            piece = self._differentiate_part(x_ed, buffers, batch, at)
            values[at], losses[at] = piece.values, piece.losses
            _store(after, piece.buffers, at)
        return Gradients(values, losses, after)

    def mix(self, weights_ps: npt.ArrayLike | Tensor, x_sd: Tensor) -> Tensor:
        """Weighted sums of models: (P, S) times (S, d), the same wherever peers live.

        Costs as much as there are weights other than 0 in rows that differ.
        """
        weights = torch.as_tensor(weights_ps).cpu().double().numpy()
        return sums.mixed(weights, x_sd)

    def collect(
        self, weights_e: npt.NDArray[np.float64], x_sd: Tensor, from_e: Ints, to_e: Ints
    ) -> Tensor:
        """Weighted sums of letters, each at its hosted recipient's row (P, d).

        Parameters
        ----------
        from_e : row of the stack that each letter carries.
        to_e : local index of its recipient.
        """
        return sums.weighted(weights_e, x_sd, from_e, to_e, np.arange(len(self.peers)))

    def inner(self, a_ed: Models, b_ed: Models) -> Tensor:
        """Inner products over all parameters, (E,) float64, the same wherever peers live."""
        rows = max(1, sums.PAIRED // self.d)  # no second copy of all models
        parts = [slice(first, first + rows) for first in range(0, len(a_ed), rows)]
        nothing = torch.zeros(0, dtype=torch.float64, device=self.device)
        return torch.cat([nothing, *(sums.paired(a_ed[at], b_ed[at]) for at in parts)])

    def products(self, a_ed: Tensor, b_sd: Tensor) -> npt.NDArray[np.float64]:
        """Inner products of every model of one stack with every one of another, (E, S)."""
        found: npt.NDArray[np.float64] = sums.products(a_ed, b_sd).cpu().numpy()
        return found

    def _parts(self, x_ed: Models, buffers: Buffers, batch: Batch) -> Sequence[Part]:
        """The chunks in which a batch is worked off; its examples go on the bill."""
        np.add.at(self.n_gradients, batch.peers_e.cpu().numpy(), batch.counts_e)
        examples = batch.rows_eb.shape[1]
        size = self._chunks.size(
            len(x_ed),
            examples,
            lambda: self.holds(examples),
            lambda k: self._differentiate_part(x_ed, buffers, batch, slice(k)),
        )
        return _chunked(batch.counts_e, size, equal=self.network.coupled)

    def _differentiate_part(
        self, x_ed: Models, buffers: Buffers, batch: Batch, at: Part
    ) -> Gradients:
        own = {name: value[at] for name, value in buffers.items()}
        return self._differentiate(x_ed[at], own, batch.part(at))

    def _differentiate(self, x_ed: Tensor, buffers: Buffers, batch: Batch) -> Gradients:
        after = buffers
        if self.task.gradients is not None:
            inputs, _ = self.data.minibatch(batch)
            losses, values = self.task.gradients(x_ed, inputs, batch.weights_eb)
        else:
            losses, values, after = self._descents(x_ed, buffers, batch)
        if batch.noise_ed is not None:
            values = values + batch.noise_ed
        return Gradients(values, losses.detach(), {k: v.detach() for k, v in after.items()})

    def _descents(
        self, x_ed: Tensor, buffers: Buffers, batch: Batch
    ) -> tuple[Tensor, Tensor, Buffers]:
        """Losses, gradients and buffers by autograd.

        A batch of which one model alone holds more than fits is worked off in parts. Their sum is
        what the whole gives, unless examples of a batch see each other (batch norm).
        """
        examples = batch.rows_eb.shape[1]
        width = examples
        if not self.network.coupled:
            width = self._chunks.width(examples, lambda: self.holds(examples))
        values = torch.empty_like(x_ed)
        total, after = x_ed.new_zeros(len(x_ed)), buffers
        for first in range(0, examples, width):
            # One leaf for each tensor: through a single one autograd would copy its gradient twice.
            leaves = {k: v.detach().requires_grad_() for k, v in self.network.named(x_ed).items()}
            losses, after = self._batch_losses(leaves, buffers, batch, slice(first, first + width))
            found = torch.autograd.grad(
                losses.sum(), tuple(leaves.values()), materialize_grads=True
            )
            for view, gradient in zip(self.network.named(values).values(), found, strict=True):
                view.copy_(gradient) if first == 0 else view.add_(gradient)
            total += losses.detach()
        return total, values, after


def _copied(fit: Fit) -> Fit:
    return Fit(
        fit.x.clone(),
        {name: value.clone() for name, value in fit.buffers.items()},
        {name: value.clone() for name, value in fit.opt_state.items()},
    )


def _store(stacks: Buffers, parts: Buffers, at: Part) -> None:
    for name, value in parts.items():
        stacks[name][at] = value


def _working(counts_e: Ints) -> Part:
    """Which models have examples in a minibatch."""
    return slice(None) if (counts_e > 0).all() else np.flatnonzero(counts_e)


def _chunked(counts_e: Ints, size: int, *, equal: bool) -> Sequence[Part]:
    """The models that have examples, in chunks; with `equal`, of equally full batches only.

    Batch norm sees whole batches, without empty positions.
    """
    models = len(counts_e)
    if not equal and (counts_e > 0).all():
        return [slice(first, min(first + size, models)) for first in range(0, models, size)]
    groups = (
        [np.flatnonzero(counts_e == count) for count in np.unique(counts_e) if count]
        if equal
        else [np.flatnonzero(counts_e)]
    )
    return [group[first : first + size] for group in groups for first in range(0, len(group), size)]
