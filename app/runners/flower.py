"""Carry out one run with Flower and conclude it."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from app.config import preflight
from app.config.config import Config, ConfigError
from app.runners.superlink import (
    FlowerError,
    Workspace,
    private_superlink,
    simulation_config,
    workspace,
)
from app.runs import progress, units

_PAUSE = 0.1
_AGAIN_SECONDS = 2.0
_DOWN_SECONDS = 600.0
"""How long the SuperLink of a deployment may be down."""
_LOG_SECONDS = 10.0
"""How long the log of a failed run may take to arrive."""
_DECORATION = re.compile(r"\x1b\[[0-9;]*m|[╭╮╰╯│─]")
_EXCEPTION = re.compile(r"^(?:Error|[\w.]*(?:Error|Exception|Exit\w*)): \S")


class RunError(Exception):
    """The run failed; the message is one line."""


def simulate(config: Config, nodes: int | None, console: Console) -> None:
    """Run `config`, which knows its directory, on this machine.

    Parameters
    ----------
    nodes : virtual nodes that share the peers; None is 2, Flower's default.

    Raises
    ------
    ConfigError, DataError
        It cannot run. Nothing was written.
    FlowerError, RunError
        It did not run to its end.
    """
    nodes = min(2, config.peers) if nodes is None else nodes
    if not 1 <= nodes <= config.peers:
        raise ConfigError(f"--nodes {nodes}: {config.peers} peers need 1 to {config.peers} nodes")
    gpus = _gpus(config.device)
    problem = preflight.check(config)
    run_dir = Path(config.run_dir)
    with held(run_dir):
        preflight.begin(config, problem)
        console.print(f"{config.method} on {config.dataset}: peers {config.peers}, nodes {nodes}")
        console.print(preflight.statistics(problem))
        for line in config.strategy().cautions():
            console.print(f"warning: {line}")
        with (
            workspace(_new_log(run_dir)) as space,
            private_superlink(space) as connection,
        ):
            settings = simulation_config(nodes, gpus)
            flower = space.submit(connection, config.absolute().flat(), settings)
            if not _follow(flower, config, console):
                raise _failure(space.log)
    conclude(run_dir, console)


def deploy(config: Config, federation: str, console: Console) -> None:
    """Run `config` on the SuperLink of Flower connection `federation`.

    Results stay on the machines of the relay and the nodes, in `<out>/<name>` of each.

    Raises
    ------
    FlowerError, RunError
        It did not run to its end.
    """
    run_dir = Path(config.run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "config.toml").write_text(config.toml(), encoding="utf-8")
    home = Path(os.environ.get("FLWR_HOME", Path.home() / ".flwr"))
    with workspace(_new_log(run_dir), home) as space:
        flower = space.submit(federation, replace(config, run_dir="").flat(), {})
        while not _follow(flower, config, console):
            run_id = _started(space.log)
            status = _status(space, federation, run_id)
            if status == "finished:completed":
                break
            if status.startswith("finished"):
                raise _failure(space.log)
            time.sleep(_AGAIN_SECONDS)  # the log broke off: the SuperLink is being restarted
            flower = space.popen("flwr", "log", run_id, federation, "--stream")
        else:
            conclude(run_dir, console)
            return
    console.print(f"done; the results are in {config.out}/{config.name} on the relay's machine")


def conclude(run_dir: Path, console: Console) -> None:
    """Write summary and report, and print the numbers that matter.

    Raises
    ------
    ResultsError
        It is not a run directory.
    """
    from app.report import run_page
    from app.runs import summary  # plotting libraries: a second that other commands need not pay

    numbers = summary.finish(run_dir)
    page = run_page.write(run_dir)
    console.print(digest(numbers))
    console.print(f"report: {page}", soft_wrap=True)


def digest(summary: Mapping[str, Any]) -> Table:
    """The short table at the end of a run."""
    table = Table(show_header=False, box=None)
    accuracy, spread = (summary.get(f"{kind}_test_accuracy") for kind in ("mean", "std"))
    if accuracy is not None:
        table.add_row("test accuracy", f"{accuracy:.4f} ± {spread or 0:.4f} over peers")
    worst = summary.get("worst_decile_test_accuracy")
    if worst is not None:
        table.add_row("worst tenth of peers", f"{worst:.4f}")
    if summary.get("mean_test_loss") is not None:
        table.add_row("test loss", f"{summary['mean_test_loss']:.6g}")
    table.add_row("between peers", units.size(summary.get("total_bytes") or 0))
    table.add_row("time", units.duration(summary.get("wall_seconds")))
    return table


def last_error(log: Path) -> str:
    """The line of `log` that says best what went wrong."""
    lines = _DECORATION.sub("", log.read_text("utf-8", errors="replace")).splitlines()
    said = [line.strip() for line in lines if line.strip()]
    errors = [line for line in said if _EXCEPTION.match(line)]
    return (errors or said or ["it ended without a word"])[-1]


@contextmanager
def held(run_dir: Path) -> Iterator[None]:
    """Hold the run directory, so that no second process resumes the run while it goes on."""
    run_dir.mkdir(parents=True, exist_ok=True)
    handle = os.open(run_dir, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ConfigError(f"{run_dir}: this run is going on") from None
    finally:
        os.close(handle)


def _new_log(run_dir: Path) -> Path:
    log = run_dir / "flower.log"
    log.unlink(missing_ok=True)  # of the part of the run that is being resumed
    return log


def _follow(flower: subprocess.Popen[bytes], config: Config, console: Console) -> bool:
    """Show progress until the run finished (true) or Flower has ended without that (false).

    Raises
    ------
    RunError
        The relay says that the run failed.
    """
    run_dir = Path(config.run_dir)
    with progress.Display(console, config.num_server_rounds) as display:
        while True:
            ended = flower.poll() is not None
            now = progress.read(run_dir)
            display.show(now)
            if now.get("status") == "finished":
                return True
            if now.get("status") == "failed":
                with suppress(subprocess.TimeoutExpired):
                    flower.wait(_LOG_SECONDS)
                raise RunError(f"{now['error']} (see {run_dir / 'flower.log'})")
            if ended:
                return False
            time.sleep(_PAUSE)


def _status(space: Workspace, federation: str, run_id: str) -> str:
    """What Flower says of a run: "running", "finished:completed", ...

    Raises
    ------
    RunError
        The SuperLink has not answered for long.
    """
    command = ["flwr", "list", federation, "--run-id", run_id, "--format", "json"]
    deadline = time.monotonic() + _DOWN_SECONDS
    while time.monotonic() < deadline:
        listed = subprocess.run(command, env=space.environment, capture_output=True, text=True)
        with suppress(ValueError, KeyError, IndexError):
            return str(json.loads(listed.stdout)["runs"][0]["status"])
        time.sleep(_AGAIN_SECONDS)
    raise _failure(space.log)


def _failure(log: Path) -> RunError:
    _started(log)
    return RunError(f"{last_error(log)} (see {log})")


def _started(log: Path) -> str:
    """The run's id for Flower.

    Raises
    ------
    FlowerError
        Flower did not take the run.
    """
    started = re.search(r"Successfully started run (\d+)", log.read_text("utf-8", errors="replace"))
    if not started:
        raise FlowerError(f"{last_error(log)} (see {log})")
    return started[1]


def _gpus(device: str) -> int:
    """GPUs for the run. PyTorch is asked only where there is a driver: importing it takes long."""
    count = 0
    if device != "cpu" and Path("/dev/nvidiactl").exists():
        import torch

        count = torch.cuda.device_count()
    if device == "cuda" and not count:
        raise ConfigError('device = "cuda": PyTorch finds no GPU here')
    return count
