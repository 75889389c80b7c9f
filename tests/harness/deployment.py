"""A deployment on this machine, as docker/compose.yaml has it: TLS, authentication, executors.

Every service is a process of its own that can be killed and is started again when it ends by
itself, as `restart: unless-stopped` does. Hosts are names for where a service runs: this machine,
or a network namespace of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import tomli_w

from coterie.app.config.registry import METHODS
from coterie.app.config.root import ROOT
from coterie.app.config.schema import Scalar
from coterie.app.institution.commands import certificates
from coterie.app.institution.security import trust
from coterie.app.institution.security.policy import Policy, policy_of
from coterie.app.runners import guard
from coterie.app.runs import atomic, progress
from coterie.datasets.table import DATASETS
from tests import private_names
from tests.checkout import free_port
from tests.fuzz import node as hostile_node
from tests.problems import write_quadratic

BIN = Path(sys.executable).parent
CONNECTION = "drill"
_START_SECONDS = 90.0
_OURS = ("env", f"PYTHONPATH={ROOT}")  # nodes have what Flower brings them and nothing else
_FLOWER = ("python", "-P", "-m", "coterie", "flower")
_RESTART_SECONDS = 2.0
_DATA = 2**31
"""Bytes of a message's process, as deploy/ and docker/ have it."""
_QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
    "MALLOC_MMAP_THRESHOLD_": "1048576",
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "COLUMNS": "300",
}


@dataclass(frozen=True)
class Host:
    """Machine that services run on.

    Attributes
    ----------
    address : by which the others reach it.
    prefix : what a command starts with to run there.
    """

    address: str = "127.0.0.1"
    prefix: tuple[str, ...] = ()


@dataclass
class Service:
    """A process that is up, down, or about to be started again."""

    host: Host
    command: tuple[str, ...]
    log: Path
    home: Path
    process: subprocess.Popen[bytes] | None = None
    due: float = field(default=0.0)

    def start(self) -> None:
        """Start it; what it prints is appended to its log."""
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                [*self.host.prefix, *self.command],
                cwd=self.home,
                env=_environment(self.home),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End it with all that it has started."""
        if self.process is not None:
            for pid in reversed(family(self.process.pid)):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            self.process.wait()
            self.process = None


def foreign_project(name: str, server: str, client: str, config: Mapping[str, Scalar]) -> str:
    """The pyproject.toml of a Flower app that is not this one, for `Deployment.run_foreign`.

    Parameters
    ----------
    server, client : "module:attribute" of its ServerApp and ClientApp.
    config : keys of its run configuration, with their defaults.
    """
    project = {
        "name": name,
        "version": "1.0.0",
        "license": {"file": "LICENSE"},
        "dependencies": ["flwr>=1.41"],
    }
    app = {
        "publisher": "coterie",
        "fab-format-version": 1,
        "flwr-version-target": "1.41.0",
        "components": {"serverapp": server, "clientapp": client},
        "config": dict(config),
    }
    return tomli_w.dumps({"project": project, "tool": {"flwr": {"app": app}}})


class Deployment:
    """A relay and nodes below `directory`; everything is gone when it ends, however it ends.

    Parameters
    ----------
    directory : for secrets, a home for each party, logs.
    relay : where SuperLink and relay run.
    nodes : peer -> where it runs; without any, every node that connects is accepted.
    """

    def __init__(self, directory: Path, relay: Host, nodes: Mapping[int, Host]) -> None:
        self.directory, self.relay = directory, relay
        self.services: dict[str, Service] = {}
        self._secrets = directory / "secrets"
        self._port = free_port()
        self._address = f"{relay.address}:{self._port}"
        certificates.for_relay(self._secrets, [relay.address], days=2)
        connection = {
            "address": self._address,
            "root-certificates": str(self._secrets / "ca.crt"),
        }
        self.home("operator").joinpath("config.toml").write_text(
            tomli_w.dumps({"superlink": {CONNECTION: connection}})
        )
        self._add_relay(("--enable-supernode-auth",) if nodes else ())
        exchange_keys(self.trust.parent, list(nodes))
        self.policy = write_policy(directory / "policy.toml")
        for peer, host in nodes.items():
            self._add_node(peer, host)

    def __enter__(self) -> Self:
        """Start everything and let the nodes in."""
        self._guard = subprocess.Popen(
            [sys.executable, guard.__file__, str(self.directory)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            self.start("superlink", "relay")
            self.wait(self._registered, "the SuperLink lets no nodes in", _START_SECONDS)
            self.start(*(name for name in self.services if name.startswith("node")))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill(*self.services)
        self._guard.communicate()

    @property
    def problem(self) -> Path:
        """Path of the problem of dataset = "quadratic" on every node."""
        return self.directory / "problem.json"

    @property
    def presence(self) -> Path:
        """Path of the file of schedule.kind = "trace" on every node."""
        return self.directory / "presence.csv"

    def home(self, name: str) -> Path:
        """The directory of a party: FLWR_HOME, and where its files are written."""
        home = self.directory / name
        home.mkdir(parents=True, exist_ok=True)
        return home

    def start(self, *names: str) -> None:
        """Start services by name."""
        for name in names:
            self.services[name].start()

    def kill(self, *names: str) -> None:
        """Kill services by name with SIGKILL; they stay down until `start`."""
        for name in names:
            self.services[name].kill()
        for name in names:  # a node's worker has no parent among them
            for pid in guard.working_in(self.services[name].home) if "node" in name else ():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def of_node(self, peer: int) -> tuple[str, str]:
        """The names of a node's services."""
        return f"node-{peer}", f"node-{peer}-executor"

    @property
    def relay_key(self) -> Path:
        """The private key of the relay's certificate, beside both certificates."""
        return self._secrets / "relay" / "server.key"

    @property
    def trust(self) -> Path:
        """The public keys of all peers."""
        return self._secrets / "letters" / "trust.toml"

    def make_hostile(self, peer: int) -> Path:
        """Make a node hostile from its next start; return the file that sets its forgery."""
        return self._make_hostile(self.home(f"node-{peer}"), self.of_node(peer)[1])

    def make_relay_hostile(self) -> Path:
        """Make the relay hostile from its next start; return the file that sets its forgery."""
        return self._make_hostile(self.home("relay"), "relay")

    def _make_hostile(self, home: Path, executor: str) -> Path:
        (home / "sitecustomize.py").write_text(hostile_node.START)
        manner = home / "manner"
        manner.write_text("")
        service = self.services[executor]
        environment = ("env", f"PYTHONPATH={home}{os.pathsep}{ROOT}", f"HOSTILE={manner}")
        service.command = (*environment, *service.command)
        return manner

    def hide_private_names(self) -> None:
        """Let the relay and all nodes have a flwr without private names from their next start."""
        for name in ("relay", *(name for name in self.services if name.endswith("-executor"))):
            service = self.services[name]
            (service.home / "sitecustomize.py").write_text(private_names.START)
            path = f"PYTHONPATH={service.home}{os.pathsep}{ROOT}"
            service.command = ("env", path, *service.command)

    def use_flowers_services(self) -> None:
        """Let nodes have Flower's own SuperNode and SuperExec from their next start."""
        for service in self.services.values():
            words = [*service.command]
            if "flower" in words:
                at = words.index("flower")
                words[at - 4 : at + 2] = [str(BIN / f"flower-{words[at + 1]}")]
            service.command = tuple(words)

    def start_fleet(self, nodes: int) -> None:
        """Start `nodes` SuperNodes in one process: `tests.harness.fleet` in `fleet/`."""
        command = [*_OURS, sys.executable, "-m", "tests.harness.fleet", self._address]
        command += [str(self._secrets / "ca.crt"), str(self.home("fleet")), str(nodes)]
        log = self.home("logs") / "fleet.log"
        self.services["fleet"] = Service(self.relay, tuple(command), log, self.home("fleet"))
        self.start("fleet")

    def run(self, overrides: Mapping[str, Scalar], name: str = "run") -> subprocess.Popen[str]:
        """Start `coterie run` on this deployment; results go to `operator/<name>`."""
        pairs = [f"{key}={value}" for key, value in overrides.items()]
        out = str(self.home("operator"))
        place = ["--federation", CONNECTION, "--out", out, "--name", name]
        return self._operate(*_OURS, sys.executable, "-m", "coterie", "run", *pairs, *place)

    def resume(self, name: str) -> subprocess.Popen[str]:
        """Start `coterie resume` of a run."""
        place = [str(self.home("operator") / name), "--federation", CONNECTION]
        return self._operate(*_OURS, sys.executable, "-m", "coterie", "resume", *place)

    def run_foreign(self, app: Path, run_config: Mapping[str, Scalar]) -> subprocess.Popen[str]:
        """Start the Flower app in the directory `app` instead of this one."""
        settings = app.with_suffix(".toml")
        settings.write_text(tomli_w.dumps(run_config))
        place = [CONNECTION, "--stream", "--run-config", str(settings)]
        return self._operate(str(BIN / "flwr"), "run", str(app), *place)

    def progress(self, name: str = "run") -> dict[str, Any]:
        """progress.json of a run."""
        return progress.read(self.home("operator") / name)

    def wait(self, until: Callable[[], bool], otherwise: str, seconds: float = 300.0) -> float:
        """Wait until something is so, starting again what ends by itself; how long it took.

        Raises
        ------
        TimeoutError
            It is not so after `seconds`.
        """
        began = time.monotonic()
        while not until():
            now = time.monotonic()
            if now > began + seconds:
                raise TimeoutError(otherwise)
            for service in self.services.values():
                if service.process is not None and service.process.poll() is not None:
                    service.due = service.due or now + _RESTART_SECONDS
                    if now > service.due:
                        service.due = 0.0
                        service.start()
            time.sleep(0.05)
        return time.monotonic() - began

    def _add(self, name: str, host: Host, home: Path, command: str, *arguments: str) -> None:
        log = self.home("logs") / f"{name}.log"
        self.services[name] = Service(host, (str(BIN / command), *arguments), log, home)

    def _add_relay(self, authenticated: tuple[str, ...]) -> None:
        at, secret = self._secrets / "relay", str(self._secrets / "relay" / "superexec.secret")
        home = self.home("relay")
        self._add(
            "superlink", self.relay, home, "flower-superlink", "--isolation", "process",
            "--host", self.relay.address, "--port", str(self._port),
            "--database", str(home / "state.db"), "--disable-runtime-dependency-installation",
            "--ssl-ca-certfile", str(at / "ca.crt"), "--ssl-certfile", str(at / "server.crt"),
            "--ssl-keyfile", str(at / "server.key"), "--superexec-auth-secret-file", secret,
            *authenticated,
        )  # fmt: skip
        self._add(
            "relay", self.relay, home, "flower-superexec", "--runtime-api-address", self._address,
            "--root-certificates", str(at / "ca.crt"), "--superexec-auth-secret-file", secret,
        )  # fmt: skip

    def add_twin(self, peer: int, host: Host) -> tuple[str, str]:
        """Add a second SuperNode for a peer, on the same directory; its services, not started yet.

        Each of its messages is handled by a process of its own. Before the deployment is entered.
        """
        return self._add_node(peer, host, f"twin-{peer}", " worker=false")

    def _add_node(self, peer: int, host: Host, called: str = "", more: str = "") -> tuple[str, str]:
        name, home = f"node-{peer}", self.home(f"node-{peer}")
        node, executor = (called, f"{called}-executor") if called else self.of_node(peer)
        public = certificates.for_node(self._secrets, node)
        at, port = public.parent, str(free_port())
        secret = str(at / "superexec.secret")
        keys = self.trust.with_name(f"{name}.key")
        config = f'name="{name}" keys="{keys}" trust="{self.trust}" '
        config += f'policy="{self.policy}" quadratic.file="{self.problem}" '
        config += f'schedule.file="{self.presence}"'
        self._add(
            node, host, home, *_FLOWER, "supernode", "--isolation", "process",
            "--superlink", self._address, "--root-certificates", str(at / "ca.crt"),
            "--auth-supernode-private-key", str(at / "node.key"),
            "--port", port, "--superexec-auth-secret-file", secret,
            "--node-config", f'{config} out="{home}" device="cpu"{more}',
        )  # fmt: skip
        self._add(
            executor, host, home, *_FLOWER, "superexec", "--insecure",
            "--runtime-api-address", f"127.0.0.1:{port}", "--superexec-auth-secret-file", secret,
        )  # fmt: skip
        service = self.services[executor]
        service.command = ("prlimit", f"--data={_DATA}:unlimited", *service.command)
        return node, executor

    def _operate(self, *command: str) -> subprocess.Popen[str]:
        """Start a command of the operator's."""
        return subprocess.Popen(
            [*self.relay.prefix, *command],
            cwd=self.home("operator"),
            env=_environment(self.home("operator")),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def _registered(self) -> bool:
        """Return whether the SuperLink is up and has accepted all nodes."""
        nodes = [public.parent.name for public in self._secrets.glob("*/node.pub")]
        command = ["certificates", str(self._secrets), "--nodes", *nodes, "--register", CONNECTION]
        command = command if nodes else ["status", CONNECTION]
        done = subprocess.run(
            [*self.relay.prefix, sys.executable, "-m", "coterie", *command],
            cwd=ROOT,
            env=_environment(self.home("operator")),
            capture_output=True,
        )
        return not done.returncode


def exchange_keys(directory: Path, peers: Sequence[int]) -> None:
    """Make `node-K.key` for each peer K, and one trust.toml for all."""
    directory.mkdir(parents=True)
    entries = [trust.create(f"node-{peer}", directory, peer)[2] for peer in peers]
    (directory / "trust.toml").write_text("".join(entry.toml() for entry in entries))


def write_policy(path: Path, **changes: Scalar) -> Path:
    """Write a policy by which everything may run on data that are nobody's own; `path`."""
    public = [name for name, dataset in DATASETS.items() if dataset.deployed is None]
    flat = Policy().flat() | {"approval": "none", "methods": ", ".join(METHODS)}
    policy = policy_of(flat | {"data.sets": ", ".join(public)} | changes)
    atomic.write(path, policy.toml())
    path.chmod(0o644)
    return path


def finish(deployment: Deployment, run: subprocess.Popen[str], seconds: float = 600) -> None:
    """Wait until a run has ended well.

    Raises
    ------
    RuntimeError
        The command failed; the message has its output.
    """
    try:
        deployment.wait(lambda: run.poll() is not None, "the run does not end", seconds)
    finally:
        run.kill()
    output, _ = run.communicate()
    if run.returncode:
        raise RuntimeError(output)


def family(pid: int) -> list[int]:
    """A process and all its descendants, parents first."""
    parents: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    pids = [pid]
    for member in pids:
        pids += parents.get(member, [])
    return pids


def committed(state: Mapping[str, Any]) -> int:
    """Rounds that a run has committed; -1 before it began."""
    return int(state.get("round", -1))


def quadratics(path: Path, peers: int) -> dict[str, Scalar]:
    """A problem of `peers` quadratics in two camps, written to `path`; its run configuration."""
    camps = [peer % 2 for peer in range(peers)]
    curvature = [[1.0 + 0.1 * peer, 0.5] for peer in range(peers)]
    centre = [[4.0 * camp + 0.1 * peer, 1.0] for peer, camp in enumerate(camps)]
    return {**write_quadratic(path, curvature, centre, [1.0, 1.0], noise=0.1)}


def _environment(home: Path) -> dict[str, str]:
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    everywhere = {"no_proxy": "*", "NO_PROXY": "*"}
    return {**os.environ, **_QUIET, **everywhere, "FLWR_HOME": str(home), "PATH": path}
