"""Options of a plugin's network. Does not import torch, though the plugin may."""

from __future__ import annotations

from datasets import plugins

LIBRARIES = ("torchvision", "timm", "transformers")
"""Prefixes of library networks, "torchvision:resnet18"; see `clients.models.libraries`."""


def of(name: str) -> type | None:
    """Return the option dataclass of a plugin, or None.

    Raises
    ------
    PluginError
        The plugin does not exist.
    """
    if name.partition(":")[0] in LIBRARIES:
        return None
    return plugins.options_of(plugins.load("model", name), name)
