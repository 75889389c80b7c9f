"""The engine: all peers of a node trained, differentiated and evaluated as one stacked tensor.

Four batched operations carry every method: `fit`, `gradients`, `losses` and `mix`; rules are
formulas over them. What is stacked is in `coterie.clients.engine.stack`, evaluation in
`coterie.clients.engine.scoring`. Legend: p = peers of this node, e = models or edges, s = rows to mix, d =
parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.clients.engine import optimizers, robust, sums
from coterie.clients.engine.batches import Ints
from coterie.clients.engine.chunks import Calls, chunked, working
from coterie.clients.engine.data import Batch
from coterie.clients.engine.descending import Descent
from coterie.clients.engine.network import Buffers
from coterie.clients.engine.scoring import Scores, Scoring
from coterie.clients.engine.workers import share_out
from coterie.clients.letters import Part

if TYPE_CHECKING:
    from coterie.clients.training import Training

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
        chunk takes all its steps before the next one begins: beside the copies there are gradients
        and activations of one chunk only.

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
        if gradient is None:
            batches = self._admitted(batches)
        after = _copied(Fit(x_ed, buffers, opt_state))
        if gradient is None:
            size, workers = self._calls(len(x_ed), batches)
            share_out(
                lambda worker, at: worker._train(after, at, batches, training, drift),
                self.workers(workers),
                [slice(first, first + size) for first in range(0, len(x_ed), size)],
            )
            return after
        for number, batch in enumerate(batches):
            found = gradient(after.x if number else x_ed, after.buffers, batch)
            after = after._replace(buffers=dict(found.buffers))
            at = working(batch.counts_e)
            some = _Some(after, at, lambda x_ed: [x_ed])
            self._descend(some, [found.values[at]], training, training.rate(batch.round), drift)
            some.put_back(after)
        return after

    def step(self, x_ed: Tensor, g_ed: Tensor, opt_state: optimizers.OptState, round_: int) -> Fit:
        """One optimizer step of a round, down gradients that came from elsewhere."""
        after = _copied(Fit(x_ed, {}, opt_state))
        rows = {name: [value] for name, value in after.opt_state.items()}
        optimizers.step(self.training, self.training.rate(round_), [after.x], [g_ed], rows)
        return after

    def _train(
        self, fit: Fit, at: slice, batches: Sequence[Batch], training: Training, drift: Drift | None
    ) -> None:
        """All steps of a few models: what they are made of stays in the cache."""
        together = _Some(fit, at, self.network.tensors)
        leaves = self._leaves(together.x)
        batches = [whole.part(at) for whole in batches]
        # A drift is of the models as they were before the step.
        if not drift and self._steps_early(len(together.x), batches, training):
            self._train_early(leaves, together.buffers, batches, training)
            return
        for batch, examples in self.data.in_turn(batches):
            for of_batch in chunked(batch.counts_e, self.network.coupled):
                if isinstance(of_batch, slice):
                    some, own, part = together, leaves, batch
                else:
                    some = _Some(fit, of_batch + at.start, self.network.tensors)
                    own, part = self._leaves(some.x), batch.part(of_batch)
                _, found, after = self._differentiate(own, some.buffers, part, examples)
                for name, value in after.items():
                    some.buffers[name].copy_(value)
                self._descend(some, found, training, training.rate(batch.round), drift)
                some.put_back(fit)

    def _train_early(
        self,
        leaves: dict[str, Tensor],
        buffers: Buffers,
        batches: Sequence[Batch],
        training: Training,
    ) -> None:
        """All steps of a single model, each layer's as soon as its gradient is there."""
        with self.network.laid_out(leaves) as model:
            for batch, examples in self.data.in_turn(batches):
                if batch.counts_e.any():
                    descent = Descent(training.rate(batch.round))
                    examples = examples or self.data.minibatch(batch)
                    self._taken_back(model, buffers, batch, examples, descent)

    def _descend(
        self,
        some: _Some,
        gradients: Sequence[Tensor],
        training: Training,
        rate: float,
        drift: Drift | None,
    ) -> None:
        """One step of some models down their gradients, tensor by tensor where there are any."""
        pull_ed = None if drift is None else drift(some.x, some.at)
        optimizers.step(training, rate, some.tensors, gradients, some.moments)
        if pull_ed is not None:
            some.x.sub_(pull_ed, alpha=rate)

    def gradients(self, x_ed: Models, buffers: Buffers, batch: Batch) -> Gradients:
        """Gradient of each model's loss on its minibatch, in training mode.

        Models that are made part by part are never there all at once. The returned buffers hold
        updated running statistics; a caller that only computes an answer drops them.
        """
        (batch,) = self._admitted([batch])
        size, workers = self._calls(len(x_ed), [batch])
        values = torch.zeros(len(x_ed), self.d, dtype=self.dtype, device=self.device)
        columns = values.split(self.network.sizes, dim=1)
        losses = values.new_zeros(len(x_ed))
        after = {name: value.clone() for name, value in buffers.items()}

        def differentiate(worker: Engine, at: Part) -> None:
            leaves = worker._leaves(x_ed[at])
            own = {name: value[at] for name, value in buffers.items()}
            part = batch.part(at)
            losses_eb, found, own = worker._differentiate(leaves, own, part)
            losses[at] = (losses_eb * part.weights_eb).sum(dim=1)
            for column, gradient in zip(columns, found, strict=True):
                column[at] = gradient.reshape(-1, column.shape[1])
            _store(after, own, at)

        chunks = chunked(batch.counts_e, self.network.coupled, size)
        share_out(differentiate, self.workers(workers), chunks)
        return Gradients(values, losses, after)

    def mix(
        self, weights_ps: npt.ArrayLike | Tensor, x_sd: Tensor, own_pd: Models | None = None
    ) -> Tensor:
        """Weighted sums of models: (P, S) times (S, d), the same wherever peers live.

        Costs as much as there are weights other than 0 in rows that differ. Where the run has a
        defence, its rule takes the place of the mean in the sum.

        Parameters
        ----------
        own_pd : where the recipients stand themselves, if not at one of the models.
        """
        weights = torch.as_tensor(weights_ps).cpu().double().numpy()
        if self.defence.rule == "none":
            return sums.mixed(weights, x_sd)
        return robust.mixed(self.defence, weights, x_sd, own_pd)

    def collect(
        self, weights_e: npt.NDArray[np.float64], x_sd: Tensor, from_e: Ints, to_e: Ints
    ) -> Tensor:
        """Weighted sums of letters, each at its hosted recipient's row (P, d).

        Parameters
        ----------
        from_e : row of the stack that each letter carries.
        to_e : local index of its recipient.
        """
        everybody = np.arange(len(self.peers))
        if self.defence.rule == "none":
            return sums.weighted(weights_e, x_sd, from_e, to_e, everybody)
        return robust.collected(self.defence, weights_e, x_sd, from_e, to_e, everybody)

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

    def _calls(self, models: int, batches: Sequence[Batch]) -> Calls:
        """Calls to work off some batches; their examples go on the bill."""
        for batch in batches:
            np.add.at(self.n_gradients, batch.peers_e.cpu().numpy(), batch.counts_e)
        examples = max((batch.rows_eb.shape[1] for batch in batches), default=0)
        return self._chunks.calls(models, self.holds(examples), self.d * examples)


class _Some:
    """Some models of a fit: where they lie, or copies where they do not lie in a row.

    Parameters
    ----------
    cut : parts of such rows, to be changed one after the other.
    """

    def __init__(self, fit: Fit, at: Part, cut: Callable[[Tensor], list[Tensor]]) -> None:
        self.at, self.x = at, fit.x[at]
        self.buffers = {name: value[at] for name, value in fit.buffers.items()}
        self.opt_state = {name: value[at] for name, value in fit.opt_state.items()}
        self.tensors = cut(self.x)
        self.moments = {
            name: [value] if name == optimizers.COUNT else cut(value)
            for name, value in self.opt_state.items()
        }

    def put_back(self, fit: Fit) -> None:
        """Store the copies."""
        if not isinstance(self.at, slice):
            fit.x[self.at] = self.x
            _store(fit.buffers, self.buffers, self.at)
            _store(fit.opt_state, self.opt_state, self.at)


def _copied(fit: Fit) -> Fit:
    return Fit(
        fit.x.clone(),
        {name: value.clone() for name, value in fit.buffers.items()},
        {name: value.clone() for name, value in fit.opt_state.items()},
    )


def _store(stacks: Buffers, parts: Buffers, at: Part) -> None:
    for name, value in parts.items():
        stacks[name][at] = value
