"""Networks by name: sizes from the papers, image shapes, and error messages."""

from __future__ import annotations

import math
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from coterie.clients.engine.network import Network
from coterie.clients.models.build import build
from coterie.clients.models.convnets import Shape
from coterie.clients.models.options import MODELS, MlpOptions, ResNet9Options, ResNet18Options
from coterie.datasets import plugins
from tests.networks import outputs as by_torch

CONVOLUTIONAL = ["lenet", "lenet-femnist", "cnn", "cnn-mnist", "cnn-128", "resnet9", "resnet18"]
SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32)]


def options_of(model: str) -> Any:
    table = MODELS[model].options
    return table and table()


def parameters(model: str, shape: Shape, outputs: int, options: Any = None) -> int:
    task = "segmentation" if model.startswith("unet") else "classification"
    return Network(build(model, options or options_of(model), task, shape, outputs)).d


@pytest.mark.parametrize("model", MODELS)
def test_the_builder_of_every_row_exists(model: str) -> None:
    build = MODELS[model].build
    assert isinstance(build, str)
    module, _, function = build.partition(":")
    assert callable(getattr(import_module(f"coterie.clients.models.{module}"), function))


@pytest.mark.parametrize(
    ("model", "shape", "outputs", "expected"),
    [
        # (3*5*5 + 1) 6 + (6*5*5 + 1) 16 + (400 + 1) 120 + (120 + 1) 84 + (84 + 1) 10
        ("lenet", (3, 32, 32), 10, 62_006),
        # (5*5 + 1) 32 + (32*5*5 + 1) 64 + (64*7*7 + 1) 512 + (512 + 1) 10: McMahan et al. 2017
        ("cnn", (1, 28, 28), 10, 1_663_370),
        # (25 + 1) 4 + (4*25 + 1) 12 + (192 + 1) 120 + (120 + 1) 100 + (100 + 1) 10: DPFL, FEMNIST
        ("lenet-femnist", (1, 28, 28), 10, 37_586),
        # (25 + 1) 10 + (10*25 + 1) 20 + (320 + 1) 50 + (50 + 1) 10: All-for-one's 20 x 10^3
        ("cnn-mnist", (1, 28, 28), 10, 21_840),
        # (3*9 + 1) 128 + 2 (128*9 + 1) 128 + (128*2*2 + 1) 10: FedeRiCo
        ("cnn-128", (3, 32, 32), 10, 303_882),
        # 9 (3*64 + 64*128 + 2*128^2 + 128*256 + 256*512 + 2*512^2) weights, (1 + 2) 2,240 biases
        # and batch norm, (512 + 1) 100: CoBo's appendix
        ("resnet9", (3, 32, 32), 100, 6_621_540),
        # torchvision's 11,689,512 minus the stem's 3*64 (49 - 9) and 513 (1000 - 10) of the head
        ("resnet18", (3, 32, 32), 10, 11_689_512 - 3 * 64 * (49 - 9) - 513 * (1000 - 10)),
        # 27 (8 + 8*16 + 16*16 + 16*32 + 32*32 + 32*64 + 96*32 + 32*32 + 48*16 + 16*16) weights, the
        # first bias, 2 (16 + 16 + 32 + 32 + 64 + 32 + 32 + 16 + 16), 10 PReLUs, (16 + 1) 2: FLamby
        ("unet3d", (1, 48, 60, 48), 2, 246_156),
        ("unet2d", (1, 48, 60), 2, 82_428),  # with 9 weights in the place of 27
        ("mlp", (1, 8, 8), 10, (64 + 1) * 64 + (64 + 1) * 10),
        ("mlp", (1, 28, 28), 10, (784 + 1) * 128 + (128 + 1) * 10),
        ("linear", (13,), 1, 14),
    ],
)
def test_parameter_counts(model: str, shape: Shape, outputs: int, expected: int) -> None:
    assert parameters(model, shape, outputs) == expected


def test_a_resnet9_of_given_width() -> None:
    w = 8
    weights = 9 * (1 * w + w * 2 * w + 2 * (2 * w) ** 2 + 2 * w * 4 * w + 4 * w * 8 * w)
    weights += 9 * 2 * (8 * w) ** 2
    channels = w + 3 * 2 * w + 4 * w + 3 * 8 * w  # each with a bias, a scale and a shift
    expected = weights + 3 * channels + (8 * w + 1) * 10
    assert parameters("resnet9", (1, 28, 28), 10, ResNet9Options(w)) == expected


def test_an_mlp_of_given_widths() -> None:
    widths = (512, 1000, 200, 65)
    expected = sum((a + 1) * b for a, b in pairwise(widths))
    assert parameters("mlp", (512,), 65, MlpOptions("1000-200")) == expected
    assert parameters("mlp", (1, 8, 8), 10) == 4_810


@pytest.mark.some(8)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (model, shape)
        for model in ("linear", "mlp", *CONVOLUTIONAL)
        for shape in (SHAPES[:1] if "resnet" in model else SHAPES)  # millions of parameters
    ],
    ids=str,
)
def test_every_model_learns_from_every_image_shape(model: str, shape: Shape) -> None:
    """Stacked twice on different inputs: gradients reach every tensor and separate the models."""
    g = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    module = build(model, options_of(model), "classification", shape, 10)
    network = Network(module)
    x_ed = network.flat(module).expand(2, -1).clone().requires_grad_()
    inputs = torch.randn(2, 4, *shape, generator=g)
    targets = torch.randint(10, (2, 4), generator=g)
    outputs, _ = by_torch(network, x_ed, network.buffers(2), inputs, torch.tensor([1, 2]))
    assert outputs.shape == (2, 4, 10)
    for e in range(2):
        assert torch.allclose(outputs[e], module(inputs[e]), atol=1e-5)
    (result,) = torch.autograd.grad(F.cross_entropy(outputs.flatten(0, 1), targets.flatten()), x_ed)
    assert torch.isfinite(result).all()
    for name, value in network.named(result).items():
        if model == "resnet9" and name.endswith(".0.bias"):
            continue  # the batch norm after it removes such a bias
        assert value.flatten(1).abs().amax(dim=1).gt(0).all(), name
    assert not torch.allclose(result[0], result[1])


def test_an_mlp_is_affine_maps_with_rectifiers_between() -> None:
    module = build("mlp", MlpOptions("7-5"), "classification", (2, 3), 4)
    a1, b1, a2, b2, a3, b3 = module.parameters()
    x = torch.randn(6, 2, 3)
    h = (x.flatten(1) @ a1.T + b1).clamp_min(0)
    h = (h @ a2.T + b2).clamp_min(0)
    assert torch.allclose(module(x), h @ a3.T + b3, atol=1e-6)


@pytest.mark.parametrize("model", CONVOLUTIONAL)
@pytest.mark.parametrize("shape", [(64,), (1, 3, 3), (8, 8), (1, 1, 64)], ids=str)
def test_what_is_no_image_is_refused(model: str, shape: Shape) -> None:
    with pytest.raises(ValueError, match=r'images of at least 4x4.*model = "mlp"'):
        build(model, None, "classification", shape, 10)


def test_group_norm_has_no_running_statistics_and_couples_no_examples() -> None:
    batch, group = (
        Network(build("resnet18", ResNet18Options(norm), "classification", (3, 32, 32), 10))
        for norm in ("batch", "group")
    )
    assert batch.d == group.d
    assert batch.coupled
    assert not group.coupled
    assert not group.buffers(1)


@pytest.mark.parametrize("shape", [(1, 4, 4), (1, 5, 30), (3, 40, 33), (2, 64, 64)], ids=str)
@pytest.mark.parametrize("model", CONVOLUTIONAL)
def test_odd_images_fit(model: str, shape: Shape) -> None:
    module = build(model, None, "classification", shape, 3)
    assert module(torch.zeros(2, *shape)).shape == (2, 3)


def test_a_u_net_scores_every_voxel() -> None:
    for sides in ((8, 4, 5), (9, 12, 7)):
        module = build("unet3d", None, "segmentation", (1, *sides), 3)
        assert module(torch.zeros(2, 1, *sides)).shape == (2, 3, *sides)
    with pytest.raises(ValueError, match=r"volumes.*\(3, 32, 32\)"):
        build("unet3d", None, "segmentation", (3, 32, 32), 2)


def test_a_quadratic_problem_has_one_parameter_called_theta() -> None:
    network = Network(build("auto", None, "quadratic", (2, 5), 5))
    assert network.names == ["theta"]
    assert network.d == 5
    theta, curvature, centre = (torch.randn(5, generator=torch.manual_seed(s)) for s in range(3))
    example = torch.stack([curvature, centre])
    loss, _ = by_torch(network, theta[None], {}, example[None, None])
    by_hand = sum(0.5 * a * (x - c) ** 2 for a, x, c in zip(curvature, theta, centre, strict=True))
    assert loss.shape == (1, 1)
    assert loss.item() == pytest.approx(float(by_hand))
    with pytest.raises(ValueError, match=r"mlp.*quadratic"):
        build("mlp", MlpOptions(), "quadratic", (2, 5), 5)


def test_small_images_are_padded_or_enlarged_never_cut() -> None:
    """LeNet sees every pixel: the output depends on each corner."""
    for shape in SHAPES:
        torch.manual_seed(0)
        module = build("lenet", None, "classification", shape, 4)
        image = torch.zeros(1, *shape)
        nothing = module(image)
        for row in (0, -1):
            for column in (0, -1):
                corner = image.clone()
                corner[0, 0, row, column] = 50.0
                assert not torch.allclose(module(corner), nothing), (shape, row, column)


def test_starts_are_spread_as_torch_spreads_them() -> None:
    """Weights of a linear layer are within 1 / sqrt(features)."""
    module = build("linear", None, "classification", (1, 8, 8), 10)
    assert next(module.parameters()).abs().max() <= 1 / math.sqrt(64)


class _Usual(nn.Module):
    """Network with the constructor that most people write."""

    def __init__(self, in_features: int, num_classes: int = 1000, hidden: int = 3) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(in_features, hidden), nn.Linear(hidden, num_classes)


class _Fixed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 2))


class _Deep(nn.Module):
    def __init__(self, in_features: int, hidden: int, num_classes: int) -> None:
        super().__init__()


@pytest.mark.parametrize(
    ("network", "count"),
    [
        (_Usual, 5 * 3 + 4 * 2),
        (partial(_Usual, hidden=7), 5 * 7 + 8 * 2),
        (_Fixed, 10),
        (_Fixed(), 10),
        (nn.Linear, 10),
        (lambda s, k: nn.Linear(s[0], k), 10),
        (lambda *sizes: nn.Linear(sizes[0][0], sizes[1]), 10),
        (lambda shape, classes: nn.Linear(shape[0], classes), 10),
        (lambda: nn.Linear(4, 2), 10),
    ],
)
def test_networks_as_people_write_them(network: Any, count: int) -> None:
    name = plugins.register("model", "network", network)
    assert Network(build(name, None, "classification", (4,), 2)).d == count


def test_a_module_is_copied_with_its_weights() -> None:
    """Building it again does not change the module, and its peers start from its weights."""
    module = _Fixed()
    name = plugins.register("model", "module", module)
    built = build(name, None, "classification", (4,), 2)
    assert built is not module
    assert torch.equal(built.state_dict()["0.weight"], module.state_dict()["0.weight"])


def test_a_constructor_with_other_parameters_names_the_line_to_write() -> None:
    name = plugins.register("model", "deep", _Deep)
    with pytest.raises(plugins.PluginError, match=r"lambda shape, outputs: _Deep\(hidden=...\)"):
        build(name, None, "classification", (4,), 2)


def test_lazy_layers_get_their_shapes_and_keep_their_statistics() -> None:
    def lazy(shape: Shape, outputs: int) -> nn.Module:
        head = (nn.Flatten(), nn.LazyLinear(outputs))
        return nn.Sequential(nn.Conv2d(shape[0], 2, 3), nn.LazyBatchNorm2d(), *head)

    name = plugins.register("model", "lazy", lazy)
    module = build(name, None, "classification", (1, 8, 8), 4)
    assert module.get_parameter("3.weight").shape == (4, 2 * 6 * 6)
    assert module.get_buffer("1.running_mean").tolist() == [0.0, 0.0]
    assert module.training
