"""Kills at random instants, clocks that jump, memory that runs out: `python -m tests.drills.kills`.

As root. A relay and three nodes are hosts of their own, as in `tests.drills.faults`; the policies
of all three demand differential privacy, letters are sealed. What must come out is checked, not
only measured: nothing lost, nothing played twice, epsilon exact (`audit`).

- `kills`: SuperLink, relay (its executor and ServerApp), nodes (SuperNode, executor, worker) and
  workers are killed by SIGKILL, `KILLS` in all, up to `PAUSE` seconds after one another.
- `increments`: the same while letters are increments (`letters.scheme`).
- `clock`: the wall clock of a node, then that of the relay's machine, is an hour ahead for `WRONG`
  seconds, then an hour behind. A library that is compiled for it (`cc`) shifts what processes read.
- `memory`: a worker is killed by the kernel because its control group is out of memory.
- `twin`: a second SuperNode with keys of its own is started for the same peer on the same
  directory. The numbers must be those of a run without it.
- `parallel`: four runs at once with a budget of epsilon 3 in each node's policy.
- `models`: four hospitals with three kinds of model and no privacy; a worker, a node, the relay and
  the SuperLink are killed after rounds 1 to 4. The losses must be those of a simulation.

`python -m tests.drills.kills clock memory` runs two of them. SEED chooses the instants.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coterie.app.config.config import Config
from coterie.app.config.schema import Scalar
from coterie.app.runners import guard
from coterie.app.runs import atomic
from coterie.app.runs.rundir import Run
from coterie.clients.engine.accountant import ORDERS, epsilon
from tests.drills.parity import simulated
from tests.harness.deployment import Deployment, committed, family, finish, write_policy
from tests.harness.hosts import network

NODES, KILLS = 3, 30
SEED = int(os.environ.get("SEED", "0"))
VICTIMS = {"worker": 12, "node": 9, "relay": 5, "superlink": 4}
"""Number of kills per process, out of `KILLS`."""
PAUSE = 20.0  # seconds between two kills, at most
WRONG = 60.0  # seconds that a clock is wrong
ROUNDS = 25
NOISE, DELTA, EXAMPLES, STEPS = 60.0, 1e-4, 150, 2
RUN: Mapping[str, Scalar] = {
    "method": "cobo", "cobo.gamma": 0.1, "cobo.sampling": "full", "peers": NODES,
    "dataset": "digits", "partition.kind": "iid", "partition.samples-per-peer": EXAMPLES,
    "model": "linear", "batch-size": 1000, "local-steps": STEPS, "learning-rate": 0.2,
    "evaluate-every": 1, "round-seconds": 60, "join-seconds": 300, "device": "cpu",
    "privacy.kind": "examples", "privacy.noise": NOISE, "privacy.delta": DELTA,
    "privacy.budget": 8.0,
}  # fmt: skip
DEMANDED: Mapping[str, Scalar] = {
    "privacy.kind": "examples", "privacy.max-epsilon": 8.0, "privacy.max-delta": DELTA,
    "answers.max-replays": KILLS,
}  # fmt: skip
HOSPITALS = 4
MODELS: Mapping[str, Scalar] = {
    "method": "stacking", "peers": HOSPITALS, "dataset": "heart-disease", "model": "logistic",
    "peer-models.1": "forest", "peer-models.2": "boosted-trees", "num-server-rounds": 8,
    "evaluate-every": 1, "quorum": HOSPITALS, "round-seconds": 120, "join-seconds": 300,
    "device": "cpu",
}  # fmt: skip
UNIT = np.array(ORDERS) / (2 * (NOISE / 2) ** 2)
"""Rényi divergences of one gradient over all examples, in closed form."""
CRAMPED = 250 << 20  # bytes: enough for Flower's process of a message, too few for PyTorch
CLOCK = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

/* Seconds that the file CLOCK says; clocks that do not jump are left alone. */
static long ahead(void) {
    long seconds = 0;
    const char *path = getenv("CLOCK");
    FILE *file = path ? fopen(path, "re") : NULL;
    if (file) {
        if (fscanf(file, "%ld", &seconds) != 1) seconds = 0;
        fclose(file);
    }
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += ahead();
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec fine;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &fine);
    now->tv_sec = fine.tv_sec;
    now->tv_usec = fine.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}
"""


@dataclass(frozen=True)
class Account:
    """Outcome of one peer.

    Attributes
    ----------
    rounds : reported. played : times that a round was begun.
    kept : gradients that its last state has counted.
    charged : gradients on its ledger: `kept`, and what was charged and lost in kills.
    epsilon : as it was reported at the end.
    """

    peer: int
    rounds: int
    played: int
    kept: int
    charged: int
    epsilon: float


class Patient:
    """An operator who resumes a run as often as it fails."""

    def __init__(self, deployment: Deployment, keys: Mapping[str, Scalar]) -> None:
        self.deployment, self.name, self.resumed = deployment, "run", 0
        self._command = deployment.run(keys, self.name)

    @property
    def round(self) -> int:
        """The last round that the relay has committed."""
        return committed(self.deployment.progress(self.name))

    def is_over(self) -> bool:
        """Return whether the run has finished; resume it if it has failed."""
        if self._command.poll() is None:
            return False
        if self._command.returncode:
            self._command.communicate()
            self.resumed += 1
            self._command = self.deployment.resume(self.name)
            return False
        return True

    def wait(self, until: Callable[[], bool], seconds: float = 900) -> float:
        """Wait until something is so; how long it took."""
        return self.deployment.wait(
            lambda: self.is_over() or until(), f"{self.name}: round {self.round} does not end",
            seconds,
        )  # fmt: skip

    def end(self) -> None:
        """Wait for the end."""
        self.wait(lambda: False, 3600)


# ---- what must come out -------------------------------------------------------------------------


def audit(
    deployment: Deployment, name: str = "run", peers: int = NODES, *, answers: bool = True
) -> list[Account]:
    """Check every peer's account of a run.

    Parameters
    ----------
    answers : whether each letter that a peer hears is answered with a gradient.

    Raises
    ------
    RuntimeError
        One of these is not so.

    - In consecutive reports a peer has computed what one play of the round computes: a gradient for
      each letter that it answered and `STEPS` of its own. Nothing was lost or counted twice.
    - No round was played after it had been committed.
    - What is charged for a round is at most what its plays could compute, and at least what the
      play that counts has computed.
    - Each line of the ledger is a whole number of gradients in closed form, at every order, and the
      epsilon reported at the end is that of their sum.
    """
    directory = deployment.home("operator") / name
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    rows: dict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
    for row in map(json.loads, lines):
        require(row["round"] not in rows[row["peer"]], f"two reports of round {row['round']}")
        rows[row["peer"]][row["round"]] = row
    return [_account(deployment, peer, name, rows[peer], answers) for peer in range(peers)]


def _account(
    deployment: Deployment,
    peer: int,
    name: str,
    rows: Mapping[int, Mapping[str, Any]],
    answers: bool,
) -> Account:
    institution = deployment.home(f"node-{peer}") / "institution"
    asked = [
        line
        for line in atomic.lines(institution / f"ledger-{peer:04d}.jsonl")
        if line["run"] == name
    ]
    entries = [line for line in asked if "heard" in line]
    offers: dict[int, list[int]] = defaultdict(list)  # round -> letters answered in each play
    updates = Counter(line["round"] for line in entries if line["heard"] == "answer")
    for line in entries:
        require(line["round"] > line["committed"], f"round {line['round']} was over")
        if line["heard"] == "offer":
            offers[line["round"]].append(len(line["from"]) * answers)
    charged = Counter[int]()
    total = np.zeros(len(ORDERS))
    for line in atomic.lines(institution / f"privacy-{peer:04d}.jsonl"):
        cost = np.array(line["rdp"])
        gradients = round(cost[0] / UNIT[0])
        require(np.allclose(cost, gradients * UNIT, rtol=1e-12), "no whole number of gradients")
        charged[line["round"]] += gradients
        total += cost
    kept = {t: row["gradient_evaluations"] // EXAMPLES for t, row in rows.items()}
    require(all(row["gradient_evaluations"] % EXAMPLES == 0 for row in rows.values()), "examples")
    for t, gradients in kept.items():
        before = [kept[s] for s in kept if s < t]
        require(gradients >= max(before, default=0), f"what was learnt before round {t} is lost")
        if t - 1 in kept:
            step = gradients - kept[t - 1]
            require(step == offers[t][-1] + STEPS, f"round {t} counts {step} gradients")
            require(charged[t] >= step, f"round {t} is not paid for")
        most = sum(offers[t]) + STEPS * max(updates[t], len(offers[t]))
        require(charged[t] <= most, f"round {t} was charged {charged[t]}, more than was played")
    last = max(rows)
    reported = rows[last]["epsilon"]
    require(math.isclose(reported, epsilon(total[None], DELTA)[0], rel_tol=1e-12), "epsilon")
    require(kept[last] <= sum(charged.values()), "gradients that nobody paid for")
    played = sum(map(len, offers.values()))
    return Account(
        peer, len(rows) - 1, played, kept[last], sum(charged.values()), round(reported, 4)
    )


def require(so: bool, otherwise: str) -> None:
    """End with a sentence unless something is so."""
    if not so:
        raise RuntimeError(otherwise)


# ---- kills --------------------------------------------------------------------------------------


def kills(deployment: Deployment, **keys: Scalar) -> Iterator[object]:
    """Thirty of them over one run."""
    draw = random.Random(SEED)
    victims = [victim for victim, times in VICTIMS.items() for _ in range(times)]
    draw.shuffle(victims)
    run, began = Patient(deployment, {**RUN, **keys, "num-server-rounds": ROUNDS}), time.monotonic()
    run.wait(lambda: run.round >= 1)
    for number, victim in enumerate(victims):
        until = time.monotonic() + draw.uniform(0, PAUSE)
        run.wait(lambda until=until: time.monotonic() > until)  # type: ignore[misc]
        require(not run.is_over(), f"the run was over after {number} kills")
        peer = draw.randrange(NODES)
        if victim == "worker":
            run.wait(lambda peer=peer: bool(workers(deployment, peer)))  # type: ignore[misc]
        before, note = run.round, _kill(deployment, victim, peer)
        print(f"{number + 1} of {KILLS}, after round {before}: {note}", flush=True)
        if victim in ("relay", "superlink"):
            run.wait(lambda before=before: run.round > before)  # type: ignore[misc]
    run.end()
    yield f"{KILLS} kills, {run.resumed} times resumed, {time.monotonic() - began:.0f} s"
    yield from audit(deployment)


def increments(deployment: Deployment) -> Iterator[object]:
    """Thirty kills while readers compute models from increments."""
    yield from kills(deployment, **{"letters.scheme": "increments"})


def _kill(deployment: Deployment, victim: str, peer: int) -> str:
    if victim == "worker":
        for pid in workers(deployment, peer):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return f"the worker of node {peer}"
    names = deployment.of_node(peer) if victim == "node" else (victim,)
    deployment.kill(*names)
    deployment.start(*names)
    return f"node {peer}" if victim == "node" else f"the {victim}"


def workers(deployment: Deployment, peer: int) -> list[int]:
    """Return the worker process, if there is one."""
    pids = []
    for pid in guard.working_in(deployment.home(f"node-{peer}")):
        with suppress(OSError):
            if (
                b"coterie.app.institution.process.worker"
                in Path(f"/proc/{pid}/cmdline").read_bytes()
            ):
                pids.append(pid)
    return pids


# ---- clocks -------------------------------------------------------------------------------------


def clock(deployment: Deployment) -> Iterator[object]:
    """The clock of a node and that of the relay, each an hour ahead, then an hour behind.

    Flower refuses requests of a SuperNode whose clock is minutes away from the SuperLink's. While
    a node's clock is wrong, the run continues without it; while the relay's is, it stands still.
    """
    run = Patient(deployment, {**RUN, "num-server-rounds": 20})
    run.wait(lambda: run.round >= 2)
    for host in ("node-1", "relay"):
        for hours in (1, -1):
            before, until = run.round, time.monotonic() + WRONG
            set_clock(deployment, host, hours)
            run.wait(lambda until=until: time.monotonic() > until)  # type: ignore[misc]
            print(
                f"{host} at {hours:+} h: {run.round - before} rounds in {WRONG:.0f} s", flush=True
            )
        before = run.round
        set_clock(deployment, host, 0)
        seconds = run.wait(lambda before=before: run.round > before and everybody_is_here(run))  # type: ignore[misc]
        require(not run.is_over(), "the run was over before the clocks were right")
        print(f"{host} right again: everybody back after {seconds:.0f} s", flush=True)
    run.end()
    yield f"{run.resumed} times resumed"
    yield from audit(deployment)


def everybody_is_here(run: Patient) -> bool:
    """Return whether all peers ended the last round."""
    seen = run.deployment.progress(run.name).get("last_seen", {})
    return len(seen) == NODES and all(t == run.round for t, _ in seen.values())


def set_clock(deployment: Deployment, host: str, hours: int) -> None:
    """Let a host's wall clock be so many hours ahead of the true one."""
    atomic.write(deployment.directory / f"{host}.clock", f"{hours * 3600}\n")


def clocked(deployment: Deployment) -> None:
    """Let every service read its host's clock, which a file shifts."""
    source, library = (deployment.directory / name for name in ("clock.c", "clock.so"))
    source.write_text(CLOCK)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    for name, service in deployment.services.items():
        host = "relay" if name in ("relay", "superlink") else name.removesuffix("-executor")
        set_clock(deployment, host, 0)
        config = (
            "env", f"LD_PRELOAD={library}", f"CLOCK={deployment.directory / host}.clock",
        )  # fmt: skip
        service.command = (*config, *service.command)


# ---- memory -------------------------------------------------------------------------------------


def memory(deployment: Deployment) -> Iterator[object]:
    """Limit the memory of three nodes' workers in turn."""
    run, died = Patient(deployment, {**RUN, "num-server-rounds": 2 * NODES + 3}), 0
    for peer in range(NODES):
        run.wait(lambda peer=peer: run.round >= 2 * peer + 1)  # type: ignore[misc]
        executor = deployment.services[deployment.of_node(peer)[1]].process
        assert executor is not None
        with cramped(executor.pid) as killed:
            _kill(deployment, "worker", peer)
            seconds = run.wait(lambda killed=killed: killed() > 1)  # type: ignore[misc]
            print(f"node {peer}: {killed()} processes in {seconds:.0f} s", flush=True)
            died += killed()
    run.end()
    yield f"{died} processes killed for memory; {run.resumed} times resumed"
    yield from audit(deployment)


@contextmanager
def cramped(pid: int) -> Iterator[Callable[[], int]]:
    """Let a process and what it starts have little memory; how many the kernel has killed."""
    root = Path("/sys/fs/cgroup")
    is_old = (root / "memory").is_dir()  # version 1
    root = root / "memory" if is_old else root
    group = root / f"coterie-{pid}"
    group.mkdir()
    limit = group / ("memory.limit_in_bytes" if is_old else "memory.max")
    events = group / ("memory.oom_control" if is_old else "memory.events")
    try:
        limit.write_text(str(CRAMPED))
        for member in family(pid):
            (group / "cgroup.procs").write_text(str(member))
        yield lambda: int(dict(x.split() for x in events.read_text().splitlines())["oom_kill"])
    finally:
        limit.write_text("-1" if is_old else "max")
        for left in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (root / "cgroup.procs").write_text(left)
        with suppress(OSError):
            group.rmdir()


# ---- two processes on one directory -------------------------------------------------------------


def twin(deployment: Deployment) -> Iterator[object]:
    """Run the same configuration twice, the second time with two SuperNodes for peer 0."""
    plain = {key: value for key, value in RUN.items() if not key.startswith("privacy")}
    config = {**plain, "num-server-rounds": 6, "batch-size": 16}
    write_policy(deployment.policy)
    finish(deployment, deployment.run(config, "alone"), 900)
    run = deployment.run(config, "twins")
    deployment.wait(lambda: committed(deployment.progress("twins")) >= 1, "no round ends", 300)
    deployment.start("twin-0", "twin-0-executor")
    finish(deployment, run, 900)
    metrics = [deployment.home("operator") / each / "metrics.jsonl" for each in ("alone", "twins")]
    alone, twins = (_without_bytes(file) for file in metrics)
    require(alone == twins, "two SuperNodes on one directory change the numbers")
    log = (deployment.home("operator") / "twins" / "flower.log").read_text()
    yield f"same numbers; the second SuperNode was refused {log.count('of another node')} times"


def _without_bytes(file: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [{k: row[k] for k in row if not k.startswith("bytes_")} for row in rows]


# ---- runs at once -------------------------------------------------------------------------------


def parallel(deployment: Deployment) -> Iterator[object]:
    """Four runs at once, whose budgets the nodes' ledgers share."""
    write_policy(deployment.policy, **{**DEMANDED, "privacy.max-epsilon": 3.0})
    config = {**RUN, "num-server-rounds": 4, "privacy.noise": 12.0, "privacy.budget": 3.0}
    runs = [deployment.run(config, f"run-{number}") for number in range(4)]
    for run in runs:
        finish(deployment, run, 1800)
    for peer in range(NODES):
        institution = deployment.home(f"node-{peer}") / "institution"
        lines = atomic.lines(institution / f"privacy-{peer:04d}.jsonl")
        spent = epsilon(np.sum([line["rdp"] for line in lines], axis=0)[None], DELTA)[0]
        require(spent <= 3.0, f"peer {peer} spent {spent:.2f} of 3")
        yield f"peer {peer} spent {spent:.3f} of 3 in {len({x['run'] for x in lines})} runs"


# ---- any model ----------------------------------------------------------------------------------


def models(deployment: Deployment) -> Iterator[object]:
    """Kill each process once while hospitals with different models stack predictions."""
    write_policy(deployment.policy)
    run, began = Patient(deployment, MODELS), time.monotonic()
    for after, victim in enumerate(VICTIMS, start=1):
        run.wait(lambda after=after: run.round >= after)  # type: ignore[misc]
        require(not run.is_over(), f"the run was over before round {after}")
        print(f"after round {run.round}: {_kill(deployment, victim, after - 1)}", flush=True)
    run.end()
    seconds = time.monotonic() - began
    ended = Run.read(deployment.home("operator") / run.name)
    require(bool(ended.reported[-1].all()), "a hospital is missing in the last round")
    config = Config.from_flat({**MODELS, "run-dir": str(deployment.directory / "simulated")})
    expected = simulated(config).metric("test_loss")[-1]
    require(bool((ended.metric("test_loss")[-1] == expected).all()), "the test losses differ")
    sent = ended.metric("bytes_sent")[-1].astype(int).tolist()
    yield f"{run.resumed} times resumed, {seconds:.0f} s; bytes sent: {sent}"


SCENARIOS: Mapping[str, Callable[[Deployment], Iterator[object]]] = {
    "kills": kills, "increments": increments, "clock": clock, "memory": memory, "twin": twin,
    "parallel": parallel, "models": models,
}  # fmt: skip


def main() -> None:
    """Run the scenarios, each in a separate deployment."""
    if os.geteuid():
        sys.exit("network namespaces need root")
    for name in sys.argv[1:] or SCENARIOS:
        peers = HOSPITALS if name == "models" else NODES
        with tempfile.TemporaryDirectory() as directory, network(peers) as hosts:
            nodes = {peer: hosts[f"node-{peer}"] for peer in range(peers)}
            deployment = Deployment(Path(directory), hosts["relay"], nodes)
            write_policy(deployment.policy, **DEMANDED)
            if name == "clock":
                clocked(deployment)
            if name == "twin":
                deployment.add_twin(0, nodes[0])
            with deployment:
                try:
                    for result in SCENARIOS[name](deployment):
                        print(f"{name}: {result}", flush=True)
                except BaseException:
                    for log in sorted((Path(directory) / "logs").glob("*.log")):
                        print(f"--- {log.name}\n{log.read_text(errors='replace')[-2500:]}")
                    raise


if __name__ == "__main__":
    main()
