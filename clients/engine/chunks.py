"""How many models go into one batched call, and how many examples.

Stacking saves overhead, but every stacked model holds its own activations, and calls that outgrow
caches are slower: a call takes as many models as hold `BUDGET` together; one that holds more goes
alone. The rule looks at shapes and the machine only, so that the same run on the same machine gives
the same bits; in general, results do not depend on it beyond rounding.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from clients.engine.batches import Ints
from clients.letters import Part

BUDGET = {"cpu": 1 << 24, "cuda": 1 << 28}
"""Bytes that the models of a call hold together."""
LARGEST = 256  # beyond it a call is long enough that its overhead no longer shows
THREADS = torch.get_num_threads()  # as many as the process may use
TOGETHER = 1 << 22  # bytes of a call that threads share; below, waking them takes longer


class Chunks:
    """Chunk sizes of one engine.

    Parameters
    ----------
    stacks : whether models gain by sharing a call on a CPU.
    chunk : a fixed size, or 0 for the rule.
    memory : bound in bytes on what a call holds, or 0 for a share of what the machine has.
    """

    def __init__(self, device: torch.device, *, stacks: bool, chunk: int, memory: int) -> None:
        self._fixed = chunk or (1 if device.type == "cpu" and not stacks else 0)
        self._memory = memory or _share(device)
        self._budget = min(BUDGET[device.type], self._memory)

    def size(self, models: int, held: int) -> int:
        """Models per call; torch's threads are set for it.

        Parameters
        ----------
        models : how many there are.
        held : bytes that each holds between forward and backward pass.
        """
        size = self._fixed or max(1, min(LARGEST, self._budget // max(held, 1)))
        _set_threads(min(models, size) * held)
        return size

    def width(self, examples: int, held: int) -> int:
        """Examples per call of a batch, on which one model alone would hold so many bytes."""
        return max(1, min(examples, examples * self._memory // max(held, 1)))

    def evaluation(self, models: int, longest: int, held: int) -> tuple[int, int]:
        """(models per call, examples per call) for evaluation; torch's threads are set for it.

        Parameters
        ----------
        held : bytes that one model would hold for one example.
        """
        room = min(4 * self._budget, self._memory)  # nothing is kept for a backward pass
        budget = max(1, room // max(held, 1))  # examples that fit, over all models
        examples = max(1, min(longest, 2048, budget))
        size = self._fixed or max(1, min(models, budget // examples))
        _set_threads(size * examples * held)
        return size, examples


def _set_threads(held: int) -> None:
    """Of torch, for calls that hold so many bytes."""
    torch.set_num_threads(THREADS if held >= TOGETHER else 1)


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

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
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
