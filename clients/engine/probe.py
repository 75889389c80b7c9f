"""A network that is not ours is tried before a run: whether it fits, and whether it can be batched.

`torch.func.vmap` runs many copies of a network in one call. It cannot where the way through a
network depends on its data, or where a layer draws random numbers or writes into a tensor that all
copies share. Such a network runs one model at a time, if it runs at all.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from clients.engine.network import Network
from clients.models.build import build

if TYPE_CHECKING:
    from clients.models.options import Adaptation
    from datasets.problem import Problem

_EXAMPLES = 2  # batch norm needs two
_REMEDIES = {
    "random": "use torch.nn.Dropout, whose masks are each model's own",
    "data-dependent": "use torch.where instead of if, and no .item()",
    ".item()": "use torch.where instead of if, and no .item()",
    "in-place": "write x = x + y instead of x += y, and no x[...] = y",
    "inplace": "write x = x + y instead of x += y, and no x[...] = y",
}
"""What torch says of a layer that cannot be batched -> what to write instead."""

_log = logging.getLogger("coterie.models")


class ModelError(ValueError):
    """A network that cannot learn the problem; names the layer and the remedy."""


def check(
    model: str, options: object, adaptation: Adaptation, problem: Problem, dtype: str
) -> Network:
    """Build a network and try it on a problem, before a run; says it once if it cannot be batched.

    Raises
    ------
    ValueError
        It cannot be built, or not learn the problem; one line says why.
    """
    shape = problem.inputs.shape[1:]
    with torch.random.fork_rng():
        template = build(model, options, problem.task, shape, problem.outputs, adaptation)
    network = Network(template.to(getattr(torch, dtype)))
    try_out(network, problem, model)
    if network.alone:
        _warn(f'model = "{model}" cannot be batched and runs one model at a time: {network.alone}')
    return network


@lru_cache
def _warn(line: str) -> None:
    _log.warning("%s", line)


def try_out(network: Network, problem: Problem, name: str) -> None:
    """See that a network learns the problem, and note in it why it cannot be batched.

    Raises
    ------
    ModelError
        It does not; one line says in which layer, and why.
    """
    inputs = examples(network, problem)
    try:
        with _located(network.module) as place:
            _backward(network, inputs[:1], problem, name)
    except ModelError:
        raise
    except Exception as error:  # of code that is not ours
        raise ModelError(f'model = "{name}"{place()}: {_line(error)}') from error
    try:
        with _located(network.module) as place:
            _backward(network, inputs, problem, name)
    except Exception as error:
        remedy = next((text for key, text in _REMEDIES.items() if key in str(error)), _line(error))
        network.alone = f"{remedy}{place()}"


def examples(network: Network, problem: Problem) -> Tensor:
    """Two examples for each of two models, as they are in a run."""
    raw = problem.inputs[np.arange(2 * _EXAMPLES) % len(problem.inputs)]
    device, dtype = _kind(network.module)
    if problem.task == "language":
        examples = torch.from_numpy(raw.astype(np.int64)).to(device)
    else:
        scaled = (raw - problem.mean) / problem.std
        examples = torch.from_numpy(np.asarray(scaled, dtype=np.float64)).to(device, dtype)
    return examples.view(2, _EXAMPLES, *examples.shape[1:])


def _kind(module: nn.Module) -> tuple[torch.device, torch.dtype]:
    first = next(module.parameters())
    return first.device, first.dtype


def _backward(network: Network, inputs: Tensor, problem: Problem, name: str) -> None:
    """Train and evaluate one step of as many models as there are inputs."""
    models = len(inputs)
    flat = torch.cat([p.detach().flatten() for p in _trainable(network)])
    keys = torch.zeros(models, dtype=torch.int64, device=inputs.device)
    leaves = network.leaves(flat.expand(models, -1))
    outputs, buffers = network(leaves, network.buffers(models), inputs, keys)
    _check(outputs, inputs, problem, name)
    torch.autograd.grad(outputs.sum(), list(leaves.values()), allow_unused=True)
    with torch.no_grad():
        network(flat.expand(models, -1), buffers, inputs)


def _trainable(network: Network) -> Iterator[Tensor]:
    values = dict(network.module.named_parameters())
    return (values[name] for name in network.names)


def _check(outputs: object, inputs: Tensor, problem: Problem, name: str) -> None:
    """Refuse outputs that the task has no use for."""
    k, examples = problem.outputs, inputs.shape[1]
    shapes = {
        "language": (*inputs.shape[2:], k),
        "segmentation": (k, *inputs.shape[3:]),
    }
    wanted = (examples, *shapes.get(problem.task, (k,)))
    if not isinstance(outputs, Tensor):
        raise ModelError(f'model = "{name}" gives a {type(outputs).__name__} instead of a tensor')
    if tuple(outputs.shape[1:]) != wanted:
        raise ModelError(
            f'model = "{name}" gives outputs of shape {tuple(outputs.shape[1:])} for {examples} '
            f"examples: {problem.task} wants {wanted}"
        )


@contextmanager
def _located(module: nn.Module) -> Iterator[_Place]:
    """Watch which layer is at work, so that an exception can be told its place."""
    place = _Place()
    handles = []
    for name, layer in module.named_modules():
        handles.append(layer.register_forward_pre_hook(lambda m, _, n=name: place.enter(n, m)))
        handles.append(layer.register_forward_hook(lambda *_: place.leave()))
    try:
        yield place
    finally:
        for handle in handles:
            handle.remove()


class _Place:
    """The layers that are at work, the innermost last."""

    def __init__(self) -> None:
        self._layers: list[str] = []

    def enter(self, name: str, layer: nn.Module) -> None:
        self._layers.append(f' in layer "{name}" ({type(layer).__name__})' if name else "")

    def leave(self) -> None:
        self._layers.pop()

    def __call__(self) -> str:
        return self._layers[-1] if self._layers else ""


def _line(error: Exception) -> str:
    """The first sentence of what torch says."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text.partition(". ")[0][:300]
