"""`coterie app`: a folder that Flower takes as an app."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest
from flwr.cli.app_cmd import publish
from flwr.cli.auth_plugin.oidc_cli_plugin import OidcCliPlugin
from flwr.cli.build import build_fab_from_disk, build_fab_from_files
from flwr.cli.config_utils import load_and_validate
from flwr.cli.utils import collect_files
from requests import Response

from coterie.app.cli.main import main
from coterie.app.config.root import ROOT
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


def test_flower_s_hub_takes_the_app(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run `flwr app publish` up to the upload: the app has what the installed package needs."""
    app = tmp_path / "digits"
    assert main(["app", str(app)]) == 0
    sent: list[str] = []
    account = OidcCliPlugin.__new__(OidcCliPlugin)
    monkeypatch.setattr(account, "access_token", "token", raising=False)
    monkeypatch.setattr(account, "load_tokens", lambda: None, raising=False)

    def post(files: list[tuple[str, tuple[str, object, str]]], token: str) -> Response:
        sent.extend(name for _, (name, _, _) in files)
        answer = Response()
        answer.status_code = 200
        return answer

    hub = sys.modules[publish.__module__]
    monkeypatch.setattr(hub, "load_cli_auth_plugin_from_connection", lambda _: account)
    monkeypatch.setattr(hub, "_post_files", post)
    publish(app)
    assert "Upload successful" in capsys.readouterr().out
    files = {path.relative_to(app).as_posix() for path in app.rglob("*") if path.is_file()}
    assert set(sent) == files >= {"pyproject.toml", "README.md", "LICENSE"}
    assert len(sent) < 1000
    _, about = build_fab_from_files(collect_files(app))
    assert (about.fab_format_version, about.flwr_version_min) == (1, "1.41")
    config, warnings = load_and_validate(app / "pyproject.toml")
    assert warnings == []
    required = metadata.requires("coterie") or []
    assert config["project"]["dependencies"] == [r for r in required if "extra ==" not in r]
    assert (app / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
