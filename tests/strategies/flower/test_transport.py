"""Messages to and from fake grids; transports/ tests real ones."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import cast

import pytest
from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from coterie.strategies.flower.transport import FlowerTransport
from coterie.strategies.protocol import Request


class FullGrid:
    """Grid that records messages and accepts none."""

    def __init__(self) -> None:
        self.offered: list[Message] = []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        self.offered += messages
        return []


class Answering(FullGrid):
    """Grid that returns the same reply for every message."""

    def __init__(self, reply: RecordDict | Error) -> None:
        super().__init__()
        self.reply = reply

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        self.offered += messages
        return [message.metadata.message_id for message in self.offered]

    def pull_messages(self, ids: list[str]) -> list[Message]:
        return [Message(self.reply, reply_to=message) for message in self.offered]


@pytest.fixture(autouse=True)
def _somebody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "flwr.simulation", raising=False)  # of another test
    for name in ("_run_id", "_task_id", "_node_id"):  # a message names its sender
        monkeypatch.setattr(TaskIdentity, name, 1)


def test_a_message_lives_as_long_as_its_rounds_may_take_and_flower_to_notice() -> None:
    """Twice 5 s per round of the longest request, plus a minute."""
    grid = FullGrid()
    transport = FlowerTransport(cast(Grid, grid), timeout=5.0)
    requests = {7: Request("local-rounds", 3, 12), 8: Request("update", 3, 3)}
    assert transport.exchange(requests) == dict.fromkeys(requests, "cannot be reached")
    assert [message.metadata.dst_node_id for message in grid.offered] == [7, 8]
    assert [message.metadata.ttl for message in grid.offered] == [160.0, 160.0]


def test_nothing_that_a_node_sends_is_worse_than_its_own_fault() -> None:
    """Not even the error code of a simulation for a dead worker process."""
    for reply, line in (
        (Error(0, "dead\n actor"), "Flower error 0: dead actor"),
        (Error(2, None), "Flower error 2: "),
        (RecordDict(), "not a response: no response"),
        (Undecodable(), "not a response: OverflowError: too large"),
    ):
        transport = FlowerTransport(cast(Grid, Answering(reply)), timeout=5.0)
        assert transport.exchange({7: Request("update", 1, 1)}) == {7: line}


@pytest.mark.parametrize(
    ("why", "meant"),
    [
        (
            "OSError: [Errno 30] Read-only file system",
            "another version of Coterie than the operato",
        ),
        (
            "PermissionError: [Errno 13] Permission denied",
            "another version of Coterie than the ope",
        ),
        ("OSError: [Errno 28] No space left on device", "the disk of this machine is full ("),
    ],
)
def test_an_app_that_a_machine_cannot_install_is_explained(why: str, meant: str) -> None:
    reason = f"<class {why}: '/opt/flwr/apps/.staging'>"
    transport = FlowerTransport(cast(Grid, Answering(Error(2, reason))), timeout=5.0)
    (line,) = transport.exchange({7: Request("start", 0, 0)}).values()
    assert isinstance(line, str)
    assert line.startswith(meant)
    assert line.endswith(f"(Flower error 2: {reason})")


class Undecodable(RecordDict):
    """Message whose content Flower fails to decode."""

    def __contains__(self, key: object) -> bool:
        raise OverflowError("too large")
