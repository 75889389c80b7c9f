"""Check before a run that a network fits the problem, and whether it can be batched.

`torch.func.vmap` runs many copies of a network in one call. It fails if control flow depends on the
data, or if a layer draws random numbers or writes into a tensor that all copies share. Such a
network runs one model at a time.
"""

from __future__ import annotations

import copy
import logging
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from coterie.clients.engine.backends.backend import Backend, Examples, first_sentence, layer_of
from coterie.clients.engine.backends.sequential import Sequential, Vmapped
from coterie.clients.engine.data import Data
from coterie.clients.engine.network import ModelError, Network
from coterie.clients.engine.tasks import TASKS
from coterie.clients.models.build import build
from coterie.clients.models.options import Adaptation
from coterie.datasets.problem import Problem
from coterie.errors import is_users, place_of

_EXAMPLES = 2  # batch norm needs two
_REMEDIES = {
    "random": "use torch.nn.Dropout, whose masks are each model's own",
    "data-dependent": "use torch.where instead of if, and no .item()",
    ".item()": "use torch.where instead of if, and no .item()",
    "in-place": "write x = x + y instead of x += y, and no x[...] = y",
    "inplace": "write x = x + y instead of x += y, and no x[...] = y",
}
"""Part of torch's message about a layer that cannot be batched -> remedy."""

_log = logging.getLogger("coterie.models")


def check(
    model: str, options: object, adaptation: Adaptation, problem: Problem, dtype: str
) -> Network:
    """Build a network and try it before a run; warn once if it cannot be batched."""
    # ValueError: it cannot be built, or cannot learn the problem; one line gives the reason.
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
    """Check that a network learns the problem; store the reason if it cannot be batched."""
    # ModelError: the network fails; one line names layer and reason.
    task = TASKS[problem.task]
    both = examples(network, problem)
    one = Examples(*(value[:1] for value in both))
    backend: Backend = Sequential(network, task)
    try:
        outputs = _outputs(backend, one)
        _check(outputs, one.inputs, problem, name)
        _step(backend, one)
    except ModelError:
        raise
    except Exception as error:  # the user's code may raise anything
        layer = layer_of(error, network.module)
        inside = f" in {layer}" if layer else ""
        where = f" ({place_of(error)})" if is_users(error) else ""
        raise ModelError(f'model = "{name}"{inside}: {first_sentence(error)}{where}') from error
    try:
        backend = Vmapped(network, task)
        _step(backend, both)
        _outputs(backend, both)
    except Exception as error:
        reason = first_sentence(error)
        remedy = next((text for key, text in _REMEDIES.items() if key in str(error)), reason)
        layer = layer_of(error, network.module)
        network.alone = f"{remedy} in {layer}" if layer else remedy


def min_batch(network: Network, problem: Problem, data: Data) -> int:
    """Return the size below which the rest of an epoch is left out, and say so once."""
    # It is 2 if a layer of batch norm would see one value per channel in a rest of one example.
    lengths, size = data.shards["train"].lengths_p, data.training.batch_size
    rests = int(((lengths > size) & (lengths % size == 1)).sum())
    if not network.coupled or not rests:
        return 1
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            copy.deepcopy(network.module).train()(examples(network, problem).inputs[0, :1])
    except ValueError:
        if data.training.local_epochs:
            _warn(
                f"batch norm needs two examples: with batch-size = {size}, each epoch leaves out "
                f"a rest of one example (at {rests} of {len(lengths)} peers)"
            )
        return 2
    return 1


def examples(network: Network, problem: Problem) -> Examples:
    """Return two examples for each of two models, inputs as in a run and zeros as targets."""
    raw = problem.inputs[np.arange(2 * _EXAMPLES) % len(problem.inputs)]
    first = next(network.module.parameters())
    if problem.task == "language":
        inputs = torch.from_numpy(raw.astype(np.int64)).to(first.device)
    else:
        scaled = (raw - problem.mean) / problem.std
        inputs = torch.from_numpy(np.asarray(scaled, dtype=np.float64)).to(first)
    inputs = inputs.view(2, _EXAMPLES, *inputs.shape[1:])
    shape = np.shape(problem.train.targets[0])[1:]
    kind = first.dtype if problem.train.targets[0].dtype.kind == "f" else torch.int64
    weights = torch.ones(2, _EXAMPLES, dtype=first.dtype, device=first.device)
    targets = torch.zeros(2, _EXAMPLES, *shape, dtype=kind, device=first.device)
    keys = torch.zeros(2, dtype=torch.int64, device=first.device)
    return Examples(inputs, targets, weights, keys, keys)


def _step(backend: Backend, both: Examples) -> None:
    backend.value_and_grad(*backend.network.copies(len(both.inputs)), both)


def _outputs(backend: Backend, both: Examples) -> Tensor:
    return backend.outputs(*backend.network.copies(len(both.inputs)), both.inputs)


def _check(outputs: Tensor, inputs: Tensor, problem: Problem, name: str) -> None:
    """Reject outputs whose shape does not fit the task."""
    k, count = problem.outputs, inputs.shape[1]
    shapes = {"language": (*inputs.shape[2:], k), "segmentation": (k, *inputs.shape[3:])}
    wanted = (count, *shapes.get(problem.task, (k,)))
    if tuple(outputs.shape[1:]) != wanted:
        raise ModelError(
            f'model = "{name}" gives outputs of shape {tuple(outputs.shape[1:])} for {count} '
            f"examples: {problem.task} wants {wanted}"
        )
