"""Topologies that change from round to round, some with edges that have a direction.

Where they have, only methods that hear without being asked anything can use them: nobody can answer
along an edge that is not there in that direction.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coterie.strategies import base_graph
from coterie.strategies.errors import TopologyError
from coterie.strategies.push_sum import PushSum
from coterie.strategies.topology import Matrix, base_rounds, matrix_of, powers_of_two, read_rounds

Links = Callable[[int], Matrix]
"""Round -> (n, n) the edges of that round, [sender, recipient]."""
Floats = npt.NDArray[np.float64]
Mixing = Callable[[int], tuple[Floats, Floats]]
"""Round -> (n, n) averaging weights of that round, rows sum to 1, and (n,) what each peer's model
counts for in the mean that they keep."""

_PURPOSE = 0x11CC


def changing(
    kind: str, peers: int, seed: int, *, degree: int, hears: bool, file: str = ""
) -> Links | None:
    """Make the edges of each round; None of a topology that stays.

    "one-peer-exponential" (Ying et al., NeurIPS 2021): in round t each peer hears the one 2^(t mod
    log2 n) steps before it, so that averages of n = 2^k peers are exact after k rounds. "epidemic"
    (de Vos et al., NeurIPS 2023): each peer hears `degree` others, drawn anew in each round.
    "base": the base-(k+1) graph, k = `degree`, whose edges have no direction. "file" with a CSV:
    the edges of each round, which begin again after the last one.

    Parameters
    ----------
    hears : whether the method only hears, see above.
    file : see `coterie.strategies.topology.topology`.

    Raises
    ------
    TopologyError
        The method asks along edges that have a direction, there are not so many others, or the file
        is missing or wrong.
    """
    if kind == "base":
        graphs = base_rounds(peers, degree)
        return lambda t: graphs[(t - 1) % len(graphs)]
    if kind == "file" and Path(file).suffix == ".csv":
        rounds = read_rounds(Path(file), peers)
        if not hears and any(_has_direction(matrix_of(edges, peers)) for edges in rounds):
            raise _refusal(file)
        return lambda t: matrix_of(rounds[(t - 1) % len(rounds)], peers)
    if kind not in ("one-peer-exponential", "epidemic"):
        return None
    if not hears:
        raise _refusal(kind)
    at = np.arange(peers)

    def exponential(t: int) -> Matrix:
        steps = powers_of_two(peers)
        links = np.zeros((peers, peers), dtype=np.bool_)
        links[(at - steps[(t - 1) % len(steps)]) % peers, at] = True
        return links

    def epidemic(t: int) -> Matrix:
        draws = np.random.default_rng((seed, t, _PURPOSE)).random((peers, peers))
        draws[at, at] = 2.0  # nobody draws itself
        heard = np.argpartition(draws, degree - 1, axis=1)[:, :degree]
        links = np.zeros((peers, peers), dtype=np.bool_)
        links[heard, at[:, None]] = True
        return links

    if peers < 2:
        raise TopologyError(f"{kind} needs more than one peer")
    if kind == "one-peer-exponential":
        return exponential
    if not 1 <= degree < peers:
        raise TopologyError(f"no {degree} others among {peers} peers")
    return epidemic


def mixing(kind: str, peers: int, *, degree: int, file: str = "") -> Mixing | None:
    """Make the averaging weights of a topology that brings its own; None of one that does not.

    "base" has those of its authors, a CSV whose edges have a direction those of push-sum. All peers
    count the same.

    Raises
    ------
    TopologyError
        Push-sum cannot keep the mean in this file, see `coterie.strategies.push_sum.PushSum`.
    """
    if kind == "base":
        weights, evenly = base_graph.mixing(peers, degree), np.ones(peers)
        return lambda t: (weights[(t - 1) % len(weights)], evenly)
    if kind == "file" and Path(file).suffix == ".csv":
        graphs = [matrix_of(edges, peers) for edges in read_rounds(Path(file), peers)]
        return PushSum(graphs) if any(map(_has_direction, graphs)) else None
    return None


def _has_direction(graph: Matrix) -> bool:
    return bool((graph != graph.T).any())


def _refusal(what: str) -> TopologyError:
    return TopologyError(f"the edges of {what} have a direction, and this method asks along them")
