"""`coterie plugin`: a package that runs as it was written."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import coterie
from coterie.app.cli.main import main


def test_the_method_of_a_new_package_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "mine"
    assert main(["plugin", str(folder)]) == 0
    assert main(["plugin", str(folder)]) == 2
    assert "name a new or an empty folder" in capsys.readouterr().err
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    (place,) = project["entry-points"]["coterie.methods"].values()
    monkeypatch.syspath_prepend(str(folder / "src"))
    monkeypatch.chdir(tmp_path)
    keys = {"method-options": {"neighbours": 1}}
    run = coterie.run(None, keys, method=place, peers=4, num_server_rounds=2)
    assert (run.weights[-1] > 0).sum(axis=1).tolist() == [2, 2, 2, 2]
