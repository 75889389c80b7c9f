"""One number under one heading: the same runs in a comparison, in the league and in a figure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coterie.app.experiments.measures import MEASURES
from coterie.app.experiments.table import Cell, Entry, Table, Trial
from coterie.app.lab.league import values_of
from coterie.app.lab.pages import league
from coterie.app.runs.rundir import Run
from tests.app.lab.reproduction.test_results import made_run

METHODS = ("local", "cobo", "fedavg", "oracle")


@pytest.fixture
def made(tmp_path: Path) -> dict[str, list[Run]]:
    """Return four seeds of each method; one seed of FedAvg never nears the best of the others."""
    g = np.random.default_rng(0)
    runs: dict[str, list[Run]] = {}
    for k, method in enumerate(METHODS):
        for seed in range(4):
            top = 0.3 if (method, seed) == ("fedavg", 2) else 0.6 + 0.1 * k
            accuracy = np.linspace(0.1, top, 5)[:, None] + g.uniform(0, 0.05, size=(5, 6))
            run = made_run(tmp_path, accuracy.round(4).tolist())
            sent = 1000 * np.arange(5.0)[:, None] * np.ones(6)
            runs.setdefault(method, []).append(
                replace(
                    run,
                    config={"method": method, "peers": 6, "seed": seed},
                    metrics={**run.metrics, "bytes_sent": sent, "gradient_evaluations": sent},
                )
            )
    return runs


@pytest.mark.parametrize(
    "key", ["accuracy", "gain", "worst", "harmed", "improved", "bytes_to_best", "gradients"]
)
def test_every_page_shows_the_same_number(made: dict[str, list[Run]], key: str) -> None:
    lines = {
        (method, column): league.Line(values=values_of(column, of))
        for method, of in made.items()
        for column in league.CONDITIONS["plain"]
    }
    cells = {Cell(m): {Trial.of(run): run for run in of} for m, of in made.items()}
    column = MEASURES[key]
    compared, figure = (
        table.entries(column) for table in (Table.of_runs(made), Table(dict(cells)))
    )
    kept = league.table(lines, {}).entries(replace(column, panel="plain"))

    def shown(entries: dict[str, Entry]) -> dict[str, tuple[str, bool]]:
        return {method: (entry.text, entry.leads) for method, entry in entries.items()}

    assert shown(figure) == shown(compared)
    assert shown(kept) == shown(compared)
    if key == "bytes_to_best":
        assert compared["fedavg"].text == "3 of 4 seeds"
