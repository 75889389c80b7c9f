"""Calls after every evaluated round: callbacks, TensorBoard, MLflow, Weights & Biases."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.keys import nearest
from coterie.app.runs import atomic
from coterie.app.runs.header import Display

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.console import Console


class Callback(Protocol):
    """Object that is called after every evaluated round."""

    def on_round(self, round: int, metrics: DataFrame) -> object:  # noqa: A002
        """Handle the number of a round and its metrics, a row per peer that reported."""


class Observers:
    """Context manager that calls back for every complete round in metrics.jsonl.

    The key `track` of `config` names trackers; `callbacks` are further objects with `on_round`, or
    functions with the same parameters. A `console` shows the progress. ConfigError: an unknown
    tracker, or a callback that cannot be called.
    """

    def __init__(
        self,
        config: Config,
        callbacks: Iterable[Callback | Callable[..., object]] = (),
        console: Console | None = None,
    ) -> None:
        self._config, self._file = config, Path(config.run_dir, "metrics.jsonl")
        self._calls = [_function_of(each) for each in callbacks]
        self._trackers = trackers(config.track)
        self._read, self._stack = 0, ExitStack()
        self._display = Display(console, config.num_server_rounds) if console else None

    def __enter__(self) -> Self:
        if self._config.resume and self._file.exists():
            self._read = self._file.stat().st_size
        if self._display is not None:
            self._stack.enter_context(self._display)
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stack.__exit__(*exception)

    def show(self, progress: Mapping[str, Any]) -> None:
        """Call back for the rounds written since the last call."""
        if self._display is not None:
            self._display.show(progress)
        if not (self._calls or self._trackers) or not progress:
            return
        whole = atomic.whole_lines(self._file, self._read)
        self._read += len(whole)
        rows = [json.loads(line) for line in whole.splitlines()]
        for t, of_round in groupby(rows, key=lambda row: int(row["round"])):
            while self._trackers:  # started with the first metrics: other runs leave no files
                self._calls.append(self._stack.enter_context(self._trackers.pop(0)(self._config)))
            frame = frame_of(list(of_round))
            for call in self._calls:
                call(t, frame)


def frame_of(rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Return lines of metrics.jsonl as a data frame, with NaN for null."""
    import pandas as pd  # half a second, and most runs have no callbacks

    frame = pd.DataFrame(list(rows))
    return frame.astype({name: float for name in frame if frame[name].isna().all()})


def scalars(metrics: DataFrame) -> dict[str, float]:
    """Return means and values by peer of all metrics: "test_loss/mean", "test_loss/peer 3"."""
    logged = {}
    for name in metrics.columns.drop(["round", "peer", "peer_name"], errors="ignore"):
        values = metrics[name].astype(float)
        logged[f"{name}/mean"] = float(values.mean())
        names = metrics["peer_name"] if "peer_name" in metrics else metrics["peer"]
        by_peer = zip(names, values, strict=True)
        logged |= {f"{name}/{peer}": float(value) for peer, value in by_peer}
    return {name: value for name, value in logged.items() if math.isfinite(value)}


@contextmanager
def _tensorboard(config: Config) -> Iterator[Log]:
    """Event files in the run directory, for `tensorboard --logdir runs`."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(config.run_dir) as writer:

        def log(t: int, metrics: DataFrame) -> None:
            for name, value in scalars(metrics).items():
                writer.add_scalar(name, value, t)

        yield log


@contextmanager
def _mlflow(config: Config) -> Iterator[Log]:
    """A run of MLflow, at MLFLOW_TRACKING_URI."""
    import mlflow

    with mlflow.start_run(run_name=config.name):
        mlflow.log_params(config.flat())
        yield lambda t, metrics: mlflow.log_metrics(scalars(metrics), step=t)


@contextmanager
def _wandb(config: Config) -> Iterator[Log]:
    """A run of Weights & Biases; with WANDB_MODE=offline, in the run directory."""
    import wandb

    with wandb.init(
        project="coterie", name=config.name, config=config.flat(), dir=config.run_dir
    ) as run:
        yield lambda t, metrics: run.log(scalars(metrics), step=t)


Log = Callable[..., object]
TRACKERS: Mapping[str, tuple[str, Callable[[Config], AbstractContextManager[Log]]]] = {
    "tensorboard": ("tensorboard", _tensorboard),
    "mlflow": ("mlflow", _mlflow),
    "wandb": ("wandb", _wandb),
}
"""Name -> required package, and context manager that yields the function to log numbers."""


def _function_of(callback: Any) -> Callable[..., object]:
    """Return the function of a callback, after checking that it takes a round and metrics."""
    call: Callable[..., object] = getattr(callback, "on_round", callback)
    try:
        inspect.signature(call).bind(0, None)
    except TypeError as error:
        wanted = "it must be a function (round, metrics), or an object with such an on_round"
        raise ConfigError(f"callbacks: {call!r}: {error}: {wanted}") from None
    except ValueError:  # a built-in function without a signature
        pass
    return call


def trackers(track: str) -> list[Callable[[Config], AbstractContextManager[Log]]]:
    """Return the trackers that the key `track` names.

    ConfigError: a tracker is unknown or not installed.
    """
    names = [name.strip() for name in track.split(",") if name.strip()]
    for name in names:
        if name not in TRACKERS:
            raise ConfigError(f'track: unknown tracker "{name}"{nearest(name, TRACKERS)}')
        package, _ = TRACKERS[name]
        if find_spec(package) is None:
            raise ConfigError(f'track = "{name}": pip install {package}')
    return [TRACKERS[name][1] for name in names]
