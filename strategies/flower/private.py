"""Names that Flower does not document; no other module has any (`tests/test_architecture.py`).

They exist in all versions from 1.41.0 to `NEWEST`; public are flwr.app, flwr.clientapp,
flwr.serverapp and flwr.simulation. Without the imports, attributes and calls below, letters do not
stay in the SuperLink's store (`stored`): the relay reads whole messages by Flower's public calls.
A node without them sends letters as Flower cuts them; a relay with them refuses equal parts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # nodes import this module too, and need no grid
    from flwr.serverapp import Grid

NEWEST = "1.42.0"
"""Newest version of flwr that was tested."""
CHUNKS = "_chunks"
"""Attribute of an `Array` in which Flower caches its chunks."""
MESSAGE_ID = "_message_id"
"""Attribute of the metadata of a message that was received."""
CHUNK_SIZE = "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE"
"""Name in `arrays` of the maximum bytes of a chunk."""

try:
    from flwr.app.message import array, arraychunk
    from flwr.proto import message_pb2, runtime_pb2
    from flwr.supercore.inflatable import inflatable_object, inflatable_utils

    arrays, ArrayChunk = array, arraychunk.ArrayChunk
    InflatableObject = inflatable_object.InflatableObject
    head_of = inflatable_object.get_object_head_values_from_object_content
    objects_of = inflatable_object.iterate_object_tree
    inflate = inflatable_utils.inflate_object_from_contents
    MISSING = ""
except (ImportError, AttributeError) as error:
    InflatableObject, MISSING = object, str(error)  # type: ignore[assignment]


def is_simulation(grid: Grid) -> bool:
    """Return whether a ServerApp's grid is that of a simulation."""
    # A class with another name is one if this process has loaded flwr.simulation.
    names = {kind.__name__ for kind in type(grid).__mro__}
    return "InMemoryGrid" in names or ("HttpGrid" not in names and "flwr.simulation" in sys.modules)


def calls(grid: Any) -> list[Callable[[Any], Any]]:
    """Return calls to the store: heads of replies to IDs, an object of a reply, delete a reply."""
    # AttributeError: the grid of a deployment or its requests have changed.
    client, run = grid._runtime_client, {"node": grid.node, "run_id": grid.run.run_id}

    def call(send: Any, request: Any, field: str, more: dict[str, Any]) -> Callable[[Any], Any]:
        getattr(request(), field)
        return lambda value: send(request(**more, **{field: value}))

    object_, done = message_pb2.PullObjectRequest, message_pb2.ConfirmMessageReceivedRequest
    return [
        call(client.PullMessages, runtime_pb2.PullAppMessagesRequest, "message_ids", {}),
        call(client.PullObject, object_, "object_id", run),
        call(client.ConfirmMessageReceived, done, "message_object_id", run),
    ]


def change_waits(sleep: Callable[[float], None], hold: Callable[..., Any]) -> None:
    """Let this process's SuperNode wait by `sleep`; `hold` wraps its answer to an executor."""
    from flwr.supernode import start_client_internal as loop
    from flwr.supernode.servicer.runtime import runtime_handlers

    runtime_handlers.acquire_task = partial(hold, runtime_handlers.acquire_task)
    vars(loop)["time"] = SimpleNamespace(**{**vars(vars(loop)["time"]), "sleep": sleep})


def change_install(install: Callable[..., Any]) -> None:
    """Let ClientApps of this process be installed by `install`, which gets Flower's function."""
    from flwr.supernode.runtime import run_clientapp

    names = vars(run_clientapp)
    names["install_from_fab"] = partial(install, names["install_from_fab"])
