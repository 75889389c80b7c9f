"""Readiness check of all nodes before the first round; nothing is trained."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from strategies.protocol import Request, Transport
from strategies.relay.vetting import NAME, one_line

_CHECKS = 20
"""Maximum number of checks per node, since they are written to files and terminals."""


@dataclass(frozen=True)
class Survey:
    """Results of the checks of all nodes.

    Attributes
    ----------
    peers : Mapping of int to Mapping of str to str
        Results by peer and check: "ok", a band or a code.
    faults : tuple of str
        A line per node whose response was missing or invalid.
    missing : tuple of int
        Peers for which no node has answered.
    """

    peers: Mapping[int, Mapping[str, str]]
    faults: tuple[str, ...]
    missing: tuple[int, ...]


def survey(transport: Transport, peers: int) -> Survey:
    """Ask all nodes to check that they are ready for a run of `peers` peers."""
    nodes, by_peer, faults = transport.nodes(), dict[int, Mapping[str, str]](), list[str]()
    request = Request("preflight", 0, 0, clock=time.time())
    for node, response in sorted(transport.exchange(dict.fromkeys(nodes, request)).items()):
        if isinstance(response, str):
            faults.append(f"node {node}: {one_line(response)}")
            continue
        for peer in response.peers:
            if not 0 <= peer < peers:
                faults.append(f"node {node}: claims peer {peer}: not from 0 to {peers - 1}")
                continue
            if peer in by_peer:
                faults.append(f"node {node}: claims peer {peer}, as another node does")
                continue
            checks = response.checks[:_CHECKS]
            by_peer[peer] = {one_line(name)[:NAME]: one_line(code)[:NAME] for name, code in checks}
    missing = tuple(peer for peer in range(peers) if peer not in by_peer)
    return Survey(dict(sorted(by_peer.items())), tuple(faults), missing)
