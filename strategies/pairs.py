"""Sampled pairs ask each other, the rest is what the peers want (CoBo, Algorithm 1).

Paper: Hashemi, He, Jaggi, "CoBo: Collaborative Learning via Bilevel Optimization", section 3.
Symbols: t = the round, n = peers, p_t = `probability_at(t)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from coterie.strategies.brokering import Brokering, Marks
from coterie.strategies.protocol import Edges

Sampling = Literal["constant", "inverse-time", "mixed", "full", "official"]

_PURPOSE = 0xC0B0
_UPDATES = 100
"""Times that a pair should be sampled: with fewer, weights were seen to stay near their start."""
_EACH = 1024
"""Peers awake up to which each pair has a draw of its own."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Pairs(Brokering):
    """Each allowed pair is sampled with probability p_t; wants inside the topology come on top.

    A sampled pair exchanges models both ways and answers; a wanted edge only delivers.

    Attributes
    ----------
    sampling : schedule of p_t, see `probability_at`.
    probability : p_t of the constant schedule and of the first rounds of "mixed"; 0: 1/n.
    """

    sampling: Sampling = "full"
    probability: float = 0.0

    wanted_by: ClassVar[Literal[0, 1] | None] = 1

    def edges(self, t: int, wants: Edges) -> tuple[Edges, Marks]:
        """The sampled pairs of round `t` (asked) and the wants (not asked)."""
        sampled, wanted = self._sampled(t), self._allowed(t, wants, asked=False)
        edges = self._sorted(np.concatenate([sampled, wanted]))
        return edges, np.isin(self._number(edges), self._number(sampled))

    def probability_at(self, t: int) -> float:
        """Compute p_t, the chance of each pair in round `t`.

        Raises
        ------
        ValueError
            The schedule is unknown.
        """
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
        """Say when the schedule samples a pair too seldom to learn whether it fits."""
        updates = sum(self.probability_at(t) for t in range(1, self.rounds + 1))
        if updates >= min(_UPDATES, self.rounds):  # no schedule samples more than every round
            return ()
        return (
            f"a pair's weight is updated {updates:.0f} times in {self.rounds} rounds, expect to "
            f'need about {_UPDATES}: take more rounds, or sampling = "full"',
        )

    def _sampled(self, t: int) -> Edges:
        """The sampled pairs of peers that are awake, whatever the topology is, both ways."""
        awake, p = np.flatnonzero(self.schedule.awake(t)), self.probability_at(t)
        rng = np.random.default_rng((self.seed, t, _PURPOSE))
        one, other = awake[(_each if len(awake) <= _EACH else _skipping)(len(awake), p, rng)]
        met = self._graph(t)[one, other]
        pairs = np.stack([one[met], other[met]], axis=1)
        return np.concatenate([pairs, pairs[:, ::-1]])


def _each(peers: int, p: float, rng: np.random.Generator) -> Edges:
    """(2, E) the sampled ones of all unordered pairs, by a draw for each pair."""
    one, other = np.triu_indices(peers, 1)
    met = rng.random(len(one)) < p
    return np.stack([one[met], other[met]])


def _skipping(peers: int, p: float, rng: np.random.Generator) -> Edges:
    """The same in law, in time and memory proportional to the sampled pairs.

    Pairs have numbers, (1, 0), (2, 0), (2, 1), (3, 0), ...; how many are passed over before the
    next sampled one has a geometric distribution (Batagelj and Brandes, 2005).
    """
    pairs, found, last = peers * (peers - 1) // 2, [np.zeros(0, dtype=np.int64)], -1
    while last < pairs:
        expected = (pairs - last) * p
        found.append(last + rng.geometric(p, size=int(expected + 4 * expected**0.5) + 1).cumsum())
        last = int(found[-1][-1])
    numbers = np.concatenate(found)
    numbers = numbers[numbers < pairs]
    other = ((1 + np.sqrt(1 + 8 * numbers.astype(np.float64))) / 2).astype(np.int64)
    other -= other * (other - 1) // 2 > numbers  # rounded up
    return np.stack([numbers - other * (other - 1) // 2, other])
