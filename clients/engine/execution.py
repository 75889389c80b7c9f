"""Execution of calls: models and examples per call, parallel calls, threads per call.

Stacking saves overhead, but every stacked model holds its own activations, and calls that exceed
the caches of a CPU are slower. On a GPU a call takes as many models as memory allows. Calls of
single models run in parallel on the cores of a CPU, since two models share less than two halves of
a call. The rules use only shapes and the machine, never a clock, so a repeated run on the same
machine gives the same bits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import cache, cached_property
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from coterie.clients.engine import tuning
from coterie.clients.engine.backends.backend import Backend
from coterie.clients.engine.data import Batch, Data
from coterie.clients.engine.network import Network
from coterie.clients.engine.tasks import Task
from coterie.clients.letters import Ints, Part

THREADS = torch.get_num_threads()
"""Threads that the process may use."""
_PROBE = 2
"""Number of examples on which activations are measured (linear in it; batch norm needs two)."""
Worker = TypeVar("Worker")
Item = TypeVar("Item")


class Plan(NamedTuple):
    """Execution plan of the calls of some models."""

    models: int  # number of models per call
    workers: int  # number of parallel calls
    threads: int  # number of torch threads while the plan runs; workers share them
    examples: int = 0  # number of examples per call, in evaluation


class Execution:
    """Planner and runner of the calls of a backend; parameters as of `Engine`."""

    def __init__(
        self, backend: Backend, device: torch.device, *, chunk: int, memory: int, tf32: bool
    ) -> None:
        self.backend, self._tf32 = backend, tf32
        on_cpu = device.type == "cpu"
        self._fixed = chunk if backend.stacks else 1
        self._memory = memory or _share(device)
        self._budget = min(tuning.CHUNK_BYTES, self._memory) if on_cpu else self._memory
        self._largest = tuning.CHUNK_MODELS if on_cpu else self._memory
        # A network that draws from torch's generator cannot share it with another call.
        self._side_by_side = on_cpu and not backend.network.alone
        self._backends = [backend]

    def training(self, models: int, held: int, products: int = 0) -> Plan:
        """Plan calls of models that each hold `held` bytes between forward and backward pass."""
        # `products` is the minimum number of multiplications of each parameter in a forward pass.
        size = self._fixed or max(1, min(self._largest, self._budget // max(held, 1)))
        return self._plan(models, size, held, products)

    def width(self, examples: int, held: int) -> int:
        """Return examples per call, for a minibatch on which one model holds `held` bytes."""
        return max(1, min(examples, examples * self._memory // max(held, 1)))

    def evaluation(self, models: int, longest: int, held: int) -> Plan:
        """Plan calls without backward pass, over up to `longest` examples of `held` bytes each."""
        room = min(4 * self._budget, self._memory)
        budget = max(1, room // max(held, 1))
        examples = max(1, min(longest, tuning.EVALUATED_EXAMPLES, budget))
        size = self._fixed or max(1, min(models, budget // examples))
        return self._plan(models, size, examples * held, examples=examples)

    def _plan(
        self, models: int, size: int, held: int, products: int = 0, examples: int = 0
    ) -> Plan:
        held, workers = max(held, 1), 1
        if self._side_by_side and size == 1:
            fitting = min(models * held // tuning.SINGLE_BYTES, self._memory // held)
            workers = max(1, min(THREADS, models, fitting))
        least = tuning.SHARED_BYTES if self.backend.stacks else tuning.SINGLE_BYTES
        work = min(models, size) * max(held, products)
        threads = THREADS if workers > 1 or work >= least else 1
        return Plan(size, workers, threads, examples)

    def run(self, plan: Plan, work: Callable[[Backend, Item], None], items: Iterable[Item]) -> None:
        """Call `work` with a backend and each item; restore the settings of the process."""
        with self.settings(plan.threads):
            share_out(work, self.backends(plan.workers), items)

    def backends(self, count: int) -> Sequence[Backend]:
        """Return the backend and up to `count` - 1 twins, fewer if its module has no copy."""
        while len(self._backends) < count:
            if (twin := self.backend.twin()) is None:
                break
            self._backends.append(twin)
        return self._backends[:count]

    @contextmanager
    def settings(self, threads: int) -> Iterator[None]:
        """Set torch's threads and TF32 flags, and restore them."""
        before = torch.get_num_threads()
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        flags = matmul.allow_tf32, cudnn.allow_tf32
        torch.set_num_threads(threads)
        # Left alone, torch rounds in convolutions, but not in matrix products.
        matmul.allow_tf32 = cudnn.allow_tf32 = self._tf32
        try:
            yield
        finally:
            torch.set_num_threads(before)
            matmul.allow_tf32, cudnn.allow_tf32 = flags


def working(counts_e: Ints) -> Part:
    """Select the models that have examples in a minibatch."""
    return slice(None) if (counts_e > 0).all() else np.flatnonzero(counts_e)


def chunked(counts_e: Ints, equal: bool, size: int = 0) -> Sequence[Part]:
    """Split the models that have examples into calls of `size`, 0 for one call."""
    # `equal`: the models of a call must have the same number of examples, because batch norm needs
    # whole batches, without padding.
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


class Footprint:
    """Memory that one model takes in a backward pass, measured with two examples of the data.

    `materializes`: gradients are stored per example.
    """

    def __init__(self, network: Network, task: Task, data: Data, *, materializes: bool) -> None:
        self._network, self._task, self._data = network, task, data
        self._materializes = materializes

    def holds(self, examples: int) -> int:
        """Return the bytes that one model holds for a backward pass over `examples` examples."""
        row = self._network.d * self._data.dtype.itemsize
        single = 3 * row * examples if self._materializes else 0
        # Besides activations: copies of the model, its gradient and buffers of the backward pass.
        return self.activations * examples + 6 * row + single

    @cached_property
    def activations(self) -> int:
        """Number of bytes that a forward pass keeps per example."""
        device, module = self._data.device, self._network.module
        zeros = torch.zeros(1, dtype=torch.int64, device=device)
        weights = torch.zeros(1, _PROBE, dtype=self._data.dtype, device=device)
        batch = Batch(zeros, zeros.expand(1, _PROBE), weights, np.array([_PROBE]), zeros, None)
        inputs, targets = self._data.minibatch(batch)
        x = weights.new_zeros(1, self._network.d, requires_grad=True)

        def forward() -> Tensor:
            tensors = {**self._network.buffers(1), **self._network.named(x)}
            single = {name: value[0] for name, value in tensors.items()}
            single |= self._network.no_keys(inputs)
            outputs, _ = self._network.run(module.train(), single, inputs[0], ())
            return self._task.losses(outputs[None], targets)

        # Parameters do not grow with the examples.
        return held_bytes(forward, shared=[x, *module.parameters()]) // _PROBE


def held_bytes(forward: Callable[[], Tensor], shared: Iterable[Tensor] = ()) -> int:
    """Return the bytes that autograd keeps for `forward`, each storage once, none `shared`."""
    storages: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()  # an output that its own node saves would never be freed

    hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
    with torch.enable_grad(), hooks:  # the caller may evaluate
        kept = forward()  # hold the result: a freed storage could be counted under a reused address
        del kept
    for tensor in shared:
        storages.pop(tensor.untyped_storage().data_ptr(), None)
    return sum(storages.values())


def share_out(
    work: Callable[[Worker, Item], None], workers: Sequence[Worker], items: Iterable[Item]
) -> None:
    """Call `work` with each item and an idle worker; a single worker runs in this thread."""
    # `work` may write only data that no other item writes. The first exception of `work` is raised
    # after all threads have stopped.
    if len(workers) == 1:
        for item in items:
            work(workers[0], item)
        return
    idle: SimpleQueue[Worker] = SimpleQueue()
    for worker in workers:
        idle.put(worker)
    graded = torch.is_grad_enabled()  # belongs to a thread, like the number of threads of a call

    def one(item: Item) -> None:
        worker = idle.get()
        try:
            with torch.set_grad_enabled(graded):
                work(worker, item)
        finally:
            idle.put(worker)

    pool = _pool(len(workers), max(1, THREADS // len(workers)))
    under_way = [pool.submit(one, item) for item in items]
    try:
        for each in under_way:
            each.result()
    finally:
        for each in under_way:
            each.cancel()
        wait(under_way)


@cache
def _pool(workers: int, threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, "models", _compute_with, (threads,))


def _compute_with(threads: int) -> None:
    """Set the number of torch's threads for this thread."""
    torch.set_num_threads(threads)
    torch.get_num_threads()  # torch sets the count of a thread lazily; reading it pins the value


def _share(device: torch.device) -> int:
    """Return a share of the total memory; free memory is shared with other nodes."""
    if device.type == "cpu":
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        total = int(torch.cuda.mem_get_info(device)[1])
    return total // tuning.MEMORY_SHARE.on(device)
