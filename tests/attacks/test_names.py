"""Names from outside: refused where they are not names, spelt out where they are the user's own.

A name becomes a folder, a word of a command that a log suggests, a cell that a spreadsheet
computes, and characters that a terminal obeys.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.app.cli.main import main
from coterie.app.config.config import Config, ConfigError
from coterie.app.institution.commands import certificates
from coterie.app.institution.security.trust import KeysError, create, read_trust
from coterie.app.runs.atomic import safe
from coterie.app.runs.terminal import printable
from coterie.strategies.names import is_name, shortened
from coterie.strategies.protocol import Request, Response
from coterie.strategies.relay.vetting import vetted
from tests.app.fake_run import Story, write_run
from tests.attacks.consortium import institutions
from tests.checkout import of_this_checkout
from tests.output import csv_rows
from tests.strategies.relay.runs import make

START = Request("start", 0, 0, attempt="a")
EVIL = (
    *("x$(touch PWNED)", "`touch PWNED`", "a;b", "a b", "a\nb", "a\n", "-rf", "--help", "..", "."),
    *(".hidden", "../x", "a/b", "a\\b", "C:", "~root", "a*", "\x1b[2J", "\u202egnp.exe", "a\u200b"),
    *("=1+1", "@x", "+x", "n\u00e4me", "\u0430bc", "x" * 65, "a\x00b"),
)
SHOWN = "\x1b[2J\u202evil"
"""Clears a terminal, and turns what follows around."""


@pytest.mark.parametrize("name", EVIL)
def test_what_is_no_name_is_refused_wherever_it_enters(name: str, tmp_path: Path) -> None:
    assert not is_name(name)
    with pytest.raises(ConfigError, match="name must be the name of one directory"):
        Config.from_flat({"name": name})
    with pytest.raises(KeysError, match="is not a valid name of a peer"):
        create(name, tmp_path / "keys")
    with pytest.raises(ConfigError, match="a node cannot be called"):
        certificates.for_node(tmp_path / "secrets", name)
    trust = tmp_path / "trust.toml"
    trust.write_text(f'[{json.dumps(name)}]\npeer = 0\nsign = "x"\nseal = "x"\n')
    trust.chmod(0o644)
    with pytest.raises(KeysError):
        read_trust(trust)
    accepted, refused = vetted(Response((0,), names=(name,)), START, make(), deployed=True)
    assert accepted.names == ()
    assert "the relay refused the name of a peer" in refused[0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["trust.toml"]


@pytest.mark.parametrize("name", ["a", "x" * 64, "trial-3", "A.b_c-d", "2026-03-01", "_x"])
def test_names_are_names(name: str) -> None:
    assert is_name(name)
    assert Config.from_flat({"name": name}).name == name
    assert vetted(Response((0,), names=(name,)), START, make(), deployed=True)[0].names == (name,)


def test_a_node_takes_no_run_of_such_a_name(tmp_path: Path) -> None:
    node = institutions(tmp_path)[0]
    before = sorted(tmp_path.rglob("*"))
    for name in EVIL:
        node.run_config["name"] = name
        answer = node.handle(START)
        assert isinstance(answer, str)
        assert "configuration" in answer
    node.run_config["name"] = "Institution"
    assert "configuration" in str(node.handle(START)), "the node uses that folder"
    institution = tmp_path / "node-0" / "out" / "institution"
    own = {institution.parent, institution, institution / "contact"}  # when the relay last asked
    assert {*tmp_path.rglob("*")} - own == {*before}


def test_a_name_that_is_made_is_a_name() -> None:
    """Shortened names of parts are valid, whatever their characters and length."""
    for method in ("cobo", "my_package.methods:MINE", "here:<lambda>", "x" * 200, "..:..", ":"):
        assert is_name(shortened(method, "-seed0-0123abcd"))
    assert shortened("x" * 200, "-seed0") == "x" * 58 + "-seed0"


# --- terminals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, or Zürich \u00b1 \u4e2d", "plain, or Zürich \u00b1 \u4e2d"),
        ("89.7\u00a0%", "89.7\u00a0%"),
        ("\x1b]0;x\x07", r"\x1b]0;x\x07"),
        ("\u202e\u2066\u200b\ufeff", r"\u202e\u2066\u200b\ufeff"),
        ("a\r\x08\x9b\x7f\t", r"a\r\x08\x9b\x7f\t"),
        ("two\nlines", "two\nlines"),
        ("\udcff\U000e0041", r"\udcff\U000e0041"),
    ],
)
def test_what_a_terminal_obeys_is_spelt_out(text: str, shown: str) -> None:
    assert printable(text) == shown


def harmless(text: str) -> bool:
    return all(char.isprintable() or char == "\n" for char in text)


@pytest.mark.slow
def test_folders_of_the_users_own_data_may_be_called_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are the user's, so they are shown as they are, but for what a terminal obeys."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    for name in (SHOWN, "=cmd|' \u00fc'!A1", "[bold]x[red] :smile:"):
        (tmp_path / "data" / name).mkdir(parents=True)
        rows = [f"{a:.2f},{'no' if a > 0 else 'yes'}" for a in draw.normal(size=30)]
        (tmp_path / "data" / name / "data.csv").write_text("\n".join(["a,y", *rows]) + "\n")
    keys = ("dataset=table", "table.columns=a", "table.label=y", "table.classes=no, yes")
    small = ("peers=3", "num-server-rounds=2", "model=linear", "method=fedavg", "device=cpu")
    assert main(["run", *keys, *small, "data-dir=data", "--name", "run"]) == 0
    shown = capsys.readouterr().out
    assert r"\x1b[2J\u202evil" in shown
    assert "[bold]x[red] :smile:" in shown
    assert harmless(shown)
    assert main(["status", "runs/run"]) == 0
    assert main(["predict", "runs/run", "--peer", SHOWN, "data/none.csv"]) == 2
    assert main(["predict", "runs/run", "--peer", "0", f"data/{SHOWN}/data.csv"]) == 0
    assert main(["predict", "runs/run", "--peer", "none", "x.csv"]) == 2
    out, error = capsys.readouterr()
    assert harmless(out + error)
    edges = csv_rows(Path("runs/run/graph.csv"))
    assert {edge["from"] for edge in edges} == {
        "?[2J?vil", "'=cmd|' \u00fc'!A1", "[bold]x[red] :smile:"
    }  # fmt: skip


def test_a_run_directory_of_somebody_else_is_shown_as_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", Story(rounds=1))
    progress = {"status": "running", "round": 1, "rounds": 2, "last_seen": {"0": [1, 1.0]}}
    progress |= {"names": {"0": SHOWN}, "faults": [SHOWN], "refusals": [f"{SHOWN}\nok"]}
    (run / "progress.json").write_text(json.dumps(progress))
    letter: dict[str, Any] = dict.fromkeys(
        ("time", "direction", "kind", "round", "from", "verdict"), SHOWN
    )
    (run / "audit-0000.jsonl").write_text(json.dumps(letter | {"to": [SHOWN]}) + "\n")
    (run / "nodes" / "peer-0000").mkdir(parents=True)
    (run / "nodes" / "peer-0000" / "00000001-0.state").touch()
    assert main(["status", str(run)]) == 0
    out, error = capsys.readouterr()
    assert r"\x1b[2J\u202evil" in out
    assert harmless(out + error)
    (run / "config.toml").write_text(f"method = {json.dumps(SHOWN)}\npeers = 'x'\n")
    assert main(["report", str(run)]) == 2
    assert harmless(capsys.readouterr().err)


# --- spreadsheets ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "written"),
    [
        ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
        ("+1+1", "'+1+1"),
        ("-1+cmd|x", "'-1+cmd|x"),
        ("@SUM(A1)", "'@SUM(A1)"),
        (" =1", "' =1"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\r=1"),
        ("\uff1d1", "'\uff1d1"),
        ("-1", "-1"),
        ("+2.5e-3", "+2.5e-3"),
        ("-inf", "'-inf"),
        ("hospital-a", "hospital-a"),
        ("", ""),
        (-1.5, -1.5),
        (3, 3),
    ],
)
def test_a_cell_that_a_spreadsheet_would_compute_is_text(cell: object, written: object) -> None:
    assert safe(cell) == written


def test_predictions_hold_no_formula(tmp_path: Path) -> None:
    """Names of files and classes are escaped in the table; -1 and +1 stay numbers."""
    from PIL import Image

    for label in ("-1", "=1+1"):
        for part in ("a", "b"):
            folder = tmp_path / "data" / part / label
            folder.mkdir(parents=True)
            for k in range(6):
                Image.fromarray(np.full((4, 4), 250 * (label == "-1"), np.uint8)).save(
                    folder / f"{'=@+-'[k % 4]}{k}.png"
                )
    keys = ("dataset=image-folder", "image-folder.classes=-1, =1+1", "image-folder.shape=1x4x4")
    small = ("peers=2", "num-server-rounds=3", "model=linear", "method=local", "device=cpu")
    out = tmp_path / "out"
    line = [*keys, *small, f"data-dir={tmp_path / 'data'}", "--out", str(out), "--name", "run"]
    assert main(["run", *line]) == 0
    for label in ("-1", "=1+1"):
        images, csvs = tmp_path / "data" / "a" / label, tmp_path / f"{label}.csv"
        assert (
            main(["predict", str(out / "run"), "--peer", "0", str(images), "--out", str(csvs)]) == 0
        )
        with csvs.open(newline="") as file:
            header, *rows = csv.reader(file)
        cells = [cell for row in (header, *rows) for cell in row]
        assert not [cell for cell in cells if cell.startswith(("=", "+", "@"))]
        assert {row[1] for row in rows} == {safe(label)}
        assert all(row[0].startswith("'") for row in rows)


# --- the working directory ------------------------------------------------------------------------


@pytest.mark.e2e
@pytest.mark.parametrize("line", ["list methods", "report none", "predict none x.csv"])
def test_modules_in_the_working_directory_are_not_ours(line: str, tmp_path: Path) -> None:
    """`python -m` puts it in front of everything else that is installed."""
    ours = of_this_checkout([sys.executable], tmp_path)
    for name in ("rich", "numpy", "torch", "tomllib", "clients", "json", "tomli_w", "matplotlib"):
        (tmp_path / f"{name}.py").write_text('open("PWNED", "w")\n')
    done = subprocess.run(
        [sys.executable, "-m", "coterie", *line.split()], cwd=tmp_path,
        env=ours, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode in (0, 2), done.stderr
    assert not (tmp_path / "PWNED").exists()
