"""U-Net for segmentation (Ronneberger et al. 2015; in 3-D Cicek et al. 2016).

In 3-D it has the size of FLamby's for IXI. An example is an image (channels, H, W) or a volume
(channels, X, Y, Z); the output has a score per class and pixel or voxel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.clients.models.convnets import Shape

WIDTH = 8  # channels of the first convolution; each level doubles them


class UNet(nn.Module):
    """Three levels of two convolutions with side 3, batch norm and PReLU; linear upsampling.

    For volumes of one channel and two classes 246,156 parameters, All-for-one's 246 x 10^3.
    """

    def __init__(self, axes: int, channels: int, classes: int) -> None:
        super().__init__()
        w, self.axes = WIDTH, axes
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


def unet2d(shape: Shape, outputs: int) -> nn.Module:
    """Build the U-Net for images (channels, H, W) of at least 4 pixels per side."""
    if len(shape) != 3 or min(shape[1:]) < 4:
        raise ValueError(f"unet2d needs images of at least 4x4, not examples of shape {shape}")
    return UNet(2, shape[0], outputs)


def unet3d(shape: Shape, outputs: int) -> nn.Module:
    """Build the U-Net for volumes (channels, X, Y, Z) of at least 4 voxels per side."""
    if len(shape) != 4 or min(shape[1:]) < 4:
        raise ValueError(f"unet3d needs volumes of at least 4x4x4, not examples of shape {shape}")
    return UNet(3, shape[0], outputs)
