"""Test that opening a hostile model file or run directory is harmless.

No command that reads one runs a program, imports code, asks a host, opens a file that it names,
hangs, or ends in anything but a line. `tests.attacks.hostile_files` has the files.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import coterie
from coterie.app.cli.main import main
from coterie.app.dashboard.library import Library
from coterie.app.dashboard.pages import Pages
from coterie.app.institution.security.policy import Policy
from coterie.app.runs.files import ResultsError
from coterie.results import Comparison
from tests.attacks.hostile_files import (
    COMPARISONS,
    DIRECTORIES,
    EVIL,
    MODELS,
    Events,
    pipe,
    watched,
)

RUN = (
    *("run", "method=cobo", "peers=4", "num-server-rounds=2", "evaluate-every=1", "mlp.hidden=8"),
    *("partition.clusters=2", "partition.samples-per-peer=12", "device=cpu", "--name", "good"),
)
COMPARED = ("compare", "--methods", "local", "--seeds", "1", "--workers", "1", *RUN[2:-2])
FAILED = '{"status": "failed", "round": 1, "rounds": 2, "error": "it was stopped"}'


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that stopped, with one model."""
    out = tmp_path_factory.mktemp("runs")
    assert main([*RUN, "--out", str(out)]) == 0
    for peer in range(1, 4):
        for path in (out / "good" / "models").glob(f"peer-{peer:04d}.*"):
            path.unlink()
    assert main([*COMPARED, "--out", str(out / "compared")]) == 0
    (out / "good" / "progress.json").write_text(FAILED)
    (out / "good" / "report.html").unlink()
    return out / "good"


@pytest.fixture
def place(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it; the working directory has evil code, a pipe, and an input to predict."""
    shutil.copytree(good, tmp_path / "run")
    shutil.copytree(good.parent / "compared", tmp_path / "compared")
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "evil.py").write_text(EVIL)
    (tmp_path / "config.json").write_text('{"auto_map": {"AutoConfig": "evil.Net"}}')
    (tmp_path / "policy.toml").write_text(Policy().toml())
    (tmp_path / "policy.toml").chmod(0o644)
    pipe(tmp_path / "pipe")
    np.savez(tmp_path / "input.npz", x=np.zeros((2, 1, 8, 8)))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


# --- who reads what -------------------------------------------------------------------------------


def load(run_dir: str) -> int:
    """Read everything that Python can read of a run; the exit code of a command."""
    try:
        run = coterie.load(run_dir)
        assert len(run.graph) + len(run.weights) + len(run.metrics) + len(run.names)
        with suppress(coterie.ResultsError):
            run.model(0)
        assert run.summary
    except ResultsError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def dashboard(run_dir: str) -> int:
    """Show the list of runs, and the run."""
    pages = Pages(Library(Path(run_dir).parent))
    assert "<html" in pages.page("list", "")
    assert "<html" in pages.page("run", Path(run_dir).name)
    return 0


def command(*line: str) -> Callable[[str], int]:
    return lambda run_dir: main([word.replace("RUN", run_dir) for word in line])


def worth(run_dir: str) -> int:
    """Execute the run again without some letters; it is as if it had finished."""
    progress = Path(run_dir, "progress.json")
    if not progress.is_symlink() and progress.is_file() and progress.read_text() == FAILED:
        progress.write_text(FAILED.replace("failed", "finished"))
    return main(["contribution", run_dir, "--orders", "0", "--workers", "1"])


READERS: dict[str, Callable[[str], int]] = {
    "report": command("report", "RUN"),
    "status": command("status", "RUN"),
    "resume": command("resume", "RUN"),
    "approve": command("approve", "RUN"),
    "run": command("run", "RUN/config.toml", "out=again", "name=again"),
    "policy": command("policy", "check", "policy.toml", "RUN/config.toml"),
    "worth": worth,
    "load": load,
    "dashboard": dashboard,
}
OF: dict[str, tuple[str, ...]] = {
    "config: many peers": ("report", "status", "load", "dashboard"),  # to run it takes as long
    "config": ("report", "status", "resume", "worth", "run", "policy", "load", "dashboard"),
    "worth": ("report", "worth", "dashboard"),
    "progress": ("report", "status", "resume", "worth", "load", "dashboard"),
    "metrics": ("report", "worth", "resume", "load", "dashboard"),
    "map": ("report", "load", "dashboard"),
    "split": ("report", "worth", "dashboard"),
    "classes": ("report", "dashboard"),
    "quality": ("report", "dashboard"),
    "card": ("report", "dashboard"),
    "summary": ("load",),
    "decisions": ("approve",),
    "audit": ("status",),
    "states": ("status", "resume"),
    "checkpoint": ("resume",),
    "a link to write through": ("report",),
    "a folder elsewhere": ("resume", "worth"),
}
"""File -> who reads it."""


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the text on stderr, without the log."""
    lines = capsys.readouterr().err.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("time="))


def harmless(events: Events, errors: str, place: Path) -> None:
    """Assert that files were only read, and that at most one line was printed."""
    assert not events.ran
    named = [path for path in events.opened if Path(path).name == "pipe" or path == "/dev/zero"]
    assert not named, "a file that the hostile one names was opened"
    assert not Path("PWNED").exists(), "code was run"
    assert "evil" not in sys.modules
    assert Path("victim").read_text() == "mine"
    assert errors.count("\n") <= 1
    assert errors.rstrip("\n").isprintable()


@pytest.mark.some(4)
@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_a_good_run_is_read(reader: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with watched() as events:
        code = READERS[reader](str(place))
    harmless(events, printed(capsys), place)
    assert code == (2 if reader == "approve" else 0)  # no such run has come to a node


@pytest.mark.some(49)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "reader"),
    [(what, reader) for what in DIRECTORIES for reader in OF.get(what, OF[what.partition(":")[0]])],
)
def test_a_run_directory_does_nothing(
    what: str, reader: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    DIRECTORIES[what](place)
    with watched() as events:
        code = READERS[reader](str(place))
    errors = printed(capsys)
    harmless(events, errors, place)
    assert (code, errors.count("\n")) in ((0, 0), (1, 1), (2, 1))


@pytest.mark.some(2)
@pytest.mark.slow
@pytest.mark.parametrize("reader", ["report", "resume", "worth", "run"])
def test_nothing_is_written_through_a_hard_link(reader: str, place: Path) -> None:
    """Whatever a command writes, a file elsewhere that shares its content keeps it."""
    (place / "report.html").write_text("an old report")
    (place / "progress.json").write_text(
        FAILED if reader == "resume" else FAILED.replace("failed", "finished")
    )
    elsewhere = place.parent / "elsewhere"
    elsewhere.mkdir()
    files = [path for path in place.rglob("*") if path.is_file()]
    before = {path: path.read_bytes() for path in files}
    for k, path in enumerate(files):
        (elsewhere / str(k)).hardlink_to(path)
    assert READERS[reader](str(place)) == 0
    assert reader == "run" or (place / "report.html").read_text() != "an old report"
    for k, path in enumerate(files):
        assert (elsewhere / str(k)).read_bytes() == before[path], path


def compare(directory: Path) -> None:
    """Show a comparison, read it in Python, and run it once more."""
    pages = Pages(Library(directory.parent))
    assert "<html" in pages.page("comparison", directory.name)
    with suppress(coterie.ResultsError):
        compared = Comparison(directory)
        assert len(compared.table) + len(compared.latex) + len(compared.runs)
    assert main([*COMPARED, "--out", str(directory)]) in (0, 1, 2)


@pytest.mark.some(5)
@pytest.mark.parametrize("what", COMPARISONS)
def test_a_comparison_does_nothing(
    what: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    COMPARISONS[what](place.parent / "compared")
    with watched() as events:
        compare(place.parent / "compared")
    harmless(events, printed(capsys), place)
    assert not [path for path in events.opened if Path(path) == place / "metrics.jsonl"]


@pytest.mark.some(23)
@pytest.mark.parametrize("what", MODELS)
def test_a_model_file_does_nothing(
    what: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    MODELS[what](place)
    for line in (
        ["predict", str(place), "input.npz", "--out", "out.csv"],
        ["export", str(place), "model.pt2"],
    ):
        with watched() as events:
            code = main(line)
        errors = printed(capsys)
        harmless(events, errors, place)
        assert (code, errors.count("\n")) == (2, 1)
        assert str(place) in errors
    with watched() as events, pytest.raises(coterie.ResultsError):
        coterie.load(place).model(0)
    harmless(events, "", place)
    assert not Path("out.csv").exists()
