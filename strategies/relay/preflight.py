"""Readiness check of all nodes before the first round; nothing is trained."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass

from coterie.strategies.protocol import Request, Transport
from coterie.strategies.relay.roster import Proof
from coterie.strategies.relay.vetting import NAME, one_line

PREFLIGHT_SECONDS = 300.0
"""Maximum seconds that a relay waits for the nodes' answers."""
_CHECKS = 20
"""Maximum number of checks per node, since they are written to files and terminals."""


@dataclass(frozen=True)
class Survey:
    """Results of the checks of all nodes."""

    peers: Mapping[int, Mapping[str, str]]  # results by peer and check: "ok", a band or a code
    faults: tuple[str, ...]  # a line per node whose response was missing or invalid
    missing: tuple[int, ...]  # peers for which no node has answered


def survey(transport: Transport, peers: int, proves: Proof | None = None) -> Survey:
    """Ask all nodes to check that they are ready for a run of `peers` peers."""
    # `proves` verifies a node's claim to a peer; without, the first node that claims a peer counts.
    nodes, by_peer, faults = transport.nodes(), dict[int, Mapping[str, str]](), list[str]()
    attempt = secrets.token_hex(8)
    request = Request("preflight", 0, 0, clock=time.time(), attempt=attempt)
    for node, response in sorted(transport.exchange(dict.fromkeys(nodes, request)).items()):
        if isinstance(response, str):
            line = one_line(response)
            silent = "; is its executor (coterie-executor) up?" * line.startswith("no response")
            faults.append(f"node {node}: {line}{silent}")
            continue
        claims = dict(zip(response.peers, response.claims, strict=False))
        for peer in response.peers:
            if not 0 <= peer < peers:
                faults.append(f"node {node}: claims peer {peer}: not from 0 to {peers - 1}")
                continue
            if proves is not None and not proves(peer, claims.get(peer, b""), attempt):
                faults.append(
                    f"node {node}: claims peer {peer} without the key that the relay trusts for it"
                )
                continue
            if peer in by_peer:
                faults.append(f"node {node}: claims peer {peer}, as another node does")
                continue
            checks = response.checks[:_CHECKS]
            by_peer[peer] = {one_line(name)[:NAME]: one_line(code)[:NAME] for name, code in checks}
    missing = tuple(peer for peer in range(peers) if peer not in by_peer)
    return Survey(dict(sorted(by_peer.items())), tuple(faults), missing)
