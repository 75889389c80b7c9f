"""`coterie app`: a folder that Flower takes as an app."""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

from coterie.app.cli.main import main
from coterie.app.runners import bundle


def test_the_folder_holds_what_a_run_sends(tmp_path: Path) -> None:
    """Nodes take an app by its digest."""
    bundle.write_app(tmp_path / "sent")
    (tmp_path / "empty").mkdir()
    for folder in ("new", "empty"):
        assert main(["app", str(tmp_path / folder)]) == 0
        assert build_fab_from_disk(tmp_path / folder) == build_fab_from_disk(tmp_path / "sent")


def test_a_folder_with_files_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refuse to write the app into a folder with files: they would become part of its digest."""
    (tmp_path / "mine.py").write_text("mine")
    for place in (tmp_path, tmp_path / "mine.py"):
        assert main(["app", str(place)]) == 2
        assert f"{place} exists already: name a new or an empty folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.py"]
