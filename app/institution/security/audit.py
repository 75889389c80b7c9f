"""Audit log of a node: one JSON line per letter that it sent, received or refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from coterie.app.runs import atomic
from coterie.strategies.protocol import PeerMessage


def audit(
    path: Path,
    letter: PeerMessage,
    to: Sequence[int],
    digest: bytes,
    verdict: str,
    *,
    attempt: str,
    names: Mapping[int, str],
) -> None:
    """Append the line of one letter to an audit log.

    A line has: `time` (UTC), `run`, `attempt`, `direction` ("sent" or "received"), `from`, `to` (a
    list; of a received offer the peers of this node), `kind`, `round`, `bytes` (of the tensors),
    `digest` (SHA-256 of the payload as it travels), `sealed`, and `verdict`: "sent", "accepted" or
    "refused: it ...". A peer is its number, with its name where the trust file knows it.
    """
    line = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "run": path.parent.name,
        "attempt": attempt,
        "direction": "sent" if verdict == "sent" else "received",
        "from": _label(letter.sender, names),
        "to": [_label(peer, names) for peer in to],
        "kind": letter.kind,
        "round": letter.round,
        "bytes": letter.nbytes,
        "digest": digest.hex(),
        "sealed": bool(letter.keys),
        "verdict": verdict,
    }
    atomic.append(path, line, durable=False)


def _label(peer: int, names: Mapping[int, str]) -> str:
    return f"{peer} {names[peer]}" if peer in names else str(peer)
