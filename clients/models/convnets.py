"""Convolutional networks of the papers, for images of at least 4x4.

Pooling comes before ReLU: the same numbers, and ReLU has a quarter of the work.
"""

from __future__ import annotations

import math
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.clients.models.options import ResNet9Options, ResNet18Options, check_image

Shape = tuple[int, ...]


class AtLeast(nn.Module):
    """Enlarge images to at least `side` x `side`: by padding up to 4 pixels, else by scaling."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, images: Tensor) -> Tensor:
        height, width = images.shape[-2:]
        down, right = (max(0, self.side - side) for side in (height, width))
        if not down and not right:
            return images
        if max(down, right) <= 4:
            return F.pad(images, (right // 2, right - right // 2, down // 2, down - down // 2))
        return F.interpolate(images, (height + down, width + right), mode="nearest")


def _two_convolutions(
    shape: Shape, outputs: int, *, side: int, channels: tuple[int, int], hidden: tuple[int, ...]
) -> nn.Module:
    """Build two unpadded 5x5 convolutions with ReLU and 2x2 pooling, and fully connected layers."""
    colours, *sides = check_image(shape)
    pooled = [((max(length, side) - 4) // 2 - 4) // 2 for length in sides]
    widths = (channels[1] * math.prod(pooled), *hidden, outputs)
    layers: list[nn.Module] = [
        AtLeast(side),
        nn.Conv2d(colours, channels[0], 5), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(*channels, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
    ]  # fmt: skip
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


lenet = partial(_two_convolutions, side=32, channels=(6, 16), hidden=(120, 84))
"""LeNet with ReLU and max pooling (DPFL on CIFAR and CINIC, All-for-one on CIFAR): 62,006
parameters on 3x32x32 with 10 classes."""
lenet_femnist = partial(_two_convolutions, side=28, channels=(4, 12), hidden=(120, 100))
"""DPFL's network for FEMNIST: 37,586 parameters on 1x28x28 with 10 classes."""
cnn_mnist = partial(_two_convolutions, side=28, channels=(10, 20), hidden=(50,))
"""All-for-one's network for MNIST: 21,840 parameters on 1x28x28 with 10 classes. The paper states
only "20 x 10^3" parameters: this reading is PyTorch's MNIST example, without dropout."""


def cnn(shape: Shape, outputs: int) -> nn.Module:
    """Build FedAvg's network (McMahan et al. 2017): two 5x5 convolutions, 512 hidden units."""
    # 1,663,370 parameters on 1x28x28 with 10 classes, as in the paper.
    channels, height, width = check_image(shape)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(32, 64, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
        nn.Linear(64 * (height // 4) * (width // 4), 512), nn.ReLU(),
        nn.Linear(512, outputs),
    )  # fmt: skip


def cnn_128(shape: Shape, outputs: int) -> nn.Module:
    """Build FedeRiCo's network for CIFAR-10: three 3x3 convolutions of 128 channels, one linear."""
    # The paper states no padding; without any it has 303,882 parameters on 3x32x32 with 10 classes.
    channels, *sides = check_image(shape)
    layers: list[nn.Module] = [AtLeast(32)]
    sides = [max(side, 32) for side in sides]
    for before in (channels, 128, 128):
        layers += [nn.Conv2d(before, 128, 3), nn.MaxPool2d(2), nn.ReLU()]
        sides = [(side - 2) // 2 for side in sides]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * math.prod(sides), outputs))


class Residual(nn.Module):
    """Residual connection, x + branch(x)."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        branch: Tensor = self.branch(x)
        return x + branch


class GlobalMaxPool(nn.Module):
    """Maximum of each channel."""

    def forward(self, x: Tensor) -> Tensor:
        return F.max_pool2d(x, x.shape[-2:]).flatten(-3)


def resnet9(shape: Shape, outputs: int, options: ResNet9Options) -> nn.Module:
    """Build CoBo's ResNet-9: 6,621,540 parameters on 3x32x32 with 100 classes and width 64."""
    # Eight convolutions with bias and batch norm, two of the four pairs residual, and one linear
    # layer; of the networks of this name it is the one with that number of parameters.
    channels, *_ = check_image(shape)
    w = options.width
    return nn.Sequential(
        AtLeast(16),
        _normed(channels, w),
        _normed(w, 2 * w), nn.MaxPool2d(2),
        Residual(nn.Sequential(_normed(2 * w, 2 * w), _normed(2 * w, 2 * w))),
        _normed(2 * w, 4 * w), nn.MaxPool2d(2),
        _normed(4 * w, 8 * w), nn.MaxPool2d(2),
        Residual(nn.Sequential(_normed(8 * w, 8 * w), _normed(8 * w, 8 * w))),
        GlobalMaxPool(), nn.Linear(8 * w, outputs),
    )  # fmt: skip


def _normed(before: int, after: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True)
    )


def resnet18(shape: Shape, outputs: int, options: ResNet18Options) -> nn.Module:
    """Build torchvision's ResNet-18 with a stem for small images: 3x3, stride 1, no pooling."""
    # 11,173,962 parameters on 3x32x32 with 10 classes, with either norm.
    from torchvision.models import resnet18 as torchvision_resnet18  # slow import

    channels, *_ = check_image(shape)
    norms = {"batch": nn.BatchNorm2d, "group": lambda width: nn.GroupNorm(32, width)}
    network = torchvision_resnet18(num_classes=outputs, norm_layer=norms[options.norm])
    network.conv1 = nn.Conv2d(channels, 64, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
    network.maxpool = nn.Identity()
    return nn.Sequential(AtLeast(16), network)


class UNet(nn.Module):
    """U-Net for segmentation (Ronneberger et al. 2015; in 3-D Cicek et al. 2016).

    Three levels of two convolutions with side 3, batch norm and PReLU; linear upsampling. Maps
    images (channels, H, W) or volumes (channels, X, Y, Z) to a score per class and pixel or voxel.
    For volumes of one channel and two classes it has 246,156 parameters, the size of FLamby's for
    IXI and All-for-one's 246 x 10^3.
    """

    def __init__(self, axes: int, channels: int, classes: int) -> None:
        super().__init__()
        w, self.axes = 8, axes  # channels of the first convolution; each level doubles them
        conv: Any = nn.Conv2d if axes == 2 else nn.Conv3d
        norm = nn.BatchNorm2d if axes == 2 else nn.BatchNorm3d

        def normed(before: int, after: int) -> nn.Module:
            return nn.Sequential(
                conv(before, after, 3, padding=1, bias=False), norm(after), nn.PReLU()
            )

        def pair(before: int, middle: int, after: int) -> nn.Module:
            return nn.Sequential(normed(before, middle), normed(middle, after))

        first = nn.Sequential(conv(channels, w, 3, padding=1), nn.PReLU(), normed(w, 2 * w))
        self.down = nn.ModuleList([first, pair(2 * w, 2 * w, 4 * w)])
        self.bottom = pair(4 * w, 4 * w, 8 * w)
        self.up = nn.ModuleList([pair(12 * w, 4 * w, 4 * w), pair(6 * w, 2 * w, 2 * w)])
        self.head = conv(2 * w, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for level in self.down:
            x = level(x)
            skips.append(x)
            x = (F.max_pool2d if self.axes == 2 else F.max_pool3d)(x, 2)
        x = self.bottom(x)
        for level, skip in zip(self.up, reversed(skips), strict=True):
            mode = "bilinear" if self.axes == 2 else "trilinear"
            x = F.interpolate(x, skip.shape[-self.axes :], mode=mode)
            x = level(torch.cat([skip, x], dim=-self.axes - 1))
        scores: Tensor = self.head(x)
        return scores


def unet(axes: int, shape: Shape, outputs: int) -> nn.Module:
    """Build the U-Net for images or volumes of at least 4 pixels or voxels per side."""
    if len(shape) != axes + 1 or min(shape[1:]) < 4:
        kind = "images" if axes == 2 else "volumes"
        raise ValueError(f"it needs {kind} of at least 4 per side, not examples of shape {shape}")
    return UNet(axes, shape[0], outputs)


unet2d, unet3d = partial(unet, 2), partial(unet, 3)
