"""Errors of the relay, its transports and its configuration.

RuntimeError
└── RelayError          the run cannot continue; names the round, the stage and the peers
    ├── DesertedError   no node is left in a round
    └── RosterError     a peer is hosted by no node, or there is no quorum
ValueError
├── TopologyError       the configured graph does not exist
├── ScheduleError       the file of a schedule is missing or invalid
└── WireError           a record is not a request or a response; names the invalid key
"""

from __future__ import annotations


class RelayError(RuntimeError):
    """The run cannot continue.

    Attributes
    ----------
    round : int
        Round in which it stopped.
    stage : str
        Stage of that round.
    """

    def __init__(self, message: str, round_: int, stage: str) -> None:
        super().__init__(message)
        self.round = round_
        self.stage = stage

    def __reduce__(self) -> tuple[type[RelayError], tuple[str, int, str]]:
        return type(self), (str(self), self.round, self.stage)  # crosses processes


class DesertedError(RelayError):
    """No node is left in a round."""


class RosterError(RelayError):
    """A peer is hosted by no node, or there is no quorum."""


class TopologyError(ValueError):
    """The configured graph does not exist."""


class ScheduleError(ValueError):
    """The file of a schedule is missing or invalid."""


class WireError(ValueError):
    """A message does not decode to a request or a response."""
