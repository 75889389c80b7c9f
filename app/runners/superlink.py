"""Workspace of a run's Flower processes, and commands of `flwr`.

Every run gets a folder and a Ray directory, so that runs from one checkout do not interfere. They
are removed when the run ends, even after a crash.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from coterie.app import private_ray
from coterie.app.config import parts
from coterie.app.config.config import Config
from coterie.app.runners import bundle, guard
from coterie.app.runners.cluster import Machine
from coterie.datasets import plugins
from coterie.errors import FlowerError

_UNKNOWN = re.compile(
    r"SuperLink connection '([^']*)' not found in the Flower configuration file \(([^)]*)\)"
)
_ASK_SECONDS = 120.0
QUIET = {
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # everything is installed already
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_TELEMETRY_ENABLED": "0",
}
"""Variables that keep Flower off the network; a bare `flwr run` needs the first."""


@dataclass(frozen=True)
class Workspace:
    """Working folder and environment of a run's Flower processes."""

    folder: Path  # working directory of the processes
    environment: Mapping[str, str]
    log: Path  # file with their output

    def popen(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a command; it ends with the workspace at the latest."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def submit(self, connection: str, config: Config) -> str:
        """Start a run of a copy of the app and return its ID; FlowerError: Flower rejected it."""
        app, settings = self.folder / "app", self.folder / "run.toml"
        bundle.write_app(app)
        flat = parts.packed(replace(config, run_dir="").flat())
        settings.write_text(tomli_w.dumps(flat), encoding="utf-8")
        command = ("run", str(app), connection, "--run-config", str(settings))
        return str(ask(*command)["run-id"])

    def simulate(
        self, config: Config, nodes: int, machines: Sequence[Machine]
    ) -> subprocess.Popen[bytes]:
        """Start the process of a simulation, which imports from where this process does."""
        if " " in sys.prefix:
            raise FlowerError(f"{sys.prefix}: Ray starts no worker from a path with a space")
        settings, flat = self.folder / "run.json", config.absolute().flat()
        content = {"config": flat, "nodes": nodes, "backend": backend_config(nodes, machines)}
        settings.write_text(json.dumps(content), encoding="utf-8")
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        more = {"FLWR_HOME": str(self.folder), "PYTHONPATH": paths}
        here = replace(self, environment={**self.environment, **more})
        return here.popen(sys.executable, "-m", "coterie.app.runners.simulation", str(settings))


def ask(*arguments: str) -> dict[str, Any]:
    """Return the answer of a command of `flwr`.

    FlowerError, of one line: the command failed or answered nothing.
    """
    flwr = Path(sys.executable).with_name("flwr")
    command = [str(flwr), *arguments, "--format", "json"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=_environment(), timeout=_ASK_SECONDS
        )
    except subprocess.TimeoutExpired:
        raise FlowerError(f"no answer to flwr {arguments[0]} within {_ASK_SECONDS:g} s") from None
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        answer = {"success": False, "error-message": done.stderr or done.stdout}
    if not answer.get("success", not done.returncode):
        raise FlowerError(reason(str(answer.get("error-message") or "no answer")))
    return answer


def reason(message: str) -> str:
    """Return Flower's message in one line, with the remedy if the connection does not work."""
    line = " ".join(message.split())
    if "Connection to the SuperLink is unavailable" in line:
        return f"{line} coterie status CONNECTION says whether its certificate has ended"
    if (unknown := _UNKNOWN.search(line)) is None:
        return line
    return f'no connection "{unknown[1]}" in {unknown[2]}: add a table [superlink.{unknown[1]}]'


def _environment() -> dict[str, str]:
    """Return variables with which Flower stays off the network, and off proxies to this machine."""
    direct = ",".join(filter(None, (os.environ.get("no_proxy"), "127.0.0.1")))
    return {**QUIET, **os.environ, "no_proxy": direct, "NO_PROXY": direct}


@contextmanager
def workspace(log: Path) -> Iterator[Workspace]:
    """Make a workspace in the temporary directory; remove it and its processes at the end.

    `log` is the file for Flower's output. FlowerError: the system is not Linux, where left-over
    processes cannot be found.
    """
    if sys.platform != "linux":
        raise FlowerError(
            "--nodes and --federation need Linux; a run without them, or `flwr run .`, does not"
        )
    directory = Path(tempfile.mkdtemp(prefix="coterie-flower-"))
    ray = Path(tempfile.mkdtemp(prefix="coterie-"))  # it holds sockets, so the path must be short
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
    private = {
        "PYTHONUNBUFFERED": "1",  # else the log is written in blocks
        "RAY_TMPDIR": str(ray),
        "PATH": path,
        plugins.PATH: os.getcwd(),
        # An actor sees all GPUs of its machine and takes its own (app/institution/process/actors).
        "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1",
    }
    cleaner = subprocess.Popen(
        [sys.executable, guard.__file__, str(directory), str(ray)],
        stdin=subprocess.PIPE,
        start_new_session=True,  # out of reach of the terminal's Ctrl-C
    )
    try:
        yield Workspace(directory, {**_environment(), **private}, log)
    finally:
        cleaner.communicate()


def backend_config(nodes: int, machines: Sequence[Machine]) -> dict[str, dict[str, float]]:
    """Return settings of Flower's backend that spread `nodes` over cores and GPUs of machines.

    An existing Ray cluster (RAY_ADDRESS) keeps its own settings.
    """
    cpus, gpus = (sum(of) for of in ([m.cpus for m in machines], [m.gpus for m in machines]))
    per_gpu = max(1, min(nodes, cpus) // gpus) if gpus else 0

    def places(share: int) -> int:  # no node spans two machines
        return sum(min(m.cpus // share, m.gpus * per_gpu if gpus else m.cpus) for m in machines)

    actors = min(nodes, places(1))
    share = max(1, cpus // max(1, actors))
    while share > 1 and places(share) < actors:
        share -= 1
    resources = {"num_cpus": share, "num_gpus": 1 / per_gpu if per_gpu else 0.0}
    start: dict[str, float] = {} if private_ray.address() else {"num_cpus": cpus, "num_gpus": gpus}
    return {"client_resources": resources, "init_args": start}
