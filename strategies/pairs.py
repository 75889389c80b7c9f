"""Sampled pairs that answer each other, and requested edges without answers (CoBo, algorithm 1).

Paper: Hashemi, He, Jaggi, "CoBo: Collaborative Learning via Bilevel Optimization", section 3.
Symbols: t = the round, n = peers, p_t = `probability_at(t)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from coterie.strategies.exchange_plan import ExchangePlan, Marks
from coterie.strategies.protocol import Edges

Sampling = Literal["constant", "inverse-time", "mixed", "full", "official"]

_PURPOSE = 0xC0B0
_UPDATES = 100
"""Recommended number of updates per pair: with fewer, weights stayed near their start."""
_EACH = 1024
"""Maximum number of awake peers with an independent draw per pair, see `_skipping`."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Pairs(ExchangePlan):
    """Pairs sampled with probability p_t, and the edges requested by recipients.

    A sampled pair exchanges models both ways and answers; a requested edge only delivers.
    """

    sampling: Sampling = "full"
    """Schedule of p_t, see `probability_at`."""
    probability: float = 0.0
    """p_t of the constant schedule and of the first rounds of "mixed"; 0 for 1/n."""

    is_everyone: ClassVar[bool] = True
    wanted_by: ClassVar[Literal[0, 1] | None] = 1

    @property
    def is_constant(self) -> bool:
        return self.sampling == "full" and super().is_constant

    def edges(self, t: int, wants: Edges) -> tuple[Edges, Marks]:
        sampled, requested = self._sampled(t), self._allowed(t, wants, asked=False)
        edges = self._sorted(np.concatenate([sampled, requested]))
        return edges, np.isin(self._number(edges), self._number(sampled))

    def probability_at(self, t: int) -> float:
        """Return p_t, the probability of each pair in round `t`."""
        n = self.peers
        constant = self.probability or 1 / n
        match self.sampling:
            case "constant":
                p = constant
            case "inverse-time":
                p = 1 / t
            case "mixed":
                p = constant if t <= 0.002 * self.rounds else 1 / t
            case "full":
                p = 1.0
            case "official":  # the authors' code
                p = 2 / n if t <= 800 else t**-0.5
            case unknown:
                raise ValueError(f"unknown sampling schedule {unknown!r}")
        return min(1.0, p)

    def cautions(self) -> tuple[str, ...]:
        """Warn if the schedule samples pairs too rarely to learn their weights."""
        updates = sum(self.probability_at(t) for t in range(1, self.rounds + 1))
        if updates >= min(_UPDATES, self.rounds):  # no schedule samples more than every round
            return ()
        return (
            f"a pair's weight is updated {updates:.0f} times in {self.rounds} rounds, but needs "
            f'about {_UPDATES} updates: run more rounds, or set sampling = "full"',
        )

    def _sampled(self, t: int) -> Edges:
        """Sample pairs of awake peers in both directions; the draws ignore the topology."""
        awake, p = np.flatnonzero(self.schedule.awake(t)), self.probability_at(t)
        rng = np.random.default_rng((self.seed, t, _PURPOSE))
        one, other = awake[(_each if len(awake) <= _EACH else _skipping)(len(awake), p, rng)]
        allowed = self._graph(t)[one, other]
        pairs = np.stack([one[allowed], other[allowed]], axis=1)
        return np.concatenate([pairs, pairs[:, ::-1]])


def _each(peers: int, p: float, rng: np.random.Generator) -> Edges:
    """Sample unordered pairs (2, E) with an independent draw per pair."""
    one, other = np.triu_indices(peers, 1)
    drawn = rng.random(len(one)) < p
    return np.stack([one[drawn], other[drawn]])


def _skipping(peers: int, p: float, rng: np.random.Generator) -> Edges:
    """Sample from the distribution of `_each`, in time and memory proportional to the result."""
    # Distances between sampled pairs are geometrically distributed (Batagelj and Brandes, 2005).
    pairs, chunks, last = peers * (peers - 1) // 2, [np.zeros(0, dtype=np.int64)], -1
    while last < pairs:
        expected = (pairs - last) * p
        chunks.append(last + rng.geometric(p, size=int(expected + 4 * expected**0.5) + 1).cumsum())
        last = int(chunks[-1][-1])
    numbers = np.concatenate(chunks)
    numbers = numbers[numbers < pairs]
    other = ((1 + np.sqrt(1 + 8 * numbers.astype(np.float64))) / 2).astype(np.int64)
    other -= other * (other - 1) // 2 > numbers  # the square root may be rounded up
    return np.stack([numbers - other * (other - 1) // 2, other])
