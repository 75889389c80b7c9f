"""How a peer trains on its own data: the numbers every method shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Optimizer = Literal["sgd", "adam"]
Augmentation = Literal["none", "crop-flip"]


@dataclass(frozen=True)
class Training:
    """One peer's local training.

    Attributes
    ----------
    batch_size : examples in a minibatch.
    local_steps : minibatches a round.
    local_epochs : passes over the own data a round; above 0 it replaces `local_steps`.
    optimizer : optimizer of the local training.
    augment : what happens to training images in every minibatch; "crop-flip" moves them by up to
        an eighth of their side and mirrors every second one. Never in evaluation.
    learning_rate : learning rate of the optimizer.
    momentum : momentum of SGD; Adam has none.
    weight_decay : weight decay of the optimizer.
    learning_rate_decay : factor on the learning rate after every `learning_rate_decay_every`
        rounds; 1 keeps it.
    learning_rate_decay_every : rounds between two decays of the learning rate.
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
        if self.batch_size < 1:
            raise ValueError("batch-size must be at least 1")
        if self.local_steps < 0 or self.local_epochs < 0:
            raise ValueError("local-steps and local-epochs must not be negative")
        if self.local_steps == 0 and self.local_epochs == 0:
            raise ValueError("local-steps or local-epochs must be at least 1")
        if self.learning_rate <= 0:
            raise ValueError("learning-rate must be above 0")
        if not 0 < self.learning_rate_decay <= 1:
            raise ValueError("learning-rate-decay must be above 0 and at most 1")
        if self.learning_rate_decay_every < 1:
            raise ValueError("learning-rate-decay-every must be at least 1")
        if not 0 <= self.momentum < 1:
            raise ValueError("momentum must be at least 0 and below 1")
        if self.momentum > 0 and self.optimizer == "adam":
            raise ValueError('momentum belongs to optimizer "sgd"; "adam" has its own')
        if self.weight_decay < 0:
            raise ValueError("weight-decay must not be negative")

    def rate(self, round_: int) -> float:
        """The learning rate of a round, from 1; what belongs to none, 0, has that of the first."""
        decays = max(round_ - 1, 0) // self.learning_rate_decay_every
        return self.learning_rate * self.learning_rate_decay**decays
