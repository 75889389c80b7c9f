"""Parts of a run that tests name "tests.plugins:...", as users name theirs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.clients.attack import AttackKind
from coterie.clients.defence import AggregationRule
from coterie.clients.methods.fedavg import FedAvg
from coterie.clients.rule import State
from coterie.datasets.partition.options import Shares
from coterie.datasets.source import Source
from coterie.ranges import option
from coterie.strategies.schedule import ScheduleKind, Trace
from coterie.strategies.topology import Topology


class Mine(FedAvg[State], summary="of a test"):
    """FedAvg under another name."""

    strength: float = option(0.5, "Strength.", grid=(0.1, 0.5, 1.0))

    def __post_init__(self) -> None:
        if self.strength < 0:
            raise ValueError("strength must not be negative")


PATH = Topology(
    "a path",
    lambda setting: (
        np.eye(setting.peers, k=1, dtype=np.bool_) | np.eye(setting.peers, k=-1, dtype=np.bool_)
    ),
)
ONE_WAY = Topology("not symmetric", lambda setting: np.eye(setting.peers, k=1, dtype=np.bool_))
FIRST_HALF = ScheduleKind(
    "nobody after half of the rounds",
    lambda options, setting: Trace(
        *setting, times=[(peer, 1, setting.rounds // 2) for peer in range(setting.peers)]
    ),
)
DOUBLED = AttackKind(
    "k times the honest tensor", lambda known: known.strength * known.own, strength=2
)
ENDS = AggregationRule(
    "the mean of the first and the last letter",
    lambda squares, weights, f: np.eye(len(weights))[[0, -1]].mean(axis=0),
)


@dataclass(frozen=True)
class NetOptions:
    """Options of a network."""

    width: int = 4
    file: Annotated[str, Path] = ""


class Net(nn.Module):
    """A network with options."""

    def __init__(self, shape: tuple[int, ...], outputs: int, options: NetOptions) -> None:
        super().__init__()
        self.body = nn.Linear(math.prod(shape), options.width)
        self.norm = nn.BatchNorm1d(options.width)
        self.fc = nn.Linear(options.width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.fc(self.norm(self.body(x.flatten(1))).relu())
        return scores


class Branching(nn.Module):
    """A layer whose way depends on its data, and that draws from torch's generator."""

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = x * 1.5
        return F.dropout(x, 0.2, self.training)


def branching(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), Branching(), nn.Linear(math.prod(shape), outputs))


def too_narrow(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape) - 1, outputs))


def one_output(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 1))


def no_network(shape: tuple[int, ...], outputs: int) -> int:
    return outputs


@dataclass(frozen=True)
class DataOptions:
    """Options of a data set; one of them must be given."""

    size: int
    noise: float = 0.1


def arrays(peers: int, seed: int, options: DataOptions) -> list[dict[str, Any]]:
    g = np.random.default_rng(seed)
    x_p = g.normal(size=(peers, options.size, 3))
    return [{"x": x, "y": x.sum(axis=1) > 0, "name": f"site {k}"} for k, x in enumerate(x_p)]


def source() -> Source:
    g = np.random.default_rng(0)
    rows = np.arange(40)
    return Source("made", g.normal(size=(40, 3)), rows % 2, rows[:30], rows[30:], 2)


def wants_folder(folder: str) -> Source:
    raise NotImplementedError


def number() -> int:
    return 3


def halves(source: Source, peers: int) -> list[npt.NDArray[np.int64]]:
    return [*np.array_split(source.train, peers)]


def foreign_rows(source: Source, peers: int) -> Shares:
    return Shares([source.test] * peers, [source.test] * peers)


@dataclass
class Thawed:
    """Options that can be changed."""

    width: int = 1


def thawed(shape: tuple[int, ...], outputs: int, options: Thawed) -> nn.Module:
    raise NotImplementedError
