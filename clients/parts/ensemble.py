"""Store of other peers' models for prediction: K slots per peer, for the largest weights.

Legend: p = peers of this node, k = slots, m = members (the peer's own model first), n = all peers,
e = letters, d = parameters.
"""

from __future__ import annotations

import numpy as np

from coterie.clients.hints import Bools, Floats, Ints, Tensor

EMPTY = -1
"""Author of an empty slot."""
_NEGLIGIBLE = 1e-12  # members of at most this weight are not evaluated


def place(
    authors_pk: Ints, w_pn: Floats, peer_e: Ints, senders_e: Ints
) -> dict[tuple[int, int], int]:
    """Assign received models to slots, (peer, slot) -> letter, and update `authors_pk`.

    A model replaces the older one of its author, else fills an empty slot, else replaces the model
    of the smallest weight if its own is larger. `peer_e` are the rows of the recipients.
    """
    placed: dict[tuple[int, int], int] = {}
    for e, (p, author) in enumerate(zip(peer_e.tolist(), senders_e.tolist(), strict=True)):
        w_k = np.where(authors_pk[p] == EMPTY, -1.0, w_pn[p, authors_pk[p]])
        w_k[authors_pk[p] == author] = -2.0
        slot = int(w_k.argmin())
        if w_k[slot] < w_pn[p, author]:
            authors_pk[p, slot] = author
            placed[p, slot] = e
    return placed


def known(authors_pk: Ints, peers: Ints, n: int) -> Bools:
    """Return a mask (P, n) of the models that each peer stores, its own included."""
    mask_pn = np.zeros((len(peers), n), dtype=np.bool_)
    mask_pn[np.arange(len(peers)), peers] = True
    p, k = np.nonzero(authors_pk != EMPTY)
    mask_pn[p, authors_pk[p, k]] = True
    return mask_pn


def mixture(
    x_pd: Tensor, members_pkd: Tensor, authors_pk: Ints, w_pn: Floats, peers: Ints
) -> tuple[Floats, Tensor, Ints]:
    """Return weights (P, M) and models (P, M, d) of each peer's mixture, by descending weight.

    The last array (P, M) has their places among own model and slots. The weights `w_pn` must be 0
    for models that a peer does not store.
    """
    rows_p1 = np.arange(len(peers))[:, None]
    all_pm = np.concatenate([peers[:, None], authors_pk], axis=1)
    w_pm = np.where(all_pm == EMPTY, 0.0, w_pn[rows_p1, all_pm])
    w_pm[w_pm <= _NEGLIGIBLE] = 0.0  # same result for any assignment of peers to nodes
    order_pm = np.argsort(-w_pm, axis=1, kind="stable")
    used = int((w_pm > 0).sum(axis=1).max())
    at = rows_p1, order_pm[:, :used]
    x_pmd = x_pd.new_empty((*w_pm.shape, x_pd.shape[1]))
    x_pmd[:, 0], x_pmd[:, 1:] = x_pd, members_pkd
    chosen_pmd = x_pmd[at]
    chosen_pmd[w_pm[at] == 0] = 0.0  # an unused model may be nan, and 0 x nan is nan
    return w_pm[at], chosen_pmd, at[1]
