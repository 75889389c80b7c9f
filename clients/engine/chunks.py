"""How many models go into one batched call, and how many threads work on it.

Stacking saves overhead, but wide networks lose by it and every stacked model holds its own
activations; a second thread halves the work of a large call and doubles the time of a small one.
What is fastest depends on network, batch and device, so it is measured: once for each of them in
a process, on real data, among the sizes that fit the memory bound. Results do not depend on the
choice beyond rounding.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor


class Choice(NamedTuple):
    """Models per call, and threads of torch on the CPU."""

    models: int
    threads: int


LARGEST = 256  # beyond it a call is long enough that its overhead no longer shows
ADVANTAGE = 0.9  # a smaller chunk, or more threads, must be better by this factor
_THREADS = torch.get_num_threads()  # as many as the process may use
measured: dict[tuple[object, ...], Choice] = {}
widths: dict[tuple[object, ...], int] = {}


class Chunks:
    """Chunk sizes of one engine.

    Parameters
    ----------
    network : what tells this network, device and precision from others.
    chunk : a fixed size, or 0 to measure.
    memory : bound in bytes on what the models of a chunk hold, or 0 for a share of what is free.
    """

    def __init__(
        self, network: tuple[object, ...], device: torch.device, chunk: int, memory: int
    ) -> None:
        self._network, self._device, self._fixed = (*network, str(device), memory), device, chunk
        self._memory = memory or _free(device)

    def size(
        self, models: int, examples: int, held: Callable[[], int], call: Callable[[int], object]
    ) -> int:
        """Models per call for `models` models on batches of `examples`; torch's threads are set.

        Measured once for each doubling of `models`: methods that sample ask for another number
        in every round.

        Parameters
        ----------
        held : bytes that one model holds between forward and backward pass on such a batch.
        call : does the work for the first so many models.
        """
        if self._fixed:
            return self._fixed
        key = (*self._network, examples, models.bit_length())
        if key not in measured:
            bound = int(max(1, min(LARGEST, self._memory // max(held(), 1))))
            best = self._fastest(min(models, bound), call)
            measured[key] = best._replace(models=bound) if best.models == models else best
        if measured[key].threads != torch.get_num_threads():
            torch.set_num_threads(measured[key].threads)
        return min(models, measured[key].models)

    def width(self, examples: int, held: Callable[[], int]) -> int:
        """Examples per call of a batch of `examples`: all that one model alone may hold.

        Parameters
        ----------
        held : as in `size`.
        """
        key = (*self._network, examples)
        if key not in widths:
            widths[key] = max(1, min(examples, examples * self._memory // max(held(), 1)))
        return widths[key]

    def _fastest(self, most: int, call: Callable[[int], object]) -> Choice:
        sizes = sorted({most} | {2**k for k in range(most.bit_length()) if 2**k < most})
        threads = {1, _THREADS} if self._device.type == "cpu" else {_THREADS}
        choices = [Choice(size, t) for size in reversed(sizes) for t in sorted(threads)]
        if len(choices) == 1:
            return choices[0]
        best, best_time = choices[-1], float("inf")
        for choice in choices:
            torch.set_num_threads(choice.threads)
            try:
                call(choice.models)  # warm-up
            except torch.OutOfMemoryError:
                continue  # the bound counts what autograd keeps, not every kernel's scratch space
            elapsed = min(self._time(call, choice.models) for _ in range(2)) / choice.models
            if elapsed < best_time * ADVANTAGE:
                best, best_time = choice, elapsed
        return best

    def _time(self, call: Callable[[int], object], size: int) -> float:
        start = time.perf_counter()
        call(size)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter() - start

    def evaluation(self, models: int, longest: int, held: Callable[[], int]) -> tuple[int, int]:
        """(models per call, examples per call) for evaluation; `held` is for one example."""
        budget = max(1, self._memory // max(held(), 1))  # examples that fit, over all models
        examples = min(longest, 2048, budget)
        return max(1, min(models, budget // max(examples, 1))), max(1, examples)


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


def _free(device: torch.device) -> int:
    """A share of the free memory: other nodes may run on the same machine."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0]) // 2
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
