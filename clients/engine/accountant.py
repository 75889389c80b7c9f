"""Rényi differential privacy of what peers compute on their examples, by Google's dp-accounting.

Neighbouring data sets differ in one example in the place of another: the number of examples is
public. A sum of gradients of norm at most C then moves by at most 2 C, so noise of deviation s C is
a Gaussian mechanism of multiplier s / 2. A minibatch drawn uniformly without replacement is
amplified by sampling (Wang, Balle, Kasiviswanathan, AISTATS 2019, theorem 27); everything else
counts as if it had seen all examples. Legend: p = peers of this node, a = orders.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from clients.privacy import MAX_NOISE, MIN_NOISE

Floats = npt.NDArray[np.float64]
ORDERS = (
    *(1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0, 14.0, 16.0),
    *(20.0, 24.0, 28.0, 32.0, 40.0, 48.0, 64.0),
)
"""Orders of the Rényi divergence that are kept; epsilon is the best over them."""


@cache
def query(examples: int, drawn: int, noise: float, times: int) -> Floats:
    """Rényi divergences (A,) of gradients on one minibatch.

    Parameters
    ----------
    examples : of the peer.
    drawn : examples of the minibatch, a uniform draw; all of them for anything else.
    noise : deviation in multiples of the clipping norm, of each gradient; where the arithmetic is
        not sound, everything is infinite.
    times : gradients on that same minibatch, each with noise of its own.
    """
    if not MIN_NOISE <= noise <= MAX_NOISE:
        return np.full(len(ORDERS), np.inf)
    from dp_accounting import (  # here: it takes a second, which runs without privacy do not have
        GaussianDpEvent,
        NeighboringRelation,
        SampledWithoutReplacementDpEvent,
    )
    from dp_accounting.rdp import RdpAccountant

    event = GaussianDpEvent(noise / 2 / times**0.5)
    accountant = RdpAccountant(ORDERS, NeighboringRelation.REPLACE_ONE)
    sampled = SampledWithoutReplacementDpEvent(examples, drawn, event)
    accountant.compose(event if drawn >= examples else sampled)
    found: Floats = _closed(accountant.rdp)
    found.setflags(write=False)
    return found


def another(examples: int, drawn: int, noise: float, before: int) -> Floats:
    """Rényi divergences (A,) that one more gradient on a minibatch adds to `before` earlier ones.

    Never negative: the bounds of `query` are rounded, and rounding must not pay anything back.
    """
    after = query(examples, drawn, noise, before + 1)
    if not before or not np.isfinite(after).all():
        return after
    return np.maximum(after - query(examples, drawn, noise, before), 0.0)


def epsilon(rdp_pa: Floats, delta: float) -> Floats:
    """(P,) epsilon at `delta` of what was composed; 0 of nothing."""
    from dp_accounting.rdp import compute_epsilon

    return np.array(
        [compute_epsilon(ORDERS, row, delta)[0] if row.any() else 0.0 for row in _closed(rdp_pa)]
    )


def _closed(rdp: Floats) -> Floats:
    """Divergences, of which one that is no number of at least 0 is infinite: it proves nothing."""
    proven: Floats = np.where(rdp >= 0, rdp, np.inf)
    return proven
