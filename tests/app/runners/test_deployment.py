"""Two hospitals and a relay on this machine, as in docker/compose.yaml, shared by all tests here.

TLS, nodes known by their keys, sealed letters, an executor each. The tests run in their order: one
finished run is looked at from several sides, then a hospital restarts, and at last both come
without keys.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from rich.console import Console

from coterie.app.cli.main import main
from coterie.app.config.schema import Scalar
from coterie.app.institution.commands import status
from coterie.app.institution.security.seal import KEY
from coterie.app.runners import submission
from coterie.app.runs import atomic
from coterie.app.runs.rundir import Run
from tests.drills.parity import difference
from tests.harness.deployment import (
    CONNECTION,
    Deployment,
    Host,
    committed,
    family,
    finish,
    write_policy,
)
from tests.inprocess import simulate

pytestmark = pytest.mark.e2e

PEERS, DIMENSION = 2, 4096
ONE_ROUND: dict[str, Scalar] = {"num-server-rounds": 1, "evaluate-every": 1}


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    hosts = {peer: Host() for peer in range(PEERS)}
    with Deployment(tmp_path_factory.mktemp("deployment"), Host(), hosts) as started:
        yield started


# --- a run of hospitals that have keys -----------------------------------------------------------


@dataclass(frozen=True)
class Finished:
    """Run with known models, and the places where they could be seen meanwhile."""

    config: dict[str, Scalar]
    run: Run
    seen: frozenset[str]


@pytest.fixture(scope="module")
def sealed(deployment: Deployment) -> Finished:
    method: dict[str, Scalar] = {"method": "cobo", "cobo.sampling": "full", "sealing": "auto"}
    return watched(deployment, ONE_ROUND | method, "sealed")


def test_a_secure_deployment_computes_what_a_simulation_does(
    sealed: Finished, tmp_path: Path
) -> None:
    simulate(sealed.config | {"run-dir": str(tmp_path)}, nodes=1)
    expected = Run.read(tmp_path)
    assert difference(sealed.run, expected) < 1e-10
    assert sealed.run.names == tuple(f"node-{peer}" for peer in range(PEERS)), "as their keys"
    losses = expected.metric("test_loss")
    assert (losses[-1] < losses[0]).all()


def test_the_letters_of_a_run_are_accounted_for(deployment: Deployment, sealed: Finished) -> None:
    for peer in range(PEERS):
        home = deployment.home(f"node-{peer}") / "sealed"
        assert (home / "models" / f"peer-{peer:04d}.safetensors").is_file()
        audit = (home / f"audit-{peer:04d}.jsonl").read_text().splitlines()
        letters = [json.loads(line) for line in audit]
        assert all(letter["sealed"] for letter in letters)
        # Of each pair an offer to all, then an answer each way.
        verdicts = Counter(letter["verdict"] for letter in letters)
        assert verdicts == {"sent": PEERS, "accepted": 2 * (PEERS - 1)}
    assert sealed.run.progress["sealing_bytes"] == 2 * PEERS * (PEERS - 1) * KEY
    assert not (sealed.run.directory / "models").exists()


def test_the_relay_never_holds_a_sealed_model(sealed: Finished) -> None:
    """The last test of this module is its control: the same search finds letters without seals."""
    assert not sealed.seen


def test_status_shows_the_run_and_its_nodes(
    deployment: Deployment, sealed: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(deployment.home("operator")))
    console = Console(width=120)
    with console.capture() as shown:
        status.show(console, status.read(CONNECTION))
    assert re.search(r"\d+ +coterie/coterie +finished:completed +\d", shown.get())
    online, shown_of = re.findall(r"(\d+) +online +2\d{3}-", shown.get()), shown.get()
    with console.capture() as shown:
        status.show(console, status.read(str(sealed.run.directory)))
    of_peers = re.findall(r"node-\d +1 +.* ago +(\d+)", shown.get())
    assert set(of_peers) == set(online), "the number of each hospital, for `unregister`"
    assert len(online) == PEERS
    assert re.search(r"127.0.0.1:\d+: certificate valid until 2\d{3}-.* days left: renew", shown_of)
    assert re.search(r"letters [\d.]+ kB, sealing [\d.]+ k?B, line [\d.]+ [kM]B, in ", shown.get())
    home = deployment.home("node-0")
    with console.capture() as shown:
        status.show(console, status.read(str(home)))
    assert re.search(r"last message from a relay: \d+ s ago; executor runs; .* free", shown.get())


def test_a_relay_says_who_is_ready(
    deployment: Deployment, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(deployment.home("operator")))
    config, _ = planted(deployment.problem)
    items = [f"{key}={value}" for key, value in config.items()]
    out = str(deployment.home("operator"))
    assert main(["preflight", "--federation", CONNECTION, "--out", out, *items]) == 0
    asks, *lines, ready = capsys.readouterr().out.splitlines()
    assert asks == "the relay asks all nodes and waits for them, at most 300 s"
    assert ready == "ready: every peer"
    for peer in range(PEERS):
        assert re.search(rf"^ok  peer {peer}: versions: flwr .*; data: train ", lines[peer])


@pytest.mark.long
def test_nodes_with_flowers_own_services_compute_the_same(tmp_path: Path) -> None:
    started = Deployment(tmp_path / "own", Host(), {peer: Host() for peer in range(PEERS)})
    started.use_flowers_services()
    with started:
        finished = watched(started, ONE_ROUND | {"method": "fedavg"}, "own")
        simulate(finished.config | {"run-dir": str(tmp_path / "simulated")}, nodes=1)
    assert difference(finished.run, Run.read(tmp_path / "simulated")) < 1e-10


@pytest.mark.long
def test_a_flower_without_its_private_names_computes_the_same(tmp_path: Path) -> None:
    """And the relay says so: it holds whole letters, still sealed."""
    started = Deployment(tmp_path / "public", Host(), {peer: Host() for peer in range(PEERS)})
    started.hide_private_names()
    with started:
        method: dict[str, Scalar] = {"method": "cobo", "cobo.sampling": "full", "sealing": "auto"}
        finished = watched(started, ONE_ROUND | method, "public")
        simulate(finished.config | {"run-dir": str(tmp_path / "simulated")}, nodes=1)
        said = (finished.run.directory / "flower.log").read_text()
    assert difference(finished.run, Run.read(tmp_path / "simulated")) < 1e-10
    assert not finished.seen
    assert "the relay holds whole letters in its memory" in said


# --- hospitals that go ---------------------------------------------------------------------------


@pytest.mark.long
def test_a_hospital_restarts_in_mid_run_and_is_welcomed_back(
    deployment: Deployment, tmp_path: Path
) -> None:
    """One has a forest, the other logistic regression; the end is that of a simulation."""
    config: dict[str, Scalar] = {
        "method": "stacking", "dataset": "heart-disease", "peers": PEERS, "partition.kind": "iid",
        "model": "logistic", "peer-models": '"1" = "forest"', "forest.trees": 5,
        "num-server-rounds": 7, "evaluate-every": 7,
    }  # fmt: skip
    running = deployment.run(config | {"sealing": "auto", "track": "tensorboard"}, "restart")
    deployment.wait(lambda: committed(deployment.progress("restart")) >= 1, "no round is committed")
    shut_down(deployment, 1)
    deployment.start(*deployment.of_node(1))
    finish(deployment, running)
    directory = deployment.home("operator") / "restart"
    run = Run.read(directory)
    assert run.reported[-1].all()
    simulate(config | {"run-dir": str(tmp_path)}, nodes=1)
    losses = run.metric("test_loss")[-1], Run.read(tmp_path).metric("test_loss")[-1]
    np.testing.assert_allclose(*losses, rtol=1e-10)
    (events,) = directory.glob("events.out.tfevents.*")
    assert b"test_loss/mean" in events.read_bytes()


@pytest.mark.long
def test_a_hospital_that_misses_the_end_has_its_last_evaluated_model(
    deployment: Deployment,
) -> None:
    """And the operator is told: in the summary, on the page, by the exit code."""
    config, _ = planted(deployment.problem)
    rounds: dict[str, Scalar] = {"method": "fedavg", "num-server-rounds": 5, "evaluate-every": 2}
    running = deployment.run(config | rounds | {"round-seconds": 20}, "away")
    deployment.wait(lambda: committed(deployment.progress("away")) >= 3, "no round is committed")
    shut_down(deployment, 1)
    output, _ = running.communicate(timeout=240)
    deployment.start(*deployment.of_node(1))
    line = "node-1 was away at the end, after round [34] of 5, and has its model of round [24]"
    assert running.returncode == 3, output
    assert re.search(f"^finished, but {line}", output.splitlines()[-1])
    run = Run.read(deployment.home("operator") / "away")
    (said,) = json.loads((run.directory / "summary.json").read_text())["away"]
    assert re.fullmatch(line, said)
    home = deployment.home("node-1") / "away" / "models"
    card = json.loads((home / "peer-0001.json").read_text())
    assert (card["round"], card["rounds"]) == (int(said[-1]), 5)
    assert (home / "peer-0001.safetensors").is_file()


@pytest.mark.long
def test_ctrl_c_and_stop_end_the_run_at_its_hospitals(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A run that is alive is not resumed a second time; a stopped one goes on with its log."""
    monkeypatch.setenv("FLWR_HOME", str(deployment.home("operator")))
    config, _ = planted(deployment.problem)
    rounds: dict[str, Scalar] = {"method": "fedavg", "num-server-rounds": 99, "evaluate-every": 1}
    running = deployment.run(config | rounds, "stopped")
    directory = deployment.home("operator") / "stopped"
    deployment.wait(lambda: committed(deployment.progress("stopped")) >= 1, "no round is committed")
    assert main(["resume", str(directory), "--federation", CONNECTION]) == 2
    assert re.search(
        rf"is in progress \(run \d+ of {CONNECTION}, running\)", capfd.readouterr().err
    )
    running.send_signal(signal.SIGINT)
    output, _ = running.communicate(timeout=60)
    assert running.returncode == 130, output
    assert f"interrupted; continue with: coterie resume stopped --federation {CONNECTION}" in output
    assert submission.submissions(directory)[-1]["status"] == "finished:stopped"
    assert deployment.progress("stopped")["status"] == "stopped"
    again = deployment.resume("stopped")
    at = committed(deployment.progress("stopped"))
    deployment.wait(lambda: committed(deployment.progress("stopped")) > at, "it does not go on")
    again.send_signal(signal.SIGTERM)  # a terminal that is closed leaves the run alone
    again.communicate(timeout=60)
    assert main(["stop", str(directory)]) == 0
    assert main(["stop", str(directory)]) == 2
    assert deployment.progress("stopped")["status"] == "stopped"
    starts = [
        line
        for line in (directory / "relay.log").read_text().splitlines()
        if "peers, 99 rounds" in line
    ]
    assert len(starts) == 2, "the log of the first part is still there"
    assert [each["status"] for each in submission.submissions(directory)] == [
        "finished:stopped"
    ] * 2


@pytest.mark.long
def test_a_run_that_no_executor_takes_says_so_and_is_withdrawn(deployment: Deployment) -> None:
    config, _ = planted(deployment.problem)
    deployment.kill("relay")
    running = deployment.run(config | ONE_ROUND | {"join-seconds": 20}, "untaken")
    output, _ = running.communicate(timeout=120)
    deployment.start("relay")
    assert running.returncode == 1
    waits, failed = [line for line in output.splitlines() if "no executor has taken run" in line]
    assert (
        "is the relay's executor up (coterie-relay-executor)? Waiting for it, at most 20 s" in waits
    )
    assert failed.startswith("Flower could not start: no executor")
    directory = deployment.home("operator") / "untaken"
    assert submission.submissions(directory)[-1]["status"] == "finished:stopped"


@pytest.mark.long
def test_a_run_waits_until_every_hospital_has_approved_it(
    deployment: Deployment, capsys: pytest.CaptureFixture[str]
) -> None:
    write_policy(deployment.policy, approval="digest")
    config, _ = planted(deployment.problem)
    running = deployment.run(config | ONE_ROUND | {"method": "fedavg"}, "waits")
    homes = [deployment.home(f"node-{peer}") / "waits" for peer in range(PEERS)]
    files = [home / "decisions.jsonl" for home in homes]
    deployment.wait(
        lambda: all(file.exists() and atomic.lines(file) for file in files), "no node was asked"
    )
    for home in homes:
        digest = str(atomic.lines(home / "decisions.jsonl")[-1]["digest"])
        assert main(["approve", str(home)]) == 2
        assert not main(["approve", str(home), "--digest", digest])
        assert 'method = "fedavg"' in capsys.readouterr().out
    finish(deployment, running)
    run = Run.read(deployment.home("operator") / "waits")
    assert not run.progress["faults"], "to wait is no error"
    assert run.reported[-1].all()
    decisions = [line["decision"].partition(":")[0] for line in atomic.lines(files[0])]
    assert decisions == ["refused", "allowed"]


@pytest.mark.long
def test_a_bomb_costs_its_sender_its_letters_and_nobody_anything_else(
    deployment: Deployment,
) -> None:
    """A2: a letter of one chunk of 5 MB, which is named 20,000 times, was 105 GB in its reader."""
    write_policy(deployment.policy)
    services = deployment.of_node(1)
    shut_down(deployment, 1)  # of a killed SuperNode, the SuperLink takes no other for a minute
    commands = {name: deployment.services[name].command for name in services}
    manner = deployment.make_hostile(1)
    deployment.start(*services)
    config, _ = planted(deployment.problem)
    rounds: dict[str, Scalar] = {"method": "fedavg", "num-server-rounds": 3, "evaluate-every": 1}
    manner.write_text("bombs")
    running, peak = deployment.run(config | rounds | {"quorum": 1, "join-seconds": 60}, "bomb"), 0
    while running.poll() is None:
        for pid in relay_processes(deployment) + family_of(deployment, 0):
            peak = max(peak, resident(pid))
        with suppress(subprocess.TimeoutExpired):
            running.wait(0.5)
    finish(deployment, running)
    run = Run.read(deployment.home("operator") / "bomb")
    assert manner.with_suffix(".forged").exists()
    assert run.reported[:, 0].all()
    assert any("an array that names a chunk twice" in line for line in run.progress["faults"])
    assert peak < 1500
    for name in services:
        deployment.services[name].command = commands[name]
    shut_down(deployment, 1)
    deployment.start(*services)


@pytest.mark.long
def test_letters_without_seals_are_found_at_the_relay(deployment: Deployment) -> None:
    write_policy(deployment.policy, sealing=False)
    for peer in range(PEERS):
        shut_down(deployment, peer)
        node, _ = deployment.of_node(peer)
        *command, config = deployment.services[node].command
        config = f"peer={peer} " + re.sub(r'(name|keys|trust)="[^"]*" ', "", config)
        deployment.services[node].command = (*command, config)
        deployment.start(*deployment.of_node(peer))
    method: dict[str, Scalar] = {"method": "fedavg", "sealing": "false"}
    letters = watched(deployment, ONE_ROUND | method, "plain")
    assert any(place.startswith("memory of") for place in letters.seen)


def shut_down(deployment: Deployment, peer: int) -> None:
    """End a hospital in good order: its node takes its leave of the relay."""
    node, executor = deployment.of_node(peer)
    deployment.services[node].kill(signal.SIGTERM)
    deployment.kill(node, executor)


# --- what the relay can see ----------------------------------------------------------------------


def planted(file: Path) -> tuple[dict[str, Scalar], npt.NDArray[np.float64]]:
    """Write quadratics of which four coordinates move; return the keys and the random start."""
    start = np.random.default_rng().uniform(1, 2, DIMENSION)
    centre = np.tile(start, (PEERS, 1))
    centre[:, :4] += np.arange(1.0, PEERS + 1)[:, None]
    problem = {"curvature": np.ones((PEERS, DIMENSION)).tolist(), "centre": centre.tolist()}
    file.write_text(json.dumps(problem | {"noise": [0.0] * PEERS, "start": start.tolist()}))
    return {"dataset": "quadratic", "quadratic.file": str(file), "peers": PEERS}, start


def watched(deployment: Deployment, overrides: dict[str, Scalar], name: str) -> Finished:
    """Run to the end, looking for the model in the relay's memory, and then in its files.

    `seen` is empty if it was nowhere but at the hospitals.
    """
    config, model = planted(deployment.problem)
    # Two places in it: a chunk or a page may begin within one of them, not within both.
    needles = [model[k : k + 4].tobytes() for k in (DIMENSION // 3, DIMENSION // 2)]
    running, seen, looks = deployment.run(config | overrides, name), set[str](), 0
    while running.poll() is None:
        for pid in relay_processes(deployment):
            seen |= {f"memory of {name_of(pid)}"} if holds(memory(pid), needles) else set()
        looks += 1
        with suppress(subprocess.TimeoutExpired):
            running.wait(3)  # the run needs the core, too
    finish(deployment, running)
    assert looks >= 3
    hospitals = {deployment.home(f"node-{peer}") for peer in range(PEERS)}
    files = [path for path in deployment.directory.rglob("*") if path.is_file()]
    holding = {path for path in files if holds(iter([path.read_bytes()]), needles)}
    at_home = {path for path in holding if hospitals & set(path.parents)}
    assert at_home, "the search finds what is there"
    seen |= {path.name for path in holding - at_home}
    run = Run.read(deployment.home("operator") / name)
    return Finished(config | overrides, run, frozenset(seen))


def relay_processes(deployment: Deployment) -> list[int]:
    """The SuperLink, the relay's executor and what they have started."""
    services = [deployment.services[name].process for name in ("superlink", "relay")]
    return [pid for process in services if process for pid in family(process.pid)]


def family_of(deployment: Deployment, peer: int) -> list[int]:
    """The processes of a node."""
    services = [deployment.services[name].process for name in deployment.of_node(peer)]
    return [pid for process in services if process for pid in family(process.pid)]


def resident(pid: int) -> int:
    """Maximum memory of a process so far, in MB."""
    with suppress(OSError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        return int(found[1]) // 1024 if found else 0
    return 0


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
