"""Options of local training, shared by all methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Optimizer = Literal["sgd", "adam"]
Augmentation = Literal["none", "crop-flip"]


@dataclass(frozen=True)
class Training:
    """Local training of each peer.

    Attributes
    ----------
    batch_size : int
        Examples per minibatch.
    local_steps : int
        Minibatches per round.
    local_epochs : int
        Passes over the peer's data per round; if above 0, replaces `local_steps`.
    augment : {"none", "crop-flip"}
        Augmentation of training images; "crop-flip" shifts them by up to an eighth of their side
        and mirrors them with probability 1/2. Not used in evaluation.
    optimizer : {"sgd", "adam"}
        Optimizer of local training.
    learning_rate : float
        Learning rate of the optimizer.
    learning_rate_decay : float
        Factor on the learning rate every `learning_rate_decay_every` rounds; 1 for none.
    learning_rate_decay_every : int
        Rounds between two decays of the learning rate.
    momentum : float
        Momentum of SGD; must be 0 with Adam.
    weight_decay : float
        Weight decay of the optimizer.
    """

    batch_size: int = 32
    local_steps: int = 10
    local_epochs: int = 0
    augment: Augmentation = "none"
    optimizer: Optimizer = "sgd"
    learning_rate: float = 0.1
    learning_rate_decay: float = 1.0
    learning_rate_decay_every: int = 1
    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.local_steps == 0 and self.local_epochs == 0:
            raise ValueError("local-steps or local-epochs must be at least 1")
        if self.momentum > 0 and self.optimizer == "adam":
            raise ValueError('momentum needs optimizer = "sgd": "adam" has its own')

    def rate(self, round_: int) -> float:
        """Return the learning rate of a round, counted from 1; round 0 has that of round 1."""
        decays = max(round_ - 1, 0) // self.learning_rate_decay_every
        return self.learning_rate * self.learning_rate_decay**decays
