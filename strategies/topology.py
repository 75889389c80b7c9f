"""Topologies: graphs of the allowed edges, as (n, n) boolean matrices, static or changing.

A topology is a row of `TOPOLOGIES`: an undirected graph and, if it changes from round to round, the
edges of each round inside that graph, which may be directed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from coterie.strategies.columns import fault_in, read_columns
from coterie.strategies.errors import TopologyError
from coterie.strategies.protocol import Edges
from coterie.strategies.push_sum import Floats, Matrix, PushSum

Links = Callable[[int], Matrix]
"""Function from a round to its edges, (n, n), [sender, recipient]."""
AveragingWeights = Callable[[int], tuple[Floats, Floats]]
"""Function from a round to averaging weights, (n, n) with rows that sum to 1, and push-sum weights,
(n,), by which steps are divided: each model's weight in the mean that averaging preserves."""

_ATTEMPTS = 1000
_SWAPS_PER_EDGE = 10
_EPIDEMIC = 0x11CC
"""Purpose of the random stream."""


def listed(matrix: Matrix) -> Edges:
    """List the edges of `matrix[sender, recipient]`, sorted by (recipient, sender)."""
    return np.argwhere(matrix.T)[:, ::-1].astype(np.int64)


def matrix_of(edges: Edges, peers: int) -> Matrix:
    """Return the (n, n) adjacency matrix of `edges`, the inverse of `listed`."""
    matrix = np.zeros((peers, peers), dtype=np.bool_)
    matrix[edges[:, 0], edges[:, 1]] = True
    return matrix


@dataclass(frozen=True)
class Setting:
    """Numbers that a topology is built from."""

    peers: int  # number of peers n
    seed: int = 0  # seed of the random kinds; the same seed gives the same graph on every machine
    degree: int = 2  # the key `topology-degree`
    file: str = ""  # the key `topology-file`

    def rng(self) -> np.random.Generator:
        return np.random.default_rng((self.seed, 0x70B0))


class Rounds(NamedTuple):
    """Edges of a topology that changes from round to round."""

    links: Links  # edges of each round
    is_directed: bool
    """True if some round has an edge without its reverse. Only methods without answers can use
    directed edges: an answer needs the reverse edge."""


@dataclass(frozen=True)
class Topology:
    """Topology: a row of `TOPOLOGIES`."""

    summary: str
    """Description in one line."""
    graph: Callable[[Setting], Matrix]
    """Function that builds the symmetric adjacency matrix with an empty diagonal; for a changing
    topology, the union of the edges of all rounds. TopologyError: there is no such graph."""
    rounds: Callable[[Setting], Rounds | None] = lambda setting: None
    """Function that makes the edges of each round, or None for a static topology."""
    mixing: Callable[[Setting], AveragingWeights | None] = lambda setting: None
    """Function that makes the averaging weights of a topology that defines them, or None. Directed
    edges have those of push-sum, which ignore numbers of examples. It raises TopologyError if they
    cannot preserve the mean."""

    def matrix(self, setting: Setting) -> Matrix:
        """Build the graph (n, n) of a configuration; connected, except for "file".

        TopologyError: the graph does not exist, the file is missing or invalid, or the graph of a
        plugin is not a symmetric adjacency matrix with an empty diagonal.
        """
        graph = self.graph(setting)
        if self in TOPOLOGIES.values():
            return graph
        peers = setting.peers
        is_matrix = isinstance(graph, np.ndarray) and graph.dtype == np.bool_
        is_square = is_matrix and graph.shape == (peers, peers)
        if not is_square or graph.diagonal().any() or (graph != graph.T).any():
            raise TopologyError(
                f'topology "{self.summary}": graph() must return a symmetric array of bool of '
                f"shape ({peers}, {peers}) with an empty diagonal"
            )
        return graph

    def links(self, setting: Setting, *, directed: bool) -> Links | None:
        """Make the edges of each round; None for a static topology.

        `directed`: the method has no answers, so it can use directed edges. TopologyError: it
        cannot, the degree is out of range, or the file is missing or invalid.
        """
        rounds = self.rounds(setting)
        if rounds is None:
            return None
        if rounds.is_directed and not directed:
            raise TopologyError(
                "the topology has directed edges, but the method needs answers, which would need "
                "the reverse edges: choose an undirected topology"
            )
        return rounds.links


def is_connected(graph: Matrix) -> bool:
    """Return True if every peer reaches every other."""
    reached = np.zeros(len(graph), dtype=np.bool_)
    reached[0] = True
    while (new := graph[reached].any(axis=0) & ~reached).any():
        reached |= new
    return bool(reached.all())


def _symmetric(graph: Matrix) -> Matrix:
    return graph | graph.T


def _full(setting: Setting) -> Matrix:
    return ~np.eye(setting.peers, dtype=np.bool_)


def _k_regular(setting: Setting) -> Matrix:
    peers, degree, rng = setting.peers, setting.degree, setting.rng()
    if not 0 < degree < peers or peers * degree % 2:
        raise TopologyError(
            f"no graph of {peers} peers with {degree} neighbours each: the degree must be "
            f"1 to {peers - 1} and peers times degree even"
        )
    for _ in range(_ATTEMPTS):
        if is_connected(graph := _shuffled(_circulant(peers, degree), rng)):
            return graph
    raise TopologyError(
        f"no connected {degree}-regular graph in {_ATTEMPTS} draws: raise topology-degree"
    )


def _exponential_rounds(setting: Setting) -> Rounds:
    """Make round t: peers receive from 2^(t mod log2 n) steps before (Ying et al. 2021)."""
    # Averages of n = 2^k peers are exact after k rounds.
    peers, steps, at = setting.peers, _powers_of_two(setting.peers), np.arange(setting.peers)
    if peers < 2:
        raise TopologyError("one-peer-exponential needs more than one peer")

    def links(t: int) -> Matrix:
        matrix = np.zeros((peers, peers), dtype=np.bool_)
        matrix[(at - steps[(t - 1) % len(steps)]) % peers, at] = True
        return matrix

    return Rounds(links, is_directed=True)


def _push_rounds(setting: Setting) -> Rounds:
    """Make rounds in which each peer sends to `degree` random others."""
    links = _epidemic_rounds(setting).links
    return Rounds(lambda t: links(t).T, is_directed=True)


def _epidemic_rounds(setting: Setting) -> Rounds:
    """Make rounds in which each peer receives from `degree` random others (de Vos et al. 2023)."""
    peers, degree, at = setting.peers, setting.degree, np.arange(setting.peers)
    if peers < 2:
        raise TopologyError("random edges in each round need more than one peer")
    if not 1 <= degree < peers:
        raise TopologyError(f"topology-degree = {degree} must be from 1 to {peers - 1}")

    def links(t: int) -> Matrix:
        draws = np.random.default_rng((setting.seed, t, _EPIDEMIC)).random((peers, peers))
        draws[at, at] = 2.0  # no peer draws itself
        senders = np.argpartition(draws, degree - 1, axis=1)[:, :degree]
        matrix = np.zeros((peers, peers), dtype=np.bool_)
        matrix[senders, at[:, None]] = True
        return matrix

    return Rounds(links, is_directed=True)


def _file(setting: Setting) -> Matrix:
    if rounds := _file_edges(setting):
        return _symmetric(matrix_of(np.concatenate(rounds), setting.peers))
    return _read(Path(setting.file), setting.peers)


def _file_rounds(setting: Setting) -> Rounds | None:
    rounds, peers = _file_edges(setting), setting.peers
    if not rounds:
        return None
    is_directed = any(_is_directed(edges) for edges in rounds)
    return Rounds(lambda t: matrix_of(rounds[(t - 1) % len(rounds)], peers), is_directed)


def _file_mixing(setting: Setting) -> AveragingWeights | None:
    rounds = _file_edges(setting)
    if not any(map(_is_directed, rounds)):
        return None
    return PushSum.repeated([matrix_of(edges, setting.peers) for edges in rounds])


def _file_edges(setting: Setting) -> list[Edges]:
    """Return the edges of each round of a CSV, repeated cyclically; none if the file is JSON."""
    path = Path(setting.file)
    return read_rounds(path, setting.peers) if path.suffix == ".csv" else []


def _is_directed(edges: Edges) -> bool:
    pairs = set(map(tuple, edges.tolist()))
    return any((j, i) not in pairs for i, j in pairs)


def _powers_of_two(peers: int) -> list[int]:
    return [1 << k for k in range((peers - 1).bit_length())]


def _circulant(peers: int, degree: int) -> Matrix:
    """Link each peer to its `degree` nearest on a circle; an odd degree adds the opposite one."""
    return _steps(peers, [*range(1, degree // 2 + 1), *([peers // 2] if degree % 2 else [])])


def _steps(peers: int, steps: Iterable[int]) -> Matrix:
    """Link each peer to the peers at given distances on a circle."""
    graph = np.zeros((peers, peers), dtype=np.bool_)
    at = np.arange(peers)
    for step in steps:
        graph[at, (at + step) % peers] = True
    return _symmetric(graph)


def _shuffled(graph: Matrix, rng: np.random.Generator) -> Matrix:
    """Randomise a graph by double edge swaps, which preserve degrees (Maslov and Sneppen 2002)."""
    # Edges a-b and c-d become a-d and c-b unless that would make a loop or a double edge.
    edges = np.argwhere(np.triu(graph))
    for first, second, flip in rng.integers(
        0, (len(edges), len(edges), 2), size=(_SWAPS_PER_EDGE * len(edges), 3)
    ):
        a, b = edges[first]
        c, d = edges[second][::-1] if flip else edges[second]
        if len({a, b, c, d}) < 4 or graph[a, d] or graph[c, b]:
            continue
        graph[[a, b, c, d], [b, a, d, c]] = False
        graph[[a, d, c, b], [d, a, b, c]] = True
        edges[first], edges[second] = (a, d), (c, b)
    return graph


def read_rounds(path: Path, peers: int) -> list[Edges]:
    """Read the edges (E, 2) of rounds 1, 2, ... from a CSV: round, sender, recipient."""
    # A round may have none. TopologyError: the file is missing or invalid.
    invalid = fault_in(path, "topology", TopologyError)
    rounds: dict[int, list[tuple[int, int]]] = {}
    for number, (t, i, j) in read_columns(path, ("round", "sender", "recipient"), int, invalid):
        if t < 1 or not (0 <= i < peers and 0 <= j < peers) or i == j:
            raise invalid(
                f"line {number}: needs a round from 1 and two different peers from 0 to {peers - 1}"
            )
        rounds.setdefault(t, []).append((i, j))
    if not rounds:
        raise invalid("no edges: add a line round,sender,recipient for each")
    return [
        np.array(rounds.get(t, []), dtype=np.int64).reshape(-1, 2)
        for t in range(1, max(rounds) + 1)
    ]


def _read(path: Path, peers: int) -> Matrix:
    invalid = fault_in(path, "topology", TopologyError)
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise invalid(error.strerror or "cannot be read") from None
    except ValueError as error:
        raise invalid(f"not JSON: {error}") from None
    rows = content if isinstance(content, list) else [None]
    if not all(isinstance(row, list) and [*map(type, row)] == [int, int] for row in rows):
        raise invalid(
            "expected a list of [i, j] pairs; those of a matrix: numpy.argwhere(matrix).tolist()"
        )
    pairs = np.array(rows, dtype=np.int64).reshape(-1, 2)
    for i, j in pairs:
        if not (0 <= i < peers and 0 <= j < peers) or i == j:
            raise invalid(f"[{i}, {j}] must be two different peers from 0 to {peers - 1}")
    return _symmetric(matrix_of(pairs, peers))


TOPOLOGIES: Mapping[str, Topology] = {
    "full": Topology("all pairs", _full),
    "ring": Topology(
        "two neighbours, on a circle", lambda of: _circulant(of.peers, min(2, of.peers - 1))
    ),
    "k-regular": Topology("a random graph with `topology-degree` neighbours", _k_regular),
    "one-peer-exponential": Topology(
        "each peer receives from the peer 1, 2, 4, ... positions before it, in turn (Ying et al., "
        "NeurIPS 2021); not for methods with answers",
        lambda of: _steps(of.peers, _powers_of_two(of.peers)),
        _exponential_rounds,
    ),
    "epidemic": Topology(
        "each peer receives from `topology-degree` random others in each round (de Vos et al., "
        "NeurIPS 2023); not for methods with answers",
        _full,
        _epidemic_rounds,
    ),
    "push": Topology(
        "each peer sends to `topology-degree` random others in each round, and averages use "
        "push-sum weights; not for methods with answers",
        _full,
        _push_rounds,
        lambda of: PushSum(_push_rounds(of).links, of.peers),
    ),
    "file": Topology(
        "edges of `topology-file`: JSON, or a CSV with (directed) edges of each round",
        _file,
        _file_rounds,
        _file_mixing,
    ),
}
"""Topologies by name."""
