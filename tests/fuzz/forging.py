"""A node that answers something else than it should, in every way that its records allow."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from coterie.strategies.flower.records import encode_fault, encode_response
from coterie.strategies.protocol import PeerMessage, Report, Request, Response

_NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 7, 2**31, 2**62, 2**63 - 1, -(2**63)),
    *(0.0, 0.5, -1.0, 1e308, -1e308, float("nan"), float("inf")),
)
_TEXTS = ("", "peer", "round", "0.peer", "9" * 5000 + ".x", "\x1b[2J\x07", "a\nb", "x" * 10_000)
_NAMES = ("peer", "round", "test_loss", "bytes_sent", "\x1b[31m", "x" * 3000, "")


def forged(response: Response, request: Request, peers: int, g: random.Random) -> RecordDict:
    """A reply that is not the honest one, whose letters are honest where they stay.

    What a peer may say of itself (a model, a loss, whom it wants to hear) is not forged here: a
    relay cannot tell.
    """
    if g.random() < 0.5:
        return encode_response(g.choice(_LIES)(response, request, peers, g), request)
    record = encode_response(response, request)
    for _ in range(g.randint(1, 3)):
        g.choice(_BREAKS)(record, g)
    return record


def _other_peers(r: Response, _: Request, n: int, g: random.Random) -> Response:
    return replace(r, peers=tuple(g.choices([*range(n), n, 2**31, 2**62], k=g.randint(1, n))))


def _other_samples(r: Response, _: Request, n: int, g: random.Random) -> Response:
    return replace(r, samples=tuple(g.choices([0, 1, 5, 2**62], k=g.randint(1, n))))


def _other_names(r: Response, _: Request, n: int, g: random.Random) -> Response:
    return replace(r, names=tuple(g.choices(_TEXTS, k=g.randint(0, n))))


def _other_claims(r: Response, _: Request, n: int, g: random.Random) -> Response:
    return replace(r, claims=tuple(g.choices([b"", bytes(64), bytes(10_000)], k=g.randint(0, n))))


def _more_letters(r: Response, request: Request, n: int, g: random.Random) -> Response:
    """Add letters of other senders, to unasked recipients, of other rounds, with unknown keys."""
    away = [peer for peer in range(n + 2) if peer not in r.peers]
    sender, to = g.choice(away), g.choice([None, 0, n - 1, n])
    t = g.choice([0, request.round, request.last + 1, 2**40])
    letter = PeerMessage("offer" if to is None else "answer", sender, to, t, 8, bytes(8))
    return replace(r, letters=(*r.letters, letter, *r.letters))


def _more_reports(r: Response, request: Request, n: int, g: random.Random) -> Response:
    """Add reports of other peers and rounds, with invalid names and numbers."""
    away = [peer for peer in range(n + 2) if peer not in r.peers]
    t = g.choice([0, request.round, request.round + 1, 2**40])
    value = g.choice([float(x) for x in _NUMBERS])
    lies = [
        Report(t, g.choice(away), {"test_loss": 0.0}, (1.0,) * n),
        Report(t, r.peers[0] if r.peers else 0, {g.choice(_NAMES[:2]): value}, (1.0,) * n),
        Report(2**40, 0, {"test_loss": value}, (value,) * n),
    ]
    return replace(r, reports=(*r.reports, g.choice(lies)) if _even(r) else r.reports)


def _even(r: Response) -> bool:
    """Return whether all rows of weights have the same length: the wire format requires it."""
    return len({len(report.weights) for report in r.reports}) <= 1


def _more_wants(r: Response, _: Request, n: int, g: random.Random) -> Response:
    """Edges between others, from nowhere, to oneself."""
    away = [peer for peer in range(n) if peer not in r.peers] or [n]
    ends = [(g.choice(away), g.choice(away)), (n, 2**62), (0, 0)]
    wants = np.array(g.choices(ends, k=g.randint(1, 200)), dtype=np.int64)
    return replace(r, wants=np.concatenate([r.wants, wants]))


def _loud(r: Response, _: Request, n: int, g: random.Random) -> Response:
    return replace(r, refused=tuple(g.choices(_TEXTS, k=g.choice([1, 5, 150]))))


_LIES: tuple[Callable[[Response, Request, int, random.Random], Response], ...] = (
    _other_peers, _other_samples, _other_names, _other_claims, _more_letters, _more_reports,
    _more_wants, _loud,
)  # fmt: skip


def _change(record: RecordDict, g: random.Random) -> None:
    """Change one field of a header: another type, longer, shorter or missing."""
    header = g.choice([value for value in record.values() if isinstance(value, ConfigRecord)])
    key = g.choice([key for key in header if key != "peers"] or ["stage"])  # none: it leaves
    value: Any = header.get(key)
    ways: list[Callable[[], Any]] = [
        lambda: g.choice(_NUMBERS),
        lambda: g.choice(_TEXTS),
        lambda: g.randbytes(g.choice([0, 1, 8, 16, 800])),
        lambda: g.choices([x for x in _NUMBERS if isinstance(x, int)], k=g.randint(0, 4)),
        lambda: list(g.choices(_TEXTS, k=g.randint(1, 3))),
        lambda: value[: len(value) // 2] if isinstance(value, list | bytes | str) else True,
        lambda: 2 * value if isinstance(value, list | bytes) else -1,
    ]
    if g.random() < 0.1 and key in header:
        del header[key]
    else:
        header[key] = g.choice(ways)()


def _drop(record: RecordDict, g: random.Random) -> None:
    if record:
        del record[g.choice(list(record))]
    record["other"] = ConfigRecord({"a": 1})


def _add(record: RecordDict, g: random.Random) -> None:
    what: list[Any] = [ArrayRecord(), MetricRecord({"0.test_loss": 1.0}), ConfigRecord()]
    names = ["letter-0", "letter-7", "metrics", "response", "fault", "x" * 1000]
    record[g.choice(names)] = g.choice(what)


def _measure(record: RecordDict, g: random.Random) -> None:
    metrics = record.get("metrics")
    if isinstance(metrics, MetricRecord):
        name = f"{g.choice([0, 1, 99, '9' * 5000])}.{g.choice(_NAMES)}"
        metrics[name] = g.choice(_NUMBERS) if g.random() < 0.8 else [1, 2, 3]


def _fail(record: RecordDict, g: random.Random) -> None:
    record.update(encode_fault(g.choice(_TEXTS)))


_BREAKS: tuple[Callable[[RecordDict, random.Random], None], ...] = (
    _change, _change, _change, _drop, _add, _measure, _fail,
)  # fmt: skip
