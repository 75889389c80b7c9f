"""Augmentation of training images: random shifts and mirroring in every minibatch.

Like a dropout mask, the draws are a hash of the model's key for the step, which comes from the
peer's own stream, and of the example's position in the minibatch: they do not depend on the other
models of the stack. Legend: e = models, b = examples, c = channels, h, w = height and width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.clients.engine.layers import hash32
from coterie.clients.engine.network import LAYER_STEP

MOVED = 8  # maximum shift: an eighth of the side, 4 pixels of 32, 3 of 28


def crop_flip(images_ebchw: Tensor, keys_e: Tensor) -> Tensor:
    """Crop randomly out of the zero-padded image, then mirror with probability 1/2."""
    # As on CIFAR since He et al. (2015). The draws are those of dropout layer -1.
    models, examples, _, height, width = images_ebchw.shape
    down, right = height // MOVED, width // MOVED
    place_b3 = torch.arange(3 * examples, device=images_ebchw.device).view(examples, 3)
    keys_e11 = ((keys_e - LAYER_STEP) & 0xFFFFFFFF)[:, None, None]
    draws_eb3 = hash32(hash32(place_b3) ^ keys_e11)
    ranges = torch.tensor([2 * down + 1, 2 * right + 1, 2], device=images_ebchw.device)
    top_n, left_n, mirrored_n = ((draws_eb3 * ranges) >> 32).flatten(0, 1).unbind(dim=1)
    column_w = torch.arange(width, device=images_ebchw.device)
    column_nw = torch.where(mirrored_n[:, None] == 1, width - 1 - column_w, column_w)
    row_h = torch.arange(height, device=images_ebchw.device)
    n = torch.arange(models * examples, device=images_ebchw.device)[:, None, None]
    padded = F.pad(images_ebchw.flatten(0, 1), (right, right, down, down)).movedim(1, 3)
    cropped = padded[
        n, (top_n[:, None] + row_h)[:, :, None], (left_n[:, None] + column_nw)[:, None]
    ]
    return cropped.movedim(3, 1).contiguous().view_as(images_ebchw)


AUGMENTATIONS = {"crop-flip": crop_flip}
"""Name -> (images, keys) -> images; see `coterie.clients.training.Training.augment`."""
