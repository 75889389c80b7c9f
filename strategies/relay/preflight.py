"""Which nodes are ready for a run, before its first round: each is asked once, none trains."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from coterie.strategies.protocol import Request, Transport
from coterie.strategies.relay.vetting import NAME, one_line

_CHECKS = 20
"""Of a node, at most: what it says goes into files and terminals."""


@dataclass(frozen=True)
class Survey:
    """What the nodes that are there have answered.

    Attributes
    ----------
    peers : peer -> what its node checked -> "ok", a band or a code.
    faults : a line for each node that did not answer as it should.
    missing : peers of which no node has answered.
    """

    peers: Mapping[int, Mapping[str, str]]
    faults: tuple[str, ...]
    missing: tuple[int, ...]


def survey(transport: Transport, peers: int) -> Survey:
    """Ask all nodes whether they are ready for a run of `peers` peers."""
    nodes, found, faults = transport.nodes(), dict[int, Mapping[str, str]](), list[str]()
    request = Request("preflight", 0, 0, clock=time.time())
    for node, response in sorted(transport.exchange(dict.fromkeys(nodes, request)).items()):
        if isinstance(response, str):
            faults.append(f"node {node}: {one_line(response)}")
            continue
        for peer in response.peers:
            if peer in found or not 0 <= peer < peers:
                faults.append(f"node {node}: says that it is peer {peer}, as another or none is")
                continue
            answers = response.checks[:_CHECKS]
            found[peer] = {one_line(name)[:NAME]: one_line(said)[:NAME] for name, said in answers}
    missing = tuple(peer for peer in range(peers) if peer not in found)
    return Survey(dict(sorted(found.items())), tuple(faults), missing)
