"""Protocol between relay and nodes: requests, responses and the letters that they carry.

A `Transport` carries these dataclasses; the relay forwards the opaque payloads by reference. A
letter is a message between peers, encrypted in a deployment.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

Edges = npt.NDArray[np.int64]
"""Directed edges, (E, 2): column 0 is the sender of the model, column 1 its recipient."""

Kind = Literal["offer", "answer", "statistics"]
Stage = Literal["preflight", "start", "answer", "update", "local-rounds"]


MEASURES = frozenset(
    {"balanced_accuracy", "macro_f1", "auroc", "sensitivity", "specificity"}
    | {"expected_calibration_error", "mae", "rmse", "r2", "c_index"}
)
"""Additional metrics of the last report, on a peer's test examples."""
METRICS = MEASURES.union(
    (f"{part}_{kind}" for part in ("test", "validation", "train") for kind in ("loss", "accuracy")),
    {"bytes_sent", "bytes_received", "gradient_evaluations", "unsound_results", "refused_models"},
    {"attacker", "awake", "epsilon"},
    {"letter_auc", "letter_tpr", "letter_fewest", "letter_readable"},
)
"""Metrics that the peers of every method may report."""


BACKENDS = frozenset({"sequential", "batched", "vmapped"})
"""Names of engine backends that a node may report."""
MATRIX = 1024
"""Maximum number of peers whose collaboration matrix is recorded in full, see `Report`."""


def has_keyframe(t: int, sent: int) -> bool:
    """Return True if a peer that has sent this many keyframes on request owes another one."""
    # At most 1 + t / 10 are keyframes on request, so that no relay can make all letters whole.
    return sent < 1 + t // 10


def no_edges() -> Edges:
    """Return an empty edge list, shape (0, 2)."""
    return np.empty((0, 2), dtype=np.int64)


@dataclass(frozen=True)
class PeerMessage:
    """Letter from one peer to another, or to all recipients of the round's edges."""

    kind: Kind
    """Offer: a model; answer: a result computed with it; statistics: of a peer's columns."""
    sender: int  # peer that wrote the letter
    recipient: int | None  # peer that receives an answer, the model's owner; None for other letters
    round: int  # round that the letter belongs to; 0 for statistics
    nbytes: int  # bytes of the tensors inside, without overhead
    payload: object = field(repr=False)
    """Opaque reference: bytes on a node, the transport's object on the relay."""
    keys: Mapping[int, bytes] = field(default_factory=dict, repr=False)
    """Key of a sealed letter's payload per recipient, encrypted and signed; else empty."""

    def opens_for(self, peer: int) -> bool:
        """Return True if the peer can read the letter."""
        return not self.keys or peer in self.keys

    def only_for(self, peers: Collection[int]) -> PeerMessage:
        """Return the letter with the keys of some peers only."""
        return replace(self, keys={p: key for p, key in self.keys.items() if p in peers})


@dataclass(frozen=True)
class Request:
    """Request of the relay to a node."""

    stage: Stage
    """"preflight" checks without side effects that the node is ready; "start" restores the newest
    state up to `round` as that of `round`, or creates and evaluates that of round 0; "answer"
    computes answers; "update" ends `round`; "local-rounds" runs `round`..`last` inside a node that
    hosts every peer. All but "preflight" and "start" continue from the state of `round` - 1."""
    round: int
    last: int  # number of the round, and of the last one in "local-rounds"; otherwise equal
    edges: Edges = field(default_factory=no_edges)
    """Edges (E, 2) of the round that end at the node's peers, sorted by (recipient, sender). In
    "update" edges of "answer" may be missing, if their other end has failed since."""
    asked: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, dtype=np.bool_))
    """Mask (E,) of the edges that are answered."""
    letters: Sequence[PeerMessage] = ()
    """Letters from other nodes, sorted by (sender, recipient), offers first. A node empties a list
    when it begins the request, so that a letter's memory is free once the letter is opened."""
    committed: int = 0
    """Last round that the relay has checkpointed; a node may delete older versions."""
    attempt: str = ""
    """Token of the relay's process; a node accepts requests of the one that started it last."""
    samples: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """Number of samples n_i of each peer, (n,), 0 where not announced. Empty before any node has
    announced it, with its statistics; a second "start" then delivers those of the others."""
    clock: float = 0.0  # in a "preflight" the relay's time, in seconds since 1970; else 0
    keyframes_wanted: tuple[int, ...] = ()
    """In "update", peers of the node whose next offer must be a keyframe, see `has_keyframe`."""


@dataclass(frozen=True)
class Report:
    """Metrics of one peer after one evaluated round."""

    round: int
    peer: int
    metrics: Mapping[str, float | None]
    """Fields of metrics.jsonl except round and peer; None where a metric does not exist."""
    weights: tuple[float, ...]
    """Row of the collaboration matrix; with more than `MATRIX` peers, the entries of `columns`."""
    columns: tuple[int, ...] = ()
    """With more than `MATRIX` peers, the peer and those it received from; empty if it slept."""

    @property
    def weight_by_peer(self) -> dict[int, float]:
        return dict(zip(self.columns or range(len(self.weights)), self.weights, strict=True))


@dataclass(frozen=True)
class Response:
    """Response of a node to a request."""

    peers: tuple[int, ...]  # peers that the node hosts, ascending
    letters: tuple[PeerMessage, ...] = ()
    """Answers ("answer"), offers for the next round ("start", "update") or statistics ("start")."""
    wants: Edges = field(default_factory=no_edges)
    """Edges (W, 2) requested for the next round; each has one of the node's peers at an end."""
    reports: tuple[Report, ...] = ()  # metrics of the evaluated rounds that the request ended
    refused: tuple[str, ...] = ()  # a line per letter that failed its checks (peer, round, reason)
    samples: tuple[int, ...] = ()
    """n_i of each hosted peer, at "start" of a node that sees only its own data; else empty."""
    names: tuple[str, ...] = ()
    """Display name of each hosted peer, "" for none, in the response to "start"; else empty."""
    restored: int | None = None
    """At "start", round of the state that the node continues from; -1 for the initial state."""
    claims: tuple[bytes, ...] = ()
    """Signature per hosted peer that proves that the node is this peer's; empty without keys."""
    checks: tuple[tuple[str, str], ...] = ()
    """In the response to "preflight": names of the checks, and "ok", a band or a code."""
    elapsed: float = 0.0  # seconds on the virtual clock that the request's rounds took on this node
    ready: tuple[int, ...] = ()
    """Round at whose end each hosted peer's work is done, by the clock; empty without one."""
    backend: str = ""  # name of the node's engine backend, in the response to "start"; else empty
    missing_from: tuple[int, ...] = ()
    """Peers of other nodes whose increments this node cannot read until their next keyframe."""
    reads: int = 0
    """At "start", maximum bytes of a letter that the relay forwards to the node; 0: not stated."""


class Handler(Protocol):
    """Node that handles requests."""

    def handle(self, request: Request) -> Response:
        """Execute a request."""


class Transport(Protocol):
    """Carrier of requests to nodes and of their responses."""

    def nodes(self) -> list[int]:
        """Return the ids of the reachable nodes, in any order; ids are valid for this run only."""

    def exchange(self, requests: Mapping[int, Request]) -> Mapping[int, Response | str]:
        """Deliver requests by node; return a response per node, or the reason why it is missing."""
