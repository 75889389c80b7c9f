"""Table of the models, and their options. Does not import torch, though a plugin may."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from coterie.datasets import plugins
from coterie.ranges import option

if TYPE_CHECKING:
    from torch import nn

    from coterie.datasets.problem import Problem

LIBRARIES = ("torchvision", "timm", "transformers")
"""Prefixes of library networks, "torchvision:resnet18"; see `coterie.clients.models.libraries`."""


MAX_LAYERS = 1000
AND = " + "
"""Joins the names of several models."""
_BRIEF = 60


@dataclass(frozen=True)
class Adaptation:
    """Adaptation of any network: pretrained weights, frozen and personal layers, adapters.

    A pattern matches parameters, or modules with all their parameters: "fc", "layer4, fc",
    "encoder.*.mlp". It matches whole parts of a dotted name. "head" is the last layer if no
    parameter or module has that name.
    """

    weights: str = option(
        "",
        "Safetensors file of pretrained weights that all peers start from; tensors of another "
        "shape, such as a head for other classes, are ignored.",
        path=True,
    )
    frozen: str = option("", "Pattern of the parameters that are not trained.")
    personal: str = option(
        "", "Pattern of the personal parameters, which are trained but neither sent nor averaged."
    )
    lora_rank: int = option(
        0,
        "Rank of adapters (LoRA) on linear layers; 0 for none. All other parameters are frozen, "
        "except a last layer that `weights` does not contain.",
        low=0,
    )
    lora_alpha: float | Literal["auto"] = option(
        "auto",
        'Scale of the adapters: their output is multiplied by lora-alpha / lora-rank. "auto" is '
        "the rank, with which the usual learning rates of a network do for its adapters.",
    )
    lora_layers: str = option("*", 'Pattern of the linear layers that get adapters; "*" for all.')


@dataclass(frozen=True)
class MlpOptions:
    """Multilayer perceptron with ReLU."""

    hidden: str = option(
        "auto",
        'Widths of the hidden layers, "64" or "1000-200"; "auto" is one layer, of 64 units for up '
        "to 64 input features and of 128 above.",
    )

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
        return len(self.widths(1)) + 1

    def widths(self, features: int) -> tuple[int, ...]:
        """Return the widths of the hidden layers for a number of input features."""
        if self.hidden == "auto":
            return (64,) if features <= 64 else (128,)
        return tuple(int(width) for width in self.hidden.split("-"))


@dataclass(frozen=True)
class LinearOptions:
    """Linear model."""

    bias: bool = option(True, "Include an intercept.")


@dataclass(frozen=True)
class LogisticOptions:
    """Logistic regression, fitted by scikit-learn."""

    c: float = option(
        0.1, "Inverse of the strength of the ridge penalty, scikit-learn's C.", above=0
    )


_STEP = (
    "Step of the thresholds, in standard deviations of a column: trees are fitted to values that "
    "are rounded to twice as much. 0: thresholds lie between the values of two rows."
)


@dataclass(frozen=True)
class ForestOptions:
    """Random forest, fitted by scikit-learn."""

    trees: int = option(100, "Number of trees.", low=1, high=10_000)
    max_leaf_nodes: int = option(32, "Maximum number of leaves of a tree.", low=2, high=1024)
    min_samples_leaf: int = option(3, "Minimum number of training rows in a leaf.", low=1)
    threshold_step: float = option(0.0, _STEP, low=0, high=1)


@dataclass(frozen=True)
class GradientBoostingOptions:
    """Gradient boosting, by any library."""

    trees: int = option(
        100,
        "Number of stages; each has a tree, with more than two classes one per class.",
        low=1,
        high=10_000,
    )
    learning_rate: float = option(0.1, "Factor on the values of a stage.", above=0, high=1)
    max_leaf_nodes: int = option(8, "Maximum number of leaves of a tree.", low=2, high=1024)
    threshold_step: float = option(0.0, _STEP, low=0, high=1)
    min_samples_leaf: int = option(3, "Minimum number of training rows in a leaf.", low=1)


@dataclass(frozen=True)
class XGBoostOptions(GradientBoostingOptions):
    """Gradient boosting, fitted by XGBoost."""

    min_samples_leaf: int = option(
        1,
        "Minimum number of training rows in a leaf, by the largest sum of second derivatives that "
        "fewer rows can have; so most leaves have more.",
        low=1,
    )


@dataclass(frozen=True)
class ResNet9Options:
    """CoBo's ResNet-9."""

    width: int = option(64, "Channels of the first convolution; each stage doubles them.", low=1)


@dataclass(frozen=True)
class ResNet18Options:
    """ResNet-18 for small images."""

    norm: Literal["batch", "group"] = option(
        "batch", "Batch norm, or group norm with 32 groups, which has no running statistics."
    )


@dataclass(frozen=True)
class TransformerOptions:
    """Decoder-only transformer, trained from scratch."""

    layers: int = option(2, "Number of transformer blocks.", low=1)
    width: int = option(64, "Embedding width.", low=1)
    heads: int = option(4, "Attention heads per block; must divide `width`.", low=1)
    dropout: float = option(
        0.0, "Dropout rate on embeddings, attention weights and residual branches.", low=0, below=1
    )

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads, {self.heads}")

    @property
    def depth(self) -> int:
        return self.layers


@dataclass(frozen=True)
class Gpt2Options:
    """Pretrained GPT-2, frozen, with low-rank adapters (LoRA) that are trained and exchanged."""

    weights_file: str = option(
        "data/gpt2/model.safetensors",
        "path model.safetensors of a GPT-2 of any size, or models/peer-0000.safetensors of a run "
        'with model = "transformer" and heads 64 wide, like GPT-2\'s.',
        path=True,
    )
    rank: int = option(4, "Rank of the adapters.", low=1)
    alpha: float = option(
        32.0,
        "Scale of the adapters: their output is multiplied by alpha / rank. The default is that "
        "of Hu et al. (2022) for GPT-2; CoBo's paper does not state it.",
    )
    dropout: float = option(
        0.1, "Dropout rate on embeddings, attention weights and residual branches.", low=0, below=1
    )

    def check_data(self, problem: Problem) -> None:
        self.base()

    def base(self) -> Path:
        """Return the file of pretrained weights; if it is missing, an error says how to get it."""
        path = Path(self.weights_file)
        if not path.is_file():
            raise ValueError(
                f"no weights in {path} (gpt2.weights-file): download GPT-2's model.safetensors "
                "from https://huggingface.co/openai-community/gpt2, or use "
                'models/peer-0000.safetensors of a run with model = "transformer"'
            )
        return path


@dataclass(frozen=True)
class Model:
    """Model: a row of `MODELS`."""

    summary: str
    build: str | Callable[..., nn.Module]
    """Network, or function from (shape, outputs) or (shape, outputs, options), or from sizes under
    their usual names (`num_classes`), to a network with random weights;
    "module:function" inside `coterie.clients.models`, so that the table does not import torch."""
    options: type | None = None
    """Frozen dataclass of the model's table; of a plugin, the table is [model-options]."""
    tasks: tuple[str, ...] = ()
    """Tasks that the model can learn (`coterie.datasets.problem.Problem.task`); empty: any."""
    images: bool = False  # an example must be an image of at least 4x4
    library: str = ""
    """Name of the library that fits the model to the training rows, see
    `coterie.clients.models.fitted`; `build` then takes the task too. Empty for networks."""

    def network(
        self, shape: tuple[int, ...], outputs: int, options: object, task: str = ""
    ) -> nn.Module:
        """Build a network; `options` None stands for the defaults."""
        build = self.build
        if isinstance(build, str):
            module, _, function = build.partition(":")
            build = getattr(import_module(f"coterie.clients.models.{module}"), function)
        more = () if self.options is None else (options or self.options(),)
        if not isinstance(self.build, str):
            network: nn.Module = _called(build, shape, outputs, *more)
            return network
        return build(shape, outputs, *more, *((task,) if self.library else ()))


_CLASSES = ("outputs", "num_classes", "n_classes", "num_labels", "out_features", "output_dim")
_FEATURES = ("in_features", "input_size", "input_dim", "n_features")
"""Usual parameters of a network's constructor for the numbers of outputs and of inputs."""


def _called(build: Any, shape: tuple[int, ...], outputs: int, *options: object) -> Any:
    """Build a plugin's network: copy a module, or call a function with the sizes that it takes."""
    # By position, (shape, outputs), or by keyword if its parameters have usual names or defaults.
    if hasattr(build, "state_dict") and not isinstance(build, type):
        return deepcopy(build)
    parameters = inspect.signature(build).parameters.values()
    needed = [p.name for p in parameters if p.default is p.empty and p.kind < p.VAR_POSITIONAL]
    known: dict[str, Any] = {
        **dict.fromkeys(_CLASSES, outputs), **dict.fromkeys(_FEATURES, math.prod(shape)),
        **dict(zip(("shape", "in_channels", "options"), (shape, shape[0], *options), strict=False)),
    }  # fmt: skip
    unusual = [name for name in needed if name not in known]
    is_plain = {*needed} - {*unusual} <= {"shape", "outputs", "options"}
    takes_any = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    if is_plain and (len(needed) == 2 + len(options) or (takes_any and len(needed) <= 2)):
        return build(shape, outputs, *options)
    if unusual:
        name, missing = getattr(build, "__name__", "Net"), ", ".join(f"{n}=..." for n in unusual)
        raise plugins.PluginError(
            f"{name} needs {', '.join(unusual)}: pass model=lambda shape, outputs: "
            f"{name}({missing}), for examples of shape {shape} and {outputs} outputs"
        )
    return build(**{p.name: known[p.name] for p in parameters if p.name in known})


_NUMBERS = ("classification", "regression", "survival")


def _for_images(summary: str, function: str, options: type | None = None) -> Model:
    return Model(summary, f"convnets:{function}", options, _NUMBERS, images=True)


def _fitted(
    kind: str, build: str, options: type, library: str = "scikit-learn",
    tasks: tuple[str, ...] = ("classification", "regression"),
) -> Model:  # fmt: skip
    return Model(f"{kind}, fitted by {library}", build, options, tasks, library=library)


MODELS: dict[str, Model] = {
    "auto": Model("default model of the data set", "build:mlp", tasks=(*_NUMBERS, "quadratic")),
    "linear": Model(
        "multinomial logistic regression, logistic hazards, or least squares",
        "build:linear", LinearOptions, _NUMBERS,
    ),
    "mlp": Model("multilayer perceptron with ReLU", "build:mlp", MlpOptions, _NUMBERS),
    "logistic": _fitted(
        "logistic regression", "fitted:Logistic", LogisticOptions, tasks=("classification",)
    ),
    "forest": _fitted("random forest", "fitted:Forest", ForestOptions),
    "boosted-trees": _fitted("gradient boosting", "fitted:BoostedTrees", GradientBoostingOptions),
    "xgboost": _fitted("gradient boosting", "fitted:XGBoost", XGBoostOptions, "XGBoost"),
    "lightgbm": _fitted(
        "gradient boosting", "fitted:LightGBM", GradientBoostingOptions, "LightGBM"
    ),
    "lenet": _for_images("LeNet with ReLU and max pooling: 62,006 parameters on 3x32x32", "lenet"),
    "lenet-femnist": _for_images(
        "DPFL's smaller LeNet: 37,586 parameters on 1x28x28", "lenet_femnist"
    ),
    "cnn": _for_images(
        "two 5x5 convolutions and 512 hidden units: 1.7 million parameters on 1x28x28", "cnn"
    ),
    "cnn-mnist": _for_images(
        "All-for-one's network for MNIST: 21,840 parameters on 1x28x28", "cnn_mnist"
    ),
    "cnn-128": _for_images(
        "FedeRiCo's three 3x3 convolutions of 128 channels: 303,882 parameters on 3x32x32",
        "cnn_128",
    ),
    "resnet9": _for_images(
        "CoBo's ResNet-9 with batch norm: 6.6 million parameters", "resnet9", ResNet9Options
    ),
    "resnet18": _for_images(
        "ResNet-18 for small images: 11.2 million parameters", "resnet18", ResNet18Options
    ),
    "unet2d": Model(
        "U-Net for images: 82,428 parameters", "convnets:unet2d", tasks=("segmentation",)
    ),
    "unet3d": Model(
        "U-Net for volumes: 246,156 parameters", "convnets:unet3d", tasks=("segmentation",)
    ),
    "transformer": Model(
        "small transformer for tokens, trained from scratch",
        "transformer:transformer", TransformerOptions, ("language",),
    ),
    "gpt2": Model(
        "pretrained GPT-2, frozen, with low-rank adapters that are trained and exchanged",
        "transformer:gpt2", Gpt2Options, ("language",),
    ),
}  # fmt: skip
"""Models by name."""


def is_of_library(name: str) -> bool:
    """Return whether a name is that of a library's network, such as "torchvision:resnet18"."""
    return name.partition(":")[0] in LIBRARIES


@dataclass(frozen=True)
class KindOptions:
    """Options of several models, see `coterie.clients.models.fitted.Kinds`."""

    of: tuple[Any, ...]  # None for a model without options

    @property
    def depth(self) -> int:
        return max(getattr(options, "depth", 0) for options in self.of)


def kinds_in(name: str) -> tuple[str, ...]:
    """Return the models that a name such as "forest + mlp" joins; one for other names."""
    # ValueError: several models must be different and built in.
    kinds = tuple(name.split(AND))
    if len(kinds) > 1:
        for kind in kinds:
            if kind not in MODELS or kind in ("auto", "gpt2"):
                raise ValueError(f'"{kind[:_BRIEF]}" cannot be one of several kinds of model')
        if len(set(kinds)) < len(kinds):
            raise ValueError("several kinds of model are the same")
    return kinds


def model_of(name: str) -> Model:
    """Return a built-in model, a network of a library, a plugin or several models by name."""
    # PluginError: there is no such plugin, or its options are not a frozen dataclass.
    if name in MODELS:
        return MODELS[name]
    if len(kinds := kinds_in(name)) > 1:
        libraries = dict.fromkeys(MODELS[kind].library for kind in kinds)
        joined = " and ".join(libraries) if all(libraries) else ""
        # built by `coterie.clients.models.build`, as are libraries' networks
        return Model("models of several kinds", "fitted:Kinds", KindOptions, library=joined)
    if is_of_library(name):
        # built by `coterie.clients.models.build`, which also passes the task
        return Model(f"network of {name.partition(':')[0]}", "libraries:build_of_library")
    part = plugins.load("model", name)
    if not isinstance(part, Model):
        part = Model("plugin", part, plugins.options_of(part, name))
    if part.options is not None:
        plugins.checked_options(part.options, name)
    return part


def check_task(model: str, task: str) -> None:
    """Check that a model supports a task; the error names the models that do."""
    tasks = model_of(model).tasks  # a function or a library's network has none
    if not tasks or task in tasks:
        return
    known = [name for name, row in MODELS.items() if task in row.tasks] or ["auto"]
    raise ValueError(f'model = "{model}" does not support {task} tasks: choose {", ".join(known)}')


def check_image(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return channels, height and width of an image that a convolutional network takes."""
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise ValueError(
            "the model wants images of at least 4x4 (channels, height, width), but an example has "
            f'shape {shape}: reorder the axes, or choose model = "mlp" or "linear"'
        )
    return shape
