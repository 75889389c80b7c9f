"""What can be done with any network: trained weights to start from, frozen layers, adapters.

A pattern names parameters, or modules with all that is in them: "fc", "layer4", "encoder.*.mlp",
several with commas. It matches whole parts of a dotted name, wherever they stand in it. "head" is
the last layer where nothing is called so.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from coterie.clients.models.options import Adaptation
from coterie.clients.models.transformer import Adapted

HEAD = "head"


def matching(names: Sequence[str], pattern: str) -> list[str]:
    """Those of the parameters that a pattern names.

    Raises
    ------
    ValueError
        It names none.
    """
    parts = [part.strip() for part in pattern.split(",") if part.strip()]
    found: set[str] = set()
    for part in parts:
        glob = re.escape(part).replace(r"\*", ".*")
        inside = re.compile(rf"(^|\.){glob}(\.|$)")
        own = {name for name in names if inside.search(name)}
        if not own and part == HEAD:
            last = names[-1].rpartition(".")[0]
            own = {name for name in names if name.rpartition(".")[0] == last}
        if not own:
            modules = ", ".join(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
            raise ValueError(f'no parameter is called "{part}"; there are {_short(modules)}')
        found |= own
    return [name for name in names if name in found]


def adapted(network: nn.Module, adaptation: Adaptation) -> nn.Module:
    """The network with trained weights, adapters and frozen layers, as the options say.

    Raises
    ------
    ValueError
        A pattern names nothing, or the weights are of another network.
    """
    loaded = _load(network, adaptation.weights) if adaptation.weights else frozenset()
    if adaptation.lora_rank:
        _adapt(network, adaptation, loaded)
    if adaptation.frozen:
        parameters = dict(network.named_parameters())
        for name in _matching(list(parameters), "frozen", adaptation.frozen):
            parameters[name].requires_grad_(False)
    if not any(value.requires_grad for value in network.parameters()):
        raise ValueError(f'model.frozen = "{adaptation.frozen}" leaves nothing to train')
    personal_names(network, adaptation)
    return network


def personal_names(network: nn.Module, adaptation: Adaptation | None) -> list[str]:
    """The parameters that stay with their peer.

    Raises
    ------
    ValueError
        The pattern names none, or all.
    """
    if adaptation is None or not adaptation.personal:
        return []
    trainable = [name for name, value in network.named_parameters() if value.requires_grad]
    found = _matching(trainable, "personal", adaptation.personal)
    if len(found) == len(trainable):
        raise ValueError(
            f'model.personal = "{adaptation.personal}" leaves nothing to share: take method = '
            '"local", or fewer layers'
        )
    return found


def _adapt(network: nn.Module, adaptation: Adaptation, loaded: frozenset[str]) -> None:
    """Put adapters on linear layers and freeze the rest, but a last layer that is new."""
    linear = [name for name, layer in network.named_modules() if type(layer) is nn.Linear]
    names = [name for name, _ in network.named_parameters()]
    head = {name for name in matching(names, HEAD) if loaded and name not in loaded}
    for name, value in network.named_parameters():
        value.requires_grad_(name in head)
    wanted = [name for name in linear if f"{name}.weight" not in head]
    if adaptation.lora_layers != "*":
        wanted = _matching(linear, "lora-layers", adaptation.lora_layers)
    if not wanted:
        raise ValueError(f"model.lora-rank = {adaptation.lora_rank}: it has no linear layers")
    for name in wanted:
        parent, _, child = name.rpartition(".")
        layer = network.get_submodule(name)
        assert isinstance(layer, nn.Linear)
        adapter = Adapted(layer, adaptation.lora_rank, adaptation.lora_alpha)
        setattr(network.get_submodule(parent), child, adapter)


def _matching(names: Sequence[str], key: str, pattern: str) -> list[str]:
    try:
        return matching(names, pattern)
    except ValueError as error:
        raise ValueError(f'model.{key} = "{pattern}": {error}') from None


def _load(network: nn.Module, file: str) -> frozenset[str]:
    """Take over the tensors of a file that fit; the names of those that did.

    A layer of another width, such as a head for other classes, keeps its own.

    Raises
    ------
    ValueError
        There is no such file, or nothing in it fits.
    """
    tensors = _read(Path(file))
    own = network.state_dict()
    fitting = {
        name: value
        for name, value in tensors.items()
        if name in own and own[name].shape == value.shape
    }
    if not fitting:
        raise ValueError(
            f"model.weights = {file}: nothing in it fits; it has {_short(', '.join(tensors))}, the "
            f"network {_short(', '.join(own))}"
        )
    with torch.no_grad():
        for name, value in fitting.items():
            own[name].copy_(value)
    return frozenset(fitting)


@lru_cache(maxsize=1)
def _read(path: Path) -> dict[str, Tensor]:
    # Only here, so that all other networks run where nothing but torch and NumPy is installed.
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise ValueError(f"model.weights = {path}: there is no such file")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(
            f"model.weights = {path} is no safetensors file ({error}): write one with "
            "safetensors.torch.save_file(network.state_dict(), PATH)"
        ) from None


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]} ..."
