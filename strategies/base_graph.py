"""The base-(k+1) graph (Takezawa et al., NeurIPS 2023): exact averages after finitely many rounds.

A sequence of undirected graphs in which nobody has more than k neighbours, with mixing weights
whose product is the average of all peers: for any number of peers n and any k, after at most
2 log_{k+1}(n) + 2 rounds.

`_hypercube` is algorithm 1, `_simple` algorithm 2, `mixing` algorithm 3. In `_simple`, with
n = sum_l a_l (k+1)^{p_l} written in base k+1, the peers fall into parts of a_l blocks of
K = (k+1)^{p_l}. All parts average within themselves. Then, part after part, each peer of the later
parts R is linked to one peer in every block, with weight w = K / (a K + |R|): that leaves each
block, and R, with the average of all as its mean, and the block averages within itself.
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
"""Edges (i, j), each once, and the weight of what both give each other in a round."""


def mixing(peers: int, degree: int) -> list[Floats]:
    """The mixing matrices of the rounds, (n, n) each, symmetric with rows that sum to 1.

    Parameters
    ----------
    peers : their number n.
    degree : most neighbours of a peer in a round, k.
    """
    at = np.arange(peers)
    groups = at.reshape(-1, _rough(peers, degree))  # p of q peers: each averages, then across
    within = _side_by_side([_simple(group, degree) for group in groups])
    across = _side_by_side([_hypercube(others, degree) for others in groups.T])
    shorter = min([*within, *across], _simple(at, degree), key=len)
    return [_matrix(edges, peers) for edges in shorter]


def _hypercube(at: Ints, degree: int) -> list[Weights]:
    """Cliques of at most k + 1 along each axis of a grid, for n without larger prime factors."""
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
    """The peers by the digits of their number in base k + 1, highest first: (a_l, (k+1)^p_l)."""
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
    """The largest divisor of n whose prime factors are all above k + 1."""
    return peers // math.prod(_factors(peers, degree))


def _factors(peers: int, degree: int) -> list[int]:
    """Factors of n of at most k + 1, large ones first, until there are no more."""
    factors = list[int]()
    while size := max((f for f in range(2, degree + 2) if peers % f == 0), default=0):
        factors.append(size)
        peers //= size
    return factors


def _side_by_side(sequences: Sequence[Sequence[Weights]]) -> list[Weights]:
    """What peers that have nothing to do with each other do in the same rounds."""
    rounds = zip_longest(*sequences, fillvalue=())
    return [list(chain.from_iterable(edges)) for edges in rounds]


def _matrix(edges: Weights, peers: int) -> Floats:
    matrix = np.zeros((peers, peers))
    for i, j, weight in edges:
        matrix[i, j] = matrix[j, i] = weight
    matrix[np.diag_indices(peers)] = 1 - matrix.sum(axis=1)
    return matrix
