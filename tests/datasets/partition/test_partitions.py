"""Invariants of all partitions, for any source, seed and number of peers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.datasets.partition.kinds import KINDS
from coterie.datasets.partition.options import Partition
from coterie.datasets.partition.skew import ensure_test_examples
from coterie.datasets.partition.split import split
from coterie.datasets.problem import DataError, Ints, Problem
from coterie.datasets.source import Source

CLASSES = 10
ALL = Partition("label-permutation", samples_per_peer=0, min_samples=2)


def make_source(classes: int = CLASSES, each: int = 40, each_test: int = 12) -> Source:
    """Make a balanced source; test examples lie between the training examples."""
    labels = np.tile(np.arange(classes), each + each_test)
    test = np.zeros(len(labels), dtype=bool)
    test[np.random.default_rng(5).permutation(each + each_test)[:each_test]] = True
    test = np.repeat(test[: each + each_test], classes)
    pixels = np.random.default_rng(6).integers(256, size=(len(labels), 3, 2, 2), dtype=np.uint8)
    groups = np.arange(len(labels)) // (2 * classes)
    return Source(
        "blocks",
        pixels,
        labels,
        np.flatnonzero(~test),
        np.flatnonzero(test),
        classes,
        groups=groups,
    )


SOURCE = make_source()


@st.composite
def requests(draw: st.DrawFn) -> tuple[Partition, int, int]:
    peers = draw(st.integers(1, 8))
    partition = Partition(
        kind=draw(st.sampled_from(sorted(KINDS))),
        clusters=draw(st.integers(1, min(peers, 4))),
        alpha=draw(st.floats(0.2, 50)),
        classes_per_peer=draw(st.integers(-(-CLASSES // peers), CLASSES)),
        samples_per_peer=draw(st.sampled_from([0, 2, 7, 60])),
        validation=draw(st.sampled_from([0.0, 0.01, 0.2, 0.99])),
        flip_fraction=draw(st.floats(0, 1)),
        min_samples=2,
        class_counts="/".join(["0:3-1:2"] * peers),
    )
    return partition, peers, draw(st.integers(0, 2**40))


def together(problem: Problem) -> list[Ints]:
    """Return each peer's training and validation rows."""
    return [
        np.concatenate(pair)
        for pair in zip(problem.train.rows, problem.validation.rows, strict=True)
    ]


def published(rows: Ints) -> Ints:
    """Return the rows of SOURCE of which these are, or are rotated copies, see `rotation`."""
    copied = rows >= len(SOURCE.targets)
    copies = SOURCE.test[(rows - len(SOURCE.targets)) % len(SOURCE.test)]
    return np.where(copied, copies, rows)


def same(a: Problem, b: Problem) -> bool:
    pairs = [(a.train, b.train), (a.validation, b.validation), (a.test, b.test)]
    return all(
        np.array_equal(x, y)
        for one, other in pairs
        for x, y in zip(one.rows + one.targets, other.rows + other.targets, strict=True)
    )


def naming(problem: Problem, peer: int) -> dict[int, int]:
    """Return a peer's label of each published class, checked to be the same in all its splits."""
    names: dict[int, int] = {}
    for part in (problem.train, problem.validation, problem.test):
        labels = SOURCE.targets[published(part.rows[peer])]
        for label, name in zip(labels.tolist(), part.targets[peer].tolist(), strict=True):
            assert names.setdefault(label, name) == name
    return names


@given(requests())
def test_every_split_is_sound(request: tuple[Partition, int, int]) -> None:
    partition, peers, seed = request
    problem = split(SOURCE, partition, peers, seed)
    for peer, rows in enumerate(together(problem)):
        assert len(np.unique(rows)) == len(rows)
        assert np.isin(rows, SOURCE.train).all()
        assert len(rows) <= (partition.limit or len(SOURCE.train))
        held_out = len(problem.validation.rows[peer])
        assert 1 <= held_out < len(rows) if partition.validation_share else held_out == 0
        assert abs(held_out - partition.validation_share * len(rows)) <= 1
        test = published(problem.test.rows[peer])
        assert len(np.unique(test)) == len(test)
        assert np.isin(test, SOURCE.test).all()
        trained = SOURCE.targets[problem.train.rows[peer]]
        assert np.isin(SOURCE.targets[test], trained).any() or partition.kind in (
            "label-groups",  # has the whole group's test set, with any number of examples
            "natural",
        )
        assert len(test)
        names = naming(problem, peer)
        assert len(set(names.values())) == len(names)
    np.testing.assert_array_equal(problem.samples, problem.train.sizes)
    assert all(row.dtype == np.int64 for row in problem.train.rows + problem.train.targets)
    assert same(problem, split(SOURCE, partition, peers, seed))


@given(requests())
def test_shares_are_disjoint_and_complete(request: tuple[Partition, int, int]) -> None:
    partition, peers, seed = request
    problem = split(SOURCE, replace(partition, samples_per_peer=0), peers, seed)
    shares = together(problem)
    sets = [shares]
    if partition.kind == "label-permutation":
        assert problem.clusters is not None
        sets = [
            [shares[p] for p in np.flatnonzero(problem.clusters == cluster)]
            for cluster in range(partition.clusters)
        ]
    for rows in sets:
        held = np.sort(np.concatenate(rows))
        if partition.kind in ("auto", "natural", "class-counts"):
            assert len(np.unique(held)) == len(held)
        else:
            np.testing.assert_array_equal(held, SOURCE.train)
        if partition.kind in ("iid", "label-flip", "label-permutation", "rotation"):
            sizes = [len(row) for row in rows]
            assert max(sizes) - min(sizes) <= 1


@given(requests())
def test_a_cap_keeps_a_subset(request: tuple[Partition, int, int]) -> None:
    partition, peers, seed = request
    partition = replace(partition, validation=0.0)
    whole = split(SOURCE, replace(partition, samples_per_peer=0), peers, seed)
    capped = split(SOURCE, replace(partition, samples_per_peer=5), peers, seed)
    for some, rows in zip(capped.train.rows, whole.train.rows, strict=True):
        assert len(some) == min(5, len(rows))
        assert np.isin(some, rows).all()
    np.testing.assert_equal(capped.clusters, whole.clusters)


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_seed_decides_who_holds_what(kind: str) -> None:
    partition = replace(ALL, kind=kind, class_counts="/".join(["0:3-1:2"] * 6))
    held = {
        tuple(tuple(np.sort(rows)) for rows in split(SOURCE, partition, 6, seed).train.rows)
        for seed in range(3)
    }
    assert len(held) == 3


def test_the_seed_decides_what_is_kept_and_held_out() -> None:
    """Two peers with one natural group each, so that nothing else is random."""
    source = replace(SOURCE, groups=np.arange(len(SOURCE.targets)) % 2)
    partition = Partition(kind="natural", samples_per_peer=20, validation=0.5)
    problems = [split(source, partition, 2, seed) for seed in range(3)]
    for parts in ([p.train for p in problems], [p.validation for p in problems]):
        assert len({tuple(np.sort(part.rows[0])) for part in parts}) == 3


def test_the_seed_decides_clusters_and_labels() -> None:
    flips = [split(SOURCE, replace(ALL, kind="label-flip"), 10, s).clusters for s in range(5)]
    assert len({tuple(clusters) for clusters in flips if clusters is not None}) > 2
    permuted = [split(SOURCE, ALL, 4, seed).test.targets[0] for seed in range(3)]
    assert len({tuple(targets) for targets in permuted}) == 3


@pytest.mark.parametrize("kind", ["iid", "label-flip", "label-permutation"])
def test_everybody_is_tested_on_everything(kind: str) -> None:
    problem = split(SOURCE, Partition(kind=kind), 6, 0)
    for rows in problem.test.rows:
        np.testing.assert_array_equal(rows, SOURCE.test)


@given(requests())
def test_divided_test_sets_follow_the_training_sets(request: tuple[Partition, int, int]) -> None:
    """Disjoint, complete, and per class within one example of the training proportion."""
    partition, peers, seed = request
    kind: str = "dirichlet" if seed % 2 else "pathological"
    partition = replace(partition, kind=kind, samples_per_peer=0, validation=0.0, min_samples=30)
    peers = min(peers, 4)
    if partition.classes_per_peer * peers < CLASSES:
        partition = replace(partition, classes_per_peer=CLASSES)
    problem = split(SOURCE, partition, peers, seed)
    np.testing.assert_array_equal(np.sort(np.concatenate(problem.test.rows)), SOURCE.test)
    for peer in range(peers):
        train, test = (
            np.bincount(part.targets[peer], minlength=CLASSES)
            for part in (problem.train, problem.test)
        )
        assert np.abs(test - train * 12 / 40).max() <= 1


@pytest.mark.parametrize(("alpha", "peers"), [(0.1, 4), (0.5, 5), (5.0, 3)])
def test_dirichlet_concentration(alpha: float, peers: int) -> None:
    """E[sum q^2] = (alpha + 1) / (n alpha + 1) for q ~ Dir(alpha) over n peers.

    400 independent classes; sum q^2 has standard deviation below 0.3, so 4 standard errors are
    0.06. Rounding to 200 examples per class changes it by less than 0.01.
    """
    source = make_source(classes=20, each=200, each_test=1)
    partition = replace(ALL, kind="dirichlet", alpha=alpha, min_samples=1)
    squares = []
    for seed in range(20):
        problem = split(source, partition, peers, seed)
        counts = np.stack([np.bincount(t, minlength=20) for t in problem.train.targets])
        squares.append(np.square(counts / 200).sum(axis=0))
    assert np.mean(squares) == pytest.approx((alpha + 1) / (peers * alpha + 1), abs=0.07)


def test_pathological_holders_and_their_parts() -> None:
    """Each class is divided by Dir(0.5) among its 4 holders: E[sum q^2] = 1.5 / 3."""
    source = make_source(classes=20, each=200, each_test=1)
    squares = []
    for seed in range(20):
        partition = replace(ALL, kind="pathological", classes_per_peer=4, min_samples=1)
        problem = split(source, partition, 20, seed)
        counts = np.stack([np.bincount(t, minlength=20) for t in problem.train.targets])
        assert ((counts > 0).sum(axis=1) <= 4).all()
        assert ((counts > 0).sum(axis=0) <= 4).all()
        np.testing.assert_array_equal(counts.sum(axis=0), 200)
        squares.append(np.square(counts / 200).sum(axis=0))
    assert np.mean(squares) == pytest.approx(0.5, abs=0.07)


def test_pathological_leaves_no_present_class_out() -> None:
    seven = np.flatnonzero(np.isin(SOURCE.targets, range(7)))
    source = replace(SOURCE, train=np.intersect1d(SOURCE.train, seven))
    problem = split(source, replace(ALL, kind="pathological", classes_per_peer=2), 4, 0)
    assert set(np.concatenate(problem.train.targets)) == set(range(7))
    assert np.isin(np.concatenate(problem.test.rows), seven).all()


def test_label_groups() -> None:
    drawn = set()
    for seed in range(10):
        problem = split(SOURCE, replace(ALL, kind="label-groups", clusters=3), 6, seed)
        assert problem.clusters is not None
        assert set(problem.clusters) == {0, 1, 2}
        drawn.add(tuple(problem.clusters))
        group_of_class = np.array([0, 0, 0, 0, 1, 1, 1, 2, 2, 2])
        for peer, group in enumerate(problem.clusters):
            assert (group_of_class[problem.train.targets[peer]] == group).all()
            np.testing.assert_array_equal(
                problem.test.rows[peer],
                SOURCE.test[group_of_class[SOURCE.targets[SOURCE.test]] == group],
            )
    assert len(drawn) > 5


def test_two_label_groups_are_the_papers() -> None:
    problem = split(SOURCE, replace(ALL, kind="label-groups", clusters=2), 4, 0)
    assert problem.clusters is not None
    for peer, group in enumerate(problem.clusters):
        np.testing.assert_array_equal(
            np.unique(problem.train.targets[peer]), np.arange(5) + 5 * group
        )


def test_cobos_cross_device_clusters() -> None:
    """10 clusters of 6, 6, 7, 7, ... 10, 10 peers, each with 10 of 100 classes, divided evenly."""
    source = make_source(classes=100, each=20, each_test=2)
    sizes = "6-6-7-7-8-8-9-9-10-10"
    partition = replace(ALL, kind="label-groups", clusters=10, cluster_sizes=sizes)
    problem = split(source, partition, 80, 0)
    assert problem.clusters is not None
    assert np.bincount(problem.clusters).tolist() == [6, 6, 7, 7, 8, 8, 9, 9, 10, 10]
    for peer, cluster in enumerate(problem.clusters):
        for part in (problem.train, problem.test):
            assert set(part.targets[peer] // 10) == {cluster}
        members = (problem.clusters == cluster).sum()
        assert len(problem.train.rows[peer]) - 200 // members in (0, 1)
        assert len(problem.test.rows[peer]) == 20
    np.testing.assert_array_equal(np.sort(np.concatenate(problem.train.rows)), source.train)
    assert same(problem, split(source, partition, 80, 0))
    assert not same(problem, split(source, partition, 80, 1))


@pytest.mark.parametrize(("clusters", "degrees"), [(1, 0), (2, 180), (3, 90), (4, 90)])
def test_clusters_see_rotated_images(clusters: int, degrees: int) -> None:
    """Undone by hand, every image and label is the published one; the test set is complete."""
    partition = replace(ALL, kind="rotation", clusters=clusters, validation=0.2)
    problem = split(SOURCE, partition, 8, 0)
    assert problem.clusters is not None
    assert problem.clusters.tolist() == [peer * clusters // 8 for peer in range(8)]
    for peer, cluster in enumerate(problem.clusters):
        for part in (problem.train, problem.validation, problem.test):
            rows = part.rows[peer]
            upright = problem.inputs[rows]
            for _ in range(cluster * degrees // 90):  # clockwise by 90 degrees
                upright = upright.swapaxes(2, 3)[..., ::-1]
            np.testing.assert_array_equal(upright, SOURCE.inputs[published(rows)])
            np.testing.assert_array_equal(part.targets[peer], SOURCE.targets[published(rows)])
        np.testing.assert_array_equal(published(problem.test.rows[peer]), SOURCE.test)
    np.testing.assert_array_equal(problem.mean, SOURCE.normalisation[0])
    assert len(problem.inputs) == len(SOURCE.inputs) + (clusters - 1) * len(SOURCE.test)
    assert problem.inputs.dtype == np.uint8


def test_only_square_images_are_rotated() -> None:
    wide = replace(SOURCE, inputs=SOURCE.inputs[:, :, :1])
    flat = replace(SOURCE, inputs=SOURCE.inputs.reshape(len(SOURCE.inputs), -1))
    for source in (wide, flat):
        with pytest.raises(DataError, match=r"'rotation' needs square images, but .* shape \("):
            split(source, replace(ALL, kind="rotation", clusters=2), 4, 0)
    with pytest.raises(DataError, match="choose at most 4, the number of rotations"):
        split(SOURCE, replace(ALL, kind="rotation", clusters=5), 6, 0)


@pytest.mark.parametrize("kind", ["label-groups", "label-permutation"])
@pytest.mark.parametrize("sizes", ["even", "1-4-2"])
def test_cluster_sizes(kind: str, sizes: str) -> None:
    partition = replace(ALL, kind=kind, clusters=3, cluster_sizes=sizes)
    problem = split(SOURCE, partition, 7, 0)
    assert problem.clusters is not None
    expected = [0, 1, 2, 0, 1, 2, 0] if sizes == "even" else [0, 1, 1, 1, 1, 2, 2]
    assert problem.clusters.tolist() == expected
    for cluster in range(3):
        held = [problem.train.rows[peer] for peer in np.flatnonzero(problem.clusters == cluster)]
        rows = SOURCE.train
        if kind == "label-groups":
            classes = [range(4), range(4, 7), range(7, 10)][cluster]
            rows = rows[np.isin(SOURCE.targets[rows], classes)]
        np.testing.assert_array_equal(np.sort(np.concatenate(held)), rows)
        names = {
            tuple(sorted(naming(problem, peer).items()))
            for peer in np.flatnonzero(problem.clusters == cluster).tolist()
        }
        assert len(names) == 1


@pytest.mark.parametrize("sizes", ["odd", "6-", "0-4", "-1", "3-x", "2 2"])
def test_malformed_cluster_sizes(sizes: str) -> None:
    with pytest.raises(ValueError, match='cluster-sizes must be "even" or numbers'):
        Partition(cluster_sizes=sizes)


@pytest.mark.parametrize(("alpha", "peers"), [(0.4, 10), (5.0, 4)])
def test_label_groups_divided_by_dirichlet(alpha: float, peers: int) -> None:
    """Shares of whole groups: E[sum q^2] = (alpha + 1) / (n alpha + 1), as for single classes.

    80 independent groups, standard deviation of sum q^2 below 0.3: 4 standard errors are 0.14.
    """
    source = make_source(classes=20, each=100, each_test=10)
    partition = replace(ALL, kind="label-groups-dirichlet", clusters=4, alpha=alpha, min_samples=1)
    squares = []
    for seed in range(20):
        problem = split(source, partition, peers, seed)
        assert problem.clusters is None
        counts_pc = np.stack([np.bincount(t, minlength=20) for t in problem.train.targets])
        counts_pu = counts_pc.reshape(peers, 4, 5).sum(axis=2)
        np.testing.assert_array_equal(counts_pu.sum(axis=0), 500)
        squares.append(np.square(counts_pu / 500).sum(axis=0))
        # Within a group the classes are mixed: a large share has a fifth of each.
        large = counts_pu.max(axis=0) > 200
        of_class = counts_pc.reshape(peers, 4, 5)[counts_pu.argmax(axis=0), range(4)]
        assert (
            np.abs(of_class / of_class.sum(axis=1, keepdims=True) - 0.2)[large].max(initial=0)
            < 0.15
        )
        tests = [np.bincount(t // 5, minlength=4) for t in problem.test.targets]
        assert np.abs(np.stack(tests) - counts_pu * 50 / 500).max() <= 2  # one may be moved
    assert np.mean(squares) == pytest.approx((alpha + 1) / (peers * alpha + 1), abs=0.14)


@given(st.integers(0, 9), st.integers(0, 2**40))
def test_missing_classes(missing: int, seed: int) -> None:
    source = replace(SOURCE, groups=np.arange(len(SOURCE.targets)) // 130)
    partition = replace(ALL, kind="natural", missing_classes=missing)
    problem = split(source, partition, 3, seed)
    whole = split(source, replace(partition, missing_classes=0), 3, seed)
    everything = [
        np.concatenate([p.train.rows[i], p.test.rows[i]])
        for p in (problem, whole)
        for i in range(3)
    ]
    for some, rows in zip(everything[:3], everything[3:], strict=True):
        kept = np.unique(SOURCE.targets[some])
        assert len(kept) == 10 - missing
        np.testing.assert_array_equal(
            np.sort(some), np.sort(rows[np.isin(SOURCE.targets[rows], kept)])
        )


def test_natural_groups_with_fewer_are_passed_over() -> None:
    """Training examples of groups 0 to 3: 5, 10, 15, 370."""
    groups = np.zeros(len(SOURCE.targets), dtype=np.int64)
    groups[SOURCE.train] = np.repeat([0, 1, 2, 3], [5, 10, 15, 370])
    groups[SOURCE.test] = np.arange(len(SOURCE.test)) % 4
    source = replace(SOURCE, groups=groups)
    partition = replace(ALL, kind="natural", min_samples=10)
    problem = split(source, partition, 3, 0)
    assert problem.samples.tolist() == [10, 15, 370]
    with pytest.raises(DataError, match=r"has 3 natural groups .*min-samples = 10 .* most 3"):
        split(source, partition, 4, 0)


def test_peers_miss_classes_of_their_own() -> None:
    source = replace(SOURCE, groups=np.arange(len(SOURCE.targets)) // 130)
    partition = replace(ALL, kind="natural", missing_classes=5)
    held = {tuple(np.unique(t)) for t in split(source, partition, 4, 0).train.targets}
    other = {tuple(np.unique(t)) for t in split(source, partition, 4, 1).train.targets}
    assert len(held) > 1
    assert held != other


def test_label_permutation() -> None:
    problem = split(SOURCE, replace(ALL, clusters=3), 8, 0)
    np.testing.assert_array_equal(problem.clusters, [0, 0, 0, 1, 1, 1, 2, 2])
    names = [naming(problem, peer) for peer in range(8)]
    assert all(sorted(n) == sorted(n.values()) == list(range(CLASSES)) for n in names)
    assert names[0] == names[1] == names[2] != names[3] == names[5] != names[6] == names[7]
    assert names[0] != names[6]


def test_all_permutations_of_few_classes() -> None:
    """6 clusters of 3 classes take each of the 3! permutations exactly once."""
    source = make_source(classes=3)
    problem = split(source, replace(ALL, clusters=6), 6, 0)
    sorted_rows = [np.argsort(rows) for rows in problem.test.rows]
    names = {
        tuple(t[order][:3]) for t, order in zip(problem.test.targets, sorted_rows, strict=True)
    }
    assert len(names) == 6


@pytest.mark.parametrize(("fraction", "flipped"), [(0.0, 0), (0.4, 4), (1.0, 10)])
def test_label_flip(fraction: float, flipped: int) -> None:
    partition = replace(ALL, kind="label-flip", flip_fraction=fraction, validation=0.2)
    problem = split(SOURCE, partition, 10, 3)
    honest = split(SOURCE, replace(partition, kind="iid"), 10, 3)
    assert problem.clusters is not None
    assert problem.clusters.sum() == flipped
    for name in ("train", "validation", "test"):
        attacked, straight = getattr(problem, name), getattr(honest, name)
        for peer, flip in enumerate(problem.clusters):
            np.testing.assert_array_equal(attacked.rows[peer], straight.rows[peer])
            c = straight.targets[peer]
            np.testing.assert_array_equal(attacked.targets[peer], CLASSES - 1 - c if flip else c)


def test_natural_groups() -> None:
    assert SOURCE.groups is not None
    problem = split(SOURCE, replace(ALL, kind="natural"), 5, 0)
    owners = set()
    for train, test in zip(problem.train.rows, problem.test.rows, strict=True):
        (owner,) = set(SOURCE.groups[train]) | set(SOURCE.groups[test])
        np.testing.assert_array_equal(np.sort(train), rows_of(SOURCE.train, owner))
        np.testing.assert_array_equal(np.sort(test), rows_of(SOURCE.test, owner))
        owners.add(owner)
    assert len(owners) == 5


def test_a_natural_group_is_tested_on_its_own_examples_only() -> None:
    """Even if none of them has a class that it trains on."""
    groups, of = np.zeros(len(SOURCE.targets), dtype=np.int64), SOURCE.targets
    groups[SOURCE.train] = of[SOURCE.train] < 5
    groups[SOURCE.test] = of[SOURCE.test] >= 5
    problem = split(replace(SOURCE, groups=groups), replace(ALL, kind="natural"), 2, 0)
    for train, test in zip(problem.train.targets, problem.test.targets, strict=True):
        assert not np.isin(test, train).any()
    assert sum(map(len, problem.test.rows)) == len(SOURCE.test)


def rows_of(rows: Ints, owner: int) -> Ints:
    assert SOURCE.groups is not None
    mine: Ints = rows[SOURCE.groups[rows] == owner]
    return mine


def test_regression_is_divided_without_classes() -> None:
    targets = np.linspace(0, 1, len(SOURCE.targets))[:, None]
    source = replace(SOURCE, targets=targets, task="regression", outputs=1)
    problem = split(source, replace(ALL, kind="iid"), 4, 0)
    np.testing.assert_array_equal(problem.train.targets[2], targets[problem.train.rows[2]])
    assert problem.describe()[0]["train"] == {"size": len(problem.train.rows[0]), "labels": None}
    with pytest.raises(DataError, match=r"partition\.kind = 'dirichlet' needs classes"):
        split(source, replace(ALL, kind="dirichlet"), 4, 0)


LABELS = np.array([0, 0, 0, 1, 1, 2])
"""Labels of six pool rows, to move test examples by hand."""


@pytest.mark.parametrize(
    ("train", "test", "expected"),
    [
        pytest.param([[0], [3]], [[1], [4]], [[1], [4]], id="nobody in need"),
        pytest.param([[0], [0]], [[1, 2], []], [1, 1], id="moved from a peer that keeps another"),
        pytest.param([[0], [0]], [[1], []], [[1], [1]], id="shared where it is the only one"),
        pytest.param([[0], [0, 1, 3]], [[1, 2], [5]], [1, 2], id="has tests, but none that fit"),
        pytest.param([[0], [0, 3, 3]], [[1, 3, 4], []], [2, 1], id="most frequent class first"),
        pytest.param([[3], [5, 5, 3]], [[3, 4], []], [1, 1], id="next class, none of the first"),
        pytest.param([[3], [5]], [[3, 4], []], [[3, 4], []], id="the test set has none"),
    ],
)
def test_lending(train: list[list[int]], test: list[list[int]], expected: list[Any]) -> None:
    def arrays(rows: list[list[int]]) -> list[Ints]:
        return [np.array(r, dtype=np.int64) for r in rows]

    lent = ensure_test_examples(LABELS, arrays(train), arrays(test), np.random.default_rng(0))
    if isinstance(expected[0], int):
        assert [len(rows) for rows in lent] == expected
        assert sorted(np.concatenate(lent)) == sorted(row for rows in test for row in rows)
        assert np.bincount(LABELS[train[1]]).argmax() in LABELS[lent[1]] or 5 in train[1]
    else:
        assert [rows.tolist() for rows in lent] == expected


def test_a_peer_is_tested_on_what_the_cap_left_it() -> None:
    """Two examples per peer of a skewed division: most classes of its test set are gone."""
    for seed in range(20):
        partition = Partition(kind="dirichlet", alpha=0.2, samples_per_peer=2, min_samples=2)
        problem = split(SOURCE, partition, 8, seed)
        for own_train, own_test in zip(problem.train.targets, problem.test.targets, strict=True):
            assert np.isin(own_test, own_train).any()


@pytest.mark.parametrize(
    ("change", "peers", "seed", "message"),
    [
        (
            {"clusters": 5},
            4,
            0,
            r"clusters = 5: more than the 4 peers; choose at most 4",
        ),
        (
            {"clusters": 11, "kind": "label-groups"},
            20,
            0,
            r"clusters = 11: choose at most 10",
        ),
        (
            {"clusters": 5, "kind": "label-groups"},
            4,
            0,
            r"clusters = 5: more than the 4 peers",
        ),
        ({"kind": "pathological", "classes_per_peer": 11}, 4, 0, r"classes-per-peer = 11: .*10"),
        ({"kind": "pathological", "classes_per_peer": 2}, 4, 0, "without a holder; .*least 3"),
        ({"samples_per_peer": 401}, 4, 0, r"samples-per-peer = 401: must be .* to 400"),
        ({"validation": 0.5, "samples_per_peer": 1}, 4, 0, r"partition\.validation = 0.5: peer 0"),
        ({"kind": "dirichlet", "min_samples": 101}, 4, 0, r"partition\.min-samples = 101"),
        ({"kind": "natural", "missing_classes": 10}, 4, 0, r"missing-classes = 10: .* 10 classes"),
        (
            {"kind": "label-groups", "clusters": 2, "cluster_sizes": "2-1"},
            4,
            0,
            r'cluster-sizes = "2-1": 2 clusters of 3 peers, but .*clusters = 2 and peers = 4',
        ),
        ({"clusters": 3, "cluster_sizes": "2-2"}, 4, 0, r"2 clusters of 4 peers, but .* = 3 and"),
        (
            {"kind": "label-groups-dirichlet", "clusters": 11},
            4,
            0,
            r"clusters = 11: choose at most 10",
        ),
        ({"kind": "natural"}, 27, 0, r"peers = 27: blocks has \d+ natural groups"),
        ({"kind": "iid"}, 401, 0, "partition.kind = 'iid': peer 400 of 401 gets no training"),
    ],
)
def test_impossible_requests(change: dict[str, Any], peers: int, seed: int, message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        split(SOURCE, replace(ALL, **change), peers, seed)
    assert "\n" not in str(caught.value)


def test_natural_needs_groups() -> None:
    with pytest.raises(DataError, match=r"kind = 'natural': blocks has no natural groups"):
        split(replace(SOURCE, groups=None), replace(ALL, kind="natural"), 4, 0)


def test_more_clusters_than_permutations() -> None:
    with pytest.raises(DataError, match=r"partition\.clusters = 3: choose at most 2"):
        split(make_source(classes=2), replace(ALL, clusters=3), 4, 0)


def test_peers_are_called_as_the_groups_they_hold() -> None:
    letters = "abcdefghijkl"
    groups = np.arange(len(SOURCE.targets)) % len(letters)
    source = replace(SOURCE, groups=groups, group_names=tuple(letters))
    problem = split(source, replace(ALL, kind="natural"), 4, 0)
    held = [letters[groups[rows[0]]] for rows in problem.train.rows]
    assert problem.names == tuple(held)
    assert split(source, replace(ALL, kind="iid"), 4, 0).names == ()


def test_classes_have_no_names_where_peers_disagree_about_them() -> None:
    source = replace(SOURCE, classes=tuple("abcdefghij"))
    assert split(source, replace(ALL, kind="iid"), 4, 0).classes == source.classes
    assert split(source, replace(ALL, kind="label-flip"), 4, 0).classes == ()


def test_statistics_of_the_split() -> None:
    problem = split(SOURCE, Partition("label-flip", validation=0.25, samples_per_peer=60), 4, 0)
    rows = problem.describe()
    assert problem.clusters is not None
    assert [row["peer"] for row in rows] == [0, 1, 2, 3]
    assert [row["cluster"] for row in rows] == problem.clusters.tolist()
    for peer, row in enumerate(rows):
        assert (row["train"]["size"], row["validation"]["size"]) == (45, 15)
        assert row["test"] == {"size": 120, "labels": [12] * 10}
        for name in ("train", "validation"):
            targets = getattr(problem, name).targets[peer]
            assert row[name]["labels"] == [int((targets == c).sum()) for c in range(10)]


def test_normalisation_is_of_the_training_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.datasets.source.CHUNK", 7)
    problem = split(SOURCE, ALL, 4, 0)
    training = SOURCE.inputs[SOURCE.train].astype(np.float64)
    np.testing.assert_allclose(problem.mean, training.mean(axis=(0, 2, 3))[:, None, None])
    np.testing.assert_allclose(problem.std, training.std(axis=(0, 2, 3))[:, None, None])
    changed = SOURCE.inputs.copy()
    changed[SOURCE.test] = 0
    other = split(replace(SOURCE, inputs=changed), ALL, 4, 1)
    np.testing.assert_array_equal(other.mean, problem.mean)
    np.testing.assert_array_equal(other.std, problem.std)


def test_a_constant_channel_is_not_divided_by_zero() -> None:
    blank: npt.NDArray[np.uint8] = np.full_like(SOURCE.inputs, 7)
    mean, std = replace(SOURCE, inputs=blank).normalisation
    np.testing.assert_array_equal(mean, np.full((3, 1, 1), 7.0))
    np.testing.assert_array_equal(std, np.ones((3, 1, 1)))


def test_class_counts_are_exact_and_disjoint() -> None:
    """Three peers that share classes: DPFL, appendix A, in small."""
    wanted = [{0: 5, 4: 5}, {0: 20, 1: 10}, {4: 20, 5: 10}]
    text = "/".join("-".join(f"{c}:{n}" for c, n in counts.items()) for counts in wanted)
    partition = replace(ALL, kind="class-counts", class_counts=text, validation=0.2)
    problem = split(SOURCE, partition, 3, 7)
    rows = together(problem)
    assert len(np.unique(np.concatenate(rows))) == 70
    for peer, counts in enumerate(wanted):
        classes, numbers = np.unique(SOURCE.targets[rows[peer]], return_counts=True)
        assert dict(zip(classes.tolist(), numbers.tolist(), strict=True)) == counts
        of_test = SOURCE.targets[problem.test.rows[peer]]
        assert sorted(set(of_test.tolist())) == sorted(counts)
        assert len(of_test) == 12 * len(counts)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be class:count pairs"),
        ("0:5/0:x", "must be class:count pairs"),
        ("0:5", "shares of 1 peers, but peers = 2"),
        ("0:30/0:30", "wants 60 examples of class 0: blocks has 40"),
        ("0:5/11:5", "wants 5 examples of class 11: blocks has 0"),
    ],
)
def test_impossible_class_counts(text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        split(SOURCE, replace(ALL, kind="class-counts", class_counts=text), 2, 0)
