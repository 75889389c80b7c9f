"""Rényi differential privacy of the peers' gradients, by Google's dp-accounting.

In neighbouring data sets one example is replaced by another: the number of examples is public. A
sum of gradients of norm at most C then moves by at most 2 C, so noise of deviation s C is a
Gaussian mechanism of multiplier s / 2. A minibatch drawn uniformly without replacement is amplified
by sampling (Wang, Balle, Kasiviswanathan, AISTATS 2019, theorem 27); all other queries are charged
as if they used all examples. Legend: p = peers of this node, a = orders.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from coterie.clients.letters import Floats
from coterie.clients.privacy import MAX_NOISE, MIN_NOISE

ORDERS = (
    *(1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 10.0, 12.0, 14.0, 16.0),
    *(20.0, 24.0, 28.0, 32.0, 40.0, 48.0, 64.0),
)
"""Orders of the Rényi divergence; epsilon is the minimum over them."""
_ROUNDING = 1e-9


@cache
def query(examples: int, drawn: int, noise: float, times: int) -> Floats:
    """Return the Rényi divergences (A,) of gradients on one minibatch.

    `drawn` of the peer's `examples` are a uniformly drawn minibatch; all for other queries. `noise`
    is the standard deviation on each gradient, in multiples of the clipping norm; outside the range
    of sound arithmetic divergences are infinite. `times` gradients have independent noise.
    """
    if not MIN_NOISE <= noise <= MAX_NOISE:
        return np.full(len(ORDERS), np.inf)
    from dp_accounting import (  # a slow import (1 s), for private runs only
        GaussianDpEvent,
        NeighboringRelation,
        SampledWithoutReplacementDpEvent,
    )
    from dp_accounting.rdp import RdpAccountant

    event = GaussianDpEvent(noise / 2 / times**0.5)
    accountant = RdpAccountant(ORDERS, NeighboringRelation.REPLACE_ONE)
    sampled = SampledWithoutReplacementDpEvent(examples, drawn, event)
    accountant.compose(event if drawn >= examples else sampled)
    result: Floats = _closed(accountant.rdp)
    result.setflags(write=False)
    return result


def another(examples: int, drawn: int, noise: float, before: int) -> Floats:
    """Return the Rényi divergences (A,) that a further gradient adds to `before` earlier ones."""
    # Never negative: the bounds of `query` are rounded, and rounding must not reduce the cost.
    after = query(examples, drawn, noise, before + 1)
    if not before or not np.isfinite(after).all():
        return after
    return np.maximum(after - query(examples, drawn, noise, before), 0.0)


def epsilon(rdp_pa: Floats, delta: float) -> Floats:
    """Return epsilon (P,) at `delta` of composed divergences; 0 without any query.

    Divergences c a at all orders a are those of a Gaussian mechanism of multiplier 1 / sqrt(2 c),
    whose epsilon is exact (Balle and Wang, ICML 2018). With drawn minibatches it is the minimum
    over the orders: privacy loss distributions are not known to compose for sampling without
    replacement if an example is replaced.
    """
    return np.array([_epsilon(row, delta) if row.any() else 0.0 for row in _closed(rdp_pa)])


def _epsilon(rdp_a: Floats, delta: float) -> float:
    from dp_accounting import get_epsilon_gaussian
    from dp_accounting.rdp import compute_epsilon

    bound, c_a = float(compute_epsilon(ORDERS, rdp_a, delta)[0]), rdp_a / ORDERS
    if not np.isfinite(c_a).all() or np.ptp(c_a) > _ROUNDING * c_a.max():
        return bound
    return min(bound, float(get_epsilon_gaussian((2 * c_a.max()) ** -0.5, delta)))


def _closed(rdp: Floats) -> Floats:
    """Replace divergences that are negative or NaN by infinity: they prove nothing."""
    proven: Floats = np.where(rdp >= 0, rdp, np.inf)
    return proven
