"""Numerical check that examples of a minibatch do not influence each other.

Differential privacy clips the gradient of each example. That bounds what one example can change
only if it does not change the gradients of the others, as batch norm does. Layers of torch are
known by their type; this check also sees what a network's own code does with its batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from clients.engine.network import Buffers, Network
from clients.engine.probe import ModelError, examples

if TYPE_CHECKING:
    from datasets.problem import Problem

_TOLERANCE = 1e-6
"""Relative change of an output that counts as rounding."""
_LARGE = 100.0


def require_independent(network: Network, problem: Problem) -> None:
    """Refuse a network in which an example changes what becomes of another one.

    The output of the first example must stay the same, and must not depend on the others by its
    gradient, while the others are rotated, set to 0 and multiplied. A dependence that shows itself
    on other values only is not found.

    Raises
    ------
    ModelError
        An example does, or the network keeps statistics of its examples in a buffer.
    """
    why = _influence(network, examples(network, problem).flatten(0, 1))
    if why:
        raise ModelError(
            f"privacy: {why}, so that no example can be protected alone: take a network that "
            "treats each example by itself, with group or layer norm in place of batch norm"
        )


def _influence(network: Network, inputs_b: Tensor) -> str:
    outputs, buffers = _trained(network, inputs_b)
    for changed_b in _others_changed(inputs_b):
        after, kept = _trained(network, changed_b)
        for name, value in buffers.items():
            if not torch.equal(value, kept[name]):
                return f"the network keeps statistics of its examples in {name}"
        if not torch.allclose(after[0], outputs[0], _TOLERANCE, _TOLERANCE, equal_nan=True):
            return "an example changes the network's outputs for other examples"
    if inputs_b.is_floating_point():
        leaf = inputs_b.detach().requires_grad_()
        outputs, _ = _trained(network, leaf)
        if outputs.requires_grad:
            (slope_b,) = torch.autograd.grad(outputs[0].sum(), leaf, materialize_grads=True)
            if slope_b[1:].any():
                return "an example changes the network's outputs for other examples"
    return ""


def _others_changed(inputs_b: Tensor) -> Iterator[Tensor]:
    """The same examples with others in the place of all but the first."""
    first, others = inputs_b[:1], inputs_b[1:]
    yield torch.cat([first, others.flip(0)])
    yield torch.cat([first, torch.zeros_like(others)])
    if inputs_b.is_floating_point():
        yield torch.cat([first, others * _LARGE])


def _trained(network: Network, inputs_b: Tensor) -> tuple[Tensor, Buffers]:
    """Outputs (b, ...) of the template in training, and its buffers after."""
    key = torch.zeros(1, dtype=torch.int64, device=inputs_b.device)
    x = network.flat(network.module)[None]
    inputs_b = inputs_b.clone()  # a network may write into what it gets
    outputs, buffers = network(x, network.buffers(1), inputs_b[None], key)
    return outputs[0], buffers
