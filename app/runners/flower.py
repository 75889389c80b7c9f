"""Execution of a run with Flower: in its simulation on this machine, or on a deployment."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from coterie.app.config import parts
from coterie.app.config.config import Config, ConfigError
from coterie.app.config.preflight import check_nodes
from coterie.app.runners.cluster import Machine
from coterie.app.runners.finish import finish
from coterie.app.runners.superlink import Workspace, ask, workspace
from coterie.app.runners.tracking import Observers
from coterie.app.runs import atomic, files, progress
from coterie.app.runs.header import Display
from coterie.app.runs.rundir import SURVEY
from coterie.errors import FlowerError, RunError

_PAUSE = 0.1
_AGAIN_SECONDS = 2.0
_DOWN_SECONDS = 600.0
"""Seconds for which the SuperLink of a deployment may be down."""
_LOG_SECONDS = 10.0
"""Seconds that the log of a failed run may take to arrive."""


def simulate(config: Config, nodes: int, machines: Sequence[Machine], show: progress.Show) -> None:
    """Run `config`, whose directory exists, in Flower's simulation.

    `nodes` virtual nodes share the peers; `machines`: see `coterie.app.runners.cluster.survey`.
    FlowerError, RunError: it did not run to its end.
    """
    with workspace(_new_log(config)) as space:
        process = space.simulate(config, nodes, machines)
        if not _watch(process, config, show):
            code = process.returncode
            raise RunError(f"Flower's simulation ended with exit code {code} (see {space.log})")


def deploy(config: Config, federation: str, console: Console) -> None:
    """Run `config` on the SuperLink of Flower connection `federation`.

    Results stay on the machines of the relay and the nodes, in `<out>/<name>` of each. Metrics are
    tracked from here, which only works on the relay's machine. FlowerError or RunError: it did not
    run to its end.
    """
    parts.refuse_modules(config.chosen)
    if config.start_from:
        raise ConfigError("start-from is for simulations: leave it out")
    if config.newcomers:
        raise ConfigError("late-peers is for runs without Flower: leave --federation out")
    check_nodes(config)
    observers = Observers(config)
    run_dir = Path(config.run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    atomic.write(run_dir / "config.toml", config.toml())
    with (
        workspace(_new_log(config)) as space,
        Display(console, config.num_server_rounds) as display,
        observers,
    ):
        run_id = space.submit(federation, config)

        def show(now: Mapping[str, Any]) -> None:
            display.show(now)
            observers.show(now)

        here = _follow(space, run_id, federation, config, show)
    if here:
        finish(run_dir, console)
        progress.require_convergence(run_dir)
    else:
        if config.track:
            console.print(f"not tracked ({config.track}): metrics stay on the relay's machine")
        where = f"{config.out}/{config.name}"
        console.print(f"done; the results are in {where} on the relay's machine")


def survey(config: Config, federation: str, console: Console) -> dict[str, Any]:
    """Check through the relay of Flower connection `federation` whether its nodes are ready.

    Returns the content of the relay's file, see `coterie.strategies.relay.preflight.Survey`.
    ConfigError: the relay's answer is not on this machine, or in another directory. FlowerError or
    RunError: the relay did not ask its nodes.
    """
    run_dir = Path(config.run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    with workspace(_new_log(config)) as space, Display(console, 0) as display:
        run_id = space.submit(federation, config)
        _follow(space, run_id, federation, config, display.show)
    file = run_dir / SURVEY
    if not file.exists():
        raise ConfigError(
            f"the relay has not written {file}: start this command on the relay's machine, and set "
            "--out to a directory there in which its executor and you may write"
        )
    answers: dict[str, Any] = files.json_of(run_dir, SURVEY, dict)
    return answers


def _new_log(config: Config) -> Path:
    """Return the path of the log, and remove log and progress of the part that is resumed."""
    log = Path(config.run_dir, "flower.log")
    log.unlink(missing_ok=True)
    Path(config.run_dir, "progress.json").unlink(missing_ok=True)  # its status may be "failed"
    return log


def _follow(
    space: Workspace, run_id: str, connection: str, config: Config, show: progress.Show
) -> bool:
    """Show progress until the run ends; return whether the relay's run directory is here.

    FlowerError or RunError: the run failed, or the SuperLink is down for too long.
    """
    while True:
        with space.stream(run_id, connection) as stream:
            if _watch(stream, config, show):
                return True
        status, details = _status(space, run_id, connection)
        if status == "finished:completed":
            return bool(progress.read(Path(config.run_dir)))
        if status.startswith("finished"):
            raise RunError(f"Flower reports {status}: {details} (see {space.log})")
        time.sleep(_AGAIN_SECONDS)  # the log broke off: the SuperLink is being restarted


def _watch(process: subprocess.Popen[bytes], config: Config, show: progress.Show) -> bool:
    """Show progress; return True if the run finished, False if the process ended before.

    RunError: the relay reports that the run failed.
    """
    run_dir = Path(config.run_dir)
    while True:
        ended = process.poll() is not None
        now = progress.read(run_dir)
        show(now)
        if now.get("status") in progress.OVER:
            return True
        if now.get("status") in ("failed", "stopped"):
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LOG_SECONDS)
            why = now["error"] or "the relay was interrupted"
            raise RunError(f"{why} (see {run_dir / 'flower.log'})")
        if ended:
            return False
        time.sleep(_PAUSE)


def _status(space: Workspace, run_id: str, connection: str) -> tuple[str, str]:
    """Return Flower's status of a run ("running", "finished:completed", ...) and its reason.

    FlowerError: the SuperLink has not answered for too long.
    """
    command = ("list", connection, "--run-id", run_id)
    deadline = time.monotonic() + _DOWN_SECONDS
    while True:
        try:
            (run,) = ask(*command, environment=space.environment)["runs"]
            return run["status"], run["status-details"]
        except FlowerError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_AGAIN_SECONDS)
