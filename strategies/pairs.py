"""Sampled pairs ask each other, the rest is what the peers want (CoBo, Algorithm 1).

Paper: Hashemi, He, Jaggi, "CoBo: Collaborative Learning via Bilevel Optimization", section 3.
Symbols: t = the round, n = peers, p_t = `probability(t)`.
"""

from __future__ import annotations

from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from strategies.flower.strategy import RelayStrategy
from strategies.protocol import Edges

_PURPOSE = 0xC0B0
_UPDATES = 100
"""Times that a pair should be sampled: with fewer, weights were seen to stay near their start."""


class _Options(Protocol):
    @property
    def sampling(self) -> str: ...
    @property
    def probability(self) -> float: ...


class Pairs(RelayStrategy):
    """Each allowed pair is sampled with probability p_t; wants inside the topology come on top.

    A sampled pair exchanges models both ways and answers; a wanted edge only delivers.
    Reads `options.sampling` and `options.probability` (0: 1/n).
    """

    def edges(self, t: int, wants: Edges) -> tuple[Edges, npt.NDArray[np.bool_]]:
        """The sampled pairs of round `t` (asked) and the wants (not asked)."""
        sampled = self._sampled(t)
        return self._asking(sampled | self._allowed(wants), asked=sampled)

    def probability(self, t: int) -> float:
        """Compute p_t, the chance of each pair in round `t`.

        Raises
        ------
        ValueError
            The schedule is unknown.
        """
        options = cast(_Options, self.options)
        n = self.peers
        constant = options.probability or 1 / n
        match options.sampling:
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
        updates = sum(self.probability(t) for t in range(1, self.rounds + 1))
        if updates >= min(_UPDATES, self.rounds):  # no schedule samples more than every round
            return ()
        return (
            f"a pair's weight is updated {updates:.0f} times in {self.rounds} rounds, expect to "
            f'need about {_UPDATES}: take more rounds, or sampling = "full"',
        )

    def _sampled(self, t: int) -> npt.NDArray[np.bool_]:
        """One draw for each unordered pair, whatever the topology is."""
        upper = np.triu_indices(self.peers, 1)
        draws = np.random.default_rng((self.seed, t, _PURPOSE)).random(len(upper[0]))
        sampled = np.zeros((self.peers, self.peers), dtype=np.bool_)
        sampled[upper] = draws < self.probability(t)
        return (sampled | sampled.T) & self.topology
