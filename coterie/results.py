"""Results of runs and comparisons as data frames and modules."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from coterie.app.experiments import choice
from coterie.app.experiments.choice import Choice
from coterie.app.report import comparison
from coterie.app.runners.tracking import frame_of
from coterie.app.runs import files, plan, rundir
from coterie.app.runs.files import ResultsError
from coterie.app.runs.settings import RunSettings

if TYPE_CHECKING:
    from coterie.app.trained.personal import PersonalModel


class Run:
    """Results of a run, read from its directory, which may come from anywhere.

    `names` are those of the peers, by index; `parts` and `weights` are as in `coterie.load`.
    """

    def __init__(
        self, directory: str | Path, parts: Sequence[str] = (), weights: Sequence[str | Path] = ()
    ) -> None:
        self.directory = Path(directory)
        self.parts = tuple(parts)
        self._weights = tuple(map(str, weights))
        self._read = rundir.Run.read(self.directory)
        self.names: tuple[str, ...] = self._read.names

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """Metrics with a row per evaluated round and peer; columns as in metrics.jsonl."""
        return read_metrics(self.directory)

    @property
    def weight_rounds(self) -> npt.NDArray[np.int64]:
        """Rounds of `weights`, (rounds,)."""
        return self._read.weight_rounds

    @property
    def weights(self) -> npt.NDArray[np.float64]:
        """Collaboration weights, (rounds, n, n): [r, i, j] is the weight of peer j for peer i."""
        return self._read.weights

    @cached_property
    def graph(self) -> pd.DataFrame:
        """Edges of the collaboration graph: round, from, to, weight.

        An edge points from the peer whose model or answers are used to the peer that uses them.
        """
        weights = self.weights
        if len(weights):
            weights = weights * ~np.eye(len(self.names), dtype=np.bool_)
        at, to, source = np.nonzero(weights)
        names = np.array(self.names, dtype=object)
        return pd.DataFrame(
            {
                "round": self.weight_rounds[at],
                "from": names[source],
                "to": names[to],
                "weight": weights[at, to, source],
            }
        )

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Content of summary.json: means, spreads, costs; ResultsError: the run is not finished."""
        content = files.json_of(self.directory, "summary.json", dict)
        if content is None:
            raise ResultsError(f"{self.directory}: the run is not finished, so there is no summary")
        return dict(content)

    @property
    def config(self) -> Mapping[str, Any]:
        """Configuration from config.toml, with nested tables."""
        return self._read.config

    @property
    def settings(self) -> RunSettings:
        """Keys of the configuration as attributes; missing ones have defaults."""
        return self._read.settings

    def model(self, peer: int | str) -> PersonalModel:
        """Return a peer's model in evaluation mode, which takes raw inputs; `peer`: index or name.

        It includes normalisation and the method's prediction rule (mixtures, votes). ResultsError:
        there is no such model; the message has the reason.
        """
        from coterie.app.trained.personal import Named, personal_model  # imports torch

        return personal_model(self.directory, peer, Named(self.parts, self._weights))

    def predict(
        self, peer: int | str, x: pd.DataFrame | npt.ArrayLike | str | Path
    ) -> npt.NDArray[np.float64]:
        """Predict raw inputs by a peer's model: probabilities (N, classes) or values (N, outputs).

        `x` is a data frame with the columns of the training data, in any order; an array (N, ...);
        or a file or folder as for `coterie predict`. ResultsError: as in `model`; ConfigError,
        DataError: the inputs do not fit the model.
        """
        from coterie.app.trained.inputs import fitting, of_frame, read
        from coterie.app.trained.predict import predicted

        model = self.model(peer)
        if isinstance(x, str | Path):
            return predicted(model, read(Path(x), model.about).raw)
        if isinstance(x, pd.DataFrame):
            return predicted(model, of_frame(x, model.about))
        return predicted(model, fitting(np.asarray(x), model.about, "x"))

    @property
    def report(self) -> Path:
        """Path of the HTML report."""
        return self.directory / "report.html"

    def __repr__(self) -> str:
        return f"Run({str(self.directory)!r})"

    def _repr_html_(self) -> str:
        last = self.metrics[self.metrics["round"] == self.metrics["round"].max()]
        table = pd.DataFrame({"peer": last["peer_name"]})
        if "test_accuracy" in last:
            table["test accuracy %"] = (100 * last["test_accuracy"].astype(float)).round(1)
        table["test loss"] = last["test_loss"]
        table = table.dropna(axis=1, how="all")
        return f"<p>{self.settings.method}, {self.directory.name}</p>{table.to_html(index=False)}"


class Comparison:
    """Results of a comparison, read from its directory; `parts` and `weights` as in `load`."""

    def __init__(
        self, directory: str | Path, parts: Sequence[str] = (), weights: Sequence[str | Path] = ()
    ) -> None:
        self.directory = Path(directory)
        self._named = tuple(parts), tuple(weights)
        if not (self.directory / "comparison.csv").is_file():
            raise ResultsError(f"{self.directory} is not a comparison: no comparison.csv")

    @cached_property
    def table(self) -> pd.DataFrame:
        """Mean and deviation over seeds of the columns of comparison.csv, by method or setting.

        Accuracies and gains are shares: 0.855 for 85.5 %. The table of the page is `shown`.
        """
        table = io.StringIO(files.text(self.directory, "comparison.csv"))
        rows = pd.read_csv(table).dropna(axis=1, how="all")
        swept = {key for values in plan.read(self.directory).values.values() for key in values}
        numbers = rows.select_dtypes("number").columns.drop("seed").difference(swept, sort=False)
        return rows.groupby("method", sort=False)[list(numbers)].agg(["mean", "std"])

    @cached_property
    def shown(self) -> pd.DataFrame:
        """The page's table by method or setting: its columns and units, in texts: "85.5 ± 1.3".

        Methods with a star are not ranked. Numbers to compute with are in `table` and `metrics`.
        """
        table = comparison.Comparison.read(self.directory).table
        cells = {column.title: [row.text(column) for row in table] for column in table.shown()}
        return pd.DataFrame(cells, pd.Index([row.label for row in table], name=table.noun))

    @cached_property
    def tuned(self) -> dict[str, Choice]:
        """Method -> the settings that tuning chose, and which lie at an edge of what was tried."""
        return choice.read(self.directory)

    @cached_property
    def runs(self) -> dict[str, list[Run]]:
        """Runs of each method, or of each setting of a sweep, sorted by seed."""
        by_method: dict[str, list[Run]] = {}
        swept = plan.read(self.directory)
        for name in swept.runs:
            run = Run(self.directory / name, *self._named)
            label = plan.label(run.settings.label, swept.values.get(name, {}))
            by_method.setdefault(label, []).append(run)
        for runs in by_method.values():
            runs.sort(key=lambda run: run.settings.seed)
        return by_method

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """Metrics of all runs, with the columns method (or setting) and seed in front."""
        frames = [
            run.metrics.assign(method=method, seed=run.settings.seed)
            for method, runs in self.runs.items()
            for run in runs
        ]
        frame = pd.concat(frames, ignore_index=True)
        return frame[["method", "seed", *frame.columns.drop(["method", "seed"])]]

    @cached_property
    def peers(self) -> pd.DataFrame:
        """Final measures and gain over local per method, seed and peer (comparison-peers.csv)."""
        return pd.read_csv(io.StringIO(files.text(self.directory, "comparison-peers.csv")))

    @property
    def report(self) -> Path:
        """Path of the HTML page."""
        return self.directory / "comparison.html"

    @property
    def latex(self) -> str:
        """LaTeX table."""
        return files.text(self.directory, "comparison.tex") or ""

    def __repr__(self) -> str:
        return f"Comparison({str(self.directory)!r})"

    def _repr_html_(self) -> str:
        return str(self.shown.to_html())


def read_metrics(directory: Path) -> pd.DataFrame:
    """Read metrics.jsonl as a data frame; a field that is null has NaN."""
    try:
        with files.opened(directory, "metrics.jsonl", rundir.MAX_METRICS_BYTES) as file:
            content = file.read()
    except FileNotFoundError:
        return pd.DataFrame(columns=["round", "peer"])
    whole = content[: content.rfind(b"\n") + 1]
    return frame_of([json.loads(line) for line in whole.splitlines()])
