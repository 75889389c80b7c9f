"""A process that is killed at a chosen moment: between any two changes to the disk."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing import get_context
from typing import Any

_CHANGES = ("fsync", "replace", "unlink")
"""Functions of `os` by which a node changes what is on the disk, or makes sure of it."""


def killed_before(change: int, do: Callable[..., object], *arguments: object) -> bool:
    """Do something in a process of its own, killed by SIGKILL before its k-th change to the disk.

    The process is forked from one that never differentiated: torch's autograd does not run in a
    fork of a process that used it.

    Parameters
    ----------
    change : k, from 0.
    do, arguments : function and arguments, which must be picklable.

    Returns
    -------
    Whether it was killed; else it ended well, with fewer changes.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([do.__module__, "dp_accounting.rdp"])  # slow to import
    child = context.Process(target=_killed_before, args=(change, do, arguments))
    child.start()
    child.join()
    assert child.exitcode in (0, -signal.SIGKILL), "it failed"
    return child.exitcode != 0


def _killed_before(change: int, do: Callable[..., object], arguments: Sequence[object]) -> None:
    _count_down(change)
    do(*arguments)


def _count_down(change: int) -> None:
    left = [change]

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return function(*arguments, **keywords)

        return call

    for name in _CHANGES:
        setattr(os, name, watched(getattr(os, name)))
