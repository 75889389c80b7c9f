"""What can go wrong with a run that was started.

Exception
└── RunError            the run did not reach its end
    ├── FlowerError     Flower could not start or did not take the run
    └── SweepError      a run of several failed
"""

from __future__ import annotations


class RunError(Exception):
    """The run did not reach its end; the message is one line."""


class FlowerError(RunError):
    """Flower could not start, or did not take the run."""


class SweepError(RunError):
    """A run of several failed."""
