"""A version of flwr or Ray in which no private name is where this one has it.

The libraries themselves need their private modules, so only imports from Coterie's modules fail.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from typing import Any

PUBLIC = (
    "flwr.app",
    "flwr.clientapp",
    "flwr.serverapp",
    "flwr.serverapp.strategy",
    "flwr.simulation",
)
"""Modules that flwr documents, https://flower.ai/docs/framework/ref-api/flwr.html."""

START = "from tests.private_names import hide\nhide()\n"
"""A `sitecustomize.py` that hides the names in a process of Python."""


def is_private(module: str) -> bool:
    """Return whether flwr or Ray does not document a module."""
    library, *path = module.split(".")
    if library == "flwr":
        return module not in PUBLIC
    return library == "ray" and any(name.startswith("_") for name in path)


def hide() -> None:
    """Let imports of private modules fail in Coterie's modules that are not imported yet."""
    real = builtins.__import__

    def guarded(name: str, names: Mapping[str, Any] | None = None, *rest: Any, **more: Any) -> Any:
        importer = str((names or {}).get("__name__"))
        if importer.startswith("coterie.") and is_private(name):
            raise ModuleNotFoundError(f"No module named {name!r}")
        return real(name, names, *rest, **more)

    builtins.__import__ = guarded  # type: ignore[assignment]
