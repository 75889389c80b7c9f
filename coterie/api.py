"""Python API: execute runs and comparisons from arrays, classes and configuration keys."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from coterie.app.comparisons.run import ComparisonRequest
from coterie.app.comparisons.run import compare as run_comparison
from coterie.app.comparisons.tune import Tuning
from coterie.app.config import recipes
from coterie.app.config.config import Config, ConfigError
from coterie.app.config.items import read_items
from coterie.app.config.keys import flatten, of_keywords
from coterie.app.config.parts import PARTS, code_named
from coterie.app.runners import local
from coterie.app.runners.tracking import Callback
from coterie.app.runs.terminal import Terminal
from coterie.datasets import plugins
from coterie.datasets.plugins import Kind
from coterie.results import Comparison, Run

if TYPE_CHECKING:
    import pandas as pd

    from coterie.app.lab.reproduction.figures import Size
    from coterie.app.lab.reproduction.reproduce import Reproduction

Keys = Mapping[str, Any]
"""Configuration keys, dotted or nested. Parts, such as methods and models, can be objects."""
Arrays = Mapping[str, Any]
_IN_DATA = b"data.json tells whether they are the same"
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
    """Execute a run and return its results.

    Parameters
    ----------
    preset : str or Path or None
        TOML file, or the name of one in presets/; None: defaults.
    keys : Mapping of str to Any or None
        Configuration keys, dotted as on the command line or nested as in TOML.
    peers_data : Sequence of Mapping of str to Any or None
        Arrays of each peer, instead of a data set: `x` and `y`; optional: `x_test`, `y_test`,
        `x_validation`, `y_validation`, `name`, `classes`, `group` (such as the patient), `time`.
        Or map-style data sets, as PyTorch's: one, a tuple (train, test), or a dict with `train`,
        `test`, `validation` and `name`.
    callbacks : Iterable[Callback | Callable[..., object]]
        Objects with `on_round(round, metrics)`, or functions with these arguments, called after
        each evaluated round; `metrics` has a row per peer.
    nodes : int
        Split the peers over this number of Flower nodes; 0: run in this process, without Flower.
    **more : Any
        Further keys, with `_` for `-` and `__` between a table and its key: `learning_rate=0.1`,
        `partition__alpha=0.3`. `method`, `model`, `dataset`, `partition__kind`, `topology`,
        `schedule__kind`, `attack__kind` and `defence__rule` can be objects instead of names. A
        map-style data set, or a tuple (train, test), is partitioned among the peers.

    Raises
    ------
    ConfigError, DataError
        If the run cannot start; nothing was written.
    PartError
        If the method, the model, the data set or a callback raised an error, which is the cause.
    DivergedError
        If every peer diverged; the run directory is complete.
    RunError
        If the run failed for another reason; the last three are RunErrors.

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
    """Read the run directory of a finished or unfinished run, from any source.

    Nothing that it names is imported or opened except `parts`, code that its models may be built
    with (classes, functions, or their names, "module:attribute"), and `weights`, pretrained files
    that its networks start from, if the models' files do not contain them. ResultsError: it is not
    a run directory, or a file in it is damaged.
    """
    return Run(run_dir, [_name("model", part) for part in parts], weights)


def compare(
    methods: Sequence[Any],
    preset: str | Path | None = None,
    keys: Keys | None = None,
    /,
    *,
    seeds: int | None = None,
    tune: bool | Literal["halving"] = False,
    settings: Mapping[str, Keys] | None = None,
    peers_data: Sequence[Arrays] | None = None,
    workers: int = 1,
    out: str | Path | None = None,
    yardsticks: Literal["auto", "none"] = "auto",
    **more: Any,
) -> Comparison:
    """Run the same experiment for several methods and seeds; finished runs are not repeated.

    Parameters
    ----------
    methods : Sequence of Any
        Names or classes; ["all"]: every built-in method that can run.
    preset, keys, peers_data, **more : optional
        As in `run`.
    seeds : int or None
        Number of seeds, starting at the key `seed`; None: 3, or 10 on tables.
    tune : bool or {"halving"}
        Choose the learning rate and one more key of each method on validation data of the first
        seed; "halving": stop poor trials early.
    settings : Mapping of str to Mapping of str to Any or None
        Method -> keys of that method alone, as in {"ditto": {"learning-rate": 0.1}}.
    workers : int
        Number of runs in parallel, in worker processes without access to objects of this process;
        1: all runs in this process.
    out : str or Path or None
        Directory of the comparison; None: `runs/compare/PRESET`, or PRESET-2, ... beside
        comparisons of other settings.
    yardsticks : {"auto", "none"}
        "auto" adds rows by scikit-learn for tables with a class or a number to predict.

    Raises
    ------
    ConfigError, DataError
        If a method cannot run on this preset, or `out` has another comparison.
    SweepError
        If a run failed; the cause is its error. The next attempt reuses the finished runs.

    Examples
    --------
    >>> comparison = coterie.compare(["local", "fedavg", "cobo"], seeds=3, tune=True)
    >>> comparison.table[("accuracy", "mean")]
    """
    name, flat = _flat(preset, keys, more, peers_data)
    names = [_name("method", method) for method in methods]
    _check_workers(workers, [*names, *flat.values()])
    directory = Path(out or Path(str(flat.get("out", "runs")), "compare", name))
    tuning: Tuning | None = "halving" if tune == "halving" else "whole" if tune else None
    by_method = {method: flatten(of) for method, of in (settings or {}).items()}
    request = ComparisonRequest(
        name, flat, names, directory, seeds, tuning, workers, settings=by_method,
        yardsticks=yardsticks, numbered=out is None,
        command="" if tune else "coterie.compare(..., tune=True)",
    )  # fmt: skip
    page = run_comparison(request, _console())
    return Comparison(page.parent, *_named(flat, names))


def sweep(
    values: Mapping[str, Sequence[Any]],
    preset: str | Path | None = None,
    keys: Keys | None = None,
    /,
    *,
    seeds: int | None = None,
    peers_data: Sequence[Arrays] | None = None,
    workers: int = 1,
    out: str | Path | None = None,
    **more: Any,
) -> Comparison:
    """Run the same experiment for every combination of some keys' values, and each seed.

    As `compare`, whose errors it raises, with a setting such as "cobo.rho=0.1 learning-rate=0.03"
    instead of each method. `values` are by key, as in {"cobo.rho": [0.01, 0.1]}; `out` is
    `runs/sweep/PRESET` by default, or PRESET-2, ... beside sweeps of other settings.

    Examples
    --------
    >>> swept = coterie.sweep({"cobo.rho": [0.01, 0.1]}, method="cobo", seeds=3)
    >>> swept.table[("accuracy", "mean")]
    """
    kinds = {part.key: kind for kind, part in PARTS.items()}
    swept = {
        key: [_name(kinds[key], value) if key in kinds else value for value in of_key]
        for key, of_key in values.items()
    }
    name, flat = _flat(preset, keys, more, peers_data)
    _check_workers(workers, [*flat.values(), *(value for of in swept.values() for value in of)])
    directory = Path(out or Path(str(flat.get("out", "runs")), "sweep", name))
    request = ComparisonRequest(
        name, flat, (), directory, seeds, workers=workers, sweep=swept, numbered=out is None
    )
    page = run_comparison(request, _console())
    return Comparison(page.parent, *_named(flat, swept.get("method", ())))


def _check_workers(workers: int, values: Sequence[Any]) -> None:
    """Refuse objects of this process in runs of worker processes."""
    if workers > 1 and any(str(value).startswith(plugins.HERE) for value in values):
        raise ConfigError(
            f"workers = {workers}: worker processes have no access to objects of this process; "
            'put them into a module and name them "module:attribute"'
        )


def contribution(
    run: Run | str | Path, *, orders: int = 10, workers: int = 1, parts: Sequence[Any] = ()
) -> pd.DataFrame:
    """Compute the worth of each peer's letters for each peer of a finished simulation.

    The experiment is executed again without the letters of some peers. Finished runs are reused,
    stopped ones are continued. The result is worth.csv, a row per recipient and sender;
    `leave_one_out` and `shapley` are positive where letters improve the recipient's `measure`.

    `orders` is the number of random orders of the senders for Shapley values, an even number; with
    0 there is leave-one-out only. The values are exact if all coalitions are no more runs.
    `workers` is as in `compare`, `parts` as in `load`; a `Run` of this process knows its own.

    ConfigError, DataError, ResultsError: the worth of this run cannot be computed; nothing was
    started. SweepError: a run failed; the cause is its error.

    Examples
    --------
    >>> table = coterie.contribution("runs/NAME")
    >>> table.pivot(index="recipient_name", columns="sender_name", values="shapley")
    """
    from coterie.app.lab.worth import worth
    from coterie.app.report.worth import frame

    run = run if isinstance(run, Run) else load(run, parts=parts)
    named = [*run.parts, *(_name("model", part) for part in parts)]
    result = worth(run.directory, _console(), orders=orders, workers=workers, parts=named)
    return frame(result, run.names)


def _flat(
    preset: str | Path | None,
    keys: Keys | None,
    more: Mapping[str, Any],
    peers_data: Sequence[Arrays] | None,
) -> tuple[str, dict[str, Any]]:
    """Return the name of the preset and all keys, flat."""
    if isinstance(preset, Mapping):
        raise ConfigError("a dict of keys comes after the preset, as in coterie.run(None, {...})")
    if peers_data is not None and "dataset" in {**(keys or {}), **more}:
        raise ConfigError("peers_data replaces dataset: pass only one of them")
    data = more.get("dataset") if peers_data is None else list(peers_data)
    if data is not None and not isinstance(data, str) and not callable(data):
        first = data[0] if isinstance(data, tuple) and data else data
        called = "peers_data" if isinstance(data, list) else type(first).__name__
        more = {**more, "dataset": plugins.register("dataset", called, lambda: data, _IN_DATA)}
    chosen: dict[str, Any] = flatten(keys or {}) | of_keywords(more)
    if isinstance(data, list):
        chosen.setdefault("peers", len(data))
    for kind, part in PARTS.items():
        if part.key in chosen:
            chosen[part.key] = _name(kind, chosen[part.key])
    choices = {part.key: chosen[part.key] for part in PARTS.values() if part.key in chosen}
    name, flat = read_items([] if preset is None else [str(preset)], choices)
    recipes.check(flat["method"], chosen)
    return name, flat | {k: str(v) if isinstance(v, Path) else v for k, v in chosen.items()}


def _name(kind: Kind, part: Any) -> str:
    """Return the name of a part: "module:attribute" for an importable object, else registered."""
    if isinstance(part, str):
        return part
    module = getattr(part, "__module__", None)
    path = getattr(part, "__qualname__", None)
    if path and module not in (None, "__main__") and "<" not in path:
        return f"{module}:{path}"
    called = (path or type(part).__name__).rpartition(".")[2].strip("<>")
    return plugins.register(kind, called, part, _IN_DATA if kind == "dataset" else b"")


def _named(flat: Keys, methods: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """Return the code and the weight files that the user's own keys name."""
    choices = {part.key: flat[part.key] for part in PARTS.values() if part.key in flat}
    tables = [choices, *({"method": method} for method in methods)]
    names = [name for each in tables for name in code_named(each).values()]
    return names, [str(flat[key]) for key in _WEIGHTS if flat.get(key)]


def _placed(config: Config) -> Config:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    placed, number = config.located(stamp), 1
    while Path(placed.run_dir).exists():
        if config.name or config.run_dir:
            raise ConfigError(f"{placed.run_dir} already exists: choose another name, or load it")
        number += 1
        placed = config.located(f"{stamp}-{number}")
    return replace(placed, resume=False)


def _console() -> Console:
    """Return a console that prints the command's output on stderr; in a notebook below the cell."""
    return Terminal(stderr="ipykernel" not in sys.modules, force_jupyter=False)


def reproduce(
    name: str,
    *,
    size: Size = "small",
    seeds: int | None = None,
    workers: int = 1,
    out: str | Path = "runs/reproduce",
) -> Reproduction:
    """Make a table or figure of a paper, "paper/figure", and judge the paper's claims about it.

    Finished runs are reused, stopped ones are continued. `size` is "small", which runs offline in
    minutes, or "paper"; `seeds` None: as many as the figure says; `workers` as in `compare`. The
    result's `verdicts` say of each claim whether it holds; its `directory` has page.html,
    results.csv, seeds.csv and claims.json. ConfigError, DataError: there is no such figure, or data
    or a GPU are missing; nothing was started. RunError: a run failed.

    Examples
    --------
    >>> made = coterie.reproduce("wga/figure-1")
    >>> [(verdict.claim, verdict.holds) for verdict in made.verdicts]
    """
    from coterie.app.lab.reproduction.reproduce import FigureRequest
    from coterie.app.lab.reproduction.reproduce import reproduce as make

    return make(FigureRequest(name, size, seeds, Path(out), workers), _console())
