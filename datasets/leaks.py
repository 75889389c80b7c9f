"""Signs that a table gives its labels away: columns that predict them, row numbers, ids, copies.

The thresholds are evidence of `studies/packaged_tables.py`. Legend: p = peers, n = rows,
c = columns, g = groups of equal values. Missing cells are NaN.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.datasets.preprocessing import Column, Floats, Ints

Bools = npt.NDArray[np.bool_]
Hashes = npt.NDArray[np.uint64]
ROWS = "(rows)"
"""Stands for the name of a column in findings about whole rows."""
PREDICTS = 0.985
"""Separation of the classes above which a column alone predicts the label."""
MAX_CLASSES, MAX_PEERS = 20, 100
"""Number of classes, and of peers, that are judged: the most frequent, and evenly spaced ones."""
_MIN_CLASS, _MIN_NUMBERED, _MIN_GROUPS = 10, 20, 10  # rows of a class, numbered rows, repeated ids
_MIN_COPIES, _CHANCE, _FEW = 0.02, 0.25, 0.01  # thresholds of `copied`
_NEAR = {1e-3: 0.1, 1e-2: 0.3}  # share of near-equal rows above which they are reported, by chance
_JUDGED, _POOLED = 10_000, 200_000  # rows of a class, of all peers; of more, evenly spaced ones
_DISTINCT, _QUANTILES = 64, np.linspace(0, 1, 9)
_BLOCK, _BLOCKS, _NEIGHBOURS = 100, 20, (2, 11, 21)  # the first neighbour is the row itself
_PERSON = "ids?|uid|pid|mrn|(u?subj|subject|pat|patient|person|participant|individual)(s|id|no|nr)?"
_ROW = f"{_PERSON}|identifier|index|idx|key|nr|no|rownames?|row|record|case|obs|serial|unnamed"
_OF_PERSON, _OF_ROW = (
    re.compile(f"(?i:(?<![a-z])({words})(?![a-z]))|[a-z]I[dD]$") for words in (_PERSON, _ROW)
)
_OF_TIME = re.compile(r"year|yr|time|date|month|(?<![a-z])(day|week|age)", re.IGNORECASE)
_BETWEEN_LETTERS = re.compile(r"(?<=[^\W\d_])[\s_-]+(?=[^\W\d_])")
_IS = {
    "rows": "numbers the rows",
    "id": "differs from row to row as an id does",
    "group": "repeats as an id of patients does",
}
_GROUP = "set table.group to the column that names the patients"


@dataclass(frozen=True, eq=False)
class File:
    """Table of a peer; its rows are in the order of the file."""

    cells: Floats  # (n, columns)
    classes: Sequence[Ints] = ()  # labels as of `classes_of`, (n,) each; -1 of a row without one
    is_test_n: Bools | None = None  # rows for testing
    first: int | None = None  # number of rows of the first file; None for all
    is_own: bool = True  # whether the rows were not dealt to other peers, too
    group_n: Ints | None = None  # number of the group, such as a patient, that a row belongs to


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def signs(
    files: Mapping[int, File], columns: Sequence[Column]
) -> dict[tuple[int, str], tuple[float, str]]:
    """Return separation and finding of each peer's columns, and of its `ROWS` if they have one."""
    # Of more than `MAX_PEERS` peers that many are judged.
    files = {peer: file for peer, file in files.items() if len(file.cells)}
    files = {peer: files[peer] for peer in [*files][:: max(1, -(-len(files) // MAX_PEERS))]}
    result: dict[tuple[int, str], tuple[float, str]] = {}
    alone_p, plain = _alone(files), []
    for c, column in enumerate(columns):
        values_p = [file.cells[:, c] for file in files.values()]
        pooled_n = np.concatenate([*values_p, []])
        spelled = alike(column.name, column.categories, values_p)
        for peer, file in files.items():
            pattern = pattern_of(file.cells[: file.first, c], column, pooled_n)
            alone = float(alone_p[peer][c])
            result[peer, column.name] = alone, finding(column.name, pattern, alone) or spelled
            plain += [c] if pattern else []
    kept_p = {p: np.delete(f.cells, plain, axis=1) if plain else f.cells for p, f in files.items()}
    shared_p = [np.zeros(len(cells), dtype=np.bool_) for cells in kept_p.values()]
    if len(files) > 1 and all(file.is_own for file in files.values()):
        shared_p = copied([*kept_p.values()])
    for (peer, file), is_shared_n in zip(files.items(), shared_p, strict=True):
        texts = [] if file.group_n is not None else _of_rows(kept_p[peer], file.is_test_n)
        if count := is_shared_n.sum():
            where = f"{count} of {len(file.cells)} rows are at another institution, too"
            texts.insert(0, f"{where}: delete them at one")
        if texts:
            result[peer, ROWS] = np.nan, "; ".join(texts)
    return result


def finding(name: str, pattern: str, alone: float = 0.0) -> str:
    """Return the finding of a column with its remedy; empty without one."""
    predicts = f"alone predicts the label (AUROC {alone:.2f})" if alone >= PREDICTS else ""
    if not pattern and not predicts:
        return ""
    remedy = "leave it out of table.columns"
    if pattern == "group":
        remedy = f'table.group = "{name}" keeps the rows of a patient together'
    elif not pattern:
        remedy = f"if it is known only afterwards, {remedy}"
    does = " and ".join(filter(None, (_IS.get(pattern), predicts)))
    return f"{name or 'the column without a name'} {does}: {remedy}"


def alike(name: str, categories: Sequence[str], values_p: Sequence[Floats] = ()) -> str:
    """Return the finding of categories or classes that may mean the same; empty without one."""
    names_p = [
        {categories[int(code)] for code in np.unique(values_n[~np.isnan(values_n)])}
        for values_n in (values_p if categories else ())
    ]
    groups = "; ".join(map(", ".join, spelled_alike(categories, names_p)))
    return f"{name}: did you mean one value by {groups}? Write it alike everywhere" * bool(groups)


def _of_rows(cells: Floats, is_test_n: Bools | None) -> list[str]:
    """Return the findings about equal and near-equal rows of a peer."""
    is_copy_n, but, compared = copied([cells])[0], "", cells
    if not is_copy_n.any() and cells.shape[1] > 3:
        compared, but = but_one(cells), " in all columns but one"
        is_copy_n = copied([compared])[0]
    if is_copy_n.any():
        hash_n, is_test = hashes(compared), is_copy_n & (False if is_test_n is None else is_test_n)
        across = np.isin(hash_n[is_test], hash_n[is_copy_n & ~is_test]).sum()
        in_both = f" ({across} test rows a training row)" if across else ""
        count = f"{is_copy_n.sum()} of {len(cells)} rows equal another row{but}{in_both}"
        return [f"{count}: delete copies; for visits of one patient, {_GROUP}"]
    share = near_equal(cells)
    return [f"{100 * share:.0f} % of the rows nearly equal another row: {_GROUP}"] if share else []


def _alone(files: Mapping[int, File]) -> dict[int, Floats]:
    """Return each peer's separations by column, (c,); all peers' if few rows, NaN if no labels."""

    def best(files: Sequence[File], step: int = 1) -> Floats:
        cells_p = [file.cells[::step] for file in files]
        cells = np.concatenate(cells_p) if len(files) > 1 else cells_p[0]
        groups = [file.group_n[::step] for file in files if file.group_n is not None]
        group_n = np.concatenate(groups) if len(groups) == len(files) else None
        result_lc = [np.full(cells.shape[1], np.nan)]
        for labels in zip(*(file.classes for file in files), strict=True):
            class_n = np.concatenate([each[::step] for each in labels])
            result_lc.append(separations(cells, class_n, group_n))
        return np.asarray(np.fmax.reduce(result_lc))

    own_p = {peer: best([file]) for peer, file in files.items()}
    if len(files) < 2 or not any(np.isnan(own_c).any() for own_c in own_p.values()):
        return own_p
    rows = sum(len(file.cells) for file in files.values())
    pooled_c = best([*files.values()], max(1, rows // _POOLED))
    return {peer: np.where(np.isnan(own_c), pooled_c, own_c) for peer, own_c in own_p.items()}


def classes_of(targets: npt.NDArray[Any]) -> list[Ints]:
    """Return classes (n,) of labels: classes (n,) as they are, numbers (n, k) by quarter."""
    # Numbers of few values are classes; -1 is a missing label.
    if targets.ndim == 1:
        return [np.nan_to_num(targets, nan=-1).astype(np.int64)]
    classes = []
    for values_n in targets.T:
        cuts = np.unique(values_n[~np.isnan(values_n)])
        if len(cuts) > MAX_CLASSES:
            cuts = np.unique(np.nanquantile(values_n, [0.25, 0.5, 0.75]))
        classes.append(np.where(np.isnan(values_n), -1, np.searchsorted(cuts, values_n)))
    return classes


def separations(cells: Floats, class_n: Ints, group_n: Ints | None = None) -> Floats:
    """Return how well each column alone tells the classes apart, (c,); NaN without two classes."""
    # AUROC of the two classes that are hardest to tell apart, by the values or by the share of the
    # second class among similar values in the other half of the rows. NaN is a value.
    counts = np.bincount(class_n[class_n >= 0], minlength=1)
    frequent = np.argsort(-counts, kind="stable")[:MAX_CLASSES]
    rows_k = [np.flatnonzero(class_n == k) for k in frequent[counts[frequent] >= _MIN_CLASS]]
    rows_k = [rows[:: -(-len(rows) // _JUDGED)] for rows in rows_k]
    result_c = np.full(cells.shape[1], 1.0 if len(rows_k) > 1 else np.nan)
    for first, second in combinations(rows_k, 2):
        rows, is_second = np.r_[first, second], np.repeat([False, True], [len(first), len(second)])
        half_n = (np.arange(len(rows)) if group_n is None else group_n[rows]) % 2
        for c in np.flatnonzero(result_c >= PREDICTS):
            ranked = _auroc(cells[rows, c], is_second)
            ranked = max(ranked, 1 - ranked)
            if ranked < PREDICTS:
                ranked = max(
                    ranked, _auroc(_held_out(cells[rows, c], is_second, half_n), is_second)
                )
            result_c[c] = min(result_c[c], ranked)
    missing_kc = np.array([np.isnan(cells[rows]).mean(axis=0) for rows in rows_k])
    for k in range(len(rows_k) if len(rows_k) > 2 else 0):
        gap_kc = np.abs(missing_kc[k] - np.delete(missing_kc, k, axis=0))
        result_c = np.maximum(result_c, (1 + gap_kc.min(axis=0)) / 2)
    return result_c


def _auroc(score_n: Floats, is_second_n: Bools) -> float:
    group_n = np.unique(score_n, return_inverse=True)[1]
    second_g = np.bincount(group_n, is_second_n)
    first_g = np.bincount(group_n) - second_g
    above = second_g @ (np.cumsum(first_g) - first_g / 2)
    return float(above / (first_g.sum() * second_g.sum()))


def _held_out(values_n: Floats, is_second_n: Bools, half_n: Ints) -> Floats:
    """Return the share of the second class among similar values in the other half of the rows."""
    score_n = np.empty(len(values_n))
    for half in (0, 1):
        seen_n = half_n != half
        bin_n = np.searchsorted(_edges(values_n[seen_n], is_second_n[seen_n]), values_n, "right")
        count_b = np.bincount(bin_n[seen_n], minlength=bin_n.max() + 1)
        second_b = np.bincount(bin_n[seen_n], is_second_n[seen_n], minlength=bin_n.max() + 1)
        score_n[~seen_n] = ((second_b + is_second_n.mean()) / (count_b + 1))[bin_n[~seen_n]]
    return score_n


def _edges(values_n: Floats, is_second_n: Bools) -> Floats:
    """Return all values if they are few, else quantiles of each class; NaN is the last edge."""
    edges = np.unique(values_n)
    if len(edges) > _DISTINCT:
        known = [part[~np.isnan(part)] for part in (values_n[is_second_n], values_n[~is_second_n])]
        quantiles = [np.quantile(k, _QUANTILES, method="nearest") for k in known if len(k)]
        edges = np.concatenate(quantiles)
    return np.unique(np.append(edges, np.nan))


def pattern_of(values_n: Floats, column: Column, pooled_n: Floats) -> str:
    """Return whether a column numbers the "rows", or is an "id" of rows or of a "group" of rows."""
    # Integers that all differ although they lie close together are an id, not measurements.
    known_n = values_n[~np.isnan(values_n)]
    sizes_g = np.unique(known_n, return_counts=True)[1]
    n, distinct, name = len(known_n), len(sizes_g), column.name
    if distinct < _MIN_GROUPS or (known_n % 1).any() or _OF_TIME.search(name):
        return ""
    steps = np.diff(known_n)
    if column.kind == "number":
        is_ordered = n == len(values_n) and ((steps > 0).all() or (steps < 0).all())
        if is_ordered and n >= _MIN_NUMBERED:
            uneven = np.count_nonzero(steps != np.median(steps))
            if uneven <= 2 or np.ptp(pooled_n) < 10 * len(pooled_n):
                return "rows"
        pairs, chance = sizes_g @ (sizes_g - 1) / 2, n * (n - 1) / 2 / (np.ptp(known_n) + 1)
        is_named = _OF_ROW.search(name) and n - distinct <= n / 100
        if is_named or (chance >= 10 and pairs <= chance / 10):
            return "id"
    in_blocks = np.count_nonzero(steps) < distinct and sizes_g.var() <= sizes_g.mean() / 4
    is_group = column.kind != "date" and (in_blocks or _OF_PERSON.search(name))
    return "group" if is_group and distinct <= n / 1.5 else ""


def copied(cells_p: Sequence[Floats]) -> list[Bools]:
    """Return which rows equal a row of another table, or of a lone table another row, (n,) each."""
    # None do if chance explains it: where columns have few values, many more pairs of rows differ
    # in just one of them. Tables of fewer than three columns have none.
    hash_p, width = [hashes(cells) for cells in cells_p], cells_p[0].shape[1]
    copied_p = [
        is_n & (is_n.sum() >= max(_MIN_COPIES * len(is_n), 4)) for is_n in _repeated(hash_p)
    ]
    equal, everything, chance = _pairs(hash_p), _pairs([0 * hash_n for hash_n in hash_p]), 0.0
    for c in range(width) if any(is_n.any() for is_n in copied_p) else ():
        cell_p = [_hash(cells[:, c], c) for cells in cells_p]
        almost = _pairs([h - cell for h, cell in zip(hash_p, cell_p, strict=True)]) - equal
        share = _pairs(cell_p) / everything
        chance += almost * (share if share < _FEW else 1)
    return [is_n & (width > 2 and chance <= _CHANCE * equal) for is_n in copied_p]


def but_one(cells: Floats) -> Floats:
    """Return the cells without the column that most pairs of rows alone differ in."""
    sample = cells[:: max(1, len(cells) // _POOLED)]
    hash_n, columns = hashes(sample), range(cells.shape[1])
    pairs_c = [_pairs([hash_n - _hash(sample[:, c], c)]) for c in columns]
    return np.delete(cells, int(np.argmax(pairs_c)), axis=1)


def _repeated(hash_p: Sequence[Hashes]) -> list[Bools]:
    group_n = np.unique(np.concatenate(hash_p), return_inverse=True)[1]
    total_g, result = np.bincount(group_n), []
    for own_n in np.split(group_n, np.cumsum([len(hash_n) for hash_n in hash_p])[:-1]):
        own_g = np.bincount(own_n, minlength=len(total_g)) if len(hash_p) > 1 else 1
        result.append((total_g > own_g)[own_n])
    return result


def _pairs(hash_p: Sequence[Hashes]) -> float:
    """Return the number of pairs of equal rows in different tables, or in a single one."""
    sizes = [np.unique(h, return_counts=True)[1] for h in (np.concatenate(hash_p), *hash_p)]
    total, *own = (float(size_g @ (size_g - 1.0)) / 2 for size_g in sizes)
    return total - sum(own) if len(own) > 1 else total


def hashes(cells: Floats) -> Hashes:
    """Return a hash of each row, (n,): the sum of those of its cells."""
    result = np.zeros(len(cells), dtype=np.uint64)
    for c in range(cells.shape[1]):
        result += _hash(cells[:, c], c)
    return result


def _hash(values_n: Floats, c: int) -> Hashes:
    bits = np.where(np.isnan(values_n), np.nan, values_n + 0.0).view(np.uint64)  # one NaN, one 0
    factor = np.random.default_rng(c).integers(2**63, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    bits = (bits ^ (bits >> np.uint64(31))) * factor
    return (bits ^ (bits >> np.uint64(29))) * factor


def near_equal(cells: Floats) -> float:
    """Return the share of the rows that lie far closer to another one than by chance, 0 of few."""
    # In D dimensions the nearest neighbour is nearer than the share q of the distance to the tenth
    # with a chance of about 9 q^D; more distances give D (Levina and Bickel 2005).
    from scipy.spatial import cKDTree  # slow to import

    if len(cells) > _BLOCK * _BLOCKS:
        start = np.linspace(0, len(cells) - _BLOCK, _BLOCKS).astype(np.int64)
        cells = cells[(start[:, None] + np.arange(_BLOCK)).ravel()]
    distinct_c = np.array([len(np.unique(values[~np.isnan(values)])) for values in cells.T])
    cells = cells[:, distinct_c > len(cells) / 2]
    if len(cells) <= 2 * _NEIGHBOURS[-1] or cells.shape[1] < 3:
        return 0.0
    x = np.nan_to_num((cells - np.nanmean(cells, axis=0)) / np.nanstd(cells, axis=0)).clip(-99, 99)
    distances = cKDTree(x).query(x, _NEIGHBOURS)[0]
    nearest, tenth, last = distances[distances[:, 1] > 0].T
    growth = np.log(last / tenth).sum()
    chance = (nearest / tenth) ** (len(tenth) * np.log(2) / growth) if growth > 0 else 1.0
    share_of = {limit: float(np.sum(chance < limit) / len(x)) for limit in _NEAR}
    return max(share * (share >= _NEAR[limit]) for limit, share in share_of.items())


def spelled_alike(names: Sequence[str], values_p: Sequence[Collection[str]]) -> list[list[str]]:
    """Return groups of categories of tables that may mean the same."""
    # They differ in case, spaces, hyphens or Unicode form, or one is the first letter of the next.
    plain = {name: unicodedata.normalize("NFKC", name).casefold().strip() for name in names}
    plain = {name: _BETWEEN_LETTERS.sub("", text) for name, text in plain.items()}
    groups: list[list[str]] = []
    for name in sorted(plain, key=lambda name: (plain[name], name)):
        last, text = groups[-1][-1] if groups else "", plain[name]
        is_letter = len(plain.get(last, "")) == 1 and plain[last].isalpha() and len(values_p) > 1
        is_apart = not any({last, name} <= {*values} for values in values_p)
        is_same = plain.get(last) == text
        if is_same or (is_letter and text.startswith(plain[last]) and is_apart):
            groups[-1].append(name)
        else:
            groups.append([name])
    return [group for group in groups if len(group) > 1]
