"""Cost of a letter inside a node, and of a message to a node.

`letters`: a model is written into a payload, handed over a Unix socket as between Flower's process
and the worker, and read again. `copies` counts the bytes of new Python objects per byte of payload.
`messages`: a process like the one that Flower starts for every message computes one round of a
deployed peer, directly or through the node's worker.
"""

from __future__ import annotations

import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, RecordDict
from safetensors import torch as safetensors

from coterie.app.config.root import ROOT
from coterie.app.institution.process import ipc
from coterie.app.wire.payload import LetterFormat, Precision, layout_of
from tests.harness.deployment import write_policy

SIZES = (62_000, 1_700_000, 11_000_000, 100_000_000)
PRECISIONS: tuple[Precision, ...] = ("full", "float16", "int8")
MESSAGES = 6

_MESSAGE = """
import sys, time
start = time.perf_counter()
import coterie.app.client
from coterie.app.institution.process import service, worker
from coterie.app.institution.process.job import Job
from coterie.strategies.flower.records import encode_request
from coterie.strategies.protocol import Request
job = Job(7, {run!r}, {node!r}, {version!r})
request = Request({stage!r}, {round}, {round})
handle = {how}
record, version = handle(encode_request(request), job)
assert "response" in record, record["fault"]["why"]
assert ("torch" in sys.modules) == (handle is service.handle_request)
print(time.perf_counter() - start)
"""


@dataclass(frozen=True)
class Letter:
    """Milliseconds per step, and copies per byte of writing and reading."""

    parameters: int
    precision: str
    megabytes: float
    write_ms: float
    socket_ms: float
    read_ms: float
    write_copies: float
    read_copies: float


@dataclass(frozen=True)
class Message:
    """Milliseconds from the start of a process for one message to its end, and inside it."""

    dataset: str
    worker: bool
    first_ms: float
    process_ms: float
    inside_ms: float


def letters() -> Iterator[Letter]:
    """Measure letters of all sizes and precisions; "library" is safetensors' save and load."""
    for size in SIZES:
        tensors = {"x": torch.randn(1, size)}
        layout = layout_of(tensors)
        for precision in PRECISIONS:
            form = LetterFormat(layout, precision)
            write = partial(form.encode, form.rounded(tensors), 0)
            yield _letter(size, precision, write, form.decode)
        write = partial(safetensors.save, {"x": tensors["x"][0]})
        yield _letter(size, "library", write, safetensors.load)


def _letter(
    size: int, name: str, write: Callable[[], bytes], read: Callable[[bytes], object]
) -> Letter:
    payload = write()
    repeats = 20 if size < 10_000_000 else 3
    return Letter(
        size, name, round(len(payload) / 1e6, 2),
        milliseconds(write, repeats),
        milliseconds(lambda: _through_a_socket(payload), repeats),
        milliseconds(lambda: read(payload), repeats),
        round(_allocated(write) / len(payload), 2),
        round(_allocated(lambda: read(payload)) / len(payload), 2),
    )  # fmt: skip


def milliseconds(work: Callable[[], object], repeats: int) -> float:
    """Return the median time of several repetitions."""
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return round(1e3 * statistics.median(taken), 2)


def _allocated(work: Callable[[], object]) -> int:
    """Return the peak of bytes in Python objects, without tensors."""
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def _through_a_socket(payload: bytes) -> None:
    array = Array("uint8", (len(payload),), "coterie.payload", payload)
    record = RecordDict({"letter-0": ArrayRecord({"payload": array})})
    one, other = socket.socketpair()
    with one, other:
        sending = threading.Thread(target=ipc.send, args=(one, {}, record))
        sending.start()
        ipc.receive(other)
        sending.join()


def messages() -> Iterator[Message]:
    """Measure messages to one deployed peer, with and without the node's worker."""
    for dataset in ("digits", "fashion-mnist"):
        for warm in (False, True):
            with tempfile.TemporaryDirectory() as directory:
                try:
                    yield _messages(dataset, warm, Path(directory))
                finally:
                    for path in Path("/proc").glob("[0-9]*/cmdline"):
                        if f"institution.process.worker\0{directory}".encode() in _read(path):
                            os.kill(int(path.parent.name), signal.SIGKILL)


def _messages(dataset: str, warm: bool, directory: Path) -> Message:
    run: dict[str, Any] = {
        "dataset": dataset, "method": "fedavg", "num-server-rounds": 100, "evaluate-every": 100,
        "sealing": False, "name": "run",
    }  # fmt: skip
    policy = write_policy(directory / "policy.toml", sealing=False)
    node = {"peer": 0, "out": str(directory), "device": "cpu", "policy": str(policy)}
    outside, inside = [], []
    for t in range(MESSAGES):
        code = _MESSAGE.format(
            run=run, node=node, version=t - 1 if t else None, round=t,
            stage="update" if t else "start", how="worker.forward_request" if warm else
            "service.handle_request",
        )  # fmt: skip
        start = time.perf_counter()
        command = [sys.executable, "-c", code]
        # Not the standard error: the worker that stays keeps it open.
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        outside.append(1e3 * (time.perf_counter() - start))
        inside.append(1e3 * float(done.stdout.split()[-1]))
    later = (round(statistics.median(times[1:]), 1) for times in (outside, inside))
    return Message(dataset, warm, round(outside[0], 1), *later)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
