"""Options of a partition, a pure function of source, options, peers and seed: [partition]."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from coterie.datasets.problem import Ints
from coterie.datasets.source import Source
from coterie.ranges import option

DIVIDE, ASSIGN, RELABEL, KEEP, LEND = range(5)  # never renumber: every partition would change

_DIRICHLET = ("dirichlet", "label-groups-dirichlet")
_CLUSTERED = ("label-groups", "label-permutation", "rotation")


def stream(seed: int, purpose: int) -> np.random.Generator:
    """Return the random generator of one purpose."""
    return np.random.default_rng([seed, purpose])


def held_out(examples: str, when: str = "") -> Any:
    """Return the option `validation` of data sets; what it is a share of, and when, in words."""
    text = f'Share of {examples} held out for validation{when}; "auto": what the method needs.'
    return option("auto", text, low=0, below=1)


@dataclass(frozen=True)
class Partition:
    """Division of a data set among the peers."""

    kind: str = option(
        "auto",
        'Division of the examples among the peers: see `coterie list partitions`; "auto" is the '
        "division of the data set: label-permutation for digits, natural where it has groups such "
        "as hospitals, else dirichlet (iid for breast-cancer and regressions).",
    )
    clusters: int = option(
        4,
        "label-groups, label-permutation, rotation: number of clusters of peers; "
        "label-groups-dirichlet: number of groups of classes.",
        low=1,
        used_by=(*_CLUSTERED, "label-groups-dirichlet"),
    )
    cluster_sizes: str = option(
        "",
        'label-groups, label-permutation, rotation: number of peers per cluster, "6-6-7-7"; '
        '"even" assigns the peers to the clusters in turn; "" draws the clusters of label-groups, '
        "and takes consecutive peers for the others.",
        used_by=_CLUSTERED,
    )
    alpha: float = option(
        0.1,
        "dirichlet, label-groups-dirichlet: concentration; small values give uneven shares.",
        above=0,
        used_by=_DIRICHLET,
    )
    classes_per_peer: int = option(
        3, "pathological: number of classes per peer.", low=1, used_by=("pathological",)
    )
    samples_per_peer: int | Literal["auto"] = option(
        "auto",
        "Maximum number of training examples per peer, including validation, drawn from its "
        'share; 0 for all; "auto" is 60 for digits with a built-in division, else all.',
        low=0,
    )
    validation: float | Literal["auto"] = held_out("each peer's training examples")
    flip_fraction: float = option(
        0.4,
        "label-flip: fraction of the peers whose labels are flipped.",
        low=0,
        high=1,
        used_by=("label-flip",),
    )
    min_samples: int = option(
        10,
        "dirichlet, label-groups-dirichlet, pathological: redraw until every share has this size; "
        "natural: skip groups with fewer training examples.",
        low=1,
        used_by=(*_DIRICHLET, "pathological", "natural"),
    )
    missing_classes: int = option(
        0,
        "natural: number of classes removed from each peer at random.",
        low=0,
        used_by=("natural",),
    )
    class_counts: str = option(
        "",
        'class-counts: training examples of each class per peer, "0:50-4:50/0:300-6:200": class 0 '
        "and 4 with 50 examples each for the first peer, and so on.",
        used_by=("class-counts",),
    )
    options: object = None  # of a plugin's kind: the table [partition-options]

    def __post_init__(self) -> None:
        if self.cluster_sizes not in ("", "even") and not all(
            size.isdecimal() and int(size) > 0 for size in self.cluster_sizes.split("-")
        ):
            raise ValueError(
                f'cluster-sizes must be "even" or numbers like "6-6-7-7", not '
                f'"{self.cluster_sizes}"'
            )

    def of(self, division: str, samples: int) -> Partition:
        """Replace each "auto" by the division and the limit of a data set."""
        kind = division if self.kind == "auto" else self.kind
        limit = samples if self.samples_per_peer == "auto" else self.samples_per_peer
        return replace(self, kind=kind, samples_per_peer=limit)

    @property
    def limit(self) -> int:
        """`samples_per_peer` as a number; 0 for "auto"."""
        return 0 if self.samples_per_peer == "auto" else self.samples_per_peer

    @property
    def validation_share(self) -> float:
        """`validation` as a number; 0 for "auto"."""
        return 0.0 if self.validation == "auto" else self.validation


@dataclass(frozen=True)
class Shares:
    """Division by a kind of partition, before `split` limits shares and holds out validation."""

    train: list[Ints]
    test: list[Ints]
    """Rows of each peer."""
    clusters: Ints | None = None  # (n,), true cluster of each peer
    labels_pc: Ints | None = None  # (n, classes)
    """Label of each class at each peer; None for the published labels."""
    divided_test: bool = False
    """The test set is divided too, so a peer may lack a test example of its classes."""
    names: tuple[str, ...] = ()  # display name of each peer; may be empty
    source: Source | None = None
    """Source to which the rows refer, if it is not the one that is divided."""
