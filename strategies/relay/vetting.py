"""What the relay accepts of a response. It sees letters, never what is inside them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from strategies.protocol import PeerMessage, Report, Request, Response

_LINES, _LENGTH = 100, 400
"""What a node says goes into logs and terminals: so many lines, so many characters each."""
NAME = 64
"""Most characters of a peer's name."""


def fault_of(response: Response, request: Request, hosted: Sequence[int], n: int) -> str | None:
    """Say why the whole response cannot be used, if so.

    Parameters
    ----------
    hosted : the peers that the node was known to host; a "start" may bring any of the n.
    n : number of peers of the run.
    """
    if request.stage == "start":
        if list(response.peers) != sorted(set(response.peers) & set(range(n))):
            return f"hosts peers {named(response.peers)}: not some of 0 to {n - 1}, ascending"
        if response.samples and (
            len(response.samples) != len(response.peers) or 0 in response.samples
        ):
            return f"has {list(response.samples)} samples for {len(response.peers)} peers"
        if response.names and len(response.names) != len(response.peers):
            return f"has {len(response.names)} names for {len(response.peers)} peers"
    elif response.peers != tuple(hosted):
        return f"hosts peers {named(response.peers)} now, not {named(hosted)}"
    return None


def vetted(response: Response, request: Request, n: int) -> tuple[Response, list[str]]:
    """Keep what a response to `request` may contain.

    Returns
    -------
    The response without what does not belong there, and a line for each thing refused: by the node
    (as it said) or here.
    """
    bad: list[str] = []
    expected = _expected(response.peers, request)
    letters: list[PeerMessage] = []
    for letter in response.letters:
        ends = (letter.kind, letter.sender, letter.recipient, letter.round)
        if ends in expected:
            expected.remove(ends)
            letters.append(letter)
        else:
            bad.append(str(letter))
    reports: list[Report] = []
    for report in response.reports:
        in_time = request.stage != "answer" and request.round <= report.round <= request.last
        numbers = [*report.weights, *(v for v in report.metrics.values() if v is not None)]
        sound = len(report.weights) == n and all(map(math.isfinite, numbers))
        if in_time and report.peer in response.peers and sound:
            reports.append(report)
        else:
            bad.append(f"a report of peer {report.peer}, round {report.round}")
    wants = response.wants
    inside = ((wants >= 0) & (wants < n)).all(axis=1)
    kept_w = inside & (wants[:, 0] != wants[:, 1]) & np.isin(wants, response.peers).any(axis=1)
    bad += [f"the want {want}" for want in wants[~kept_w].tolist()]
    who = f"round {request.round}, {request.stage}: peers {named(response.peers)}"
    said = [one_line(line) for line in response.refused[:_LINES]]
    refused = [*said, *(f"{who}: the relay refused {what}" for what in bad[:_LINES])]
    kept = replace(
        response,
        letters=tuple(letters),
        reports=tuple(reports),
        wants=wants[kept_w],
        names=tuple(one_line(name)[:NAME] for name in response.names),
    )
    return kept, refused


def one_line(text: str) -> str:
    """What a node said, short and without what a terminal would obey."""
    line = " ".join(text[:_LENGTH].split())
    return "".join(char if char.isprintable() else "?" for char in line)


def named(peers: Iterable[int]) -> str:
    """The peers in order, for people."""
    return ", ".join(map(str, sorted(peers))) or "none"


def _expected(peers: Sequence[int], request: Request) -> set[tuple[str, int, int | None, int]]:
    """(kind, sender, recipient, round) of the letters that may come back."""
    if request.stage == "answer":
        return {
            ("answer", answerer, owner, request.round)
            for owner, answerer in request.edges[request.asked].tolist()
            if answerer in peers and owner not in peers
        }
    return {("offer", peer, None, request.last + 1) for peer in peers}
