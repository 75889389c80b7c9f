"""A process that is killed at a chosen moment: between any two changes to the disk."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from typing import Any

_PRELOADED = ["coterie.app.institution.process.service", "tests.attacks.consortium"]
_CHANGES = ("fsync", "replace", "unlink")
"""Functions of `os` by which a node changes what is on the disk, or makes sure of it."""


def killed_before(change: int, do: Callable[..., object], *arguments: object) -> bool:
    """Do something in a process of its own, killed by SIGKILL before its k-th change to the disk.

    The process is forked from one that has imported the node and has computed nothing: autograd
    does not work in a fork of a process that has used it.

    Parameters
    ----------
    change : k, from 0.
    do, arguments : function and arguments that can be pickled.

    Returns
    -------
    True if it was killed; False if it ended well, with fewer changes.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    process = context.Process(target=_attempt, args=(change, do, arguments))
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL), "it failed"
    return process.exitcode == -signal.SIGKILL


def _attempt(change: int, do: Callable[..., object], arguments: tuple[object, ...]) -> None:
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
