"""Validation of the nodes' responses by the relay, which never looks inside letters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from coterie.strategies.exchange_plan import ExchangePlan
from coterie.strategies.names import is_name
from coterie.strategies.protocol import BACKENDS, MATRIX, PeerMessage, Report, Request, Response
from coterie.strategies.schedule import Schedule

_LINES, _LENGTH = 100, 400
"""Maximum number of lines of a node in logs and terminals, and of characters per line."""
_NAMED = 10
"""Maximum number of invalid items of a response that are reported individually."""
_LARGEST = 1e300
"""Maximum of a metric or weight; keeps means finite."""
MAX_SAMPLES = 10**9
"""Maximum number of samples of a peer; weights are proportional to it."""
NAME = 64
"""Maximum length of a peer's name."""


def fault_of(response: Response, request: Request, hosted: Sequence[int], n: int) -> str | None:
    """Return the reason to reject the whole response, or None."""
    # `hosted` are the peers that the node hosts so far; if empty, it may claim any of the `n`.
    if hosted and response.peers != tuple(hosted):
        return f"hosts peers {named(response.peers)} now, not {named(hosted)}"
    if not 0 <= response.elapsed <= _LARGEST:
        return f"has an invalid elapsed time, {response.elapsed:g}"
    if request.stage in ("start", "preflight"):
        if list(response.peers) != sorted(set(response.peers) & set(range(n))):
            return f"hosts peers {named(response.peers)}: must be ascending and from 0 to {n - 1}"
        if not all(0 < samples <= MAX_SAMPLES for samples in response.samples):
            return f"has a peer whose number of samples is not from 1 to {MAX_SAMPLES}"
    columns = {
        "ready rounds": response.ready, "numbers of samples": response.samples,
        "names": response.names, "claims": response.claims,
    }  # fmt: skip
    for what, values in columns.items():
        if values and len(values) != len(response.peers):
            return f"has {len(values)} {what} for {len(response.peers)} peers"
    return None


def vetted(
    response: Response, request: Request, strategy: ExchangePlan, *, deployed: bool = False
) -> tuple[Response, list[str]]:
    """Return the response without what a response to `request` must not contain."""
    # Also a line per refused item: letters refused by the node, then items refused here.
    # `deployed`: peers have names of trust files; in a simulation the user's data names them.
    n, peers = strategy.peers, frozenset(response.peers)
    invalid: list[str] = []
    expected = _expected(response, request, strategy.schedule)
    letters: list[PeerMessage] = []
    for letter in response.letters:
        ends = (letter.kind, letter.sender, letter.recipient, letter.round)
        if ends in expected and all(0 <= peer < n for peer in letter.keys):
            expected.remove(ends)
            letters.append(letter)
        else:
            invalid.append(str(letter))
    due = {(t, peer) for t in _evaluated(request, strategy) for peer in peers}
    reports: list[Report] = []
    for report in response.reports:
        if (report.round, report.peer) in due and _is_sound(report, strategy):
            due.remove((report.round, report.peer))
            reports.append(report)
        else:
            invalid.append(f"a report of peer {report.peer}, round {report.round}")
    wants = response.wants
    valid_w = ((wants >= 0) & (wants < n)).all(axis=1) & (wants[:, 0] != wants[:, 1])
    end = strategy.wanted_by
    valid_w &= False if end is None else np.isin(wants[:, end], response.peers)
    invalid += [f"the requested edge {edge}" for edge in wants[~valid_w].tolist()]
    read = {letter.sender for letter in request.letters if letter.kind == "offer"}
    invalid += [
        f"a gap: no letter of peer {k} to read" for k in sorted({*response.missing_from} - read)
    ]
    names = response.names if request.stage == "start" else ()
    if deployed and not all(is_name(name) for name in names if name):
        invalid.append("the name of a peer")
        names = ()
    origin = f"round {request.round}, {request.stage}: peers {named(response.peers)}"
    refused = [one_line(line) for line in response.refused[:_LINES]]
    refused += [one_line(f"{origin}: the relay refused {item}") for item in invalid[:_NAMED]]
    if len(invalid) > _NAMED:
        refused.append(f"{origin}: the relay refused {len(invalid) - _NAMED} other items")
    kept = replace(
        response,
        letters=tuple(letters),
        reports=tuple(reports),
        wants=np.unique(wants[valid_w], axis=0),
        names=tuple(one_line(name)[:NAME] for name in names),
        backend=response.backend if response.backend in BACKENDS else "",
        missing_from=tuple(sorted({*response.missing_from} & read)),
    )
    return kept, refused


def one_line(text: str) -> str:
    """Shorten a node's text to one line, and replace characters that control terminals."""
    line = " ".join(text[:_LENGTH].split())
    return "".join(char if char.isprintable() else "?" for char in line)


def named(peers: Iterable[int]) -> str:
    """Format peers for messages, in order."""
    return ", ".join(map(str, sorted(peers))) or "none"


def _is_sound(report: Report, strategy: ExchangePlan) -> bool:
    metrics: Mapping[str, float | None] = report.metrics
    n = strategy.peers
    measured = [value for value in metrics.values() if value is not None]
    numbers = np.array([*report.weights, *measured], dtype=np.float64)
    return (
        metrics.keys() <= strategy.metrics
        and is_row(report.weights, report.columns, n)
        and bool((np.abs(numbers) <= _LARGEST).all())  # not a number is not in this range
    )


def is_row(weights: Sequence[float], columns: Sequence[int], n: int) -> bool:
    """Return True if weights cover all peers, or above `MATRIX` peers ascending columns."""
    if n <= MATRIX:
        return not columns and len(weights) == n
    ascending = all(a < b for a, b in pairwise(columns))
    return len(weights) == len(columns) and ascending and all(0 <= k < n for k in columns)


def _evaluated(request: Request, strategy: ExchangePlan) -> Iterable[int]:
    """Return the rounds whose reports the response may contain."""
    if request.stage == "answer":
        return ()
    if request.stage == "start":  # a peer without a saved state evaluates the initial one
        return (request.round,)
    return filter(strategy.is_evaluated, range(request.round, request.last + 1))


def _expected(
    response: Response, request: Request, schedule: Schedule
) -> set[tuple[str, int, int | None, int]]:
    """Return (kind, sender, recipient, round) of the letters that the response may contain."""
    peers, t = response.peers, request.last + 1
    if request.stage == "answer":
        return {
            ("answer", answerer, owner, request.round)
            for owner, answerer in request.edges[request.asked].tolist()
            if answerer in peers and owner not in peers
        }
    first = t - (schedule.max_age if request.stage == "start" else 0)
    statistics = {("statistics", peer, None, 0) for peer in peers if request.stage == "start"}
    offers = {("offer", peer, None, s) for peer in peers for s in range(max(1, first), t + 1)}
    rounds = zip(peers, response.ready or (t,) * len(peers), strict=True)
    return statistics | offers | {("offer", peer, None, ready) for peer, ready in rounds}
