"""Execution of a run on this machine, from its checks to its report."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from coterie.app.config import defaults, preflight
from coterie.app.config.config import Config, ConfigError
from coterie.app.config.sources import of_record
from coterie.app.runners import cluster, failures, flower
from coterie.app.runners.failures import reported
from coterie.app.runners.finish import finish
from coterie.app.runners.tracking import Callback, Observers
from coterie.app.runs import files, progress, provenance, rundir, units
from coterie.app.runs.header import header
from coterie.app.trained import starts
from coterie.datasets.table import forget_plugins

_STOPPING = "stops after this round; Ctrl-C again: at once"


def config_of(run_dir: Path, named: Collection[str] = ()) -> Config:
    """Return the configuration of a run directory that may be written to.

    `named` is code that the user has named, as "module:attribute", and the directory may name too.
    ConfigError: it is not a run directory, or it names other code; nothing was loaded.
    ResultsError: it has a link, a pipe or a device.
    """
    files.check_all(run_dir)
    if not (run_dir / "config.toml").is_file():
        raise ConfigError(f"{run_dir} is not a run directory: it has no config.toml")
    return Config.of(defaults.of_project(), of_record(run_dir / "config.toml"), named=named)


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
    device = config.compute.device
    machines = [cluster.here(device)] if nodes is None else cluster.survey(device)
    forget_plugins()
    problem = preflight.check(config)
    starts.check(config, problem)
    run_dir = Path(config.run_dir)
    observers = Observers(config, callbacks, console)
    with rundir.held(run_dir), reported(run_dir):
        rundir.create(config, problem)
        if config.resume and not (run_dir / provenance.FILE).exists():
            console.print(provenance.UNKNOWN, soft_wrap=True)
        place = "in this process" if nodes is None else units.plural(nodes, "Flower node")
        header(config, problem, place, console)
        if nodes is None and (warning := cluster.memory_warning(config)):
            console.print(f"warning: {warning}", soft_wrap=True)
        with observers:
            if nodes is None:
                from coterie.app.runners import inline  # loads torch

                with failures.deferred(lambda: console.print(_STOPPING)) as check:

                    def watch(now: Mapping[str, Any]) -> None:
                        observers.show(now)
                        check()

                    inline.run(config, watch)
            else:
                flower.simulate(config, nodes, machines, observers.show)
        finish(run_dir, console)
    progress.require_end(run_dir)
