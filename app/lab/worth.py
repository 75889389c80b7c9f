"""Worth of letters: the experiment of a run, executed again without the letters of some peers.

v_i(S) is the measure of recipient i's final model where only the letters of S reach other peers
(key `withhold`); one run gives it for all i. Leave-one-out and Shapley values divide
v_i(all) - v_i(nobody) among the senders, i itself included.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console

from coterie.app.comparisons.run import report_failures
from coterie.app.config import preflight
from coterie.app.config.config import Config, ConfigError
from coterie.app.experiments.grid import with_run_dir
from coterie.app.lab import shapley
from coterie.app.lab.shapley import Coalition, Floats, Order
from coterie.app.report import worth as results
from coterie.app.report.worth import Worth
from coterie.app.runners import machine, sweep
from coterie.app.runners.local import config_of
from coterie.app.runs import progress, provenance, summary, units
from coterie.app.runs.files import ResultsError
from coterie.app.runs.rundir import Run
from coterie.datasets.own.institutions import listed
from coterie.datasets.table import forget_plugins
from coterie.strategies.protocol import MATRIX

FOLDER = "worth"
"""Folder of a run directory with the runs of `coterie contribution`."""
_ORDERS = 0x5A9
"""Purpose of the random stream."""
_AGREE = 1e-3
"""Relative difference up to which a repeated run counts as equal to the recorded one."""


@dataclass(frozen=True)
class _Plan:
    """Coalitions to run; `orders` is empty if they are all, `has_shapley` False for none."""

    coalitions: list[Coalition]
    orders: list[Order]
    has_shapley: bool

    @property
    def described(self) -> str:
        if not self.has_shapley:
            return "leave-one-out"
        if not self.orders:
            return "exact Shapley values and leave-one-out"
        return f"Shapley values from {len(self.orders)} orders, and leave-one-out"


def worth(
    run_dir: Path,
    console: Console,
    *,
    orders: int = 10,
    workers: int | None = None,
    parts: Sequence[str] = (),
) -> Worth:
    """Compute the worth of letters of a finished simulation; write worth.csv into its directory.

    `orders` is the number of random orders of the senders for Shapley values, even; 0:
    leave-one-out only. If all coalitions are no more runs, the values are exact instead. At most
    `workers` runs are parallel; None: as many as cores, memory and GPUs allow. `parts` is code that
    the run directory names and the user trusts, as "module:attribute".
    """
    # Finished runs are reused, stopped ones are continued. After a ConfigError, DataError or
    # ResultsError nothing was started.
    directory = run_dir.absolute()
    if orders < 0 or orders % 2:
        raise ConfigError(
            f"orders = {orders}: must be even, because each order is used in reverse too"
        )
    if workers is not None and workers < 1:
        raise ConfigError(f"workers = {workers}: must be at least 1")
    config = config_of(directory, parts)
    recorded = Run.read(directory)
    _check(config, recorded)
    every = config.num_server_rounds if config.keep_models == "last" else config.evaluate_every
    base = replace(config, evaluate_every=every, track="")
    forget_plugins()
    now = provenance.content_of(base, preflight.check(base))
    if changed := listed(provenance.since(directory, now) or ()):
        console.print(f"{changed} changed since the run: worth is of the current data")
    plan = _plan(config, orders)
    configs = {each: _without(base, each, directory / FOLDER) for each in plan.coalitions}
    sweep.renew([*configs.values()], console)
    _announce(plan, configs, recorded, workers, console)
    failed = sweep.run_all(
        list(configs.values()), workers, console,
        {of.run_dir: _label(each, of) for each, of in configs.items()},
        on_end=lambda of: shutil.rmtree(Path(of.run_dir, "models"), ignore_errors=True),
    )  # fmt: skip
    report_failures(failed, console)
    result = _result(plan, {each: _read(of) for each, of in configs.items()}, recorded)
    _compare(result, recorded, config, console)
    results.write(result, directory, recorded.names)
    if spent := summary.spent_below(directory):
        console.print(spent, soft_wrap=True)
    return result


def _check(config: Config, run: Run) -> None:
    """Refuse runs that cannot be repeated here, and those without letters."""
    where = run.directory
    if run.split is None:
        raise ConfigError(
            f"{where}: a deployment's run cannot be repeated, because the peers' data are not on "
            "this machine; `coterie contribution` is for simulations"
        )
    if run.progress.get("status") not in progress.OVER:
        raise ConfigError(f"{where}: not finished; continue it first: coterie resume {where}")
    if config.withhold:
        raise ConfigError(f'{where}: withhold = "{config.withhold}": this run withholds letters')
    if not config.row.strategy.exchanges or config.peers < 2:
        raise ConfigError(f"{where}: no letters, because the peers of {config.method} train alone")
    if config.peers > MATRIX:
        raise ConfigError(f"{where}: {config.peers:,} peers; at most {MATRIX:,} are supported")


def _plan(config: Config, count: int) -> _Plan:
    """Choose the coalitions: leave-one-out, and those of all or of some orders."""
    n, everybody = config.peers, frozenset(range(config.peers))
    if count and n < 64 and 2**n <= 2 + n + count * (n - 1):
        return _Plan(shapley.coalitions(n)[::-1], [], has_shapley=True)
    needed = [everybody, frozenset[int](), *(everybody - {player} for player in range(n))]
    orders = shapley.orders(n, count, np.random.default_rng([config.seed, _ORDERS]))
    needed += [each for order in orders for each in shapley.prefixes(order)]
    return _Plan(list(dict.fromkeys(needed)), orders, has_shapley=count > 0)


def _without(base: Config, senders: Coalition, directory: Path) -> Config:
    """Return the configuration of the run in which only `senders` are heard."""
    silent = [str(peer) for peer in range(base.peers) if peer not in senders]
    return with_run_dir(replace(base, withhold=",".join(silent)), directory)


def _label(senders: Coalition, config: Config) -> str:
    if not senders:
        return "no letters"
    if len(senders) == config.peers:
        return "all letters"
    silent = config.peers - len(senders)
    which = f"peer {config.withhold}" if silent == 1 else units.plural(silent, "peer")
    return f"without the letters of {which}"


def _announce(
    plan: _Plan,
    configs: Mapping[Coalition, Config],
    run: Run,
    workers: int | None,
    console: Console,
) -> None:
    missing = sum(not sweep.is_finished(config) for config in configs.values())
    total, seconds = units.plural(len(configs), "run"), float(run.progress.get("seconds") or 0)
    text = f"{plan.described}, {units.plural(run.peers, 'sender')}: {total}"
    if missing < len(configs):
        text += f", {len(configs) - missing} of them finished"
    if missing and seconds:
        beside = max(1, min(workers or machine.cores(), missing))
        pace = f"the run itself took {units.duration(seconds)}"
        text += f"; about {units.duration(missing * seconds / beside)} ({pace}; {beside} at a time)"
    console.print(text, soft_wrap=True)


def _read(config: Config) -> Run:
    """Read a finished run; ResultsError if the directory holds another configuration's or none."""
    run = Run.read(config.run_dir)
    if run.peers != config.peers or not len(run.rounds):
        raise ResultsError(f"{run.directory}: not a run of this experiment; remove the directory")
    return run


def _result(plan: _Plan, runs: Mapping[Coalition, Run], recorded: Run) -> Worth:
    n, nobody = recorded.peers, frozenset[int]()
    everybody = frozenset(range(n))
    measure = _measure(runs[everybody])
    sign = 1 if measure.endswith("accuracy") else -1
    game = {each: sign * _values(run, measure) for each, run in runs.items()}
    values, errors = None, np.full((n, n), np.nan)
    if plan.orders:
        values, errors = shapley.sampled(game, plan.orders)
    elif plan.has_shapley:
        values, errors = shapley.exact(game, n), np.zeros((n, n))
    return Worth(
        measure,
        len(plan.orders),
        alone=sign * game[nobody],
        together=sign * game[everybody],
        leave_one_out=shapley.leave_one_out(game, n),
        shapley=values,
        errors=errors,
    )


def _measure(run: Run) -> str:
    """Return the measure: of validation data if all honest peers have some, accuracy if any."""
    validated = np.isfinite(run.metric("validation_loss")).any(axis=0) | run.attackers
    split = "validation" if validated.all() else "test"
    has_accuracy = not np.isnan(run.metric(f"{split}_accuracy")).all()
    return f"{split}_{'accuracy' if has_accuracy else 'loss'}"


def _values(run: Run, measure: str) -> Floats:
    """Return the measure of each model that a run leaves, (n,); NaN: it diverged or attacks."""
    best = run.best_row(by_accuracy=False) if run.settings.keep_models == "best" else None
    value_n = run.at(measure, run.last_row() if best is None else best)
    return np.where(run.diverged | ~np.isfinite(value_n), np.nan, value_n)


def _compare(result: Worth, recorded: Run, config: Config, console: Console) -> None:
    """Say if the run with all letters differs from the recorded run."""
    before = _values(recorded, result.measure)
    same = np.isclose(before, result.together, rtol=_AGREE, atol=_AGREE, equal_nan=True)
    if not same.all():
        console.print(
            f"repeating the run changed the {result.measure.replace('_', ' ')} of "
            f"{units.plural(int((~same).sum()), 'peer')}: other versions, data or hardware. "
            "Worth is of the runs made here.",
            soft_wrap=True,
        )
