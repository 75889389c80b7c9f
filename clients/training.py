"""How a peer trains on its own data: the numbers every method shares."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Optimizer = Literal["sgd", "adam", "adamw", "rmsprop"]
RateSchedule = Literal["step", "constant", "cosine", "inverse-time"]
Augmentation = Literal["none", "crop-flip"]


@dataclass(frozen=True)
class Training:
    """One peer's local training.

    Attributes
    ----------
    batch_size : examples in a minibatch.
    local_steps : minibatches a round.
    local_epochs : passes over the own data a round; above 0 it replaces `local_steps`.
    num_server_rounds : rounds of the run; the "cosine" schedule ends with them.
    optimizer : optimizer of the local training, with the defaults of torch.optim: betas 0.9 and
        0.999 of "adam" and "adamw", smoothing 0.99 of "rmsprop".
    augment : what happens to training images in every minibatch; "crop-flip" moves them by up to
        an eighth of their side and mirrors every second one. Never in evaluation.
    learning_rate : learning rate of the optimizer.
    learning_rate_schedule : learning rate of round t, where t counts from 0 after the warm-up and a
        run without warm-up has T rounds: "step" multiplies it by `learning_rate_decay` every
        `learning_rate_decay_every` rounds; "constant" keeps it; "cosine" is
        learning_rate (1 + cos(pi t / T)) / 2; "inverse-time" is learning_rate / (1 + t / T0) with
        T0 = `learning_rate_decay_every`. The steps C / (mu (t + a)) of convergence proofs are
        "inverse-time" with learning_rate = C / (mu a) and T0 = a.
    learning_rate_decay : factor of the "step" schedule; 1 keeps the learning rate.
    learning_rate_decay_every : rounds between two decays of "step", and until "inverse-time" has
        halved the learning rate.
    warm_up_rounds : rounds W of warm-up: round k of them, from 1, has k / (W + 1) of the learning
        rate.
    momentum : momentum of "sgd" and "rmsprop".
    weight_decay : weight decay; "adamw" applies it to the weights, the others to the gradient.
    gradient_clip : maximum norm of a model's gradient at each step, 0 for none; layers of
        `model.personal` are clipped one tensor at a time.
    """

    batch_size: int = 32
    local_steps: int = 10
    local_epochs: int = 0
    augment: Augmentation = "none"
    num_server_rounds: int = 150
    optimizer: Optimizer = "sgd"
    learning_rate: float = 0.1
    learning_rate_schedule: RateSchedule = "step"
    learning_rate_decay: float = 1.0
    learning_rate_decay_every: int = 1
    warm_up_rounds: int = 0
    momentum: float = 0.0
    weight_decay: float = 0.0
    gradient_clip: float = 0.0

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
        if self.learning_rate_decay < 1 and self.learning_rate_schedule != "step":
            raise ValueError('learning-rate-decay goes with learning-rate-schedule = "step"')
        if not 0 <= self.warm_up_rounds < max(1, self.num_server_rounds):
            raise ValueError("warm-up-rounds must be at least 0 and below num-server-rounds")
        if not 0 <= self.momentum < 1:
            raise ValueError("momentum must be at least 0 and below 1")
        if self.momentum > 0 and self.optimizer in ("adam", "adamw"):
            raise ValueError(
                f'momentum goes with optimizer "sgd" or "rmsprop"; "{self.optimizer}" has its own'
            )
        if self.weight_decay < 0 or self.gradient_clip < 0:
            raise ValueError("weight-decay and gradient-clip must not be negative")

    def rate(self, round_: int) -> float:
        """Return the learning rate of a round, from 1.

        Round 0, before the first, has the first one's; rounds after the last have the last one's
        "cosine".
        """
        t = max(round_ - 1, 0) - self.warm_up_rounds
        if t < 0:
            return self.learning_rate * (t + self.warm_up_rounds + 1) / (self.warm_up_rounds + 1)
        match self.learning_rate_schedule:
            case "constant":
                return self.learning_rate
            case "cosine":
                total = self.num_server_rounds - self.warm_up_rounds
                return self.learning_rate * (1 + math.cos(math.pi * min(t, total - 1) / total)) / 2
            case "inverse-time":
                return self.learning_rate / (1 + t / self.learning_rate_decay_every)
        decays = t // self.learning_rate_decay_every
        return self.learning_rate * self.learning_rate_decay**decays
