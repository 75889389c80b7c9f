"""Networks of other libraries: "torchvision:resnet18", "timm:convnext_atto", "transformers:FOLDER".

torchvision and timm build them untrained, for the data's channels and classes, by the names of
their own registries; a file of trained weights is `model.weights`. "transformers:FOLDER" reads
configuration and weights from a local folder, but runs no code from there. Nothing is downloaded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.clients.models.build import SizeError
from coterie.datasets.plugins import PluginError

Shape = tuple[int, ...]

_REGISTERED = re.compile(r"[\w-]+(\.[\w-]+)*")
"""A network of timm, and the tag of its weights: no source in front, no path."""
SMALLEST = 32
"""Images are enlarged to a multiple of this side: networks for photographs halve it five times."""


def build_of_library(name: str, task: str, shape: Shape, outputs: int) -> nn.Module:
    """Build the network "LIBRARY:NAME" for examples of `shape`."""
    # PluginError: the library is not installed, has no such network or does not support them.
    library, _, network = name.partition(":")
    build = {"torchvision": _torchvision, "timm": _timm, "transformers": _transformers}[library]
    try:
        return build(network, task, shape, outputs)
    except ImportError:
        raise PluginError(f'model = "{name}" needs {library}: pip install {library}') from None
    except SizeError:
        raise
    except PluginError as error:
        raise PluginError(f'model = "{name}": {error}') from None
    except Exception as error:  # each library has its own errors
        reason = " ".join(str(error).split())
        raise PluginError(f'model = "{name}" cannot be built for {shape}: {reason}') from error


def _torchvision(name: str, task: str, shape: Shape, outputs: int) -> nn.Module:
    from torchvision import models

    # Those for other tasks than classification download a backbone.
    known = models.list_models(module=models)
    if name not in known:
        raise PluginError(f"torchvision has no such classifier{_nearest(name, known)}")
    side = _side(task, shape)
    options: dict[str, Any] = {"image_size": side} if name.startswith("vit_") else {}
    if name in ("googlenet", "inception_v3"):
        options = {"aux_logits": False, "init_weights": True}
    network = models.get_model(name, weights=None, num_classes=outputs, **options)
    _set_channels(network, shape[0])
    return _enlarging(network, side)


def _timm(name: str, task: str, shape: Shape, outputs: int) -> nn.Module:
    import timm

    # create_model also takes "hf-hub:..." and "local-dir:...": a host, and a path.
    if not _REGISTERED.fullmatch(name) or not timm.is_model(name):
        raise PluginError(f"timm has no such network{_nearest(name, timm.list_models())}")
    side = _side(task, shape)
    make = partial(timm.create_model, name, in_chans=shape[0], num_classes=outputs)
    try:
        network = make(img_size=side)  # vision transformers need the size
    except TypeError:
        network = make()
    return _enlarging(network, side)


def _transformers(name: str, task: str, shape: Shape, outputs: int) -> nn.Module:
    import transformers

    folder = Path(name)
    if not (folder / "config.json").is_file():
        raise PluginError(f"no config.json in {folder}: name a folder saved by transformers")
    # Its progress bars would mix with ours.
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    options: dict[str, Any] = {
        "local_files_only": True, "trust_remote_code": False,
        "attn_implementation": "eager",  # fused attention cannot be batched over models
    }  # fmt: skip
    if task == "language":
        network = transformers.AutoModelForCausalLM.from_pretrained(folder, **options)
        config = network.config.get_text_config()
        if config.vocab_size < outputs:
            raise PluginError(
                f"its vocabulary has {config.vocab_size} tokens, the data set's {outputs}: choose "
                "the tokenizer of this model"
            )
        longest = getattr(config, "max_position_embeddings", math.inf)
        if shape[0] > longest:
            raise PluginError(f"it reads at most {longest} tokens: lower the data set's context")
        _linear_instead_of_conv1d(network)
        return Logits(network, "input_ids", outputs)
    if task == "classification" and len(shape) == 3:
        network = transformers.AutoModelForImageClassification.from_pretrained(
            folder, num_labels=outputs, ignore_mismatched_sizes=True, **options
        )
        logits = Logits(network, "pixel_values", outputs)
        channels = getattr(network.config, "num_channels", 3)
        if shape[0] == 1 < channels:  # reuse the pretrained colour filters for grey images
            logits.register_forward_pre_hook(partial(_repeat_grey, channels))
        side = getattr(network.config, "image_size", None)
        return _enlarging(logits, side if isinstance(side, int) else _side(task, shape))
    raise PluginError(f"networks of transformers support language and images, not {task}")


class Logits(nn.Module):
    """Wrapper of a transformers network that returns the logits of the first `outputs` classes."""

    def __init__(self, network: nn.Module, argument: str, outputs: int) -> None:
        super().__init__()
        self.network = network
        self._argument, self._outputs = argument, outputs

    def forward(self, examples: Tensor) -> Tensor:
        options = {"use_cache": False} if self._argument == "input_ids" else {}
        logits: Tensor = self.network(**{self._argument: examples}, **options).logits
        return logits[..., : self._outputs]


def _linear_instead_of_conv1d(network: nn.Module) -> None:
    """Replace GPT-2's transposed linear layers by `nn.Linear`, which adapters need."""
    from transformers.pytorch_utils import Conv1D

    for name, layer in [*network.named_modules()]:
        if isinstance(layer, Conv1D):
            linear = nn.Linear(*layer.weight.shape)
            linear.weight = nn.Parameter(layer.weight.detach().T.contiguous())
            linear.bias = nn.Parameter(layer.bias.detach())
            parent, _, child = name.rpartition(".")
            setattr(network.get_submodule(parent), child, linear)


def _nearest(name: str, known: Sequence[str]) -> str:
    """Return the end of an error message that suggests a similar name, or ""."""
    likely = get_close_matches(name, known, n=1)
    return f', did you mean "{likely[0]}"?' if likely else ""


def _side(task: str, shape: Shape) -> int:
    """Return the side of the network's square input images, a multiple of `SMALLEST`."""
    if task != "classification" or len(shape) != 3:
        raise PluginError(f"it classifies images, but an example has shape {shape} ({task})")
    return SMALLEST * math.ceil(max(shape[1:]) / SMALLEST)


def _set_channels(network: nn.Module, channels: int) -> None:
    """Replace the first convolution by one for `channels` input channels, if they differ."""
    for name, layer in network.named_modules():
        if isinstance(layer, nn.Conv2d):
            if layer.in_channels != channels:
                parent, _, child = name.rpartition(".")
                shape: Any = layer.out_channels, layer.kernel_size, layer.stride, layer.padding
                has_bias = layer.bias is not None
                first = nn.Conv2d(channels, *shape, bias=has_bias)  # type: ignore[misc]
                setattr(network.get_submodule(parent), child, first)
            return


def _repeat_grey(channels: int, network: nn.Module, arguments: tuple[Tensor]) -> tuple[Tensor]:
    return (arguments[0].expand(-1, channels, -1, -1),)


def _enlarging(network: nn.Module, side: int) -> nn.Module:
    """Make a network resize its images to `side` x `side` first; parameter names do not change."""
    network.register_forward_pre_hook(partial(_enlarge, side))
    return network


def _enlarge(side: int, network: nn.Module, arguments: tuple[Tensor]) -> tuple[Tensor]:
    (images,) = arguments
    if images.shape[-2:] == torch.Size((side, side)):
        return arguments
    return (F.interpolate(images, (side, side), mode="nearest"),)
