"""Runs with nothing replaced: `flwr run` with Ray, and a deployment on this machine's loopback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from app.runners.superlink import free_port
from app.runs import progress
from app.runs.rundir import Run
from app.security.trust import create
from benchmarks.deployment import committed, family
from tests.inprocess import ROOT, simulate

pytestmark = pytest.mark.e2e

BIN = Path(sys.executable).parent
PEERS, ROUNDS = 3, 2


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | int]:
    """Run configuration of three peers on quadratics."""
    path = tmp_path_factory.mktemp("problem") / "problem.json"
    content = {
        "curvature": [[1.0, 0.5], [0.8, 0.6], [1.2, 0.9]],
        "centre": [[0.0, 1.0], [0.1, 1.1], [5.0, -3.0]],
        "noise": [0.1, 0.1, 0.1],
        "start": [1.0, 1.0],
    }
    path.write_text(json.dumps(content))
    return {
        "dataset": "quadratic",
        "quadratic.file": str(path),
        "peers": PEERS,
        "num-server-rounds": ROUNDS,
        "evaluate-every": ROUNDS,
        "cobo.sampling": "full",
    }


@pytest.fixture(scope="module")
def expected(problem: dict[str, str | int], tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same run in one node of this process."""
    directory = tmp_path_factory.mktemp("expected")
    simulate({**problem, "run-dir": str(directory)}, nodes=1)
    return Run.read(directory)


@contextmanager
def launched(
    problem: dict[str, str | int], out: Path, *options: str, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """`python -m app run` into `out`/run."""
    overrides = [f"{key}={value}" for key, value in problem.items()]
    command = ["-m", "app", "run", *overrides, "--out", str(out), "--name", "run", *options]
    with subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as running:
        try:
            yield running
        finally:
            running.terminate()


def wait_for_success(running: subprocess.Popen[str]) -> None:
    said, _ = running.communicate(timeout=300)
    assert running.returncode == 0, said


def same_results(run: Run, expected: Run) -> None:
    assert run.rounds.tolist() == expected.rounds.tolist() == [0, ROUNDS]
    for name, values in expected.metrics.items():
        np.testing.assert_allclose(run.metrics[name], values, rtol=1e-10, err_msg=name)
    np.testing.assert_allclose(run.weights, expected.weights, rtol=1e-10)


def test_flwr_run_with_ray(problem: dict[str, str | int], expected: Run, tmp_path: Path) -> None:
    with launched(problem, tmp_path, "--nodes", "2") as running:
        wait_for_success(running)
    same_results(Run.read(tmp_path / "run"), expected)
    assert len(list((tmp_path / "run" / "models").iterdir())) == PEERS


@contextmanager
def process(log: Path, home: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of Flower's, ended with all its children."""
    environment = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
    }
    with log.open("ab") as out:
        running = subprocess.Popen(
            [str(BIN / command[0]), *command[1:]],
            cwd=home,
            env=environment,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield running
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()


@dataclass
class Federation:
    """A SuperLink and its SuperNodes; FLWR_HOME `home` knows it as `loopback`.

    The SuperNodes have keys and trust each other, unless they are not `sealed`.
    """

    home: Path
    port: int
    superlink: subprocess.Popen[bytes]
    sealed: bool = True

    def supernode(self, peer: int, name: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """A SuperNode that hosts `peer` and keeps its files below `home`."""
        command = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{self.port}"]
        own = f'peer={peer} out="{self.home}"'
        if self.sealed:
            own += f' keys="{self.home}/peer-{peer}.key" trust="{self.home}/trust.toml"'
        options = ["--port", str(free_port()), "--node-config", own]
        return process(self.home / f"{name}.log", self.home, *command, *options)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    home, port = tmp_path / "flwr", free_port()
    home.mkdir()
    connection = {"address": f"127.0.0.1:{port}", "insecure": True}
    (home / "config.toml").write_text(tomli_w.dumps({"superlink": {"loopback": connection}}))
    command = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port)]
    no_installation = "--disable-runtime-dependency-installation"
    entries = [create(f"peer-{peer}", home, peer)[2] for peer in range(PEERS)]
    (home / "trust.toml").write_text("\n".join(entry.toml() for entry in entries))
    on_disk = ["--database", str(home / "state.db")]
    with process(tmp_path / "superlink.log", home, *command, no_installation, *on_disk) as relay:
        wait_until_healthy(port)
        yield Federation(home, port, relay)


def wait_until_healthy(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1):
                return
        except OSError:
            assert time.monotonic() < deadline, "the SuperLink does not come up"
            time.sleep(0.1)


def test_a_hospital_restarts_in_mid_run_and_is_welcomed_back(
    problem: dict[str, str | int], federation: Federation, tmp_path: Path
) -> None:
    longer = problem | {"method": "fedavg", "peers": 2, "num-server-rounds": 7, "evaluate-every": 7}
    two = json.loads(Path(str(problem["quadratic.file"])).read_text())
    file = tmp_path / "two.json"
    file.write_text(json.dumps({key: value[:2] for key, value in two.items()}))
    longer |= {"quadratic.file": str(file)}
    del longer["cobo.sampling"]
    home = str(federation.home)
    with ExitStack() as stack:
        stack.enter_context(federation.supernode(0, "stays"))
        goes = stack.enter_context(federation.supernode(1, "goes"))
        running = launched(longer, tmp_path, "--federation", "loopback", FLWR_HOME=home)
        relay = stack.enter_context(running)
        while committed(progress.read(tmp_path / "run")) < 1:
            assert relay.poll() is None, relay.communicate()[0]
            time.sleep(0.1)
        goes.terminate()
        goes.wait()
        stack.enter_context(federation.supernode(1, "returns"))
        wait_for_success(relay)
    run = Run.read(tmp_path / "run")
    assert run.reported[-1].all()
    assert "Start `flwr-clientapp`" in (federation.home / "returns.log").read_text()


# --- what the relay can see ------------------------------------------------------------------

_DIMENSION = 4096


@pytest.mark.parametrize("sealed", [True, False])
def test_planted_weights_are_nowhere_at_the_relay_if_letters_are_sealed(
    sealed: bool, federation: Federation, tmp_path: Path
) -> None:
    """A model of random numbers that hardly moves, looked for in the relay's memory and files.

    Plain letters are the control: there the same search has to find them in memory.
    """
    federation.sealed = sealed
    planted = np.random.default_rng().uniform(1, 2, _DIMENSION)
    still: dict[str, Any] = {"curvature": 2 * [_DIMENSION * [1.0]], "noise": [0.0, 0.0]}
    still |= {"centre": 2 * [planted.tolist()], "start": planted.tolist()}
    file = tmp_path / "planted.json"
    file.write_text(json.dumps(still))
    run_config: dict[str, str | int] = {
        "method": "fedavg", "dataset": "quadratic", "quadratic.file": str(file), "peers": 2,
        "num-server-rounds": 2, "evaluate-every": 2, "sealing": "auto" if sealed else "false",
    }  # fmt: skip
    # Two places in it: a chunk or a page may begin within one of them, not within both.
    needles = [planted[k : k + 4].tobytes() for k in (_DIMENSION // 3, _DIMENSION // 2)]
    home, found, looks = str(federation.home), set[str](), 0
    with ExitStack() as stack:
        for peer in (0, 1):
            stack.enter_context(federation.supernode(peer, f"node-{peer}"))
        running = launched(run_config, tmp_path, "--federation", "loopback", FLWR_HOME=home)
        relay = stack.enter_context(running)
        while relay.poll() is None:
            for pid in family(federation.superlink.pid):  # the ServerApp is a child of it
                found |= {f"memory of {name_of(pid)}"} if holds(memory(pid), needles) else set()
            looks += 1
            time.sleep(1)  # the run needs the core, too
        wait_for_success(relay)
    hospitals = federation.home / "run"
    files = {path for path in tmp_path.rglob("*") if path.is_file()}
    holding = {path for path in files if holds(iter([path.read_bytes()]), needles)}
    assert any(hospitals in path.parents for path in holding), "the search finds what is there"
    found |= {path.name for path in holding if hospitals not in path.parents}
    assert looks >= 5
    if sealed:
        assert not found
    else:
        assert any(place.startswith("memory of") for place in found)


def name_of(pid: int) -> str:
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        return next((Path(w.decode()).name for w in words if b"flwr" in w or b"flower" in w), "?")
    return "?"


def memory(pid: int) -> Iterator[bytes]:
    """Everything that a process has in memory and may write to."""
    with suppress(OSError), open(f"/proc/{pid}/mem", "rb", buffering=0) as content:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            span, mode, *_ = line.split()
            first, last = (int(end, 16) for end in span.split("-"))
            if mode.startswith("rw"):
                with suppress(OSError, ValueError):
                    content.seek(first)
                    yield content.read(last - first)


def holds(content: Iterator[bytes], needles: list[bytes]) -> bool:
    return any(needle in part for part in content for needle in needles)
