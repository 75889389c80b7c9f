"""Backends compute losses and gradients of many models; they differ in speed only.

Legend: e = models, b = examples of a minibatch.
"""

from __future__ import annotations

import copy
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from coterie.clients.engine.network import Buffers, Network
from coterie.clients.engine.tasks import FEATURES, Task
from coterie.clients.letters import Ints
from coterie.errors import peers_of

Models = Mapping[str, Tensor]
"""Trainable tensors by name, each (E, *shape)."""


LONGEST = 1e24
"""Maximum norm of a gradient that is scaled down, in multiples of the clip."""


class Examples(NamedTuple):
    """Minibatch for each model."""

    inputs: Tensor  # (E, b, ...)
    targets: Tensor  # (E, b, ...)
    weights: Tensor  # weight of each example's loss, (E, b); 0 for padding
    keys: Tensor  # dropout keys, (E,)
    first: Tensor  # position of the first example in a minibatch that is computed in parts, (E,)


class Result(NamedTuple):
    """Losses and gradients of one call."""

    losses: Tensor  # loss of each example, not weighted, (E, b)
    gradients: dict[str, Tensor]  # of the weighted sum of the losses, (E, *shape)
    buffers: Buffers  # after the forward pass, (E, ...)


class PerExample(NamedTuple):
    """Losses, gradient norms and weighted gradient sums of single examples, for clipping.

    `weighted_sums` maps weights (E, b) to the weighted sums (E, *shape) of the gradients; it leaves
    out an example of weight 0, even if its gradient is not finite.
    """

    losses: Tensor  # loss of each example, not weighted, (E, b)
    norms: Tensor  # norm of each example's gradient over all tensors, (E, b) in float64
    weighted_sums: Callable[[Tensor], dict[str, Tensor]]


class Backend(ABC):
    """Compute losses and gradients of copies of one network; `module` runs, a twin has a copy."""

    name: ClassVar[str]  # value of the key `engine.backend`
    stacks: ClassVar[bool]  # a call of many models is one computation instead of a loop
    materializes: ClassVar[bool] = True  # `per_example` stores a gradient per example

    def __init__(self, network: Network, task: Task) -> None:
        self.network, self.task = network, task
        self.module: nn.Module = network.module
        self._below: Backend | None = None

    def twin(self) -> Self | None:
        """Return a backend that may run in another thread, or None if the module has no copy."""
        tensors = {id(t): t for t in (*self.module.parameters(), *self.module.buffers())}
        try:
            module = copy.deepcopy(self.module, dict(tensors))
        except Exception:  # the module is the user's code
            return None
        twin = copy.copy(self)
        twin._below = None
        twin._use(module)
        return twin

    def _use(self, module: nn.Module) -> None:
        self.module = module

    @abstractmethod
    def value_and_grad(
        self, models: Models, buffers: Buffers, examples: Examples,
        names: Collection[str] | None = None,
    ) -> Result:  # fmt: skip
        """Return losses and gradients of the tensors `names`, None: all; changes no argument."""

    @abstractmethod
    def outputs(self, models: Models, buffers: Buffers, inputs: Tensor) -> Tensor:
        """Return outputs (E, b, ...) in evaluation mode, of inputs (E, b, ...)."""

    def per_example(self, models: Models, buffers: Buffers, examples: Examples) -> PerExample:
        """Return norms and weighted sums of single examples' gradients."""
        # Each example gets its own copy of the model: a call of E models on b examples becomes a
        # call of E b models on one example each, so that examples cannot influence each other.
        inputs, targets, weights_eb, keys, first = examples
        count, width = weights_eb.shape
        position = torch.arange(width, device=inputs.device).repeat(count)
        ones = torch.ones_like(weights_eb).view(-1, 1)
        alone = Examples(
            inputs.flatten(0, 1)[:, None], targets.flatten(0, 1)[:, None], ones,
            keys.repeat_interleave(width), first.repeat_interleave(width) + position,
        )  # fmt: skip
        losses, gradients, _ = self.value_and_grad(
            _repeated(models, width), _repeated(buffers, width), alone
        )
        # Squares of float32 neither vanish nor overflow in float64.
        norms = [
            torch.linalg.vector_norm(g.flatten(1), dim=1, dtype=torch.float64)
            for g in gradients.values()
        ]
        norms_n = torch.linalg.vector_norm(torch.stack(norms), dim=0)

        def weighted_sums(weights_eb: Tensor) -> dict[str, Tensor]:
            weights_e1b, sums = weights_eb[:, None], {}
            for name, value in gradients.items():
                rows_ebk = masked(value.flatten(1), weights_eb.view(-1, 1)).view(count, width, -1)
                sums[name] = torch.bmm(weights_e1b, rows_ebk).view(models[name].shape)
            return sums

        return PerExample(losses.view(count, width), norms_n.view(count, width), weighted_sums)

    def embed(self, models: Models, buffers: Buffers, inputs: Tensor) -> Tensor:
        """Return the inputs of each model's last layer (E, b, m), in evaluation mode."""
        below = self.below()
        own = {name: models[name] for name in below.network.trained}
        return below.outputs(own, buffers, inputs).flatten(2)

    def below(self) -> Backend:
        """Return the backend of the network without its last layer, for losses of its features."""
        if self._below is None:
            self._below = type(self)(self.network.below_head(self.module), FEATURES)
        return self._below

    def _set_training(self, training: bool) -> None:
        if self.module.training != training:  # setting it visits every layer
            self.module.train(training)


class Clipped(Backend):
    """Backend that wraps another one and returns sums of gradients that are clipped per example.

    The clipped sum is that of Abadi et al., "Deep learning with differential privacy", CCS 2016.
    """

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


def masked(values: Tensor, weights: Tensor) -> Tensor:
    """Return values with 0 where the weight is 0: NaN times 0 would be NaN."""
    return torch.where(weights != 0, values, 0.0)


def _repeated(stacks: Mapping[str, Tensor], times: int) -> dict[str, Tensor]:
    """Repeat each model `times` times; a single model is not copied."""
    return {
        name: value.expand(times, *value.shape[1:])
        if len(value) == 1
        else value.repeat_interleave(times, 0)
        for name, value in stacks.items()
    }


@contextmanager
def located(module: nn.Module, peers: Callable[[], Ints], when: str) -> Iterator[None]:
    """Add layer, peers and `when` as a note to an error of the block."""
    try:
        yield
    except Exception as error:
        places = layer_of(error, module), peers_of(np.unique(peers()).tolist()), when
        remedy = "batch norm needs two training examples in each batch: change batch-size"
        remedy *= "more than 1 value per channel" in str(error)
        error.add_note(", ".join(filter(None, (*places, remedy))))
        raise


def layer_of(error: BaseException, module: nn.Module) -> str:
    """Return 'layer "name" (Type)' for the innermost layer on an exception's traceback, or ""."""
    names = {id(layer): name for name, layer in module.named_modules() if name}
    place = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for local in ("self", "layer"):
            layer = frame.f_locals.get(local)
            if id(layer) in names:
                place = f'layer "{names[id(layer)]}" ({type(layer).__name__})'
    return place


def first_sentence(error: Exception) -> str:
    """Return the first sentence of an exception's message."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text.partition(". ")[0][:300]
