"""Runs and comparisons from Python: arrays, classes and keys in, results out."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from coterie.app.cli.compare import run_comparison
from coterie.app.config.config import Config, ConfigError
from coterie.app.config.items import read_items
from coterie.app.config.keys import flatten
from coterie.app.config.parts import PARTS, code
from coterie.app.runners import local
from coterie.app.runners.tracking import Callback
from coterie.app.runs.terminal import Terminal
from coterie.datasets import plugins
from coterie.datasets.plugins import Kind
from coterie.results import Comparison, Run

Keys = Mapping[str, Any]
"""Configuration keys, dotted or nested; a method, model, data set or partition may be an object."""
Arrays = Mapping[str, Any]
_WEIGHTS = ("model.weights", "gpt2.weights-file")


def run(
    preset: str | Path | None = None,
    keys: Keys | None = None,
    /,
    *,
    peers_data: Sequence[Arrays] | None = None,
    callbacks: Iterable[Callback | Callable[..., object]] = (),
    nodes: int = 0,
    **more: Any,
) -> Run:
    """Carry out one run and read what it left.

    Parameters
    ----------
    preset : a TOML file, or the name of one under presets/; without, the defaults.
    keys : configuration keys, dotted as on the command line or nested as in TOML.
    peers_data : a mapping of arrays for each peer: `x` and `y`, and where they are there `x_test`,
        `y_test`, `x_validation`, `y_validation`, `name`, `classes`. It replaces the data set.
    callbacks : objects with `on_round(round, metrics)`, or functions with these arguments, called
        after each evaluated round; `metrics` has a row for each peer.
    nodes : Flower nodes that share the peers; 0: none, the run takes place in this process.
    **more : further keys as words, with `_` for `-` and `__` between a table and its key:
        `learning_rate=0.1`, `partition__alpha=0.3`. `method`, `model`, `dataset` and
        `partition__kind` may be objects instead of names: a `Method`, a class or function.

    Raises
    ------
    ConfigError, DataError
        It cannot run. Nothing was written.
    RunError
        It did not run to its end.

    Examples
    --------
    >>> import coterie
    >>> run = coterie.run(method="fedavg", num_server_rounds=5, partition__kind="iid")
    >>> run.metrics.groupby("round").test_accuracy.mean()
    """
    _, flat = _flat(preset, keys, more, peers_data)
    config = _placed(Config.from_flat(flat))
    local.run(config, nodes or None, _console(), callbacks)
    return Run(config.run_dir, *_named(config.flat()))


def load(
    run_dir: str | Path, *, parts: Sequence[Any] = (), weights: Sequence[str | Path] = ()
) -> Run:
    """Read a run directory, whether its run is finished or not, and wherever it comes from.

    Nothing that it names is imported or opened but what is given here.

    Parameters
    ----------
    parts : code that models of the run may be built with: classes or functions, or their names,
        "module:attribute".
    weights : files of trained weights that its networks start from, where the models' files do not
        hold them.

    Raises
    ------
    ResultsError
        It is none, or a file in it is broken.
    """
    return Run(run_dir, [_name("model", part) for part in parts], weights)


def compare(
    methods: Sequence[Any],
    preset: str | Path | None = None,
    keys: Keys | None = None,
    /,
    *,
    seeds: int = 3,
    peers_data: Sequence[Arrays] | None = None,
    workers: int = 1,
    out: str | Path | None = None,
    **more: Any,
) -> Comparison:
    """Run the same experiment for several methods and seeds.

    A run that is there already is not repeated.

    Parameters
    ----------
    methods : names, or `Method` objects.
    preset, keys, peers_data, more : as in `run`.
    seeds : how many, from the key `seed` on.
    workers : runs side by side, in processes of their own, which know no objects of this one; with
        1 all take place in this process.
    out : directory of the comparison; without, `runs/compare/PRESET`.

    Raises
    ------
    ConfigError, DataError
        A method cannot run on this preset, or the directory holds another comparison.
    RunError
        A run failed. What the others did is kept and used by the next attempt.
    """
    name, flat = _flat(preset, keys, more, peers_data)
    names = [_name("method", method) for method in methods]
    if workers > 1:
        here = [str(value) for value in (*names, *flat.values())]
        if any(value.startswith(plugins.HERE) for value in here):
            raise ConfigError(
                f"workers = {workers}: other processes do not know objects of this one; put them "
                'into a module and name them "module:attribute"'
            )
    directory = Path(out or Path(str(flat.get("out", "runs")), "compare", name))
    given = argparse.Namespace(
        methods=",".join(names), seeds=seeds, tune=None, workers=workers, out=str(directory),
        columns=None,
    )  # fmt: skip
    run_comparison(given, name, flat, _console())
    return Comparison(directory, *_named(flat, names))


def _flat(
    preset: str | Path | None,
    keys: Keys | None,
    more: Mapping[str, Any],
    peers_data: Sequence[Arrays] | None,
) -> tuple[str, dict[str, Any]]:
    """The preset's name, and all keys that were given, flat."""
    given: dict[str, Any] = flatten(keys or {})
    given |= {
        key.replace("__", ".").replace("_", "-"): value
        for key, value in more.items()
        if not isinstance(value, Mapping)
    }
    for table, inner in more.items():
        if isinstance(inner, Mapping):
            given |= {f"{table.replace('_', '-')}.{key}": value for key, value in inner.items()}
    if peers_data is not None:
        if "dataset" in given:
            raise ConfigError("peers_data is the data set: give one of peers_data and dataset")
        data = list(peers_data)
        given["dataset"] = plugins.register("dataset", "peers_data", lambda: data)
        given.setdefault("peers", len(data))
    for kind, part in PARTS.items():
        if part.key in given:
            given[part.key] = _name(kind, given[part.key])
    choices = {part.key: given[part.key] for part in PARTS.values() if part.key in given}
    name, flat = read_items([] if preset is None else [str(preset)], choices)
    return name, flat | {k: str(v) if isinstance(v, Path) else v for k, v in given.items()}


def _name(kind: Kind, part: Any) -> str:
    """The name of a part; an object of a module has that of its place, others are registered."""
    if isinstance(part, str):
        return part
    module = getattr(part, "__module__", None)
    path = getattr(part, "__qualname__", None)
    if path and module not in (None, "__main__") and "<" not in path:
        return f"{module}:{path}"
    rule = getattr(part, "rule", None)
    called = path or getattr(rule, "__name__", None) or type(part).__name__
    return plugins.register(kind, called.rpartition(".")[2].strip("<>"), part)


def _named(flat: Keys, methods: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """The code, and the files of trained weights, that the user's own keys name."""
    choices = {part.key: flat[part.key] for part in PARTS.values() if part.key in flat}
    given = [choices, *({"method": method} for method in methods)]
    found = [name for each in given for name in code(each).values()]
    return found, [str(flat[key]) for key in _WEIGHTS if flat.get(key)]


def _placed(config: Config) -> Config:
    """The configuration with a run directory that is not there yet.

    Raises
    ------
    ConfigError
        It was named, and is there.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for number in itertools.count(1):
        placed = config.located(stamp if number == 1 else f"{stamp}-{number}")
        if not Path(placed.run_dir).exists():
            return replace(placed, resume=False)
        if config.name or config.run_dir:
            raise ConfigError(f"{placed.run_dir} exists already: choose another name, or load it")
    raise AssertionError


def _console() -> Console:
    """What `coterie` prints, where somebody sits at a terminal."""
    return Terminal(stderr=True, quiet=not sys.stderr.isatty())
