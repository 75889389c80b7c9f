"""How orders reach nodes: Flower's grid in a run, function calls in a test."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from flwr.app import Message
from flwr.serverapp import Grid

from strategies.errors import RelayError, WireError
from strategies.flower.records import (
    decode_order,
    decode_reply,
    encode_fault,
    encode_order,
    encode_reply,
)
from strategies.protocol import Order, Reply

_PAUSE = 0.05  # Flower's own loop polls every 3 s
_SHARE = 0.05  # of the wait so far: asking a SuperLink 20 times a second costs it a fifth of a core
_LONGEST = 1.0
_GRACE = 60.0  # seconds: two of Flower's heartbeats
_ACTOR_DIED = 0  # flwr's ErrorCode.UNKNOWN; a simulation puts the dead actor back into its pool


class GridPost:
    """Carries orders over Flower's grid.

    Parameters
    ----------
    grid : of the ServerApp.
    timeout : seconds that a node has for each round of an order.
    """

    def __init__(self, grid: Grid, timeout: float) -> None:
        self._grid = grid
        self._timeout = timeout
        self._unanswered: dict[str, int] = {}  # message -> node, of messages past their deadline

    def nodes(self) -> list[int]:
        """Nodes that are connected and not busy with an order past its deadline.

        Flower loses state updates of a node that has two messages at once.
        """
        if self._unanswered:
            for message in self._grid.pull_messages(list(self._unanswered)):
                self._unanswered.pop(message.metadata.reply_to_message_id, None)
        return sorted(set(self._grid.get_node_ids()) - set(self._unanswered.values()))

    def exchange(self, orders: Mapping[int, Order]) -> dict[int, Reply | str]:
        """Deliver `orders` by node and wait for the replies, at most until the deadline.

        Raises
        ------
        RelayError
            A worker process of the simulation died.
        """
        if not orders:
            return {}
        seconds = self._timeout * max(order.last - order.round + 1 for order in orders.values())
        outcome: dict[int, Reply | str] = dict.fromkeys(orders, "cannot be reached")
        # A message that a node took with it when it died has no reply until it expires, and until
        # then the node, back again, gets no other.
        waiting = self._push(orders, ttl=2 * seconds + _GRACE)
        began = time.monotonic()
        while waiting and time.monotonic() < began + seconds:
            for message in self._grid.pull_messages(list(waiting)):
                node = waiting.pop(message.metadata.reply_to_message_id, None)
                if node is not None:
                    outcome[node] = _opened(message, orders[node])
            if waiting:
                waited = time.monotonic() - began
                time.sleep(min(max(_PAUSE, _SHARE * waited), _LONGEST, max(seconds - waited, 0)))
        outcome |= dict.fromkeys(waiting.values(), f"no reply within {seconds:g} s")
        self._unanswered |= waiting
        return outcome

    def _push(self, orders: Mapping[int, Order], ttl: float) -> dict[str, int]:
        """Send; message id -> node, of the messages that could be sent."""
        messages = [
            Message(encode_order(order), node, "train", ttl=ttl, group_id=str(order.round))
            for node, order in orders.items()
        ]
        sent = set(self._grid.push_messages(messages))
        ids = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
        return {message: node for message, node in ids.items() if message in sent}


def _opened(message: Message, order: Order) -> Reply | str:
    if message.has_error():
        code, reason = message.error.code, " ".join((message.error.reason or "").split())
        line = f"Flower error {code}: {reason}"
        if code == _ACTOR_DIED:
            where = f"round {order.round}, {order.stage}"
            raise RelayError(f"{where}: {line}", order.round, order.stage)
        return line
    try:
        return decode_reply(message.content, order)
    except WireError as error:
        return f"not a reply: {error}"


class Handler(Protocol):
    """What a post delivers to; see `app.node.node.Node`."""

    def handle(self, order: Order) -> Reply:
        """Do what the order says."""
        ...


class InlinePost:
    """Calls nodes of this process; node k is the k-th. Every message takes the wire's encoding."""

    def __init__(self, nodes: Sequence[Handler]) -> None:
        self._nodes = nodes

    def nodes(self) -> list[int]:
        """All of them."""
        return list(range(len(self._nodes)))

    def exchange(self, orders: Mapping[int, Order]) -> dict[int, Reply | str]:
        """Deliver `orders` one after the other."""
        return {node: self._call(self._nodes[node], order) for node, order in orders.items()}

    def _call(self, node: Handler, order: Order) -> Reply | str:
        received = decode_order(encode_order(order))
        try:
            record = encode_reply(node.handle(received), received)
        except Exception as error:  # as app.client does
            record = encode_fault(f"{type(error).__name__}: {error}")
        return decode_reply(record, order)
