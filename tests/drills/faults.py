"""Fault drills: what a deployment does when hosts and links fail. `make drill`, as root.

`python -m tests.drills.faults laptop schedule` runs two of them; see `ROUNDS`, `SCHEDULE` and
`HOSTILE`.

A relay and three nodes are hosts of their own: network namespaces with a link each to a switch.
One run goes on while a node is cut off, a node is killed, a node is suspended as a laptop whose lid
is closed, a node is slow, and the SuperLink is killed; each comes back. The table says what it
cost; the run must finish with nothing lost. In a second run a node is off while its schedule says
that it sleeps. Then a node lies, in one run with every reply, in another with every letter: the
others' numbers must be those of a run from which it is absent. At last what an operator meets: a
hospital that misses the end, Ctrl-C, an expired certificate, another version; see `OPERATOR`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from coterie.app.runners import guard
from tests.harness.deployment import Deployment, committed, family, finish, quadratics
from tests.harness.hosts import network, plug

NODES = 3
ROUNDS = {"link": 9, "node": 9, "laptop": 9, "slow": 4, "superlink": 4}
"""Fault -> rounds that go by until it is over, at most."""
SCHEDULE, HOSTILE = "schedule", "hostile"
OPERATOR = ("missed", "ctrl-c", "version", "certificate")
ASLEEP = 4, 6
"""First and last round in which the schedule lets a node sleep."""
SLOW = 4.0, 1.0
"""Seconds that a slow node is stopped, and runs, in turn."""
FIRST = 3  # rounds before the first fault
ROUND_SECONDS = 30
OUTAGE = 2  # rounds without the host before it returns


@dataclass(frozen=True)
class Row:
    """One fault.

    Attributes
    ----------
    rounds : that the peer was not part of, or for the SuperLink, that took longer.
    closed : seconds from the fault to the end of the round it struck.
    recovery : seconds from the return of what failed to the end of a round with everybody.
    lost : what was lost.
    """

    fault: str
    rounds: int
    closed: float
    recovery: float
    lost: str


class Drill:
    """Faults on one run of a deployment."""

    def __init__(
        self, deployment: Deployment, run: subprocess.Popen[str], name: str = "run"
    ) -> None:
        self._deployment = deployment
        self._run, self._name = run, name

    def reach(self, t: int) -> float:
        """Wait until round `t` is committed; seconds."""

        def done() -> bool:
            if self._run.poll() is not None:
                assert self._run.stdout is not None
                sys.exit(f"the run ended too early:\n{self._run.stdout.read()}")
            return committed(self._deployment.progress(self._name)) >= t

        return self._deployment.wait(done, f"round {t} does not end")

    def outage(
        self, fault: str, peer: int, begin: Callable[[], None], end: Callable[[], None]
    ) -> Row:
        """Make a node fail and return while the others continue."""
        last = self._now()
        begin()
        closed = self.reach(last + 1)
        self.reach(last + 1 + OUTAGE)
        left = self._last_seen(peer)
        end()
        recovery = self._deployment.wait(
            lambda: self._last_seen(peer) > left, f"{fault}: stays away"
        )
        return self._row(fault, self._last_seen(peer) - left - 1, closed, recovery)

    def slow(self, peer: int) -> Row:
        """Stop a node for most of the time, for some rounds."""
        last, over = self._now(), threading.Event()

        def limp() -> None:
            while not over.is_set():
                for number, seconds in zip((signal.SIGSTOP, signal.SIGCONT), SLOW, strict=True):
                    send(self._deployment, peer, number)
                    time.sleep(seconds)

        limping = threading.Thread(target=limp)
        limping.start()
        try:
            closed = self.reach(last + OUTAGE) / OUTAGE
        finally:
            over.set()
            limping.join()
        left = self._last_seen(peer)
        recovery = self._deployment.wait(lambda: self._last_seen(peer) > left, "slow for ever")
        missed = max(0, last + OUTAGE - left)
        return self._row("node that works a fifth of the time", missed, closed, recovery)

    def superlink(self) -> Row:
        """Kill the SuperLink in the middle of a round and start it again."""
        last = self._now()
        began = time.monotonic()
        self._deployment.kill("superlink")
        time.sleep(5)
        self._deployment.start("superlink")
        self.reach(last + 1)
        closed = time.monotonic() - began
        everybody = lambda: min(map(self._last_seen, range(NODES))) > last  # noqa: E731
        recovery = closed - 5 + self._deployment.wait(everybody, "nobody comes back")
        missed = max(0, max(map(self._last_seen, range(NODES))) - last - 1)
        return self._row("SuperLink killed for 5 s", missed, closed, recovery)

    def _row(self, fault: str, rounds: int, closed: float, back: float) -> Row:
        row = Row(fault, rounds, round(closed, 1), round(back, 1), self._lost())
        print(row, flush=True)
        return row

    def _now(self) -> int:
        return committed(self._deployment.progress(self._name))

    def _last_seen(self, peer: int) -> int:
        return int(self._deployment.progress(self._name)["last_seen"][str(peer)][0])

    def _lost(self) -> str:
        """Return a description of lost work: a peer whose costs decreased."""
        bills: dict[int, int] = {}
        for line in self._metrics():
            if line["gradient_evaluations"] < bills.get(line["peer"], 0):
                return f"state of peer {line['peer']} before round {line['round']}"
            bills[line["peer"]] = line["gradient_evaluations"]
        return "nothing"

    def _metrics(self) -> list[dict[str, Any]]:
        file = self._deployment.home("operator") / self._name / "metrics.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines(keepends=True)]


@dataclass(frozen=True)
class Absence:
    """Cost of a node that was off while its schedule let it sleep.

    Attributes
    ----------
    asleep, awake : mean seconds of the rounds in which it slept, and of those before.
    took_part : in how many rounds each peer took part.
    """

    asleep: float
    awake: float
    took_part: dict[str, int]


def sleep(deployment: Deployment) -> Absence:
    """A run in which a node is killed as its schedule lets it sleep, and started for its return."""
    first, last = ASLEEP
    rounds, sleeper = last + 4, NODES - 1
    times = [(peer, 1, rounds) for peer in range(sleeper)]
    times += [(sleeper, 1, first - 1), (sleeper, last + 1, rounds)]
    lines = ["peer,from,to", *(",".join(map(str, each)) for each in times)]
    deployment.presence.write_text("\n".join(lines))
    run = deployment.run(
        quadratics(deployment.problem, NODES) | {
            "method": "fedavg", "num-server-rounds": rounds, "evaluate-every": 1,
            "round-seconds": ROUND_SECONDS, "schedule.kind": "trace",
            "schedule.file": str(deployment.presence),
        },
        SCHEDULE,
    )  # fmt: skip
    drill = Drill(deployment, run, SCHEDULE)
    try:
        drill.reach(1)
        awake = drill.reach(first - 1) / (first - 2)
        deployment.kill(*deployment.of_node(sleeper))
        asleep = drill.reach(last - 1)
        deployment.start(*deployment.of_node(sleeper))
        asleep += drill.reach(last)
        finish(deployment, run)
    finally:
        run.kill()
    summary = deployment.home("operator") / SCHEDULE / "summary.json"
    took_part = json.loads(summary.read_text())["took_part"]
    return Absence(round(asleep / (last - first + 1), 1), round(awake, 1), took_part)


@dataclass(frozen=True)
class Lies:
    """Outcome of a run with a lying node.

    Attributes
    ----------
    manner : in which it lied.
    forged : number of forged responses.
    faults : times that the relay went on without it.
    refused : letters that other nodes refused.
    same : whether the others' numbers are those of the run without it, to the byte.
    """

    manner: str
    forged: int
    faults: int
    refused: int
    same: bool


def lie(deployment: Deployment) -> list[Lies]:
    """Run once for each kind of forgery, and once without the hostile node."""
    liar = NODES - 1
    node, executor = deployment.of_node(liar)
    manner = deployment.make_hostile(liar)
    config = quadratics(deployment.problem, NODES) | {
        "method": "fedavg", "num-server-rounds": 8, "evaluate-every": 1, "quorum": NODES - 1,
        "round-seconds": 120, "join-seconds": 20, "trust": str(deployment.trust),
    }  # fmt: skip
    results: dict[str, tuple[list[str], list[str]]] = {}
    for name in ("letters", "replies", "absent"):
        deployment.kill(executor, *([node] if name == "absent" else []))
        if name != "absent":
            deployment.start(executor)
        manner.write_text(name)
        finish(deployment, deployment.run(config, name))
        directory = deployment.home("operator") / name
        results[name] = others(directory, liar), (directory / "flower.log").read_text().splitlines()
        print(f"{name}: finished", flush=True)
    lies = manner.with_suffix(".forged").read_text().split()
    return [
        Lies(
            name,
            lies.count(name),
            sum("continuing without" in line for line in log),
            sum(f"refused the offer of peer {liar}" in line for line in log),
            numbers == results["absent"][0],
        )
        for name, (numbers, log) in results.items()
        if name != "absent"
    ]


@dataclass(frozen=True)
class Told:
    """Last line of the operator's command after a fault.

    Attributes
    ----------
    code : exit code of the command.
    line : its last line.
    seconds : from the fault to the end of the command.
    """

    fault: str
    code: int
    line: str
    seconds: float


def operate(deployment: Deployment, fault: str) -> Told:
    """Let one fault of `OPERATOR` strike a run, and repair it where others follow."""
    config = quadratics(deployment.problem, NODES) | {
        "method": "fedavg", "num-server-rounds": 5, "evaluate-every": 2,
        "round-seconds": ROUND_SECONDS, "join-seconds": 40,
    }  # fmt: skip
    node, executor = deployment.of_node(2)
    if fault == "version":  # Flower may not install an app where another one is
        forbidden = deployment.home(node) / "apps"
        shutil.rmtree(forbidden, ignore_errors=True)
        forbidden.mkdir()
        process = deployment.services[executor].process
        assert process is not None
        inside = ("nsenter", "--mount", "--target", str(process.pid))  # each host has its mounts
        subprocess.run([*inside, "mount", "--bind", forbidden, forbidden], check=True)
        subprocess.run([*inside, "mount", "-o", "remount,ro,bind", forbidden], check=True)
    if fault == "certificate":
        expire(deployment)
    run = deployment.run(config, fault)
    began = time.monotonic()
    try:
        if fault in ("missed", "ctrl-c"):
            Drill(deployment, run, fault).reach(3)
            began = time.monotonic()
        if fault == "missed":
            deployment.kill(node, executor)
        if fault == "ctrl-c":
            run.send_signal(signal.SIGINT)
        deployment.wait(lambda: run.poll() is not None, f"{fault}: the run does not end")
    finally:
        run.kill()
        if fault == "missed":
            deployment.start(node, executor)
        if fault == "version":
            subprocess.run([*inside, "umount", forbidden], check=True)
    assert run.stdout is not None
    last = run.stdout.read().splitlines()[-1]
    return Told(fault, run.returncode, last, round(time.monotonic() - began, 1))


def expire(deployment: Deployment) -> None:
    """Give the relay a certificate that has ended, and restart its SuperLink."""
    key, now = deployment.relay_key, datetime.now(UTC)
    authority = x509.load_pem_x509_certificate(key.with_name("ca.crt").read_bytes())
    ca_key = load_pem_private_key((key.parents[1] / "ca.key").read_bytes(), None)
    old = x509.load_pem_x509_certificate(key.with_name("server.crt").read_bytes())
    ended = x509.CertificateBuilder(
        authority.subject,
        old.subject,
        old.public_key(),
        x509.random_serial_number(),
        now - timedelta(days=9),
        now - timedelta(days=1),
        list(old.extensions),
    ).sign(ca_key, SHA384())  # type: ignore[arg-type]
    key.with_name("server.crt").write_bytes(ended.public_bytes(Encoding.PEM))
    deployment.kill("superlink")
    deployment.start("superlink")


def others(run: Path, hostile: int) -> list[str]:
    """Return the other peers' lines of metrics.jsonl, without the bytes of letters."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kept = [line for line in lines if line["peer"] != hostile]
    return [json.dumps({k: line[k] for k in line if not k.startswith("bytes_")}) for line in kept]


def main() -> None:
    """Run the drills and print the table."""
    if os.geteuid():
        sys.exit("network namespaces need root")
    chosen = sys.argv[1:] or [*ROUNDS, SCHEDULE, *OPERATOR, HOSTILE]
    faults = [fault for fault in chosen if fault in ROUNDS]
    with tempfile.TemporaryDirectory() as directory, network(NODES) as hosts:
        nodes = {peer: hosts[f"node-{peer}"] for peer in range(NODES)}
        place = Path(directory)
        with Deployment(place, hosts["relay"], nodes) as deployment:
            try:
                rows = strike(deployment, faults) if faults else []
                absences = [sleep(deployment)] if SCHEDULE in chosen else []
                lies = lie(deployment) if HOSTILE in chosen else []
                told = [operate(deployment, fault) for fault in OPERATOR if fault in chosen]
            except BaseException:
                for log in sorted((place / "logs").glob("*.log")):
                    print(f"--- {log.name}\n{log.read_text(errors='replace')[-2500:]}")
                raise
    results: tuple[Any, ...] = (*rows, *absences, *lies, *told)
    print(json.dumps([*map(asdict, results)], indent=1))


def strike(deployment: Deployment, faults: Sequence[str]) -> list[Row]:
    """Run with faults; return the cost of each."""
    rounds = FIRST + sum(ROUNDS[fault] for fault in faults)
    run = deployment.run(
        quadratics(deployment.problem, NODES) | {
            "method": "fedavg", "num-server-rounds": rounds, "evaluate-every": 1,
            "round-seconds": ROUND_SECONDS,
        }
    )  # fmt: skip
    drill = Drill(deployment, run)
    try:
        rows = [_struck(fault, drill, deployment) for fault in faults]
        finish(deployment, run)
    finally:
        run.kill()
    final = deployment.progress()
    print(f"{final['status']}: {final['round']} rounds in {final['seconds']:.0f} s")
    return rows


def _struck(fault: str, drill: Drill, deployment: Deployment) -> Row:
    drill.reach(FIRST)
    match fault:
        case "link":
            what = f"link of a node cut for {OUTAGE} rounds"
            return drill.outage(
                what, 1, lambda: plug("node-1", "down"), lambda: plug("node-1", "up")
            )
        case "node":
            what = f"node killed (SIGKILL), restarted after {OUTAGE} rounds"
            services = deployment.of_node(2)
            return drill.outage(
                what, 2, lambda: deployment.kill(*services), lambda: deployment.start(*services)
            )
        case "laptop":
            what = f"node suspended in the middle of a round, awake again after {OUTAGE} rounds"
            return drill.outage(
                what, 1, lambda: send(deployment, 1, signal.SIGSTOP),
                lambda: send(deployment, 1, signal.SIGCONT),
            )  # fmt: skip
        case "slow":
            return drill.slow(2)
        case _:
            return drill.superlink()


def send(deployment: Deployment, peer: int, number: int) -> None:
    """Send a signal to every process of a node."""
    for name in deployment.of_node(peer):
        service = deployment.services[name]
        started = [] if service.process is None else family(service.process.pid)
        for pid in {*started, *guard.working_in(service.home)}:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


if __name__ == "__main__":
    main()
