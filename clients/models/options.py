"""The models by name, with their option tables. No torch: `coterie.clients.models.build` builds them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

if TYPE_CHECKING:
    from coterie.datasets.problem import Problem


MAX_LAYERS = 1000


@dataclass(frozen=True)
class Adaptation:
    """What is done with the network, whatever it is.

    A pattern names parameters, or modules with all that is in them: "fc", "layer4, fc",
    "encoder.*.mlp"; it matches whole parts of a dotted name. "head" is the last layer where nothing
    is called so.

    Attributes
    ----------
    weights : safetensors file of trained weights that all peers start from; tensors of another
        shape, such as a head for other classes, stay as they are.
    frozen : pattern of the parameters that are not trained.
    personal : pattern of the parameters that stay with their peer: they are trained, but neither
        sent nor averaged.
    lora_rank : rank of adapters (LoRA) on linear layers; all else is frozen but a last layer that
        `weights` lack. 0: none.
    lora_alpha : scale of the adapters: their output is multiplied by lora_alpha / lora_rank.
    lora_layers : pattern of the linear layers that get adapters; "*": all.
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
    """A multilayer perceptron with ReLU.

    Attributes
    ----------
    hidden : widths of the hidden layers, "64" or "1000-200"; "auto" is one layer, of 64 units up
        to 64 input features and of 128 above.
    """

    hidden: str = "auto"

    def __post_init__(self) -> None:
        if self.hidden != "auto" and not all(
            width.isdecimal() and int(width) > 0 for width in self.hidden.split("-")
        ):
            raise ValueError(f'hidden wants "auto" or widths like "1000-200", not "{self.hidden}"')
        if len(self.widths(1)) > MAX_LAYERS:
            raise ValueError(f"hidden wants at most {MAX_LAYERS} widths")

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.widths(1)) + 1

    def widths(self, features: int) -> tuple[int, ...]:
        """Widths of the hidden layers for inputs of `features` numbers."""
        if self.hidden == "auto":
            return (64,) if features <= 64 else (128,)
        return tuple(int(width) for width in self.hidden.split("-"))


@dataclass(frozen=True)
class LinearOptions:
    """A linear map.

    Attributes
    ----------
    bias : whether it has an intercept.
    """

    bias: bool = True


@dataclass(frozen=True)
class ResNet18Options:
    """ResNet-18 for small images.

    Attributes
    ----------
    norm : batch norm, or group norm with 32 groups, which has no running statistics.
    """

    norm: Literal["batch", "group"] = "batch"


@dataclass(frozen=True)
class TransformerOptions:
    """A decoder-only transformer, trained from scratch.

    Attributes
    ----------
    layers : transformer blocks.
    width : numbers that represent a token.
    heads : attention heads of a block.
    dropout : dropout rate on embeddings, attention weights and residual branches.
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
    """A trained GPT-2, frozen, with low-rank adapters (LoRA) that are trained and exchanged.

    Attributes
    ----------
    weights_file : model.safetensors of a GPT-2 of any size, or what a run of model =
        "transformer" saved, models/peer-0000.safetensors, with heads 64 wide like GPT-2's.
    rank : rank of the adapters.
    alpha : scale of the adapters: their output is multiplied by alpha / rank. The default is that
        of Hu et al. (2022) for GPT-2; CoBo's paper does not name it.
    dropout : dropout rate on embeddings, attention weights and residual branches.
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
        """Refuse to begin without the base."""
        self.base()

    def base(self) -> Path:
        """The file of the base.

        Raises
        ------
        ValueError : it is not there; says how to get it.
        """
        path = Path(self.weights_file)
        if not path.is_file():
            raise ValueError(
                f"no weights in {path} (gpt2.weights-file): download GPT-2's model.safetensors "
                "from https://huggingface.co/openai-community/gpt2, or take "
                'models/peer-0000.safetensors of a run with model = "transformer"'
            )
        return path


MODELS: dict[str, str] = {
    "auto": "what suits the dataset",
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
    "gpt2": "a trained GPT-2, frozen, with low-rank adapters that are trained and exchanged",
}
"""Model name -> one line of what it is."""

MODEL_OPTIONS: dict[str, type] = {
    "linear": LinearOptions,
    "mlp": MlpOptions,
    "resnet18": ResNet18Options,
    "transformer": TransformerOptions,
    "gpt2": Gpt2Options,
}
"""Model name -> its option table; a model that is not here has no options."""

_TASKS = {"unet3d": "segmentation", "transformer": "language", "gpt2": "language"}


def check_task(model: str, task: str) -> None:
    """See that a model can learn a kind of problem (see `coterie.datasets.problem.Problem.task`).

    Raises
    ------
    ValueError : it cannot; names those that can.
    """
    if model not in MODELS:  # a plugin's: it is tried (`coterie.clients.engine.probe`)
        return
    able = [name for name, kind in _TASKS.items() if kind == task]
    if model in able or (not able and model not in _TASKS):
        return
    known = able or [name for name in MODELS if name not in _TASKS]
    raise ValueError(f'model = "{model}" cannot learn {task}: choose {", ".join(known)}')
