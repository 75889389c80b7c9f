"""Read examples to predict from files, as raw inputs of a saved model."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coterie.app.config import schema
from coterie.app.config.keys import ConfigError
from coterie.app.trained.about import About
from coterie.datasets.files.folders import IMAGES, files_below
from coterie.datasets.own import cells
from coterie.datasets.own.image_folder import ImageFolderOptions, read_examples
from coterie.datasets.own.institutions import RefusedError
from coterie.datasets.preprocessing import Column

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

_SHOWN = 5
_READING = ("fit", "depth", "window", "padding")
"""Options of a run that change the values of an image."""

_log = logging.getLogger("coterie.predict")


@dataclass(frozen=True, eq=False)
class Inputs:
    """Raw examples."""

    raw: npt.NDArray[Any]  # (N, ...)
    names: Sequence[str | int]  # number of each example's row, from 1, or name of its file
    columns: Mapping[str, Sequence[str | int]]
    """Columns that a table of predictions begins with, by name: the columns of the input table, as
    text; else the names, as "row" or "file"."""


def read(path: Path, about: About) -> Inputs:
    """Read the examples of a table, an archive (.npz) or a folder of images that fit the model."""
    if not path.exists():
        raise ConfigError(f"{path}: no such file or folder")
    if path.is_dir():
        return _images(path, about)
    if path.suffix == ".npz":
        return _arrays(path, about)
    if path.suffix in cells.FORMATS:
        return _table(path, about)
    if about.task == "language":
        raise ConfigError(f"{path}: a language model takes tokens: an .npz with x, rows of them")
    raise ConfigError(f"{path}: expected .csv, .parquet, .npz or a folder of images")


def of_frame(frame: pd.DataFrame, about: About) -> npt.NDArray[Any]:
    """Return the rows of a data frame, whose columns may be in any order, as raw examples."""
    import pyarrow as pa

    try:
        table = pa.Table.from_pandas(frame, preserve_index=False)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ConfigError(
            f"the data frame cannot be read: {' '.join(map(str, error.args))}"
        ) from None
    called = Path("the data frame")
    return _encoded(cells.normalised(table, called), called, about)


@contextmanager
def _shown() -> Iterator[None]:
    """Show the local user the entries of a RefusedError, which are hidden from the relay."""
    try:
        yield
    except RefusedError as error:
        raise ConfigError(f"{error}: {', '.join(error.entries)}") from None


def _table(path: Path, about: About) -> Inputs:
    with _shown():
        table = cells.open_table(path)
    raw = _encoded(table, path, about)
    written = {
        name: ["" if cell is None else str(cell) for cell in table.column(name).to_pylist()]
        for name in table.column_names
    }
    return Inputs(raw, range(1, len(raw) + 1), written)


def _encoded(table: pa.Table, path: Path, about: About) -> npt.NDArray[Any]:
    columns = about.table
    if not columns:
        wanted = math.prod(about.shape)
        if len(table.column_names) != wanted:
            raise ConfigError(
                f"{path}: {len(table.column_names)} columns, but an example of {about.dataset} is "
                f"{wanted} numbers, whose columns have no names"
            )
        columns = tuple(map(Column, table.column_names))
    with _shown():
        cells.require(table, [column.name for column in columns], path)
        raw, wrong = cells.encoded(table, columns)
    if refuses_missing(about):
        cells.add_missing(table, raw, columns, wrong)
    if wrong:
        why = ""
        if any(each.why == "is missing" for row in wrong.values() for each in row):
            why = '; the model was trained with table.missing = "refuse"'
        raise ConfigError(f"{_first(cells.named(wrong, path))}{why}")
    if not about.table:
        raw = raw.reshape(-1, *about.shape)
    return fitting(raw, about, str(path))


def _arrays(path: Path, about: About) -> Inputs:
    try:
        with np.load(path, allow_pickle=False) as archive:
            name = "x" if "x" in archive.files else archive.files[0]
            raw = archive[name]
    except (ValueError, IndexError, OSError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    raw = fitting(raw, about, f"{path}: {name}")
    names = range(1, len(raw) + 1)
    return Inputs(raw, names, {"row": names})


def _first(lines: Sequence[str]) -> str:
    more = f" and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
    return "\n".join(lines[:_SHOWN]) + more


def refuses_missing(about: About) -> bool:
    """Return whether the model was trained without missing cells, and predicts none."""
    return about.dataset_options.get("missing") == "refuse"


def fitting(raw: npt.NDArray[Any], about: About, called: str) -> npt.NDArray[Any]:
    """Return raw examples (N, ...) if they fit the model's input, else raise ConfigError."""
    columns = about.table
    shape = (len(columns),) if columns else about.shape
    if raw.dtype.kind not in "iubf":
        raise ConfigError(f"{called} holds {raw.dtype}, the model takes numbers")
    if raw.ndim != 1 + len(shape) or raw.shape[1:] != shape:
        raise ConfigError(
            f"{called} is {raw.shape}, the model takes (N, {', '.join(map(str, shape))})"
        )
    fills = bool(columns) and not refuses_missing(about)
    unsound = np.isinf(raw) if fills else ~np.isfinite(raw)
    if rows := np.flatnonzero(unsound.any(axis=tuple(range(1, raw.ndim)))).tolist():
        raise ConfigError(
            f"{called}: {len(rows)} of {len(raw)} examples have NaN or infinity, the first is "
            f"number {rows[0] + 1}: fill these values, or leave the examples out"
        )
    return raw


def _images(folder: Path, about: About) -> Inputs:
    if len(about.shape) not in (3, 4) or about.shape[0] not in (1, 3):
        raise ConfigError(f"{folder}: the model takes examples of shape {about.shape}, not images")
    choices = about.dataset_options if about.dataset == "image-folder" else {}
    own = {name: choices[name] for name in _READING if name in choices}
    try:
        shape = "x".join(map(str, about.shape))
        options = schema.made(ImageFolderOptions, {"shape": shape, **own})
        files, left_out = files_below(folder, folder)
        examples, others = read_examples(files, options)
    except RefusedError as error:  # hidden from the relay, but shown to the local user
        raise ConfigError(_first(error.entries)) from None
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{folder}: {error}") from None
    if not examples:
        raise ConfigError(f"{folder}: no images ({', '.join(IMAGES)}, or DICOM without suffix)")
    if left_out := left_out + others:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(left_out.items()))
        _log.warning("%s: left out %d files: %s", folder, left_out.total(), kinds)
    depths = {each.properties["depth"] for _, each in examples}
    trained = about.preprocessing.depth if about.preprocessing else ""
    if options.depth == "same" and (wrong := sorted(depths - {trained or min(depths)})):
        raise ConfigError(
            f"{folder}: images of {', '.join(wrong)}, but the model was trained on images of "
            f"{trained or min(depths)}, whose values mean something else"
        )
    names = [str(path.relative_to(folder)) for path, _ in examples]
    return Inputs(np.stack([each.values for _, each in examples]), names, {"file": names})
