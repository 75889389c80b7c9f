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
_ROOMS = ("app", "strategies", "clients", "datasets", "recipes")
_EVERYTHING = ("*.py", *(f"{room}/**/*" for room in _ROOMS))


def write_app(target: Path) -> None:
    """Write the Flower app: the package without commands and pages, and its pyproject.toml.

    The content does not depend on how the package is installed, so a FAB built from it has the
    same digest everywhere.
    """
    _copy(SHIPPED, target / "coterie")
    about = metadata.metadata("coterie")
    project = {
        "name": "coterie",
        "version": about["Version"],
        "description": about["Summary"],
        "license": "Apache-2.0",
        "dependencies": [],
    }
    app = {
        "publisher": "coterie",
        "fab-include": ["coterie/**/*.py", "coterie/**/*.toml"],
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
