"""What runs left, as data frames and modules."""

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

from coterie.app.runners.tracking import frame_of
from coterie.app.runs import files, metrics, plan, rundir
from coterie.app.runs.files import ResultsError

if TYPE_CHECKING:
    from torch import nn

    from coterie.app.trained.personal import PersonalModel


class Run:
    """One run, read from its directory, which may come from anywhere.

    Parameters
    ----------
    parts : code of the user's own that models of the run may be built with, "module:attribute".
    weights : files of trained weights that its networks start from.

    Attributes
    ----------
    directory : where it lies.
    names : what people call each peer, in their order.
    """

    def __init__(
        self, directory: str | Path, parts: Sequence[str] = (), weights: Sequence[str | Path] = ()
    ) -> None:
        self.directory = Path(directory)
        self._named = tuple(parts), tuple(map(str, weights))
        self._read = rundir.Run.read(self.directory)
        self.names: tuple[str, ...] = self._read.names

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """A row for each evaluated round and peer; the columns are those of metrics.jsonl."""
        return read_metrics(self.directory)

    @property
    def weight_rounds(self) -> npt.NDArray[np.int64]:
        """(rounds,) the rounds of `weights`."""
        return self._read.weight_rounds

    @property
    def weights(self) -> npt.NDArray[np.float64]:
        """(rounds, n, n) the weight that peer i gives peer j in a round: [r, i, j]."""
        return self._read.weights

    @cached_property
    def graph(self) -> pd.DataFrame:
        """The edges: round, from, to, weight.

        An edge leads from the peer whose model or answers are used to the peer that uses them.
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
        """summary.json: means, spreads and costs.

        Raises
        ------
        ResultsError
            The run is not finished.
        """
        found = files.json_of(self.directory, "summary.json", dict)
        if found is None:
            raise ResultsError(f"{self.directory}: the run is not finished, so there is no summary")
        return dict(found)

    @property
    def config(self) -> Mapping[str, Any]:
        """config.toml, tables nested."""
        return self._read.config

    def model(self, peer: int | str) -> nn.Module:
        """A peer's model in evaluation mode, which takes raw inputs.

        Normalisation is inside, and so is what the method does to predict: mixtures, votes.

        Parameters
        ----------
        peer : its number or its name.

        Raises
        ------
        ResultsError
            There is no such model here, or its file cannot be used; says why.
        """
        return self._model(peer)

    def _model(self, peer: int | str) -> PersonalModel:
        from coterie.app.trained.personal import (  # torch: only where a model is
            Named,
            personal_model,
        )

        return personal_model(self.directory, peer, Named(*self._named))

    def predict(self, peer: int | str, x: npt.ArrayLike | str | Path) -> npt.NDArray[np.float64]:
        """What a peer's model predicts for raw inputs (N, ...): probabilities (N, classes).

        Of a regression its values, (N, outputs).

        Parameters
        ----------
        peer : its number or its name.
        x : arrays, or the file or folder that `coterie predict` takes.

        Raises
        ------
        ResultsError
            As `model`.
        ConfigError, DataError
            The model does not take such inputs.
        """
        from coterie.app.trained.inputs import fitting, read
        from coterie.app.trained.predict import predicted

        model = self._model(peer)
        if isinstance(x, str | Path):
            return predicted(model, read(Path(x), model.about).raw)
        return predicted(model, fitting(np.asarray(x), model.about, "x"))

    @property
    def report(self) -> Path:
        """The page about the run, to be opened in a browser."""
        return self.directory / "report.html"

    def __repr__(self) -> str:
        return f"Run({str(self.directory)!r})"

    def _repr_html_(self) -> str:
        last = self.metrics[self.metrics["round"] == self.metrics["round"].max()]
        shown = ["peer_name", "test_accuracy", "test_loss"]
        table = last[[name for name in shown if name in last]].dropna(axis=1, how="all")
        return f"<p>{self.config['method']}, {self.directory.name}</p>{table.to_html(index=False)}"


class Comparison:
    """Several methods on the same experiment, read from the comparison's directory.

    Parameters
    ----------
    parts, weights : see `Run`.

    Attributes
    ----------
    directory : where it lies.
    """

    def __init__(
        self, directory: str | Path, parts: Sequence[str] = (), weights: Sequence[str | Path] = ()
    ) -> None:
        self.directory = Path(directory)
        self._named = tuple(parts), tuple(weights)
        if not (self.directory / "comparison.csv").is_file():
            raise ResultsError(f"{self.directory}: no comparison.csv, so this is no comparison")

    @cached_property
    def table(self) -> pd.DataFrame:
        """A row for each method: mean and deviation over seeds of what comparison.csv has.

        `table["accuracy"]["mean"]` is one column.
        """
        table = io.StringIO(files.text(self.directory, "comparison.csv"))
        rows = pd.read_csv(table).dropna(axis=1, how="all")
        numbers = rows.select_dtypes("number").columns.drop("seed")
        return rows.groupby("method", sort=False)[list(numbers)].agg(["mean", "std"])

    @cached_property
    def runs(self) -> dict[str, list[Run]]:
        """Method -> its runs, a seed each."""
        found: dict[str, list[Run]] = {}
        for name in plan.read(self.directory) or ():
            run = Run(self.directory / name, *self._named)
            found.setdefault(str(run.config["method"]), []).append(run)
        return {method: sorted(runs, key=_seed) for method, runs in found.items()}

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """`Run.metrics` of all runs, with the columns method and seed in front."""
        frames = [
            run.metrics.assign(method=method, seed=_seed(run))
            for method, runs in self.runs.items()
            for run in runs
        ]
        frame = pd.concat(frames, ignore_index=True)
        return frame[["method", "seed", *frame.columns.drop(["method", "seed"])]]

    @property
    def report(self) -> Path:
        """The page about the comparison, to be opened in a browser."""
        return self.directory / "comparison.html"

    @property
    def latex(self) -> str:
        """The table for a paper."""
        return files.text(self.directory, "comparison.tex") or ""

    def __repr__(self) -> str:
        return f"Comparison({str(self.directory)!r})"

    def _repr_html_(self) -> str:
        return str(self.table.to_html())


def _seed(run: Run) -> int:
    return int(run.config.get("seed", 0))


def read_metrics(directory: Path) -> pd.DataFrame:
    """Read metrics.jsonl as a data frame; a field that is null has NaN."""
    try:
        with files.opened(directory, "metrics.jsonl", metrics.MOST_BYTES) as file:
            content = file.read()
    except FileNotFoundError:
        return pd.DataFrame(columns=["round", "peer"])
    whole = content[: content.rfind(b"\n") + 1]
    return frame_of([json.loads(line) for line in whole.splitlines()])
