"""Errors of runs that were started; `coterie.errors` draws the whole tree."""

from __future__ import annotations

from coterie.errors import RunError


class FlowerError(RunError):
    """Flower could not start, or did not take the run."""


class SweepError(RunError):
    """A run of several failed."""


class Interrupted(KeyboardInterrupt):
    """The user interrupted a command; the message is what continues it."""
