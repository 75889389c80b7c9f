"""Personal layers: parameters that a method neither sends nor averages.

Like the running statistics of batch norm, they are among the buffers of a peer's model; a method's
models are the other parameters. Computing a gradient also takes a step of the personal layers of
the peer whose data it uses, as it updates the statistics; dropping the buffers drops that step.
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
    """Personal parameters of a network, and their optimizer state."""

    def __init__(self, names: Sequence[str], training: Training) -> None:
        self.names, self._training = tuple(names), training

    def buffers(self, values: Mapping[str, Tensor]) -> Buffers:
        """Return the parameters (E, ...) by name, with fresh optimizer state."""
        memory = {
            f"{name}.{key}": moment
            for name, value in values.items()
            for key, moment in optimizers.opt_state(self._training, value).items()
        }
        return {**values, **memory}

    def stepped(
        self, buffers: Mapping[str, Tensor], gradients: Sequence[Tensor], round_: int
    ) -> Buffers:
        """Return the parameters and their optimizer state after a step down their gradients."""
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
        decays = optimizers.decays(self._training, (value.shape[1:] for value in values))
        optimizers.step(self._training, rate, values, gradients, memory, decays)
        return after
