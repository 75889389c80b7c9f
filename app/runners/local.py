"""Execution of a run on this machine, from its checks to its report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from coterie.app.config import preflight
from coterie.app.config.config import Config, ConfigError
from coterie.app.runners import cluster, flower, interruption
from coterie.app.runners.conclude import conclude
from coterie.app.runners.failures import reported
from coterie.app.runners.tracking import Callback, Observers
from coterie.app.runs import progress, provenance, rundir, units
from coterie.app.runs.introduction import introduce
from coterie.app.runs.state import Display
from coterie.app.trained import starts
from coterie.datasets.table import forget_plugins

_STOPPING = "stops after this round; Ctrl-C again: at once"


def run(
    config: Config,
    nodes: int | None,
    console: Console,
    callbacks: Iterable[Callback | Callable[..., object]] = (),
) -> None:
    """Run `config`, whose directory is set.

    `nodes` virtual nodes of Flower's simulation share the peers; None: all peers in this process,
    without Flower. `callbacks` are called after each evaluated round, in addition to the configured
    trackers.

    In this process, Ctrl-C stops after the round, a second one at once. After a ConfigError,
    DataError or ResultsError nothing was written. RunError: the run failed;
    after a PartError error.log has the traceback. DivergedError: every peer diverged; summary and
    report were written.
    """
    if nodes is not None and config.newcomers:
        raise ConfigError("late-peers is for runs without Flower: leave --nodes out")
    if nodes is not None and not 1 <= nodes <= config.peers:
        raise ConfigError(f"--nodes {nodes}: {config.peers} peers need 1 to {config.peers} nodes")
    if nodes is not None and nodes > 1:
        preflight.check_nodes(config)
    machines = (
        [cluster.here(config.compute.device)]
        if nodes is None
        else cluster.survey(config.compute.device)
    )
    forget_plugins()
    problem = preflight.check(config)
    starts.check(config, problem)
    run_dir = Path(config.run_dir)
    observers = Observers(config, callbacks)
    with rundir.held(run_dir), reported(run_dir):
        rundir.create(config, problem)
        if config.resume and not (run_dir / provenance.FILE).exists():
            console.print(provenance.UNKNOWN, soft_wrap=True)
        place = "in this process" if nodes is None else units.plural(nodes, "Flower node")
        introduce(config, problem, place, console)
        with Display(console, config.num_server_rounds) as display, observers:

            def show(now: Mapping[str, Any]) -> None:
                display.show(now)
                observers.show(now)

            if nodes is None:
                from coterie.app.runners import inline  # loads torch

                with interruption.deferred(lambda: console.print(_STOPPING)) as check:

                    def watch(now: Mapping[str, Any]) -> None:
                        show(now)
                        check()

                    inline.run(config, watch)
            else:
                flower.simulate(config, nodes, machines, show)
        conclude(run_dir, console)
    progress.require_convergence(run_dir)
