"""Flower's app bundle (FAB) and the whole package, written as folders from the installation."""

from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path

import tomli_w

import coterie
from coterie.app.config import defaults

SHIPPED = (
    "__init__.py",
    "errors.py",
    "ranges.py",
    *("app/*.py", "app/config/**/*.py", "app/wire/**/*.py", "app/security/**/*.py"),
    *("app/node/**/*.py", "app/runs/**/*.py", "app/trained/**/*.py"),
    *("strategies/**/*.py", "clients/**/*.py", "datasets/**/*.py"),
    *("datasets/**/*.toml", "presets/**/*.toml", "recipes/*.toml"),
)
"""Files that relay and nodes need, as patterns below the package."""
FLOWER = "1.41.0"
"""The version of Flower that the app is tested with."""
_README = Path(__file__).with_name("flower_app.md")
_ROOMS = ("app", "strategies", "clients", "datasets", "recipes")
_EVERYTHING = ("*.py", *(f"{room}/**/*" for room in _ROOMS))


def write_app(target: Path) -> None:
    """Write the Flower app: the package without commands and pages, pyproject.toml and texts.

    The content does not depend on how the package is installed, so a FAB built from it has the
    same digest everywhere.
    """
    _copy(SHIPPED, target / "coterie")
    installed = metadata.distribution("coterie")
    about = installed.metadata
    licence = next(file for file in installed.files or () if file.name == "LICENSE")
    texts = {"README.md": _README.read_text("utf-8"), "LICENSE": licence.read_text()}
    for name, text in texts.items():
        (target / name).write_text(text, encoding="utf-8")
    project = {
        "name": "coterie",
        "version": about["Version"],
        "description": about["Summary"],
        "readme": "README.md",
        "license": {"file": "LICENSE"},
        "requires-python": about["Requires-Python"],
        "dependencies": [each for each in installed.requires or () if "extra ==" not in each],
    }
    app = {
        "publisher": "coterie",
        "fab-format-version": 1,
        "flwr-version-target": FLOWER,
        "fab-include": ["coterie/**/*.py", "coterie/**/*.toml", *texts],
        "components": {
            "serverapp": "coterie.app.server:app",
            "clientapp": "coterie.app.client:app",
        },
    }
    head = tomli_w.dumps({"project": project, "tool": {"flwr": {"app": app}}})
    text = f"{head}\n{defaults.section()}"
    (target / "pyproject.toml").write_text(text, encoding="utf-8")


def write_package(target: Path) -> Path:
    """Copy the whole package into `target`, for machines without it, and return its folder."""
    _copy(_EVERYTHING, target / "coterie")
    return target / "coterie"


def _copy(patterns: tuple[str, ...], target: Path) -> None:
    """Copy files of the package, from a checkout or an installation."""
    for folder in map(Path, coterie.__path__):
        for pattern in patterns:
            for source in folder.glob(pattern):
                inside = source.relative_to(folder)
                if not source.is_file() or "__pycache__" in inside.parts:
                    continue
                if inside.parent == Path() and folder.name != "coterie":
                    continue  # a file at the top of a checkout
                copy = target / inside
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, copy)
