"""Check requests at a deployed node: the relay may request only what the run's keys allow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from coterie.errors import Error
from coterie.strategies.exchange_plan import ExchangePlan
from coterie.strategies.protocol import Edges, Request
from coterie.strategies.topology import listed


class RequestError(Error, ValueError):
    """The run does not allow a request; the message has the reason."""


def check_request(request: Request, strategy: ExchangePlan, peers: Sequence[int]) -> None:
    """Refuse rounds, a stage or edges that the run's strategy does not have for this node."""
    n, stage = strategy.peers, request.stage
    if request.last > strategy.rounds or (stage != "start" and request.round < 1):
        raise RequestError(f"rounds {request.round} to {request.last} of {strategy.rounds}")
    if stage == "local-rounds" and len(peers) < n:
        raise RequestError(f"{stage} at a node that hosts {len(peers)} of {n} peers")
    if len(request.samples) not in (0, n):
        raise RequestError(f"numbers of examples of {len(request.samples)} peers, not {n}")
    if stage in ("start", "local-rounds"):
        kinds = {letter.kind for letter in request.letters}
        if len(request.edges) or kinds - ({"statistics"} if stage == "start" else set()):
            raise RequestError(f"a {stage} with edges or letters")
        return
    edges, asked = strategy.edges(request.round, listed(~np.eye(n, dtype=np.bool_)))
    if (request.edges >= n).any() or not np.isin(request.edges, peers).any(axis=1).all():
        raise RequestError("edges of other nodes")
    if len(_numbers(request.edges, n)) < len(request.edges):
        raise RequestError("an edge twice")
    if not _numbers(request.edges, n) <= _numbers(edges, n):
        raise RequestError(f"edges that round {request.round} cannot have")
    if not _numbers(request.edges[request.asked], n) <= _numbers(edges[asked], n):
        raise RequestError("questions that the method does not ask")
    if stage == "answer" and not np.isin(request.edges[request.asked, 1], peers).any():
        raise RequestError("a request for answers without a question to this node")


def check_wanted(
    request: Request, strategy: ExchangePlan, peers: Sequence[int], wants: Edges
) -> None:
    """Refuse edges that need a request of these hosted peers, but are not in their `wants`."""
    if strategy.wanted_by is None:
        return
    every = listed(~np.eye(strategy.peers, dtype=np.bool_))
    others_wants = every[~np.isin(every[:, strategy.wanted_by], peers)]
    edges, _ = strategy.edges(request.round, np.concatenate([wants, others_wants]))
    if not _numbers(request.edges, strategy.peers) <= _numbers(edges, strategy.peers):
        raise RequestError("edges that this node did not want")


def _numbers(edges: Edges, n: int) -> set[int]:
    return set((edges[:, 0] * n + edges[:, 1]).tolist())
