"""Names that Flower does not document, each with what is done without it.

No other module has any (`tests/test_architecture.py`). They exist in all versions from 1.41.0 to
`NEWEST`; public are flwr.app, flwr.clientapp, flwr.serverapp and flwr.simulation.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

from flwr.app import Array, Message

if TYPE_CHECKING:  # nodes import this module too, and need no grid
    from flwr.serverapp import Grid

NEWEST = "1.42.0"
"""Newest version of flwr that was tested."""

try:  # for letters that stay in the SuperLink's store (`stored`); else the relay holds them
    from flwr.app.message import array as _arrays  # chunks of arrays, and their size
    from flwr.app.message.arraychunk import ArrayChunk as ArrayChunk
    from flwr.proto.message_pb2 import (  # the calls of `Store`
        ConfirmMessageReceivedRequest,
        PullObjectRequest,
    )
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest
    from flwr.supercore.inflatable.inflatable_object import (  # what a reply consists of
        InflatableObject as InflatableObject,
    )
    from flwr.supercore.inflatable.inflatable_object import (
        get_object_head_values_from_object_content as get_object_head_values_from_object_content,
    )
    from flwr.supercore.inflatable.inflatable_object import (
        iterate_object_tree as iterate_object_tree,
    )
    from flwr.supercore.inflatable.inflatable_utils import (
        inflate_object_from_contents as inflate_object_from_contents,
    )

    MISSING = ""
except ImportError as error:
    InflatableObject, MISSING = object, str(error)  # type: ignore[assignment, misc]


def is_simulation(grid: Grid) -> bool:
    """Return whether a ServerApp's grid is that of a simulation.

    Without the names of the classes: whether this process has loaded flwr.simulation.
    """
    names = {kind.__name__ for kind in type(grid).__mro__}
    return "InMemoryGrid" in names or ("HttpGrid" not in names and "flwr.simulation" in sys.modules)


def warning(reason: str) -> str:
    """Return the line that says what a version of flwr without the names costs."""
    return (
        f"flwr {metadata.version('flwr')}: {reason}: the relay holds whole letters in its memory, "
        f"however large a node makes them; the newest tested version is {NEWEST}"
    )


def chunk_size() -> int:
    """Return the maximum bytes of a chunk of an array."""
    return int(vars(_arrays)["FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE"])


def chunks_of(array: Array) -> Sequence[tuple[str, Any]]:
    """Return the names and chunks of an array if they were set or computed."""
    return vars(array).get("_chunks", ())  # type: ignore[no-any-return]


def set_chunks(array: Array, chunks: Sequence[tuple[str, Any]]) -> None:
    """Set the chunks as which an array is sent, whatever its data."""
    vars(array)["_chunks"] = chunks


def set_name(message: Message, name: str) -> None:
    """Set the ID of a message that was received."""
    vars(message.metadata)["_message_id"] = name


class Store:
    """Calls of a deployment's grid to the SuperLink's object store.

    AttributeError or ValueError: the grid or its requests are not as in the versions above.
    """

    def __init__(self, grid: Any) -> None:
        client = grid._runtime_client
        self._call = client.PullMessages, client.PullObject, client.ConfirmMessageReceived
        self._run = {"node": grid.node, "run_id": grid.run.run_id}
        PullAppMessagesRequest(message_ids=[])
        PullObjectRequest(**self._run, object_id="")
        ConfirmMessageReceivedRequest(**self._run, message_object_id="")

    def messages(self, requests: Collection[str]) -> Any:
        """Return the heads of the replies to some messages."""
        return self._call[0](PullAppMessagesRequest(message_ids=requests))

    def object(self, name: str) -> Any:
        """Return an object of a reply."""
        return self._call[1](PullObjectRequest(**self._run, object_id=name))

    def delete(self, name: str) -> None:
        """Delete the objects of a reply that no other message has."""
        self._call[2](ConfirmMessageReceivedRequest(**self._run, message_object_id=name))
