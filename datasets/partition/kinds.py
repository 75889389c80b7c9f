"""The kinds of partition: what each peer holds and what it calls the classes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
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


def iid(source: Source, partition: Partition, peers: int, seed: int) -> Shares:
    """Shuffled and dealt evenly."""
    return Shares(_deal(source.train, peers, stream(seed, DIVIDE)), [source.test] * peers)


def _deal(rows: Ints, peers: int, rng: np.random.Generator) -> list[Ints]:
    """Shuffle and cut into shares whose sizes differ by at most one."""
    return np.array_split(rng.permutation(rows), peers)


def label_flip(source: Source, partition: Partition, peers: int, seed: int) -> Shares:
    """As iid, but a fraction of the peers calls class c classes - 1 - c, everywhere."""
    clusters = np.zeros(peers, dtype=np.int64)
    flipped = round(partition.flip_fraction * peers)
    clusters[stream(seed, ASSIGN).choice(peers, flipped, replace=False)] = 1
    straight = np.arange(source.outputs)
    shares = iid(source, partition, peers, seed)
    labels_pc = np.stack([straight, straight[::-1]])[clusters]
    return Shares(shares.train, shares.test, clusters, labels_pc)


def natural(source: Source, partition: Partition, peers: int, seed: int) -> Shares:
    """One group of the source (a writer, a hospital) per peer; peers are drawn if groups abound.

    With `missing_classes`, every group first loses so many classes, drawn for each (FEMNIST in
    DPFL, appendix F.2).
    """
    if source.groups is None:
        raise DataError(
            f"partition.kind = 'natural': {source.name} does not say whose its examples are; "
            "take another partition or data set"
        )
    left = _left(source, source.groups, partition.missing_classes, seed)
    train, test = source.train[left[source.train]], source.test[left[source.test]]
    held, counts = np.unique(source.groups[train], return_counts=True)
    groups = np.intersect1d(held[counts >= partition.min_samples], source.groups[test])
    if peers > len(groups):
        raise DataError(
            f"peers = {peers}: {source.name} has {len(groups)} natural groups with test examples "
            f"and partition.min-samples = {partition.min_samples} training examples; choose at "
            f"most {len(groups)} or lower it"
        )
    chosen = np.sort(stream(seed, ASSIGN).choice(groups, peers, replace=False))

    def own(rows: Ints) -> list[Ints]:
        assert source.groups is not None
        return [rows[source.groups[rows] == group] for group in chosen]

    names = tuple(source.group_names[group] for group in chosen) if source.group_names else ()
    return Shares(own(train), own(test), names=names)


def _left(source: Source, groups: Ints, missing: int, seed: int) -> npt.NDArray[np.bool_]:
    """(N,) which examples are left when every group loses `missing` classes."""
    if not missing:
        return np.ones(len(groups), dtype=bool)
    if source.task != "classification" or missing >= source.outputs:
        raise DataError(
            f"partition.missing-classes = {missing}: {source.name} has "
            f"{source.outputs if source.task == 'classification' else 'no'} classes; "
            "choose fewer, or 0"
        )
    draws_gc = stream(seed, RELABEL).random((int(groups.max()) + 1, source.outputs))
    lost_gc = draws_gc.argsort(axis=1).argsort(axis=1) < missing
    left: npt.NDArray[np.bool_] = ~lost_gc[groups, source.targets]
    return left


def label_groups(source: Source, partition: Partition, peers: int, seed: int) -> Shares:
    """Consecutive classes form disjoint groups; each peer has one, no group stays empty.

    A group's training examples are dealt evenly among its peers, which share all its test
    examples. FedeRiCo (section 5) draws each peer's group, All-for-one (definition S1) deals them
    in turn, CoBo (section 4.2) fixes how many peers each group has.
    """
    clusters = _clusters(partition, peers, source.outputs, f"{source.name} has so many classes")
    rng = stream(seed, ASSIGN)
    drawn = rng.integers(clusters, size=peers - clusters)
    member_p = _members(
        partition, peers, rng.permutation(np.concatenate([np.arange(clusters), drawn]))
    )
    group_c = groups_of_classes(source.outputs, clusters)
    rng = stream(seed, DIVIDE)
    train = [source.train[:0]] * peers
    test = list(train)
    for group in range(clusters):
        members = np.flatnonzero(member_p == group)
        own, own_test = (
            rows[group_c[source.targets[rows]] == group] for rows in (source.train, source.test)
        )
        for peer, rows in zip(members, _deal(own, len(members), rng), strict=True):
            train[peer], test[peer] = rows, own_test
    return Shares(train, test, member_p)


def label_permutation(source: Source, partition: Partition, peers: int, seed: int) -> Shares:
    """Clusters of peers, by default balanced, that each have all data under its own class names.

    A cluster's training examples are dealt evenly among its members (CoBo section 5.1); every
    peer is tested on the whole test set. No two clusters share a permutation.
    """
    most = factorial(min(source.outputs, 12))
    clusters = _clusters(partition, peers, most, "there are no more permutations of the classes")
    member_p = _members(partition, peers, np.arange(peers) * clusters // peers)
    rng = stream(seed, DIVIDE)
    train = [source.train[:0]] * peers
    for cluster in range(clusters):
        members = np.flatnonzero(member_p == cluster)
        for peer, rows in zip(members, _deal(source.train, len(members), rng), strict=True):
            train[peer] = rows
    rng = stream(seed, RELABEL)
    names: dict[tuple[int, ...], None] = {}
    while len(names) < clusters:
        names[tuple(rng.permutation(source.outputs))] = None
    return Shares(train, [source.test] * peers, member_p, np.array(list(names))[member_p])


def _clusters(partition: Partition, peers: int, most: int, why: str) -> int:
    if partition.clusters > peers:
        raise DataError(
            f"partition.clusters = {partition.clusters}: {peers} peers cannot fill so many; "
            f"choose at most {min(peers, most)}, or more `peers`"
        )
    if partition.clusters > most:
        raise DataError(f"partition.clusters = {partition.clusters}: at most {most}, {why}")
    return partition.clusters


def _members(partition: Partition, peers: int, otherwise: Ints) -> Ints:
    """(n,) the cluster of each peer, as `cluster_sizes` has it."""
    if not partition.cluster_sizes:
        return otherwise
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
    """A row of `KINDS`: one line for people, and the division itself."""

    description: str
    divide: Callable[[Source, Partition, int, int], Shares]
    needs_classes: bool = True


KINDS: dict[str, PartitionKind] = {
    "iid": PartitionKind("dealt evenly at random", iid, needs_classes=False),
    "dirichlet": PartitionKind("each class divided by Dir(alpha) over the peers", dirichlet),
    "pathological": PartitionKind("classes-per-peer classes for each peer", pathological),
    "natural": PartitionKind("the source's own groups", natural, needs_classes=False),
    "label-groups": PartitionKind("disjoint groups of classes, one for each peer", label_groups),
    "label-groups-dirichlet": PartitionKind(
        "each group of classes divided by Dir(alpha) over the peers", label_groups_dirichlet
    ),
    "label-permutation": PartitionKind(
        "clusters share the data, each permutes the labels", label_permutation
    ),
    "label-flip": PartitionKind("iid, and some peers have their labels reversed", label_flip),
}
"""Name -> what it does and how."""


def kind_of(name: str) -> PartitionKind:
    """The kind of partition of that name: built in, or a plugin's.

    Raises
    ------
    DataError
        There is none.
    """
    if name in KINDS:
        return KINDS[name]
    if not plugins.is_named("partition", name):
        nearest = get_close_matches(name, KINDS, n=1, cutoff=0)[0]
        raise DataError(f"partition.kind = {name!r} is unknown; nearest: {nearest!r}")
    return _foreign(name, plugins.load("partition", name))


@lru_cache
def _foreign(name: str, function: Callable[..., Any]) -> PartitionKind:
    """A plugin's kind: a function that may have parameters source, peers, seed and options.

    It gives `Shares`, or the training rows of each peer, who are then all tested on everything.
    """

    def divide(source: Source, partition: Partition, peers: int, seed: int) -> Shares:
        found = plugins.call(
            function, name, source=source, peers=peers, seed=seed, options=partition.options
        )
        shares = (
            found
            if isinstance(found, Shares)
            else Shares([np.asarray(rows) for rows in found], [source.test] * peers)
        )
        for which, parts, known in (
            ("train", shares.train, source.train),
            ("test", shares.test, source.test),
        ):
            if len(parts) != peers:
                raise DataError(f"{name} gives {len(parts)} peers {which} rows: there are {peers}")
            if not all(np.isin(rows, known).all() for rows in parts):
                raise DataError(f"{name} gives a peer {which} rows that are not in source.{which}")
        return shares

    return PartitionKind(f"of {name}", divide, needs_classes=False)
