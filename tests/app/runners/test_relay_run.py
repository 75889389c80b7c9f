"""Our ServerApp and ClientApp on Flower's engine: placement, faults, deadlines, resume."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message
from flwr.clientapp.client_app import ClientAppException

from coterie.app.institution.process.job import Job, hosted
from coterie.app.institution.process.service import handle_request
from coterie.app.institution.requests.faults import StartError
from coterie.app.runs.rundir import Run
from coterie.clients.engine import engine
from coterie.strategies.errors import RelayError
from coterie.strategies.flower.records import decode_request, decode_response, encode_request
from coterie.strategies.protocol import Request, Response
from tests.inprocess import simulate

PEERS = 5


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    """Five peers on noisy quadratics, in two groups."""
    rng = np.random.default_rng(0)
    centres = np.repeat([[0.0, 1.0, 2.0], [5.0, -1.0, 0.0]], [3, 2], axis=0)
    path = tmp_path / "problem.json"
    content = {
        "curvature": (0.5 + rng.random((PEERS, 3))).tolist(),
        "centre": (centres + 0.1 * rng.standard_normal((PEERS, 3))).tolist(),
        "noise": PEERS * [0.1],
        "start": [0.0, 0.0, 0.0],
    }
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def start(problem: Path, tmp_path: Path) -> Callable[..., Path]:
    """Run with some overrides in a separate directory; return the directory."""

    def run(nodes: int, where: str, watch: Any = None, workers: int = 1, **changes: Any) -> Path:
        config: dict[str, Any] = {
            "method": "cobo",
            "cobo.probability": 0.4,
            "cobo.sampling": "constant",
            "dataset": "quadratic",
            "quadratic.file": str(problem),
            "peers": PEERS,
            "num-server-rounds": 6,
            "evaluate-every": 2,
            "run-dir": str(tmp_path / where),
        }
        config |= {key.replace("_", "-"): value for key, value in changes.items()}
        watch = watch or (lambda message, context: None)
        simulate(config, nodes, watch=watch, workers=workers)
        return tmp_path / where

    return run


def progress(directory: Path) -> Mapping[str, Any]:
    content: Mapping[str, Any] = json.loads((directory / "progress.json").read_text())
    return content


def same_results(one: Path, other: Path) -> None:
    runs = Run.read(one), Run.read(other)
    assert runs[0].rounds.tolist() == runs[1].rounds.tolist()
    assert runs[0].reported.all()
    assert runs[1].reported.all()
    assert runs[0].metrics.keys() == runs[1].metrics.keys()
    for name, values in runs[0].metrics.items():
        np.testing.assert_allclose(runs[1].metrics[name], values, rtol=1e-10, err_msg=name)
    np.testing.assert_allclose(runs[1].weights, runs[0].weights, rtol=1e-10, atol=1e-12)
    assert runs[0].weight_rounds.tolist() == runs[0].rounds.tolist()


# --- placement -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("method", ["local", "fedavg", "oracle", "wga", "cobo"])  # every strategy
def test_results_do_not_depend_on_the_number_of_nodes(
    method: str, start: Callable[..., Path]
) -> None:
    known_clusters = {"dataset": "digits", "partition.clusters": 2, "dtype": "float64"}
    more = {"num_server_rounds": 3, **(known_clusters if method == "oracle" else {})}
    alone = start(1, "alone", method=method, **more)
    for nodes in (2, PEERS) if method == "cobo" else (PEERS,):
        same_results(alone, start(nodes, f"on-{nodes}", method=method, **more))


@pytest.mark.slow
def test_one_peer_a_node_puts_on_the_wire_what_the_peers_say_they_sent(
    start: Callable[..., Path],
) -> None:
    status = progress(start(PEERS, "each"))
    assert status["relayed_bytes"] == status["bytes"] > 0
    assert progress(start(1, "alone"))["relayed_bytes"] == 0


def test_a_run_leaves_what_it_promises(start: Callable[..., Path]) -> None:
    directory = start(2, "run")
    done = progress(directory)
    assert (done["round"], done["rounds"], done["status"], done["error"]) == (
        6,
        6,
        "finished",
        None,
    )
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [(x["round"], x["peer"]) for x in lines] == [
        (t, peer) for t in (0, 2, 4, 6) for peer in range(PEERS)
    ]
    assert list(lines[0])[:4] == ["round", "peer", "peer_name", "test_loss"]
    assert [x["peer_name"] for x in lines[:PEERS]] == [f"peer {peer}" for peer in range(PEERS)]
    assert lines[0]["test_accuracy"] is None
    assert done["mean_test_loss"] == np.mean([x["test_loss"] for x in lines[-PEERS:]])
    assert len(list((directory / "models").glob("peer-*.safetensors"))) == PEERS
    assert "cobo" in (directory / "config.toml").read_text()


@pytest.mark.slow
def test_without_a_run_directory_relay_and_nodes_agree_on_one(
    start: Callable[..., Path], tmp_path: Path
) -> None:
    start(2, "unused", run_dir="", out=str(tmp_path / "out"))
    (directory,) = (tmp_path / "out").iterdir()
    assert directory.name.startswith("cobo-quadratic-seed0-")
    assert progress(directory)["status"] == "finished"
    assert (directory / "models").is_dir()


# --- faults ----------------------------------------------------------------------------------


class Mishap:
    """Does something to the node `node` once, before the request of a stage and round."""

    def __init__(self, node: int, stage: str, t: int, what: Callable[[Context], None]) -> None:
        self.node, self.moment, self.what = node, (stage, t), what
        self.happened = 0
        self.requests: list[Request] = []

    def __call__(self, message: Message, context: Context) -> None:
        request = decode_request(message.content)
        if context.node_config["partition-id"] != self.node:
            return
        self.requests.append(request)
        if (request.stage, request.round) == self.moment and not self.happened:
            self.happened += 1
            self.what(context)


def crash(context: Context) -> None:
    raise ClientAppException("out of memory")


def forget(context: Context) -> None:
    context.state.clear()


@pytest.mark.parametrize("what", [crash, forget])
@pytest.mark.parametrize("stage", ["answer", "update"])
def test_a_node_that_fails_once_misses_a_round_and_comes_back(
    what: Callable[[Context], None], stage: str, start: Callable[..., Path]
) -> None:
    mishap = Mishap(1, stage, 3, what)
    everybody = {"cobo.sampling": "full", "cobo.probability": 0.0}
    directory = start(2, "run", mishap, **everybody)
    assert mishap.happened
    assert progress(directory)["status"] == "finished"
    stages = Counter(request.stage for request in mishap.requests)
    assert stages["start"] == 2
    run = Run.read(directory)
    assert run.reported[run.rounds == 6].all()
    missed = run.rounds == 4 if stage == "update" else run.rounds == 3
    assert not run.reported[missed][:, 3:].any()


def test_every_node_lost_fails_the_run_with_one_line(
    start: Callable[..., Path], tmp_path: Path
) -> None:
    def watch(message: Message, context: Context) -> None:
        if decode_request(message.content).round == 4:
            raise ClientAppException("out of memory")

    with pytest.raises(RelayError, match=r"round 4.*out of memory.*no node is left"):
        start(2, "run", watch)
    status = progress(tmp_path / "run")
    assert (status["status"], status["round"]) == ("failed", 3)
    assert status["error"].startswith("round 4")
    assert "\n" not in status["error"]


def test_a_dead_worker_process_is_fatal(start: Callable[..., Path], tmp_path: Path) -> None:
    def die(context: Context) -> None:
        raise RuntimeError("The actor died unexpectedly")  # what Flower makes of it: code 0

    with pytest.raises(RelayError, match=r"error 0.*actor died"):
        start(2, "run", Mishap(1, "update", 2, die))
    assert progress(tmp_path / "run")["status"] == "failed"


def test_a_setup_error_is_one_clear_line(start: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(RelayError, match=r"round 0, start: .*nowhere\.json"):
        start(2, "run", **{"quadratic.file": "/nowhere.json"})
    assert "nowhere.json" in progress(tmp_path / "run")["error"]


@pytest.mark.slow
def test_a_late_node_is_not_waited_for_and_gets_no_second_order_meanwhile(
    start: Callable[..., Path],
) -> None:
    """It sleeps until the others have ended round 4; they take their time until it is back."""
    over, is_busy, rounds = threading.Event(), [False], 60

    def oversleep(context: Context) -> None:
        is_busy[0] = True
        assert over.wait(120)
        is_busy[0] = False

    mishap = Mishap(1, "update", 2, oversleep)

    def is_back() -> bool:
        return any(request.stage == "start" and request.round for request in mishap.requests)

    def watch(message: Message, context: Context) -> None:
        if context.node_config["partition-id"] == 1:
            assert not is_busy[0], "a request while the last one was being carried out"
        elif mishap.happened and not is_back():
            if decode_request(message.content).round > 4:
                over.set()
            time.sleep(0.3)
        mishap(message, context)

    directory = start(
        2, "run", watch, workers=2, method="fedavg", num_server_rounds=rounds, round_seconds=5.0
    )
    assert progress(directory)["status"] == "finished"
    stages = [(request.stage, request.round) for request in mishap.requests]
    back = next(t for stage, t in stages if stage == "start" and t > 0)
    assert 3 < back < rounds
    assert stages[stages.index(("start", back)) + 1] == ("update", back + 1)


def test_a_peer_that_nobody_hosts_is_an_error(
    start: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.app.institution.process.service.hosted", lambda job, peers: (0, 1))
    with pytest.raises(RelayError, match="round 0, start: no node hosts peers 2, 3, 4"):
        start(1, "run", join_seconds=0.3)


# --- resume ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [1, 2])
def test_stop_and_resume_equals_the_uninterrupted_run(
    nodes: int, start: Callable[..., Path]
) -> None:
    def die(context: Context) -> None:
        raise RuntimeError("power cut")

    stage, t = ("local-rounds", 5) if nodes == 1 else ("update", 4)
    with pytest.raises(RelayError, match="power cut"):
        start(nodes, "stopped", Mishap(0, stage, t, die))
    same_results(start(nodes, "whole"), start(nodes, "stopped", resume=True))


def test_resume_on_another_number_of_nodes(start: Callable[..., Path]) -> None:
    def die(context: Context) -> None:
        raise RuntimeError("power cut")

    with pytest.raises(RelayError, match="power cut"):
        start(2, "stopped", Mishap(0, "update", 5, die))
    same_results(start(1, "whole"), start(3, "stopped", resume=True))


# --- nodes -----------------------------------------------------------------------------------


def test_simulated_nodes_share_the_peers_in_order() -> None:
    def share(k: int, nodes: int) -> tuple[int, ...]:
        return hosted(Job(7, {}, {"partition-id": k, "num-partitions": nodes}, None, True), 4)

    assert [share(k, 3) for k in range(3)] == [(0, 1), (2,), (3,)]
    assert share(4, 5) == ()


def test_a_simulated_node_takes_the_gpu_of_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower gives a message to any idle actor: the number says which GPU, not the process."""
    chosen: list[int] = []

    def no_gpu(name: str, gpu: int) -> torch.device:
        chosen.append(gpu)
        return torch.device("cpu")

    monkeypatch.setattr(engine, "device_of", no_gpu)
    flat: dict[str, Any] = {
        "peers": 2,
        "partition.clusters": 1,
        "num-server-rounds": 1,
        "run-dir": str(tmp_path),
    }
    for number in (1, 0):
        job = Job(7, flat, {"partition-id": number, "num-partitions": 2}, None, True, number)
        request = Request("start", 0, 0)
        response = decode_response(handle_request(encode_request(request), job)[0], request)
        assert isinstance(response, Response)
        assert response.peers == (number,)
    assert chosen == [1, 0]


def test_a_deployed_node_says_its_peer() -> None:
    assert hosted(Job(7, {}, {"peer": 2, "name": "hospital-c"}, None), 4) == (2,)


@pytest.mark.parametrize("config", [{}, {"peer": 4}, {"peer": -1}, {"peer": "2"}, {"peer": True}])
def test_a_deployed_node_that_does_not_say(config: Mapping[str, Any]) -> None:
    with pytest.raises(StartError, match="--node-config 'peer=K', K from 0 to 3"):
        hosted(Job(7, {}, config, None), 4)
