"""Worker of a node: a process that keeps data, model and GPU between messages.

Flower's process of a message finds it behind a Unix socket in the node's run directory, starts it
if there is none, and forwards the request. If it dies, its request fails; the next message starts
another. It ends after a long time without a message, or with the parent of those processes.
"""

from __future__ import annotations

import os
import resource
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

from coterie.app.config.root import IMPORT_ROOT
from coterie.app.institution.process import ipc, service
from coterie.app.institution.process.job import Job, hosted
from coterie.app.institution.security.files import closed
from coterie.app.runs import atomic, logs
from coterie.errors import Error

IDLE_SECONDS = 900.0
"""Maximum seconds that a worker waits for the next message."""
_START_SECONDS = 120.0
_PAUSE = 0.02
_CODE = str(IMPORT_ROOT)
_MALLOC = "MALLOC_MMAP_THRESHOLD_"
"""Variable that makes Flower's processes return the memory of letters, and training slow."""
_started: list[subprocess.Popen[bytes]] = []  # kept: deleting a live one gives a warning


class WorkerError(Error):
    """The worker did not start or did not finish; the message says why."""


def lift_limit() -> None:
    """Lift this process's own limit of memory, under which it has received its message."""
    # An operator sets it on the executor (`LimitDATA`, `ulimits`): Flower joins the letters of a
    # message before any code of ours runs, and one that the relay has forged ends there.
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def forward_request(record: RecordDict, job: Job) -> tuple[RecordDict, int | None]:
    """Run `service.handle_request` in the worker process, which takes the record's letters."""
    try:
        config = job.config()
        peers = hosted(job, config.peers)
        directory = Path(config.run_dir) / "nodes"
        with closed():
            directory.mkdir(parents=True, exist_ok=True)
        # The relay has timed out by then; twice, because loading the data takes extra time.
        # A single peer runs several rounds per message.
        rounds = config.evaluate_every if config.peers == 1 else 1
        timeout = 2 * config.round_seconds * rounds
        with _connected(directory, f"worker-{peers[0]:04d}", timeout) as connection:
            return _exchange(connection, record, job, timeout)
    except Exception as error:
        logs.begin()
        return service.fault(error, job, {"run": job.run_id}), job.version


def _exchange(
    connection: socket.socket, record: RecordDict, job: Job, timeout: float
) -> tuple[RecordDict, int | None]:
    ipc.send(connection, asdict(job), record)
    record.clear()
    if not _is_readable(connection, timeout):
        _kill(connection)
        raise WorkerError(f"the worker did not finish within {timeout:g} s and was ended")
    try:
        about, response = ipc.receive(connection)
    except ConnectionError:
        raise WorkerError("the worker died while it handled this request") from None
    return response, about["version"]


@contextmanager
def _connected(directory: Path, name: str, timeout: float) -> Iterator[socket.socket]:
    """Connect to the worker of this code; start one if there is none."""
    connection = _connect(directory, name, timeout)
    if connection is None:
        with atomic.locked(directory / f"{name}.lock"):
            connection = _connect(directory, name, timeout) or _start(directory, name)
    with connection:
        yield connection


def _connect(directory: Path, name: str, timeout: float) -> socket.socket | None:
    """Connect to a worker with the same code that is free within `timeout`; end any other."""
    connection = socket.socket(socket.AF_UNIX)
    with suppress(FileNotFoundError, ConnectionError):
        with _address(directory, name) as address:
            connection.connect(address)
        # Other code: the run was submitted again with another version of the app.
        if _is_readable(connection, timeout) and ipc.receive(connection)[0]["code"] == _CODE:
            return connection
        _kill(connection)
    connection.close()
    return None


def _start(directory: Path, name: str) -> socket.socket:
    program = [sys.executable, "-m", "coterie.app.institution.process.worker"]
    process = subprocess.Popen(
        [*program, str(directory), name, str(os.getppid())],
        cwd=IMPORT_ROOT,
        env={name: value for name, value in os.environ.items() if name != _MALLOC},
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,
        start_new_session=True,
    )
    _started.append(process)
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if connection := _connect(directory, name, _START_SECONDS):
            return connection
        time.sleep(_PAUSE)
    process.kill()
    raise WorkerError(f"the worker did not start (exit code {process.wait()})")


def _is_readable(connection: socket.socket, timeout: float) -> bool:
    """Return whether data or the end of the connection arrives within `timeout` seconds."""
    return bool(select.select([connection], [], [], timeout)[0])


def _kill(connection: socket.socket) -> None:
    """Kill the worker at the other end; its committed state is on disk."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    with suppress(ProcessLookupError):
        os.kill(int.from_bytes(credentials[:4], sys.byteorder), signal.SIGKILL)


@contextmanager
def _address(directory: Path, name: str) -> Iterator[str]:
    """Yield the socket's address, shorter than 107 bytes even if the path is longer."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}/{name}.sock"
    finally:
        os.close(handle)


def main(directory: Path, name: str, parent: int, idle: float = IDLE_SECONDS) -> None:
    """Serve messages until `idle` seconds pass without one, or the process `parent` ends."""
    with socket.socket(socket.AF_UNIX) as listener, _address(directory, name) as address:
        (directory / f"{name}.sock").unlink(missing_ok=True)
        with closed(0o177):
            listener.bind(address)
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
        (directory / f"{name}.sock").unlink(missing_ok=True)


def _serve(connection: socket.socket) -> None:
    ipc.send(connection, {"code": _CODE}, RecordDict())
    about, record = ipc.receive(connection)
    response, version = service.handle_request(record, Job(**about))
    ipc.send(connection, {"version": version}, response)


if __name__ == "__main__":
    logs.begin()
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
