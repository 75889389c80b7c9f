"""Adaptation of any network: pretrained weights, frozen and personal layers, adapters.

`coterie.clients.models.options.Adaptation` says what a pattern matches; "body" are all layers
before "head", and "batch-norm" the layers of batch normalisation.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import torch
from torch import nn

from coterie.clients.models.options import Adaptation
from coterie.clients.models.transformer import add_adapters, read_tensors
from coterie.datasets.files.fingerprint import remembered

HEAD, BODY, BATCH_NORM = "head", "body", "batch-norm"
_remembered = remembered(1)(read_tensors)


def matching(names: Sequence[str], pattern: str, norms: Collection[str] = ()) -> list[str]:
    """Return the parameter names that match a pattern; ValueError: part of it matches none."""
    # `norms` are those of batch normalisation.
    parts = dict.fromkeys(part.strip() for part in pattern.split(",") if part.strip())
    matched: set[str] = set()
    for part in parts:
        hits = {name for name in names if is_inside(part, name)}
        last = names[-1].rpartition(".")[0]
        if not hits and part == BATCH_NORM:
            hits = {name for name in names if name in norms}
        elif not hits and part in (HEAD, BODY):
            is_head = part == HEAD
            hits = {name for name in names if (name.rpartition(".")[0] == last) == is_head}
        if not hits:
            modules = ", ".join(dict.fromkeys(name.rpartition(".")[0] or name for name in names))
            adapter = " (a factor of adapters: set model.lora-rank)" if part in ("A", "B") else ""
            raise ValueError(
                f'"{part}"{adapter} matches no parameter; the modules are {_short(modules)}'
            )
        matched |= hits
    return [name for name in names if name in matched]


def is_inside(part: str, name: str) -> bool:
    """Return True if whole parts of a dotted name match; "*" is any text. Takes linear time."""
    text, at = f".{name}.", 0
    for piece in f".{part}.".split("*"):
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True


def adapted(network: nn.Module, adaptation: Adaptation) -> nn.Module:
    """Load pretrained weights, insert adapters and freeze layers of a network, in place."""
    # ValueError: a pattern matches nothing, or no weight fits the network.
    loaded = _load(network, adaptation.weights) if adaptation.weights else frozenset()
    if adaptation.lora_rank:
        _adapt(network, adaptation, loaded)
    if adaptation.frozen:
        parameters = dict(network.named_parameters())
        for name in _matching(network, list(parameters), "frozen", adaptation.frozen):
            parameters[name].requires_grad_(False)
    if not any(value.requires_grad for value in network.parameters()):
        raise ValueError(f'model.frozen = "{adaptation.frozen}" leaves nothing to train')
    personal_names(network, adaptation)
    return network


def personal_names(network: nn.Module, adaptation: Adaptation | None) -> list[str]:
    """Return the names of the personal parameters; ValueError: the pattern matches none or all."""
    if adaptation is None or not adaptation.personal:
        return []
    trainable = [name for name, value in network.named_parameters() if value.requires_grad]
    personal = _matching(network, trainable, "personal", adaptation.personal)
    if len(personal) == len(trainable):
        raise ValueError(
            f'model.personal = "{adaptation.personal}" leaves nothing to share: name fewer layers, '
            'or set method = "local"'
        )
    return personal


def _adapt(network: nn.Module, adaptation: Adaptation, loaded: frozenset[str]) -> None:
    """Put adapters on linear layers and freeze the rest, except a last layer that is not loaded."""
    linear = [name for name, layer in network.named_modules() if type(layer) is nn.Linear]
    names = [name for name, _ in network.named_parameters()]
    head = {name for name in matching(names, HEAD) if loaded and name not in loaded}
    for name, value in network.named_parameters():
        value.requires_grad_(name in head)
    selected = [name for name in linear if f"{name}.weight" not in head]
    if adaptation.lora_layers != "*":
        selected = _matching(network, linear, "lora-layers", adaptation.lora_layers)
    if not selected:
        raise ValueError(
            f"model.lora-rank = {adaptation.lora_rank}: the network has no linear layers"
        )
    rank, alpha = adaptation.lora_rank, adaptation.lora_alpha
    add_adapters(network, selected, rank, rank if alpha == "auto" else alpha)


def _matching(network: nn.Module, names: Sequence[str], key: str, pattern: str) -> list[str]:
    norms = [
        f"{layer}.{name}".removeprefix(".")
        for layer, module in network.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm)
        for name, _ in module.named_parameters(recurse=False)
    ]
    try:
        return matching(names, pattern, norms)
    except ValueError as error:
        raise ValueError(f'model.{key} = "{pattern}": {error}') from None


def _load(network: nn.Module, file: str) -> frozenset[str]:
    # A tensor of another shape, such as a head for other classes, is ignored. ValueError: the file
    # does not exist, or no tensor fits.
    tensors = _remembered(Path(file), "model.weights")
    current = network.state_dict()
    fitting = {
        name: value
        for name, value in tensors.items()
        if name in current and current[name].shape == value.shape
    }
    if not fitting:
        raise ValueError(
            f"model.weights = {file}: no tensor fits the network; the file has "
            f"{_short(', '.join(tensors))}, the network has {_short(', '.join(current))}"
        )
    with torch.no_grad():
        for name, value in fitting.items():
            current[name].copy_(value)
    return frozenset(fitting)


def _short(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]} ..."
