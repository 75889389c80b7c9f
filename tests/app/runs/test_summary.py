"""Reading a run and summing it up, against numbers worked out by hand."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from coterie.app.report.words import outcome, protection
from coterie.app.runs import graph
from coterie.app.runs.files import ResultsError
from coterie.app.runs.rundir import Run
from coterie.app.runs.summary import accuracy_statistics, finish, summarise
from tests.app.fake_run import (
    Story,
    write_config,
    write_metrics,
    write_progress,
    write_run,
    write_split,
)


def record(round_: int, peer: int, **fields: object) -> dict[str, object]:
    blank = {"test_loss": None, "test_accuracy": None, "validation_loss": None}
    return {"round": round_, "peer": peer, **blank, **fields}


def two_peers(directory: Path) -> Path:
    """Two peers, rounds 0, 10, 20; peer 1 misses the last; peer 0 overfits after round 10."""
    write_config(directory, {"peers": 2, "seed": 7})
    write_metrics(
        directory,
        [
            record(0, 0, test_accuracy=0.1, test_loss=2.0, validation_loss=2.0, bytes_sent=0),
            record(0, 1, test_accuracy=0.2, test_loss=2.0, validation_loss=2.0, bytes_sent=0),
            record(10, 0, test_accuracy=0.8, test_loss=0.5, validation_loss=0.6, bytes_sent=100),
            record(10, 1, test_accuracy=0.5, test_loss=1.0, validation_loss=1.0, bytes_sent=300),
            record(20, 0, test_accuracy=0.7, test_loss=0.9, validation_loss=0.8, bytes_sent=200),
        ],
    )
    write_split(directory, [0, 0], samples=[30, 10])
    write_progress(directory, round=20, rounds=20, messages=84, seconds=12.5)
    return directory


def test_metrics_become_arrays_with_nan_for_what_is_missing(tmp_path: Path) -> None:
    run = Run.read(two_peers(tmp_path))
    np.testing.assert_array_equal(run.rounds, [0, 10, 20])
    np.testing.assert_array_equal(
        run.metric("test_accuracy"), [[0.1, 0.2], [0.8, 0.5], [0.7, np.nan]]
    )
    np.testing.assert_array_equal(run.reported, [[True, True], [True, True], [True, False]])
    assert np.isnan(run.metric("no_such_field")).all()
    np.testing.assert_array_equal(run.last_row(), [2, 1])
    assert run.weights.shape == (0, 2, 2)


def test_summary_by_hand(tmp_path: Path) -> None:
    summary = summarise(Run.read(two_peers(tmp_path)))
    assert summary["method"] == "cobo"
    assert (summary["seed"], summary["peers"], summary["rounds"]) == (7, 2, 20)
    assert summary["mean_test_accuracy"] == pytest.approx((0.7 + 0.5) / 2)
    assert summary["weighted_mean_test_accuracy"] == pytest.approx((30 * 0.7 + 10 * 0.5) / 40)
    assert summary["std_test_accuracy"] == pytest.approx(0.1)
    assert summary["worst_decile_test_accuracy"] == 0.5
    # best on validation: least loss, round 10 for both
    assert summary["best_mean_test_accuracy"] == pytest.approx((0.8 + 0.5) / 2)
    assert summary["best_weighted_mean_test_accuracy"] == pytest.approx((30 * 0.8 + 10 * 0.5) / 40)
    assert summary["best_std_test_accuracy"] == pytest.approx(0.15)
    assert summary["best_worst_decile_test_accuracy"] == 0.5
    assert summary["mean_test_loss"] == pytest.approx((0.9 + 1.0) / 2)
    assert summary["total_bytes"] == 500
    assert (summary["messages"], summary["wall_seconds"]) == (84, 12.5)
    assert summary["recovery"] is None, "no weights were recorded"
    assert set(summary["versions"]) == {"python", "torch", "flwr", "numpy"}


def test_epsilon_is_that_of_the_peer_that_spent_most(tmp_path: Path) -> None:
    write_config(tmp_path, {"peers": 2})
    rows = [record(1, 0, epsilon=1.5), record(1, 1, epsilon=2.5)]
    write_metrics(tmp_path, rows)
    assert not {"epsilon", "delta"} & summarise(Run.read(tmp_path)).keys()
    path = tmp_path / "config.toml"
    path.write_text(path.read_text() + '[privacy]\nkind = "examples"\n[defence]\nrule = "krum"\n')
    run = Run.read(tmp_path)
    summary = summarise(run)
    assert (summary["epsilon"], summary["delta"]) == (2.5, 1e-5)
    assert protection(run, summary) == ["defence krum", "ε ≤ 2.5 at δ = 1e-05"]
    write_metrics(tmp_path, [*rows[:1], record(1, 1, epsilon=None)])
    summary = summarise(Run.read(tmp_path))
    assert summary["epsilon"] is None, "infinite, or not reported"
    assert protection(run, summary)[1] == "ε unknown"


def test_a_peer_whose_budget_was_used_up_before_is_counted(tmp_path: Path) -> None:
    """It computes no gradient. Without a budget, a method may need none."""
    write_config(tmp_path, {"peers": 3})
    rows = [record(1, peer, epsilon=3.9, gradient_evaluations=8 * peer) for peer in range(3)]
    write_metrics(tmp_path, rows)
    path = tmp_path / "config.toml"
    without = path.read_text() + '[privacy]\nkind = "examples"\n'
    for budget, untrained in (("", None), ("budget = 4.0\n", 1)):
        path.write_text(without + budget)
        summary = summarise(Run.read(tmp_path))
        assert summary.get("untrained_peers") == untrained
        text = outcome(Run.read(tmp_path), summary)
        assert ("1 of 3 peers computed no gradient" in text) == bool(untrained)


def test_the_best_round_has_the_highest_accuracy_then_the_lowest_loss_then_comes_first(
    tmp_path: Path,
) -> None:
    write_config(tmp_path, {"peers": 1})
    rows = [(0.1, 3.0, 0.2), (0.6, 2.0, 0.9), (0.7, 1.0, 0.9), (0.75, 1.0, 0.9), (0.8, 0.5, 0.8)]
    write_metrics(
        tmp_path,
        [
            record(r, 0, test_accuracy=test, validation_loss=loss, validation_accuracy=accuracy)
            for r, (test, loss, accuracy) in enumerate(rows)
        ],
    )
    summary = summarise(Run.read(tmp_path))
    assert summary["best_mean_test_accuracy"] == 0.7
    assert summary["mean_test_accuracy"] == 0.8
    assert summary["weighted_mean_test_accuracy"] is None, "sample counts are unknown"


def test_without_validation_data_there_is_no_best_round(tmp_path: Path) -> None:
    summary = summarise(Run.read(write_run(tmp_path, Story(validation=False))))
    assert summary["best_mean_test_accuracy"] is None
    assert summary["mean_test_accuracy"] is not None


def test_a_problem_without_accuracy(tmp_path: Path) -> None:
    summary = summarise(Run.read(write_run(tmp_path, Story(accuracy=False))))
    for name in ("mean", "weighted_mean", "std", "worst_decile"):
        assert summary[f"{name}_test_accuracy"] is None
        assert summary[f"best_{name}_test_accuracy"] is None
    assert summary["mean_test_loss"] > 0


@pytest.mark.parametrize(("peers", "counted"), [(1, 1), (9, 1), (10, 1), (25, 2), (80, 8)])
def test_worst_decile_is_a_tenth_of_the_peers_and_at_least_one(peers: int, counted: int) -> None:
    accuracy = np.arange(peers)[::-1] / 100
    worst = accuracy_statistics(accuracy, None)["worst_decile_test_accuracy"]
    assert worst == pytest.approx(np.arange(counted).mean() / 100)


def test_peers_without_test_data_are_left_out() -> None:
    result = accuracy_statistics(np.array([0.5, np.nan, 1.0]), np.array([1.0, 50.0, 3.0]))
    assert result["mean_test_accuracy"] == 0.75
    assert result["weighted_mean_test_accuracy"] == pytest.approx(3.5 / 4)


def test_split_statistics(tmp_path: Path) -> None:
    run = Run.read(write_run(tmp_path, Story(peers=3)))
    sizes, labels = run.sizes("train"), run.labels("train")
    assert sizes is not None
    assert labels is not None
    assert labels.shape == (3, 10)
    np.testing.assert_array_equal(labels.sum(axis=1), sizes)
    np.testing.assert_array_equal(run.samples, sizes)
    assert run.labels("test") is None


def test_a_diverged_peer_is_counted_and_never_averaged_away(tmp_path: Path) -> None:
    write_config(tmp_path, {"peers": 2})
    (tmp_path / "metrics.jsonl").write_text(
        '{"round": 0, "peer": 0, "test_loss": 2.0}\n{"round": 0, "peer": 1, "test_loss": 2.0}\n'
        '{"round": 1, "peer": 0, "test_loss": 1.0}\n{"round": 1, "peer": 1, "test_loss": NaN}\n'
    )
    summary = finish(tmp_path)
    assert summary["diverged_peers"] == 1
    assert summary["mean_test_loss"] is None


def test_recovery_keeps_the_best_of_the_trajectory(tmp_path: Path) -> None:
    two_peers(tmp_path)
    weights = np.array([[[1, 0.2], [0.2, 1]], [[1, 0.9], [0.9, 1]], [[1, 0.1], [0.1, 1]]])
    np.savez(tmp_path / "collaboration.npz", rounds=[0, 10, 20], weights=weights)
    recovery = summarise(Run.read(tmp_path))["recovery"]
    assert recovery["recall"] == 0, "the twins' weights have decayed at the end"
    assert recovery["rounds_to_recovery"] == 10
    assert recovery["best"]["round"] == 10
    assert recovery["best"]["recall"] == recovery["best"]["precision"] == 1


def test_recovery_of_a_realistic_run(tmp_path: Path) -> None:
    recovery = summarise(Run.read(write_run(tmp_path)))["recovery"]
    assert recovery["precision"] == recovery["recall"] == recovery["adjusted_rand_index"] == 1
    assert 0 < recovery["rounds_to_recovery"] < 1500
    assert recovery["largest_weight_on_own_cluster"] == 1


def test_recovery_needs_known_clusters(tmp_path: Path) -> None:
    assert summarise(Run.read(write_run(tmp_path, Story(known=False))))["recovery"] is None


def test_the_graph_over_rounds_by_hand(tmp_path: Path) -> None:
    """Peers 0, 1 honest, 2 flipped; at the end 0 weights 1 and 2, 1 weights 0, 2 no one."""
    write_config(tmp_path, {"peers": 3})
    write_metrics(tmp_path, [record(t, k) for t in (0, 5) for k in range(3)])
    write_split(tmp_path, [0, 0, 1], samples=[1, 1, 1])
    end = [[1, 0.9, 0.8], [0.7, 1, 0.1], [0, 0, 1]]
    np.savez(tmp_path / "collaboration.npz", rounds=[0, 5], weights=[np.eye(3), np.array(end)])
    finish(tmp_path)
    rows = list(csv.DictReader((tmp_path / "graph.csv").read_text().splitlines()))
    assert [tuple(row.values()) for row in rows] == [
        ("5", "peer 0", "peer 1", "0.9"),
        ("5", "peer 0", "peer 2", "0.8"),
        ("5", "peer 1", "peer 0", "0.7"),
        ("5", "peer 1", "peer 2", "0.1"),
    ]
    start, last = csv.DictReader((tmp_path / "graph-measures.csv").read_text().splitlines())
    assert (start["round"], start["edges"], start["symmetry"]) == ("0", "0", "")
    assert last["edges"] == "3"
    assert float(last["collaborators"]) == 1.0
    assert float(last["sparsity"]) == 0.5
    assert float(last["symmetry"]) == pytest.approx(2 / 3)
    assert float(last["precision"]) == pytest.approx(2 / 3)


def test_edges_of_many_rounds_are_thinned_but_for_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.read(
        write_run(tmp_path, Story(peers=3, clusters=1, rounds=9, step=1, weights="shares"))
    )
    monkeypatch.setattr(graph, "_EDGES", (graph.edges_csv(run).count("\n") - 1) / 3)
    rounds = [int(line.partition(",")[0]) for line in graph.edges_csv(run).splitlines()[1:]]
    assert sorted(set(rounds)) == [0, 3, 6, 9]


@pytest.mark.parametrize("name", ["peer 0", "Basel, west", 'ward "B"', "'", ""])
def test_names_are_cells_of_a_csv_file(name: str) -> None:
    assert next(csv.reader([f"{graph._cell(name)},1"])) == [name, "1"]


def test_finish_writes_the_summary_whole(tmp_path: Path) -> None:
    write_run(tmp_path)
    summary = finish(tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text()) == summary
    assert not list(tmp_path.glob("*.part"))


def test_an_unfinished_run_can_be_read(tmp_path: Path) -> None:
    write_config(tmp_path, {"peers": 3})
    summary = finish(tmp_path)
    assert summary["mean_test_accuracy"] is None
    assert summary["total_bytes"] is None
    assert summary["rounds"] == 0
    with (tmp_path / "metrics.jsonl").open("w") as file:
        file.write('{"round": 0, "peer": 2, "test_accuracy": 0.25}\n{"round": 0, "pe')
    run = Run.read(tmp_path)
    np.testing.assert_array_equal(run.metric("test_accuracy"), [[np.nan, np.nan, 0.25]])


def test_the_last_word_counts_when_a_resumed_run_repeats_a_round(tmp_path: Path) -> None:
    write_config(tmp_path, {"peers": 1})
    write_metrics(tmp_path, [record(5, 0, test_loss=3.0), record(5, 0, test_loss=1.0)])
    assert Run.read(tmp_path).metric("test_loss").tolist() == [[1.0]]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.toml", b"method = "),
        ("config.toml", b'title = "somebody else\'s"'),
        ("config.toml", b'method = "cobo"\npeers = "8"'),
        ("metrics.jsonl", b'{"round": 0\n{"round": 0, "peer": 0}\n'),
        ("metrics.jsonl", b'{"round": 0, "peer": 8}\n{"round": 0, "peer": 0}\n'),
        ("metrics.jsonl", b'[1]\n{"round": 0, "peer": 0}\n'),
        ("metrics.jsonl", b'{"round": 0, "peer": 0, "test_loss": "low"}\n\n'),
        ("collaboration.npz", b"not a zip file"),
        ("split.json", b"{}"),
        ("split.json", b"[]"),
        ("split.json", b'[{"peer": 0, "train": 60}]'),
        ("progress.json", b"["),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    write_run(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ResultsError, match=name):
        Run.read(tmp_path)


def test_weights_of_another_run_are_refused(tmp_path: Path) -> None:
    write_run(tmp_path)
    np.savez(tmp_path / "collaboration.npz", rounds=[0], weights=np.ones((1, 3, 3)))
    with pytest.raises(ResultsError, match=r"collaboration\.npz: .*expected \(1, 8, 8\)"):
        Run.read(tmp_path)


def test_a_directory_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"config\.toml"):
        Run.read(tmp_path)
    with pytest.raises(ResultsError, match="no such run directory"):
        Run.read(tmp_path / "nowhere")
