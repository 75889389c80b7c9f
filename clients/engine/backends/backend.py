"""The seam of the engine: a backend computes losses and gradients of many models.

Backends differ in speed only. `coterie.clients.engine.backends.choose` picks one. Legend: e =
models, b = examples of a minibatch.
"""

from __future__ import annotations

import copy
import traceback
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, NamedTuple, Self

from torch import Tensor, nn

from coterie.clients.engine.network import Buffers, Network
from coterie.clients.engine.tasks import Task

Models = Mapping[str, Tensor]
"""Trainable tensors by name, each (E, *shape)."""


class Examples(NamedTuple):
    """A minibatch for each model.

    Attributes
    ----------
    inputs : (E, b, ...).
    targets : (E, b, ...).
    weights : (E, b) weight of each example's loss; 0 for padding.
    keys : (E,) dropout keys.
    first : (E,) position in its minibatch of the first example; above 0 where the minibatch is
        computed in parts.
    """

    inputs: Tensor
    targets: Tensor
    weights: Tensor
    keys: Tensor
    first: Tensor


class Result(NamedTuple):
    """Losses and gradients of one call.

    Attributes
    ----------
    losses : (E, b) loss of each example, not weighted.
    gradients : name -> (E, *shape), gradient of the weighted sum of the losses.
    buffers : name -> (E, ...), the buffers after the forward pass.
    """

    losses: Tensor
    gradients: dict[str, Tensor]
    buffers: Buffers


class BackendError(RuntimeError):
    """A network failed in a call; the message names peers, round and layer."""


class Backend(ABC):
    """Compute losses and gradients of copies of one network.

    Parameters
    ----------
    network : the template.
    task : the loss.

    Attributes
    ----------
    name : value of the key `engine.backend`.
    stacks : whether a call of many models is one computation, instead of a loop over them.
    module : the module that runs; a twin has one of its own.
    """

    name: ClassVar[str]
    stacks: ClassVar[bool]

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
        """Run another copy of the module from now on."""
        self.module = module

    @abstractmethod
    def value_and_grad(self, models: Models, buffers: Buffers, examples: Examples) -> Result:
        """Return losses and gradients in training mode; no argument is changed."""

    @abstractmethod
    def outputs(self, models: Models, buffers: Buffers, inputs: Tensor) -> Tensor:
        """Return outputs (E, b, ...) in evaluation mode, of inputs (E, b, ...)."""

    def embed(self, models: Models, buffers: Buffers, inputs: Tensor) -> Tensor:
        """Return the inputs of each model's last layer (E, b, m), in evaluation mode."""
        if self._below is None:
            self._below = type(self)(self.network.below_head(self.module), self.task)
        below = {name: models[name] for name in self._below.network.trained}
        return self._below.outputs(below, buffers, inputs).flatten(2)

    def _set_training(self, training: bool) -> None:
        if self.module.training != training:  # setting it visits every layer
            self.module.train(training)


def place_of(error: BaseException, module: nn.Module) -> str:
    """Return ' in layer "name" (Type)' for the innermost layer on an exception's traceback.

    Returns "" where no frame belongs to a named layer of `module`.
    """
    names = {id(layer): name for name, layer in module.named_modules() if name}
    place = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        for local in ("self", "layer"):
            layer = frame.f_locals.get(local)
            if id(layer) in names:
                place = f' in layer "{names[id(layer)]}" ({type(layer).__name__})'
    return place


def first_sentence(error: Exception) -> str:
    """Return the first sentence of an exception's message."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text.partition(". ")[0][:300]
