"""Execution of a run with Flower: in its simulation on this machine, or on a deployment."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from coterie.app.config import parts
from coterie.app.config.config import Config, ConfigError
from coterie.app.config.preflight import check_nodes
from coterie.app.runners import submission
from coterie.app.runners.cluster import Machine
from coterie.app.runners.finish import finish
from coterie.app.runners.submission import Submission
from coterie.app.runners.superlink import Workspace, workspace
from coterie.app.runners.tracking import Observers
from coterie.app.runs import atomic, files, progress
from coterie.app.runs.rundir import SURVEY
from coterie.errors import FlowerError, RunError, short_path
from coterie.strategies.flower.transport import in_words
from coterie.strategies.relay.preflight import PREFLIGHT_SECONDS

_PAUSE = 0.1
_AGAIN_SECONDS = 2.0
_DOWN_SECONDS = 600.0
"""Seconds for which the SuperLink of a deployment may be down."""
_LOG_SECONDS = 10.0
"""Seconds that the log of a failed run may take to arrive."""
_QUIET_SECONDS = 15.0
"""Seconds after which a wait is explained."""


def simulate(config: Config, nodes: int, machines: Sequence[Machine], show: progress.Show) -> None:
    """Run `config`, whose directory exists, in Flower's simulation.

    `nodes` virtual nodes share the peers; `machines`: see `coterie.app.runners.cluster.survey`.
    FlowerError, RunError: it did not run to its end.
    """
    progress.mark(Path(config.run_dir), "starting")
    with ExitStack() as ended, workspace(Path(config.run_dir, "flower.log")) as space:
        process = space.simulate(config, nodes, machines)
        ended.callback(process.wait)  # the workspace ends it
        if not _watch(process, config, show):
            code = process.returncode
            raise RunError(f"Flower's simulation ended with exit code {code} (see {space.log})")


def deploy(config: Config, federation: str, console: Console) -> None:
    """Run `config` on the SuperLink of Flower connection `federation`.

    Results stay on the machines of the relay and the nodes, in `<out>/<name>` of each. Metrics are
    tracked from here, which only works on the relay's machine. Ctrl-C also stops the run there, a
    second one leaves it running. FlowerError or RunError: it did not run to its end.
    """
    parts.refuse_modules(config.chosen)
    if config.start_from:
        raise ConfigError("start-from is for simulations: leave it out")
    if config.newcomers:
        raise ConfigError("late-peers is for runs without Flower: leave --federation out")
    check_nodes(config)
    observers = Observers(config, console=console)
    run_dir = Path(config.run_dir)
    run_dir.mkdir(parents=True, exist_ok=True)
    atomic.write(run_dir / "config.toml", config.toml())
    with (
        workspace(Path(config.run_dir, "flower.log")) as space,
        observers,
        _submitted(space, federation, config, config.join_seconds, console) as run,
    ):
        here = _follow(space, run, config, observers.show, console)
    if here:
        finish(run_dir, console)
        progress.require_end(run_dir)
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
    with (
        workspace(Path(config.run_dir, "flower.log")) as space,
        _submitted(space, federation, config, PREFLIGHT_SECONDS, console) as run,
    ):
        seconds = min(config.round_seconds, PREFLIGHT_SECONDS)
        console.print(f"the relay asks all nodes and waits for them, at most {seconds:g} s")
        _follow(space, run, config, lambda now: None, console)
    file = run_dir / SURVEY
    if not file.exists():
        raise ConfigError(
            f"the relay has not written {file}: start this command on the relay's machine, and set "
            "--out to a directory there in which its executor and you may write"
        )
    answers: dict[str, Any] = files.json_of(run_dir, SURVEY, dict)
    return answers


@contextmanager
def _submitted(
    space: Workspace, connection: str, config: Config, seconds: float, console: Console
) -> Iterator[Submission]:
    """Submit a run and wait until its relay begins, at most `seconds`; stop it on Ctrl-C."""
    # FlowerError: Flower rejected the run, or no executor has taken it.
    run_dir = Path(config.run_dir)
    progress.mark(run_dir, "starting")
    try:
        run = submission.asked(run_dir, connection, space.submit(connection, config))
    except FlowerError:
        progress.mark(run_dir, "stopped")
        raise
    try:
        yield _taken(run, config, seconds, console)
    except KeyboardInterrupt:
        command = shlex.join(["coterie", "stop", short_path(str(run_dir))])
        console.print(f"stopping the run at {connection}; Ctrl-C again: let it run ({command})")
        submission.stop(run_dir, run)
        raise


def _taken(run: Submission, config: Config, seconds: float, console: Console) -> Submission:
    """Wait at most `seconds` until an executor has taken a run; else stop it and FlowerError."""
    what = f"no executor has taken run {run['run']} of {run['connection']}"
    wait = _pauses(
        seconds, f"{what}: is the relay's executor up (coterie-relay-executor)?", console
    )
    while run["status"] == "pending":
        try:
            next(wait)
        except FlowerError:
            submission.stop(Path(config.run_dir), run)
            raise
        run = _look(run, config, console)
    return run


def _pauses(seconds: float, missing: str, console: Console) -> Iterator[None]:
    """Wait for something missing, at most `seconds`: says so once, and FlowerError at the end."""
    began, is_told = time.monotonic(), False
    while (waited := time.monotonic() - began) <= seconds:
        if waited > _QUIET_SECONDS and not is_told:
            is_told = True
            console.print(f"{missing} Waiting for it, at most {seconds:g} s")
        time.sleep(_AGAIN_SECONDS)
        yield
    raise FlowerError(f"{missing} Waited {waited:.0f} s")


def _follow(
    space: Workspace, run: Submission, config: Config, show: progress.Show, console: Console
) -> bool:
    """Show progress until the run ends; return whether the relay's run directory is here.

    FlowerError or RunError: the run failed, or the SuperLink is down for too long.
    """
    while True:
        with space.popen("flwr", "log", run["run"], run["connection"], "--stream") as stream:
            try:
                is_over = _watch(stream, config, show)
            finally:
                stream.kill()
        run = _look(run, config, console)
        if is_over:
            return True
        if run["status"] == "finished:completed":
            return bool(progress.read(Path(config.run_dir)))
        if submission.is_over(run):
            why = f"Flower reports {run['status']}: {in_words(run['details'])}"
            raise RunError(f"{why} (see {space.log})")
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


def _look(run: Submission, config: Config, console: Console) -> Submission:
    """Ask Flower about a run again; FlowerError: its SuperLink has not answered for too long."""
    run_dir, wait = Path(config.run_dir), None
    while True:
        try:
            return submission.asked(run_dir, run["connection"], run["run"])
        except FlowerError as error:
            line = f"the SuperLink of {run['connection']} does not answer ({error})."
            wait = wait or _pauses(_DOWN_SECONDS, line, console)
            next(wait)
