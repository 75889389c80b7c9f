"""The budget of reported numbers: what counts, once, over runs and processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from coterie.app.institution.security.disclosure import Reports, numbers_in, protected
from coterie.app.institution.security.journal import Journal, LedgerError
from coterie.app.institution.security.ledger import Ledger
from coterie.app.institution.security.policy import AnswerPolicy, Policy, ReportPolicy
from coterie.app.runs import atomic
from coterie.strategies.protocol import Report

SIZES = {"train": 400, "test": 100, "validation": 0}


def ledger(directory: Path, run: str = "run") -> Ledger:
    """Return the ledger as a process sees it that has just started."""
    directory.joinpath("institution").mkdir(exist_ok=True)
    return Ledger(Journal(path_in(directory)), run, AnswerPolicy())


def path_in(directory: Path) -> Path:
    return directory / "institution" / "ledger-0000.jsonl"


def test_metrics_about_examples_count_and_work_does_not() -> None:
    metrics: dict[str, float | None] = {
        "test_loss": 0.7, "test_accuracy": 1.0, "train_loss": 0.5, "validation_loss": 0.1,
        "bytes_sent": 80, "gradient_evaluations": 640, "epsilon": 3.0, "sensitivity": None,
    }  # fmt: skip
    report = protected(Report(3, 1, metrics, (1.0, 0.0)), ReportPolicy(), SIZES)
    assert numbers_in(report).keys() == {"test_loss", "test_accuracy"}
    assert not numbers_in(protected(report, ReportPolicy("none"), SIZES))


def test_what_was_told_before_costs_nothing(tmp_path: Path) -> None:
    """Repeated metrics of a round and unchanged weights are free, also after a restart."""
    metrics = {"test_loss": 0.7, "test_accuracy": 0.5}
    assert ledger(tmp_path).reporting(1, metrics, {1: 0.5, 2: 0.2}, 6)  # four numbers
    assert ledger(tmp_path).reporting(1, metrics, {1: 0.5, 2: 0.2}, 4)
    assert ledger(tmp_path).reporting(2, metrics, {1: 0.5, 2: 0.2}, 6)  # two more, of another round
    assert not ledger(tmp_path).reporting(3, metrics, {1: 0.5, 2: 0.2}, 6)
    assert not ledger(tmp_path).reporting(2, metrics, {1: 0.5, 2: 0.3}, 6), "other weights"
    assert not ledger(tmp_path, "other").reporting(1, metrics, {}, 6), "one budget for all runs"
    assert ledger(tmp_path, "other").reporting(1, metrics, {}, 8)
    lines = atomic.lines(path_in(tmp_path))
    assert [line["numbers"] for line in lines] == [4, 2, 2]


def test_runs_side_by_side_share_the_budget(tmp_path: Path) -> None:
    """Threads stand for processes: both wait for the same lock."""
    with ThreadPoolExecutor(16) as pool:
        allowed = pool.map(
            lambda k: ledger(tmp_path, f"run-{k}").reporting(1, {"test_loss": k / 16}, {}, 5),
            range(16),
        )
    assert sum(allowed) == 5


def test_weights_of_other_peers_are_other_numbers(tmp_path: Path) -> None:
    assert ledger(tmp_path).reporting(1, {}, {1: 0.5}, 1)
    assert not ledger(tmp_path).reporting(2, {}, {2: 0.5}, 1)
    assert ledger(tmp_path).reporting(2, {}, {1: 0.5}, 1)


def test_weights_count_with_every_method_if_a_peer_received_something(tmp_path: Path) -> None:
    """Three rows have a budget of three numbers; two weights cost two, and others two more."""
    reports = Reports(Policy(), {"train": 3}, 0, ledger(tmp_path), own=True)
    start, learned, others = (1.0, 0.0, 0.0), (0.5, 0.3, 0.2), (0.5, 0.2, 0.3)
    reported = [
        reports.disclosed(Report(t, 0, {}, weights)).weights
        for t, weights in enumerate((start, learned, learned, others))
    ]
    assert reported == [start, learned, learned, start]


@pytest.mark.parametrize("number", ["-5", "1e9", "NaN", '"1"', "true"])
def test_a_ledger_with_a_number_that_is_none_reports_nothing(number: str, tmp_path: Path) -> None:
    """The file has no `.head`, as if it had been written by an older version."""
    damaged = ledger(tmp_path)
    own_line = f'{{"run": "other", "round": 1, "report": "", "numbers": {number}}}\n'
    path_in(tmp_path).write_text(own_line)
    for reader in (damaged, ledger(tmp_path)):
        with pytest.raises(LedgerError, match="damaged"):
            reader.reporting(2, {"test_loss": 0.7}, {}, 9)
