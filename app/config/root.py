"""Paths of the package and its presets, and of the files of a bare `flwr run`."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import coterie
from coterie.app.config.keys import ConfigError

ROOT = Path(__file__).resolve().parents[2]
"""The folder of `presets/`: the checkout, or the installed package."""
IMPORT_ROOT = Path(coterie.__file__).resolve().parents[1]
"""The folder that `coterie` is imported from: the checkout, site-packages, or Flower's bundle."""


def workplace() -> Path:
    """Return the directory that relative paths of a bare `flwr run` start from.

    Flower chooses the working directory of its processes. After an editable install it is the
    checkout, otherwise the working directory.
    """
    return installed_clone() or Path.cwd()


def installed_clone() -> Path | None:
    """Return the checkout whose editable install this environment has."""
    try:
        origin = json.loads(metadata.distribution("coterie").read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        origin = {}
    if origin.get("dir_info", {}).get("editable"):
        return Path(url2pathname(urlsplit(origin["url"]).path)).resolve()
    return None


def is_other_clone(folder: Path, code: Path | None) -> bool:
    """Return whether `folder` is a checkout of Coterie, and not the one at `code`."""
    return (folder / "coterie" / "api.py").exists() and folder.resolve() != code


def refuse_other_clone() -> None:
    """Refuse `flwr run` in a clone whose environment has the code of another one.

    Its runs would be written there. `flwr run` looks for the app before it sends it, so this
    module is then the one of the app's folder.
    """
    if (installed := installed_clone()) and is_other_clone(IMPORT_ROOT, installed):
        raise ConfigError(
            f"this environment has the code of the clone {installed}, not of {IMPORT_ROOT}: "
            f"run `make install` here and `source .venv/bin/activate`, or go to {installed}"
        )
