"""Stand-in for macOS on Linux: `python macos.py COMMANDS.json` runs commands of `coterie` on it.

Python's Linux-only functions and constants are removed, our code finds no /proc and no shared
object of Linux, and `sys.platform` is "darwin" once the libraries are imported: what they do on
macOS is theirs.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).parents[2]
OURS = tuple(
    f"{ROOT / name}{os.sep}" for name in ("app", "clients", "coterie", "datasets", "strategies")
)
LINUX_ONLY: dict[Any, tuple[str, ...]] = {
    os: (
        "sched_getaffinity", "sched_setaffinity", "sched_getparam", "sched_setparam",
        "sched_getscheduler", "sched_setscheduler", "sched_rr_get_interval", "posix_fadvise",
        "posix_fallocate", "pidfd_open", "memfd_create", "copy_file_range", "splice", "eventfd",
        "eventfd_read", "eventfd_write", "getrandom", "fdatasync", "pipe2", "setns", "unshare",
        "getresuid", "getresgid", "setresuid", "setresgid", "getxattr", "setxattr", "listxattr",
        "removexattr", "waitid", "accept4", "O_TMPFILE", "O_DIRECT", "O_PATH", "O_NOATIME",
        "O_LARGEFILE", "O_RSYNC", "POSIX_FADV_DONTNEED", "RWF_APPEND", "P_PIDFD",
    ),
    select: (
        "epoll", *(name for name in dir(select) if name.startswith("EPOLL")),
    ),
    signal: ("sigtimedwait", "sigwaitinfo", "pidfd_send_signal", "SIGRTMIN", "SIGRTMAX", "SIGPWR",
             "SIGSTKFLT", "SIGPOLL", "SIGCLD"),
    fcntl: tuple(
        name for name in dir(fcntl) if name.startswith(
            ("F_OFD", "F_ADD_SEALS", "F_GET_SEALS", "F_SEAL", "F_NOTIFY", "F_SETPIPE", "F_GETPIPE",
             "F_SETSIG", "F_GETSIG", "F_SETLEASE", "F_GETLEASE", "DN_", "I_")
        )
    ),
}  # fmt: skip
"""Module -> what it has on Linux and not on macOS (Python's documentation, "Availability")."""
LINUX_PATHS = ("/proc/", "/sys/", "/dev/shm/")


def become_macos() -> None:
    """Change this process; libraries are already imported."""
    for module, names in LINUX_ONLY.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    sys.addaudithook(_refuse)
    sys.platform = "darwin"


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], str | bytes):
        path = os.fsdecode(arguments[0])
        if f"{path}/".startswith(LINUX_PATHS) and _is_ours():
            raise FileNotFoundError(2, "No such file or directory", path)
    if event == "ctypes.dlopen" and _is_ours():
        raise OSError(f"{arguments[0]}: a shared object of Linux")


def _is_ours() -> bool:
    """Return whether the innermost caller outside the standard library is our code."""
    frame: FrameType | None = sys._getframe(2)
    library = os.path.dirname(os.__file__)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(OURS):
            return True
        if not name.startswith((library, "<frozen")) or "site-packages" in name:
            return False
        frame = frame.f_back
    return False


def main() -> None:
    """Run each command in this process, and print those that fail."""
    import jinja2  # noqa: F401
    import matplotlib.figure  # noqa: F401
    import pandas  # noqa: F401
    import pyarrow.csv
    import pyarrow.parquet  # noqa: F401
    import safetensors.torch  # noqa: F401
    import scipy.special  # noqa: F401
    import sklearn.datasets  # noqa: F401
    import torch

    _ = torch
    become_macos()
    from coterie.app.cli.main import main as run
    from coterie.app.runners import machine

    machine.cores()  # asked by a comparison that may start workers, which these do not
    for command in json.loads(Path(sys.argv[1]).read_text("utf-8")):
        if code := run(command):
            sys.exit(f"{command} ended with {code}")


if __name__ == "__main__":
    main()
