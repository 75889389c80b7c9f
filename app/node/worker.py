"""A node's worker: one process that stays, with data, model and GPU, and does the messages' work.

Flower starts a process for every message. That process finds the worker of its run behind a Unix
socket in the node's run directory, starts it where there is none, hands the letters over and takes
the response back. A worker that dies costs the request it had; the next message starts another. It
ends by itself when nobody needs it for long, or when the process that starts the messages is gone.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from flwr.app import RecordDict

from app.node import ipc, service
from app.node.service import Job, ServiceError, hosted
from app.runs import logs

IDLE_SECONDS = 900.0
"""How long a worker waits for the next message."""
_START_SECONDS = 120.0
_PAUSE = 0.02
_started: list[subprocess.Popen[bytes]] = []  # kept: Python complains of one that it forgets
_ROOT = Path(__file__).resolve().parents[2]


def forward_request(record: RecordDict, job: Job) -> tuple[RecordDict, int | None]:
    """Let the worker handle a request: `app.node.service.handle_request`, in another process."""
    try:
        config = job.config()
        peers = hosted(job.node_config, config.peers)
        desk = Path(config.run_dir) / "nodes"
        desk.mkdir(parents=True, exist_ok=True)
        # The relay has given up by then; twice, because loading the data is not a round's work.
        rounds = config.evaluate_every if config.peers == 1 else 1  # of one peer: many at once
        patience = 2 * config.round_seconds * rounds
        return _handed_over(record, job, desk, f"worker-{peers[0]:04d}", patience)
    except Exception as error:
        logs.begin()
        return service.fault(error, job, {"run": job.run_id}), job.version


def _handed_over(
    record: RecordDict, job: Job, desk: Path, name: str, patience: float
) -> tuple[RecordDict, int | None]:
    with _connected(desk, name, patience) as connection:
        ipc.send(connection, asdict(job), record)
        if not _speaks(connection, patience):
            _end(connection)
            raise ServiceError(f"the worker did not finish within {patience:g} s and was ended")
        try:
            about, response = ipc.receive(connection)
        except ConnectionError:
            raise ServiceError("the worker died over this request") from None
    return response, about["version"]


@contextmanager
def _connected(desk: Path, name: str, patience: float) -> Iterator[socket.socket]:
    """A connection to the worker of this code, which is started where there is none."""
    connection = _connect(desk, name, patience)
    if connection is None:
        with (desk / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            connection = _connect(desk, name, patience) or _start(desk, name)
    with connection:
        yield connection


def _connect(desk: Path, name: str, patience: float) -> socket.socket | None:
    """A connection to a worker that is free within `patience` and runs this very code, else None.

    Any other worker is ended.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        with _short(desk, name) as address:
            connection.connect(address)
        # Other code: the run was submitted anew, with another version of the app.
        if _speaks(connection, patience) and ipc.receive(connection)[0]["code"] == str(_ROOT):
            return connection
        _end(connection)
    except (FileNotFoundError, ConnectionError):
        pass
    connection.close()
    return None


def _start(desk: Path, name: str) -> socket.socket:
    command = [sys.executable, "-m", "app.node.worker", str(desk), name, str(os.getppid())]
    process = subprocess.Popen(
        command, cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True
    )
    _started.append(process)
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if connection := _connect(desk, name, _START_SECONDS):
            return connection
        time.sleep(_PAUSE)
    process.kill()
    raise ServiceError(f"the worker did not start (exit code {process.wait()})")


def _speaks(connection: socket.socket, patience: float) -> bool:
    """Whether something comes, or the end of the connection, within `patience` seconds."""
    return bool(select.select([connection], [], [], patience)[0])


def _end(connection: socket.socket) -> None:
    """Kill the worker at the other end: what it had reached is on the disk."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    with suppress(ProcessLookupError):
        os.kill(int.from_bytes(credentials[:4], sys.byteorder), signal.SIGKILL)


@contextmanager
def _short(desk: Path, name: str) -> Iterator[str]:
    """The socket's address: a path may be longer than the 107 bytes that one may have."""
    handle = os.open(desk, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}/{name}.sock"
    finally:
        os.close(handle)


def main(desk: Path, name: str, parent: int, idle: float = IDLE_SECONDS) -> None:
    """Serve messages until nobody needs the worker any more.

    Parameters
    ----------
    desk : directory of the socket. name : of the socket, without its ending.
    parent : process that starts the messages' processes; the worker does not outlive it.
    """
    with socket.socket(socket.AF_UNIX) as listener, _short(desk, name) as address:
        (desk / f"{name}.sock").unlink(missing_ok=True)
        before = os.umask(0o177)
        listener.bind(address)
        os.umask(before)
        listener.listen(1)
        with suppress(ProcessLookupError):
            watch = os.pidfd_open(parent)
            while True:
                ready, _, _ = select.select([listener.fileno(), watch], [], [], idle)
                if listener.fileno() not in ready:
                    break
                connection, _ = listener.accept()
                with connection, suppress(ConnectionError):
                    _serve(connection)
        (desk / f"{name}.sock").unlink(missing_ok=True)


def _serve(connection: socket.socket) -> None:
    ipc.send(connection, {"code": str(_ROOT)}, RecordDict())
    about, record = ipc.receive(connection)
    response, version = service.handle_request(record, Job(**about))
    ipc.send(connection, {"version": version}, response)


if __name__ == "__main__":
    logs.begin()
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
