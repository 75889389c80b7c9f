"""Common parts of the plain loop and the stock Flower app: networks, data files, training.

Written as by their users, without importing Coterie, and tuned for speed: channels last for
convolutions, pooling before ReLU, a fused optimizer, images normalised beforehand.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

BATCH, RATE = 10, 0.05


class Peer(NamedTuple):
    """Images and labels of a peer."""

    x: Tensor
    y: Tensor
    x_test: Tensor
    y_test: Tensor


def mlp() -> nn.Module:
    """Build an MLP 784-100-10."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))


def cnn() -> nn.Module:
    """Build the network of the FedAvg paper, 1.66 million parameters."""
    network = nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(32, 64, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
        nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip
    return network.to(memory_format=torch.channels_last)


def linear() -> nn.Module:
    """Build logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def lenet() -> nn.Module:
    """Build LeNet-5 with ReLU and max pooling, 61,706 parameters."""
    network = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2), nn.MaxPool2d(2), nn.ReLU(),
        nn.Conv2d(6, 16, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
        nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
    )  # fmt: skip
    return network.to(memory_format=torch.channels_last)


NETWORKS = {"mlp": mlp, "cnn": cnn, "linear": linear, "lenet": lenet}


@cache
def peer(directory: Path, number: int) -> Peer:
    """Return a peer's data from its file, read once per process."""
    with np.load(directory / f"{number}.npz") as arrays:
        return Peer(*(torch.from_numpy(arrays[name]) for name in Peer._fields))


def train(network: nn.Module, data: Peer) -> None:
    """Train for one epoch."""
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE, fused=True)
    for rows in torch.randperm(len(data.y)).split(BATCH):
        optimizer.zero_grad()
        F.cross_entropy(network(data.x[rows]), data.y[rows]).backward()
        optimizer.step()


def test(network: nn.Module, data: Peer) -> float:
    """Return the accuracy on the peer's test images."""
    with torch.inference_mode():
        right = [
            (network(x).argmax(dim=1) == y).sum().item()
            for x, y in zip(data.x_test.split(256), data.y_test.split(256), strict=True)
        ]
    return float(sum(right)) / len(data.y_test)
