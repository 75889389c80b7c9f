"""ServerApp of the relay: brokers letters, records reports, has no torch, opens no payload."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from coterie.app.config import parts
from coterie.app.config.config import Config, ConfigError
from coterie.app.config.digest import config_digest_of
from coterie.app.config.root import workplace
from coterie.app.institution.security.proof import proof
from coterie.app.institution.security.trust import read_trust
from coterie.app.runs import atomic, logs, plain_flwr, progress, rundir
from coterie.app.runs.recorder import RunRecorder
from coterie.errors import line_of
from coterie.strategies.flower.private import is_simulation
from coterie.strategies.flower.strategy import RelayStrategy
from coterie.strategies.flower.transport import FlowerTransport
from coterie.strategies.relay.preflight import PREFLIGHT_SECONDS, survey
from coterie.strategies.relay.roster import Proof

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Start or resume the run of the run configuration."""
    if not is_simulation(grid):  # a deployment
        parts.refuse_modules(context.run_config)
    config = Config.from_flat(context.run_config)
    is_bare = not config.run_dir and is_simulation(grid)  # started by plain `flwr run`
    if is_bare:
        config = config.absolute(workplace())
    else:
        logs.begin()
    config = config.located(str(context.run_id))
    directory = Path(config.run_dir)
    if (directory / "relay").exists() and not config.resume:
        raise ConfigError(f"{directory} holds a run already: choose another name, or resume it")
    if not is_simulation(grid):
        directory.mkdir(parents=True, exist_ok=True)
        logs.begin(logging.FileHandler(directory / "relay.log"))
    if config.preflight:
        if is_simulation(grid):
            raise ConfigError("preflight = true is set by `coterie preflight` only")
        transport = FlowerTransport(grid, min(config.round_seconds, PREFLIGHT_SECONDS))
        result = survey(transport, config.peers, _proves(config, grid))
        atomic.write(directory / rundir.SURVEY, json.dumps(asdict(result)))
        return
    watch = plain_flwr.begin(config) if is_bare else None
    with rundir.held(directory if is_bare else directory / "relay"):  # two would damage its files
        _run(config, grid, watch)
    if is_bare:
        plain_flwr.end(directory)
        progress.require_end(directory)


def _run(config: Config, grid: Grid, watch: Callable[[Mapping[str, Any]], None] | None) -> None:
    directory, plan = Path(config.run_dir), config.strategy()
    recorder = RunRecorder(
        directory, config.peers, config.num_server_rounds, resume=config.resume, watch=watch,
        run=config_digest_of(config), durable=not is_simulation(grid),
    )  # fmt: skip
    if not (directory / "config.toml").exists():  # a deployment, where the launcher is elsewhere
        atomic.write(directory / "config.toml", config.toml())
    try:
        RelayStrategy(plan).start(
            grid,
            timeout=config.round_seconds,
            recorder=recorder,
            ledger=recorder.ledger,
            join_timeout=config.join_seconds,
            patience=config.patience,
            quorum=config.quorum,
            proves=_proves(config, grid),
            waits=recorder.waiting,
        )
    except Exception as error:
        recorder.fail(line_of(error))
        raise
    except BaseException:
        recorder.stop()
        raise
    ended, last = recorder.ledger.ended, recorder.ledger.round
    due = [plan.schedule.last_change([peer], last) for peer in range(config.peers)]
    recorder.finish([peer for peer, t in enumerate(due) if ended[peer] < t])


def _proves(config: Config, grid: Grid) -> Proof | None:
    """Return the verifier of nodes' claims; None in a simulation and without a trust file."""
    if not config.trust or is_simulation(grid):
        return None
    trust = read_trust(Path(config.trust))
    return proof(trust, Path(config.run_dir).name, config_digest_of(config))
