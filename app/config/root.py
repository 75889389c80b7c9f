"""Where this code lies, and where a bare `flwr run` keeps its files."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The checkout, or the copy of it that Flower ships."""


def workplace() -> Path:
    """The directory that paths of a bare `flwr run` start from: the checkout that was installed.

    Its processes work in a directory that Flower chose. See `coterie.app.runners.environment`.
    """
    return Path(os.environ.get("COTERIE_ROOT", ".")).absolute()
