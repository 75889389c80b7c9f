"""Choose each method's own settings on validation data, with the same effort for every method.

Every method gets nine trials on the first seed: three learning rates around the preset's times
three values of the knob that its `Options.grid` names, or nine learning rates without a knob. The
trial with the highest mean validation accuracy of the last models wins (least validation loss where
there is no accuracy); test data is never looked at. Where the preset sets no validation data aside,
the whole comparison does: what is chosen for a split is used on that split.

Successive halving (Jamieson and Talwalkar 2016) takes less than a quarter of the time: all trials
run for a ninth of the rounds, the best third of them for a third, and the best of these wins.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from coterie.app.config import schema
from coterie.app.config.config import VALIDATION_SHARE, Config
from coterie.app.config.schema import Scalar
from coterie.app.runners.sweep import placed
from coterie.app.runs import atomic
from coterie.app.runs.rundir import Run
from coterie.clients.rule import Grid

RATES = (0.3, 1.0, 3.0)
RATES_ONLY = tuple(round(float(rate), 3) for rate in np.geomspace(0.1, 10, 9))
Stages = tuple[tuple[int, int], ...]
"""Of tuning: (part of the rounds that trials are run for, part of the trials that goes on)."""
WHOLE: Stages = ((1, 9),)
HALVING: Stages = ((9, 3), (3, 3))
Settings = Mapping[str, Scalar]
Trial = tuple[Settings, Run]


def validating(flat: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The keys of an experiment, with a share of the data for validation where there was none."""
    key, share = Config.from_flat({**flat, "method": "local"}).validation
    return {**flat, key: share or VALIDATION_SHARE}


def trials(config: Config) -> list[Settings]:
    """The nine settings to try, as keys that override the preset."""
    grid: Grid = getattr(config.row.options, "grid", {})
    rates = [
        float(f"{config.learning_rate * factor:.6g}") for factor in (RATES if grid else RATES_ONLY)
    ]
    combinations: list[dict[str, Scalar]] = [{"learning-rate": rate} for rate in rates]
    for knob, values in grid.items():
        key = f"{config.table_of('method')}.{knob}"
        combinations = [{**trial, key: value} for trial in combinations for value in values]
    return list(combinations)


def trial_configs(
    config: Config, trials: Iterable[Settings], directory: Path, part: int = 1
) -> dict[str, tuple[Settings, Config]]:
    """Placed configurations of a method's trials by run directory, with their settings.

    Parameters
    ----------
    part : of the rounds, as a divisor.
    """
    rounds = -(-config.num_server_rounds // part)
    made = {}
    for settings in trials:
        tried = Config.from_flat({**config.flat(), **settings, "num-server-rounds": rounds})
        trial = placed(tried, directory / "tuning")
        made[trial.run_dir] = (settings, trial)
    return made


def best(trials: Iterable[Trial], count: int = 1) -> list[Settings]:
    """The settings of the best trials; the earlier of equals."""
    ordered = sorted(trials, key=lambda trial: -quality(trial[1]))
    return [settings for settings, _ in ordered[:count]]


def describe(settings: Settings) -> str:
    """The settings in a line."""
    return ", ".join(f"{key} = {schema.written(value)}" for key, value in settings.items())


def write(
    trials: Mapping[str, Sequence[Trial]], chosen: Mapping[str, Settings], path: Path
) -> None:
    """A line for each trial: settings, rounds, `quality`, whether they were chosen, the run."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "settings", "rounds", "quality", "chosen", "run"])
    for method, of_method in trials.items():
        for settings, run in of_method:
            line = [json.dumps(settings), run.rounds[-1], quality(run)]
            was_chosen = int(settings == chosen[method])
            writer.writerow([method, *line, was_chosen, run.directory.name])
    atomic.write(path, text.getvalue())


def quality(run: Run) -> float:
    """Mean validation accuracy (without accuracies: minus loss) of the peers that have it.

    Of a peer that diverged the accuracy is that of guessing, and minus the loss minus infinity.
    """
    last = run.last_row()
    value_n = run.at("validation_accuracy", last)
    if np.isnan(value_n).all():
        value_n = -run.at("validation_loss", last)
    value_n = value_n[~np.isnan(value_n)]
    return float(value_n.mean()) if len(value_n) else -np.inf
