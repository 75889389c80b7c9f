"""Uneven class proportions: Dirichlet and pathological divisions of both training and test set.

Dir(alpha) over the peers for each class (Hsu et al. 2019), or for each group of classes (FedEM,
Marfoq et al. 2021, as FedeRiCo's appendix C takes it), and "Patho(k)" of DPFL (appendix F.5): k
classes a peer, each class divided by Dir(0.5) among its holders.

Legend: c = classes, u = units that are divided (classes or groups of them), p = peers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.datasets.partition.options import ASSIGN, DIVIDE, Partition, Shares, stream
from coterie.datasets.problem import DataError, Ints
from coterie.datasets.source import Source

TRIES = 1000  # draws of a division before giving up on `min_samples`
HOLDER_ALPHA = 0.5  # DPFL's division of a class among its holders


def dirichlet(source: Source, partition: Partition, peers: int, seed: int) -> Shares:
    """Every peer may hold every class, in proportions drawn from Dir(alpha)."""
    holders = np.ones((source.outputs, peers), dtype=bool)
    classes = np.arange(source.outputs)
    return _divide(source, classes, holders, partition.alpha, partition.min_samples, seed)


def groups_of_classes(classes: int, groups: int) -> Ints:
    """(c,) the group of each class: consecutive classes, as many in each as can be."""
    return np.arange(classes) * groups // classes


def label_groups_dirichlet(source: Source, partition: Partition, peers: int, seed: int) -> Shares:
    """Every peer holds some of each of `clusters` groups of classes, its share from Dir(alpha).

    Within a group, classes are mixed as they come; a peer has no true cluster.
    """
    groups = partition.clusters
    if groups > source.outputs:
        raise DataError(
            f"partition.clusters = {groups}: at most {source.outputs}, {source.name} has so many "
            "classes"
        )
    holders = np.ones((groups, peers), dtype=bool)
    group_c = groups_of_classes(source.outputs, groups)
    return _divide(source, group_c, holders, partition.alpha, partition.min_samples, seed)


def pathological(source: Source, partition: Partition, peers: int, seed: int) -> Shares:
    """`classes_per_peer` classes a peer; as many holders for each class as can be."""
    k = partition.classes_per_peer
    present = np.unique(source.targets[source.train])
    if k > len(present):
        raise DataError(
            f"partition.classes-per-peer = {k}: {source.name} has {len(present)} classes; "
            f"choose 1 to {len(present)}"
        )
    if peers * k < len(present):
        raise DataError(
            f"partition.classes-per-peer = {k}: {peers} peers leave some of the {len(present)} "
            f"classes of {source.name} without a holder; "
            f"choose at least {-(-len(present) // peers)} or more `peers`"
        )
    rng = stream(seed, ASSIGN)
    holders = np.zeros((source.outputs, peers), dtype=bool)
    for peer in range(peers):
        # The classes with fewest holders so far, ties by chance: no class stays without.
        order = np.lexsort((rng.random(len(present)), holders[present].sum(axis=1)))
        holders[present[order[:k]], peer] = True
    classes = np.arange(source.outputs)
    return _divide(source, classes, holders, HOLDER_ALPHA, partition.min_samples, seed)


def _divide(
    source: Source,
    unit_c: Ints,
    holders_up: npt.NDArray[np.bool_],
    alpha: float,
    least: int,
    seed: int,
) -> Shares:
    """Divide each unit by Dir(alpha) among its holders; the test set in the same proportions.

    Parameters
    ----------
    unit_c : the unit that each class is part of.
    """
    rng = stream(seed, DIVIDE)

    def units(rows: Ints) -> list[Ints]:
        unit = unit_c[source.targets[rows]]
        return [rng.permutation(rows[unit == u]) for u in range(len(holders_up))]

    rows_u, test_u = units(source.train), units(source.test)
    for _ in range(TRIES):
        cuts_up = np.stack(
            [
                _cuts(len(rows), holders_p, alpha, rng)
                for rows, holders_p in zip(rows_u, holders_up, strict=True)
            ]
        )
        counts_up = np.diff(cuts_up, axis=1, prepend=0)
        if counts_up.sum(axis=0).min() >= least:
            break
    else:
        raise DataError(
            f"partition.min-samples = {least}: no division of {source.name} in {TRIES} draws "
            f"gives each of {holders_up.shape[1]} peers so many; lower it or `peers`, or raise "
            "`partition.alpha` (dirichlet kinds) or `partition.classes-per-peer` (pathological)"
        )
    sizes_u1 = np.array([[max(len(rows), 1)] for rows in rows_u])
    test_cuts_up = cuts_up * np.array([[len(rows)] for rows in test_u]) // sizes_u1
    return Shares(_gather(rows_u, cuts_up), _gather(test_u, test_cuts_up), divided_test=True)


def _cuts(
    size: int, holders_p: npt.NDArray[np.bool_], alpha: float, rng: np.random.Generator
) -> Ints:
    """(p,) where each peer's part of `size` examples ends; a non-holder's part is empty."""
    if not holders_p.any():
        return np.zeros(len(holders_p), dtype=np.int64)
    ends = np.floor(size * np.cumsum(rng.dirichlet(np.full(holders_p.sum(), alpha))))
    ends[-1] = size  # the sum of the proportions is 1 but for rounding
    return np.concatenate([[0], ends])[np.cumsum(holders_p)].astype(np.int64)


def _gather(rows_u: list[Ints], cuts_up: Ints) -> list[Ints]:
    """Each peer's parts of all units, put together."""
    parts = [np.split(rows, cuts)[:-1] for rows, cuts in zip(rows_u, cuts_up, strict=True)]
    return [np.concatenate(own) for own in zip(*parts, strict=True)]


def ensure_test_examples(
    labels: Ints, train: list[Ints], test: list[Ints], rng: np.random.Generator
) -> list[Ints]:
    """Let every peer be tested on something it trains on.

    A peer without a test example of any class it trains on gets one of its most frequent such
    class, from the peer that has most of them: given away where that one keeps another of the
    class, shared otherwise.
    """
    test = list(test)
    for peer, own in enumerate(train):
        if np.isin(labels[test[peer]], labels[own]).any():
            continue
        classes, counts = np.unique(labels[own], return_counts=True)
        for label in classes[np.argsort(-counts, kind="stable")]:
            held = [np.flatnonzero(labels[rows] == label) for rows in test]
            lender = max(range(len(test)), key=lambda p: len(held[p]))
            if not len(held[lender]):
                continue  # the test set has none of this class
            chosen = rng.choice(held[lender])
            test[peer] = np.append(test[peer], test[lender][chosen])
            if len(held[lender]) > 1:
                test[lender] = np.delete(test[lender], chosen)
            break
    return test
