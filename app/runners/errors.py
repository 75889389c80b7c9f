"""Errors of runs that were started; `coterie.errors` shows the whole tree."""

from __future__ import annotations

from coterie.errors import RunError


class FlowerError(RunError):
    """Flower could not start, or rejected the run."""


class SweepError(RunError):
    """One of several runs failed."""


class Interrupted(KeyboardInterrupt):
    """The user interrupted a command; the message is the command that continues it."""
