"""Kinds of partition: the examples of each peer, and its numbering of the classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import factorial
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.datasets import plugins
from coterie.datasets.partition.options import ASSIGN, DIVIDE, RELABEL, Partition, Shares, stream
from coterie.datasets.partition.skew import (
    dirichlet,
    groups_of_classes,
    label_groups_dirichlet,
    pathological,
)
from coterie.datasets.problem import DataError, Ints
from coterie.datasets.source import Source

_IMAGES = 4
"""Dimensions of a stack of images, (N, C, H, W)."""


def auto(source: Source, partition: Partition, peers: int, seed: int) -> Shares:
    """Divide by natural groups; without any, as `dirichlet`, and without classes as `iid`."""
    if source.groups is not None:
        return natural(source, partition, peers, seed)
    divide = dirichlet if source.task == "classification" else iid
    return divide(source, partition, peers, seed)


def iid(source: Source, partition: Partition, peers: int, seed: int) -> Shares:
    """Shuffle, and divide evenly."""
    return Shares(_deal(source.train, peers, stream(seed, DIVIDE)), [source.test] * peers)


def _deal(rows: Ints, peers: int, rng: np.random.Generator) -> list[Ints]:
    """Shuffle rows, and cut them into shares whose sizes differ by at most one."""
    return np.array_split(rng.permutation(rows), peers)


def _deal_in_clusters(rows_c: list[Ints], member_p: Ints, seed: int) -> list[Ints]:
    rng, share_p = stream(seed, DIVIDE), [rows_c[0][:0]] * len(member_p)
    for cluster, rows in enumerate(rows_c):
        members = np.flatnonzero(member_p == cluster)
        for peer, share in zip(members, _deal(rows, len(members), rng), strict=True):
            share_p[peer] = share
    return share_p


def label_flip(source: Source, partition: Partition, peers: int, seed: int) -> Shares:
    """Divide as `iid`; a fraction of the peers has class c labelled as classes - 1 - c."""
    clusters = np.zeros(peers, dtype=np.int64)
    flipped = round(partition.flip_fraction * peers)
    clusters[stream(seed, ASSIGN).choice(peers, flipped, replace=False)] = 1
    identity = np.arange(source.outputs)
    shares = iid(source, partition, peers, seed)
    labels_pc = np.stack([identity, identity[::-1]])[clusters]
    return Shares(shares.train, shares.test, clusters, labels_pc)


def natural(source: Source, partition: Partition, peers: int, seed: int) -> Shares:
    """Assign a group of the source (a writer, a hospital) to each peer, drawn if there are more."""
    # `missing_classes` are first removed from every group at random (DPFL, appendix F.2).
    if source.groups is None:
        raise DataError(
            f"partition.kind = 'natural': {source.name} has no natural groups; choose another "
            "partition or data set"
        )
    remaining = _remaining(source, source.groups, partition.missing_classes, seed)
    train, test = source.train[remaining[source.train]], source.test[remaining[source.test]]
    in_train, counts = np.unique(source.groups[train], return_counts=True)
    groups = np.intersect1d(in_train[counts >= partition.min_samples], source.groups[test])
    if peers > len(groups):
        raise DataError(
            f"peers = {peers}: {source.name} has {len(groups)} natural groups with test examples "
            f"and partition.min-samples = {partition.min_samples} training examples; choose at "
            f"most {len(groups)} peers or lower partition.min-samples"
        )
    chosen = np.sort(stream(seed, ASSIGN).choice(groups, peers, replace=False))

    def rows_of_groups(rows: Ints) -> list[Ints]:
        assert source.groups is not None
        return [rows[source.groups[rows] == group] for group in chosen]

    names = tuple(source.group_names[group] for group in chosen) if source.group_names else ()
    return Shares(rows_of_groups(train), rows_of_groups(test), names=names)


def _remaining(source: Source, groups: Ints, missing: int, seed: int) -> npt.NDArray[np.bool_]:
    """Return a mask (N,) of the examples after `missing` classes are removed from each group."""
    if not missing:
        return np.ones(len(groups), dtype=bool)
    if source.task != "classification" or missing >= source.outputs:
        raise DataError(
            f"partition.missing-classes = {missing}: {source.name} has "
            f"{source.outputs if source.task == 'classification' else 'no'} classes; "
            "choose fewer, or 0"
        )
    draws_gc = stream(seed, RELABEL).random((int(groups.max()) + 1, source.outputs))
    removed_gc = draws_gc.argsort(axis=1).argsort(axis=1) < missing
    remaining: npt.NDArray[np.bool_] = ~removed_gc[groups, source.targets]
    return remaining


def label_groups(source: Source, partition: Partition, peers: int, seed: int) -> Shares:
    """Divide consecutive classes into disjoint groups, and assign one to each peer."""
    # A group's training examples are divided evenly among its peers, which share its test examples.
    # FedeRiCo (section 5) draws the groups, All-for-one (S1) takes turns, CoBo (4.2) fixes sizes.
    clusters = _clusters(
        partition, peers, source.outputs, f"the number of classes of {source.name}"
    )
    rng = stream(seed, ASSIGN)
    drawn = rng.integers(clusters, size=peers - clusters)
    member_p = _members(
        partition, peers, rng.permutation(np.concatenate([np.arange(clusters), drawn]))
    )
    group_c = groups_of_classes(source.outputs, clusters)
    train, test = (
        [rows[group_c[source.targets[rows]] == group] for group in range(clusters)]
        for rows in (source.train, source.test)
    )
    shares = _deal_in_clusters(train, member_p, seed)
    return Shares(shares, [test[group] for group in member_p], member_p)


def class_counts(source: Source, partition: Partition, peers: int, seed: int) -> Shares:
    """Draw a number of examples of each class for each peer, disjoint, as `class_counts` says."""
    # Each peer is tested on all test examples of its classes.
    try:
        counts_p = [
            {int(c): int(count) for c, count in (pair.split(":") for pair in share.split("-"))}
            for share in partition.class_counts.split("/")
        ]
    except ValueError:
        raise DataError(
            f'partition.class-counts = "{partition.class_counts}": must be class:count pairs of '
            'each peer, as in "0:50-4:50/0:300-6:200"'
        ) from None
    if len(counts_p) != peers:
        raise DataError(
            f"partition.class-counts has shares of {len(counts_p)} peers, but peers = {peers}"
        )
    rng = stream(seed, DIVIDE)
    pools = {
        c: list(rng.permutation(source.train[source.targets[source.train] == c]))
        for c in sorted({c for counts in counts_p for c in counts})
    }
    for c, pool in pools.items():
        wanted = sum(counts.get(c, 0) for counts in counts_p)
        if wanted > len(pool):
            raise DataError(
                f"partition.class-counts wants {wanted} examples of class {c}: {source.name} has "
                f"{len(pool)}"
            )
    train = [
        np.concatenate([[pools[c].pop() for _ in range(count)] for c, count in counts.items()])
        for counts in counts_p
    ]
    of_test = source.targets[source.test]
    test = [source.test[np.isin(of_test, list(counts))] for counts in counts_p]
    return Shares([rows.astype(np.int64) for rows in train], test)


def label_permutation(source: Source, partition: Partition, peers: int, seed: int) -> Shares:
    """Divide the peers into clusters that each have all data, with permuted labels."""
    # A cluster's training examples are divided evenly (CoBo section 5.1); all share the test set.
    permutations = factorial(min(source.outputs, 12))
    clusters = _clusters(
        partition, peers, permutations, "the number of permutations of the classes"
    )
    member_p = _members(partition, peers, np.arange(peers) * clusters // peers)
    train = _deal_in_clusters([source.train] * clusters, member_p, seed)
    rng = stream(seed, RELABEL)
    orders: dict[tuple[int, ...], None] = {}
    while len(orders) < clusters:
        orders[tuple(rng.permutation(source.outputs))] = None
    return Shares(train, [source.test] * peers, member_p, np.array(list(orders))[member_p])


def rotation(source: Source, partition: Partition, peers: int, seed: int) -> Shares:
    """Divide as `iid` among clusters of peers whose images are rotated."""
    # Cluster c rotates by 180 c degrees if there are two, else 90 c (Biswas et al., SaTML 2025).
    if source.inputs.ndim != _IMAGES or source.inputs.shape[2] != source.inputs.shape[3]:
        raise DataError(
            f"partition.kind = 'rotation' needs square images, but an example of {source.name} has "
            f"shape {source.inputs.shape[1:]}; choose another partition or data set"
        )
    clusters = _clusters(partition, peers, 4, "the number of rotations by 90 degrees")
    member_p = _members(partition, peers, np.arange(peers) * clusters // peers)
    shares = iid(source, partition, peers, seed)
    inputs, test_c = [source.inputs.copy()], [source.test]
    for cluster in range(1, clusters):
        turns = cluster * (2 if clusters == 2 else 1)
        train = np.concatenate([shares.train[p] for p in np.flatnonzero(member_p == cluster)])
        inputs[0][train] = np.rot90(source.inputs[train], turns, axes=(2, 3))
        test_c.append(sum(map(len, inputs)) + np.arange(len(source.test)))
        inputs.append(np.rot90(source.inputs[source.test], turns, axes=(2, 3)))
    targets = np.concatenate([source.targets, np.tile(source.targets[source.test], clusters - 1)])
    rotated = replace(source, inputs=np.concatenate(inputs), targets=targets)
    return Shares(shares.train, [test_c[c] for c in member_p], member_p, source=rotated)


def _clusters(partition: Partition, peers: int, limit: int, reason: str) -> int:
    if partition.clusters > peers:
        raise DataError(
            f"partition.clusters = {partition.clusters}: more than the {peers} peers; choose at "
            f"most {min(peers, limit)}, or more `peers`"
        )
    if partition.clusters > limit:
        raise DataError(
            f"partition.clusters = {partition.clusters}: choose at most {limit}, {reason}"
        )
    return partition.clusters


def _members(partition: Partition, peers: int, default: Ints) -> Ints:
    """Return the cluster of each peer, (n,), according to `cluster_sizes`."""
    if not partition.cluster_sizes:
        return default
    if partition.cluster_sizes == "even":
        return np.arange(peers) % partition.clusters
    sizes = [int(size) for size in partition.cluster_sizes.split("-")]
    if (len(sizes), sum(sizes)) != (partition.clusters, peers):
        raise DataError(
            f'partition.cluster-sizes = "{partition.cluster_sizes}": {len(sizes)} clusters of '
            f"{sum(sizes)} peers, but partition.clusters = {partition.clusters} and peers = {peers}"
        )
    return np.repeat(np.arange(len(sizes)), sizes)


@dataclass(frozen=True)
class PartitionKind:
    """Kind of partition: an entry of `KINDS`."""

    summary: str  # in one line
    divide: Callable[[Source, Partition, int, int], Shares]  # (source, partition, peers, seed)
    needs_classes: bool = True  # only classification problems can be divided like this
    options: type | None = None  # options dataclass of a plugin: the table [partition-options]


KINDS: dict[str, PartitionKind] = {
    "auto": PartitionKind("usual division of the data set", auto, needs_classes=False),
    "iid": PartitionKind("divided evenly at random", iid, needs_classes=False),
    "dirichlet": PartitionKind("each class divided by Dir(alpha) over the peers", dirichlet),
    "pathological": PartitionKind("a few classes for each peer: classes-per-peer", pathological),
    "natural": PartitionKind(
        "a natural group (writer, hospital) for each peer", natural, needs_classes=False
    ),
    "label-groups": PartitionKind("a group of classes for each peer; disjoint", label_groups),
    "label-groups-dirichlet": PartitionKind(
        "each group of classes divided by Dir(alpha) over the peers", label_groups_dirichlet
    ),
    "label-permutation": PartitionKind(
        "clusters of peers with all classes; each permutes the labels", label_permutation
    ),
    "rotation": PartitionKind("clusters of peers whose images are rotated", rotation),
    "class-counts": PartitionKind("given numbers of examples per class and peer", class_counts),
    "label-flip": PartitionKind("iid; some peers have their labels reversed", label_flip),
}
"""Kinds of partition by name."""


def kind_of(name: str) -> PartitionKind:
    """Look up a kind of partition, built in or of a plugin; DataError if it does not exist."""
    return KINDS[name] if name in KINDS else _foreign(name, plugins.load("partition", name))


@lru_cache
def _foreign(name: str, function: Callable[..., Any]) -> PartitionKind:
    """Make a kind of a plugin's function of source, peers, seed and options (each optional)."""
    # It returns `Shares`, or training rows by peer; then every peer has the whole test set.

    def divide(source: Source, partition: Partition, peers: int, seed: int) -> Shares:
        result = plugins.call(
            function, name, source=source, peers=peers, seed=seed, options=partition.options
        )
        shares = (
            result
            if isinstance(result, Shares)
            else Shares([np.asarray(rows) for rows in result], [source.test] * peers)
        )
        for part, rows_p, known in (
            ("train", shares.train, source.train),
            ("test", shares.test, source.test),
        ):
            if len(rows_p) != peers:
                raise DataError(
                    f"{name} returns {part} rows for {len(rows_p)} peers, but peers = {peers}"
                )
            if not all(np.isin(rows, known).all() for rows in rows_p):
                raise DataError(f"{name} returns {part} rows that are not in source.{part}")
        return shares

    options = plugins.options_of(function, name)
    return PartitionKind("plugin", divide, needs_classes=False, options=options)
