"""Test a node's worker: same responses as without it, start, crash and exit."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from coterie.app.config.config import Config
from coterie.app.institution.process import ipc, service, worker
from coterie.app.institution.process.job import Job
from coterie.strategies.flower.records import decode_response, encode_request
from coterie.strategies.protocol import PeerMessage, Request, Response
from tests.harness.deployment import write_policy
from tests.inprocess import ROOT

RUN: dict[str, Any] = {
    "dataset": "digits", "peers": 2, "num-server-rounds": 3, "method": "fedavg", "model": "linear",
    "partition.clusters": 2, "partition.samples-per-peer": 20, "sealing": False, "name": "run",
}  # fmt: skip
EDGES = np.array([[1, 0]])
WORKER = "worker-0000"


def array_in(record: RecordDict, name: str) -> Array:
    arrays = record[name]
    assert isinstance(arrays, ArrayRecord)
    return arrays["payload"]


def job_of(out: Path, peer: int = 0, version: int | None = None, **changes: Any) -> Job:
    out.mkdir(exist_ok=True)
    policy = write_policy(out / "policy.toml", sealing=False)
    flat: dict[str, Any] = {
        "peer": peer, "out": str(out), "device": "cpu", "policy": str(policy),
    }  # fmt: skip
    return Job(7, RUN | changes, flat, version)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Path]:
    """Yield the folder of peer 0's worker; afterwards stop the worker."""
    nodes = tmp_path / "run" / "nodes"
    yield nodes
    if (pid := pid_of(nodes)) is not None:
        os.kill(pid, signal.SIGKILL)
    while worker._started:
        worker._started.pop().wait()


def pid_of(nodes: Path) -> int | None:
    connection = worker._connect(nodes, WORKER, 60.0) if nodes.exists() else None
    if connection is None:
        return None
    with connection:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[:4], sys.byteorder)


def story(out: Path, handle: Any) -> list[Any]:
    """Two rounds of peer 0, as the relay would request them; what it responds to each request."""
    replies, version = [], None
    offers: list[PeerMessage] = []
    for request in (
        Request("start", 0, 0),
        Request("update", 1, 1, EDGES, np.zeros(1, dtype=np.bool_)),
        Request("update", 2, 2),
        Request("update", 2, 2),
    ):
        if request.stage == "start":
            other, _ = service.handle_request(encode_request(request), job_of(out, 1))
            offers = list(reply_of(other, request).letters)
        sent = replace(request, letters=tuple(offers)) if len(request.edges) else request
        record, version = handle(encode_request(sent), job_of(out, version=version))
        response = decode_response(record, request)
        letters = (
            [bytes_of(letter) for letter in response.letters]
            if isinstance(response, Response)
            else []
        )
        replies.append((version, str(response), letters))
    return replies


def reply_of(record: RecordDict, request: Request) -> Response:
    response = decode_response(record, request)
    assert isinstance(response, Response), response
    return response


def bytes_of(letter: PeerMessage) -> bytes:
    assert isinstance(letter.payload, ArrayRecord)
    return letter.payload["payload"].data


@pytest.mark.e2e
def test_replies_are_the_same_with_and_without_a_worker(tmp_path: Path, nodes: Path) -> None:
    """Valid requests and faults: the last request needs a state that does not exist."""
    warm, plain = (
        story(tmp_path, worker.forward_request),
        story(tmp_path / "b", service.handle_request),
    )
    assert warm == plain
    assert [version for version, _, _ in warm] == [0, 1, 2, 2]
    assert [bool(letters) for _, _, letters in warm] == [True, True, True, False]
    assert warm[-1][1].startswith("peer 0: state: ")


@pytest.mark.e2e
def test_one_worker_serves_all_messages_and_another_takes_its_place(
    tmp_path: Path, nodes: Path
) -> None:
    requests = [encode_request(Request("start", 0, 0)) for _ in range(2)]
    assert worker.forward_request(requests[0], job_of(tmp_path))[1] == 0
    assert not requests[0], "the worker has it: this process need not hold its letters"
    first = pid_of(nodes)
    assert worker.forward_request(requests[1], job_of(tmp_path))[1] == 0
    assert pid_of(nodes) == first
    assert first is not None
    assert first != os.getpid()
    assert stat.S_IMODE((nodes / f"{WORKER}.sock").stat().st_mode) == 0o600
    os.kill(first, signal.SIGKILL)
    record, version = worker.forward_request(
        encode_request(Request("update", 1, 1)), job_of(tmp_path, version=0)
    )
    assert version == 1
    assert reply_of(record, Request("update", 1, 1)).peers == (0,)
    assert pid_of(nodes) != first


def fake(nodes: Path, serve: Any) -> threading.Thread:
    """A worker of the test's own."""
    nodes.mkdir(parents=True)
    listener = socket.socket(socket.AF_UNIX)
    with worker._address(nodes, WORKER) as address:
        listener.bind(address)
    listener.listen(1)

    def run() -> None:
        connection, _ = listener.accept()
        with listener, connection, suppress(ConnectionError):
            serve(connection)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_a_request_that_kills_the_worker_is_a_fault(tmp_path: Path) -> None:
    def die(connection: socket.socket) -> None:
        ipc.send(connection, {"code": worker._CODE}, RecordDict())
        ipc.receive(connection)

    fake(tmp_path / "run" / "nodes", die)
    record, version = worker.forward_request(
        encode_request(Request("start", 0, 0)), job_of(tmp_path, version=4)
    )
    assert decode_response(record, Request("start", 0, 0)) == (
        "peer 0: failed: something failed here; see the log of this node"
    )
    assert version == 4


def test_a_process_parses_a_run_s_configuration_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse, parsed = Config.from_flat, list[object]()

    def counted(flat: Any) -> Config:
        parsed.append(flat)
        return parse(flat)

    monkeypatch.setattr(Config, "from_flat", counted)
    version = None
    for request in (Request("start", 0, 0), Request("update", 1, 1), Request("update", 2, 2)):
        record, version = service.handle_request(
            encode_request(request), job_of(tmp_path, version=version)
        )
        reply_of(record, request)
    assert len(parsed) == 1
    job_of(tmp_path, version=version, seed=1).config()  # another run
    assert len(parsed) == 2


def test_who_submits_a_run_has_no_say_in_where_a_node_s_files_lie(tmp_path: Path) -> None:
    wanted: dict[str, Any] = dict.fromkeys(("run-dir", "out", "data-dir"), "/elsewhere")
    wanted |= {"device": "cuda", "resume": True}
    config = replace(job_of(tmp_path), run_config=RUN | wanted).config()
    assert (config.run_dir, config.out) == (str(tmp_path / "run"), str(tmp_path))
    assert (config.data_dir, config.compute.device) == ("data", "cpu")
    assert not config.resume


@pytest.mark.parametrize("handle", [worker.forward_request, service.handle_request])
def test_what_was_not_written_for_the_relay_stays_in_the_log(
    handle: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").write_text("a file where the run directory should be")
    record, version = handle(encode_request(Request("start", 0, 0)), job_of(tmp_path))
    response = decode_response(record, Request("start", 0, 0))
    assert response == "peer 0: failed: something failed here; see the log of this node"
    assert version is None
    assert str(tmp_path) in capsys.readouterr().err


def test_the_relay_does_not_learn_where_the_keys_lie(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The relay does not learn which file is missing; the node's log names it."""
    places = {"keys": str(tmp_path / "own.key"), "trust": str(tmp_path / "trust.toml")}
    job = job_of(tmp_path, sealing=True)
    job = replace(job, node_config={**job.node_config, **places})
    record, _ = service.handle_request(encode_request(Request("start", 0, 0)), job)
    response = decode_response(record, Request("start", 0, 0))
    why = "keys, trust file or start command of this node are invalid; see the log of this node"
    assert response == f"peer 0: keys: {why}"
    assert str(tmp_path / "own.key") in capsys.readouterr().err


def test_a_worker_that_hangs_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    over, ended = threading.Event(), list[object]()

    def hang(connection: socket.socket) -> None:
        ipc.send(connection, {"code": worker._CODE}, RecordDict())
        over.wait(60)

    monkeypatch.setattr(worker, "_kill", ended.append)
    fake(tmp_path / "run" / "nodes", hang)
    hurried: dict[str, Any] = {"round-seconds": 0.5}
    record, _ = worker.forward_request(
        encode_request(Request("start", 0, 0)),
        job_of(tmp_path, **hurried),
    )
    over.set()
    assert str(decode_response(record, Request("start", 0, 0))).startswith("peer 0: failed: ")
    assert "did not finish within 1 s and was ended" in capsys.readouterr().err
    assert len(ended) == 1


@pytest.mark.e2e
def test_a_worker_of_other_code_is_replaced(tmp_path: Path, nodes: Path) -> None:
    code = f"import sys; sys.path[0] = {str(ROOT)!r}; from pathlib import Path; "
    code += "from coterie.app.institution.process import worker; worker._CODE = 'elsewhere'; "
    code += f"worker.main(Path({str(nodes)!r}), {WORKER!r}, 1)"
    nodes.mkdir(parents=True)
    with subprocess.Popen([sys.executable, "-c", code]) as other:
        while not (nodes / f"{WORKER}.sock").exists():
            assert other.poll() is None
        request = Request("start", 0, 0)
        record, _ = worker.forward_request(encode_request(request), job_of(tmp_path))
        assert reply_of(record, request).peers == (0,)
        assert other.wait(60) == -signal.SIGKILL


@pytest.mark.parametrize("why", ["idle", "parent"])
def test_a_worker_ends_when_nobody_needs_it(why: str, tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"]) as parent:
        if why == "parent":
            threading.Timer(0.05, parent.kill).start()
        worker.main(tmp_path, WORKER, parent.pid, idle=0.05 if why == "idle" else 60.0)
        parent.kill()
    assert not (tmp_path / f"{WORKER}.sock").exists()


@pytest.mark.e2e
def test_flowers_process_of_a_message_loads_no_torch(tmp_path: Path, nodes: Path) -> None:
    code = """
import sys
from coterie.app.institution.process.worker import forward_request
from coterie.app.institution.process.job import Job
from tests.harness.deployment import write_policy
from coterie.strategies.flower.records import encode_request
from coterie.strategies.protocol import Request
import coterie.app.client
job = Job(7, {run}, {node}, None)
assert forward_request(encode_request(Request("start", 0, 0)), job)[1] == 0
assert "torch" not in sys.modules and "sklearn" not in sys.modules
"""
    job = job_of(tmp_path)
    code = code.replace("{run}", repr(job.run_config)).replace("{node}", repr(job.node_config))
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)


def test_every_record_goes_through_a_socket() -> None:
    record = RecordDict(
        {
            "c": ConfigRecord(
                {
                    "i": 2**62, "f": 0.1, "s": "é", "b": b"\0\xff", "t": True, "li": [1, -2],
                    "ls": ["a"], "lb": [b"x", b""], "none": [], "nan": [float("nan"), 1e-300],
                }
            ),
            "m": MetricRecord({"0.test_loss": 0.1 + 0.2, "0.n": 3}),
            "a": ArrayRecord({"payload": Array("uint8", (3,), "coterie.payload", b"abc")}),
            "empty": ArrayRecord({"payload": Array("uint8", (0,), "coterie.payload", b"")}),
        }
    )  # fmt: skip
    one, other = socket.socketpair()
    with one, other:
        ipc.send(one, {"version": None}, record)
        about, received = ipc.receive(other)
        one.close()
        with pytest.raises(ConnectionError):
            ipc.receive(other)
    assert about == {"version": None}
    assert repr(dict(received["c"])) == repr(dict(record["c"]))
    assert dict(received["m"]) == dict(record["m"])
    for name in ("a", "empty"):
        assert array_in(received, name).data == array_in(record, name).data
        assert array_in(received, name).stype == "coterie.payload"


def test_large_arrays_go_through_a_socket() -> None:
    data = np.random.default_rng(0).bytes(20_000_000)
    record = RecordDict({"a": ArrayRecord({"payload": Array("uint8", (len(data),), "x", data)})})
    one, other = socket.socketpair()
    with one, other:
        thread = threading.Thread(target=ipc.send, args=(one, {}, record))
        thread.start()
        _, received = ipc.receive(other)
        thread.join()
    assert array_in(received, "a").data == data


@pytest.mark.slow
def test_a_forged_message_ends_in_its_own_process() -> None:
    """A2: Flower joins letters before any code of ours, under the limit of the executor."""
    script = """
import resource
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from coterie.app.institution.process.worker import lift_limit
from tests.fuzz.node import bomb

resource.setrlimit(resource.RLIMIT_DATA, (2**29, resource.RLIM_INFINITY))
letter = bomb()
contents = {name: each.deflate() for name, each in get_all_nested_objects(letter).items()}
try:
    inflate_object_from_contents(letter.object_id, contents)
except MemoryError:
    print("refused")
lift_limit()
bytearray(2**29)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "refused\n"
