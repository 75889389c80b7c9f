"""Base-(k+1) graph (Takezawa et al., NeurIPS 2023): exact averages after finitely many rounds.

A sequence of undirected graphs of degree at most k, with mixing weights whose product averages all
peers: for any number of peers n and any k, after at most 2 log_{k+1}(n) + 2 rounds.

`_hypercube` is algorithm 1, `_simple` algorithm 2, `mixing` algorithm 3. In `_simple`, with
n = sum_l a_l (k+1)^{p_l} written in base k+1, the peers are divided into parts of a_l blocks of
K = (k+1)^{p_l}. Each part averages internally. Then, for each part in order, each peer of the later
parts R is linked to one peer in every block, with weight w = K / (a K + |R|): then the mean of each
block, and of R, is the average of all, and the block averages internally.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain, zip_longest

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Weights = list[tuple[int, int, float]]
"""Undirected edges (i, j) of a round, with their mixing weight."""


def mixing(peers: int, degree: int) -> list[Floats]:
    """Return the mixing matrices of the rounds, (n, n) each, symmetric with rows that sum to 1."""
    at = np.arange(peers)
    groups = at.reshape(-1, _rough(peers, degree))  # average within groups, then across
    within = _side_by_side([_simple(group, degree) for group in groups])
    across = _side_by_side([_hypercube(others, degree) for others in groups.T])
    shorter = min([*within, *across], _simple(at, degree), key=len)
    return [_matrix(edges, peers) for edges in shorter]


def _hypercube(at: Ints, degree: int) -> list[Weights]:
    """Build cliques of at most k + 1 along each axis of a grid, for n without larger factors."""
    rounds, stride = list[Weights](), 1
    for size in _factors(len(at), degree):
        cliques = np.swapaxes(at.reshape(-1, size, stride), 1, 2).reshape(-1, size)
        i, j = np.triu_indices(size, 1)
        pairs = np.stack([cliques[:, i].ravel(), cliques[:, j].ravel()], axis=1)
        rounds.append([(a, b, 1 / size) for a, b in pairs.tolist()])
        stride *= size
    return rounds


def _simple(at: Ints, degree: int) -> list[Weights]:
    if _rough(len(at), degree) == 1:
        return _hypercube(at, degree)
    parts = _parts(at, degree)
    rounds = _side_by_side([_hypercube(blocks.ravel(), degree) for blocks in parts])
    ends = list[list[Weights]]()
    for number, blocks in enumerate(parts):
        later = [peer for part in parts[number + 1 :] for peer in part.ravel().tolist()]
        weight = blocks.shape[1] / (blocks.size + len(later))
        links = [
            (peer, other, weight) for k, peer in enumerate(later) for other in blocks[:, k].tolist()
        ]
        within = _side_by_side([_hypercube(block, degree) for block in blocks]) if later else []
        ends.append([*([[]] * number), links, *within])
    return [*rounds, *(edges for edges in _side_by_side(ends) if edges)]


def _parts(at: Ints, degree: int) -> list[Ints]:
    """Divide the peers by the digits of n in base k + 1, highest first, into (a_l, (k+1)^p_l)."""
    power = 1
    while power * (degree + 1) <= len(at):
        power *= degree + 1
    parts = []
    while len(at):
        if digit := len(at) // power:
            parts.append(at[: digit * power].reshape(digit, power))
        at, power = at[digit * power :], power // (degree + 1)
    return parts


def _rough(peers: int, degree: int) -> int:
    """Return the largest divisor of n whose prime factors are all above k + 1."""
    return peers // math.prod(_factors(peers, degree))


def _factors(peers: int, degree: int) -> list[int]:
    """Return factors of n of at most k + 1, largest first, until none is left."""
    factors = list[int]()
    while size := max((f for f in range(2, degree + 2) if peers % f == 0), default=0):
        factors.append(size)
        peers //= size
    return factors


def _side_by_side(sequences: Sequence[Sequence[Weights]]) -> list[Weights]:
    """Run sequences of disjoint groups of peers in the same rounds."""
    rounds = zip_longest(*sequences, fillvalue=())
    return [list(chain.from_iterable(edges)) for edges in rounds]


def _matrix(edges: Weights, peers: int) -> Floats:
    matrix = np.zeros((peers, peers))
    for i, j, weight in edges:
        matrix[i, j] = matrix[j, i] = weight
    matrix[np.diag_indices(peers)] = 1 - matrix.sum(axis=1)
    return matrix
