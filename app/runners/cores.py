"""The processor cores that this process may use."""

from __future__ import annotations

import os


def count() -> int:
    """Count them; all of the machine's where the system does not say which are ours."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
