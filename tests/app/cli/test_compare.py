"""The comparison's numbers by hand, its table, CSV and LaTeX, and the command as a whole."""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from app.cli import compare as command_compare
from app.config.config import VALIDATION_SHARE, Config, ConfigError
from app.config.keys import flatten
from app.config.schema import Scalar
from app.report import compare
from app.report.measures import COLUMNS
from app.runners import inline
from app.runners.errors import SweepError
from app.runs.rundir import Run
from app.runs.summary import summarise
from tests.app.fake_run import write_config, write_metrics, write_progress, write_split

COLUMN = {column.key: column for column in COLUMNS}
Final = Sequence[float | None]


Values = tuple[float | None, ...]


def near(values: Values, expected: Values) -> bool:
    """Equal but for rounding, None where None is expected."""
    return [each is None for each in values] == [each is None for each in expected] and all(
        a is None or b is None or math.isclose(a, b) for a, b in zip(values, expected, strict=True)
    )


def made(
    directory: Path, method: str, seed: int, accuracy: Final, loss: Final | None = None
) -> Run:
    """A run of peers that end like this, after a round 0 at which all had 0.1."""
    run = directory / f"{method}-{seed}"
    run.mkdir(parents=True)
    write_config(run, {"method": method, "peers": len(accuracy), "seed": seed})
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
    _, row = compare.rows({"local": local, "cobo": other}, {})
    assert near(row.values["gain"], (0.05, -0.05)), "seed 1 comes first here"
    assert row.values["improved"] == (0.5, 0.5), "an equal result is no improvement"
    assert [run and run.config["seed"] for run in row.local] == [1, 0]
    alone, _ = compare.rows({"local": local, "cobo": other}, {})
    assert alone.values["gain"] == alone.values["improved"] == (0.0, 0.0)


def test_a_seed_without_local_has_no_gain(tmp_path: Path) -> None:
    local = [made(tmp_path, "local", 0, [0.5])]
    other = [made(tmp_path, "cobo", seed, [0.6]) for seed in (0, 1)]
    _, row = compare.rows({"local": local, "cobo": other}, {})
    assert near(row.values["gain"], (0.1, None))
    (row,) = compare.rows({"cobo": other}, {})
    assert row.values["gain"] == row.values["improved"] == (None, None)
    assert COLUMN["gain"] not in compare.shown([row])


def test_mean_and_deviation_over_seeds(tmp_path: Path) -> None:
    runs = [made(tmp_path, "cobo", s, [a, a + 0.2]) for s, a in enumerate((0.1, 0.3, 0.8))]
    (row,) = compare.rows({"cobo": runs}, {})
    mean, deviation = row.summary(COLUMN["accuracy"]) or (0, 0)
    assert mean == pytest.approx(0.5)
    assert deviation == pytest.approx(math.sqrt((0.3**2 + 0.1**2 + 0.4**2) / 2)), "sample"
    assert compare.cell(row, COLUMN["accuracy"]) == "50.00 ± 36.06"
    assert compare.cell(row, COLUMN["spread"]) == "10.00", "its own deviation is not told"
    assert row.values["weighted"][0] == pytest.approx((0.1 * 10 + 0.3 * 20) / 30)
    assert row.values["bytes"] == (5.0,) * 3
    (row,) = compare.rows({"cobo": runs[:1]}, {})
    assert near(row.summary(COLUMN["accuracy"]) or (), (0.2, 0.0))
    assert compare.cell(row, COLUMN["accuracy"]) == "20.00", "one seed has no deviation"


def test_peers_without_test_data_are_left_out(tmp_path: Path) -> None:
    local = [made(tmp_path, "local", 0, [0.5, None, 0.5])]
    other = [made(tmp_path, "cobo", 0, [0.7, None, 0.4])]
    _, row = compare.rows({"local": local, "cobo": other}, {})
    assert near(row.values["accuracy"], (0.55,))
    assert near(row.values["gain"], (0.05,))
    assert row.values["improved"] == (0.5,)


def test_a_problem_without_accuracy_gains_in_loss(tmp_path: Path) -> None:
    local = [made(tmp_path, "local", 0, [None, None], loss=[3.0, 1.0])]
    other = [made(tmp_path, "cobo", 0, [None, None], loss=[1.0, 2.0])]
    lost = [made(tmp_path, "wga", 0, [None, None], loss=[1.0, math.inf])]
    _, row, diverged = compare.rows({"local": local, "cobo": other, "wga": lost}, {})
    assert row.values["loss_gain"] == (0.5,)
    assert row.values["improved"] == (0.5,)
    assert row.values["gain"] == row.values["accuracy"] == (None,)
    assert diverged.values["loss"] == diverged.values["loss_gain"] == (None,)
    assert diverged.values["improved"] == (0.5,), "a peer that diverged is not better"
    assert compare.best([row, diverged], COLUMN["loss"]) == set(), "one number is not the best"


def test_recovery_where_clusters_are_known_and_anybody_collaborates(tmp_path: Path) -> None:
    run = made(tmp_path, "cobo", 0, [0.5] * 4)
    write_split(run.directory, [0, 0, 1, 1], samples=[9] * 4)
    w = np.eye(4)
    w[0, 1] = w[1, 0] = w[2, 3] = w[3, 0] = 1.0  # three of four true edges, one false
    np.savez(run.directory / "collaboration.npz", rounds=[0, 5], weights=[np.eye(4), w])
    (row,) = compare.rows({"cobo": [Run.read(run.directory)]}, {})
    assert row.values["f1"] == (2 * 3 / (4 + 4),)
    assert row.values["own_cluster"] == (0.75,)
    np.savez(run.directory / "collaboration.npz", rounds=[0], weights=[np.eye(4)])
    (row,) = compare.rows({"cobo": [Run.read(run.directory)]}, {})
    assert row.values["f1"] == row.values["own_cluster"] == (None,)


def test_the_best_is_what_looks_best(tmp_path: Path) -> None:
    finals = {"a": 0.50001, "b": 0.50002, "c": 0.49}
    runs = {m: [made(tmp_path, m, 0, [a], loss=[a])] for m, a in finals.items()}
    rows = compare.rows(runs, {})
    assert compare.best(rows, COLUMN["accuracy"]) == {"a", "b"}
    assert compare.best(rows, COLUMN["loss"]) == {"c"}
    assert compare.best(rows, COLUMN["bytes"]) == set(), "cheap is not better by itself"


def read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


def test_csv_gives_every_number_back(tmp_path: Path) -> None:
    runs = {
        "local": [made(tmp_path, "local", 0, [1 / 3, 0.1 + 0.2])],
        "cobo": [made(tmp_path, "cobo", 0, [2 / 7, 0.9])],
    }
    rows = compare.rows(runs, {"cobo": {"learning-rate": 0.1, "cobo.sampling": 'a "b", c'}})
    compare.write(rows, tmp_path)
    lines = read(tmp_path / "comparison.csv")
    assert [line["method"] for line in lines] == ["local", "cobo"]
    for row, line in zip(rows, lines, strict=True):
        for column in COLUMNS:
            (value,) = row.values[column.key]
            assert (float(line[column.key]) if line[column.key] else None) == value
    assert lines[1]["settings"] == '{"learning-rate": 0.1, "cobo.sampling": "a \\"b\\", c"}'
    assert lines[1]["run"] == "cobo-0"


def test_latex_is_escaped(tmp_path: Path) -> None:
    runs = {m: [made(tmp_path, m, s, [0.5 + k]) for s in (0, 1)] for k, m in enumerate("ab")}
    rows = compare.rows({"a_&#$%": runs["a"], "b": runs["b"]}, {})
    text = compare.as_latex(rows)
    assert r"a\_\&\#\$\%" in text
    assert r"accuracy \%" in text
    assert r"\textbf{150.00 $\pm$ 0.00}" in text
    width = text.splitlines()[2].count(" & ")
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert [line.count(" & ") for line in body] == [width] * 3
    assert text.splitlines()[0] == rf"\begin{{tabular}}{{l{'r' * width}}}"


def test_the_table_fits_a_terminal(tmp_path: Path) -> None:
    local = [made(tmp_path, "local", s, [0.5, 0.7]) for s in (0, 1)]
    rows = compare.rows({"local": local}, {})
    console = Console(width=80, file=io.StringIO())
    console.print(compare.table(rows, "[title]"))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "60.00 ± 0.00" in text
    assert max(map(len, text.splitlines())) <= 80


TINY: dict[str, Scalar] = {
    "peers": 4,
    "num-server-rounds": 6,
    "evaluate-every": 3,
    "partition.clusters": 2,
}


def command(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command_compare.add_options(parser)
    return parser.parse_args(words)


@pytest.mark.e2e
def test_compare_from_beginning_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    said = Console(file=io.StringIO(), width=200)
    line = ["--methods", "local, fedavg,cobo", "--seeds", "2", "--workers", "1"]
    page = command_compare.run_comparison(
        command(*line, "--out", str(tmp_path)), "tiny", TINY, said
    )
    assert page == tmp_path / "comparison.html"
    lines = read(tmp_path / "comparison.csv")
    assert [(each["method"], each["seed"]) for each in lines] == [
        (method, seed) for method in ("local", "fedavg", "cobo") for seed in "01"
    ]
    for each in lines:
        run = Run.read(tmp_path / each["run"])
        assert float(each["accuracy"]) == summarise(run)["mean_test_accuracy"]
        assert (float(each["bytes"]) > 0) == (each["method"] != "local")
        assert (run.directory / "summary.json").exists()
    assert isinstance(said.file, io.StringIO)
    text = said.file.getvalue()
    assert "6 runs to do" in text
    assert "6/6  " in text


@pytest.mark.usefixtures("runs_here")
def test_tuning_chooses_on_validation_data_that_the_preset_lacks(tmp_path: Path) -> None:
    said = Console(file=io.StringIO(), width=200)
    line = ["--tune", "--methods", "local,dpfl", "--seeds", "1", "--workers", "1"]
    command_compare.run_comparison(command(*line, "--out", str(tmp_path)), "tiny", TINY, said)
    assert isinstance(said.file, io.StringIO)
    text = said.file.getvalue()
    assert text.startswith("partition.validation = 0.2 in all runs")
    assert "18 runs to do" in text
    for each in read(tmp_path / "comparison.csv"):
        final = Run.read(tmp_path / each["run"])
        settings = json.loads(each["settings"])
        told = ", ".join(f"{key} = {value}" for key, value in settings.items())
        assert f"tuned {each['method']}: {told}\n" in text
        assert flatten(final.config).items() >= {**settings, "partition.validation": 0.2}.items()
        trials = [t for t in read(tmp_path / "tuning.csv") if t["method"] == each["method"]]
        assert len(trials) == 9
        reached = np.nanmean(final.at("validation_accuracy", final.last_row()))
        assert max(float(trial["quality"]) for trial in trials) == reached
        (best,) = [trial for trial in trials if trial["chosen"] == "1"]
        assert best["settings"] == each["settings"]


def compared(words: str, out: Path, flat: dict[str, Scalar] = TINY) -> str:
    """What the command says."""
    said = Console(file=io.StringIO(), width=200)
    given = command(*words.split(), "--workers", "1", "--out", str(out))
    with suppress(SweepError):
        command_compare.run_comparison(given, "tiny", flat, said)
    assert isinstance(said.file, io.StringIO)
    return said.file.getvalue()


@pytest.mark.usefixtures("runs_here")
def test_a_comparison_survives_a_run_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(config: Config) -> None:
        if (config.method, config.seed) == ("fedavg", 1):
            raise ZeroDivisionError("by a test")
        inline_run(config)

    inline_run = inline.run
    monkeypatch.setattr(inline, "run", run)
    given = command("--methods", "local,fedavg", "--seeds", "2", "--out", str(tmp_path))
    said = Console(file=io.StringIO(), width=200)
    with pytest.raises(SweepError, match=r"^1 run failed"):
        command_compare.run_comparison(given, "tiny", TINY, said)
    assert isinstance(said.file, io.StringIO)
    (line,) = [x for x in said.file.getvalue().splitlines() if x.startswith("failed: fedavg-seed1")]
    log = re.search(r"ZeroDivisionError: by a test \(log: (.*)\)", line)
    assert log is not None
    assert "Traceback" in Path(log[1]).read_text()
    done = [(each["method"], each["seed"]) for each in read(tmp_path / "comparison.csv")]
    assert done == [("local", "0"), ("local", "1"), ("fedavg", "0")]
    assert (tmp_path / "comparison.html").exists()


@pytest.mark.usefixtures("runs_here")
def test_a_comparison_of_other_settings_is_not_written_over(tmp_path: Path) -> None:
    flat = TINY | {"num-server-rounds": 3}
    compared("--methods local,fedavg --seeds 2", tmp_path, flat)
    before = (tmp_path / "comparison.csv").read_bytes()
    for words, other, what in (
        ("--methods local --seeds 2", {}, "fedavg"),
        ("--methods local,fedavg --seeds 1", {}, "seed 1"),
        ("--methods local,fedavg --seeds 2", {"batch-size": 8}, "batch-size"),
        ("--methods local,fedavg,dpfl --seeds 2", {}, "partition.validation"),
    ):
        with pytest.raises(ConfigError, match=f"other settings .*{what}.*choose another --out"):
            compared(words, tmp_path, flat | other)
    assert (tmp_path / "comparison.csv").read_bytes() == before
    assert "failed" not in compared("--methods local,fedavg,cobo --seeds 2", tmp_path, flat)
    assert len(read(tmp_path / "comparison.csv")) == 6, "nothing of the first is lost"


@pytest.mark.usefixtures("runs_here")
def test_every_method_of_a_comparison_has_the_same_validation_data(tmp_path: Path) -> None:
    flat = TINY | {"num-server-rounds": 3, "dpfl.init-epochs": 1}
    said = compared("--methods local,dpfl --seeds 1", tmp_path / "auto", flat)
    assert said.startswith("partition.validation = 0.2 in all runs: dpfl judges models by valid")
    for each in read(tmp_path / "auto" / "comparison.csv"):
        sizes = Run.read(tmp_path / "auto" / each["run"]).sizes("validation")
        assert sizes is not None
        assert sizes.tolist() == [12] * 4
    explicit = compared(
        "--methods local,dpfl --seeds 1", tmp_path / "given", flat | {"partition.validation": 0.5}
    )
    assert "in all runs" not in explicit
    off = flat | {"partition.validation": 0.0}
    with pytest.raises(ConfigError, match=r"set partition\.validation = 0\.2"):
        compared("--methods local,dpfl --seeds 1", tmp_path / "off", off)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--methods cobo,lokal", 'unknown method "lokal", did you mean "local"?'),
        ("--methods cobo --seeds 0", "--seeds must be at least 1"),
        ("--methods cobo --workers 0", "--workers must be at least 1"),
    ],
)
def test_a_wrong_request_starts_nothing(tmp_path: Path, words: str, said: str) -> None:
    given = command(*words.split(), "--out", str(tmp_path / "out"))
    with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
        command_compare.run_comparison(given, "p", TINY, Console(file=io.StringIO()))
    assert not (tmp_path / "out").exists()


def test_there_is_nothing_to_tune_by_without_validation_data(tmp_path: Path) -> None:
    given = command("--tune", "--methods", "local", "--out", str(tmp_path / "out"))
    flat = TINY | {"dataset": "least-squares"}
    with pytest.raises(ConfigError, match="which least-squares has not"):
        command_compare.run_comparison(given, "p", flat, Console(file=io.StringIO()))
    assert not (tmp_path / "out").exists()


def test_all_leaves_out_what_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Config] = []

    def only_listed(configs: Sequence[Config], workers: int, console: Console) -> dict[str, str]:
        seen.extend(configs)
        return {config.run_dir: "enough" for config in configs}

    monkeypatch.setattr("app.runners.sweep.run_all", only_listed)
    said = Console(file=io.StringIO(), width=200)
    flat: dict[str, Scalar] = {**TINY, "partition.kind": "iid"}  # no true clusters: no oracle
    given = command("--methods", "all", "--seeds", "1", "--out", str(tmp_path))
    with pytest.raises(SweepError):
        command_compare.run_comparison(given, "p", flat, said)
    assert isinstance(said.file, io.StringIO)
    refused = [line for line in said.file.getvalue().splitlines() if line.startswith("left out: ")]
    assert any("oracle" in line for line in refused)
    methods = {config.method for config in seen}
    assert {"local", "fedavg", "cobo", "dpfl"} <= methods
    assert {config.partition.validation for config in seen} == {VALIDATION_SHARE}
    assert "oracle" not in methods
    given = command("--methods", "oracle", "--out", str(tmp_path))
    with pytest.raises(ConfigError, match="oracle"):
        command_compare.run_comparison(given, "p", flat, said)
