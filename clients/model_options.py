"""The models by name, with their option tables. No torch here: `clients.models` builds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


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
}
"""Model name -> one line of what it is."""

MODEL_OPTIONS: dict[str, type] = {
    "linear": LinearOptions,
    "mlp": MlpOptions,
    "resnet18": ResNet18Options,
}
"""Model name -> its option table; a model that is not here has no options."""
