"""Ctrl-C at a time of our choice: in the midst of their work, PyTorch aborts and Ray loses it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread


@contextmanager
def deferred(tell: Callable[[], None] = lambda: None) -> Iterator[Callable[[], None]]:
    """Delay Ctrl-C to the next call of the yielded function, or to the end of the block.

    `tell` is called at once. A second Ctrl-C is not delayed. Nothing changes outside the main
    thread, nor where somebody else handles Ctrl-C.
    """
    pressed = False

    def note(*_: object) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True
        tell()

    def check() -> None:
        if pressed:
            raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler or current_thread() is not main_thread():
        yield check
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
    check()
