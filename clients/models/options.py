"""Names and options of the models; without torch (`coterie.clients.models.build` builds them)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

if TYPE_CHECKING:
    from coterie.datasets.problem import Problem


MAX_LAYERS = 1000


@dataclass(frozen=True)
class Adaptation:
    """Adaptation of any network: pretrained weights, frozen and personal layers, adapters.

    A pattern matches parameters, or modules with all their parameters: "fc", "layer4, fc",
    "encoder.*.mlp". It matches whole parts of a dotted name. "head" is the last layer if no
    parameter or module has that name.

    Attributes
    ----------
    weights : path
        Safetensors file of pretrained weights that all peers start from; tensors of another shape,
        such as a head for other classes, are ignored.
    frozen : str
        Pattern of the parameters that are not trained.
    personal : str
        Pattern of the personal parameters, which are trained but neither sent nor averaged.
    lora_rank : int
        Rank of adapters (LoRA) on linear layers; 0 for none. All other parameters are frozen,
        except a last layer that `weights` does not contain.
    lora_alpha : float
        Scale of the adapters: their output is multiplied by lora_alpha / lora_rank.
    lora_layers : str
        Pattern of the linear layers that get adapters; "*" for all.
    """

    weights: Annotated[str, Path] = ""
    frozen: str = ""
    personal: str = ""
    lora_rank: int = 0
    lora_alpha: float = 16.0
    lora_layers: str = "*"

    def __post_init__(self) -> None:
        if self.lora_rank < 0:
            raise ValueError("lora-rank must be at least 1, or 0 for no adapters")


@dataclass(frozen=True)
class MlpOptions:
    """Multilayer perceptron with ReLU.

    Attributes
    ----------
    hidden : str
        Widths of the hidden layers, "64" or "1000-200"; "auto" is one layer, of 64 units for up to
        64 input features and of 128 above.
    """

    hidden: str = "auto"

    def __post_init__(self) -> None:
        if self.hidden != "auto" and not all(
            width.isdecimal() and int(width) > 0 for width in self.hidden.split("-")
        ):
            raise ValueError(
                f'hidden must be "auto" or widths like "1000-200", not "{self.hidden}"'
            )
        if len(self.widths(1)) > MAX_LAYERS:
            raise ValueError(f"hidden must have at most {MAX_LAYERS} widths")

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.widths(1)) + 1

    def widths(self, features: int) -> tuple[int, ...]:
        """Return the widths of the hidden layers for a number of input features."""
        if self.hidden == "auto":
            return (64,) if features <= 64 else (128,)
        return tuple(int(width) for width in self.hidden.split("-"))


@dataclass(frozen=True)
class LinearOptions:
    """Linear model.

    Attributes
    ----------
    bias : bool
        Include an intercept.
    """

    bias: bool = True


@dataclass(frozen=True)
class ResNet18Options:
    """ResNet-18 for small images.

    Attributes
    ----------
    norm : {"batch", "group"}
        Batch norm, or group norm with 32 groups, which has no running statistics.
    """

    norm: Literal["batch", "group"] = "batch"


@dataclass(frozen=True)
class TransformerOptions:
    """Decoder-only transformer, trained from scratch.

    Attributes
    ----------
    layers : int
        Number of transformer blocks.
    width : int
        Embedding width.
    heads : int
        Attention heads per block; must divide `width`.
    dropout : float
        Dropout rate on embeddings, attention weights and residual branches.
    """

    layers: int = 2
    width: int = 64
    heads: int = 4
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if min(self.layers, self.width, self.heads) < 1:
            raise ValueError("layers, width and heads must be at least 1")
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, {self.heads}")
        if not 0 <= self.dropout < 1:
            raise ValueError("dropout must be at least 0 and below 1")

    @property
    def depth(self) -> int:
        """Number of blocks."""
        return self.layers


@dataclass(frozen=True)
class Gpt2Options:
    """Pretrained GPT-2, frozen, with low-rank adapters (LoRA) that are trained and exchanged.

    Attributes
    ----------
    weights_file : path
        model.safetensors of a GPT-2 of any size, or models/peer-0000.safetensors of a run with
        model = "transformer" and heads 64 wide, like GPT-2's.
    rank : int
        Rank of the adapters.
    alpha : float
        Scale of the adapters: their output is multiplied by alpha / rank. The default is that of
        Hu et al. (2022) for GPT-2; CoBo's paper does not state it.
    dropout : float
        Dropout rate on embeddings, attention weights and residual branches.
    """

    weights_file: Annotated[str, Path] = "data/gpt2/model.safetensors"
    rank: int = 4
    alpha: float = 32.0
    dropout: float = 0.1

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError("rank must be at least 1")
        if not 0 <= self.dropout < 1:
            raise ValueError("dropout must be at least 0 and below 1")

    def fits(self, problem: Problem) -> None:
        """Check that the pretrained weights exist."""
        self.base()

    def base(self) -> Path:
        """Return the file of pretrained weights.

        Raises
        ------
        ValueError
            The file does not exist; the message says how to get it.
        """
        path = Path(self.weights_file)
        if not path.is_file():
            raise ValueError(
                f"no weights in {path} (gpt2.weights-file): download GPT-2's model.safetensors "
                "from https://huggingface.co/openai-community/gpt2, or use "
                'models/peer-0000.safetensors of a run with model = "transformer"'
            )
        return path


MODELS: dict[str, str] = {
    "auto": "default model of the data set",
    "linear": "multinomial logistic regression, or least squares",
    "mlp": "multilayer perceptron with ReLU",
    "lenet": "LeNet with ReLU and max pooling: 62,006 parameters on 3x32x32",
    "lenet-femnist": "DPFL's smaller LeNet: 37,586 parameters on 1x28x28",
    "cnn": "two 5x5 convolutions and 512 hidden units: 1.7 million parameters on 1x28x28",
    "cnn-mnist": "All-for-one's network for MNIST: 21,840 parameters on 1x28x28",
    "cnn-128": "FedeRiCo's three 3x3 convolutions of 128 channels: 303,882 parameters on 3x32x32",
    "resnet9": "CoBo's ResNet-9 with batch norm: 6.6 million parameters",
    "resnet18": "ResNet-18 for small images: 11.2 million parameters",
    "unet3d": "U-Net for volumes: 246,156 parameters",
    "transformer": "small transformer for tokens, trained from scratch",
    "gpt2": "pretrained GPT-2, frozen, with low-rank adapters that are trained and exchanged",
}
"""Descriptions of the models by name."""

MODEL_OPTIONS: dict[str, type] = {
    "linear": LinearOptions,
    "mlp": MlpOptions,
    "resnet18": ResNet18Options,
    "transformer": TransformerOptions,
    "gpt2": Gpt2Options,
}
"""Option tables of the models by name; other models have no options."""

_CONVOLUTIONAL = frozenset(
    {"lenet", "lenet-femnist", "cnn", "cnn-mnist", "cnn-128", "resnet9", "resnet18"}
)
_TASKS = {"unet3d": "segmentation", "transformer": "language", "gpt2": "language"}


def check_task(model: str, task: str) -> None:
    """Check that a model supports a task (see `coterie.datasets.problem.Problem.task`).

    Raises
    ------
    ValueError
        It does not; the message names the models that do.
    """
    if model not in MODELS:  # a plugin: `coterie.clients.engine.probe` tries it
        return
    special = [name for name, kind in _TASKS.items() if kind == task]
    if model in special or (not special and model not in _TASKS):
        return
    known = special or [name for name in MODELS if name not in _TASKS]
    raise ValueError(f'model = "{model}" does not support {task} tasks: choose {", ".join(known)}')


def check_shape(model: str, shape: tuple[int, ...]) -> None:
    """See that a built-in model takes examples of a shape.

    Raises
    ------
    ValueError : it wants images of a minimum size.
    """
    if model in _CONVOLUTIONAL:
        check_image(shape)


def check_image(shape: tuple[int, ...]) -> None:
    """See that an example is an image that a convolutional network takes.

    Raises
    ------
    ValueError : it is not an image, or too small.
    """
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise ValueError(
            f"the model wants images of at least 4x4, but an example has shape {shape}: "
            'choose model = "mlp" or "linear"'
        )
