"""A process that is killed at a chosen moment: between any two changes to the disk."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

_CHANGES = ("fsync", "replace", "unlink")
"""Functions of `os` by which a node changes what is on the disk, or makes sure of it."""


def killed_before(change: int, do: Callable[[], object]) -> bool:
    """Do something in a process of its own, killed by SIGKILL before its k-th change to the disk.

    Parameters
    ----------
    change : k, from 0.

    Returns
    -------
    Whether it was killed; else it ended well, with fewer changes.
    """
    child = os.fork()
    if not child:
        try:
            _count_down(change)
            do()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), "it failed"
    return status == signal.SIGKILL


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
