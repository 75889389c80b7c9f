"""Time, CPU and memory that nodes cost the relay: `python -m benchmarks.nodes [N[:HIDDEN] ...]`.

N nodes train FedAvg on digits with an MLP of the HIDDEN sizes, as in 10:1200-1200. Every node's
model goes to four others, so there are 4 N letters a round. SuperLink and relay are as in a
deployment; the nodes are those of `tests.harness.fleet`.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from coterie.app.config.schema import Scalar
from tests.harness.deployment import Deployment, Host, committed, exchange_keys, family, finish

ROUNDS = 4
FIRST = 1  # rounds before the clock starts


@dataclass(frozen=True)
class Row:
    """Result of one size.

    Attributes
    ----------
    model_mb : float
        Payload of a letter, in MB.
    round_s : float
        Median duration of a round, in seconds.
    letters_mb : float
        Payload that the relay delivers per round, in MB.
    superlink_cpu_s, relay_cpu_s : float
        CPU seconds per round of the SuperLink and of the ServerApp.
    superlink_mb, relay_mb : float
        Peak resident memory of the SuperLink and of the ServerApp, in MB.
    """

    nodes: int
    model_mb: float
    round_s: float
    letters_mb: float
    superlink_cpu_s: float
    relay_cpu_s: float
    superlink_mb: float
    relay_mb: float


class Meter:
    """Meter of the CPU time and memory of a service and its children."""

    def __init__(self, deployment: Deployment, name: str) -> None:
        process = deployment.services[name].process
        assert process is not None
        self._pid = process.pid
        self.peak_mb = 0.0

    def cpu_s(self) -> float:
        """Return the CPU seconds so far; also record the memory."""
        ticks = 0
        for pid in family(self._pid):
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                status = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue
            ticks += int(fields[11]) + int(fields[12])
            if "VmHWM" in status:
                self.peak_mb = max(self.peak_mb, int(status.split("VmHWM:")[1].split()[0]) / 1e3)
        return ticks / os.sysconf("SC_CLK_TCK")


def measured(nodes: int, hidden: str, directory: Path) -> Row:
    """Run one size."""
    with Deployment(directory, Host(), {}) as deployment:
        exchange_keys(deployment.home("fleet") / "letters", range(nodes))
        deployment.start_fleet(nodes)
        sparse: dict[str, Scalar] = (
            {"topology": "k-regular", "topology-degree": 4} if nodes > 5 else {}
        )
        run = deployment.run({
            "method": "fedavg", "peers": nodes, "num-server-rounds": ROUNDS,
            "evaluate-every": 1, "partition.kind": "iid", "partition.samples-per-peer": 30,
            "local-steps": 1, "mlp.hidden": hidden, **sparse,
        })  # fmt: skip
        meters = [Meter(deployment, name) for name in ("superlink", "relay")]
        ticks: dict[int, tuple[float, list[float], float]] = {}

        def tick() -> bool:
            now = deployment.progress()
            cpu = [meter.cpu_s() for meter in meters]
            if now:
                ticks.setdefault(committed(now), (now["seconds"], cpu, now["relayed_bytes"]))
            return run.poll() is not None

        deployment.wait(tick, "the run does not end", 1200)
        finish(deployment, run)
    ends = [ticks[t] for t in sorted(ticks) if FIRST <= t < ROUNDS]
    rounds = max(t for t in ticks if t < ROUNDS) - min(t for t in ticks if t >= FIRST)
    link, relay = ((ends[-1][1][k] - ends[0][1][k]) / rounds for k in range(2))
    letters = (ends[-1][2] - ends[0][2]) / rounds / 1e6
    sent = nodes * min(nodes - 1, 4)
    return Row(
        nodes,
        round(letters / sent, 2) if sent else 0.0,
        round(statistics.median(b[0] - a[0] for a, b in pairwise(ends)), 1),
        round(letters, 3),
        round(link, 2),
        round(relay, 2),
        round(meters[0].peak_mb),
        round(meters[1].peak_mb),
    )


def rows(sizes: Sequence[str]) -> Iterator[Row]:
    """Run all sizes, written N or N:HIDDEN."""
    for size in sizes:
        nodes, _, hidden = size.partition(":")
        with tempfile.TemporaryDirectory() as directory:
            yield measured(int(nodes), hidden or "64", Path(directory))


if __name__ == "__main__":
    for row in rows(sys.argv[1:] or ["1", "10", "50", "10:1200-1200", "4:3200-3200"]):
        print(row, flush=True)
