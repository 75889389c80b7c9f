"""Paths of the package and its presets, and of the files of a bare `flwr run`."""

from __future__ import annotations

import json
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import coterie

ROOT = Path(__file__).resolve().parents[2]
"""The folder of `presets/`: the checkout, or the installed package."""
IMPORT_ROOT = Path(coterie.__file__).resolve().parents[1]
"""The folder that `coterie` is imported from: the checkout, site-packages, or Flower's bundle."""


def workplace() -> Path:
    """Return the directory that relative paths of a bare `flwr run` start from.

    Flower chooses the working directory of its processes. After an editable install it is the
    checkout, otherwise the working directory.
    """
    try:
        origin = json.loads(metadata.distribution("coterie").read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        origin = {}
    if origin.get("dir_info", {}).get("editable"):
        return Path(url2pathname(urlsplit(origin["url"]).path))
    return Path.cwd()
