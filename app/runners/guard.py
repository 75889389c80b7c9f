"""Clean up after a run, however it ends: `guard.py DIRECTORY...` in a separate process.

It waits for the end of its standard input, which comes when its parent closes the pipe or ends,
even by SIGKILL. Then it kills every process whose working directory is in one of the directories,
whichever process started it, and removes the directories.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


def main(directories: Sequence[Path]) -> None:
    """Wait, then clean up."""
    sys.stdin.buffer.read()
    # Important files are written atomically, so no process needs a grace period.
    while processes := [pid for directory in directories for pid in working_in(directory)]:
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


def working_in(directory: Path) -> list[int]:
    """Return the processes whose working directory is `directory` or below."""
    pids = []
    for link in Path("/proc").glob("[0-9]*/cwd"):
        with suppress(OSError):  # gone in the meantime, or another user's
            if link.readlink().is_relative_to(directory):
                pids.append(int(link.parent.name))
    return pids


if __name__ == "__main__":
    main([Path(directory) for directory in sys.argv[1:]])
