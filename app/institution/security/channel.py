"""Secure channel of a node: seals outgoing letters, opens and checks incoming ones.

Both go into the audit log. A letter is opened only if an edge of the request ends at this node; any
unexpected or invalid letter is refused with one line.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
from torch import Tensor

from coterie.app.institution.security.accounts import Accounts
from coterie.app.institution.security.audit import Audit
from coterie.app.institution.security.keys import PrivateKeys
from coterie.app.institution.security.ledger import Ledger
from coterie.app.institution.security.memory import Memory
from coterie.app.institution.security.proof import claim
from coterie.app.institution.security.seal import TAG, Scope, SealError, digest_of, seal, unseal
from coterie.app.institution.security.sealing import Sealing
from coterie.app.institution.security.trust import Entry
from coterie.app.wire.payload import Foreign, PayloadError, Readable
from coterie.strategies.protocol import Kind, PeerMessage, Request

_UNEXPECTED = "was not expected: no edge of this round delivers it to this node"


class SecureChannel:
    """Writer and reader of the letters of a node in a run.

    The name of the run directory, on the node's disk, is the run's name. Accounts of a deployed
    node count received letters and answers; without accounts there is only a memory, on disk if
    letters are sealed. An offer is accepted if it is at most `max_age` rounds old; a peer's older
    offer is never accepted after a newer one.
    """

    def __init__(
        self,
        peers: Sequence[int],
        directory: Path,
        sealing: Sealing,
        accounts: Accounts | None = None,
        max_age: int = 0,
    ) -> None:
        self._ledger = accounts.answers if accounts else None
        self._max_age = max_age
        self._peers = tuple(peers)
        self._sealing = sealing
        self._run = directory.name
        node = f"{min(peers):04d}"
        self._audit = Audit(directory / f"audit-{node}.jsonl") if sealing.audited else None
        kept = directory / "nodes" / f"mail-{node}.json" if sealing.keys else None
        self._memory = accounts.memory if accounts else Memory(kept)
        self._own: dict[int, PrivateKeys] = {}
        self._trust: Mapping[int, Entry] = {}
        self.names: dict[int, str] = {}  # peer -> name in the trust file

    def begin(self, request: Request) -> None:
        """Prepare for the letters of a request.

        KeysError: a key file is missing or invalid. DamagedError, LedgerError: the memory of the
        run or a ledger was changed. SealError: the request is of a round that the relay has
        committed; letters of that round are never accepted again.
        """
        self._request = replace(request, letters=())
        self._scope = Scope(self._run, self._sealing.config_digest, request.attempt)
        self._unread: dict[Kind, list[PeerMessage]] = {kind: [] for kind in get_args(Kind)}
        for letter in request.letters:
            self._unread[letter.kind].append(letter)
        # sender -> round of its offer, as the relay states it
        self.written = {letter.sender: letter.round for letter in self._unread["offer"]}
        if isinstance(request.letters, list):
            request.letters.clear()
        self._foreign_offers: dict[int, bytes] = {}  # sender -> digest of its offer
        self._refused: list[str] = []
        if self._sealing.keys:
            self._own, self._trust = self._sealing.read()  # again: the operator may have changed it
            self.names = {peer: entry.name for peer, entry in self._trust.items()}
        memory = self._memory
        if memory.path is None:
            return
        memory.recall(self._ledger.committed() if self._ledger else 0)
        first = request.round + 1 if request.stage == "start" else request.round
        if first <= memory.committed:
            raise SealError(
                f'run "{self._run}" has committed round {memory.committed} on this node and cannot '
                f"return to round {request.round}: start again under another name"
            )
        if request.committed > memory.committed:
            memory.commit(request.committed)

    def claims(self) -> tuple[bytes, ...]:
        """Return a signature per hosted peer that this is its node; none without keys."""
        return tuple(claim(peer, self._scope, self._own[peer]) for peer in self._own)

    def write(self, letter: PeerMessage, to: Collection[int]) -> PeerMessage | None:
        """Seal a plain letter for the trusted peers of `to`; return None if no peer is trusted.

        A node without keys sends it as it is.
        """
        assert isinstance(letter.payload, bytes)
        if not self._sealing.keys:
            self._log(letter, sorted(to), self._digest(letter.payload), "sent")
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
        self._log(sealed, list(trusted), digest, "sent")
        return sealed

    def read(self, kind: Kind, form: Readable) -> Foreign:
        """Open the letters of one kind that came with the request, and return the valid ones.

        LedgerError: the request exceeds the limits of the peer's institution.
        """
        due = self._due(kind)
        result: Foreign = {}
        plain: dict[int, str] = {}  # sender -> digest of the plain letter
        rounds: dict[str, int] = {}  # sender -> round of its letter
        letters = self._unread.pop(kind, [])[::-1]
        while letters:
            letter = letters.pop()
            digest = self._digest(letter.payload)
            ends = letter.sender, letter.recipient
            try:
                if ends not in due:
                    raise PayloadError(_UNEXPECTED)
                if ends in result:
                    raise PayloadError("was received before")
                opened = self._open(letter, digest, form.max_bytes)
                self._check_age(letter)
                result[ends] = _decoded(form, opened, letter.sender)
                if self._ledger is not None:
                    plain[letter.sender] = digest_of(opened).hex()
            except (PayloadError, SealError) as error:
                self._refuse(letter, digest, str(error))
            else:
                self._log_received(letter, digest, "accepted")
                rounds[str(letter.sender)] = letter.round
        if self._ledger is not None:
            self._count(self._ledger, kind, plain)
        if kind == "offer" and self._max_age and result:
            self._memory.heard |= rounds
            self._memory.keep()
        return result

    def _check_age(self, letter: PeerMessage) -> None:
        t = 0 if letter.kind == "statistics" else self._request.round
        if not t - (self._max_age if letter.kind == "offer" else 0) <= letter.round <= t:
            raise PayloadError(f"is of round {letter.round}")
        if letter.kind == "offer" and letter.round < self._memory.heard.get(str(letter.sender), 0):
            raise PayloadError(f"is of round {letter.round}, older than one received before")

    def _count(self, ledger: Ledger, kind: Kind, plain: Mapping[int, str]) -> None:
        """Record the received letters, and the answers to them."""
        request = self._request
        if kind == "offer" or request.asked.any():
            ledger.heard(request, kind, plain, self._memory.committed)
        if kind == "offer" and request.stage == "answer":
            asked = request.edges[request.asked & np.isin(request.edges[:, 1], self._peers)]
            ledger.answering(request, {k: plain[k] for k in asked[:, 0].tolist() if k in plain})

    def finish(self) -> tuple[str, ...]:
        """Refuse unread letters; return a line per letter that was refused since `begin`.

        Also records the heads of the ledgers in the run's memory.
        """
        for letters in self._unread.values():
            for letter in letters:
                self._refuse(letter, self._digest(letter.payload), _UNEXPECTED)
        self._memory.keep_heads()
        return tuple(self._refused)

    def _due(self, kind: Kind) -> set[tuple[int, int | None]]:
        """Return (sender, recipient) of the letters that should come from other nodes."""
        if kind == "statistics":  # the caller checks that none is missing
            senders = {letter.sender for letter in self._unread[kind]}
            return {(k, None) for k in senders.difference(self._peers)}
        edges = self._request.edges
        here = np.isin(edges, self._peers)
        if kind == "offer":
            return {(k, None) for k in edges[here[:, 1] & ~here[:, 0], 0].tolist()}
        asked = edges[here[:, 0] & ~here[:, 1] & self._request.asked]
        return {(k, i) for i, k in asked.tolist()}

    def _open(self, letter: PeerMessage, digest: bytes, max_bytes: int) -> bytes:
        """Return the plain payload of a letter whose received payload has this digest.

        PayloadError: the plain payload exceeds `max_bytes`, or is not bytes. SealError: the sender
        is not trusted, the letter was altered or is for another peer, run or round; or it is plain
        where letters are sealed, or the reverse.
        """
        if not isinstance(letter.payload, bytes):
            raise PayloadError(f"is {type(letter.payload).__name__}, not bytes")
        size = len(letter.payload) - (TAG if letter.keys else 0)
        if size > max_bytes:
            raise PayloadError(f"has {size} bytes, more than the {max_bytes} a letter may have")
        if not self._sealing.keys:
            if letter.keys:
                raise SealError("is sealed, and this node has no keys")
            return letter.payload
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
        sender = self._trust[letter.sender].keys
        plain = unseal(letter, self._scope, reader, self._own[reader], sender, digest, about)
        if to is None:
            self._foreign_offers[letter.sender] = digest_of(plain)
        return plain

    def _refuse(self, letter: PeerMessage, digest: bytes, why: str) -> None:
        self._log_received(letter, digest, f"refused: it {why}")
        self._refused.append(
            f"round {self._request.round}: peers {list(self._peers)} refused the {letter.kind} of "
            f"peer {letter.sender}: it {why}"
        )

    def _digest(self, payload: object) -> bytes:
        """Return the SHA-256 of a payload as sent; empty if nothing is sealed or audited."""
        if not self._sealing.keys and self._audit is None:
            return b""
        return digest_of(payload if isinstance(payload, bytes) else b"")

    def _log_received(self, letter: PeerMessage, digest: bytes, verdict: str) -> None:
        to = self._peers if letter.recipient is None else (letter.recipient,)
        self._log(letter, to, digest, verdict)

    def _log(self, letter: PeerMessage, to: Sequence[int], digest: bytes, verdict: str) -> None:
        if self._audit is not None:
            attempt = self._scope.attempt
            self._audit.write(letter, to, digest, verdict, attempt=attempt, names=self.names)


def _decoded(form: Readable, payload: bytes, sender: int) -> Mapping[str, Tensor]:
    """Decode a payload; whatever error a decoder raises refuses this letter, and no more."""
    try:
        return form.decode(payload, sender)
    except PayloadError:
        raise
    except Exception as error:
        raise PayloadError(f"cannot be decoded: {type(error).__name__}: {error}") from error
