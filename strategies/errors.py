"""Errors between relay and nodes; `coterie.errors` draws the whole tree."""

from __future__ import annotations

from coterie.errors import Error, RunError


class RelayError(RunError):
    """The run cannot continue after `stage` of `round`."""

    def __init__(self, message: str, round_: int, stage: str) -> None:
        super().__init__(message)
        self.round = round_
        self.stage = stage

    def __reduce__(self) -> tuple[type[RelayError], tuple[str, int, str]]:
        return type(self), (str(self), self.round, self.stage)  # crosses processes


class DesertedError(RelayError):
    """No node is left in a round."""


class TopologyError(Error, ValueError):
    """The configured graph does not exist."""


class ScheduleError(Error, ValueError):
    """The file of a schedule or a clock is missing or invalid."""


class StateError(Error):
    """A request builds on a state that this node does not have; names peers, round or file."""


class WireError(Error, ValueError):
    """A message does not decode to a request or a response."""
