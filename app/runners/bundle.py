"""Flower's app bundle (FAB) and the whole package, written as folders from the installation."""

from __future__ import annotations

import shutil
import tomllib
from importlib import metadata
from pathlib import Path

import tomli_w

import coterie
from coterie.app.config import defaults

SHIPPED = (
    "__init__.py",
    "errors.py",
    "ranges.py",
    *("app/*.py", "app/config/**/*.py", "app/wire/**/*.py", "app/institution/*.py"),
    *(f"app/institution/{room}/**/*.py" for room in ("process", "requests", "security")),
    *("app/node/**/*.py", "app/runs/**/*.py", "app/trained/**/*.py"),
    *("strategies/**/*.py", "clients/**/*.py", "datasets/**/*.py"),
    *("datasets/**/*.toml", "presets/**/*.toml", "recipes/*.toml"),
)
"""Files that relay and nodes need, as patterns below the package."""
_TEMPLATES = Path(__file__).with_name("templates")
_ROOMS = ("app", "strategies", "clients", "datasets", "recipes")
_EVERYTHING = ("*.py", *(f"{room}/**/*" for room in _ROOMS))


def write_app(target: Path) -> None:
    """Write the Flower app: the package without commands and pages, pyproject.toml and texts.

    The content does not depend on how the package is installed, so a FAB built from it has the
    same digest everywhere.
    """
    _copy(SHIPPED, target / "coterie")
    shutil.copy(_TEMPLATES / "README.md", target)
    about = metadata.distribution("coterie")
    shutil.copy(next(f for f in about.files or () if f.name == "LICENSE").locate(), target)
    app = tomllib.loads((_TEMPLATES / "pyproject.toml").read_text("utf-8"))
    app["project"] |= {
        "version": about.version,
        "description": about.metadata["Summary"],
        "requires-python": about.metadata["Requires-Python"],
        "dependencies": [each for each in about.requires or () if "extra ==" not in each],
    }
    text = f"{tomli_w.dumps(app)}\n{defaults.section()}"
    (target / "pyproject.toml").write_text(text, encoding="utf-8")


def write_package(target: Path) -> Path:
    """Copy the whole package into `target`, for machines without it, and return its folder."""
    _copy(_EVERYTHING, target / "coterie")
    return target / "coterie"


def _copy(patterns: tuple[str, ...], target: Path) -> None:
    folder = Path(coterie.__file__).parent
    for source in (source for pattern in patterns for source in folder.glob(pattern)):
        inside = source.relative_to(folder)
        if source.is_file() and "__pycache__" not in inside.parts:
            (target / inside).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target / inside)
