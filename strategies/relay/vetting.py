"""What the relay accepts of a response. It sees letters, never what is inside them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from coterie.strategies.brokering import Brokering
from coterie.strategies.names import is_name
from coterie.strategies.protocol import MATRIX, PeerMessage, Report, Request, Response
from coterie.strategies.schedule import Schedule

_LINES, _LENGTH = 100, 400
"""What a node says goes into logs and terminals: so many lines, so many characters each."""
_NAMED = 10
"""Things that a response must not contain, of which each gets its line."""
_LARGEST = 1e300
"""Of a measurement or weight: means of these are finite."""
MOST_SAMPLES = 10**9
"""Of one peer: weights are proportional to it."""
NAME = 64
"""Most characters of a peer's name."""


def fault_of(response: Response, request: Request, hosted: Sequence[int], n: int) -> str | None:
    """Say why the whole response cannot be used, if so.

    Parameters
    ----------
    hosted : the peers that the node was known to host; one that hosted none may bring any of the n.
    n : number of peers of the run.
    """
    if hosted and response.peers != tuple(hosted):
        return f"hosts peers {named(response.peers)} now, not {named(hosted)}"
    if not 0 <= response.elapsed <= _LARGEST:
        return "has an elapsed time that is none"
    if response.ready and len(response.ready) != len(response.peers):
        return f"has {len(response.ready)} rounds to be ready for {len(response.peers)} peers"
    if request.stage == "start":
        if list(response.peers) != sorted(set(response.peers) & set(range(n))):
            return f"hosts peers {named(response.peers)}: not some of 0 to {n - 1}, ascending"
        if response.samples and len(response.samples) != len(response.peers):
            return f"has {len(response.samples)} numbers of samples for {len(response.peers)} peers"
        if not all(0 < samples <= MOST_SAMPLES for samples in response.samples):
            return f"has a peer whose number of samples is not from 1 to {MOST_SAMPLES}"
        if response.names and len(response.names) != len(response.peers):
            return f"has {len(response.names)} names for {len(response.peers)} peers"
        if response.claims and len(response.claims) != len(response.peers):
            return f"has {len(response.claims)} claims for {len(response.peers)} peers"
    return None


def vetted(
    response: Response, request: Request, strategy: Brokering, *, deployed: bool = False
) -> tuple[Response, list[str]]:
    """Keep what a response to `request` may contain.

    Parameters
    ----------
    deployed : peers are called by names of trust files; in a simulation as the user's own data.

    Returns
    -------
    The response without what does not belong there, and a line for each thing refused: by the node
    (as it said) or here.
    """
    n, peers = strategy.peers, frozenset(response.peers)
    bad: list[str] = []
    expected = _expected(response, request, strategy.schedule)
    letters: list[PeerMessage] = []
    for letter in response.letters:
        ends = (letter.kind, letter.sender, letter.recipient, letter.round)
        if ends in expected and all(0 <= peer < n for peer in letter.keys):
            expected.remove(ends)
            letters.append(letter)
        else:
            bad.append(str(letter))
    due = {(t, peer) for t in _evaluated(request, strategy) for peer in peers}
    reports: list[Report] = []
    for report in response.reports:
        if (report.round, report.peer) in due and _is_sound(report, strategy):
            due.remove((report.round, report.peer))
            reports.append(report)
        else:
            bad.append(f"a report of peer {report.peer}, round {report.round}")
    wants = response.wants
    kept_w = ((wants >= 0) & (wants < n)).all(axis=1) & (wants[:, 0] != wants[:, 1])
    if strategy.wanted_by is None:
        kept_w[:] = False
    else:
        kept_w &= np.isin(wants[:, strategy.wanted_by], response.peers)
    bad += [f"the want {want}" for want in wants[~kept_w].tolist()]
    names = response.names if request.stage == "start" else ()
    if deployed and not all(is_name(name) for name in names if name):
        bad.append("the name of a peer")
        names = ()
    who = f"round {request.round}, {request.stage}: peers {named(response.peers)}"
    refused = [one_line(line) for line in response.refused[:_LINES]]
    refused += [one_line(f"{who}: the relay refused {what}") for what in bad[:_NAMED]]
    if len(bad) > _NAMED:
        refused.append(f"{who}: the relay refused {len(bad) - _NAMED} other things")
    kept = replace(
        response,
        letters=tuple(letters),
        reports=tuple(reports),
        wants=np.unique(wants[kept_w], axis=0),
        names=tuple(one_line(name)[:NAME] for name in names),
    )
    return kept, refused


def one_line(text: str) -> str:
    """What a node said, short and without what a terminal would obey."""
    line = " ".join(text[:_LENGTH].split())
    return "".join(char if char.isprintable() else "?" for char in line)


def named(peers: Iterable[int]) -> str:
    """The peers in order, for people."""
    return ", ".join(map(str, sorted(peers))) or "none"


def _is_sound(report: Report, strategy: Brokering) -> bool:
    metrics: Mapping[str, float | None] = report.metrics
    n = strategy.peers
    numbers = [*report.weights, *(value for value in metrics.values() if value is not None)]
    return (
        metrics.keys() <= strategy.metrics
        and is_row(report.weights, report.columns, n)
        and all(math.isfinite(number) and abs(number) <= _LARGEST for number in numbers)
    )


def is_row(weights: Sequence[float], columns: Sequence[int], n: int) -> bool:
    """Whether weights are about all peers, or of very many about some of them, ascending."""
    if n <= MATRIX:
        return not columns and len(weights) == n
    ascending = all(a < b for a, b in pairwise(columns))
    return len(weights) == len(columns) and ascending and all(0 <= k < n for k in columns)


def _evaluated(request: Request, strategy: Brokering) -> Iterable[int]:
    """The rounds whose reports may come back."""
    if request.stage == "answer":
        return ()
    if request.stage == "start":  # a peer that begins afresh measures where it stands
        return (request.round,)
    return filter(strategy.is_evaluated, range(request.round, request.last + 1))


def _expected(
    response: Response, request: Request, schedule: Schedule
) -> set[tuple[str, int, int | None, int]]:
    """(kind, sender, recipient, round) of the letters that may come back."""
    peers, t = response.peers, request.last + 1
    if request.stage == "answer":
        return {
            ("answer", answerer, owner, request.round)
            for owner, answerer in request.edges[request.asked].tolist()
            if answerer in peers and owner not in peers
        }
    first = t - (schedule.max_age if request.stage == "start" else 0)
    offers = {("offer", peer, None, s) for peer in peers for s in range(max(1, first), t + 1)}
    coming = zip(peers, response.ready or (t,) * len(peers), strict=True)
    return offers | {("offer", peer, None, ready) for peer, ready in coming}
