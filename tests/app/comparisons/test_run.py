"""Comparisons as a whole: what they run, tune, refuse and write."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from coterie.app.cli import compare as command
from coterie.app.cli import main
from coterie.app.comparisons.run import ComparisonRequest, compare
from coterie.app.config.config import VALIDATION_SHARE, Config, ConfigError
from coterie.app.config.keys import flatten
from coterie.app.config.schema import Scalar
from coterie.app.experiments.choice import Choice
from coterie.app.runners import inline
from coterie.app.runs.rundir import Run
from coterie.app.runs.summary import summarise
from coterie.clients.training import Training
from coterie.errors import PartError, RunError, SweepError
from tests.output import Terminal, csv_rows

TINY: dict[str, Scalar] = {
    "peers": 4,
    "num-server-rounds": 6,
    "evaluate-every": 3,
    "partition.clusters": 2,
}


def request(directory: Path, methods: str, **more: Any) -> ComparisonRequest:
    """A comparison in this process."""
    flat = more.pop("flat", TINY)
    return ComparisonRequest(
        "tiny", flat, methods.split(","), directory, **{"seeds": 1, "workers": 1, **more}
    )


def compared(directory: Path, methods: str, **more: Any) -> str:
    """Return the output of a comparison, whose runs may fail."""
    console = Terminal()
    with suppress(SweepError):
        compare(request(directory, methods, **more), console)
    return console.text


def read(path: Path) -> list[dict[str, str]]:
    return csv_rows(path)


@pytest.mark.e2e
def test_compare_from_beginning_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    text = compared(tmp_path, "local, fedavg,cobo", seeds=2)
    assert f"comparison: {tmp_path / 'comparison.html'}" in text
    lines = read(tmp_path / "comparison.csv")
    assert [(each["method"], each["seed"]) for each in lines] == [
        (method, seed) for method in ("local", "fedavg", "cobo") for seed in "01"
    ]
    for each in lines:
        run = Run.read(tmp_path / each["run"])
        assert float(each["accuracy"]) == summarise(run)["mean_test_accuracy"]
        assert (float(each["bytes"]) > 0) == (each["method"] != "local")
        assert (run.directory / "summary.json").exists()
    assert "6 runs to do" in text
    assert "6/6  " in text
    assert "fedavg: every peer sends its model to every other peer in every round" in text
    assert (tmp_path / "comparison.tex").read_text().count(r"\\") == 4
    rows = json.loads((tmp_path / "comparison.json").read_text())["rows"]
    assert [row["method"] for row in rows] == ["local", "fedavg", "cobo"]
    for row in rows:
        of_csv = [each for each in lines if each["method"] == row["method"]]
        assert [trial["run"] for trial in row["trials"]] == [each["run"] for each in of_csv]
        accuracies = [float(each["accuracy"]) for each in of_csv]
        assert row["mean"]["accuracy"] == pytest.approx(sum(accuracies) / 2)
        assert [trial["accuracy"] for trial in row["trials"]] == accuracies


@pytest.mark.slow
def test_a_comparison_is_data_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON alone on standard output; the table is on standard error."""
    items = [
        "peers=2",
        "partition.clusters=2",
        "num-server-rounds=1",
        "partition.samples-per-peer=8",
    ]
    place = ["--seeds", "1", "--workers", "1", "--out", str(tmp_path / "c")]
    assert main.main(["compare", "--methods", "local,fedavg", *items, *place, "--json"]) == 0
    printed = capsys.readouterr()
    content = json.loads(printed.out)
    assert content.keys() == {"title", "outcome", "rows", "failed"}
    assert content["outcome"]
    assert f"comparison: {tmp_path}" in printed.err


@pytest.mark.long
def test_tuning_chooses_on_validation_data_that_the_preset_lacks(tmp_path: Path) -> None:
    flat = TINY | {"num-server-rounds": 2, "evaluate-every": 1, "dpfl.init-epochs": 1}
    text = compared(tmp_path, "local,dpfl", tuning="whole", flat=flat)
    assert text.startswith(
        "partition.validation = 0.2 in all runs: --tune needs validation data\n30 runs to do"
    )
    for each in read(tmp_path / "comparison.csv"):
        final = Run.read(tmp_path / each["run"])
        settings, edges = json.loads(each["settings"]), json.loads(each["edges"])
        assert flatten(final.config).items() >= {**settings, "partition.validation": 0.2}.items()
        trials = [t for t in read(tmp_path / "tuning.csv") if t["method"] == each["method"]]
        assert len(trials) >= 15
        choice = Choice(settings, edges, len(trials))
        assert f"tuned {each['method']}: {choice.described()}; {len(trials)} trials\n" in text
        reached = np.nanmean(final.at("validation_accuracy", final.last_row()))
        assert max(float(trial["quality"]) for trial in trials) == reached
        (best,) = [trial for trial in trials if trial["chosen"] == "1"]
        assert (best["settings"], best["edges"]) == (each["settings"], each["edges"])


@pytest.mark.slow
def test_poor_trials_end_early(tmp_path: Path) -> None:
    flat = TINY | {"num-server-rounds": 9, "evaluate-every": 9, "learning-rate": 0.1}
    output = compared(tmp_path, "local", tuning="halving", flat=flat)
    assert "15 runs to do" in output
    trials = read(tmp_path / "tuning.csv")
    assert sorted({trial["rounds"] for trial in trials}) == ["1", "3", "9"]
    (line,) = read(tmp_path / "comparison.csv")
    (winner,) = [trial for trial in trials if trial["chosen"] == "1" and trial["rounds"] == "9"]
    assert line["settings"] == winner["settings"]
    with pytest.raises(ConfigError, match=r"other settings \(--halving"):
        compared(tmp_path, "local", tuning="whole", flat=flat)


def test_a_comparison_survives_a_run_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(config: Config, watch: object, **how: object) -> None:
        if (config.method, config.seed) == ("fedavg", 1):
            raise ZeroDivisionError("by a test")
        inline_run(config)

    inline_run = inline.run
    monkeypatch.setattr(inline, "run", run)
    console = Terminal()
    with pytest.raises(SweepError, match=r"^1 run failed") as failure:
        compare(request(tmp_path, "local,fedavg", seeds=2), console)
    cause = failure.value.__cause__
    assert isinstance(cause, PartError)
    assert isinstance(cause.__cause__, ZeroDivisionError)
    (line,) = [x for x in console.lines if x.startswith("failed: fedavg-seed1")]
    log = re.search(r"ZeroDivisionError: by a test \(traceback: (.*)\)", line)
    assert log is not None
    assert "Traceback" in Path(log[1]).read_text()
    done = [(each["method"], each["seed"]) for each in read(tmp_path / "comparison.csv")]
    assert done == [("local", "0"), ("local", "1"), ("fedavg", "0")]
    page = (tmp_path / "comparison.html").read_text()
    assert "1 of 4 runs failed: see below." in page
    assert re.search(r"<li>fedavg-seed1-\w+: .*ZeroDivisionError: by a test", page)


@pytest.mark.slow
def test_a_comparison_of_other_settings_is_not_written_over(tmp_path: Path) -> None:
    flat = TINY | {"num-server-rounds": 3}
    output = compared(tmp_path, "local,fedavg", seeds=2, flat=flat)
    assert "not significant with 2 seeds (no test possible)" in output
    before = (tmp_path / "comparison.csv").read_bytes()
    for methods, seeds, other, what in (
        ("local", 2, {}, "fedavg"),
        ("local,fedavg", 1, {}, "seed 1"),
        ("local,fedavg", 2, {"batch-size": 8}, "batch-size"),
        ("local,fedavg,dpfl", 2, {}, "partition.validation"),
    ):
        with pytest.raises(ConfigError, match=f"other settings .*{what}.*choose another --out"):
            compared(tmp_path, methods, seeds=seeds, flat=flat | other)
    assert (tmp_path / "comparison.csv").read_bytes() == before
    assert "failed" not in compared(tmp_path, "local,fedavg,cobo", seeds=2, flat=flat)
    assert len(read(tmp_path / "comparison.csv")) == 6, "nothing of the first is lost"


@pytest.mark.slow
def test_a_key_that_a_comparison_does_not_state_has_its_default(tmp_path: Path) -> None:
    """As a key that did not exist when the comparison was made."""
    compared(tmp_path, "local", flat=TINY)
    compared(tmp_path, "local,fedavg", flat=TINY | {"batch-size": 32, "forest.trees": 100})
    compared(tmp_path, "local,fedavg", flat=TINY)
    for key in ("batch-size", "forest.trees"):
        with pytest.raises(ConfigError, match=rf"other settings \({key} = "):
            compared(tmp_path, "local,fedavg", flat=TINY | {key: 3})
    compared(tmp_path / "b", "local", flat=TINY | {"batch-size": 3})
    with pytest.raises(ConfigError, match=r"other settings \(batch-size = 3"):
        compared(tmp_path / "b", "local", flat=TINY)


@pytest.mark.slow
def test_other_settings_take_the_next_free_name(tmp_path: Path) -> None:
    flat, sums = TINY | {"num-server-rounds": 2}, {}
    for methods, name in (
        ("local,fedavg", "of"), ("local,cobo", "of-2"), ("local,wga", "of-3"),
        ("local,cobo", "of-2"), ("local,fedavg,wga", "of"),
    ):  # fmt: skip
        more = {"flat": flat, "numbered": True, "command": "tune it"}
        console = Terminal()
        page = compare(request(tmp_path / "of", methods, **more), console)
        assert page.parent.name == name
        last = console.lines[-1]
        assert re.fullmatch("not tuned: .*; to tune each on validation data: tune it", last)
        sums[name] = [each["method"] for each in read(page.parent / "comparison.csv")]
    assert sums == {
        "of": ["local", "fedavg", "wga"], "of-2": ["local", "cobo"], "of-3": ["local", "wga"]
    }  # fmt: skip


def test_the_same_command_continues_where_the_page_could_not_be_written(tmp_path: Path) -> None:
    page = tmp_path / "comparison.html"
    page.mkdir()
    with pytest.raises(OSError, match=r"comparison\.html"):
        compared(tmp_path, "local")
    assert (tmp_path / "comparison.csv").exists()
    page.rmdir()
    compared(tmp_path, "local")
    assert page.is_file()


@pytest.mark.slow
def test_every_method_of_a_comparison_has_the_same_validation_data(tmp_path: Path) -> None:
    flat = TINY | {"num-server-rounds": 3, "dpfl.init-epochs": 1}
    output = compared(tmp_path / "auto", "local,dpfl", flat=flat)
    assert output.startswith("partition.validation = 0.2 in all runs: dpfl needs validation data\n")
    for each in read(tmp_path / "auto" / "comparison.csv"):
        sizes = Run.read(tmp_path / "auto" / each["run"]).sizes("validation")
        assert sizes is not None
        assert sizes.tolist() == [12] * 4
    explicit = compared(tmp_path / "own", "local,dpfl", flat=flat | {"partition.validation": 0.5})
    assert "in all runs" not in explicit
    off = flat | {"partition.validation": 0.0}
    with pytest.raises(ConfigError, match=r"set partition\.validation = 0\.2"):
        compared(tmp_path / "off", "local,dpfl", flat=off)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"methods": "cobo,lokal"}, 'unknown method "lokal", did you mean "local"?'),
        ({"methods": ","}, "there are no methods to compare"),
        ({"seeds": 0}, "seeds = 0: must be at least 1"),
        ({"workers": 0}, "workers = 0: must be at least 1"),
        (
            {"tuning": "whole", "flat": TINY | {"dataset": "least-squares"}},
            "--tune needs validation data, which least-squares cannot set aside",
        ),
    ],
)
def test_a_wrong_request_starts_nothing(
    tmp_path: Path, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        compared(tmp_path / "out", **{"methods": "cobo", **wrong})
    assert str(refusal.value) == message
    assert not (tmp_path / "out").exists()


def test_the_command_asks_for_what_its_options_say(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[ComparisonRequest] = []
    monkeypatch.setattr(command, "compare", lambda request, console: asked.append(request))
    line = "compare seed=3 --methods local,fedavg --seeds 2 --halving late-peers=0.5"
    assert main.main([*line.split(), "--workers", "2", "--out", "o"]) == 0
    assert main.main(["compare", "--methods", "all", "--tune"]) == 0
    halved, whole = asked
    keys = {"seed": 3, "late-peers": 0.5}
    assert {key: halved.keys[key] for key in keys} == keys
    assert replace(halved, keys=keys) == ComparisonRequest(
        "default", keys, ["local", "fedavg"], Path("o"), 2, "halving", 2
    )
    assert replace(whole, keys={}) == ComparisonRequest(
        "default", {}, ["all"], Path("runs/compare/default"), None, "whole", numbered=True
    )
    assert main.main(["compare", "seed=1", "--methods", "all"]) == 0
    assert asked[-1].command == "coterie compare seed=1 --methods all --tune"


def test_all_leaves_out_what_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Config] = []

    def only_listed(
        configs: Sequence[Config], workers: int, console: Console, **_: Any
    ) -> dict[str, Exception]:
        seen.extend(configs)
        return {config.run_dir: RunError("enough") for config in configs}

    monkeypatch.setattr("coterie.app.runners.sweep.run_all", only_listed)
    output = Terminal()
    flat: dict[str, Scalar] = {**TINY, "partition.kind": "iid"}  # no true clusters: no oracle
    with pytest.raises(SweepError):
        compare(request(tmp_path, "all", flat=flat), output)
    refused = [line for line in output.lines if line.startswith("left out: ")]
    assert any("oracle" in line for line in refused)
    methods = {config.method for config in seen}
    assert {"local", "fedavg", "cobo", "dpfl"} <= methods
    assert {config.partition.validation for config in seen} == {VALIDATION_SHARE}
    assert "oracle" not in methods
    with pytest.raises(ConfigError, match="oracle"):
        compare(request(tmp_path, "oracle", flat=flat), output)


def test_a_method_has_settings_of_its_own(tmp_path: Path) -> None:
    """The key reaches that method's runs alone; tables of other settings are not overwritten."""
    compare(
        request(tmp_path, "local,fedavg", settings={"fedavg": {"learning-rate": 0.03}}),
        Console(quiet=True),
    )
    rates = {
        line["method"]: Run.read(tmp_path / line["run"]).config["learning-rate"]
        for line in read(tmp_path / "comparison.csv")
    }
    assert rates == {"local": Training.learning_rate, "fedavg": 0.03}
    with pytest.raises(ConfigError, match=r"other settings \(fedavg:learning-rate = 0.03\)"):
        compare(request(tmp_path, "local,fedavg"), Console(quiet=True))
    both = {"fedavg": {"learning-rate": 0.03}, "local": {"learning-rate": 0.1}}
    with pytest.raises(ConfigError, match=r"other settings \(no local:learning-rate\)"):
        compare(request(tmp_path, "local,fedavg", settings=both), Console(quiet=True))


def test_settings_of_a_recipe_cannot_change_it(tmp_path: Path) -> None:
    settings = {"dfedavgm": {"momentum": 0.5}}
    with pytest.raises(ConfigError, match="the recipe dfedavgm has momentum ="):
        compare(request(tmp_path, "local,dfedavgm", settings=settings), Console(quiet=True))


@pytest.mark.parametrize(
    ("items", "why"),
    [
        (["ditto:learning-rate=0.1"], 'settings of "ditto", which is not compared'),
        (["local"], "must be METHOD:KEY=VALUE"),
        (["learning-rate=0.1"], "must be METHOD:KEY=VALUE"),
        (["local:seed=3"], "seed cannot be set for local alone"),
        (["local:learning-rat=0.1"], "learning-rat"),
    ],
)
def test_wrong_settings_of_a_method(tmp_path: Path, items: list[str], why: str) -> None:
    def execute() -> None:
        settings = command._settings(items)
        compare(request(tmp_path, "local,fedavg", settings=settings), Console(quiet=True))

    with pytest.raises(ConfigError, match=why):
        execute()


HEARTS: dict[str, Scalar] = {
    "dataset": "heart-disease", "peers": 4, "partition.kind": "natural", "model": "linear",
    "num-server-rounds": 2, "evaluate-every": 2, "learning-rate": 0.03,
}  # fmt: skip
YARDSTICKS = ["logistic", "logistic-pooled", "mixed"]


@pytest.mark.long
def test_a_comparison_of_tables_has_rows_by_scikit_learn(tmp_path: Path) -> None:
    text = compared(tmp_path, "local,pooled,forest", flat=HEARTS)
    lines = read(tmp_path / "comparison.csv")
    assert [each["method"] for each in lines] == ["local", "pooled", "forest", *YARDSTICKS]
    assert all(each["auroc"] and each["gain"] and each["calibration_error"] for each in lines)
    best = "^The best method, local, is not significantly better than plain logistic regression"
    assert re.search(best, text, re.M), "the first sentence after the table"
    assert "forest, logistic and logistic-pooled are scikit-learn's" in text
    page = (tmp_path / "comparison.html").read_text()
    assert "logistic-pooled *" in page
    assert {each["method"] for each in read(tmp_path / "comparison-peers.csv")} >= {*YARDSTICKS}
    again = compared(tmp_path, "local,pooled,forest", flat=HEARTS, yardsticks="none")
    assert "to do" not in again
    own = ["local", "pooled", "forest"]
    assert [each["method"] for each in read(tmp_path / "comparison.csv")] == own


@pytest.mark.slow
@pytest.mark.parametrize(("flat", "seeds"), [(TINY, 3), (HEARTS, 10)])
def test_tables_have_more_seeds_by_default(
    tmp_path: Path, flat: dict[str, Scalar], seeds: int
) -> None:
    """After one run of each method, a line says how long the others take."""
    flat = flat | {"num-server-rounds": 1, "evaluate-every": 1}
    text = compared(tmp_path, "local,fedavg", flat=flat, seeds=None, yardsticks="none")
    assert f"{2 * seeds} runs to do" in text
    lines = text.splitlines()
    (told,) = (k for k, line in enumerate(lines) if line.startswith("about "))
    assert re.fullmatch(rf"about .* for the other {2 * seeds - 2} runs, in order", lines[told])
    assert [line.split()[1:4] for line in lines[told - 2 : told]] == [
        ["local", "seed", "0"], ["fedavg", "seed", "0"]
    ]  # fmt: skip
