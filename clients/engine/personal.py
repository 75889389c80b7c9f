"""Personal layers: parameters that stay with their peer, whatever its method sends and averages.

Like the running statistics of batch norm they are among the buffers of a peer's model. A method's
models are the rest; the gradient of a loss at a model takes a step of the personal layers of the
peer whose data it is, as it moves its statistics, and whoever drops the buffers drops that step.
Legend: e = models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from coterie.clients.engine import optimizers

if TYPE_CHECKING:
    from coterie.clients.engine.network import Buffers
    from coterie.clients.training import Training


class PersonalLayers:
    """The personal parameters of a network, and the optimizer's memory of each.

    Parameters
    ----------
    names : of the parameters.
    training : the optimizer that moves them.
    """

    def __init__(self, names: Sequence[str], training: Training) -> None:
        self.names, self._training = tuple(names), training

    def buffers(self, values: Mapping[str, Tensor]) -> Buffers:
        """The parameters (E, ...) by name, with fresh memory."""
        memory = {
            f"{name}.{key}": moment
            for name, value in values.items()
            for key, moment in optimizers.opt_state(self._training, value).items()
        }
        return {**values, **memory}

    def stepped(
        self, buffers: Mapping[str, Tensor], gradients: Sequence[Tensor], round_: int
    ) -> Buffers:
        """The parameters and their memory after a step down their gradients."""
        after = {
            key: value.clone()
            for key, value in buffers.items()
            if key in self.names or key.rpartition(".")[0] in self.names
        }
        memory = {
            key: [after[f"{name}.{key}"] for name in self.names]
            for key in optimizers.opt_state(self._training, after[self.names[0]])
        }
        rate = self._training.rate(round_)
        values = [after[name] for name in self.names]
        optimizers.step(self._training, rate, values, gradients, memory)
        return after
