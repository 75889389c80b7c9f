"""Configurations of an experiment by cell and trial; keys: panel < row < point < trial."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from coterie.app.config.config import Config
from coterie.app.config.parts import fingerprints
from coterie.app.config.schema import Scalar
from coterie.app.experiments.table import Cell, Trial
from coterie.app.runs.rundir import Run
from coterie.strategies.names import shortened

Keys = Mapping[str, Scalar]
_OF_RESULTS = ("name", "title", "run-dir", "resume", "out")


class Point(NamedTuple):
    """Position on an axis, and its keys."""

    x: Scalar | None = None
    keys: Keys = MappingProxyType({})


def with_run_dir(config: Config, directory: Path) -> Config:
    """Return the configuration with its directory, `<label>-seed<k>-<hash>` with the `digest`."""
    flat = {key: value for key, value in config.flat().items() if key not in _OF_RESULTS}
    name = shortened(config.label, f"-seed{config.seed}-{digest(config, flat)}")
    return config.with_(name=name, run_dir=str((directory / name).absolute()))


def digest(config: Config, flat: Mapping[str, Any]) -> str:
    """Return a hash of keys and the code of plugins; of data and other files data.json tells."""
    hashed = hashlib.sha256(json.dumps(flat, sort_keys=True).encode())
    for code in fingerprints(config.chosen):
        hashed.update(code)
    return hashed.hexdigest()[:8]


def trials(first: int, seeds: Iterable[int], splits: int = 1) -> list[Keys]:
    """Return the keys of each trial: a division per seed, or every seed with every division."""
    every = [first + seed for seed in seeds]
    if splits == 1:
        return [{"seed": seed} for seed in every]
    divisions = range(first, first + splits)
    return [{"seed": seed, "split-seed": split} for seed in every for split in divisions]


@dataclass(frozen=True)
class Grid:
    """Configurations by cell, one per trial."""

    cells: Mapping[Cell, Sequence[Config]]

    @classmethod
    def product(
        cls,
        rows: Mapping[str, Keys],
        shared: Keys,
        seeds: int | Sequence[int],
        *,
        panel: str = "",
        points: Sequence[Point] = (Point(),),
        splits: int = 1,
    ) -> Grid:
        """Cross a panel's rows with points and trials; a number of `seeds` counts from `seed`."""
        every = range(seeds) if isinstance(seeds, int) else seeds
        cells = {}
        for row, own in rows.items():
            for x, keys in points:
                flat = {**shared, **own, **keys}
                first = int(flat.get("seed", Config.seed))
                cells[Cell(row, panel, x)] = [
                    Config.from_flat({**flat, **trial}) for trial in trials(first, every, splits)
                ]
        return cls(cells)

    def __or__(self, other: Grid) -> Grid:
        return Grid({**self.cells, **other.cells})

    def __iter__(self) -> Iterator[Config]:
        return (config for of in self.cells.values() for config in of)

    def with_keys(self, keys: Mapping[str, Keys]) -> Grid:
        """Return the grid of these rows, each with more keys: what tuning chose."""
        cells = {
            cell: [Config.from_flat({**c.flat(), **keys[cell.row]}) for c in self.cells[cell]]
            for row in keys for cell in self.cells if cell.row == row
        }  # fmt: skip
        return Grid(cells)

    def with_run_dir(self, directory: Path) -> Grid:
        placed = {at: [with_run_dir(c, directory) for c in of] for at, of in self.cells.items()}
        return Grid(placed)

    def results(self, failed: Collection[str] = ()) -> dict[Cell, dict[Trial, Run]]:
        """Read the runs; a cell of which every run failed is left out."""
        ended = dict.fromkeys(c.run_dir for c in self if c.run_dir not in failed)
        runs = {run_dir: Run.read(run_dir) for run_dir in ended}  # cells may share runs
        results = {
            cell: {Trial(c.division, c.seed): runs[c.run_dir] for c in of if c.run_dir in runs}
            for cell, of in self.cells.items()
        }
        return {cell: of for cell, of in results.items() if of}
