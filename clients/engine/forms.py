"""How layers run and how gradients come back through them, without modules and autograd.

Calling modules and keeping a graph is most of what a small network's step takes otherwise. There
are two tables: of many copies of a layer at once, and of a single one. A form takes a layer, its
tensors by name (of copies with an axis e) and inputs (b, ...), of copies (e, b, ...).
Legend: e = models, b = examples, i, o = numbers into and out of a linear layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from coterie.clients.engine.layers import KEY, Dropout

Own = Mapping[str, Tensor]
Found = tuple[Tensor | None, dict[str, Tensor]]
"""The gradient of the inputs, and those of the layer's own tensors, by name."""

# Named once: to find them by their arguments takes longer than some of them run.
_batch_norm_back = torch.ops.aten.native_batch_norm_backward.default
_convolution_back = torch.ops.aten.convolution_backward.default
_gelu_back = torch.ops.aten.gelu_backward.default
_max_pool = torch.ops.aten.max_pool2d_with_indices.default
_max_pool_back = torch.ops.aten.max_pool2d_with_indices_backward.default
_sigmoid_back = torch.ops.aten.sigmoid_backward.default
_tanh_back = torch.ops.aten.tanh_backward.default
_threshold_back = torch.ops.aten.threshold_backward.default
_threshold_back_into = torch.ops.aten.threshold_backward.grad_input


class Wanted(NamedTuple):
    """What is wanted of `Form.back`.

    Attributes
    ----------
    inputs, own : whether the gradient of the inputs is, and those of the layer's own tensors.
    over : whether the gradient of the outputs may be overwritten.
    """

    inputs: bool
    own: bool
    over: bool


class Form(NamedTuple):
    """One kind of layer.

    Attributes
    ----------
    run : (layer, own, inputs) -> the outputs, and what `back` wants to know of them.
    back : (layer, own, inputs, what `run` kept, gradient of the outputs, wanted) -> gradients.
        None where they are not known.
    fresh : whether what comes out, either way, is new and not wanted again: the next one may
        overwrite it.
    borrows : whether what comes out on the way back may lie in memory that others use.
    """

    run: Callable[[Any, Own, Tensor], tuple[Tensor, Any]]
    back: Callable[[Any, Own, Tensor, Any, Tensor, Wanted], Found] | None
    fresh: bool = False
    borrows: bool = False


def _by_itself(layer: nn.Module, own: Own, x: Tensor) -> tuple[Tensor, Tensor]:
    """A layer without tensors; the outputs are kept."""
    y: Tensor = layer(x)
    return y, y


def _elementwise(slope: Callable[[Any, Tensor, Tensor, Tensor], Tensor]) -> Form:
    """A layer without tensors, of (layer, inputs, outputs, gradient) -> gradient of the inputs."""
    return Form(_by_itself, lambda layer, own, x, y, g, wanted: (slope(layer, x, y, g), {}))


def _relu(layer: nn.Module, own: Own, x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.relu()
    return y, y


def _relu_over_inputs(layer: nn.Module, own: Own, x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.relu_()
    return y, y


def _from_relu(
    layer: nn.Module, own: Own, x: Tensor, y: Tensor, g: Tensor, wanted: Wanted
) -> Found:
    if wanted.over:  # large ones come from memory that was never touched
        return _threshold_back_into(g, y, 0, grad_input=g), {}
    return _threshold_back(g, y, 0), {}


_ELEMENTWISE = {
    nn.Identity: _elementwise(lambda layer, x, y, g: g),
    nn.ReLU: Form(_relu, _from_relu),
    nn.Tanh: _elementwise(lambda layer, x, y, g: _tanh_back(g, y)),
    nn.Sigmoid: _elementwise(lambda layer, x, y, g: _sigmoid_back(g, y)),
    nn.GELU: _elementwise(lambda layer, x, y, g: _gelu_back(g, x, approximate=layer.approximate)),
    **dict.fromkeys((nn.LeakyReLU, nn.ELU, nn.SiLU), Form(_by_itself, None)),
}
RELU_OVER_INPUTS = Form(_relu_over_inputs, _from_relu)
"""ReLU after a layer whose outputs are `fresh`."""


def _rows(x: Tensor) -> Tensor:
    """Inputs (e, b, ..., i) as (e, rows, i)."""
    return x if x.dim() == 3 else x.flatten(1, -2)


def linear_sums(inputs: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of linear layers' weights (e, o, i) and biases (e, o), summed over rows."""
    rows = _rows(gradient)
    # Transposed by a copy, which is small: read across, it would take longer.
    return torch.bmm(rows.mT.contiguous(), _rows(inputs)), rows.sum(dim=1)


def _linears(layer: nn.Linear, own: Own, x: Tensor) -> tuple[Tensor, None]:
    rows = _rows(x)
    if "bias" in own:
        found = torch.baddbmm(own["bias"][:, None], rows, own["weight"].mT)
    else:
        found = torch.bmm(rows, own["weight"].mT)
    return found if rows is x else found.view(*x.shape[:-1], found.shape[2]), None


def _from_linears(
    layer: nn.Linear, own: Own, x: Tensor, _: None, g: Tensor, wanted: Wanted
) -> Found:
    dx = torch.bmm(_rows(g), own["weight"]).view(x.shape) if wanted.inputs else None
    if not wanted.own:
        return dx, {}
    weight, bias = linear_sums(x, g)
    return dx, {"weight": weight, "bias": bias} if "bias" in own else {"weight": weight}


def _flattened(layer: nn.Flatten, own: Own, x: Tensor) -> tuple[Tensor, None]:
    first, last = (d if d < 0 else d + 1 for d in (layer.start_dim, layer.end_dim))
    return x.flatten(first, last), None


def _reshaped(layer: nn.Module, own: Own, x: Tensor, _: None, g: Tensor, wanted: Wanted) -> Found:
    return g.reshape(x.shape), {}


MANY: dict[type[nn.Module], Form] = {
    nn.Linear: Form(_linears, _from_linears, fresh=True),
    nn.Flatten: Form(_flattened, _reshaped),
    Dropout: Form(
        lambda layer, own, x: (layer.of_many(x, own[KEY]), None),
        lambda layer, own, x, _, g, wanted: (layer.of_many(g, own[KEY]), {}),
    ),
    **_ELEMENTWISE,
}
"""Layer type -> what runs many of its copies in one call."""


def _linear(layer: nn.Linear, own: Own, x: Tensor) -> tuple[Tensor, None]:
    return F.linear(x, own["weight"], own.get("bias")), None


def _from_linear(
    layer: nn.Linear, own: Own, x: Tensor, _: None, g: Tensor, wanted: Wanted
) -> Found:
    dx = g @ own["weight"] if wanted.inputs else None
    if not wanted.own:
        return dx, {}
    rows, g_rows = x.flatten(0, -2), g.flatten(0, -2)
    found = {"weight": g_rows.mT @ rows}
    if "bias" in own:
        found["bias"] = g_rows.sum(dim=0)
    return dx, found


def _convolution(layer: nn.Conv2d, own: Own, x: Tensor) -> tuple[Tensor, None]:
    weight, padding = own["weight"], cast("tuple[int, ...]", layer.padding)
    return torch.conv2d(
        x, weight, own.get("bias"), layer.stride, padding, layer.dilation, layer.groups
    ), None


def _from_convolution(
    layer: nn.Conv2d, own: Own, x: Tensor, _: None, g: Tensor, wanted: Wanted
) -> Found:
    biased = "bias" in own
    dx, weight, bias = _convolution_back(
        g, x, own["weight"], [layer.out_channels] if biased else None,
        layer.stride, layer.padding, layer.dilation, False, (0, 0), layer.groups,
        (wanted.inputs, wanted.own, wanted.own and biased),
    )  # fmt: skip
    if not wanted.own:
        return dx, {}
    return dx, {"weight": weight, "bias": bias} if biased else {"weight": weight}


def _normalised(layer: nn.BatchNorm2d, own: Own, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    if x.numel() == x.shape[1]:  # torch's own layer says so, too; its function does not
        raise ValueError(
            f"Expected more than 1 value per channel when training, got input size {tuple(x.shape)}"
        )
    own["num_batches_tracked"].add_(1)
    running = own["running_mean"], own["running_var"]
    y, mean, spread = torch.native_batch_norm(
        x, own["weight"], own["bias"], *running, True, cast("float", layer.momentum), layer.eps
    )
    return y, (mean, spread)


def _from_normalised(
    layer: nn.BatchNorm2d, own: Own, x: Tensor, kept: tuple[Tensor, Tensor], g: Tensor,
    wanted: Wanted,
) -> Found:  # fmt: skip
    dx, weight, bias = _batch_norm_back(
        g, x, own["weight"], own["running_mean"], own["running_var"], *kept, True, layer.eps,
        (wanted.inputs, wanted.own, wanted.own),
    )  # fmt: skip
    return dx, {"weight": weight, "bias": bias} if wanted.own else {}


def _pooled(layer: nn.MaxPool2d, own: Own, x: Tensor) -> tuple[Tensor, Tensor]:
    return _max_pool(x, *_window(layer), layer.ceil_mode)  # type: ignore[no-any-return]


def _from_pooled(
    layer: nn.MaxPool2d, own: Own, x: Tensor, at: Tensor, g: Tensor, wanted: Wanted
) -> Found:
    return _max_pool_back(g, x, *_window(layer), layer.ceil_mode, at), {}


def _window(layer: nn.MaxPool2d) -> list[list[int]]:
    """Its size, stride, padding and dilation, each in two directions."""
    sizes = layer.kernel_size, layer.stride, layer.padding, layer.dilation
    return [[size, size] if isinstance(size, int) else [*size] for size in sizes]


def _by_autograd(
    layer: nn.Module, own: Own, x: Tensor
) -> tuple[Tensor, tuple[Tensor, dict[str, Tensor], Tensor]]:
    # Not `detach`: other workers may change other rows of what a model lies in.
    x = x.data.requires_grad_(x.is_floating_point())
    own = {name: value.data for name, value in own.items()}
    trained = [name for name, value in layer.named_parameters() if value.requires_grad]
    leaves = {name: own[name].requires_grad_() for name in trained}
    with torch.enable_grad():
        y: Tensor = functional_call(layer, {**own}, (x,))
    return y.data, (x, leaves, y)


def _from_autograd(
    layer: nn.Module, own: Own, x: Tensor, kept: tuple[Tensor, dict[str, Tensor], Tensor],
    g: Tensor, wanted: Wanted,
) -> Found:  # fmt: skip
    x, leaves, y = kept
    names = [*leaves] if wanted.own else []
    of = [*(leaves[name] for name in names), *([x] if wanted.inputs else [])]
    found = torch.autograd.grad(y, of, g, materialize_grads=True)
    return found[-1] if wanted.inputs else None, dict(zip(names, found, strict=False))


SINGLE: dict[type[nn.Module], Form] = {
    nn.Linear: Form(_linear, _from_linear, fresh=True),
    nn.Conv2d: Form(_convolution, _from_convolution, fresh=True),
    nn.BatchNorm1d: Form(_normalised, _from_normalised, fresh=True),
    nn.BatchNorm2d: Form(_normalised, _from_normalised, fresh=True),
    nn.MaxPool2d: Form(_pooled, _from_pooled, fresh=True),
    nn.Flatten: Form(lambda layer, own, x: (layer(x), None), _reshaped),
    Dropout: Form(
        lambda layer, own, x: (layer.of_many(x[None], own[KEY][None])[0], None),
        lambda layer, own, x, _, g, wanted: (layer.of_many(g[None], own[KEY][None])[0], {}),
    ),
    **{kind: form for kind, form in _ELEMENTWISE.items() if form.back},
}
"""Layer type -> what runs a single one of it."""
ANY = Form(_by_autograd, _from_autograd, borrows=True)
"""A single layer of any other type: autograd, but for this layer alone."""


def single(layer: nn.Module) -> Form:
    """The form of a single layer."""
    if isinstance(layer, nn.Conv2d):
        known = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    elif isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
        known = layer.track_running_stats and layer.momentum is not None
        known = known and layer.affine and layer.bias is not None
    else:
        known = not isinstance(layer, nn.MaxPool2d) or not layer.return_indices
    return SINGLE.get(type(layer), ANY) if known else ANY


def forward_only(layer: nn.Module, own: Own, x: Tensor, form: Form) -> Tensor:
    """The outputs of a layer that is not gone back through."""
    if form is not ANY:
        return form.run(layer, own, x)[0]
    with torch.no_grad():
        y: Tensor = functional_call(layer, {**own}, (x,)) if own else layer(x)
    return y
