"""The letters of one request: opened where its edges bring them here, else refused and noted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from app.node.cohort import Foreign
from app.security.mailroom import Mailroom
from app.security.seal import SealError
from app.wire.payload import PayloadError, decode, largest
from app.wire.quantise import Layout, Precision
from strategies.protocol import Kind, PeerMessage, Request


class Inbox:
    """What came with an request.

    Parameters
    ----------
    peers : hosted by the node.
    mailroom : has begun the request.

    Attributes
    ----------
    refused : a line for each letter that was refused so far.
    """

    def __init__(
        self, request: Request, peers: Sequence[int], mailroom: Mailroom, precision: Precision
    ) -> None:
        self._request, self._peers = request, peers
        self._mailroom, self._precision = mailroom, precision
        self._unread = list(request.letters)
        self.refused: list[str] = []

    def open(self, kind: Kind, layout: Layout) -> Foreign:
        """Tensors of the letters of one kind."""
        due = self._due(kind)
        opened: dict[tuple[int, int], dict[str, Tensor]] = {}
        came = [letter for letter in self._unread if letter.kind == kind]
        self._unread = [letter for letter in self._unread if letter.kind != kind]
        for letter in came:
            ends = letter.sender, -1 if letter.recipient is None else letter.recipient
            try:
                if ends not in due:
                    raise PayloadError("was not to come here")
                if ends in opened:
                    raise PayloadError("came a second time")
                plain = self._mailroom.open(letter, largest(layout, self._precision))
                opened[ends] = decode(plain, layout, self._precision)
                self._mailroom.received(letter, "accepted")
            except (PayloadError, SealError) as error:
                self._refuse(letter, str(error))
        return opened

    def refuse_rest(self) -> None:
        """Refuse what nobody opened."""
        for letter in self._unread:
            self._refuse(letter, "was not to come here")
        self._unread = []

    def _refuse(self, letter: PeerMessage, why: str) -> None:
        self._mailroom.received(letter, f"refused: it {why}")
        self.refused.append(
            f"round {self._request.round}: peers {list(self._peers)} refused the {letter.kind} of "
            f"peer {letter.sender}: it {why}"
        )

    def _due(self, kind: Kind) -> set[tuple[int, int]]:
        """(sender, recipient) of the letters that the request's edges bring from elsewhere."""
        edges = self._request.edges
        here = np.isin(edges, self._peers)
        if kind == "offer":
            return {(k, -1) for k in edges[here[:, 1] & ~here[:, 0], 0].tolist()}
        asked = edges[here[:, 0] & ~here[:, 1] & self._request.asked]
        return {(k, i) for i, k in asked.tolist()}
