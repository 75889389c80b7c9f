"""Processor cores that this process may use."""

from __future__ import annotations

import os


def count() -> int:
    """Return the number of cores of this process, or of the machine if the system cannot tell."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
