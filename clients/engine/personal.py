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

    def leaves(self, buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The parameters, to be differentiated."""
        return {name: buffers[name].detach().requires_grad_() for name in self.names}

    def stepped(
        self, buffers: Mapping[str, Tensor], gradients: Sequence[Tensor], round_: int
    ) -> Buffers:
        """The parameters and their memory after a step down their gradients."""
        after: Buffers = {}
        for name, gradient in zip(self.names, gradients, strict=True):
            value = buffers[name].clone()
            memory = {
                key.removeprefix(f"{name}."): moment.clone()
                for key, moment in buffers.items()
                if key.startswith(f"{name}.")
            }
            opt_state = {key: [moment] for key, moment in memory.items()}
            rate = self._training.rate(round_)
            optimizers.step(self._training, rate, [value], [gradient], opt_state)
            after |= {name: value, **{f"{name}.{key}": moment for key, moment in memory.items()}}
        return after
