"""Networks of two nodes: in-process, Flower's simulation, a deployment on loopback."""

from __future__ import annotations

import secrets
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from queue import Queue
from statistics import median
from typing import cast

from flwr.app import Context, Message
from flwr.common.constant import HEARTBEAT_INTERVAL_INF
from flwr.serverapp import Grid, ServerApp
from flwr.superlink.grid.inmemory_grid import InMemoryGrid

from coterie.strategies.flower.transport import FlowerTransport
from coterie.strategies.inprocess import InProcessTransport
from coterie.strategies.protocol import Request, Response, Transport
from tests.harness.deployment import Deployment, Host, foreign_project
from tests.inprocess import ROOT, simulate
from tests.strategies.transports.checks import PATIENCE, Network, wait
from tests.strategies.transports.node import COHORTS, Node, app, toy

_KEY = secrets.token_bytes(16)
_HERE = "tests.strategies.transports"
_PROJECT = foreign_project(
    "conformance", f"{_HERE}.server:app", f"{_HERE}.node:app", {"port": 0, "key": ""}
)


class _Calls:
    deadline = 1.0

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._nodes = [Node(toy(k)) for k in range(len(COHORTS))]
        self._away: list[Node] = []

    def transport(self, seconds: float = PATIENCE) -> Transport:
        return InProcessTransport(self._nodes)

    def leave(self) -> None:
        self._away.append(self._nodes.pop())

    def come_back(self) -> None:
        self._nodes.append(self._away.pop())


@contextmanager
def calls(directory: Path) -> Iterator[Network]:
    """Run nodes in this process."""
    yield _Calls(directory)


class _Simulated:
    deadline = 1.0

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.grids: Queue[InMemoryGrid] = Queue()
        self.over = threading.Event()
        self._present = threading.Event()
        self._present.set()
        self._away = 0

    def begin(self) -> None:
        """Wait until the engine has registered the nodes, which it does beside the ServerApp."""
        self._grid = self.grids.get(timeout=60)
        wait(lambda: len(self.transport().nodes()) == len(COHORTS))

    def transport(self, seconds: float = PATIENCE) -> Transport:
        return FlowerTransport(self._grid, seconds)

    def leave(self) -> None:
        self._present.clear()
        self._away = max(self._grid.get_node_ids())
        self._grid.state.deactivate_node(self._away)

    def come_back(self) -> None:
        self._grid.state.activate_node(self._away, HEARTBEAT_INTERVAL_INF)
        self._away = 0
        self._present.set()

    def hold(self, message: Message, context: Context) -> None:
        """Hold back messages of a node that has left, which the engine fetches too."""
        if message.metadata.dst_node_id == self._away:
            self._present.wait()


@contextmanager
def simulation(directory: Path) -> Iterator[Network]:
    """Run virtual nodes of Flower's simulation engine in this process."""
    network, server = _Simulated(directory), ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        network.grids.put(cast(InMemoryGrid, grid))
        network.over.wait()

    def run() -> None:
        simulate({}, 2, network.hold, workers=2, client_app=app, server_app=server)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        network.begin()
        yield network
    finally:
        network.over.set()
        thread.join()


class _Remote:
    """Transport of a ServerApp in another process, see `server.py`."""

    def __init__(self, connection: Connection, seconds: float, taken: list[float]) -> None:
        self._connection, self._seconds, self._taken = connection, seconds, taken

    def nodes(self) -> list[int]:
        return cast(list[int], self._call("nodes"))

    def exchange(self, requests: Mapping[int, Request]) -> Mapping[int, Response | str]:
        began = time.monotonic()
        outcome = self._call("exchange", dict(requests))
        self._taken.append(time.monotonic() - began)
        return cast(dict[int, Response | str], outcome)

    def _call(self, method: str, *arguments: object) -> object:
        self._connection.send((self._seconds, method, arguments))
        return self._connection.recv()


class _Deployed:
    def __init__(self, directory: Path, deployment: Deployment, connection: Connection) -> None:
        self.directory = directory
        self._deployment, self._connection = deployment, connection
        self._taken: list[float] = []
        wait(lambda: len(self.transport().nodes()) == 2)

    @property
    def deadline(self) -> float:
        """Return the time of three exchanges, which depends on the machine's load."""
        return 3 * median(self._taken or [5.0])

    def transport(self, seconds: float = PATIENCE) -> Transport:
        return _Remote(self._connection, seconds, self._taken)

    def leave(self) -> None:
        """Stop a SuperNode; the SuperLink notices after two heartbeats, a minute."""
        node, executor = self._deployment.of_node(1)
        self._deployment.kill(executor)
        self._deployment.services[node].kill(signal.SIGTERM)

    def come_back(self) -> None:
        self._deployment.start(*self._deployment.of_node(1))


@contextmanager
def deployment(directory: Path, *, public: bool = False) -> Iterator[Network]:
    """Run two SuperNodes on loopback with TLS, authentication, executors, and strategies/ only.

    `public`: flwr has no private names.
    """
    app, peers = directory / "app", dict.fromkeys(range(2), Host())
    write_app(app)
    parts = Deployment(directory / "deployment", Host(), peers)
    if public:
        parts.hide_private_names()
    with (
        parts as deployed,
        Listener(("127.0.0.1", 0), authkey=_KEY) as listener,
    ):
        port = listener.address[1]
        with deployed.run_foreign(app, {"port": port, "key": _KEY.hex()}) as running:
            try:
                with ThreadPoolExecutor() as waiting:
                    connected = waiting.submit(listener.accept)
                    deployed.wait(
                        lambda: connected.done() or running.poll() is not None,
                        "the ServerApp does not come up", PATIENCE,
                    )  # fmt: skip
                with connected.result() as connection:
                    yield _Deployed(directory, deployed, connection)
                    connection.send(None)
            finally:
                running.kill()


def write_app(directory: Path) -> None:
    """Write a Flower app of strategies/ and the node of the checks."""
    python = [*(ROOT / "strategies").rglob("*.py"), ROOT / "tests/strategies/toy_node.py"]
    python += [ROOT / "coterie" / f"{name}.py" for name in ("__init__", "errors", "ranges")]
    python += [Path(__file__).with_name(name) for name in ("node.py", "server.py")]
    for path in python:
        to = directory / path.relative_to(ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, to)
    (directory / "LICENSE").write_text("Apache-2.0")
    (directory / "pyproject.toml").write_text(_PROJECT)
