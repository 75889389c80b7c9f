"""What the relay accepts of a reply. It sees envelopes, never what is inside them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from strategies.protocol import Envelope, Order, Reply, Report

_LINES, _LENGTH = 100, 400
"""What a node says of refused letters goes into logs: so many lines, so many characters each."""


def fault_of(reply: Reply, order: Order, hosted: Sequence[int], n: int) -> str | None:
    """Say why the whole reply is useless, if it is.

    Parameters
    ----------
    hosted : the peers that the node was known to host; a "start" may bring any of the n.
    n : number of peers of the run.
    """
    if order.stage == "start":
        if list(reply.peers) != sorted(set(reply.peers) & set(range(n))):
            return f"hosts peers {named(reply.peers)}: not some of 0 to {n - 1}, ascending"
        if reply.samples and (len(reply.samples) != len(reply.peers) or 0 in reply.samples):
            return f"has {list(reply.samples)} samples for {len(reply.peers)} peers"
    elif reply.peers != tuple(hosted):
        return f"hosts peers {named(reply.peers)} all of a sudden"
    return None


def vetted(reply: Reply, order: Order, n: int) -> tuple[Reply, list[str]]:
    """Keep what a reply to `order` may contain.

    Returns
    -------
    The reply without what does not belong there, and a line for each thing refused: by the node
    (as it said) or here.
    """
    bad: list[str] = []
    expected = _expected(reply.peers, order)
    letters: list[Envelope] = []
    for letter in reply.letters:
        ends = (letter.kind, letter.sender, letter.recipient, letter.round)
        if ends in expected:
            expected.remove(ends)
            letters.append(letter)
        else:
            bad.append(str(letter))
    reports: list[Report] = []
    for report in reply.reports:
        in_time = order.stage != "answer" and order.round <= report.round <= order.last
        numbers = [*report.weights, *(v for v in report.metrics.values() if v is not None)]
        sound = len(report.weights) == n and all(map(math.isfinite, numbers))
        if in_time and report.peer in reply.peers and sound:
            reports.append(report)
        else:
            bad.append(f"a report of peer {report.peer}, round {report.round}")
    wants = reply.wants
    inside = ((wants >= 0) & (wants < n)).all(axis=1)
    kept_w = inside & (wants[:, 0] != wants[:, 1]) & np.isin(wants, reply.peers).any(axis=1)
    bad += [f"the want {want}" for want in wants[~kept_w].tolist()]
    who = f"round {order.round}, {order.stage}: peers {named(reply.peers)}"
    said = [" ".join(line.split())[:_LENGTH] for line in reply.refused[:_LINES]]
    refused = [*said, *(f"{who}: the relay refused {what}" for what in bad[:_LINES])]
    kept = replace(reply, letters=tuple(letters), reports=tuple(reports), wants=wants[kept_w])
    return kept, refused


def named(peers: Iterable[int]) -> str:
    """The peers in order, for people."""
    return ", ".join(map(str, sorted(peers))) or "none"


def _expected(peers: Sequence[int], order: Order) -> set[tuple[str, int, int | None, int]]:
    """(kind, sender, recipient, round) of the letters that may come back."""
    if order.stage == "answer":
        return {
            ("answer", answerer, owner, order.round)
            for owner, answerer in order.edges[order.asked].tolist()
            if answerer in peers and owner not in peers
        }
    return {("offer", peer, None, order.last + 1) for peer in peers}
