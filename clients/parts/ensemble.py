"""A peer's memory of other peers' models, for prediction: K places, the heaviest models stay.

Legend: p = peers of this node, k = places, m = members (own model first), n = all peers,
e = letters, d = parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from coterie.clients.letters import Bools, Ints, Letters
from coterie.clients.rule import Floats

if TYPE_CHECKING:
    from torch import Tensor

NOBODY = -1
_NEGLIGIBLE = 1e-12  # members of at most this weight are not evaluated


def kept(
    authors_pk: Ints, w_pn: Floats, own_e: Ints, letters: Letters
) -> dict[tuple[int, int], int]:
    """Which letter goes to which place, (peer, place) -> letter.

    A model replaces the older one of its author, else an empty place, else the lightest model
    where that weighs less. `authors_pk` is brought up to date.

    Parameters
    ----------
    authors_pk : whose model lies in each place, or `NOBODY`.
    w_pn : weight that each peer gives every peer.
    own_e : local index of each letter's recipient.
    """
    placed: dict[tuple[int, int], int] = {}
    for e, (p, author) in enumerate(zip(own_e.tolist(), letters.senders.tolist(), strict=True)):
        w_k = np.where(authors_pk[p] == NOBODY, -1.0, w_pn[p, authors_pk[p]])
        w_k[authors_pk[p] == author] = -2.0
        place = int(w_k.argmin())
        if w_k[place] < w_pn[p, author]:
            authors_pk[p, place] = author
            placed[p, place] = e
    return placed


def known(authors_pk: Ints, own_p: Ints, n: int) -> Bools:
    """(P, n) whose models each peer has, its own included."""
    mask_pn = np.zeros((len(own_p), n), dtype=np.bool_)
    mask_pn[np.arange(len(own_p)), own_p] = True
    p, k = np.nonzero(authors_pk != NOBODY)
    mask_pn[p, authors_pk[p, k]] = True
    return mask_pn


def mixture(
    x_pd: Tensor, members_pkd: Tensor, authors_pk: Ints, w_pn: Floats, own_p: Ints
) -> tuple[Floats, Tensor]:
    """Weights (P, M) and models (P, M, d) of each peer's mixture, heaviest first.

    Parameters
    ----------
    w_pn : weights, 0 for models that a peer does not have.
    own_p : ids of the hosted peers.
    """
    peers = np.arange(len(own_p))[:, None]
    all_pm = np.concatenate([own_p[:, None], authors_pk], axis=1)
    w_pm = np.where(all_pm == NOBODY, 0.0, w_pn[peers, all_pm])
    w_pm[w_pm <= _NEGLIGIBLE] = 0.0  # whatever other peers of the node have
    order_pm = np.argsort(-w_pm, axis=1, kind="stable")
    used = int((w_pm > 0).sum(axis=1).max())
    at = peers, order_pm[:, :used]
    x_pmd = x_pd.new_empty((*w_pm.shape, x_pd.shape[1]))
    x_pmd[:, 0], x_pmd[:, 1:] = x_pd, members_pkd
    chosen_pmd = x_pmd[at]
    chosen_pmd[w_pm[at] == 0] = 0.0  # a model that is not used may be none: 0 x nan is nan
    return w_pm[at], chosen_pmd
