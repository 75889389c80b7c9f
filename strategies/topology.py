"""Topologies: undirected graphs of the allowed edges, as (n, n) boolean matrices."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from strategies import base_graph
from strategies.errors import TopologyError
from strategies.protocol import Edges

Matrix = npt.NDArray[np.bool_]

KINDS = (
    *("full", "ring", "torus", "k-regular", "erdos-renyi", "small-world", "barabasi-albert"),
    *("hypercube", "one-peer-exponential", "base", "epidemic", "file"),
)
_ATTEMPTS = 1000
_SWAPS_PER_EDGE = 10


def listed(matrix: Matrix) -> Edges:
    """List the edges of `matrix[sender, recipient]`, sorted by (recipient, sender)."""
    return np.argwhere(matrix.T)[:, ::-1].astype(np.int64)


def matrix_of(edges: Edges, peers: int) -> Matrix:
    """Return the (n, n) adjacency matrix of `edges`, the inverse of `listed`."""
    matrix = np.zeros((peers, peers), dtype=np.bool_)
    matrix[edges[:, 0], edges[:, 1]] = True
    return matrix


def topology(
    kind: str, peers: int, seed: int, *, degree: int = 2, probability: float = 0.5, file: str = ""
) -> Matrix:
    """Build the graph of a configuration.

    Parameters
    ----------
    kind : str
        One of `KINDS`. For a changing one (`strategies.changing`), the result is the union of
        the edges of all rounds.
    peers : int
        Number of peers n.
    seed : int
        Seed of the random kinds; the same seed gives the same graph on every machine.
    degree : int
        Number of neighbours in "k-regular", and before rewiring in "small-world"; edges of each new
        peer in "barabasi-albert"; maximum degree of a round in "base".
    probability : float
        Probability of an edge in "erdos-renyi", of rewiring one in "small-world".
    file : str
        Path for "file": JSON with a list of [i, j] pairs or an (n, n) matrix of 0 and 1, or CSV
        with the edges of each round, see `read_rounds`.

    Returns
    -------
    ndarray of bool, (n, n)
        Symmetric adjacency matrix with an empty diagonal; connected, except for "file".

    Raises
    ------
    TopologyError
        The graph does not exist, or the file is missing or invalid.
    """
    rng = np.random.default_rng((seed, 0x70B0))
    match kind:
        case "full" | "epidemic":
            return ~np.eye(peers, dtype=np.bool_)
        case "one-peer-exponential":
            return _steps(peers, powers_of_two(peers))
        case "base":
            return matrix_of(np.concatenate([*map(listed, base_rounds(peers, degree))]), peers)
        case "torus":
            return _torus(peers)
        case "hypercube":
            if peers & (peers - 1):
                raise TopologyError(f"a hypercube has 2, 4, 8, ... peers, not {peers}")
            return _networkx("hypercube_graph", peers.bit_length() - 1)
        case "small-world":
            if not 2 <= degree < peers or degree % 2:
                raise TopologyError(
                    f"a small world of {peers} peers needs an even topology-degree from 2 to "
                    f"{peers - 1}, not {degree}"
                )
            return _connected(
                lambda: _networkx("watts_strogatz_graph", peers, degree, probability, _seed(rng)),
                f"small world of degree {degree}",
            )
        case "barabasi-albert":
            if not 1 <= degree < peers:
                raise TopologyError(f"topology-degree = {degree} must be from 1 to {peers - 1}")
            return _networkx("barabasi_albert_graph", peers, degree, _seed(rng))
        case "ring":
            return _circulant(peers, min(2, peers - 1))
        case "k-regular":
            if not 0 < degree < peers or peers * degree % 2:
                raise TopologyError(
                    f"no graph of {peers} peers with {degree} neighbours each: the degree must be "
                    f"1 to {peers - 1} and peers times degree even"
                )
            return _connected(
                lambda: _shuffled(_circulant(peers, degree), rng), f"{degree}-regular"
            )
        case "erdos-renyi":
            return _connected(
                lambda: _symmetric(np.triu(rng.random((peers, peers)) < probability, 1)),
                f"Erdos-Renyi with probability {probability}",
            )
        case "file":
            if Path(file).suffix == ".csv":
                edges = np.concatenate(read_rounds(Path(file), peers))
                return _symmetric(matrix_of(edges, peers))
            return _read(Path(file), peers)
    raise TopologyError(f"unknown topology {kind!r}; known: {', '.join(KINDS)}")


def spectral_gap(graph: Matrix) -> float:
    """Return the spectral gap of the graph's Metropolis weights.

    The gap is 1 minus the second largest modulus of an eigenvalue. A round of averaging with the
    weights 1 / (1 + max(deg_i, deg_j)) shrinks the distance from consensus by at least that share.
    0 if the graph is not connected.
    """
    degrees = graph.sum(axis=1)
    weights = graph / (1 + np.maximum.outer(degrees, degrees))
    weights[np.diag_indices_from(weights)] = 1 - weights.sum(axis=1)
    moduli = np.sort(np.abs(np.linalg.eigvalsh(weights)))
    return float(1 - moduli[-2]) if len(moduli) > 1 else 1.0


def base_rounds(peers: int, degree: int) -> list[Matrix]:
    """Return the rounds of the base-(k+1) graph, see `strategies.base_graph`.

    Raises
    ------
    TopologyError
        The degree is out of range.
    """
    if not 1 <= degree < peers:
        raise TopologyError(f"topology-degree = {degree} must be from 1 to {peers - 1}")
    diagonal = np.eye(peers, dtype=np.bool_)
    return [(weights > 0) & ~diagonal for weights in base_graph.mixing(peers, degree)]


def powers_of_two(peers: int) -> list[int]:
    """Return the powers of two below the number of peers."""
    return [1 << k for k in range((peers - 1).bit_length())]


def is_connected(graph: Matrix) -> bool:
    """Return True if every peer reaches every other."""
    reached = np.zeros(len(graph), dtype=np.bool_)
    reached[0] = True
    while (new := graph[reached].any(axis=0) & ~reached).any():
        reached |= new
    return bool(reached.all())


def _connected(draw: Callable[[], Matrix], name: str) -> Matrix:
    for _ in range(_ATTEMPTS):
        if is_connected(graph := draw()):
            return graph
    raise TopologyError(
        f"no connected {name} graph in {_ATTEMPTS} draws: raise topology-degree or "
        "topology-probability"
    )


def _symmetric(graph: Matrix) -> Matrix:
    return graph | graph.T


def _networkx(generator: str, *arguments: float) -> Matrix:
    """Generate a graph with networkx, its nodes in sorted order."""
    import networkx as nx  # slow import: it would delay each message of a deployment by 0.1 s

    graph = getattr(nx, generator)(*arguments)
    matrix: Matrix = nx.to_numpy_array(graph, nodelist=sorted(graph), dtype=np.bool_)
    return matrix


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31))


def _torus(peers: int) -> Matrix:
    """Build the periodic grid that is closest to a square."""
    height = max(k for k in range(1, int(peers**0.5) + 1) if peers % k == 0)
    if height < 2:
        raise TopologyError(f"no torus of {peers} peers: the number must not be prime")
    matrix = _networkx("grid_2d_graph", height, peers // height, True)
    return matrix & ~np.eye(peers, dtype=np.bool_)


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
    """Randomise a graph by double edge swaps, which preserve degrees (Maslov and Sneppen 2002).

    Edges a-b and c-d become a-d and c-b unless that would make a loop or a double edge.
    """
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
    """Read the edges of each round from a CSV with the columns round, sender, recipient.

    Returns
    -------
    list of ndarray of int, (E, 2)
        Edges of rounds 1, 2, ... up to the last in the file; a round may have none.

    Raises
    ------
    TopologyError
        The file is missing or invalid.
    """

    def invalid(reason: str) -> TopologyError:
        return TopologyError(f"topology file {path}: {reason}")

    try:
        lines = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    except OSError as error:
        raise invalid(error.strerror or "cannot be read") from None
    except ValueError:
        raise invalid("not UTF-8 text") from None
    rounds: dict[int, list[tuple[int, int]]] = {}
    for number, line in enumerate(lines, start=2):
        try:
            t, i, j = (int(line[name]) for name in ("round", "sender", "recipient"))
        except (KeyError, TypeError, ValueError):
            raise invalid(
                f"line {number}: needs integers in the columns round, sender and recipient"
            ) from None
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
    def invalid(reason: str) -> TopologyError:
        return TopologyError(f"topology file {path}: {reason}")

    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise invalid(error.strerror or "cannot be read") from None
    except ValueError as error:
        raise invalid(f"not JSON: {error}") from None
    rows = content if isinstance(content, list) else None
    if rows is None or not all(
        isinstance(row, list) and all(type(entry) is int for entry in row) for row in rows
    ):
        raise invalid("expected a list of [i, j] pairs or a matrix of 0 and 1")
    if all(len(row) == 2 for row in rows):  # with two peers both readings give the same graph
        pairs = np.array(rows, dtype=np.int64).reshape(-1, 2)
        for i, j in pairs:
            if not (0 <= i < peers and 0 <= j < peers) or i == j:
                raise invalid(f"[{i}, {j}] must be two different peers from 0 to {peers - 1}")
        return _symmetric(matrix_of(pairs, peers))
    if [len(row) for row in rows] != [peers] * peers:
        raise invalid(f"neither pairs nor a matrix of {peers} rows of {peers} entries")
    matrix = np.array(rows, dtype=np.int64)
    if not np.isin(matrix, (0, 1)).all():
        raise invalid("a matrix entry is neither 0 nor 1")
    if matrix.diagonal().any():
        raise invalid(f"peer {int(matrix.diagonal().argmax())} is its own neighbour")
    if (matrix != matrix.T).any():
        i, j = np.argwhere(matrix != matrix.T)[0]
        raise invalid(f"not symmetric: entries [{i}, {j}] and [{j}, {i}] differ")
    return matrix.astype(np.bool_)
