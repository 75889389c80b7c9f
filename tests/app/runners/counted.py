"""A data set that counts what processes do with nodes, in the file COTERIE_COUNTS.

The first process that continues with a state dies instead if there is a file `dies` beside it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

from coterie.datasets.source import Source
from tests import plugins


def source() -> Source:
    """Return the data; nodes that this process makes from now on are counted."""
    from coterie.app.node.storage.checkpoints import CheckpointStore  # imports torch

    for name, what in (("__init__", "node"), ("_read", "read"), ("recall", "recall")):
        method = getattr(CheckpointStore, name)
        if not hasattr(method, "__wrapped__"):
            setattr(CheckpointStore, name, _noted(method, what))
    return plugins.source()


def _noted(method: Callable[..., Any], what: str) -> Callable[..., Any]:
    @wraps(method)
    def noted(*args: Any, **kwargs: Any) -> Any:
        with Path(os.environ["COTERIE_COUNTS"]).open("a", encoding="utf-8") as file:
            file.write(f"{what} {os.getpid()}\n")
        if what == "recall":
            with suppress(FileNotFoundError):
                Path(os.environ["COTERIE_COUNTS"]).with_name("dies").unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return method(*args, **kwargs)

    return noted
