"""One run on this machine, from its checks to its report."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from app.config import preflight
from app.config.config import Config, ConfigError
from app.runners import flower
from app.runners.conclude import conclude
from app.runs import progress, rundir, split


def run(config: Config, nodes: int | None, console: Console) -> None:
    """Run `config`, which knows its directory.

    Parameters
    ----------
    nodes : virtual nodes of Flower's simulation that share the peers; None: 2.

    Raises
    ------
    ConfigError, DataError, ResultsError
        It cannot run. Nothing was written.
    RunError
        It did not run to its end.
    """
    nodes = min(2, config.peers) if nodes is None else nodes
    if not 1 <= nodes <= config.peers:
        raise ConfigError(f"--nodes {nodes}: {config.peers} peers need 1 to {config.peers} nodes")
    gpus = flower.gpus(config.device)
    problem = preflight.check(config)
    run_dir = Path(config.run_dir)
    with rundir.held(run_dir):
        rundir.create(config, problem)
        console.print(f"{config.method} on {config.dataset}: peers {config.peers}, nodes {nodes}")
        console.print(split.table(problem))
        for line in config.strategy().cautions():
            console.print(f"warning: {line}")
        with progress.Display(console, config.num_server_rounds) as display:
            flower.simulate(config, nodes, gpus, display)
    conclude(run_dir, console)
