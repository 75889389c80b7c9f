"""What can go wrong between the relay and the nodes.

RuntimeError
└── RelayError          the run cannot go on; names the round, the stage and the peers
    ├── DesertedError   no node is left in a round
    └── RosterError     some peer is hosted by no node, or there is no quorum
ValueError
├── TopologyError       the user asked for a graph that does not exist
├── ScheduleError       the file of a schedule is missing or wrong
└── WireError           a message that is not one of ours; names the key that is wrong
"""

from __future__ import annotations


class RelayError(RuntimeError):
    """The run cannot go on.

    Attributes
    ----------
    round, stage : where it stopped.
    """

    def __init__(self, message: str, round_: int, stage: str) -> None:
        super().__init__(message)
        self.round = round_
        self.stage = stage

    def __reduce__(self) -> tuple[type[RelayError], tuple[str, int, str]]:
        return type(self), (str(self), self.round, self.stage)  # it may come from another process


class DesertedError(RelayError):
    """No node is left in a round."""


class RosterError(RelayError):
    """Some peer is hosted by no node, or there is no quorum."""


class TopologyError(ValueError):
    """The graph of the configuration does not exist."""


class ScheduleError(ValueError):
    """The file of a schedule is missing or wrong."""


class WireError(ValueError):
    """A message does not decode to a request or a response."""
