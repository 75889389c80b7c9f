"""Types in the signatures of rules. Those of torch and of the engine are names: no torch here."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from coterie.clients.letters import Bools as Bools
from coterie.clients.letters import Floats as Floats
from coterie.clients.letters import Ints as Ints

if TYPE_CHECKING:
    import torch

    from coterie.clients.engine import data, engine, evaluation, library, network, training
    from coterie.clients.engine.backends import backend

Tensor: TypeAlias = "torch.Tensor"
Backend: TypeAlias = "backend.Backend"
Batch: TypeAlias = "data.Batch"
Begun: TypeAlias = "library.Begun"
Buffers: TypeAlias = "network.Buffers"
Engine: TypeAlias = "engine.Engine"
Fit: TypeAlias = "training.Fit"
GradientFunction: TypeAlias = "training.GradientFunction"
Gradients: TypeAlias = "training.Gradients"
Models: TypeAlias = "training.Models"
Scores: TypeAlias = "evaluation.Scores"
SplitName: TypeAlias = "data.SplitName"
