"""Builders of networks by name, for any input shape; options: `coterie.clients.models.options`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from coterie.clients.models.adaptation import adapted
from coterie.clients.models.convnets import Shape
from coterie.clients.models.fitted import Kinds
from coterie.clients.models.options import (
    MODELS,
    Adaptation,
    KindOptions,
    LinearOptions,
    MlpOptions,
    check_task,
    is_of_library,
    kinds_in,
    model_of,
)
from coterie.datasets import plugins
from coterie.errors import Error, line_of

MAX_PARAMETERS = 2_000_000_000
"""Parameters of the largest network that is built, 8 GB in float32; GPT-2's largest has 1.6e9."""
_MAKERS = frozenset(
    (
        *(torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.eye),
        *(torch.empty_like, torch.zeros_like, torch.ones_like, torch.full_like),
        *(torch.rand_like, torch.randn_like, torch.arange, torch.linspace),
    )
)
"""Functions that make a tensor from a size; the parameters of torch's layers begin with them."""
_ELSEWHERE = ("generator", "out", "pin_memory")


class SizeError(Error, ValueError):
    """Error: a network is larger than allowed."""


class Limited(TorchFunctionMode):
    """Context that counts the elements of new tensors, and rejects them beyond a limit.

    So the size of a network is checked before its memory is allocated.
    """

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = self._left = limit

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        if func in _MAKERS:
            plain = {key: value for key, value in options.items() if key not in _ELSEWHERE}
            self._left -= func(*args, **plain | {"device": "meta"}).numel()
            if self._left < 0:
                raise SizeError(f"it has more than {self._limit:,} parameters")
        return func(*args, **options)


class Theta(nn.Module):
    """Parameter vector of a quadratic problem; its output is the loss f_i(theta).

    An example is (2, d): curvature a, centre c, and f(theta) = 1/2 sum_j a_j (theta_j - c_j)^2.
    """

    def __init__(self, d: int) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(d))

    def forward(self, examples: Tensor) -> Tensor:
        curvature, centre = examples.unbind(dim=-2)
        return 0.5 * (curvature * (self.theta - centre).square()).sum(dim=-1)


def linear(shape: Shape, outputs: int, options: LinearOptions) -> nn.Module:
    """Build multinomial logistic regression, logistic hazards, or least squares."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), outputs, bias=options.bias))


def mlp(shape: Shape, outputs: int, options: MlpOptions) -> nn.Module:
    """Build fully connected layers with ReLU."""
    widths = (math.prod(shape), *options.widths(math.prod(shape)))
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))


def build(
    model: str,
    options: Any,
    task: str,
    shape: Shape,
    outputs: int,
    adaptation: Adaptation | None = None,
    max_parameters: int = MAX_PARAMETERS,
) -> nn.Module:
    """Build an initialised network for examples of `shape`.

    `model` is a name in `MODELS`, of a library's network or of a plugin, or several, see
    `kinds_in`; "auto" is `Theta` if the problem is quadratic, else "mlp". ValueError: the model
    does not support such examples. SizeError: it is too large; its memory is not allocated.
    """
    with Limited(max_parameters):
        return _built(model, options, task, shape, outputs, adaptation)


def _built(
    model: str, options: Any, task: str, shape: Shape, outputs: int, adaptation: Adaptation | None
) -> nn.Module:
    if task == "quadratic":
        if model != "auto":
            raise ValueError(f'model "{model}" cannot learn a quadratic problem: use "auto"')
        return Theta(outputs)
    model = "mlp" if model == "auto" else model
    if len(kinds := kinds_in(model)) > 1:
        if adaptation not in (None, Adaptation()):
            raise ValueError("a model of several kinds cannot be adapted")
        return _of_kinds(kinds, options, task, shape, outputs)
    check_task(model, task)
    if model in MODELS:
        network = MODELS[model].network(shape, outputs, options, task)
    elif is_of_library(model):
        from coterie.clients.models import libraries  # which needs `SizeError`

        network = libraries.build_of_library(model, task, shape, outputs)
    else:
        network = _of_plugin(model, options, shape, outputs)
    return network if adaptation is None else adapted(network, adaptation)


def _of_kinds(
    kinds: Sequence[str], options: KindOptions, task: str, shape: Shape, outputs: int
) -> Kinds:
    """Build a model of several kinds, each with the random weights that it has alone."""
    state, models = torch.get_rng_state(), []
    for kind, own in zip(kinds, options.of, strict=True):
        torch.set_rng_state(state)
        model = _built(kind, own, task, shape, outputs, None)
        models.append(model)
        if any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in model.modules()):
            raise ValueError(
                f'"{kind}" cannot be one of several kinds of model: the running statistics of its '
                "batch norm are not sent"
            )
    return Kinds(models)


def _of_plugin(model: str, options: Any, shape: Shape, outputs: int) -> nn.Module:
    """Build a plugin's network by calling it with (shape, outputs) or (shape, outputs, options)."""
    row = model_of(model)
    try:
        network = row.network(shape, outputs, options)
        if any(map(nn.parameter.is_lazy, getattr(network, "parameters", list)())):
            with torch.no_grad():
                network.eval()(torch.zeros(1, *shape))  # gives nn.LazyLinear its shape
            network.train()
    except (SizeError, plugins.PluginError):
        raise
    except Exception as error:  # the user's code may raise anything
        raise plugins.PluginError(
            f'model = "{model}" cannot be built as network({shape}, {outputs}): {line_of(error)}'
        ) from error
    if not isinstance(network, nn.Module):
        raise plugins.PluginError(
            f'model = "{model}" returns a {type(network).__name__}: it must return a '
            "torch.nn.Module"
        )
    return network
