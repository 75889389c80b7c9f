"""Paths of the package and its presets, and of the files of a bare `flwr run`."""

from __future__ import annotations

import filecmp
import json
from contextlib import suppress
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
    """Return where paths of a bare `flwr run` start: an editable install's checkout, or here."""
    return installed_clone() or Path.cwd()


def installed_clone() -> Path | None:
    """Return the checkout whose editable install this environment has."""
    with suppress(metadata.PackageNotFoundError):
        origin = json.loads(metadata.distribution("coterie").read_text("direct_url.json") or "{}")
        if origin.get("dir_info", {}).get("editable"):
            return Path(url2pathname(urlsplit(origin["url"]).path)).resolve()
    return None


def is_clone(folder: Path) -> bool:
    """Return whether a folder is a checkout."""
    return (folder / "coterie" / "api.py").exists()


def refuse_other_code() -> None:
    """Refuse code that is not that of the clone in which a bare `flwr run` would write."""
    if (clone := installed_clone() or IMPORT_ROOT) == IMPORT_ROOT:
        return
    rooms = ("app", "clients", "coterie", "datasets", "strategies")
    files = (file for room in rooms for file in IMPORT_ROOT.glob(f"{room}/**/*.py"))
    names = [str(file.relative_to(IMPORT_ROOT)) for file in files]
    if is_clone(IMPORT_ROOT) or filecmp.cmpfiles(IMPORT_ROOT, clone, names, False)[0] != names:
        raise ConfigError(
            f"Flower runs in the environment of the clone {clone}, not of {IMPORT_ROOT}: `make "
            "install` and `source .venv/bin/activate` here, and end flower-superlink"
        )
