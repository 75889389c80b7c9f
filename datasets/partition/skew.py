"""Label skew: Dirichlet and pathological partitions of both training and test set.

Dir(alpha) over the peers for each class (Hsu et al. 2019), or for each group of classes (FedEM,
Marfoq et al. 2021, as used in FedeRiCo's appendix C), and "Patho(k)" of DPFL (appendix F.5): k
classes per peer, each class divided by Dir(0.5) among its holders.

Legend: c = classes, u = units that are divided (classes or groups of them), p = peers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.datasets.partition.options import ASSIGN, DIVIDE, Partition, Shares, stream
from coterie.datasets.problem import DataError, Ints
from coterie.datasets.source import Source

TRIES = 1000  # maximum number of draws to satisfy `min_samples`
HOLDER_ALPHA = 0.5  # DPFL's division of a class among its holders


def dirichlet(source: Source, partition: Partition, peers: int, seed: int) -> Shares:
    """Divide each class among all peers, in proportions drawn from Dir(alpha)."""
    holders = np.ones((source.outputs, peers), dtype=bool)
    classes = np.arange(source.outputs)
    return _divide(source, classes, holders, partition.alpha, partition.min_samples, seed)


def groups_of_classes(classes: int, groups: int) -> Ints:
    """Return the group of each class, (c,): consecutive classes, in groups of about equal size."""
    return np.arange(classes) * groups // classes


def label_groups_dirichlet(source: Source, partition: Partition, peers: int, seed: int) -> Shares:
    """Divide each of `clusters` groups of classes among all peers by Dir(alpha)."""
    # Within a group, classes are not stratified; a peer has no true cluster.
    groups = partition.clusters
    if groups > source.outputs:
        raise DataError(
            f"partition.clusters = {groups}: choose at most {source.outputs}, the number of "
            f"classes of {source.name}"
        )
    holders = np.ones((groups, peers), dtype=bool)
    group_c = groups_of_classes(source.outputs, groups)
    return _divide(source, group_c, holders, partition.alpha, partition.min_samples, seed)


def pathological(source: Source, partition: Partition, peers: int, seed: int) -> Shares:
    """Divide the classes so that each peer has `classes_per_peer`, with balanced holders."""
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
        # The classes with the fewest holders so far, ties at random, so that each has a holder.
        order = np.lexsort((rng.random(len(present)), holders[present].sum(axis=1)))
        holders[present[order[:k]], peer] = True
    classes = np.arange(source.outputs)
    return _divide(source, classes, holders, HOLDER_ALPHA, partition.min_samples, seed)


def _divide(
    source: Source,
    unit_c: Ints,
    holders_up: npt.NDArray[np.bool_],
    alpha: float,
    min_samples: int,
    seed: int,
) -> Shares:
    """Divide each unit by Dir(alpha) among its holders; the test set in the same proportions."""
    # `unit_c` is the unit of each class, `holders_up` the mask of the peers that hold each unit.
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
        if counts_up.sum(axis=0).min() >= min_samples:
            break
    else:
        raise DataError(
            f"partition.min-samples = {min_samples}: none of {TRIES} divisions of {source.name} "
            f"gives each of {holders_up.shape[1]} peers that number; lower it or `peers`, or raise "
            "`partition.alpha` (dirichlet kinds) or `partition.classes-per-peer` (pathological)"
        )
    sizes_u1 = np.array([[max(len(rows), 1)] for rows in rows_u])
    test_cuts_up = cuts_up * np.array([[len(rows)] for rows in test_u]) // sizes_u1
    return Shares(_gather(rows_u, cuts_up), _gather(test_u, test_cuts_up), divided_test=True)


def _cuts(
    size: int, holders_p: npt.NDArray[np.bool_], alpha: float, rng: np.random.Generator
) -> Ints:
    """Draw the end of each peer's part of `size` examples, (p,); other peers' parts are empty."""
    if not holders_p.any():
        return np.zeros(len(holders_p), dtype=np.int64)
    ends = np.floor(size * np.cumsum(rng.dirichlet(np.full(holders_p.sum(), alpha))))
    ends[-1] = size  # the proportions sum to 1 up to rounding
    return np.concatenate([[0], ends])[np.cumsum(holders_p)].astype(np.int64)


def _gather(rows_u: list[Ints], cuts_up: Ints) -> list[Ints]:
    parts_up = [np.split(rows, cuts)[:-1] for rows, cuts in zip(rows_u, cuts_up, strict=True)]
    return [np.concatenate(parts_u) for parts_u in zip(*parts_up, strict=True)]


def ensure_test_examples(
    labels: Ints, train: list[Ints], test: list[Ints], rng: np.random.Generator
) -> list[Ints]:
    """Give every peer a test example of a class that it trains on."""
    # It comes from the peer with the most of that class, which keeps it too if it has no other.
    test = list(test)
    for peer, rows in enumerate(train):
        if np.isin(labels[test[peer]], labels[rows]).any():
            continue
        classes, counts = np.unique(labels[rows], return_counts=True)
        for label in classes[np.argsort(-counts, kind="stable")]:
            at_p = [np.flatnonzero(labels[test_rows] == label) for test_rows in test]
            lender = max(range(len(test)), key=lambda p: len(at_p[p]))
            if not len(at_p[lender]):
                continue  # the test set has no example of this class
            chosen = rng.choice(at_p[lender])
            test[peer] = np.append(test[peer], test[lender][chosen])
            if len(at_p[lender]) > 1:
                test[lender] = np.delete(test[lender], chosen)
            break
    return test
