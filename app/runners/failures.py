"""Errors of a run: one line for people, the traceback in a file of the run directory."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import current_thread, main_thread

from coterie.app.runs import progress
from coterie.app.runs.progress import ERROR_LOG
from coterie.errors import Error, PartError, RunError, is_full_disk, is_users, short_path


@contextmanager
def reported(run_dir: Path) -> Iterator[None]:
    """Convert unexpected errors of a block to PartError; raise others unchanged.

    Unexpected: neither of `coterie.errors` nor of the system. The traceback of such an error, and
    of one with a cause, is written to error.log, which a note of the error names. A full disk is a
    RunError, and the run's status "failed", so that it can be resumed.
    """
    log = run_dir / ERROR_LOG
    log.unlink(missing_ok=True)
    try:
        yield
    except Exception as error:
        if is_full_disk(error):
            where = short_path(str(run_dir))
            line = f"the disk is full: free space, then continue with: coterie resume {where}"
            progress.mark(run_dir, "failed", line)
            raise RunError(line) from error
        if not isinstance(error, Error) or error.__cause__ is not None:
            with suppress(OSError):
                log.write_text(traceback.format_exc(), encoding="utf-8")
        is_plain = isinstance(error, Error) or (isinstance(error, OSError) and not is_users(error))
        report = error if is_plain else PartError.of(error)
        if log.exists():
            report.add_note(f"traceback: {log}")
        if is_plain:
            raise
        raise report from error


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
