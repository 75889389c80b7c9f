"""3-D U-Net for segmentation (Cicek et al. 2016), of the size of FLamby's for IXI.

A volume is (channels, X, Y, Z); the output has a score per class and voxel.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from clients.models.convnets import Shape

WIDTH = 8  # channels of the first convolution; each level doubles them


class UNet3d(nn.Module):
    """Three levels of two 3x3x3 convolutions, batch norm and PReLU; trilinear upsampling.

    246,156 parameters for one channel and two classes, All-for-one's 246 x 10^3.
    """

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        w = WIDTH
        first = nn.Sequential(nn.Conv3d(channels, w, 3, padding=1), nn.PReLU(), _normed(w, 2 * w))
        self.down = nn.ModuleList([first, _pair(2 * w, 2 * w, 4 * w)])
        self.bottom = _pair(4 * w, 4 * w, 8 * w)
        self.up = nn.ModuleList([_pair(12 * w, 4 * w, 4 * w), _pair(6 * w, 2 * w, 2 * w)])
        self.head = nn.Conv3d(2 * w, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for level in self.down:
            x = level(x)
            skips.append(x)
            x = F.max_pool3d(x, 2)
        x = self.bottom(x)
        for level, skip in zip(self.up, reversed(skips), strict=True):
            x = F.interpolate(x, skip.shape[-3:], mode="trilinear")
            x = level(torch.cat([skip, x], dim=-4))
        scores: Tensor = self.head(x)
        return scores


def _pair(before: int, middle: int, after: int) -> nn.Module:
    return nn.Sequential(_normed(before, middle), _normed(middle, after))


def _normed(before: int, after: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(before, after, 3, padding=1, bias=False), nn.BatchNorm3d(after), nn.PReLU()
    )


def unet3d(shape: Shape, outputs: int) -> nn.Module:
    """Build the U-Net for volumes (channels, X, Y, Z) of at least 4 voxels per side."""
    if len(shape) != 4 or min(shape[1:]) < 4:
        raise ValueError(f"unet3d needs volumes of at least 4x4x4, not examples of shape {shape}")
    return UNet3d(shape[0], outputs)
