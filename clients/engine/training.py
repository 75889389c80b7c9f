"""Gradients of minibatches, and the one training loop.

Legend: e = models, b = batch positions, d = parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from coterie.clients.engine import optimizers
from coterie.clients.engine.backends.backend import Backend, Examples, Result, located
from coterie.clients.engine.data import Batch, Data
from coterie.clients.engine.execution import Execution, Footprint, chunked, working
from coterie.clients.engine.network import Buffers, Network
from coterie.clients.engine.privacy import Guard
from coterie.clients.engine.tasks import Task
from coterie.clients.letters import Ints, Part
from coterie.clients.training import Terms, Training


class Gradients(NamedTuple):
    """Gradients of models on their minibatches."""

    values: Tensor  # gradients, (E, d)
    losses: Tensor  # weighted losses, (E,)
    buffers: Buffers  # buffers after the forward pass, (E, ...)


class Fit(NamedTuple):
    """Models, buffers and optimizer state after training."""

    x: Tensor
    buffers: Buffers
    opt_state: optimizers.OptState


class Models(Protocol):
    """Stack (E, d) whose parts are computed on access; a tensor is one."""

    def __len__(self) -> int: ...
    def __getitem__(self, at: Part, /) -> Tensor: ...


GradientFunction = Callable[[Tensor, Buffers, Batch], Gradients]
Minibatch = tuple[Tensor, Tensor]
"""Inputs (E, b, ...) and targets (E, b, ...)."""


@dataclass(frozen=True)
class Trainer:
    """Differentiates and trains the models of an engine."""

    network: Network
    task: Task
    execution: Execution
    data: Data
    guard: Guard | None  # adds the noise of private gradients; the backend clips
    footprint: Footprint

    def width(self, examples: int) -> int:
        """Return the number of examples of a minibatch that one model computes at a time."""
        if self.network.coupled:
            return examples
        return self.execution.width(examples, self.footprint.holds(examples))

    def gradients(self, x_ed: Models, buffers: Buffers, batch: Batch) -> Gradients:
        """Return the gradient of each model's loss on its minibatch, see `Engine.gradients`."""
        shape, data = (len(x_ed), self.network.d), self.data
        values = torch.zeros(shape, dtype=data.dtype, device=data.device)
        columns = self.network.tensors(values)
        losses = values.new_zeros(len(x_ed))
        after = {name: value.clone() for name, value in buffers.items()}

        def work(backend: Backend, at: Part) -> None:
            part, buffers_e = batch.part(at), {name: value[at] for name, value in buffers.items()}
            tensors = self.network.tensors(x_ed[at])
            losses_eb, gradients, buffers_e = self._differentiate(
                backend, tensors, buffers_e, part, None, self.network.names
            )
            losses[at] = (losses_eb * part.weights_eb).sum(dim=1)
            for column, gradient in zip(columns, gradients, strict=True):
                column[at] = gradient
            _write_rows(after, buffers_e, at)

        plan = self.execution.training(len(x_ed), *self._work([batch]))
        items = chunked(batch.counts_e, self.network.coupled, plan.models)
        self.execution.run(plan, work, items)
        return Gradients(values, losses, after)

    def feature_gradients(
        self, x_ed: Models, buffers: Buffers, batch: Batch, centres_pkm: Tensor
    ) -> Tensor:
        """Return the gradient (E, d) of a distance of features, see `Engine.feature_gradients`."""
        values = torch.zeros(
            (len(x_ed), self.network.d), dtype=self.data.dtype, device=self.data.device
        )
        columns = dict(zip(self.network.names, self.network.tensors(values), strict=True))

        def work(backend: Backend, at: Part) -> None:
            part, below = batch.part(at), backend.below()
            inputs, targets = self.data.minibatch(part)
            models = self.network.named(x_ed[at])
            models |= {name: buffers[name][at] for name in self.network.personal}
            own = {name: models[name] for name in below.network.trained}
            states = {name: buffers[name][at] for name in below.network.buffer_names}
            near = inputs, centres_pkm[part.peers_e[:, None], targets]
            result = self._summed(below, own, states, part, near, [*own])
            for name, value in result.gradients.items():
                if name in columns:
                    columns[name][at] = value

        plan = self.execution.training(len(x_ed), *self._work([batch]))
        self.execution.run(plan, work, chunked(batch.counts_e, self.network.coupled, plan.models))
        return values

    def fit(self, before: Fit, batches: Sequence[Batch], training: Training, terms: Terms) -> Fit:
        """Train on own data, see `Engine.fit`; the models of a call take all steps in turn."""
        after, trained = _empty_like(before), self.network.places(terms.trained)

        def work(backend: Backend, at: slice) -> None:
            stack = _Stack.of(before, at, self.network, trained)
            minibatches = self.data.in_turn([whole.part(at) for whole in batches])
            for batch, minibatch in minibatches:
                for some, gradients in self._own(backend, stack, batch, minibatch):
                    some.descend(gradients, training, batch.round, terms)
                    some.put_back(stack)
                    del some, gradients  # free the memory before the next step
            stack.store(after)

        models = len(before.x)
        plan = self.execution.training(models, *self._work(batches))
        starts = range(0, models, plan.models)
        items = [slice(start, min(start + plan.models, models)) for start in starts]
        self.execution.run(plan, work, items)
        return after

    def follow(
        self, before: Fit, batches: Sequence[Batch], training: Training, terms: Terms,
        gradient: GradientFunction,
    ) -> Fit:  # fmt: skip
        """Train down the gradients of an objective, which sees all models at once."""
        trained = self.network.places(terms.trained)
        stack = _Stack.of(before, slice(0, len(before.x)), self.network, trained)
        x_ed = before.x
        for batch in batches:
            result = gradient(x_ed, stack.buffers, batch)
            x_ed, stack.buffers = stack.x, dict(result.buffers)
            at = working(batch.counts_e)
            some, gradients = stack.rows(at), self.network.tensors(result.values[at])
            some.descend([gradients[k] for k in trained], training, batch.round, terms)
            some.put_back(stack)
        return Fit(stack.x, stack.buffers, stack.opt_state)

    def _own(
        self, backend: Backend, stack: _Stack, batch: Batch, minibatch: Minibatch | None
    ) -> Iterator[tuple[_Stack, Sequence[Tensor]]]:
        """Yield the models that take a step together, with the gradients of their own losses."""
        for at in chunked(batch.counts_e, self.network.coupled):
            some = stack.rows(at)
            part, examples = (batch, minibatch) if some is stack else (batch.part(at), None)
            names = [self.network.names[k] for k in stack.trained]
            _, gradients, after = self._differentiate(
                backend, some.tensors, some.buffers, part, examples, names
            )
            for name, value in after.items():
                some.buffers[name].copy_(value)
            yield some, gradients
            del some, gradients

    def _differentiate(
        self,
        backend: Backend,
        tensors: Sequence[Tensor],
        buffers: Buffers,
        batch: Batch,
        minibatch: Minibatch | None,
        names: Sequence[str],
    ) -> tuple[Tensor, list[Tensor], Buffers]:
        """Return losses (E, b), weighted gradients of tensors, buffers after a personal step."""
        models = dict(zip(self.network.names, tensors, strict=True))
        models |= {name: buffers[name] for name in self.network.personal}
        states = {name: buffers[name] for name in self.network.buffer_names}
        minibatch = minibatch or self.data.minibatch(batch)
        # Private gradients are clipped and get noise as a whole.
        needed = self.network.trained if self.guard else [*names, *self.network.personal]
        losses, sums, after = self._summed(backend, models, states, batch, minibatch, needed)
        if self.guard is not None:
            self.guard.add_noise([sums[name] for name in self.network.names], batch)
        gradients = [sums[name] for name in names]
        if names := self.network.personal:
            training, slopes = self.data.training, [sums[name] for name in names]
            rate = training.rate(batch.round)
            after = after | optimizers.personal_step(training, rate, names, buffers, slopes)
        return losses, gradients, after

    def _summed(
        self,
        backend: Backend,
        models: Mapping[str, Tensor],
        states: Buffers,
        batch: Batch,
        minibatch: Minibatch,
        names: Sequence[str],
    ) -> Result:
        """Return losses (E, b), gradients of their weighted sums by name, and updated buffers."""
        # A minibatch that does not fit into memory for a single model is computed in parts, whose
        # gradients are added, unless its examples influence each other (batch norm).
        inputs, targets = minibatch
        whole = batch.rows_eb.shape[1]
        width = self.width(whole)
        losses: list[Tensor] = []
        sums: dict[str, Tensor] = {}

        def hosted() -> Ints:
            return self.data.peers[batch.hosted_e]

        for start in range(0, whole, width):
            at = slice(start, start + width)
            examples = Examples(
                inputs[:, at], targets[:, at], batch.weights_eb[:, at], batch.keys_e,
                torch.full_like(batch.keys_e, start),
            )  # fmt: skip
            with located(backend.module, hosted, f"round {batch.round}"):
                result = backend.value_and_grad(models, states, examples, names)
            losses.append(result.losses)
            for name, value in result.gradients.items():
                sums[name] = sums[name] + value if name in sums else value
        if batch.noise_ed is not None:  # the only tensor of a quadratic problem
            sums = {name: value + batch.noise_ed for name, value in sums.items()}
        return Result(torch.cat(losses, dim=1) if losses[1:] else losses[0], sums, result.buffers)

    def _work(self, batches: Sequence[Batch]) -> tuple[int, int]:
        """Return the bytes that one model holds for a minibatch, and its number of products."""
        examples = max((batch.rows_eb.shape[1] for batch in batches), default=0)
        return self.footprint.holds(examples), self.network.d * examples


class _Stack:
    """Models in training: their own copies of rows `at` of a stack, buffers, optimizer state.

    Terms index the rows `origin` of the original stack. `trained` are tensors by their place in a
    row; the optimizer state has only their columns.
    """

    def __init__(
        self, fit: Fit, at: Part, origin: Part, network: Network, trained: Sequence[int]
    ) -> None:
        self.x, self.buffers, self.opt_state = fit
        self.trained = trained
        self._at, self._origin, self._network = at, origin, network
        self.tensors = network.tensors(self.x)
        self._moments = {
            name: [value] if name == optimizers.COUNT else network.tensors(value, trained)
            for name, value in self.opt_state.items()
        }

    @classmethod
    def of(cls, fit: Fit, at: slice, network: Network, trained: Sequence[int]) -> _Stack:
        """Copy some models."""
        buffers, opt_state = ({k: v[at].clone() for k, v in s.items()} for s in fit[1:])
        return cls(Fit(fit.x[at].clone(), buffers, opt_state), at, at, network, trained)

    def rows(self, at: Part) -> _Stack:
        """Return copies of some of the models, or this object for all of them."""
        if isinstance(at, slice):
            return self
        assert isinstance(self._origin, slice)
        buffers, opt_state = (
            {k: v[at] for k, v in s.items()} for s in (self.buffers, self.opt_state)
        )
        some = Fit(self.x[at], buffers, opt_state)
        return _Stack(some, at, at + self._origin.start, self._network, self.trained)

    def put_back(self, stack: _Stack) -> None:
        """Store copies in the models that they were taken from."""
        if self is not stack:
            self.store(Fit(stack.x, stack.buffers, stack.opt_state))

    def store(self, fit: Fit) -> None:
        """Store the models in the rows that they were taken from."""
        fit.x[self._at] = self.x
        _write_rows(fit.buffers, self.buffers, self._at)
        _write_rows(fit.opt_state, self.opt_state, self._at)

    def descend(
        self, gradients: Sequence[Tensor], training: Training, round_: int, terms: Terms
    ) -> None:
        """Take a step down gradients of the trained tensors, with the terms at the models."""
        rate, network, at = training.rate(round_), self._network, self._origin
        pull_ed = None if terms.drift is None else terms.drift(self.x, at)
        if terms.proximal is not None:
            strength, centre_ed = terms.proximal
            away = network.tensors((self.x - centre_ed[at]).mul_(strength))
            gradients = [g + away[k] for k, g in zip(self.trained, gradients, strict=True)]
        if terms.mask is not None:
            mask = network.tensors(terms.mask[at])
            gradients = [g * mask[k] for k, g in zip(self.trained, gradients, strict=True)]
        decays = optimizers.decays(training, [network.shapes[k] for k in self.trained])
        models = [self.tensors[k] for k in self.trained]
        optimizers.step(training, rate, models, gradients, self._moments, decays)
        if pull_ed is not None:
            self.x.sub_(pull_ed, alpha=rate)


def _empty_like(fit: Fit) -> Fit:
    buffers, opt_state = ({k: torch.empty_like(v) for k, v in s.items()} for s in fit[1:])
    return Fit(torch.empty_like(fit.x), buffers, opt_state)


def _write_rows(stacks: Buffers, parts: Buffers, at: Part) -> None:
    for name, value in parts.items():
        stacks[name][at] = value
