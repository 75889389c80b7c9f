"""Readiness check of all nodes before the first round; nothing is trained."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass

from coterie.strategies.protocol import Request, Transport
from coterie.strategies.relay.roster import Proof, Roster
from coterie.strategies.relay.vetting import NAME, fault_of, one_line

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
    roster, by_peer, faults = Roster(peers, proves), dict[int, Mapping[str, str]](), list[str]()
    attempt = secrets.token_hex(8)
    request = Request("preflight", 0, 0, clock=time.time(), attempt=attempt)
    outcome = transport.exchange(dict.fromkeys(transport.nodes(), request))
    for node, response in sorted(outcome.items()):
        if isinstance(response, str):
            line = one_line(response)
            silent = "; is its executor (coterie-executor) up?" * line.startswith("no response")
            faults.append(f"node {node}: {line}{silent}")
        elif fault := (
            fault_of(response, request, (), peers) or roster.objection(node, response, attempt)
        ):
            faults.append(f"node {node}: {fault}")
        else:
            roster.add(node, response)
            checks = response.checks[:_CHECKS]
            shown = {one_line(name)[:NAME]: one_line(code)[:NAME] for name, code in checks}
            by_peer |= dict.fromkeys(response.peers, shown)
    return Survey(dict(sorted(by_peer.items())), tuple(faults), tuple(sorted(roster.missing)))
