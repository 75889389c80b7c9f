"""Large models over bad lines, and nodes behind an HTTP proxy. As root, with network namespaces.

`python -m tests.drills.lines line HIDDEN MBIT ROUNDS` runs FedAvg on digits with an MLP of the
HIDDEN sizes (3150-5000: 64 MB) between three nodes whose lines have MBIT Mbit/s and lose 1 % of
their packets each way. The line of node 1 is cut while it sends its first letter, that of node 2
while it receives the letters of the others. The run must end with every peer in every round, and
with the metrics of the same run in one process.

`python -m tests.drills.lines memory HIDDEN ...` measures the memory of every process per letter, on
one host. `python -m tests.drills.lines proxy` needs tinyproxy: the nodes cannot reach the relay
but through it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

from coterie.app.config.config import Config
from coterie.app.config.schema import Scalar
from coterie.app.runs.rundir import Run
from tests.drills.parity import difference, simulated
from tests.harness.deployment import Deployment, Host, finish
from tests.harness.hosts import carried, forbid, network, plug, slow

NODES, ROUNDS = 3, 2
LOSS = 0.01
CUT = 20.0
"""Seconds that a line is cut."""
SECONDS = 3000.0
"""Maximum duration of a run."""
ROLES = {
    "flower-superlink": "SuperLink", "flwr-serverapp": "ServerApp", "flower supernode": "SuperNode",
    "commands.flower": "ClientApp", "process.worker": "worker",
}  # fmt: skip
"""Part of a command line -> process."""


def settings(hidden: str, rounds: int = ROUNDS) -> dict[str, Scalar]:
    """The run's configuration."""
    return {
        "method": "fedavg", "peers": NODES, "num-server-rounds": rounds, "evaluate-every": 1,
        "partition.kind": "iid", "partition.samples-per-peer": 30, "local-steps": 1,
        "mlp.hidden": hidden, "device": "cpu", "round-seconds": SECONDS,
    }  # fmt: skip


def size(hidden: str) -> int:
    """Bytes of a letter with an MLP for digits."""
    widths = [64, *map(int, hidden.split("-")), 10]
    return sum((a + 1) * b for a, b in pairwise(widths)) * 4


@contextmanager
def peaks(directory: Path) -> Iterator[dict[str, float]]:
    """Yield the peak resident memory in MB of each kind of process, complete at the end."""
    result, over = dict.fromkeys(ROLES.values(), 0.0), threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            for process in Path("/proc").glob("[0-9]*"):
                with suppress(OSError, IndexError):
                    command = (process / "cmdline").read_bytes().decode().replace("\0", " ")
                    role = next((role for key, role in ROLES.items() if key in command), "")
                    where = (process / "environ").read_bytes().decode()
                    if role and str(directory) in where:
                        status = (process / "status").read_text()
                        peak = int(status.split("VmHWM:")[1].split()[0]) / 1e3
                        result[role] = max(result[role], peak)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield result
    finally:
        over.set()
        thread.join()


@dataclass(frozen=True)
class Memory:
    """Peak resident memory, in MB.

    Attributes
    ----------
    letter : size of a letter in MB.
    """

    letter: float
    peak: Mapping[str, int]


def memory(hidden: str) -> Memory:
    """Measure the processes of one run on this host."""
    with tempfile.TemporaryDirectory() as directory:
        place, nodes = Path(directory), {k: Host() for k in range(NODES)}
        with Deployment(place, Host(), nodes) as deployment, peaks(place) as peak:
            finish(deployment, deployment.run(settings(hidden)), SECONDS)
    return Memory(size(hidden) / 1e6, {role: round(value) for role, value in peak.items()})


@dataclass(frozen=True)
class Line:
    """A run over bad lines.

    Attributes
    ----------
    letter : size of a letter in MB.
    mbit : rate of a line.
    seconds : from the arrival of the app at the nodes to the end of the run.
    limit : seconds that a node's letters take on its line.
    carried : bytes on the lines of the nodes, relative to those of their letters.
    absent : times that the relay went on without a node.
    difference : of any metric, from the run in one process.
    """

    letter: float
    mbit: float
    rounds: int
    seconds: float
    limit: float
    carried: float
    absent: int
    difference: float
    peak: Mapping[str, int]


def line(hidden: str, mbit: float, rounds: int) -> Line:
    """Run over slow lines that lose packets and are cut."""
    letter, configuration = size(hidden), settings(hidden, rounds)
    with tempfile.TemporaryDirectory() as directory, network(NODES) as hosts:
        place, nodes = Path(directory), {k: hosts[f"node-{k}"] for k in range(NODES)}
        config = Config.from_flat(configuration | {"run-dir": str(place / "expected")})
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:  # then its memory is free
            expected = pool.submit(simulated, config).result()
        for peer, host in nodes.items():
            slow(f"node-{peer}", host, hosts["relay"], mbit, LOSS)
        with Deployment(place / "at", hosts["relay"], nodes) as deployment, peaks(place) as peak:
            try:
                run = deployment.run(configuration)
                before = carry()
                deployment.wait(lambda: carry() - before > 2e6, "no letter is sent", SECONDS)
                began = time.monotonic()
                for peer, sends in ((1, True), (2, False)):
                    cut(deployment, peer, letter / 2, sends=sends)
                finish(deployment, run, SECONDS)
                seconds = time.monotonic() - began
            except BaseException:
                for path in sorted((place / "at" / "logs").glob("*.log")):
                    print(f"--- {path.name}\n{path.read_text(errors='replace')[-2500:]}")
                raise
            total = carry() - before
            result = Run.read(deployment.home("operator") / "run")
            log = (deployment.home("operator") / "run" / "flower.log").read_text()
            print(*(row for row in log.splitlines() if "logger=relay" in row), sep="\n", flush=True)
    # Each node sends its letter for each round, and receives those of the others.
    per_node = rounds * NODES * letter
    return Line(
        letter / 1e6, mbit, rounds, round(seconds, 1), round(per_node * 8e-6 / mbit, 1),
        round(total / (NODES * per_node), 3), log.count("continuing without this node"),
        difference(result, expected), {role: round(value) for role, value in peak.items()},
    )  # fmt: skip


def carry() -> int:
    """Bytes on all lines of the nodes, both ways."""
    return sum(sum(carried(f"node-{peer}")) for peer in range(NODES))


def cut(deployment: Deployment, peer: int, after: float, *, sends: bool) -> None:
    """Cut the line of a node after it has sent or received so many more bytes."""
    name = f"node-{peer}"

    def done() -> int:
        sent, received = carried(name)
        return sent if sends else received

    start = done()
    deployment.wait(lambda: done() - start > after, f"{name} carries nothing", SECONDS)
    plug(name, "down")
    print(f"{time.strftime('%X')} {name}: cut, {(done() - start) / 1e6:.1f} MB", flush=True)
    time.sleep(CUT)
    plug(name, "up")


@dataclass(frozen=True)
class Proxied:
    """A run through a proxy.

    Attributes
    ----------
    connections : that the proxy made to the relay.
    absent : rounds in which a peer was missing, over all peers.
    """

    connections: int
    absent: int


def proxied(hidden: str) -> Proxied:
    """Run with nodes that can reach the proxy only, by the variables of their services."""
    with tempfile.TemporaryDirectory() as directory, network(NODES, "proxy") as hosts:
        place, nodes = Path(directory), {k: hosts[f"node-{k}"] for k in range(NODES)}
        proxy, log = hosts["proxy"], place / "proxy.log"
        rules = ["Port 8888", "Timeout 600", "Allow 10.77.0.0/24", "BasicAuth hospital secret"]
        rules.append(f'LogFile "{log}"')
        (place / "proxy.conf").write_text("\n".join([*rules, "LogLevel Connect", ""]))
        command = [*proxy.prefix, "tinyproxy", "-d", "-c", str(place / "proxy.conf")]
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            deployment = Deployment(place / "at", hosts["relay"], nodes)
            for peer, host in nodes.items():
                forbid(host, hosts["relay"])
                address = f"http://hospital:secret@{proxy.address}:8888"
                environment = [f"HTTPS_PROXY={address}", f"HTTP_PROXY={address}"]
                environment += ["NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1"]
                for name in deployment.of_node(peer):
                    service = deployment.services[name]
                    service.command = ("env", *environment, *service.command)
            with deployment:
                finish(deployment, deployment.run(settings(hidden)), SECONDS)
                last_seen = deployment.progress()["last_seen"]
        finally:
            running.terminate()
            running.wait()
        connections = log.read_text().count(f"CONNECT {hosts['relay'].address}:")
    return Proxied(connections, sum(ROUNDS - int(last) for last, _ in last_seen.values()))


def main() -> None:
    """Run the drill that is asked for, and print its rows."""
    if os.geteuid():
        sys.exit("network namespaces need root")
    rows: Iterator[Memory | Line | Proxied]
    match sys.argv[1:]:
        case ["memory", *sizes]:
            rows = (memory(hidden) for hidden in sizes or ["64", "3500-3500", "5000-5000"])
        case ["line", hidden, mbit, rounds]:
            rows = (line(hidden, float(each), int(rounds)) for each in [mbit])
        case ["proxy"]:
            rows = (proxied(hidden) for hidden in ["64"])
        case _:
            sys.exit(__doc__)
    for row in rows:
        print(json.dumps(asdict(row)), flush=True)
        if isinstance(row, Line) and (row.absent or row.difference > 1e-5):
            sys.exit("the run over bad lines is not that of one process")


if __name__ == "__main__":
    main()
