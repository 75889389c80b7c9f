"""Messages on a grid that takes none; what a real grid does with them is in transports/."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import pytest
from flwr.app import Message
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from strategies.flower.transport import FlowerTransport
from strategies.protocol import Request


class FullGrid:
    """Keeps what it is given and accepts nothing."""

    def __init__(self) -> None:
        self.offered: list[Message] = []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        self.offered += messages
        return []


def test_a_message_lives_as_long_as_its_rounds_may_take_and_flower_to_notice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Twice 5 s a round, of the longest order under way, and a minute."""
    for name in ("_run_id", "_task_id", "_node_id"):  # a message says whose it is
        monkeypatch.setattr(TaskIdentity, name, 1)
    grid = FullGrid()
    transport = FlowerTransport(cast(Grid, grid), timeout=5.0)
    requests = {7: Request("local-rounds", 3, 12), 8: Request("update", 3, 3)}
    assert transport.exchange(requests) == dict.fromkeys(requests, "cannot be reached")
    assert [message.metadata.dst_node_id for message in grid.offered] == [7, 8]
    assert [message.metadata.ttl for message in grid.offered] == [160.0, 160.0]
