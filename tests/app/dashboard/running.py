"""Run in progress for tests: written by the recorder, locked as by the launcher."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from app.runs import rundir
from app.runs.recorder import RunRecorder
from strategies.protocol import Report
from strategies.relay.commit import Commit, Ledger
from tests.app.fake_run import write_config, write_split

ROUNDS = 100


class Running:
    """Run of `peers` peers in clusters of two, evaluated every ten rounds."""

    def __init__(
        self, directory: Path, peers: int = 4, method: str = "cobo", seed: int = 0
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.peers = directory, peers
        write_config(directory, {"method": method, "seed": seed, "peers": peers,
                                 "num-server-rounds": ROUNDS})  # fmt: skip
        write_split(directory, [k // 2 for k in range(peers)], [60] * peers, [[6] * 10] * peers)
        self.recorder = RunRecorder(directory, peers, ROUNDS)

    def reach(self, t: int, absent: Sequence[int] = (), faults: tuple[str, ...] = ()) -> None:
        """Commit round `t`; present peers report if the round is evaluated."""
        present = [peer for peer in range(self.peers) if peer not in absent]
        accuracy = 0.1 + 0.8 * t / ROUNDS
        reports = [
            Report(
                round=t,
                peer=peer,
                metrics={"test_accuracy": accuracy, "test_loss": 1 - accuracy,
                         "bytes_sent": 1000.0 * t, "bytes_received": 1000.0 * t,
                         "gradient_evaluations": 32.0 * t},
                weights=tuple(
                    1.0 if j // 2 == peer // 2 else 1 - t / ROUNDS for j in range(self.peers)
                ),
            )
            for peer in present
            if t % 10 == 0
        ]  # fmt: skip
        ledger = Ledger(round=t, messages=2 * t, nbytes=500 * t)
        self.recorder.round(
            Commit(ledger, reports=tuple(reports), present=frozenset(present), faults=faults)
        )


@contextmanager
def running(directory: Path, method: str = "cobo") -> Iterator[Running]:
    """Yield a run that this process locks, as the launcher does."""
    with rundir.held(directory):
        yield Running(directory, method=method)
