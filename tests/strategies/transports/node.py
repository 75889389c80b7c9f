"""Node of the conformance checks, and the ClientApp that hosts it.

A request's `attempt` is an order for the node, see `Node`. Requests without one belong to a run and
are handled by a toy node, whose numbers the ClientApp stores in Flower's context.
"""

from __future__ import annotations

import hashlib
import pickle
import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from coterie.strategies.flower.records import decode_request, encode_fault, encode_response
from coterie.strategies.plans import WantedAnswers
from coterie.strategies.protocol import Report, Request, Response
from coterie.strategies.topology import TOPOLOGIES, Setting
from tests.strategies.toy_node import ToyNode

TOPOLOGY = TOPOLOGIES["full"].matrix(Setting(3, 0))
STRATEGY = WantedAnswers(peers=3, rounds=1, seed=1, topology=TOPOLOGY)
COHORTS = ((0, 1), (2,))


class CrashError(Exception):
    """Error that the app does not catch."""


def toy(index: int) -> ToyNode:
    """Make the toy node with the peers of node `index`."""
    return ToyNode(STRATEGY, COHORTS[index])


@dataclass
class Node:
    """Node that echoes requests, after `sleep SECONDS`, or when the file of `wait PATH` exists.

    It fails at `fail REASON`, and its app crashes at `crash REASON`.
    """

    toy: ToyNode

    def handle(self, request: Request) -> Response:
        what, _, how = request.attempt.partition(" ")
        match what:
            case "sleep":
                time.sleep(float(how))
            case "wait":
                while not Path(how).exists():
                    time.sleep(0.02)
            case "fail":
                raise OSError(how)
            case "crash":
                raise CrashError(how)
            case "echo":
                pass
            case _:
                return self.toy.handle(request)
        return echo(request)


def echo(request: Request) -> Response:
    """Return the letters and edges of a request unchanged, the rest as text, and a counter."""
    lines = [
        f"{request.stage} {request.round} {request.last} {request.committed} {request.attempt}",
        f"{request.asked.tolist()} {request.samples.tolist()}",
        *(digest(letter.payload) for letter in request.letters),
        uuid.uuid4().hex,
    ]
    reports = (Report(request.round, 0, {"test_loss": 0.1, "test_accuracy": None}, (0.5, 1.0)),)
    return Response((0,), tuple(request.letters), request.edges, reports, tuple(lines), (7,))


def digest(payload: object) -> str:
    """Return a digest of a payload."""
    assert isinstance(payload, bytes)
    return hashlib.sha256(payload).hexdigest()


def foreign(what: str, request: Request) -> RecordDict:
    """Return the reply of another app, or a response to another round."""
    if what == "app":
        return RecordDict({"arrays": ArrayRecord(), "metrics": MetricRecord({"examples": 3})})
    other = replace(request, round=request.round + 1, last=request.last + 1)
    return encode_response(Response((0,)), other)


app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Handle a request, as `coterie.app.client` does."""
    request = decode_request(message.content)
    what, _, how = request.attempt.partition(" ")
    if what == "foreign":
        return Message(foreign(how, request), reply_to=message)
    name = str(context.node_config.get("name", context.node_config.get("partition-id")))
    node = Node(toy(int(name[-1])))
    kept = context.state.get("toy")
    if isinstance(kept, ConfigRecord):
        node.toy.versions, node.toy.received = pickle.loads(kept["state"])  # type: ignore[arg-type]
    try:
        record = encode_response(node.handle(request), request)
    except OSError as error:
        record = encode_fault(f"{type(error).__name__}: {error}")
    state = pickle.dumps((node.toy.versions, node.toy.received))
    context.state["toy"] = ConfigRecord({"state": state})
    return Message(record, reply_to=message)
