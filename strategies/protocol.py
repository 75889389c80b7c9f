"""The protocol between relay and nodes: requests, responses and the letters that they carry.

Relay (`coterie.strategies.relay.broker`) and node meet only in these dataclasses. How they travel
is a `Transport`'s business: Flower's grid, or function calls in one process. A payload is opaque
here: the relay forwards it by reference and never looks inside.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

Edges = npt.NDArray[np.int64]
"""(E, 2) directed edges: column 0 is the sender of the model, column 1 its recipient."""

Kind = Literal["offer", "answer"]
Stage = Literal["preflight", "start", "answer", "update", "local-rounds"]


MEASURES = frozenset(
    {"balanced_accuracy", "macro_f1", "auroc", "sensitivity", "specificity"}
    | {"expected_calibration_error", "mae", "rmse", "r2"}
)
"""Names of what the last report has beside; all over a peer's own test examples."""
METRICS = MEASURES.union(
    (f"{part}_{kind}" for part in ("test", "validation", "train") for kind in ("loss", "accuracy")),
    {"bytes_sent", "bytes_received", "gradient_evaluations", "unsound_results", "refused_models"},
    {"attacker", "awake", "epsilon"},
)
"""Names of what every method's peers report."""


BACKENDS = frozenset({"sequential", "batched", "vmapped"})
"""Names of engine backends that a node may report."""
MATRIX = 1024
"""Peers up to which the collaboration matrix is recorded as a whole; of more, what happens."""


def no_edges() -> Edges:
    """The empty edge list, shape (0, 2)."""
    return np.empty((0, 2), dtype=np.int64)


@dataclass(frozen=True)
class PeerMessage:
    """A letter from one peer to another, or to everybody whom the round's edges name.

    Attributes
    ----------
    kind : "offer" carries a peer's model, "answer" what a recipient computed on it.
    sender : peer that wrote the letter.
    recipient : the peer that an answer goes to, the model's owner; None: everybody (an offer).
    round : round the letter belongs to.
    nbytes : bytes of the tensors inside, without any overhead of the wire.
    payload : opaque reference; bytes on a node, on the relay what the transport made of them.
    keys : of a sealed letter: peer -> the payload's key, encrypted for that peer and signed. Empty:
        the letter is plain.
    """

    kind: Kind
    sender: int
    recipient: int | None
    round: int
    nbytes: int
    payload: object = field(repr=False)
    keys: Mapping[int, bytes] = field(default_factory=dict, repr=False)

    def opens_for(self, peer: int) -> bool:
        """Whether that peer can read it."""
        return not self.keys or peer in self.keys

    def only_for(self, peers: Collection[int]) -> PeerMessage:
        """The same letter without the keys of all other peers."""
        return replace(self, keys={p: key for p, key in self.keys.items() if p in peers})


@dataclass(frozen=True)
class Request:
    """What the relay asks a node to do next.

    Attributes
    ----------
    stage : "preflight" asks whether the node is ready for the run, and changes nothing; "start"
        goes on from the newest state up to `round`, which becomes that of `round`, or creates and
        evaluates that of round 0; "answer" computes answers to the offers of `round`;
        "update" ends `round`: owners update models and state; "local-rounds" runs `round`..`last`
        inside a node that hosts every peer. All but "start" build on the state of `round` - 1.
    round, last : the round, and the last of several in "local-rounds"; else equal.
    edges : the round's edges that touch this node's peers, sorted by (recipient, sender); in
        "update" some of those of "answer" may be missing: their other end has failed since.
    asked : (E,) which of these edges want an answer back.
    letters : letters from other nodes, sorted by (sender, recipient), offers first.
    committed : last round the relay has checkpointed; a node may delete older versions.
    attempt : token of the relay's process; a node obeys the one that started it last.
    samples : (n,) each peer's number of samples n_i, 0 where no node has announced it; empty where
        none has: nodes that see only their own data then announce it and are started again.
    clock : in a "preflight" the relay's time, in seconds since 1970; else 0.
    """

    stage: Stage
    round: int
    last: int
    edges: Edges = field(default_factory=no_edges)
    asked: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, dtype=np.bool_))
    letters: tuple[PeerMessage, ...] = ()
    committed: int = 0
    attempt: str = ""
    samples: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    clock: float = 0.0


@dataclass(frozen=True)
class Report:
    """One peer's measurements after one evaluated round.

    Attributes
    ----------
    round, peer : of what.
    metrics : metrics.jsonl's fields but round and peer; None where a metric does not exist.
    weights : (n,) row of the collaboration matrix; the diagonal is the self weight, else 1. In a
        run of more than `MATRIX` peers: those of `columns` only.
    columns : of whom these weights are: of whom the peer heard in this round, and itself; empty
        where it slept, and in a run of fewer peers.
    """

    round: int
    peer: int
    metrics: Mapping[str, float | None]
    weights: tuple[float, ...]
    columns: tuple[int, ...] = ()

    @property
    def given(self) -> dict[int, float]:
        """Peer -> the weight that it is given."""
        return dict(zip(self.columns or range(len(self.weights)), self.weights, strict=True))


@dataclass(frozen=True)
class Response:
    """What a node answers.

    Attributes
    ----------
    peers : peers this node hosts, ascending.
    letters : answers of the round ("answer"), or offers for the next one ("start", "update").
    wants : (W, 2) edges the node's peers want next round; each has one of them at an end.
    reports : measurements of the evaluated rounds this request ended.
    refused : one line for each letter that failed its checks (peer, round, reason).
    samples : n_i of each hosted peer, in the response to a "start" of a node that sees only its own
        data; else empty. Weights need it, so the relay tells every node.
    standing : in the response to a "start": the round whose state the node goes on from, -1 if its
        peers begin afresh.
    names : what people call each hosted peer, "" where nothing names it, in the response to a
        "start"; else empty.
    claims : in the response to a "start" of a node that has keys: for each hosted peer a signature
        that it is this peer's node; else empty.
    checks : in the response to a "preflight": what was checked, and "ok", a band or a code.
    elapsed : seconds on the virtual clock that the request's rounds took here.
    ready : the round by whose end each hosted peer's work is done, where the schedule is by the
        clock; else empty.
    backend : name of the node's engine backend, in the response to a "start"; else empty.
    """

    peers: tuple[int, ...]
    letters: tuple[PeerMessage, ...] = ()
    wants: Edges = field(default_factory=no_edges)
    reports: tuple[Report, ...] = ()
    refused: tuple[str, ...] = ()
    samples: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    standing: int | None = None
    claims: tuple[bytes, ...] = ()
    checks: tuple[tuple[str, str], ...] = ()
    elapsed: float = 0.0
    ready: tuple[int, ...] = ()
    backend: str = ""


class Handler(Protocol):
    """A node, as a transport sees it: what requests are delivered to."""

    def handle(self, request: Request) -> Response:
        """Do what the request says."""
        ...


class Transport(Protocol):
    """Carries one request to each of some nodes and brings their responses back."""

    def nodes(self) -> list[int]:
        """The nodes that can be reached now, in any order; ids mean nothing beyond the run."""
        ...

    def exchange(self, requests: Mapping[int, Request]) -> Mapping[int, Response | str]:
        """Deliver `requests` by node; a response each, or one line saying why there is none."""
        ...
