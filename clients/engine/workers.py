"""Calls of different models side by side, a thread and its share of the cores for each.

torch divides a single call among cores, too, but two halves of a call have more to do with each
other than two models. Threads are enough, as torch lets go of the interpreter meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from queue import SimpleQueue
from typing import TypeVar

import torch

from coterie.clients.engine.chunks import THREADS

Worker = TypeVar("Worker")
Item = TypeVar("Item")


def share_out(
    work: Callable[[Worker, Item], None], workers: Sequence[Worker], items: Iterable[Item]
) -> None:
    """Have workers work off items, each one at a time; a single worker does so in this thread.

    Parameters
    ----------
    work : may write what no other item writes.

    Raises
    ------
    Exception : the first one of `work`, when nobody works any more.
    """
    if len(workers) == 1:
        for item in items:
            work(workers[0], item)
        return
    idle: SimpleQueue[Worker] = SimpleQueue()
    for worker in workers:
        idle.put(worker)
    graded = torch.is_grad_enabled()  # a thread's own, like the number of threads of a call

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
    """Have this thread use so many of torch's from now on."""
    torch.set_num_threads(threads)
    torch.get_num_threads()  # until it is asked, a thread takes what another one was told last
