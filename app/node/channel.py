"""Channel of a node: writes the letters of its peers, and reads those that a request brings."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, get_args

import numpy as np
from torch import Tensor

from coterie.app.wire.payload import PayloadError, Readable, RemoteLetters
from coterie.strategies.protocol import Kind, PeerMessage, Request

UNEXPECTED = "was not expected: no edge of this round delivers it to this node"


class Channel:
    """Writer and reader of the letters of a node; offers are at most `max_age` rounds old."""

    overhead = 0
    """Bytes by which a letter is longer than its content."""
    refusals: ClassVar[tuple[type[Exception], ...]] = (PayloadError,)
    """Errors that refuse one letter."""

    def __init__(self, peers: Sequence[int], max_age: int = 0) -> None:
        self._peers, self._max_age = tuple(peers), max_age
        self._newest: dict[str, int] = {}  # sender -> round of its newest accepted offer

    def begin(self, request: Request) -> None:
        """Prepare for the letters of a request."""
        self._request = replace(request, letters=())
        self._unread: dict[Kind, list[PeerMessage]] = {kind: [] for kind in get_args(Kind)}
        for letter in request.letters:
            self._unread[letter.kind].append(letter)
        # sender -> round of its offer, as the relay states it
        self.written = {letter.sender: letter.round for letter in self._unread["offer"]}
        if isinstance(request.letters, list):
            request.letters.clear()
        self._refused: list[str] = []

    def claims(self) -> tuple[bytes, ...]:
        """Return a signature per hosted peer that this is its node; none without keys."""
        return ()

    def write(self, letter: PeerMessage, to: Collection[int]) -> PeerMessage | None:
        """Return a letter as it leaves for the peers in `to`; None if none of them may read it."""
        return letter

    def read(self, kind: Kind, form: Readable) -> RemoteLetters:
        """Read the letters of one kind that came with the request, and return the valid ones."""
        due, result = self._due(kind), RemoteLetters()
        letters = self._unread.pop(kind, [])[::-1]
        while letters:
            letter = letters.pop()
            ends = letter.sender, letter.recipient
            try:
                if ends not in due:
                    raise PayloadError(UNEXPECTED)
                if ends in result:
                    raise PayloadError("was received before")
                content = self._open(letter, form.max_bytes)
                self._check_age(letter)
                result[ends] = _decoded(form, content, letter.sender)
            except self.refusals as error:
                self._refuse(letter, str(error))
            else:
                self._accept(letter, content)
        return result

    def finish(self) -> tuple[str, ...]:
        """Refuse unread letters; return a line per letter that was refused since `begin`."""
        for letters in self._unread.values():
            for letter in letters:
                self._refuse(letter, UNEXPECTED)
        return tuple(self._refused)

    def _open(self, letter: PeerMessage, max_bytes: int) -> bytes:
        payload = bytes_of(letter, max_bytes)
        if letter.keys:
            raise PayloadError("is sealed, and this node has no keys")
        return payload

    def _accept(self, letter: PeerMessage, content: bytes) -> None:
        if letter.kind == "offer" and self._max_age:
            self._newest[str(letter.sender)] = letter.round

    def _refuse(self, letter: PeerMessage, why: str) -> None:
        self._refused.append(
            f"round {self._request.round}: peers {list(self._peers)} refused the {letter.kind} of "
            f"peer {letter.sender}: it {why}"
        )

    def _check_age(self, letter: PeerMessage) -> None:
        t = 0 if letter.kind == "statistics" else self._request.round
        if not t - (self._max_age if letter.kind == "offer" else 0) <= letter.round <= t:
            raise PayloadError(f"is of round {letter.round}")
        if letter.kind == "offer" and letter.round < self._newest.get(str(letter.sender), 0):
            raise PayloadError(f"is of round {letter.round}, older than one received before")

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


def bytes_of(letter: PeerMessage, max_bytes: int, overhead: int = 0) -> bytes:
    """Return the payload of a letter, of at most `max_bytes` and the overhead of encryption."""
    if not isinstance(letter.payload, bytes):
        raise PayloadError(f"is {type(letter.payload).__name__}, not bytes")
    if (size := len(letter.payload) - overhead) > max_bytes:
        raise PayloadError(f"has {size} bytes, more than the {max_bytes} a letter may have")
    return letter.payload


def _decoded(form: Readable, payload: bytes, sender: int) -> Mapping[str, Tensor]:
    """Decode a payload; whatever error a decoder raises refuses this letter, and no more."""
    try:
        return form.decode(payload, sender)
    except PayloadError:
        raise
    except Exception as error:
        raise PayloadError(f"cannot be decoded: {type(error).__name__}: {error}") from error
