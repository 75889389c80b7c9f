"""`coterie data`: the catalogue, and a set that is included."""

from __future__ import annotations

from pathlib import Path

import pytest

import coterie
from coterie.app.cli import main
from coterie.app.lab.catalogue.sets import SETS


def test_the_list_has_licence_source_and_digest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["data", "list"]) == 0
    text = "".join(capsys.readouterr().out.split())
    for name, entry in SETS.items():
        assert name in text
        assert "".join(entry.licence.split()) in text
        for file in entry.files:
            assert file.url in text
            assert file.sha256 in text


@pytest.mark.slow
def test_a_fetched_set_runs_as_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.main(["data", "fetch", "heart-disease"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert "740 rows of 4 hospitals; licence: CC BY 4.0" in printed[0]
    command = printed[1].split()
    assert command == ["coterie", "run", "institutions/heart-disease"]
    assert main.main([*command[1:], "num-server-rounds=2", "--name", "hearts"]) == 0
    run = coterie.load("runs/hearts")
    assert sorted(set(run.metrics["peer_name"])) == ["cleveland", "hungarian", "switzerland", "va"]
    capsys.readouterr()
    assert main.main(["data", "fetch", "heart-disease"]) == 0
    assert "is there already" in capsys.readouterr().out


def test_another_folder_is_named_in_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["data", "fetch", "heart-disease", "--out", str(tmp_path)]) == 0
    place = tmp_path / "heart-disease"
    assert f"coterie run institutions/heart-disease data-dir={place}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("data fetch hart-disease", 'unknown data set "hart-disease", did you mean'),
        ("data fetch azpro --from nowhere", "No such file"),
        ("data", "required: what"),
    ],
)
def test_a_wrong_request_is_refused(
    line: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main.main(line.split()) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_preset_without_its_data_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.main(["run", "institutions/azpro"]) == 2
    message = capsys.readouterr().err
    assert "data/azpro does not exist" in message
    assert "coterie data fetch NAME" in message
