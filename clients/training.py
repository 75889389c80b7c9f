"""Options of local training, shared by all methods, and of the computation of models."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from coterie.clients.letters import Part
from coterie.ranges import option

if TYPE_CHECKING:
    from torch import Tensor

Optimizer = Literal["sgd", "adam", "adamw", "rmsprop"]
RateSchedule = Literal["step", "cosine", "inverse-time", "horizon"]
Augmentation = Literal["none", "crop-flip"]
Weighting = Literal["samples", "uniform", "metropolis"]
"""Weights of an average over neighbours."""
ClassWeights = Literal["none", "balanced"]
Decayed = Literal["all", "weights"]
BackendName = Literal["auto", "sequential", "batched", "vmapped"]
Drift = Callable[["Tensor", Part], "Tensor"]
"""Function of models (E, d) and their rows to a direction (E, d)."""


class Terms(NamedTuple):
    """Terms of a training step beside the gradient g of the local loss.

    A step follows mask * (g + strength (x - centre)). The optimizer does not scale the drift, which
    is subtracted beside it, times the learning rate.
    """

    drift: Drift | None = None
    proximal: tuple[float, Tensor] | None = None  # strength and centre (E, d)
    mask: Tensor | None = None  # (E, d)
    trained: Sequence[str] | None = None  # tensors that train, the others are frozen; None: all


NO_TERMS = Terms()


@dataclass(frozen=True)
class Training:
    """Local training of each peer."""

    batch_size: int = option(32, "Examples per minibatch.", low=1)
    local_steps: int = option(10, "Minibatches per round.", low=0)
    local_epochs: int = option(
        0, "Passes over the peer's data per round; if above 0, replaces `local-steps`.", low=0
    )
    num_server_rounds: int = option(
        150, "Number of rounds T, the horizon of learning-rate schedules.", low=1
    )
    augment: Augmentation = option(
        "none",
        'Augmentation of training images; "crop-flip" shifts them by up to an eighth of their '
        "side and mirrors them with probability 1/2. Not used in evaluation.",
    )
    optimizer: Optimizer = option(
        "sgd",
        "Optimizer of local training, with the defaults of torch.optim: betas 0.9 and 0.999 of "
        '"adam" and "adamw", smoothing constant 0.99 of "rmsprop".',
    )
    learning_rate: float = option(0.1, "Learning rate eta of the optimizer.", above=0)
    learning_rate_schedule: RateSchedule = option(
        "step",
        'Learning rate of round t = 1, ..., T, with K = `learning-rate-decay-every`. "step": eta '
        'times `learning-rate-decay` after every K rounds. "cosine": eta (1 + cos(pi (t - 1) / '
        'T)) / 2. "inverse-time": eta / (1 + (t - 1) / K), which is eta / t for K = 1; the steps '
        "C / (mu (t + a)) of convergence proofs are eta = C / (mu (a + 1)) and K = a + 1. "
        '"horizon": eta min(1, K max(1, ln T) / T) in every round, which is min(1 / L, ln(T) / '
        "(mu T)) for eta = 1 / L and K = L / mu. After a warm-up, t and T count the rounds after "
        "it.",
    )
    learning_rate_decay: float = option(
        1.0, 'Factor of the "step" schedule; 1 for a constant learning rate.', above=0, high=1
    )
    learning_rate_decay_every: int = option(1, "Rounds K of the schedule.", low=1)
    warm_up_rounds: int = option(
        0,
        "Rounds W of linear warm-up: round t of them has t / (W + 1) of the learning rate.",
        low=0,
    )
    momentum: float = option(
        0.0, 'Momentum of "sgd" and "rmsprop"; must be 0 with the others.', low=0, below=1
    )
    weight_decay: float = option(
        0.0,
        'Weight decay; "adamw" applies it to the parameters, the others add it to the gradient.',
        low=0,
    )
    weight_decay_on: Decayed = option(
        "all",
        'Parameters that decay: "all", or "weights", which leaves out tensors of one dimension: '
        "intercepts and the scales of normalisation. With it, weight decay of a linear model is "
        "the penalty of scikit-learn's LogisticRegression.",
    )
    gradient_clip: float = option(
        0.0,
        "Maximum norm of a model's gradient in a step, over all its parameters; 0 for none.",
        low=0,
    )
    reset_optimizer: bool = option(
        False,
        "Begin the local training of each round without the momentum and moments of earlier "
        "rounds.",
    )
    class_weights: ClassWeights = option(
        "none",
        'Weight of an example in the training loss, for problems with classes. "balanced": n / (k '
        "n_c) for one of the n_c examples of its class among the peer's n training examples of k "
        "classes, so that all classes of the peer count the same. Losses in evaluations have no "
        "weights.",
    )

    def __post_init__(self) -> None:
        if self.local_steps == 0 and self.local_epochs == 0:
            raise ValueError("local-steps or local-epochs must be at least 1")
        if self.learning_rate_decay < 1 and self.learning_rate_schedule != "step":
            raise ValueError('learning-rate-decay needs learning-rate-schedule = "step"')
        if self.warm_up_rounds >= max(1, self.num_server_rounds):
            raise ValueError("warm-up-rounds must be below num-server-rounds")
        if self.momentum > 0 and self.optimizer in ("adam", "adamw"):
            raise ValueError(
                f'momentum needs optimizer = "sgd" or "rmsprop": "{self.optimizer}" has its own'
            )

    def rate(self, round_: int) -> float:
        """Return the learning rate of a round, counted from 1; round 0 has that of round 1."""
        past = max(round_ - 1, 0) - self.warm_up_rounds
        if past < 0:
            return self.learning_rate * (past + self.warm_up_rounds + 1) / (self.warm_up_rounds + 1)
        every, total = self.learning_rate_decay_every, self.num_server_rounds - self.warm_up_rounds
        match self.learning_rate_schedule:
            case "step":
                return self.learning_rate * self.learning_rate_decay ** (past // every)
            case "cosine":
                angle = math.pi * min(past, total - 1) / total
                return self.learning_rate * (1 + math.cos(angle)) / 2
            case "inverse-time":
                return self.learning_rate / (1 + past / every)
            case "horizon":
                return self.learning_rate * min(1.0, every * max(1.0, math.log(total)) / total)


@dataclass(frozen=True)
class EngineOptions:
    """The [engine] table: how models are computed; it changes numbers by rounding only."""

    backend: BackendName = option(
        "auto",
        '"sequential" computes one model at a time and runs every network; "batched" computes '
        'linear layers of all models at once; "vmapped" batches every network that '
        'torch.func.vmap can; "auto" takes the fastest (`coterie.clients.engine.backends.choose`).',
    )


@dataclass(frozen=True)
class Compute:
    """Device and precision of all computation."""

    device: Literal["auto", "cpu", "cuda"] = option(
        "auto", 'Device of the computation; "auto" uses a GPU if there is one.', scope="site"
    )
    dtype: Literal["float32", "float64"] = option(
        "float32", "Data type of the parameters; the quadratic problem always uses float64."
    )
    mixed_precision: bool = option(
        False,
        "Compute matrix products and convolutions in bfloat16; parameters, gradients and letters "
        "stay float32.",
    )
    tf32: bool = option(
        False,
        "Round the inputs of float32 matrix products and convolutions to TF32 (10 mantissa bits) "
        "on NVIDIA's tensor cores; no effect on a CPU.",
    )

    def __post_init__(self) -> None:
        if self.mixed_precision and self.dtype != "float32":
            raise ValueError('mixed-precision = true requires dtype = "float32"')
