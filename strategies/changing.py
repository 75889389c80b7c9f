"""Topologies that change from round to round, some with directed edges.

Only methods without answers can use directed edges: an answer needs the reverse edge.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from strategies import base_graph
from strategies.errors import TopologyError
from strategies.push_sum import PushSum
from strategies.topology import Matrix, base_rounds, matrix_of, powers_of_two, read_rounds

Links = Callable[[int], Matrix]
"""Function from a round to its edges, (n, n), [sender, recipient]."""
Floats = npt.NDArray[np.float64]
Mixing = Callable[[int], tuple[Floats, Floats]]
"""Function from a round to averaging weights, (n, n) with rows that sum to 1, and push-sum weights,
(n,): the weight of each peer's model in the mean that averaging preserves."""

_PURPOSE = 0x11CC


def changing(
    kind: str, peers: int, seed: int, *, degree: int, directed: bool, file: str = ""
) -> Links | None:
    """Make the edges of each round; None for a static topology.

    "one-peer-exponential" (Ying et al., NeurIPS 2021): in round t each peer receives from the one
    2^(t mod log2 n) steps before it, so that averages of n = 2^k peers are exact after k rounds.
    "epidemic" (de Vos et al., NeurIPS 2023): each peer receives from `degree` others, drawn in each
    round. "base": the base-(k+1) graph, k = `degree`, which is undirected. "file" with a CSV: the
    edges of each round, repeated cyclically.

    Parameters
    ----------
    kind : str
        Kind of topology, see `strategies.topology.KINDS`.
    peers : int
        Number of peers n.
    seed : int
        Seed of "epidemic".
    degree : int
        Number of neighbours in "epidemic" and "base".
    directed : bool
        Directed edges are allowed, because the method has no answers.
    file : str
        Path of a CSV, see `strategies.topology.read_rounds`.

    Raises
    ------
    TopologyError
        The edges are directed but the method needs answers, `degree` is out of range, or the file
        is missing or invalid.
    """
    if kind == "base":
        graphs = base_rounds(peers, degree)
        return lambda t: graphs[(t - 1) % len(graphs)]
    if kind == "file" and Path(file).suffix == ".csv":
        rounds = read_rounds(Path(file), peers)
        if not directed and any(_is_directed(matrix_of(edges, peers)) for edges in rounds):
            raise _directed_error(file)
        return lambda t: matrix_of(rounds[(t - 1) % len(rounds)], peers)
    if kind not in ("one-peer-exponential", "epidemic"):
        return None
    if not directed:
        raise _directed_error(kind)
    at = np.arange(peers)

    def exponential(t: int) -> Matrix:
        steps = powers_of_two(peers)
        links = np.zeros((peers, peers), dtype=np.bool_)
        links[(at - steps[(t - 1) % len(steps)]) % peers, at] = True
        return links

    def epidemic(t: int) -> Matrix:
        draws = np.random.default_rng((seed, t, _PURPOSE)).random((peers, peers))
        draws[at, at] = 2.0  # no peer draws itself
        senders = np.argpartition(draws, degree - 1, axis=1)[:, :degree]
        links = np.zeros((peers, peers), dtype=np.bool_)
        links[senders, at[:, None]] = True
        return links

    if peers < 2:
        raise TopologyError(f"{kind} needs more than one peer")
    if kind == "one-peer-exponential":
        return exponential
    if not 1 <= degree < peers:
        raise TopologyError(f"topology-degree = {degree} must be from 1 to {peers - 1}")
    return epidemic


def mixing(kind: str, peers: int, *, degree: int, file: str = "") -> Mixing | None:
    """Make the averaging weights of a topology that defines them, or None.

    "base" has the weights of its authors, a CSV with directed edges those of push-sum. Numbers of
    examples are ignored.

    Parameters
    ----------
    kind : str
        Kind of topology.
    peers : int
        Number of peers n.
    degree : int
        Number of neighbours in "base".
    file : str
        Path of a CSV.

    Raises
    ------
    TopologyError
        Push-sum cannot preserve the mean on these edges, see `strategies.push_sum.PushSum`.
    """
    if kind == "base":
        weights, equal = base_graph.mixing(peers, degree), np.ones(peers)
        return lambda t: (weights[(t - 1) % len(weights)], equal)
    if kind == "file" and Path(file).suffix == ".csv":
        graphs = [matrix_of(edges, peers) for edges in read_rounds(Path(file), peers)]
        return PushSum(graphs) if any(map(_is_directed, graphs)) else None
    return None


def _is_directed(graph: Matrix) -> bool:
    return bool((graph != graph.T).any())


def _directed_error(topology: str) -> TopologyError:
    return TopologyError(
        f"topology {topology} has directed edges, but the method needs answers, which would need "
        "the reverse edges: choose an undirected topology"
    )
