"""Seconds and processor seconds of a message to a deployed node: `python -m benchmarks.messages`.

    python -m benchmarks.messages [--nodes N ...] [--services Flower warm] [--rounds R]

A relay and N nodes with TLS, authentication, sealed letters and executors run FedAvg (one message
per node and round) and CoBo (two) on digits, with Flower's own SuperNode and SuperExec, and with
those of `coterie flower`. Processor seconds are those of all processes of a kind between the ends
of two rounds, from /proc, divided by the messages in between.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from coterie.app.runners import bundle, guard
from tests.harness.deployment import Deployment, Host, committed, finish

METHODS = {"fedavg": 1, "cobo": 2}
"""Method -> messages to each node in a round."""
KINDS = {
    b"process.worker": "worker",
    b"flwr-serverapp": "relay",
    b"flwr-clientapp": "ClientApp",
    b"flower-superlink": "SuperLink",
    b"commands.flower": "ClientApp",
    b"supernode": "SuperNode",
    b"superexec": "executor",
}
"""Part of a command line -> kind of process; the first that is there."""
FIRST = 1  # rounds before the clock starts


@dataclass(frozen=True)
class Row:
    """Cost of a message.

    Attributes
    ----------
    message_s : float
        Median seconds per round, divided by the messages to a node in a round.
    cpu_s : float
        Processor seconds of all processes, divided by the messages to all nodes.
    by_kind : dict
        The same by kind of process.
    load : float
        Load of the machine at the end.
    """

    services: str
    method: str
    nodes: int
    message_s: float
    cpu_s: float
    by_kind: dict[str, float]
    load: float


def processors(directory: Path) -> dict[str, float]:
    """Return the processor seconds so far by kind, ended children included."""
    ticks: dict[str, int] = dict.fromkeys(KINDS.values(), 0)
    for pid in guard.working_in(directory):
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            home = Path(f"/proc/{pid}/cwd").readlink()
            kind = next((kind for part, kind in KINDS.items() if part in command), None)
            if kind is None:
                continue
            own, ended = (int(fields[k]) + int(fields[k + 1]) for k in (11, 13))
            if home.name == "relay" and kind == "executor":
                kind = "relay"
            ticks[kind] += own
            ticks["ClientApp" if kind == "executor" else kind] += ended
    return {kind: count / os.sysconf("SC_CLK_TCK") for kind, count in ticks.items()}


def measured(deployment: Deployment, services: str, nodes: int, method: str, rounds: int) -> Row:
    """Run one method."""
    run = deployment.run({
        "method": method, "peers": nodes, "num-server-rounds": rounds, "evaluate-every": 1,
        "partition.kind": "iid", "partition.samples-per-peer": 30, "local-steps": 1,
        **({"topology": "k-regular", "topology-degree": 4} if nodes > 5 else {}),
    }, method)  # fmt: skip
    ticks: dict[int, tuple[float, dict[str, float]]] = {}

    def tick() -> bool:
        now = deployment.progress(method)
        if now and committed(now) not in ticks:
            ticks[committed(now)] = now["seconds"], processors(deployment.directory)
        return run.poll() is not None

    deployment.wait(tick, "the run does not end", 1800)
    finish(deployment, run)
    ends = [ticks[t] for t in sorted(ticks) if FIRST <= t < rounds]
    each = METHODS[method]
    messages = (max(t for t in ticks if t < rounds) - min(t for t in ticks if t >= FIRST)) * each
    cpu = {kind: (ends[-1][1][kind] - ends[0][1][kind]) / messages / nodes for kind in ends[0][1]}
    return Row(
        services,
        method,
        nodes,
        round(statistics.median(b[0] - a[0] for a, b in pairwise(ends)) / each, 2),
        round(sum(cpu.values()), 2),
        {kind: round(seconds, 3) for kind, seconds in cpu.items()},
        round(os.getloadavg()[0], 1),
    )


def install(deployment: Deployment, nodes: int) -> None:
    """Install the app on all nodes before they start, as the guides do."""
    first = deployment.home("node-0")
    with tempfile.TemporaryDirectory() as place:
        bundle.write_app(Path(place, "app"))
        script = "flwr build --app app && flwr install coterie.*.fab"
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {**os.environ, "FLWR_HOME": str(first), "PATH": path}
        subprocess.run(["sh", "-c", script], cwd=place, env=environment, check=True)
    for peer in range(1, nodes):
        shutil.copytree(first / "apps", deployment.home(f"node-{peer}") / "apps")


def rows(sizes: list[int], services: list[str], rounds: int) -> Iterator[Row]:
    """Run all methods with each number of nodes and each kind of services."""
    for nodes in sizes:
        for kind in services:
            with tempfile.TemporaryDirectory() as place:
                hosts = {peer: Host() for peer in range(nodes)}
                started = Deployment(Path(place), Host(), hosts)
                install(started, nodes)
                if kind == "Flower":
                    started.use_flowers_services()
                with started as deployment:
                    for method in METHODS:
                        yield measured(deployment, kind, nodes, method, rounds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", nargs="+", type=int, default=[4])
    parser.add_argument("--services", nargs="+", default=["Flower", "warm"])
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()
    for row in rows(options.nodes, options.services, options.rounds):
        print(row, flush=True)
