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
    folder = tmp_path / "ten-nearest"
    assert main(["plugin", str(folder)]) == 0
    assert "coterie compare --methods local,fedavg,ten-nearest" in capsys.readouterr().out
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    (place,) = project["entry-points"]["coterie.methods"].values()
    monkeypatch.syspath_prepend(str(folder / "src"))
    monkeypatch.chdir(tmp_path)
    keys = {"method-options": {"neighbours": 1}}
    run = coterie.run(None, keys, method=place, peers=4, num_server_rounds=2)
    assert (run.weights[-1] > 0).sum(axis=1).tolist() == [2, 2, 2, 2]
    assert place in (folder / "tests" / "test_method.py").read_text()


@pytest.mark.parametrize("name", ["Mine", "1st", "a_b", "a b"])
def test_a_folder_that_names_no_method_is_refused(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plugin", str(tmp_path / name)]) == 2
    assert "in lower case with hyphens: my-method" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
