"""Ray cluster: the one at RAY_ADDRESS, or one on this machine for the time of a sweep.

A task on a machine without the sweep's folder works in a temporary folder there, and returns its
files with its result.
"""

from __future__ import annotations

import io
import math
import os
import socket
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from operator import ge
from pathlib import Path
from typing import Any, NamedTuple

from coterie.app import private_ray
from coterie.app.config.config import Config, ConfigError
from coterie.app.config.preflight import problem_of
from coterie.app.private_ray import address
from coterie.app.runners import bundle, failures, machine
from coterie.app.runs import plan, units
from coterie.errors import RunError

_STORE = 100 << 20
"""Bytes for results in a local cluster; results are small."""
ALL_MEMORY = sys.maxsize
"""Memory that a run requests to be alone on its machine."""
_GPUS = 0.5
"""GPUs per run if memory suffices: two runs share a GPU, as each leaves it idle at times."""


class Machine(NamedTuple):
    """Resources of a machine for tasks; memory in bytes, 0 if unknown."""

    cpus: int
    gpus: int
    memory: int


class Folder(NamedTuple):
    """Folder of a sweep, as seen by the machine that started the sweep."""

    path: str
    file: tuple[int, float]

    @classmethod
    def of(cls, directory: Path) -> Folder:
        """Return the folder after a call of `plan.write`."""
        return cls(str(directory), _identity(directory))

    def is_here(self) -> bool:
        """Return whether this machine shares the folder."""
        try:
            return _identity(Path(self.path)) == self.file
        except FileNotFoundError:
            return False


def _identity(directory: Path) -> tuple[int, float]:
    """Return inode and time of a file: a folder of the same name elsewhere has another file."""
    status = (directory / plan.NAME).stat()
    return status.st_ino, status.st_mtime


@contextmanager
def connected(cpus: int = 1, environment: Mapping[str, str] | None = None) -> Iterator[None]:
    """Connect to the cluster, or start one here that ends with this process, even by SIGKILL.

    A local cluster has `cpus` cores and all GPUs of this machine, and its tasks inherit the
    variables of this process; `environment` is for tasks on the cluster. RunError: no cluster
    answers.
    """
    with private_ray.private() if not address() else nullcontext():
        import ray

        try:
            with failures.deferred():
                _connect(cpus, environment or {})
            yield
        finally:
            with failures.deferred():
                ray.shutdown()


def _connect(cpus: int, environment: Mapping[str, str]) -> None:
    import ray

    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "error"}
    try:
        with warnings.catch_warnings(), tempfile.TemporaryDirectory() as scratch:
            warnings.simplefilter("ignore", FutureWarning)
            if address():
                package = bundle.write_package(Path(scratch))
                sent = {"py_modules": [str(package)], "env_vars": dict(environment)}
                _require_answer(address())
                ray.init(address(), runtime_env=sent, **quiet)
            else:
                ray.init("local", num_cpus=cpus, object_store_memory=_STORE, **quiet)
    except Exception as error:  # Ray also raises plain ones
        why = " ".join(str(error).split())
        if not address():
            raise RunError(f"Ray did not start: {why}") from None
        hint = "start that cluster, set RAY_AUTH_TOKEN if it has a secret, or unset RAY_ADDRESS"
        raise RunError(f"Ray, RAY_ADDRESS={address()}: {why}: {hint}") from None


def _require_answer(where: str) -> None:
    """Raise OSError unless a server listens at HOST:PORT; Ray itself would wait for minutes."""
    host, _, port = where.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def machines() -> list[Machine]:
    """Return the machines of the cluster that this process is connected to."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    return [
        Machine(int(has.get("CPU", 0)), int(has.get("GPU", 0)), int(has.get("memory", 0)))
        for has in nodes
    ]


def survey(device: str) -> list[Machine]:
    """Return the machines for a run: those of the cluster, or this one.

    ConfigError: it needs a GPU, but there is none. RunError: no cluster answers.
    """
    if not address():
        return [here(device)]
    with connected():
        available = machines()
    return _usable(available, device)


def here(device: str) -> Machine:
    """Return this machine; ConfigError if the run needs a GPU and there is none.

    PyTorch is imported only if there is a driver, because that is slow.
    """
    gpus = 0
    if device != "cpu" and Path("/dev/nvidiactl").exists():
        import torch

        gpus = torch.cuda.device_count()
    return _usable([Machine(machine.cores(), gpus, 0)], device)[0]


def _usable(available: Sequence[Machine], device: str) -> list[Machine]:
    if device == "cpu":
        return [machine._replace(gpus=0) for machine in available]
    if device == "cuda" and not any(machine.gpus for machine in available):
        raise ConfigError('device = "cuda": there is no GPU; "auto" takes the CPU then')
    return [*available]


class Tasks:
    """Runs as tasks of the connected cluster.

    `folder` is that of the sweep; `run` executes a run and returns its error or None.
    """

    def __init__(self, folder: Folder, run: Callable[[Config], str | None]) -> None:
        import ray

        self._ray, self._folder, self._run = ray, folder, run
        self._task = ray.remote(max_retries=0)(_carry_out)
        self._going: dict[object, tuple[Config, int, Machine]] = {}
        self._gpu_bytes = 0
        if any(machine.gpus for machine in machines()):
            self._gpu_bytes = ray.get(ray.remote(num_gpus=0.01)(_gpu_bytes).remote())

    @property
    def going(self) -> list[Config]:
        """Tasks that were sent and have not ended."""
        return [config for config, *_ in self._going.values()]

    def send(self, config: Config, memory: int) -> None:
        """Execute a run as soon as a machine has a core and enough memory for it."""
        takes = [machine for machine in machines() if machine.cpus]
        with_gpu = [machine for machine in takes if machine.gpus and config.compute.device != "cpu"]
        gpus = 0.0
        if with_gpu:
            gpus = _GPUS if memory <= _GPUS * self._gpu_bytes else 1.0
        # A task that requests more than any machine has never starts.
        room = max((machine.memory for machine in with_gpu or takes), default=0)
        request = min(memory, room)
        task = self._task.options(num_cpus=1, num_gpus=gpus, memory=request)
        reference = task.remote(self._run, config, self._folder, str(Path.cwd()))
        self._going[reference] = config, memory, Machine(1, int(gpus > 0), request)

    def _resend(self) -> None:
        """Send again what no living machine can take: Ray would wait for one that is gone."""
        alive = [machine for machine in machines() if machine.cpus]
        for reference, (config, memory, needs) in list(self._going.items()):
            if alive and not any(all(map(ge, has, needs)) for has in alive):
                del self._going[reference]
                self._ray.cancel(reference)
                self.send(config, memory)

    def ended(self, seconds: float) -> list[tuple[Config, str | None, int | None]]:
        """Wait until a run ends; return the run, its error, and memory with which to try it again.

        That is None unless its process or its machine died.
        """
        ray = self._ray
        done, _ = ray.wait(list(self._going), timeout=seconds)
        if not done:
            self._resend()
        results = list[tuple[Config, str | None, int | None]]()
        for reference in done:
            config, memory, _ = self._going.pop(reference)
            again, error = None, None
            try:
                error, files = ray.get(reference)
                if files is not None:
                    _unpack(files, Path(config.run_dir))
            except ray.exceptions.NodeDiedError:
                again, error = memory, "its machine died or left the cluster"
            except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError):
                again, error = ALL_MEMORY, "its process died, perhaps out of memory"
            except ray.exceptions.RayError as failure:
                error = " ".join(str(failure).split())
            results.append((config, error, again))
        return results


def _carry_out(
    run: Callable[[Config], str | None], config: Config, folder: Folder, place: str
) -> tuple[str | None, bytes | None]:
    """Return a run's error, and its files if its folder is not on this machine.

    `place` is the working directory, from which relative paths of the configuration start.
    """
    if Path(place).is_dir():
        os.chdir(place)
    if folder.is_here():
        return run(config), None
    with tempfile.TemporaryDirectory() as directory:
        there = Path(directory, config.name)
        return run(replace(config, run_dir=str(there))), _packed(there)


def _packed(directory: Path) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(directory, ".")
    return packed.getvalue()


def _unpack(files: bytes, directory: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(files)) as tar:
        tar.extractall(directory, filter="data")


def _gpu_bytes() -> int:
    """Return the memory of a GPU of the cluster, assuming that all are alike."""
    import torch

    return int(torch.cuda.mem_get_info()[1]) if torch.cuda.is_available() else 0


_PROCESS = 600 << 20  # PyTorch and everything else that is imported
_RESIDENT = 1.25  # resident bytes per byte of a step's tensors (benchmarks/memory.py)


def estimates(configs: Sequence[Config]) -> list[int]:
    """Return the bytes that each run takes; runs that differ only in their seed take the same."""
    known: dict[tuple[object, ...], int] = {}
    needed = []
    for config in configs:
        alike = (
            config.dataset, config.dataset_options, config.network, config.model_options,
            config.adaptation, config.peers, config.compute.dtype, config.training, config.privacy,
            config.engine, config.method, config.topology, config.topology_degree,
        )  # fmt: skip
        if alike not in known:
            try:
                known[alike] = estimate(config)
            except Exception:  # a network of a plugin that fails: its run reports the error
                known[alike] = _PROCESS
        needed.append(known[alike])
    return needed


def estimate(config: Config) -> int:
    """Return the bytes of a run; methods that keep further models take more."""
    return _PROCESS + sum(memory_by_key(config).values())


def memory_by_key(config: Config) -> dict[str, int]:
    """Return the bytes of a run's parts beside its process, by the key that lowers each."""
    # Twice weights and optimizer memory, a chunk of models, the data, a round's answers.
    from coterie.app.node.assembly import compares_in_pairs, engine_of
    from coterie.clients.engine import tuning
    from coterie.clients.engine.engine import device_of
    from coterie.clients.rule import Rule

    problem = problem_of(config)
    one = engine_of(config.with_(device="cpu"), problem, [0])
    x, _ = one.initial()
    numbers = x.numel() + sum(value.numel() for value in one.opt_state(x).values())
    examples = min(config.training.batch_size, int(problem.samples.max()))
    chunk = max(tuning.CHUNK_BYTES, one.step_bytes(examples))
    answers = 0
    if config.row.answer is not Rule.answer:
        rule = config.options.bind(one, config.num_server_rounds)
        answer = sum(math.prod(shape) for shape in rule.answer_shapes(1).values())
        answers = int(one.topology.sum()) * answer * one.dtype.itemsize
        if compares_in_pairs(config, rule):
            answers = min(answers, tuning.ANSWER_BYTES.on(device_of(config.compute.device, 0)))
    return {
        "peers": 2 * config.peers * numbers * one.dtype.itemsize,
        "batch-size": int(_RESIDENT * chunk),
        "partition.samples-per-peer": 2 * problem.inputs.nbytes,
        "topology": answers,
    }


def memory_warning(config: Config) -> str:
    """Return a line if a run of one process may exceed the memory it can have; empty if not."""
    from coterie.clients.engine.engine import device_of

    needed = memory_by_key(config)
    key = max(needed, key=lambda key: needed[key])
    limits = [(machine.memory(), "this machine or its container", _PROCESS)]
    if device_of(config.compute.device, 0).type == "cuda":
        limits.append((_gpu_bytes(), "the GPU", 0))
    for limit, name, process in limits:
        if 0 < limit < (total := process + sum(needed.values())):
            return (
                f"the run needs about {units.size(total)}, {name} has {units.size(limit)}: "
                f"{units.size(needed[key])} of it are lowered by {key}"
            )
    return ""
