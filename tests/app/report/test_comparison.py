"""Comparison: numbers computed by hand, table, CSV and LaTeX."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.app.experiments.choice import Choice
from coterie.app.experiments.measures import COLUMNS, MEASURES, SameTrial, odds_gap, parity_gap
from coterie.app.experiments.table import Row, Table
from coterie.app.lab.pages import league
from coterie.app.report import comparison, comparison_figures, run_data, verdict
from coterie.app.report.comparison import Comparison
from coterie.app.runs.rundir import Run
from tests.app.fake_run import write_config, write_metrics, write_progress, write_split
from tests.output import csv_rows, printed

COLUMN = {column.key: column for column in COLUMNS}
Final = Sequence[float | None]


Values = tuple[float | None, ...]


def values(row: Row, key: str) -> Values:
    """Return a measure of each run of a row."""
    return tuple(row.numbers(MEASURES[key]))


def near(values: Values, expected: Values) -> bool:
    """Return whether the values are equal up to rounding, with None in the same places."""
    return [each is None for each in values] == [each is None for each in expected] and all(
        a is None or b is None or math.isclose(a, b) for a, b in zip(values, expected, strict=True)
    )


def made(
    directory: Path, method: str, seed: int, accuracy: Final, loss: Final | None = None, **more: Any
) -> Run:
    """Return a run whose peers start with accuracy 0.1 and end with these values."""
    run = directory / f"{method}-{seed}"
    run.mkdir(parents=True)
    write_config(run, {"method": method, "peers": len(accuracy), "seed": seed, **more})
    losses = loss if loss is not None else [1.0] * len(accuracy)
    write_metrics(
        run,
        [
            {"round": 0, "peer": peer, "test_accuracy": a and 0.1, "test_loss": 2.0}
            for peer, a in enumerate(accuracy)
        ]
        + [
            {"round": 5, "peer": peer, "test_accuracy": a, "test_loss": b, "bytes_sent": 10 * peer}
            for peer, (a, b) in enumerate(zip(accuracy, losses, strict=True))
        ],
    )
    write_split(run, [None] * len(accuracy), samples=[10 * (k + 1) for k in range(len(accuracy))])
    write_progress(run, seconds=2.5)
    return Run.read(run)


def test_gain_and_share_improved_pair_peers_with_local_of_the_same_seed(tmp_path: Path) -> None:
    local = [made(tmp_path, "local", 0, [0.5, 0.7]), made(tmp_path, "local", 1, [0.2, 0.4])]
    other = [made(tmp_path, "cobo", 1, [0.3, 0.4]), made(tmp_path, "cobo", 0, [0.6, 0.5])]
    _, row = Table.of_runs({"local": local, "cobo": other})
    assert near(values(row, "gain"), (0.05, -0.05)), "seed 1 comes first here"
    assert values(row, "improved") == (0.5, 0.5), "an equal result is no improvement"
    assert [run and run.config["seed"] for run in row.local] == [1, 0]
    alone, _ = Table.of_runs({"local": local, "cobo": other})
    assert values(alone, "gain") == values(alone, "improved") == (0.0, 0.0)


def test_a_seed_without_local_has_no_gain(tmp_path: Path) -> None:
    local = [made(tmp_path, "local", 0, [0.5])]
    other = [made(tmp_path, "cobo", seed, [0.6]) for seed in (0, 1)]
    _, row = Table.of_runs({"local": local, "cobo": other})
    assert near(values(row, "gain"), (0.1, None))
    (row,) = Table.of_runs({"cobo": other})
    assert values(row, "gain") == values(row, "improved") == (None, None)
    assert COLUMN["gain"] not in Table.of_runs({"cobo": other}).shown()


def test_mean_and_deviation_over_seeds(tmp_path: Path) -> None:
    runs = [made(tmp_path, "cobo", s, [a, a + 0.2]) for s, a in enumerate((0.1, 0.3, 0.8))]
    (row,) = Table.of_runs({"cobo": runs})
    mean, deviation = row.summary(COLUMN["accuracy"]) or (0, 0)
    assert mean == pytest.approx(0.5)
    assert deviation == pytest.approx(math.sqrt((0.3**2 + 0.1**2 + 0.4**2) / 2)), "sample"
    assert row.text(COLUMN["accuracy"]) == "50.00 ± 36.06"
    assert row.text(COLUMN["spread"]) == "10.00", "no deviation of a deviation"
    assert values(row, "weighted")[0] == pytest.approx((0.1 * 10 + 0.3 * 20) / 30)
    assert values(row, "bytes") == (5.0,) * 3
    (row,) = Table.of_runs({"cobo": runs[:1]})
    assert near(row.summary(COLUMN["accuracy"]) or (), (0.2, 0.0))
    assert row.text(COLUMN["accuracy"]) == "20.00", "one seed has no deviation"


def test_peers_without_test_data_are_left_out(tmp_path: Path) -> None:
    local = [made(tmp_path, "local", 0, [0.5, None, 0.5])]
    other = [made(tmp_path, "cobo", 0, [0.7, None, 0.4])]
    _, row = Table.of_runs({"local": local, "cobo": other})
    assert near(values(row, "accuracy"), (0.55,))
    assert near(values(row, "gain"), (0.05,))
    assert values(row, "improved") == (0.5,)


def test_a_problem_without_accuracy_gains_in_loss(tmp_path: Path) -> None:
    local = [made(tmp_path, "local", 0, [None, None], loss=[3.0, 1.0])]
    other = [made(tmp_path, "cobo", 0, [None, None], loss=[1.0, 2.0])]
    lost = [made(tmp_path, "wga", 0, [None, None], loss=[1.0, math.inf])]
    _, row, diverged = Table.of_runs({"local": local, "cobo": other, "wga": lost})
    assert values(row, "loss_gain") == (0.5,)
    assert values(row, "improved") == (0.5,)
    assert values(row, "gain") == values(row, "accuracy") == (None,)
    assert values(diverged, "loss") == values(diverged, "loss_gain") == (None,)
    assert values(diverged, "improved") == (0.5,), "a peer that diverged is not better"
    table = Table.of_runs({"cobo": other, "wga": lost})
    assert [row.method for row in table.candidates(COLUMN["loss"])] == ["cobo"]
    assert diverged.text(COLUMN["loss"]) == "diverged"
    assert values(diverged, "diverged") == (1.0,)
    assert COLUMN["diverged"] in table.shown()
    assert COLUMN["diverged"] not in Table.of_runs({"cobo": other}).shown(), "nobody did"


def test_recovery_where_clusters_are_known_and_anybody_collaborates(tmp_path: Path) -> None:
    run = made(tmp_path, "cobo", 0, [0.5] * 4)
    write_split(run.directory, [0, 0, 1, 1], samples=[9] * 4)
    w = np.eye(4)
    w[0, 1] = w[1, 0] = w[2, 3] = w[3, 0] = 1.0  # three of four true edges, one false
    np.savez(run.directory / "collaboration.npz", rounds=[0, 5], weights=[np.eye(4), w])
    (row,) = Table.of_runs({"cobo": [Run.read(run.directory)]})
    assert values(row, "f1") == (2 * 3 / (4 + 4),)
    assert values(row, "own_cluster") == (0.75,)
    np.savez(run.directory / "collaboration.npz", rounds=[0], weights=[np.eye(4)])
    (row,) = Table.of_runs({"cobo": [Run.read(run.directory)]})
    assert values(row, "f1") == values(row, "own_cluster") == (None,)


def seeds_of(directory: Path, method: str, means: Sequence[float]) -> list[Run]:
    """Return a run of four peers per seed with this mean accuracy; loss = 1 - accuracy."""
    spread = (-0.01, 0.0, 0.0, 0.01)
    finals = [[mean + x for x in spread] for mean in means]
    return [made(directory, method, s, a, [1 - x for x in a]) for s, a in enumerate(finals)]


def test_bold_is_who_leads_by_the_test(tmp_path: Path) -> None:
    means = {"a": (0.90, 0.91, 0.90), "b": (0.91, 0.90, 0.89), "c": (0.50, 0.52, 0.51)}
    runs = {method: seeds_of(tmp_path, method, of) for method, of in means.items()}
    table = Table.of_runs(runs)
    assert table.bold(COLUMN["accuracy"]) == {"a", "b"}
    assert table.bold(COLUMN["loss"]) == {"a", "b"}
    assert table.bold(COLUMN["worst_decile"]) == {"a", "b"}, "over seeds only"
    assert table.bold(COLUMN["bytes"]) == set(), "cheap is not better by itself"
    assert Table.of_runs({m: runs[m] for m in "ab"}).bold(COLUMN["accuracy"]) == set(), (
        "no significant difference"
    )
    alone = Table.of_runs({method: of[:1] for method, of in runs.items()})
    assert alone.bold(COLUMN["accuracy"]) == set(), "one seed tells nothing"


def test_seeds_of_one_division_are_no_repetitions(tmp_path: Path) -> None:
    """Five seeds, far apart: significant if each divides the data, no test if they share it."""
    means = {"a": (0.90, 0.91, 0.90, 0.92, 0.91), "b": (0.50, 0.52, 0.51, 0.50, 0.49)}
    runs = {method: seeds_of(tmp_path, method, of) for method, of in means.items()}
    assert Table.of_runs(runs).bold(COLUMN["accuracy"]) == {"a"}
    for method, of in runs.items():
        for seed, run in enumerate(of):
            keys = {"method": method, "peers": run.peers, "seed": seed, "split-seed": 0}
            write_config(run.directory, keys)
    fixed = Table.of_runs({m: [Run.read(run.directory) for run in of] for m, of in runs.items()})
    assert fixed.bold(COLUMN["accuracy"]) == set()
    assert "not significant with 5 seeds (no test possible)" in " ".join(verdict.outcome(fixed))
    assert "the seeds share 1 division of the data (split-seed)" in verdict.notes(fixed)[0]


def test_harm_to_every_peer_with_every_seed_is_shown(tmp_path: Path) -> None:
    """A share per run has no variance here, so a test of seeds alone would show nothing."""
    means = {"local": (0.80, 0.81, 0.82), "a": (0.82, 0.83, 0.83), "b": (0.70, 0.71, 0.73)}
    table = Table.of_runs({m: seeds_of(tmp_path, m, of) for m, of in means.items()})
    assert [row.text(COLUMN["harmed"]) for row in table] == ["0 ± 0", "0 ± 0", "100 ± 0"]
    assert table.bold(COLUMN["harmed"]) == {"local", "a"}
    assert table.bold(COLUMN["improved"]) == {"a"}


def test_divisions_of_the_same_rows_show_less(tmp_path: Path) -> None:
    """Differences 0.02, 0.025, 0.015: t = 6.9 (p = 0.02); half of the table tested: 3.5 (0.07)."""
    means = {"a": (0.9, 0.9, 0.9), "b": (0.88, 0.875, 0.885)}
    runs = {method: seeds_of(tmp_path, method, of) for method, of in means.items()}
    assert Table.of_runs(runs).bold(COLUMN["accuracy"]) == {"a"}
    for method, of in runs.items():
        for seed, run in enumerate(of):
            keys = {"method": method, "peers": run.peers, "seed": seed, "dataset": "table"}
            write_config(Path(run.directory), keys | {"table": {"test": 0.5}})
    again = {method: [Run.read(run.directory) for run in of] for method, of in runs.items()}
    assert Table.of_runs(again).bold(COLUMN["accuracy"]) == set()


def test_the_oracle_never_leads(tmp_path: Path) -> None:
    means = {"oracle": (0.99, 0.99, 0.98), "a": (0.90, 0.91, 0.90), "b": (0.5, 0.52, 0.51)}
    table = Table.of_runs({m: seeds_of(tmp_path, m, of) for m, of in means.items()})
    assert table.bold(COLUMN["accuracy"]) == {"a"}
    assert [row.label for row in table] == ["oracle *", "a", "b"]


def test_a_paper_gets_the_main_columns(tmp_path: Path) -> None:
    runs = {m: [made(tmp_path, m, 0, [0.5, 0.7])] for m in ("local", "cobo")}
    table = Table.of_runs(runs)
    text = comparison.as_latex(Comparison(table))
    head = [line for line in text.splitlines() if line.startswith("method")]
    assert head == [r"method & accuracy \% & worst peer \% & gain & sent / peer \\"]
    runs = {m: [made(tmp_path / "l", m, 0, [None], loss=[2.0])] for m in ("local", "cobo")}
    text = comparison.as_latex(Comparison(Table.of_runs(runs)))
    assert r"method & loss gain & test loss & sent / peer \\" in text.splitlines()


def timed(directory: Path, method: str, *course: tuple[float, float | None, float | None]) -> Run:
    """Return a run of two peers: virtual seconds and accuracies per round (None: asleep)."""
    directory = directory / method
    directory.mkdir()
    write_config(directory, {"method": method, "peers": 2})
    write_metrics(
        directory,
        [
            {
                "round": t, "peer": peer, "test_accuracy": value, "test_loss": 1.0,
                "virtual_seconds": seconds,
            }
            for t, (seconds, *values) in enumerate(course)
            for peer, value in enumerate(values)
            if value is not None
        ],
    )  # fmt: skip
    return Run.read(directory)


def test_time_to_the_best_is_against_the_best_of_all_methods(tmp_path: Path) -> None:
    """The best mean is 0.8, so the target is 0.72 for the mean of the latest reports."""
    quick = timed(tmp_path, "cobo", (0, 0.1, 0.1), (3, 0.8, None), (7, None, 0.7), (9, 0.8, 0.8))
    slow = timed(tmp_path, "fedavg", (0, 0.1, 0.1), (20, 0.75, 0.75))
    never = timed(tmp_path, "dpfl", (0, 0.1, 0.1), (20, 0.7, 0.7))
    column = COLUMN["time_to_best"]
    table = Table.of_runs({"cobo": [quick], "fedavg": [slow], "dpfl": [never]})
    assert [values(row, column.key) for row in table] == [(7.0,), (20.0,), (math.inf,)]
    assert [row.text(column) for row in table] == ["7.0 s", "20.0 s", "never"]
    drawn = comparison_figures.curves(Comparison(table))
    assert drawn is not None
    assert drawn.data()["metrics"]["virtual_seconds"]["mean"][0] == [0, 3, 7, 9]
    assert "virtual_seconds" in run_data.page_data(quick)["metrics"]
    alone = Table.of_runs({"dpfl": [never]})
    assert values(alone.rows[0], column.key) == (20.0,)
    timeless = made(tmp_path, "local", 0, [0.5, 0.7])
    (row, _) = Table.of_runs({"cobo": [quick], "local": [timeless]})
    assert values(row, column.key) == (None,)


def sending(
    directory: Path, method: str, *course: tuple[float, float], seconds: float | None = None
) -> Run:
    """Return a run of two equal peers: accuracy and bytes sent so far, in each round."""
    clock = {} if seconds is None else {"virtual_seconds": seconds}
    directory = directory / method
    directory.mkdir()
    write_config(directory, {"method": method, "peers": 2})
    write_metrics(
        directory,
        [
            {"round": t, "peer": peer, "test_accuracy": value, "test_loss": 1.0, "bytes_sent": sent}
            | {name: t * of for name, of in clock.items()}
            for t, (value, sent) in enumerate(course)
            for peer in (0, 1)
        ],
    )
    return Run.read(directory)


def test_bytes_to_best_are_those_sent_until_90_percent_of_the_best_gain(tmp_path: Path) -> None:
    """Local ends at 0.5, the best ranked method at 0.9: the target is 0.5 + 0.9 * 0.4 = 0.86."""
    runs = {
        "local": sending(tmp_path, "local", (0.1, 0), (0.7, 0), (0.5, 0)),
        "fedavg": sending(tmp_path, "fedavg", (0.1, 0), (0.85, 100), (0.9, 200)),
        "dpfl": sending(tmp_path, "dpfl", (0.1, 0), (0.87, 30), (0.8, 60)),
        "cobo": sending(tmp_path, "cobo", (0.1, 0), (0.5, 300), (0.85, 600)),
        "oracle": sending(tmp_path, "oracle", (0.1, 0), (0.87, 20), (1.0, 40)),
    }
    table = Table.of_runs({method: [run] for method, run in runs.items()})
    sent = {row.method: values(row, "bytes_to_best") for row in table}
    never = (math.inf,)
    assert sent == {
        "local": never, "fedavg": (200.0,), "dpfl": (30.0,), "cobo": never, "oracle": (20.0,)
    }  # fmt: skip
    assert [row.text(COLUMN["bytes_to_best"]) for row in table.rows[:2]] == ["never", "200 B"]
    lost = Table.of_runs({"local": [runs["local"]], "random": [runs["local"]]})
    assert values(lost.rows[1], "bytes_to_best") == (None,), "no method gains"
    alone = Table.of_runs({"fedavg": [runs["fedavg"]]})
    assert values(alone.rows[0], "bytes_to_best") == (None,), "no gain without Local"


def test_the_best_is_ranked_and_best_over_all_seeds(tmp_path: Path) -> None:
    """Over both seeds fedavg ends at 0.8 and dpfl at 0.75; dpfl and the oracle lead one seed.

    The target of seed 0 is that of fedavg, 0.5 + 0.9 * 0.2 = 0.68 (bytes) and 0.9 * 0.7 (time).
    """
    ends = {"local": (0.5, 0.5), "fedavg": (0.7, 0.9), "dpfl": (0.9, 0.6), "oracle": (1.0, 1.0)}
    runs: dict[str, list[Run]] = {}
    for method, of in ends.items():
        for seed, end in enumerate(of):
            (folder := tmp_path / str(seed)).mkdir(exist_ok=True)
            run = sending(folder, method, (0.1, 0), (end - 0.05, 100), (end, 200), seconds=9.0)
            config = {"method": method, "peers": 2, "seed": seed}
            write_config(run.directory, config)
            runs.setdefault(method, []).append(Run.read(run.directory))
    table = Table.of_runs(runs)
    sent = {row.method: values(row, "bytes_to_best") for row in table}
    assert sent["fedavg"] == (200.0, 200.0)
    assert sent["dpfl"] == (100.0, math.inf)
    time = {row.method: values(row, "time_to_best") for row in table}
    assert time["fedavg"] == time["dpfl"][:1] * 2 == (9.0, 9.0)
    assert time["local"] == (math.inf, math.inf)
    texts = [row.text(COLUMN["bytes_to_best"]) for row in table]
    assert texts == ["never", "200 B", "1 of 2 seeds", "100 B"]


def test_a_mean_is_summed_in_the_order_of_the_peers(tmp_path: Path) -> None:
    """Sorted, these six sum to another last digit: kept and new results would differ by it."""
    ends = [0.6, 0.3, 0.1, 0.7, 0.2, 0.9]
    assert sum(ends) != sum(sorted(ends))
    (row,) = Table.of_runs({"local": [made(tmp_path, "local", 0, ends)]})
    kept = league.Kept("local", ends)
    assert values(row, "accuracy") == (float(np.mean(ends)),)
    assert (
        MEASURES["accuracy"].of(kept, SameTrial()) == float(np.mean(ends)) != np.mean(sorted(ends))
    )


def test_worst_peer_replaces_the_worst_tenth_of_few_peers(tmp_path: Path) -> None:
    table = Table.of_runs({"local": [made(tmp_path, "local", 0, [0.6, None, 0.2])]})
    assert values(table.rows[0], "worst") == (0.2,)
    shown = [column.key for column in table.shown()]
    assert "worst" in shown
    assert "worst_decile" not in shown
    many = [0.1, 0.3, *[0.9] * 18]
    table = Table.of_runs({"local": [made(tmp_path, "local", 1, many)]})
    assert values(table.rows[0], "worst") == (0.1,)
    assert values(table.rows[0], "worst_decile") == pytest.approx((0.2,))


def test_gaps_between_clusters_follow_the_definitions(tmp_path: Path) -> None:
    """Against P(prediction = y | cluster) and its conditionals, counted example by example."""
    rng = np.random.default_rng(0)
    cluster_n, true_n, said_n = (rng.integers(0, high, 400) for high in (3, 4, 4))

    def share(said: int, *given: np.ndarray) -> float:
        return float((said_n[np.logical_and.reduce(given)] == said).mean())

    def widest(values: list[float]) -> float:
        return max(abs(a - b) for a in values for b in values)

    clusters = [cluster_n == c for c in range(3)]
    parity = np.mean([widest([share(y, in_c) for in_c in clusters]) for y in range(4)])
    odds = np.mean(
        [
            widest([share(y, in_c, true_n == y) for in_c in clusters])
            + widest([share(y, in_c, true_n != y) for in_c in clusters])
            for y in range(4)
        ]
    )
    counts_ckk = np.zeros((3, 4, 4), dtype=np.int64)
    np.add.at(counts_ckk, (cluster_n, true_n, said_n), 1)
    assert parity_gap(counts_ckk) == pytest.approx(parity)
    assert odds_gap(counts_ckk) == pytest.approx(odds)
    assert (parity_gap(counts_ckk[[0, 0]]), odds_gap(counts_ckk[[0, 0]])) == (0, 0)
    apart = np.array([[[5, 0], [0, 0]], [[0, 0], [0, 5]]])
    assert (parity_gap(apart), odds_gap(apart)) == (1, None), "no class is in both clusters"
    run = made(tmp_path, "cobo", 0, [0.5, 0.7, 0.7])
    write_split(run.directory, [0, 1, 1], samples=[1, 1, 1])
    (row,) = Table.of_runs({"cobo": [Run.read(run.directory)]})
    assert values(row, "parity_gap") == (None,), "no model cards"
    (run.directory / "models").mkdir()
    for peer, counts in enumerate(([[3, 1], [0, 4]], [[1, 1], [1, 1]], [[3, 1], [1, 3]])):
        card = run.directory / "models" / f"peer-{peer:04d}.json"
        card.write_text(json.dumps({"curves": {"confusion": counts}}), encoding="utf-8")
    (row,) = Table.of_runs({"cobo": [Run.read(run.directory)]})
    assert values(row, "parity_gap") == pytest.approx((abs(3 / 8 - 6 / 12),))
    # rates of the clusters: true positives 3/4, 1 and 4/6, 4/6; false positives 0, 1/4 and 2/6, 2/6
    expected = ((3 / 4 - 4 / 6 + 2 / 6) + (1 - 4 / 6 + 2 / 6 - 1 / 4)) / 2
    assert values(row, "odds_gap") == pytest.approx((expected,))


CHOICE = Choice({"learning-rate": 0.1, "cobo.sampling": 'a "b", c'}, {"learning-rate": "high"}, 15)


def test_csv_gives_every_number_back(tmp_path: Path) -> None:
    runs = {
        "local": [made(tmp_path, "local", 0, [1 / 3, 0.1 + 0.2])],
        "cobo": [made(tmp_path, "cobo", 0, [2 / 7, 0.9])],
    }
    table = Table.of_runs(runs, {"cobo": CHOICE})
    written = comparison.results(Comparison(table)).files()["comparison.csv"]
    lines = csv_rows(written)
    assert [line["method"] for line in lines] == ["local", "cobo"]
    for row, line in zip(table, lines, strict=True):
        for column in COLUMNS:
            (value,) = values(row, column.key)
            assert (float(line[column.key]) if line[column.key] else None) == value
    assert lines[1]["settings"] == '{"learning-rate": 0.1, "cobo.sampling": "a \\"b\\", c"}'
    assert lines[1]["edges"] == '{"learning-rate": "high"}'
    assert (lines[0]["settings"], lines[0]["edges"]) == ("{}", "{}")
    assert lines[1]["run"] == "cobo-0"


def test_bytes_received_are_shown_if_they_are_not_those_sent(tmp_path: Path) -> None:
    run = made(tmp_path, "cobo", 0, [0.5, 0.7])
    records = [
        {"round": 0, "peer": peer, "test_loss": 1.0, "bytes_sent": 50.0, "bytes_received": received}
        for peer, received in enumerate((20.0, 80.0))
    ]
    for row, is_shown in ((records, False), (records[:1], True)):
        write_metrics(run.directory, row)
        table = Table.of_runs({"cobo": [Run.read(run.directory)]})
        assert (COLUMN["bytes_received"] in table.shown()) is is_shown
        assert ("received: on average as many bytes as sent" in verdict.cost_notes(table)) is (
            not is_shown
        )
    assert values(table.rows[0], "bytes_received") == (20.0,)


def test_the_weighted_mean_is_tested_peer_by_peer_as_the_plain_one(tmp_path: Path) -> None:
    """The test uses accuracies scaled by n_i / mean(n): at equal sizes both columns agree."""
    run = made(tmp_path, "local", 0, [0.2, 0.8, None])
    weighted = COLUMN["weighted"].of_peers
    assert weighted is not None
    values = weighted(run, SameTrial())
    assert values is not None
    np.testing.assert_allclose(values, [0.2 * 10 / 15, 0.8 * 20 / 15, np.nan])
    assert np.nanmean(values) == pytest.approx((0.2 * 10 + 0.8 * 20) / 30)
    table = Table.of_runs({"local": [run]})
    assert COLUMN["weighted"] in table.shown()
    write_split(run.directory, [None] * 3, samples=[7, 7, 7])
    table = Table.of_runs({"local": [Run.read(run.directory)]})
    assert COLUMN["weighted"] not in table.shown(), "it would repeat the accuracy"


def test_latex_is_escaped(tmp_path: Path) -> None:
    means = {"a_&#$%": (0.50, 0.51, 0.52), r"{b}\c^~": (0.90, 0.91, 0.92)}
    table = Table.of_runs({m: seeds_of(tmp_path, m, of) for m, of in means.items()})
    text = comparison.as_latex(Comparison(table, "digits/two_&_three"))
    assert r"a\_\&\#\$\%" in text
    assert r"\{b\}\textbackslash{}c\textasciicircum{}\textasciitilde{}" in text
    assert r"accuracy \%" in text
    assert r"\textbf{91.00 $\pm$ 1.00}" in text
    assert r"\label{tab:digits-two-three}" in text
    (layout,) = re.findall(r"\\begin{tabular}{(\w+)}", text)
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert [line.count(" & ") for line in body] == [len(layout) - 1] * 3


def test_a_caption_explains_what_the_table_has_and_nothing_else(tmp_path: Path) -> None:
    def caption_of(compared: Comparison) -> str:
        (caption,) = re.findall(r"\\caption{(.*)}\n", comparison.as_latex(compared))
        return str(caption)

    close = {"a": (0.50, 0.52, 0.51), "b": (0.51, 0.50, 0.52)}
    table = Table.of_runs({m: seeds_of(tmp_path, m, of) for m, of in close.items()})
    rounds = "1,500 rounds"
    assert caption_of(Comparison(table)) == (
        f"a, b on digits, 4 peers, {rounds}. "
        r"Mean $\pm$ standard deviation over seeds 0, 1, 2."
    )
    assert "textbf" not in comparison.as_latex(Comparison(table))
    clear = {"oracle": (0.50, 0.52, 0.51), "b": (0.71, 0.70, 0.72), "cobo": (0.1, 0.12, 0.11)}
    runs = {m: seeds_of(tmp_path / "clear", m, of) for m, of in clear.items()}
    compared = Comparison(Table.of_runs(runs, {"cobo": CHOICE}))
    explained = [each.partition(":")[0] for each in caption_of(compared).split(". ")]
    assert explained[2:] == ["Bold", "*", r"$^\dagger$"]
    text = comparison.as_latex(compared)
    assert r"\begin{tabular}{lrrrl}" in text
    assert r"learning-rate 0.1$^\dagger$, sampling a" in text
    one = Comparison(Table.of_runs({"a": [made(tmp_path / "one", "a", 4, [0.5, 0.7])]}))
    assert caption_of(one).endswith("Seed 4.")
    sampled = made(
        tmp_path / "sampled", "a", 4, [0.5], schedule={"kind": "sample", "fraction": 0.5}
    )
    with_sampling = caption_of(Comparison(Table.of_runs({"a": [sampled]})))
    assert r"In each round 50\% of the peers take part. " in with_sampling
    comments = [line for line in text.splitlines() if line.startswith("% ")]
    assert comments[0] == r"% \usepackage{booktabs}"
    assert comments[1] == f"% accuracy %: {COLUMN['accuracy'].about}"


def test_the_table_fits_a_terminal(tmp_path: Path) -> None:
    local = [made(tmp_path, "local", s, [0.5, 0.7]) for s in (0, 1)]
    table = Table.of_runs({"local": local})
    text = printed(comparison.in_terminal(table, "[title]"))
    assert "60.00 ± 0.00" in text
    assert max(map(len, text.splitlines())) <= 80


def test_names_are_never_cut(tmp_path: Path) -> None:
    """A comparison with newcomers and a method that diverged has more columns than 80 hold."""
    names = ("local", "federated-clustering", "fedavg-own-intercept", "ditto")
    runs: dict[str, list[Run]] = {}
    for method in names:
        for seed in (0, 1):
            lost = math.inf if method == "ditto" else 1.0
            run = made(tmp_path, method, seed, [0.5, 0.7], [1.0, lost])
            keys = {"method": method, "peers": 2, "seed": seed, "late-peers": 0.5}
            write_config(run.directory, keys)
            late = {"peers": [1], "fine_tuned_test_accuracy": [0.6]}
            (run.directory / "newcomers.json").write_text(json.dumps(late))
            runs.setdefault(method, []).append(Run.read(run.directory))
    table = Table.of_runs(runs)
    text = printed(comparison.in_terminal(table, "title"))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    shown = [column.title for column in table.shown() if column.key in comparison._IN_TERMINAL]
    for word in (*names, *(title for title in shown if title != "test loss")):
        assert word in text


def test_plugins_have_display_names_unless_two_would_be_the_same(tmp_path: Path) -> None:
    runs = seeds_of(tmp_path, "fedavg", [0.5])
    names = "package.one:MINE", "package.two:OTHER"
    table = Table.of_runs(dict.fromkeys(names, runs))
    assert [row.label for row in table] == ["MINE", "OTHER"]
    assert [line.split(",")[0] for line in comparison.as_csv(table).splitlines()[1:]] == [*names]
    same = Table.of_runs({"one:MINE": runs, "two:MINE": runs})
    assert [row.label for row in same] == ["one:MINE", "two:MINE"]
