"""The [partition] table: how the examples of a source are divided among peers.

Every division is a pure function of (source, partition, peers, seed): each purpose draws from
its own generator, `numpy.random.default_rng([seed, purpose])`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie.datasets.problem import DataError, Ints
from coterie.datasets.source import Source

DIVIDE, ASSIGN, RELABEL, KEEP, LEND = range(5)  # never renumber: every split would change


def stream(seed: int, purpose: int) -> np.random.Generator:
    """The generator of one purpose of a split."""
    return np.random.default_rng([seed, purpose])


@dataclass(frozen=True)
class Partition:
    """The [partition] table.

    Attributes
    ----------
    kind : how the examples are divided among the peers: a name of
        `coterie.datasets.partition.kinds.KINDS`, or a plugin's.
    clusters : label-groups, label-permutation: number of clusters of peers; label-groups-dirichlet:
        number of groups of classes.
    cluster_sizes : label-groups, label-permutation: peers of each cluster, "6-6-7-7"; "even" deals
        the peers to the clusters in turn; "" draws the peers of label-groups and makes successive
        peers of label-permutation a cluster.
    alpha : dirichlet, label-groups-dirichlet: concentration; small is uneven.
    classes_per_peer : pathological: classes each peer holds.
    samples_per_peer : at most so many training examples a peer, validation included, a random
        subset of its share; 0 = all.
    validation : fraction of each peer's training examples set aside for validation; "auto" is
        none here, and what the method needs where a run is configured.
    flip_fraction : label-flip: fraction of the peers whose labels are flipped.
    min_samples : dirichlet, label-groups-dirichlet, pathological: redraw until every share is at
        least this large; natural: pass over groups with fewer training examples.
    missing_classes : natural: classes that each peer has lost, drawn for each.
    options : of a plugin's kind: its own dataclass; the table [partition-options].
    """

    kind: str = "label-permutation"
    clusters: int = 4
    cluster_sizes: str = ""
    alpha: float = 0.1
    classes_per_peer: int = 3
    samples_per_peer: int = 60
    validation: float | Literal["auto"] = "auto"
    flip_fraction: float = 0.4
    min_samples: int = 10
    missing_classes: int = 0
    options: object = None

    def __post_init__(self) -> None:
        if self.cluster_sizes not in ("", "even") and not all(
            size.isdecimal() and int(size) > 0 for size in self.cluster_sizes.split("-")
        ):
            raise ValueError(
                f'cluster-sizes wants "even" or numbers like "6-6-7-7", not "{self.cluster_sizes}"'
            )

    @property
    def validation_share(self) -> float:
        """`validation` as a number."""
        return 0.0 if self.validation == "auto" else self.validation


@dataclass(frozen=True)
class Shares:
    """What a kind decides; `split` then caps, sets validation aside and relabels.

    Attributes
    ----------
    train, test : rows of each peer.
    clusters : (n,) true cluster of each peer.
    labels_pc : (n, classes) what peer p calls class c; None = the published labels.
    divided_test : the test set is divided too, so a peer may need to be lent an example.
    names : what people call each peer; empty where nothing names them.
    """

    train: list[Ints]
    test: list[Ints]
    clusters: Ints | None = None
    labels_pc: Ints | None = None
    divided_test: bool = False
    names: tuple[str, ...] = ()


def check(partition: Partition, source: Source, peers: int, seed: int) -> None:
    """Refuse values that no source, or not this one, can meet.

    Raises
    ------
    DataError
        Names the first such key and the remedy.
    """
    p, size = partition, len(source.train)
    share = p.validation_share
    rules = (
        ("peers", peers, peers >= 1, "at least 1"),
        ("seed", seed, seed >= 0, "0 or more"),
        ("partition.clusters", p.clusters, p.clusters >= 1, "at least 1"),
        ("partition.alpha", p.alpha, 0 < p.alpha < np.inf, "positive (0.1 uneven, 100 even)"),
        ("partition.classes-per-peer", p.classes_per_peer, p.classes_per_peer >= 1, "at least 1"),
        (
            "partition.samples-per-peer",
            p.samples_per_peer,
            0 <= p.samples_per_peer <= size,
            f"0 (all) to {size}, the training examples of {source.name}",
        ),
        ("partition.validation", share, 0 <= share < 1, "from 0 to below 1"),
        ("partition.flip-fraction", p.flip_fraction, 0 <= p.flip_fraction <= 1, "from 0 to 1"),
        ("partition.min-samples", p.min_samples, p.min_samples >= 1, "at least 1"),
        ("partition.missing-classes", p.missing_classes, p.missing_classes >= 0, "0 or more"),
    )
    for key, value, fine, wanted in rules:
        if not fine:
            raise DataError(f"{key} = {value}: must be {wanted}")
