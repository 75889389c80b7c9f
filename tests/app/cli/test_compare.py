"""The command `compare` as a whole: what it runs, tunes, refuses and writes."""

from __future__ import annotations

import argparse
import csv
import io
import json
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
from app.runners import inline
from app.runners.errors import SweepError
from app.runs.rundir import Run
from app.runs.summary import summarise

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


def read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


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
    assert "fedavg: every peer sends its model to every other peer in every round" in text
    assert (tmp_path / "comparison.tex").read_text().count(r"\\") == 4


def test_tuning_chooses_on_validation_data_that_the_preset_lacks(tmp_path: Path) -> None:
    said = Console(file=io.StringIO(), width=200)
    line = ["--tune", "--methods", "local,dpfl", "--seeds", "1", "--workers", "1"]
    flat = TINY | {"num-server-rounds": 2, "evaluate-every": 1, "dpfl.init-epochs": 1}
    command_compare.run_comparison(command(*line, "--out", str(tmp_path)), "tiny", flat, said)
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


def test_bad_trials_end_early(tmp_path: Path) -> None:
    flat = TINY | {"num-server-rounds": 9, "evaluate-every": 9, "learning-rate": 1e-6}
    said = compared("--halving --methods local --seeds 1", tmp_path, flat)
    assert "9 runs to do" in said
    assert "3 runs to do" in said
    trials = read(tmp_path / "tuning.csv")
    assert [trial["rounds"] for trial in trials] == ["1"] * 9 + ["3"] * 3
    first = sorted(trials[:9], key=lambda trial: -float(trial["quality"]))
    assert [trial["settings"] for trial in trials[9:]] == [t["settings"] for t in first[:3]]
    winner = max(trials[9:], key=lambda trial: float(trial["quality"]))
    (line,) = read(tmp_path / "comparison.csv")
    assert line["settings"] == winner["settings"]
    with pytest.raises(ConfigError, match=r"other settings \(--halving"):
        compared("--tune --methods local --seeds 1", tmp_path, flat)


def compared(words: str, out: Path, flat: dict[str, Scalar] = TINY) -> str:
    """What the command says."""
    said = Console(file=io.StringIO(), width=200)
    given = command(*words.split(), "--workers", "1", "--out", str(out))
    with suppress(SweepError):
        command_compare.run_comparison(given, "tiny", flat, said)
    assert isinstance(said.file, io.StringIO)
    return said.file.getvalue()


def test_a_comparison_survives_a_run_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(config: Config, watch: object) -> None:
        if (config.method, config.seed) == ("fedavg", 1):
            raise ZeroDivisionError("by a test")
        inline_run(config)

    inline_run = inline.run
    monkeypatch.setattr(inline, "run", run)
    words = ["--methods", "local,fedavg", "--seeds", "2", "--workers", "1"]
    given = command(*words, "--out", str(tmp_path))
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
    page = (tmp_path / "comparison.html").read_text()
    assert "1 of 4 runs failed: see below." in page
    assert re.search(r"<code>fedavg-seed1-\w+</code> ZeroDivisionError: by a test", page)


def test_a_comparison_of_other_settings_is_not_written_over(tmp_path: Path) -> None:
    flat = TINY | {"num-server-rounds": 3}
    said = compared("--methods local,fedavg --seeds 2 --columns loss,bytes", tmp_path, flat)
    assert "is the best of 2" in said or "No clear winner among" in said
    assert r"method & test loss & sent / peer \\" in (tmp_path / "comparison.tex").read_text()
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
        ("--methods cobo --columns acuracy", '--columns: unknown column "acuracy", did you mean'),
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
