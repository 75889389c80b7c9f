"""A node's mailroom: seals what leaves, opens what arrives, and writes both into the audit log."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from app.runs import atomic
from app.security.audit import Audit
from app.security.keys import PrivateKeys
from app.security.seal import TAG, Scope, SealError, digest_of, seal, unseal
from app.security.sealing import Sealing
from app.security.trust import Entry
from strategies.protocol import PeerMessage, Request


class Mailroom:
    """Handles the letters of one node in one run.

    Parameters
    ----------
    peers : hosted by the node.
    directory : the run directory on the node's disk; its name is that of the run.
    """

    def __init__(self, peers: Sequence[int], directory: Path, sealing: Sealing) -> None:
        self._peers = tuple(peers)
        self._sealing = sealing
        self._run = directory.name
        node = f"{min(peers):04d}"
        self._audit = Audit(directory / f"audit-{node}.jsonl") if sealing.audited else None
        self._memory = directory / "nodes" / f"mail-{node}.json"
        self._own: dict[int, PrivateKeys] = {}
        self._trust: Mapping[int, Entry] = {}
        self._scope = Scope(self._run, sealing.config_digest, "")
        self._committed = 0  # the last round that the relay called over for good
        self._offered: dict[str, str] = {}  # "round peer" -> digest of a hosted peer's plain offer
        self._heard: dict[int, bytes] = {}  # sender -> digest of its plain offer in this request
        self._digested: tuple[object, bytes] = (None, b"")

    def begin(self, request: Request) -> None:
        """Get ready for the letters of an request.

        Raises
        ------
        KeysError
            A file of keys is missing or wrong.
        SealError
            It goes back to a round that the relay had said to be over for good: letters of that
            round are never accepted again.
        """
        self._scope = Scope(self._run, self._sealing.config_digest, request.attempt)
        self._heard = {}
        if not self._sealing.keys:
            return
        self._own, self._trust = self._sealing.read()  # again: the operator may have changed it
        self._recall()
        first = request.round + 1 if request.stage == "start" else request.round
        if first <= self._committed:
            raise SealError(
                f'run "{self._run}" has committed round {self._committed} here and does not go '
                f"back to round {request.round}: begin again under another name"
            )
        if request.committed > self._committed:
            self._committed = request.committed
            self._offered = {
                key: digest
                for key, digest in self._offered.items()
                if int(key.partition(" ")[0]) > request.committed
            }
            self._remember()

    def close(self, letter: PeerMessage, to: Collection[int]) -> PeerMessage | None:
        """Make a letter ready to leave; None if nobody of `to` is trusted."""
        assert isinstance(letter.payload, bytes)
        if not self._sealing.keys:
            if self._audit:
                self._note(letter, sorted(to), self._digest(letter.payload), "sent")
            return letter
        trusted = {peer: self._trust[peer].keys for peer in sorted(to) if peer in self._trust}
        about = b""
        if letter.kind == "answer":
            assert letter.recipient is not None
            about = self._heard[letter.recipient]
        else:
            offered = digest_of(letter.payload).hex()
            self._offered[f"{letter.round} {letter.sender}"] = offered
            self._remember()
        if not trusted:
            return None
        sealed, digest = seal(letter, self._scope, self._own[letter.sender], trusted, about)
        self._note(sealed, list(trusted), digest, "sent")
        return sealed

    def open(self, letter: PeerMessage, most: int) -> bytes:
        """Check a letter and read it.

        Parameters
        ----------
        most : bytes that it may have at most.

        Raises
        ------
        SealError
            It is not from a trusted peer to one of this node, of this run and round, unaltered;
            or it is plain where letters are sealed, or the reverse.
        """
        if not isinstance(letter.payload, bytes):
            raise SealError(f"is {type(letter.payload).__name__}, not bytes")
        size = len(letter.payload) - (TAG if letter.keys else 0)
        if size > most:
            raise SealError(f"has {size} bytes, more than the {most} a letter may have")
        if not self._sealing.keys:
            if letter.keys:
                raise SealError("is sealed, and this node has no keys")
            return letter.payload
        if not letter.keys:
            raise SealError("is not sealed")
        if letter.sender not in self._trust:
            raise SealError("is from a peer that is not in the trust file")
        to = letter.recipient
        reader = next((peer for peer in self._peers if peer in letter.keys), self._peers[0])
        if to is not None and to in self._own:
            reader = to
        about = b"" if to is None else bytes.fromhex(self._offered.get(f"{letter.round} {to}", ""))
        plain = unseal(
            letter,
            self._scope,
            reader,
            self._own[reader],
            self._trust[letter.sender].keys,
            self._digest(letter.payload),
            about,
        )
        if letter.kind == "offer":
            self._heard[letter.sender] = digest_of(plain)
        return plain

    def received(self, letter: PeerMessage, verdict: str) -> None:
        """Write down what became of a letter that came: "accepted", or "refused: it ..."."""
        if self._audit:
            payload = letter.payload if isinstance(letter.payload, bytes) else b""
            to = self._peers if letter.recipient is None else (letter.recipient,)
            self._note(letter, to, self._digest(payload), verdict)

    def _note(self, letter: PeerMessage, to: Sequence[int], digest: bytes, verdict: str) -> None:
        if self._audit:
            names = {peer: entry.name for peer, entry in self._trust.items()}
            self._audit.write(letter, to, digest, verdict, attempt=self._scope.attempt, names=names)

    def _digest(self, payload: bytes) -> bytes:
        """The digest of a payload; that of the last one is at hand."""
        if self._digested[0] is not payload:
            self._digested = payload, digest_of(payload)
        return self._digested[1]

    def _recall(self) -> None:
        try:
            memory: dict[str, Any] = json.loads(self._memory.read_text(encoding="utf-8"))
        except FileNotFoundError:
            memory = {"committed": 0, "offered": {}}
        self._committed, self._offered = memory["committed"], memory["offered"]

    def _remember(self) -> None:
        memory = {"committed": self._committed, "offered": self._offered}
        atomic.write(self._memory, json.dumps(memory))
