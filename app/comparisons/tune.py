"""Tune methods on validation data: the same learning rates and number of trials for every method.

Each method is tried on the first seed with five learning rates, the preset's and two on either side
of it, each about three times the one before, and three values of one more key: the method's own
(`grid` of its options), or weight-decay for a method without one. The trial with the highest mean
validation accuracy of the last models wins (without accuracies: the lowest validation loss); of
equal trials, the one nearest to the preset. Test rows of the first seed decide nothing; where each
seed divides the rows again, other seeds test some of the rows that decided: this flatters a method
by about 0.9 points at 60 rows, and 0.2 to 0.5 at 240 (`studies.advice`). Where the preset sets no
validation data aside, the whole comparison does, so that a choice is used on the split it was made
on.

Where institutions have fewer than `SMALL` validation examples on average, every trial is a
cross-validation: a run for each disjoint validation part inside the training rows, judged by the
mean validation loss. Methods with an own key then also try three values of weight-decay, with the
best of the others, and a method that is best with the largest tries ten times as much, up to
`MOST_DECAY`: all methods have their regularisation tuned.

The rates are the same for all methods. While the best trial of any method has the lowest or the
highest of them, the next rate on that side is added for every method, at most `EXTENSIONS` times.

Successive halving (Jamieson and Talwalkar, AISTATS 2016) costs less than a third: all trials run
for a ninth of the rounds, the best third of them for a third, the best third of these to the end.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from rich.console import Console

from coterie.app.config import schema
from coterie.app.config.config import VALIDATION_SHARE, Config, ConfigError
from coterie.app.config.preflight import problem_of
from coterie.app.config.recipes import keys_of
from coterie.app.config.schema import Scalar
from coterie.app.experiments.choice import FILE, Choice
from coterie.app.experiments.grid import with_run_dir
from coterie.app.experiments.measures import known_mean
from coterie.app.runners import sweep
from coterie.app.runs import atomic, units
from coterie.app.runs.rundir import Run
from coterie.datasets.own.institutions import HeldOptions

Tuning = Literal["whole", "halving"]
RUNGS: Mapping[Tuning, tuple[int, ...]] = {"whole": (1,), "halving": (9, 3, 1)}
"""Divisor of the rounds for the trials of each rung; a third of them reaches the next rung."""
START = (-2, -1, 0, 1, 2)
"""Levels of the first learning rates; see `rate`."""
EXTENSIONS = 4
"""Maximum number of extensions of the learning rates."""
_LEVELS = range(START[0] - EXTENSIONS, START[-1] + EXTENSIONS + 1)
SMALL, FOLDS = 100, 5
"""Validation examples (or groups) per peer below which trials are cross-validated; most folds."""
_SURVIVORS = 3
_VALUES = 3
_RATE, _DECAY = "learning-rate", "weight-decay"
_DECAYS = (0.001, 0.01)
MOST_DECAY = 10.0
"""Weight decay that a cross-validation tries at most."""

Settings = Mapping[str, Scalar]


class Trial(NamedTuple):
    """A finished run with its settings; in a cross-validation, with those of the other folds."""

    settings: Settings
    run: Run
    others: tuple[Run, ...] = ()

    @property
    def quality(self) -> float:
        """`quality` of the run; in a cross-validation, minus the mean validation loss."""
        if not self.others:
            return quality(self.run)
        return float(np.mean([_minus_loss(run) for run in (self.run, *self.others)]))


def with_validation(flat: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the keys of an experiment with a share of the data for validation."""
    key, share = Config.from_flat({**flat, "method": "local"}).validation
    return {**flat, key: share or VALIDATION_SHARE}


def rate(config: Config, level: int) -> float:
    """Return the preset's learning rate times ..., 0.1, 0.3, 1, 3, 10, ...; level 0 is itself."""
    return float(f"{config.training.learning_rate * (1, 3)[level % 2] * 10.0 ** (level // 2):.6g}")


def grid(config: Config) -> tuple[str, tuple[Scalar, ...]]:
    """Return the second key that is tuned, and its three values, that of the preset first."""
    options = schema.grid(config.row)
    fixed = keys_of(config.recipe)
    if not options or any(f"{config.table_of('method')}.{key}" in fixed for key in options):
        return _DECAY, decays(config)
    if len(options) != 1 or any(len(values) != _VALUES for values in options.values()):
        raise ConfigError(
            f"{config.method}: the grid of its options must name one key and three values, like "
            '{"strength": (0.03, 0.1, 0.3)}'
        )
    ((knob, values),) = options.items()
    key = f"{config.table_of('method')}.{knob}"
    preset = config.flat()[key]
    return key, tuple(sorted(values, key=lambda value: value != preset))


def decays(config: Config) -> tuple[Scalar, ...]:
    """Return the tried values of weight-decay, that of the preset first."""
    decay = config.training.weight_decay
    return (decay, decay / 10, 10 * decay) if decay else (0.0, *_DECAYS)


def folds(config: Config) -> int:
    """Return the number of runs of a trial: 1, or the folds of its cross-validation."""
    (key, share), options = config.validation, config.dataset_options
    problem = problem_of(config)
    rows = problem.validation
    sizes = [problem.sizes(peer, in_groups=True) for peer in range(problem.peers)]
    train_p, held_p = (np.array([of[part] for of in sizes]) for part in ("train", "validation"))
    if not isinstance(options, HeldOptions) or not share or held_p.mean() >= SMALL:
        return 1
    table = key.rpartition(".")[0]
    other = problem_of(Config.from_flat({**config.flat(), f"{table}.fold": 1})).validation
    if all(map(np.array_equal, rows.rows, other.rows)):
        return 1  # the validation part is a file
    if not held_p.all():
        return 1
    return min(FOLDS, int(((train_p + held_p) // held_p).min()))  # disjoint parts


def trials(config: Config, levels: Iterable[int] = START) -> list[Settings]:
    """Return the settings to try, those nearest to the preset first, as keys that override it."""
    key, values = grid(config)
    return [
        {_RATE: rate(config, level), key: value}
        for level in sorted(levels, key=abs)
        for value in values
    ]


def trial_configs(
    config: Config, settings: Settings, directory: Path, part: int = 1, n_folds: int = 1
) -> list[Config]:
    """Return the configurations of a trial's runs, one per fold; `part` divides the rounds."""
    table = config.validation[0].rpartition(".")[0]
    rounds = -(-config.num_server_rounds // part)
    flat = {**config.flat(), **settings, "num-server-rounds": rounds}
    keys = [{f"{table}.fold": fold} if fold else {} for fold in range(n_folds)]
    return [with_run_dir(Config.from_flat({**flat, **of}), directory / "tuning") for of in keys]


def best(trials: Iterable[Trial], count: int = 1) -> list[Trial]:
    """Return the best trials, of equal ones the earlier first."""
    return sorted(trials, key=lambda trial: -trial.quality)[:count]


def quality(run: Run) -> float:
    """Return the mean validation accuracy of the peers that have one, else minus the loss."""
    last = run.last_row()
    value_n = run.at("validation_accuracy", last)
    if np.isnan(value_n).all():
        value_n = -run.at("validation_loss", last)
    return known_mean(value_n, -np.inf)


def _minus_loss(run: Run) -> float:
    """Return `quality` by the loss; minus infinity if a peer diverged."""
    loss_n = run.at("validation_loss", run.last_row())
    return -np.inf if run.diverged.any() else -known_mean(loss_n, np.inf)


def tuned(
    configs: Mapping[str, Config],
    tuning: Tuning,
    directory: Path,
    workers: int | None,
    console: Console,
    rates: Collection[float] = (),
) -> tuple[dict[str, Choice], dict[str, Exception]]:
    """Tune methods and write tuning.csv; return choices by method, and errors by run directory."""
    # `rates`: learning rates that other methods were tried with; no others are tried then.
    search = _Search(configs, directory, workers, console, rates)
    first, *later = RUNGS[tuning]
    left = search.rates(first)
    for part in later:
        kept = {m: best(of, max(1, len(of) // _SURVIVORS)) for m, of in left.items()}
        left = search.run({m: [trial.settings for trial in of] for m, of in kept.items()}, part)
    left = search.regularised(left)
    choices = {
        method: search.choice(method, best(ended)[0].settings)
        for method, ended in left.items()
        if ended
    }
    search.write(choices)
    for method, choice in choices.items():
        console.print(
            f"tuned {method}: {choice.described()}; {units.plural(choice.trials, 'trial')}",
            soft_wrap=True,
        )
    return choices, search.failed


@dataclass
class _Search:
    """Trials of a comparison, `levels` of learning rates tried, and errors by run directory."""

    configs: Mapping[str, Config]
    directory: Path
    workers: int | None
    console: Console
    fixed: Collection[float] = ()  # learning rates, if no others are tried
    failed: dict[str, Exception] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._ended: dict[str, list[Trial]] = {method: [] for method in self.configs}
        self._tried: dict[str, list[Settings]] = {method: [] for method in self.configs}
        one = next(iter(self.configs.values()))
        self._folds = folds(one)
        if self._folds > 1:
            self.console.print(
                f"each trial is a cross-validation of {self._folds} folds: validation parts have "
                f"fewer than {SMALL} examples"
            )
        self.levels = [level for level in _LEVELS if rate(one, level) in self.fixed] or [*START]

    def rates(self, part: int) -> dict[str, list[Trial]]:
        """Try every method with the same rates, and with more while the best is at an edge."""
        new, left = self.levels, {method: list[Trial]() for method in self.configs}
        extensions = 0 if self.fixed else EXTENSIONS
        for extension in range(extensions + 1):
            ended = self.run({m: trials(c, new) for m, c in self.configs.items()}, part)
            left = {method: [*left[method], *of] for method, of in ended.items()}
            new = self._beyond(left)
            if not new or extension == extensions:
                break
            self.levels = sorted([*self.levels, *new])
        return left

    def run(self, settings: Mapping[str, Sequence[Settings]], part: int) -> dict[str, list[Trial]]:
        """Carry out trials for a part of the rounds; return those that did not fail."""
        trials = {
            method: [
                (of, trial_configs(self.configs[method], of, self.directory, part, self._folds))
                for of in each
            ]
            for method, each in settings.items()
        }
        every = {
            config.run_dir: (config, f"{config.label}: {Choice(of).described()}")
            for each in trials.values() for of, configs in each for config in configs
        }  # fmt: skip
        labels = {run_dir: label for run_dir, (_, label) in every.items()}
        self.failed |= sweep.run_all(
            [config for config, _ in every.values()], self.workers, self.console, labels
        )
        ended: dict[str, list[Trial]] = {method: [] for method in trials}
        for method, each in trials.items():
            for of, configs in each:
                if not self.failed.keys() & {config.run_dir for config in configs}:
                    run, *others = (Run.read(config.run_dir) for config in configs)
                    ended[method].append(Trial(of, run, tuple(others)))
            self._ended[method] += ended[method]
            self._tried[method] += settings[method]
        return ended

    def regularised(self, left: dict[str, list[Trial]]) -> dict[str, list[Trial]]:
        """In a cross-validation, try weight-decay, ten times more while the largest is best."""
        if self._folds == 1:
            return left
        more = {
            method: [
                {**best(ended)[0].settings, _DECAY: decay}
                for decay in decays(self.configs[method])[1:]
            ]
            for method, ended in left.items()
            if ended and grid(self.configs[method])[0] != _DECAY
        }
        while True:
            added = self.run(more, 1)
            left = {method: [*of, *added.get(method, ())] for method, of in left.items()}
            more = {
                method: [{**best(ended)[0].settings, _DECAY: decay}]
                for method, ended in left.items()
                if ended and (decay := self._more_decay(method, best(ended)[0].settings))
            }
            if not more:
                return left

    def _more_decay(self, method: str, settings: Settings) -> float:
        """Return ten times the decay of the best trial if it is the largest; 0 to try no more."""
        decay = float(f"{10 * self._decay(method, settings):.6g}")
        return decay if max(self._decays(method)) < decay <= MOST_DECAY else 0.0

    def _decays(self, method: str) -> list[float]:
        """Return the values of weight-decay of all trials, also of those that failed."""
        return [self._decay(method, settings) for settings in self._tried[method]]

    def _decay(self, method: str, settings: Settings) -> float:
        return float(settings.get(_DECAY, self.configs[method].training.weight_decay))

    def _beyond(self, left: Mapping[str, Sequence[Trial]]) -> list[int]:
        """Return the levels next to those tried, on each side where some method's best lies."""
        rates = {m: best(ended)[0].settings[_RATE] for m, ended in left.items() if ended}

        def is_best(level: int) -> bool:
            return any(rate(self.configs[m], level) == of for m, of in rates.items())

        low, high = self.levels[0], self.levels[-1]
        return [low - 1] * is_best(low) + [high + 1] * is_best(high)

    def choice(self, method: str, settings: Settings) -> Choice:
        """Return settings with the edges of the tried ranges at which they lie; 0 is none."""
        config = self.configs[method]
        rates = tuple(rate(config, level) for level in self.levels)
        key, values = grid(config)
        tried: dict[str, Sequence[Scalar]] = {_RATE: rates, key: values}
        if _DECAY in settings:
            tried[_DECAY] = self._decays(method)
        edges = {}
        for key, each in tried.items():
            numbers = [float(value) for value in each if not isinstance(value, str)]
            if len(numbers) == len(each):
                value = float(settings[key])
                if value == max(numbers):
                    edges[key] = "high"
                elif value == min(numbers) and value > 0:
                    edges[key] = "low"
        return Choice(settings, edges, len(self._ended[method]), rates)

    def write(self, choices: Mapping[str, Choice]) -> None:
        """Write tuning.csv: settings, rounds, `quality`, the choice and its edges, the run."""
        rows: list[list[object]] = [
            ["method", "settings", "rounds", "quality", "chosen", "edges", "run"]
        ]
        for method, choice in choices.items():
            for trial in self._ended[method]:
                is_chosen = trial.settings == choice.settings
                rows.append(
                    [method, json.dumps(trial.settings), trial.run.rounds[-1], trial.quality,
                     int(is_chosen), json.dumps(choice.edges) if is_chosen else "",
                     trial.run.directory.name]
                )  # fmt: skip
        atomic.write(self.directory / FILE, atomic.as_csv(rows))
