"""Division of a source among peers: from a `Source` and a `Partition` to a `Problem`."""

from __future__ import annotations

import numpy as np

from coterie.datasets.partition.kinds import kind_of
from coterie.datasets.partition.options import KEEP, LEND, Partition, stream
from coterie.datasets.partition.skew import ensure_test_examples
from coterie.datasets.problem import DataError, Ints, Problem, Split
from coterie.datasets.source import Source


def split(source: Source, partition: Partition, peers: int, seed: int) -> Problem:
    """Divide a source among peers."""
    # DataError: the partition is impossible; the message names the key and the remedy.
    kind = kind_of(partition.kind)
    size = len(source.train)
    if partition.limit > size:
        raise DataError(
            f"partition.samples-per-peer = {partition.limit}: must be 0 (all) to "
            f"{size}, the training examples of {source.name}"
        )
    if kind.needs_classes and source.task != "classification":
        raise DataError(
            f"partition.kind = {partition.kind!r} needs classes, {source.name} has none; "
            "choose 'iid' or 'natural'"
        )
    mean, std = source.normalisation
    shares = kind.divide(source, partition, peers, seed)
    source = shares.source or source
    train, validation = _keep(shares.train, partition, seed)
    test = shares.test
    if shares.divided_test:
        test = ensure_test_examples(source.targets, train, test, stream(seed, LEND))
    for peer in range(peers):
        for name, rows in (("training", train), ("test", test)):
            if not len(rows[peer]):
                raise DataError(
                    f"partition.kind = {partition.kind!r}: peer {peer} of {peers} gets no {name} "
                    f"example of {source.name}; lower `peers` or choose another partition"
                )

    def part(rows: list[Ints]) -> Split:
        targets = [source.targets[r] for r in rows]
        if shares.labels_pc is not None:
            targets = [labels[t] for labels, t in zip(shares.labels_pc, targets, strict=True)]
        return Split(tuple(rows), tuple(targets))

    return Problem(
        name=source.name,
        task=source.task,
        inputs=source.inputs,
        train=part(train),
        validation=part(validation),
        test=part(test),
        outputs=source.outputs,
        mean=mean,
        std=std,
        samples=np.array([len(rows) for rows in train], dtype=np.int64),
        clusters=shares.clusters,
        validation_key="partition.validation",
        names=shares.names,
        classes=source.classes if shares.labels_pc is None else (),
        table=source.table,
    )


def _keep(shares: list[Ints], partition: Partition, seed: int) -> tuple[list[Ints], list[Ints]]:
    """Limit each share and hold out its validation part: (train, validation)."""
    rng = stream(seed, KEEP)
    share = partition.validation_share
    train, validation = [], []
    for peer, available in enumerate(shares):
        rows = rng.permutation(available)[: partition.limit or None]
        held_out = 0
        if share > 0 and len(rows):
            if len(rows) == 1:
                raise DataError(
                    f"partition.validation = {share}: peer {peer} has a single "
                    "training example; set it to 0, or raise `partition.samples-per-peer`, or "
                    "lower `peers`"
                )
            held_out = min(max(round(share * len(rows)), 1), len(rows) - 1)
        validation.append(rows[:held_out])
        train.append(rows[held_out:])
    return train, validation
