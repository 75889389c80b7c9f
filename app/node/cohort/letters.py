"""Convert stacks of offers and answers to letters, one per peer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from coterie.app.node.cohort.offers import Offers
from coterie.app.wire.payload import LetterFormat
from coterie.clients.letters import Bools, Ints, Letters
from coterie.strategies.protocol import PeerMessage


def offer_letters(
    offers: Offers, peers: Ints, form: LetterFormat, since: int
) -> Iterator[PeerMessage]:
    """Yield the offers of the rounds from `since` on as letters.

    Parameters
    ----------
    offers : Offers
        Offers of hosted peers.
    peers : ndarray of int
        All hosted peers.
    form : LetterFormat
        Format of an offer.
    since : int
        First round.
    """
    for row, (local, t) in enumerate(zip(offers.rows, offers.written.tolist(), strict=True)):
        if t >= since:
            k, payload = int(peers[local]), form.encode(offers.stacks, row)
            yield PeerMessage("offer", k, None, t, form.nbytes, payload)


def answer_letters(
    sent: Letters, away_n: Bools, form: LetterFormat, t: int
) -> Iterator[PeerMessage]:
    """Yield the answers of round `t` to the peers in a mask (n,)."""
    for row in np.flatnonzero(away_n[sent.recipients]).tolist():
        k, i = int(sent.senders[row]), int(sent.recipients[row])
        yield PeerMessage("answer", k, i, t, form.nbytes, form.encode(sent.tensors, row))
