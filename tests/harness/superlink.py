"""A SuperLink in this process: Flower's own handlers and stores, without HTTP.

The relay reaches it through Flower's `HttpGrid`, a node through the calls of its SuperNode, so a
test decides after which object a line is cut. Private names of flwr are here.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesRequest
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.task_pb2 import Task
from flwr.server.superlink.linkstate.linkstate_factory import LinkStateFactory
from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, NOOP_FEDERATION_ID, TaskType
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation.noop_federation_manager import NoOpFederationManager
from flwr.superlink.grid import HttpGrid
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.superlink.servicer.runtime import runtime_handlers

_HOUR = 3600.0


class SuperLink:
    """A SuperLink with a run that has started.

    Parameters
    ----------
    database : file of its state and objects; None: in memory.

    Attributes
    ----------
    grid : of the run's ServerApp.
    pushed : names of the objects that the relay has sent.
    """

    def __init__(self, database: Path | None = None) -> None:
        place = FLWR_IN_MEMORY_DB_NAME if database is None else str(database)
        objects = ObjectStoreFactory(place)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # alembic's, of Flower's settings
            self.state = LinkStateFactory(place, NoOpFederationManager(), objects).state()
        self.store = objects.store()
        self._run = self.state.create_run(
            "", "", "", {}, NOOP_FEDERATION_ID, None, "", TaskType.SERVER_APP
        )
        (info,) = self.state.get_run_info(run_ids=[self._run])
        assert info.primary_task_id is not None
        self.state.claim_task(info.primary_task_id)
        self.state.activate_task(info.primary_task_id)
        self._task = Task(run_id=self._run, task_id=info.primary_task_id)
        TaskIdentity.run_id, TaskIdentity.task_id = self._run, info.primary_task_id
        self.pushed: list[str] = []
        self.grid = HttpGrid(token="unused")
        self.grid.set_run(Run.create_empty(self._run))
        names = ("GetNodes", "PushMessages", "PullMessages", "PushObject", "PullObject")
        calls = {name: self._call(name) for name in (*names, "ConfirmMessageReceived")}
        self.grid.__dict__["_client"] = SimpleNamespace(**calls)
        self._nodes = 0

    def _call(self, name: str) -> Callable[[Any], Any]:
        words = "".join(f"_{c.lower()}" if c.isupper() else c for c in name)[1:]
        handler = getattr(runtime_handlers, words)

        def call(request: Any) -> Any:
            TaskIdentity.node_id = self.grid.node.node_id
            if name == "PushObject":
                self.pushed.append(request.object_id)
            return handler(request, self.state, self._task)

        return call

    def join(self) -> SuperNode:
        """Add a node that is online for an hour."""
        self._nodes += 1
        node = self.state.create_node("", "", f"key {self._nodes}".encode(), _HOUR)
        self.state.activate_node(node, _HOUR)
        return SuperNode(self, node, self._run)


class SuperNode:
    """A node as the SuperLink sees it.

    Attributes
    ----------
    id : Flower's id of the node.
    """

    def __init__(self, link: SuperLink, node: int, run: int) -> None:
        self._link, self.id, self._run = link, node, run
        self._node = Node(node_id=node)

    def receive(self) -> Message:
        """Receive the message that waits for this node."""
        state, node, run = self._link.state, self._node, self._run
        response = fleet_handlers.pull_messages(
            PullMessagesRequest(node=node), state, self._link.store
        )
        (tree,) = response.message_object_trees

        def pull(name: str) -> bytes:
            request = PullObjectRequest(node=node, run_id=run, object_id=name)
            answer = fleet_handlers.pull_object(request, state)
            assert answer.object_available
            return answer.object_content

        def confirm(name: str) -> None:
            request = ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=name)
            fleet_handlers.confirm_message_received(request, state, self._link.store)

        message = pull_and_inflate_object_from_tree(tree, pull, confirm, return_type=Message)
        message.metadata.__dict__["_message_id"] = tree.object_id
        return message

    def reply(self, message: Message, record: RecordDict, *, root: bool = False) -> Sending:
        """Begin to send the reply to a message; with `root`, an array chunk stands for it."""
        TaskIdentity.node_id = self.id
        reply = Message(record, reply_to=message)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        objects = {name: each.deflate() for name, each in get_all_nested_objects(reply).items()}
        tree = get_object_tree(reply)
        if root:
            tree = next(each for each in iterate_object_tree(tree) if not each.children)
            reply.metadata.__dict__["_message_id"] = tree.object_id
        return Sending(self._link, self._node, self._run, reply, tree, objects)


class Sending:
    """A reply of which a part has been sent.

    Attributes
    ----------
    missing : names of the objects that the SuperLink wants, in Flower's order.
    """

    def __init__(
        self, link: SuperLink, node: Node, run: int, reply: Message, tree: ObjectTree,
        objects: dict[str, bytes],
    ) -> None:  # fmt: skip
        self._link, self._node, self._run, self._objects = link, node, run, objects
        proto = message_to_proto(remove_content_from_message(reply))
        response = fleet_handlers.push_messages(
            PushMessagesRequest(node=node, messages_list=[proto], message_object_trees=[tree]),
            link.state,
        )
        wanted = set(response.objects_to_push)
        names = dict.fromkeys(each.object_id for each in iterate_object_tree(tree))
        self.missing = [name for name in names if name in wanted]
        self._session = response.session_id

    def send(self, count: int | None = None) -> bool:
        """Send the next `count` objects, all by default; False when the SuperLink refuses one."""
        for name in self.missing[:count]:
            request = PushObjectRequest(
                node=self._node, run_id=self._run, object_id=name,
                object_content=self._objects[name], session_id=self._session,
            )  # fmt: skip
            if not fleet_handlers.push_object(request, self._link.state).stored:
                return False
            self.missing.remove(name)
        return True
