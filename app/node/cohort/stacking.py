"""Stack the letters between the peers of a node and the letters from other nodes.

Legend: s = rows of a stack, e = letters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from coterie.app.node.cohort.offers import UNWRITTEN, Offers
from coterie.app.wire.payload import Foreign, LetterFormat, Readable
from coterie.clients.letters import Bools, Ints, Letters, no_letters, nobody
from coterie.strategies.protocol import Kind, no_edges

Mail = Callable[[Kind, Readable], Foreign]
"""Reads the letters of one kind from other nodes, in a given format."""


def no_mail(kind: Kind, form: Readable) -> Foreign:
    """Return no letters: every peer is on this node."""
    return {}


def all_offers(
    shown: Offers, mine: Ints, foreign: Foreign, t: int, ages: Mapping[int, int]
) -> Letters:
    """Stack the offers of hosted peers and those from other nodes, without edges.

    Parameters
    ----------
    shown : Offers
        Offers of hosted peers.
    mine : ndarray of int, (S,)
        Their peers.
    foreign : Foreign
        Offers from other nodes; they are removed.
    t : int
        Round.
    ages : Mapping of int to int
        Sender -> age in rounds of foreign offers from earlier rounds.
    """
    authors = np.array(sorted({*mine.tolist(), *(k for k, _ in foreign)}), dtype=np.int64)
    stack, at = dict(shown.sound[0]), np.searchsorted(authors, mine)
    ages_s = np.array([ages.get(k, 0) for k in authors.tolist()], dtype=np.int64)
    ages_s[at] = t - shown.written
    if foreign:
        rows = torch.from_numpy(at)
        for name, value in shown.sound[0].items():
            stack[name] = value.new_empty((len(authors), *value.shape[1:]))
        for k, recipient in list(foreign):  # a letter's memory is free once it is copied
            tensors = foreign.pop((k, recipient))
            row = int(np.searchsorted(authors, k))
            for name, value in shown.sound[0].items():
                stack[name][row] = tensors[name].to(value.device)
        for name, value in shown.sound[0].items():
            stack[name][rows.to(value.device)] = value
    expired = mine[shown.written == UNWRITTEN]
    senders, recipients = no_edges().T
    return Letters(senders, recipients, nobody(), authors, stack, ages_s, expired)


def heard_by(peers: Ints, received: Letters) -> dict[int, Ints]:
    """Return the senders that each peer has received a letter from, and itself, ascending."""
    ends = np.stack([received.recipients, received.senders], axis=1)
    ends = np.concatenate([ends[np.isin(ends[:, 0], peers)], np.stack([peers, peers], axis=1)])
    recipients, senders = np.unique(ends, axis=0).T
    first = np.searchsorted(recipients, peers)
    return dict(zip(peers.tolist(), np.split(senders, first[1:]), strict=len(peers) > 0))


def all_answers(
    sent: Letters, here: Bools, foreign: Foreign, form: LetterFormat, device: torch.device
) -> Letters:
    """Return the answers to hosted peers, from this node and from other nodes.

    Parameters
    ----------
    sent : Letters
        Answers of hosted peers.
    here : ndarray of bool, (E,)
        Answers whose recipient is hosted here.
    foreign : Foreign
        Answers from other nodes.
    form : LetterFormat
        Format of an answer.
    device : torch.device
        Device of the result.
    """
    inside = np.flatnonzero(here)
    # If every answer stays on the node, return the stack itself instead of a copy.
    at = inside if len(inside) < len(sent) else slice(None)
    ends = np.concatenate(
        [
            np.stack([sent.senders[inside], sent.recipients[inside]], axis=1),
            np.array(list(foreign), dtype=np.int64).reshape(-1, 2),
        ]
    )
    if not len(ends):
        return no_letters()
    order = np.lexsort((ends[:, 0], ends[:, 1]))
    stack: dict[str, Tensor] = {}
    for name in form.layout:
        parts = [sent[name][at]] if len(inside) else []
        parts += [tensors[name].to(device)[None] for tensors in foreign.values()]
        stack[name] = parts[0] if len(parts) == 1 else torch.cat(parts)
    senders, recipients = ends[order].T
    return Letters(senders, recipients, order, ends[:, 0], stack)
