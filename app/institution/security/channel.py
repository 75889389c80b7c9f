"""Secure channel of a node: seals outgoing letters, opens incoming ones, and audits both."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar

import numpy as np

from coterie.app.institution.security.accounts import Accounts
from coterie.app.institution.security.keys import PrivateKeys
from coterie.app.institution.security.memory import Memory
from coterie.app.institution.security.proof import claim
from coterie.app.institution.security.seal import TAG, Scope, SealError, digest_of, seal, unseal
from coterie.app.institution.security.sealing import Sealing
from coterie.app.institution.security.trust import Entry
from coterie.app.node.channel import Channel, bytes_of
from coterie.app.runs import atomic
from coterie.app.wire.payload import PayloadError, Readable, RemoteLetters
from coterie.strategies.protocol import Kind, PeerMessage, Request


class SecureChannel(Channel):
    """Channel with the encryption settings, accounts and audit log of a node."""

    # Accounts of a deployed node count received letters and answers; without them there is only a
    # memory, on disk if letters are sealed.
    #
    # A line of the audit log is one letter that was sent, received or refused: `time` (UTC), `run`,
    # `attempt`, `direction` ("sent" or "received"), `from`, `to` (a list; of a received offer the
    # peers of this node), `kind`, `round`, `bytes` (of the tensors), `digest` (SHA-256 of the
    # payload as it travels), `sealed`, and `verdict`: "sent", "accepted" or "refused: it ...". A
    # peer is its number, with its name where the trust file knows it.

    overhead = TAG
    refusals: ClassVar[tuple[type[Exception], ...]] = (PayloadError, SealError)

    def __init__(
        self,
        peers: Sequence[int],
        directory: Path,
        sealing: Sealing,
        accounts: Accounts | None = None,
        max_age: int = 0,
    ) -> None:
        super().__init__(peers, max_age)
        self._ledger = accounts.answers if accounts else None
        self._sealing, self._run = sealing, directory.name
        node = f"{min(peers):04d}"
        self._audit = directory / f"audit-{node}.jsonl" if sealing.audited else None
        kept = directory / "nodes" / f"mail-{node}.json" if sealing.keys else None
        self._memory = accounts.memory if accounts else Memory(kept)
        self._own: dict[int, PrivateKeys] = {}
        self._trust: Mapping[int, Entry] = {}
        self._hashed: tuple[object, bytes] = None, b""
        self.names: dict[int, str] = {}  # peer -> name in the trust file

    def begin(self, request: Request) -> None:
        """Prepare for the letters of a request; SealError if the relay has committed its round."""
        # KeysError: a key file is missing or invalid. DamagedError, LedgerError: the memory of the
        # run or a ledger was changed.
        super().begin(request)
        self._scope = Scope(self._run, self._sealing.config_digest, request.attempt)
        self._foreign_offers: dict[int, bytes] = {}  # sender -> digest of its offer
        if self._sealing.keys:
            self._own, self._trust = self._sealing.read()  # again: the operator may have changed it
            self.names = {peer: entry.name for peer, entry in self._trust.items()}
        memory = self._memory
        if memory.path is None:
            return
        memory.recall(self._ledger.committed() if self._ledger else 0)
        self._newest = dict(memory.heard)
        first = request.round + 1 if request.stage == "start" else request.round
        if first <= memory.committed:
            raise SealError(
                f'run "{self._run}" has committed round {memory.committed} on this node and cannot '
                f"return to round {request.round}: start again under another name"
            )
        if request.committed > memory.committed:
            memory.commit(request.committed)

    def claims(self) -> tuple[bytes, ...]:
        return tuple(claim(peer, self._scope, self._own[peer]) for peer in self._own)

    def keys_of(self, peer: int) -> PrivateKeys | None:
        """Return the keys of a hosted peer; None where letters are not sealed."""
        return self._own.get(peer)

    def write(self, letter: PeerMessage, to: Collection[int]) -> PeerMessage | None:
        """Seal a letter for the trusted peers of `to`; return None if no peer is trusted."""
        assert isinstance(letter.payload, bytes)
        if not self._sealing.keys:
            self._log(letter, sorted(to), "sent")
            return letter
        trusted = {peer: self._trust[peer].keys for peer in sorted(to) if peer in self._trust}
        about = b""
        if letter.recipient is not None:  # an answer
            about = self._foreign_offers[letter.recipient]
        else:
            offered = digest_of(letter.payload).hex()
            self._memory.offered[f"{letter.round} {letter.sender}"] = offered
            self._memory.keep()
        if not trusted:
            return None
        sealed, digest = seal(letter, self._scope, self._own[letter.sender], trusted, about)
        self._hashed = sealed.payload, digest
        self._log(sealed, list(trusted), "sent")
        return sealed

    def read(self, kind: Kind, form: Readable) -> RemoteLetters:
        """Also record the received letters and the answers; LedgerError: above the limits."""
        self._plain: dict[int, str] = {}  # sender -> digest of the opened letter
        result, request, plain = super().read(kind, form), self._request, self._plain
        if (ledger := self._ledger) is not None:
            if kind == "offer" or request.asked.any():
                ledger.heard(request, kind, plain, self._memory.committed)
            if kind == "offer" and request.stage == "answer":
                asked = request.edges[request.asked & np.isin(request.edges[:, 1], self._peers)]
                ledger.answering(request, {k: plain[k] for k in asked[:, 0].tolist() if k in plain})
        if self._newest != self._memory.heard:
            self._memory.heard = dict(self._newest)
            self._memory.keep()
        return result

    def finish(self) -> tuple[str, ...]:
        """Also record the heads of the ledgers in the run's memory."""
        refused = super().finish()
        self._hashed = None, b""  # the memory of a letter is free once it is opened
        self._memory.keep_heads()
        return refused

    def _open(self, letter: PeerMessage, max_bytes: int) -> bytes:
        """Return a letter's content; PayloadError: too large or not bytes; SealError: forged."""
        if not self._sealing.keys:
            return super()._open(letter, max_bytes)
        bytes_of(letter, max_bytes, TAG if letter.keys else 0)
        if not letter.keys:
            raise SealError("is not sealed")
        if letter.sender not in self._trust:
            raise SealError("is from a peer that is not in the trust file")
        to = letter.recipient
        if to is None:
            reader = next((peer for peer in self._peers if peer in letter.keys), self._peers[0])
            about = b""
        else:
            reader = to
            about = bytes.fromhex(self._memory.offered.get(f"{letter.round} {to}", ""))
        sender, digest = self._trust[letter.sender].keys, self._digest(letter.payload)
        plain = unseal(letter, self._scope, reader, self._own[reader], sender, digest, about)
        if to is None:
            self._foreign_offers[letter.sender] = digest_of(plain)
        return plain

    def _accept(self, letter: PeerMessage, content: bytes) -> None:
        super()._accept(letter, content)
        self._log(letter, self._readers(letter), "accepted")
        if self._ledger is not None:
            self._plain[letter.sender] = digest_of(content).hex()

    def _refuse(self, letter: PeerMessage, why: str) -> None:
        self._log(letter, self._readers(letter), f"refused: it {why}")
        super()._refuse(letter, why)

    def _digest(self, payload: object) -> bytes:
        """Return the SHA-256 of a payload as it travels; that of the last one is kept."""
        if self._hashed[0] is not payload:
            self._hashed = payload, digest_of(payload if isinstance(payload, bytes) else b"")
        return self._hashed[1]

    def _readers(self, letter: PeerMessage) -> Sequence[int]:
        return self._peers if letter.recipient is None else (letter.recipient,)

    def _log(self, letter: PeerMessage, to: Sequence[int], verdict: str) -> None:
        if self._audit is None:
            return
        line = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "run": self._run,
            "attempt": self._scope.attempt,
            "direction": "sent" if verdict == "sent" else "received",
            "from": self._label(letter.sender),
            "to": list(map(self._label, to)),
            "kind": letter.kind,
            "round": letter.round,
            "bytes": letter.nbytes,
            "digest": self._digest(letter.payload).hex(),
            "sealed": bool(letter.keys),
            "verdict": verdict,
        }
        atomic.append(self._audit, line, durable=False)

    def _label(self, peer: int) -> str:
        return f"{peer} {self.names[peer]}" if peer in self.names else str(peer)
