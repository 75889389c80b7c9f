"""A round of a deployment against an empty Flower round trip: `python -m benchmarks.floor`.

One SuperLink, three SuperNodes with their executors, TLS and authentication. First an app whose
messages are empty makes round trips, waiting for responses as Flower does and as the relay does;
then Coterie runs a tiny problem, so that a round is mostly communication.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.harness.deployment import (
    Deployment,
    Host,
    committed,
    finish,
    foreign_project,
    quadratics,
)

NODES = 3
TRIPS = 8
FIRST = 2  # trips and rounds before the clock counts
_EMPTY = {
    "LICENSE": "Apache-2.0",
    "pyproject.toml": foreign_project(
        "empty", "empty:server", "empty:client", {"out": "", "nodes": 0, "trips": 0}
    ),
    "empty.py": """
import json, time
from pathlib import Path
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()

@client.train()
def train(message, context):
    return Message(RecordDict(), reply_to=message)

def tight(grid, messages):
    waiting = set(grid.push_messages(messages))
    while waiting:
        waiting -= {r.metadata.reply_to_message_id for r in grid.pull_messages(list(waiting))}
        time.sleep(0.05)

def stock(grid, messages):
    responses = list(grid.send_and_receive(messages))
    assert len(responses) == len(messages)

@server.main()
def main(grid, context):
    while len(grid.get_node_ids()) < context.run_config["nodes"]:
        time.sleep(0.2)
    taken = {}
    for wait in (stock, tight):
        for _ in range(context.run_config["trips"]):
            messages = [Message(RecordDict(), node, "train") for node in grid.get_node_ids()]
            start = time.monotonic()
            wait(grid, messages)
            taken.setdefault(wait.__name__, []).append(time.monotonic() - start)
    Path(context.run_config["out"]).write_text(json.dumps(taken))
""",
}


@dataclass(frozen=True)
class Row:
    """Time of one kind of round.

    Attributes
    ----------
    messages : int
        Number of requests per node and round.
    """

    what: str
    messages: int
    round_s: float
    fastest_s: float
    slowest_s: float


def _row(what: str, messages: int, seconds: list[float]) -> Row:
    middle, low, high = statistics.median(seconds), min(seconds), max(seconds)
    return Row(what, messages, round(middle, 2), round(low, 2), round(high, 2))


def empty(deployment: Deployment, directory: Path) -> Iterator[Row]:
    """Measure empty round trips."""
    directory.mkdir()
    for name, text in _EMPTY.items():
        (directory / name).write_text(text)
    out = directory.parent / "taken.json"
    run = deployment.run_foreign(directory, {"out": str(out), "nodes": NODES, "trips": TRIPS})
    finish(deployment, run)
    taken = json.loads(out.read_text())
    yield _row("empty, waiting as Flower does", 1, taken["stock"][FIRST:])
    yield _row("empty, waiting as the relay does", 1, taken["tight"][FIRST:])


def ours(deployment: Deployment, directory: Path, method: str) -> Row:
    """Measure the rounds of a run of Coterie."""
    config = quadratics(deployment.problem, NODES) | {
        "method": method, "num-server-rounds": TRIPS, "evaluate-every": 1,
    }  # fmt: skip
    run = deployment.run(config, method)
    ends: dict[int, tuple[float, int]] = {}

    def tick() -> bool:
        now = deployment.progress(method)
        if now:
            ends.setdefault(committed(now), (now["seconds"], now["messages"]))
        return run.poll() is not None

    deployment.wait(tick, "the run does not end")
    finish(deployment, run)
    counted = [ends[t] for t in sorted(ends) if FIRST <= t < TRIPS]
    messages = (counted[-1][1] - counted[0][1]) / (len(counted) - 1) / NODES / 2  # with responses
    seconds = [later[0] - earlier[0] for earlier, later in pairwise(counted)]
    return _row(f"{method}, sealed letters", round(messages), seconds)


def rows(methods: list[str]) -> Iterator[Row]:
    """Measure everything on one deployment."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        nodes = {peer: Host() for peer in range(NODES)}
        with Deployment(directory / "deployment", Host(), nodes) as deployment:
            yield from empty(deployment, directory / "empty")
            for method in methods:
                yield ours(deployment, directory, method)


if __name__ == "__main__":
    for row in rows(sys.argv[1:] or ["fedavg", "cobo"]):
        print(row, flush=True)
