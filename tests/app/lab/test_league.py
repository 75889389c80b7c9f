"""League: cells are measured once, alike for every method, and again to the same digits."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coterie.app.cli import main as command
from coterie.app.comparisons import tune
from coterie.app.config import defaults
from coterie.app.config.config import Config, ConfigError
from coterie.app.config.recipes import recipes
from coterie.app.config.registry import METHODS
from coterie.app.config.schema import Scalar
from coterie.app.lab import league as runner
from coterie.app.lab.catalogue.fetch import fetch
from coterie.app.lab.catalogue.sets import SETS
from coterie.app.lab.pages import league
from coterie.app.runs.rundir import Run
from coterie.clients.letters import LetterOptions
from coterie.errors import SweepError
from tests.output import Terminal, csv_rows

TINY = """
title = "Tiny"
about = "digits"
seeds = 2

[keys]
peers = 3
num-server-rounds = 2
evaluate-every = 1
model = "linear"
partition.kind = "iid"
partition.samples-per-peer = 20

[attacked]
attack.kind = "sign-flip"
attack.share = 0.3

[private]
privacy.kind = "examples"
privacy.noise = 4.0
"""
METHODS_HERE = ["local", "d-psgd", "knn-per"]
MINE = "tests.plugins:Mine"


@pytest.fixture(scope="module", autouse=True)
def few_rates() -> Iterator[None]:
    """Try one learning rate."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tune, "START", (0,))
        patch.setattr(tune, "EXTENSIONS", 0)
        yield


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, few_rates: None) -> Path:
    """Return a working directory with a measured league of one problem."""
    place = tmp_path_factory.mktemp("league")
    (place / "league").mkdir()
    (place / "league" / "tiny.toml").write_text(TINY)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        run(METHODS_HERE)
    return place


@pytest.fixture
def place(measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a working directory with the files of the measured league, but not its runs."""
    shutil.copytree(measured / "league", tmp_path / "league")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(methods: list[str]) -> str:
    """Measure missing cells and return the output."""
    console = Terminal()
    runner.run(["tiny"], methods, Path("league"), 1, console)
    return console.text


def lines(place: Path) -> list[dict[str, str]]:
    return csv_rows(place / "league" / "tiny.csv")


def without(place: Path, *dropped: str) -> None:
    """Remove the cells of methods, or of a method's column ("METHOD COLUMN")."""
    cells = league.read("tiny", place / "league")
    kept = {at: cell for at, cell in cells.items() if not {at[0], " ".join(at)} & {*dropped}}
    league.write("tiny", kept, place / "league")


def check(*cell: str) -> int:
    return command.main(["league", "check", "tiny", *cell])


@pytest.mark.slow
def test_every_method_has_the_same_rates_and_trials(place: Path) -> None:
    rows = lines(place)
    assert [row["method"] for row in rows if row["column"] == "accuracy"] == [
        "local", "knn-per", "d-psgd"
    ]  # fmt: skip
    for column in ("accuracy", "private"):
        tuned = {(r["rates"], r["trials"]) for r in rows if r["column"] == column and r["trials"]}
        assert len(tuned - {("[]", "0")}) == 1
    settings = {(row["method"], row["column"]): row["settings"] for row in rows}
    assert settings["d-psgd", "attacked"] == settings["d-psgd", "accuracy"]


@pytest.mark.slow
def test_a_method_that_privacy_does_not_cover_is_refused_with_the_reason(place: Path) -> None:
    cell = league.read("tiny", place / "league")["knn-per", "private"]
    assert not cell.values
    assert "it predicts from a memory of private examples" in cell.refused


def test_measured_cells_are_not_measured_again(place: Path) -> None:
    before = (place / "league" / "tiny.csv").read_bytes()
    assert "to do" not in run(METHODS_HERE)
    assert (place / "league" / "tiny.csv").read_bytes() == before


@pytest.mark.slow
def test_a_missing_cell_is_measured_alone_and_comes_out_the_same(place: Path) -> None:
    before = (place / "league" / "tiny.csv").read_bytes()
    without(place, "knn-per attacked", "d-psgd")
    output = run(METHODS_HERE)
    assert (place / "league" / "tiny.csv").read_bytes() == before
    assert output.count("knn-per seed") == 2, "the two seeds under attack"


@pytest.mark.slow
def test_an_interrupted_league_continues_with_its_next_cell(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (place / "league" / "tiny.csv").read_bytes()
    (place / "league" / "tiny.csv").unlink()
    kept = runner.values_of

    def stop(column: str, runs: Sequence[Run]) -> list[Any]:
        if (place / "league" / "tiny.csv").exists():
            raise KeyboardInterrupt
        return kept(column, runs)

    monkeypatch.setattr(runner, "values_of", stop)
    with pytest.raises(KeyboardInterrupt):
        run(METHODS_HERE)
    assert {line["method"] for line in lines(place)} == {"local"}, "the first cells are kept"
    monkeypatch.setattr(runner, "values_of", kept)
    run(METHODS_HERE)
    assert (place / "league" / "tiny.csv").read_bytes() == before


@pytest.mark.slow
def test_two_leagues_at_once_keep_each_other_s_cells(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process adds the cells of Local while this one measures D-PSGD."""
    theirs = {at: cell for at, cell in league.read("tiny", place / "league").items()
              if at[0] == "local"}  # fmt: skip
    without(place, "local", "d-psgd")
    kept = runner.values_of

    def meanwhile(column: str, runs: Sequence[Run]) -> list[Any]:
        now = league.read("tiny", place / "league")
        league.write("tiny", {**now, **theirs}, place / "league")
        return kept(column, runs)

    monkeypatch.setattr(runner, "values_of", meanwhile)
    run(["d-psgd"])
    assert {row["method"] for row in lines(place)} == {*METHODS_HERE}


@pytest.mark.slow
def test_a_plugin_enters_with_the_rates_of_the_others(place: Path) -> None:
    run([MINE])
    rows = {(row["method"], row["column"]): row for row in lines(place)}
    mine, theirs = rows[MINE, "accuracy"], rows["d-psgd", "accuracy"]
    assert (mine["rates"], mine["trials"]) == (theirs["rates"], theirs["trials"])
    assert rows[MINE, "private"]["refused"], "no one knows what a plugin reveals"
    table = league.table(league.read("tiny", place / "league"), {})
    assert [row.name for row in table][-1] == "Mine"


def test_a_cell_is_the_same_when_it_runs_again(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check("knn-per", "attacked") == 0
    assert "coterie league check tiny knn-per attacked" in capsys.readouterr().out
    assert check() == 0, "a random cell"


def test_a_wrong_digit_is_noticed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells = league.read("tiny", place / "league")
    cell = cells["d-psgd", "accuracy"]
    (first, *rest), last = cell.values
    values = [[first + 0.0001, *rest], last]
    cells["d-psgd", "accuracy"] = replace(cell, values=values)
    league.write("tiny", cells, place / "league")
    assert check("d-psgd", "accuracy") == 1
    assert "1 of 2 seeds differ" in capsys.readouterr().err


@pytest.mark.slow
def test_a_cell_of_another_configuration_is_measured_again(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = place / "league" / "tiny.toml"
    path.write_text(TINY.replace("samples-per-peer = 20", "samples-per-peer = 30"))
    assert check("local", "accuracy") == 2
    assert "the configuration has changed since" in capsys.readouterr().err
    before = {row["method"]: row["digest"] for row in lines(place)}
    run(["local"])
    after = {row["method"]: row["digest"] for row in lines(place)}
    assert {name for name in after if after[name] != before[name]} == {"local"}
    assert check("local", "accuracy") == 0


def digests(place: Path) -> dict[tuple[str, str], str]:
    """Return the digest of each kept cell's configurations, as they are now."""
    problem = league.problem("tiny", place / "league")
    condition_of = {column: key for key, of in league.CONDITIONS.items() for column in of}
    return {
        (method, column): runner.digest(
            runner.configurations(problem, condition_of[column], method, cell.choice.settings)
        )
        for (method, column), cell in league.read("tiny", place / "league").items()
        if not cell.refused
    }


@pytest.mark.some(4)
@pytest.mark.parametrize(
    ("key", "default", "stale"),
    [
        ("momentum", 0.9, ["local", "knn-per"]),  # the recipe d-psgd has its own
        ("mixing", "uniform", ["knn-per"]),
        ("defence.norm", False, METHODS_HERE),
        ("knn-per.neighbours", 3, ["knn-per"]),
        ("privacy.delta", 1e-6, ["private"]),
        ("letters.operator", "int4", []),
        ("topology-degree", 4, []),
        ("partition.alpha", 0.5, []),
        ("cobo.rho", 9.0, []),
    ],
)
def test_a_changed_default_makes_the_cells_stale_that_it_changes(
    key: str, default: Scalar, stale: list[str], place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, usual = digests(place), defaults.of_project()
    cells = league.read("tiny", place / "league")
    assert kept == {at: cell.digest for at, cell in cells.items() if not cell.refused}
    monkeypatch.setattr(
        defaults, "of_project", lambda: replace(usual, keys={**usual.keys, key: default})
    )
    if key.startswith("letters."):  # they are compared with their defaults
        monkeypatch.setattr(LetterOptions, key.removeprefix("letters."), default)
    now = digests(place)
    assert {at for at in kept if now[at] != kept[at]} == {at for at in kept if {*at} & {*stale}}


def test_a_new_key_leaves_cells_fresh_with_the_value_that_reproduces_them(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, flat = digests(place), Config.flat
    monkeypatch.setattr(Config, "flat", lambda self: {**flat(self), "table.new": "own"})
    assert not {*kept.items()} & {*digests(place).items()}
    monkeypatch.setitem(runner.BEFORE, "table.new", "own")
    assert digests(place) == kept
    monkeypatch.setattr(Config, "flat", lambda self: {**flat(self), "table.new": "common"})
    assert not {*kept.items()} & {*digests(place).items()}


def test_a_problem_without_attack_and_privacy_has_no_such_columns(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without their tables, the columns would repeat the accuracy."""
    assert command.main(["league", "show", "tiny"]) == 0
    shown = capsys.readouterr().out
    assert "Attacked: sign-flip by 30% of the peers." in shown
    assert "no limit of epsilon, noise 4, delta 1e-05" in shown
    own = TINY[: TINY.index("[attacked]")]
    (place / "league" / "tiny.toml").write_text(own)
    assert command.main(["league", "show", "tiny"]) == 0
    assert "attacked" not in (shown := capsys.readouterr().out.partition("Test accuracy")[0])
    assert "private" not in shown
    (place / "league" / "tiny.csv").unlink()
    run(["local"])
    assert {row["column"] for row in lines(place)} == {"accuracy", "course", "gradients"}


def test_code_that_a_file_names_is_not_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither as a setting nor as a method that the user does not name."""
    cells = league.read("tiny", place / "league")
    cell = cells["local", "accuracy"]
    (place / "evil.py").write_text("raise SystemExit('ran')")
    settings = {**cell.choice.settings, "model": "evil:x"}
    evil = replace(cell, choice=replace(cell.choice, settings=settings))
    league.write("tiny", {("local", "accuracy"): evil}, place / "league")
    assert check("local") == 2
    assert "model is not among the tuned keys of local" in capsys.readouterr().err
    league.write("tiny", {("evil:x", "accuracy"): cell}, place / "league")
    assert check() == 2
    assert "no measured cell" in capsys.readouterr().err


@pytest.mark.parametrize("what", ["check", "run", "show"])
@pytest.mark.parametrize("where", ["[keys]", "[attacked]", "preset"])
def test_code_that_a_problem_names_is_not_run(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    what: str, where: str,
) -> None:  # fmt: skip
    monkeypatch.syspath_prepend(str(place))
    (place / "evil.py").write_text("import pathlib\npathlib.Path('RAN').touch()\n")
    (place / "evil.toml").write_text('dataset = "evil:DATA"\n')
    text = TINY.replace(where, f'{where}\ndataset = "evil:DATA"')
    if where == "preset":
        text = f'preset = "{place / "evil"}"\n{TINY}'
    (place / "league" / "tiny.toml").write_text(text)
    assert command.main(["league", what, "tiny"]) == 2
    assert "evil" in capsys.readouterr().err
    assert not (place / "RAN").exists()
    if where != "preset":
        league.problem("tiny", place / "league", ["evil:DATA"])  # the user named it


def test_a_failed_run_is_no_cell(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without(place, "d-psgd")
    monkeypatch.setattr("coterie.app.runners.inline.run", lambda *_: 1 / 0)
    with pytest.raises(SweepError, match="the same command tries them again"):
        run(METHODS_HERE)
    assert "d-psgd" not in {row["method"] for row in lines(place)}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("titel", "title is missing"),
        ("seeds = 0", "seeds = 0: must be a number from 1"),
        ("[keys]\npears = 3", r"tiny.toml: unknown key .*pears"),
    ],
)
def test_a_wrong_problem_is_refused_before_anything_starts(
    place: Path, wrong: str, message: str
) -> None:
    text = {"titel": TINY.replace("title", "titel"), "seeds = 0": TINY.replace("= 2", "= 0", 1)}
    (place / "league" / "tiny.toml").write_text(text.get(wrong, TINY.replace("[keys]", wrong)))
    with pytest.raises(ConfigError, match=message):
        run(["local"])
    with pytest.raises(ConfigError, match='unknown problem "tini", did you mean "tiny"'):
        league.problem("tini", place / "league")


def test_all_methods_and_recipes_take_part() -> None:
    missing = {name for name, recipe in recipes().items() if recipe.missing}
    assert {*runner.entrants()} == {*METHODS, *recipes()} - missing


@pytest.mark.long
@pytest.mark.parametrize("name", league.problems(league.PUBLISHED))
def test_published_cells_are_those_of_their_configurations(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    problem = league.problem(name, league.PUBLISHED)
    if problem.keys["dataset"] == "table":
        data = Path(str(problem.keys["data-dir"]))
        if SETS[data.name].files:
            pytest.skip("its data must be downloaded")
        fetch(data.name, SETS[data.name], data.parent)
    condition_of = {column: key for key, of in league.CONDITIONS.items() for column in of}
    for (method, column), cell in league.read(name, league.PUBLISHED).items():
        at = problem, condition_of[column], method, cell.choice.settings
        if cell.refused:
            with pytest.raises(ConfigError):
                runner.configurations(*at)
        else:
            assert runner.is_of(cell, runner.configurations(*at)), (
                f"{method}, {column}: a key that decides its runs is new or has a new default: "
                "`coterie league run`, or an entry in BEFORE of app/lab/league.py"
            )
            assert len(cell.values) == problem.seeds
