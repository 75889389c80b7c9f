"""How many models go into one batched call, how many examples, and how many calls go at a time.

Stacking saves overhead, but every stacked model holds its own activations, and calls that outgrow
caches are slower: a call takes as many models as hold `BUDGET` together; one that holds more goes
alone. Calls of single models go side by side on the cores of a CPU, others share out what they
compute. The rule looks at shapes and the machine only, so that the same run on the same machine
gives the same bits; in general, results do not depend on it beyond rounding.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from coterie.clients.engine.batches import Ints
from coterie.clients.letters import Part

BUDGET = {"cpu": 1 << 24, "cuda": 1 << 28}
"""Bytes that the models of a call hold together."""
LARGEST = 256  # beyond it a call is long enough that its overhead no longer shows
THREADS = torch.get_num_threads()  # as many as the process may use
TOGETHER = 1 << 22
"""Bytes of a stacked call, or products of its matrices, from which on threads share it."""
ALONE = 1 << 20
"""Bytes of a single model's call from which on threads share it, or other calls go beside it."""


class Calls(NamedTuple):
    """Models per call, and how many calls go side by side."""

    size: int
    workers: int


class Chunks:
    """Chunk sizes of one engine.

    Parameters
    ----------
    stacks : whether models gain by sharing a call on a CPU.
    chunk : a fixed size, or 0 for the rule.
    memory : bound in bytes on what the calls of a moment hold, or 0 for a share of what the machine
        has.
    apart : whether calls of single models may go side by side.
    """

    def __init__(
        self, device: torch.device, *, stacks: bool, chunk: int, memory: int, apart: bool = True
    ) -> None:
        self._fixed = chunk or (1 if device.type == "cpu" and not stacks else 0)
        self._stacks, self._apart = stacks, apart and device.type == "cpu"
        self._memory = memory or _share(device)
        self._budget = min(BUDGET[device.type], self._memory)

    def calls(self, models: int, held: int, products: int = 0) -> Calls:
        """Calls to work off some models; torch's threads are set for them.

        Parameters
        ----------
        models : how many there are.
        held : bytes that each holds between forward and backward pass.
        products : how often each multiplies one of its parameters in a forward pass, at least.
        """
        size = self._fixed or max(1, min(LARGEST, self._budget // max(held, 1)))
        return self._side_by_side(models, size, held, products)

    def width(self, examples: int, held: int) -> int:
        """Examples per call of a batch, on which one model alone would hold so many bytes."""
        return max(1, min(examples, examples * self._memory // max(held, 1)))

    def evaluation(self, models: int, longest: int, held: int) -> tuple[Calls, int]:
        """Calls and examples per call for evaluation; torch's threads are set for it.

        Parameters
        ----------
        held : bytes that one model would hold for one example.
        """
        room = min(4 * self._budget, self._memory)  # nothing is kept for a backward pass
        budget = max(1, room // max(held, 1))  # examples that fit, over all models
        examples = max(1, min(longest, 2048, budget))
        size = self._fixed or max(1, min(models, budget // examples))
        return self._side_by_side(models, size, examples * held), examples

    def _side_by_side(self, models: int, size: int, held: int, products: int = 0) -> Calls:
        """Those calls at a time for which there are cores, work, and memory."""
        held, workers, least = max(held, 1), 1, TOGETHER if self._stacks else ALONE
        if self._apart and size == 1:
            workers = max(1, min(THREADS, models, models * held // ALONE, self._memory // held))
        work = min(models, size) * max(held, products)
        torch.set_num_threads(THREADS if workers > 1 or work >= least else 1)
        return Calls(size, workers)


def working(counts_e: Ints) -> Part:
    """Which models have examples in a minibatch."""
    return slice(None) if (counts_e > 0).all() else np.flatnonzero(counts_e)


def chunked(counts_e: Ints, equal: bool, size: int = 0) -> Sequence[Part]:
    """The models that have examples, `size` at a time; with `equal`, of equally full batches only.

    Batch norm sees whole batches, without empty positions.
    """
    models = len(counts_e)
    size, low = size or models, counts_e.min(initial=1 << 62)
    if low > 0 and (not equal or low == counts_e.max(initial=0)):
        return [slice(first, min(first + size, models)) for first in range(0, models, size)]
    groups = (
        [np.flatnonzero(counts_e == count) for count in np.unique(counts_e) if count]
        if equal
        else [np.flatnonzero(counts_e)]
    )
    return [group[first : first + size] for group in groups for first in range(0, len(group), size)]


def held_bytes(forward: Callable[[], Tensor], shared: Iterable[Tensor] = ()) -> int:
    """Bytes that autograd keeps for the backward pass of `forward`, each storage once.

    Parameters
    ----------
    shared : tensors that are there anyway and do not count.
    """
    storages: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
    with torch.enable_grad(), hooks:  # whoever evaluates first asks without
        kept = forward()  # hold the result: a freed storage could be counted under a reused address
        del kept
    for tensor in shared:
        storages.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(storages.values())


def _share(device: torch.device) -> int:
    """A share of the memory, however much is free now: other nodes may run on this machine."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1]) // 4
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 8
