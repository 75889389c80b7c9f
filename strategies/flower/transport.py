"""Transport of requests and responses as messages on Flower's grid."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Mapping
from importlib.metadata import version

from flwr.app import Message
from flwr.serverapp import Grid

from coterie.errors import PartError
from coterie.strategies.errors import RelayError, WireError
from coterie.strategies.flower import private, stored
from coterie.strategies.flower.records import decode_response, encode_request, is_final_fault
from coterie.strategies.protocol import Request, Response

_MIN_PAUSE = 0.05  # seconds between polls; Flower's own loop takes 3
_SHARE = 0.05  # pause as a share of the wait so far: 20 polls a second cost 1/5 core of a SuperLink
_MAX_PAUSE = 1.0
_GRACE = 60.0  # seconds: two of Flower's heartbeats
_ACTOR_DIED = 0  # flwr's ErrorCode.UNKNOWN; a simulation puts the dead actor back into its pool
_MEANT = {
    re.compile(r"(Read-only file system|Permission denied)\W+[^'\"]*/apps\b"): (
        "another version of Coterie than the operator's is installed here: install the same version"
        " on all machines"
    ),
    re.compile("No space left on device|Disk quota exceeded"): "the disk of this machine is full",
}
"""Errors of the processes in which Flower installs an app, and their meaning."""

_log = logging.getLogger("coterie.relay")


class FlowerTransport:
    """Transport over Flower's grid; a node has `timeout` seconds per round of a request."""

    def __init__(self, grid: Grid, timeout: float) -> None:
        self._grid = grid
        self._timeout = timeout
        self._simulated = private.is_simulation(grid)
        self._unanswered: dict[str, int] = {}  # message -> node, of messages past their deadline
        self._replies = Replies(grid) if self._simulated else _stored(grid)

    def nodes(self) -> list[int]:
        """Return the nodes that are connected and not busy with a request past its deadline."""
        # Flower loses state updates of a node that has two messages at once.
        if self._unanswered:
            for message in self._replies.discard(self._unanswered):
                self._unanswered.pop(message, None)
        return sorted(set(self._grid.get_node_ids()) - set(self._unanswered.values()))

    def exchange(self, requests: Mapping[int, Request]) -> dict[int, Response | str]:
        """Deliver `requests` by node and wait for the responses, at most until the deadline."""
        # RelayError: a worker process of the simulation died. PartError: a user's part failed on a
        # node of the simulation; it would fail again.
        if not requests:
            return {}
        seconds = self._timeout * max(
            request.last - request.round + 1 for request in requests.values()
        )
        outcome: dict[int, Response | str] = dict.fromkeys(requests, "cannot be reached")
        # If a node dies with a message, the message stays unanswered until it expires, and the
        # restarted node gets no other until then.
        waiting = self._push(requests, ttl=2 * seconds + _GRACE)
        began = time.monotonic()
        while waiting and time.monotonic() < began + seconds:
            for message, reply in self._replies.pull(waiting).items():
                if (node := waiting.pop(message, None)) is not None:
                    outcome[node] = _decoded(reply, requests[node], self._simulated)
            if waiting:
                waited = time.monotonic() - began
                pause = min(max(_MIN_PAUSE, _SHARE * waited), _MAX_PAUSE)
                time.sleep(min(pause, max(seconds - waited, 0)))
        outcome |= dict.fromkeys(waiting.values(), f"no response within {seconds:g} s")
        self._unanswered |= waiting
        return outcome

    def _push(self, requests: Mapping[int, Request], ttl: float) -> dict[str, int]:
        messages = [
            Message(encode_request(request), node, "train", ttl=ttl, group_id=str(request.round))
            for node, request in requests.items()
        ]
        sent = set(self._grid.push_messages(messages))
        ids = {message.metadata.message_id: message.metadata.dst_node_id for message in messages}
        return {message: node for message, node in ids.items() if message in sent}


class Replies:
    """Receiver of replies as whole messages, by Flower's public calls; see `StoredReplies`."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def pull(self, requests: Collection[str]) -> dict[str, Message | str]:
        messages = self._grid.pull_messages(list(requests))
        return {message.metadata.reply_to_message_id: message for message in messages}

    def discard(self, requests: Collection[str]) -> Collection[str]:
        """Drop the replies to some requests, and return these requests."""
        return self.pull(requests).keys()


def _stored(grid: Grid) -> stored.StoredReplies | Replies:
    """Return a receiver that leaves letters in the store, if this version of Flower allows it."""
    try:
        if not (why := stored.obstacle()):
            return stored.StoredReplies(grid)
    except (AttributeError, ValueError) as error:
        why = str(error)
    _log.warning(
        "flwr %s: %s: the relay holds whole letters in its memory, however large a node makes "
        "them; the newest tested version is %s", version("flwr"), why, private.NEWEST
    )  # fmt: skip
    return Replies(grid)


def in_words(reason: str) -> str:
    """Explain an error with which Flower could not install the app of a run on a machine."""
    meant = next((words for pattern, words in _MEANT.items() if pattern.search(reason)), "")
    return f"{meant} ({reason})" if meant else reason


def _decoded(message: Message | str, request: Request, simulated: bool) -> Response | str:
    if isinstance(message, str):
        return message
    if message.has_error():
        code, reason = message.error.code, " ".join((message.error.reason or "").split())
        line = in_words(f"Flower error {code}: {reason}")
        if code == _ACTOR_DIED and simulated:
            where = f"round {request.round}, {request.stage}"
            raise RelayError(f"{where}: {line}", request.round, request.stage)
        return line
    try:
        response = decode_response(message.content, request)
    except WireError as error:
        return f"not a response: {error}"
    except Exception as error:  # Flower's decoding of the node's record
        return f"not a response: {type(error).__name__}: {error}"
    if isinstance(response, str) and simulated and is_final_fault(message.content):
        raise PartError(response)  # a deployed node cannot end the run
    return response
