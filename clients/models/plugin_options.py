"""The options of a plugin's network. No torch of ours; the plugin's own module may load it."""

from __future__ import annotations

from coterie.datasets import plugins

LIBRARIES = ("torchvision", "timm", "transformers")
"""Libraries whose networks have names, "torchvision:resnet18"; see `coterie.clients.models.libraries`."""


def of(name: str) -> type | None:
    """The dataclass of a plugin's options, where it has any.

    Raises
    ------
    PluginError
        There is no such plugin.
    """
    if name.partition(":")[0] in LIBRARIES:
        return None
    return plugins.options_of(plugins.load("model", name), name)
