"""Collaboration weights from the similarity of gradients (All-for-one, section 4).

The similarity ratio r_ik of peer k at peer i's model is estimated from gradients on estimation
batches: G (plain), or G', G'' on the two halves of a batch (debiased). Readings: estimates are
clipped to at most 1; where both gradients are 0 the ratio is 1, where only G_i is 0 it is 0; a
negative denominator gives no estimate, and the previous one is kept.

Legend: p = peers of this node, n = all peers, e = letters, d = parameters; n_k = samples of peer
k, whose gradient variance is taken as proportional to 1 / n_k (remark 1).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.clients.engine.streams import Purpose
from coterie.clients.hints import Buffers, Engine, Floats, Ints, Tensor
from coterie.clients.letters import Letters


@dataclass(frozen=True)
class Estimator:
    """Estimator of the similarity ratio, with a moving average over refreshes."""

    engine: Engine  # engine of the hosted peers
    batch_size: int  # examples per estimate
    memory: float  # weight of the previous estimates in the average; 0 for none
    debiased: bool  # use products across two halves of the batch instead of norms on all of it

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the gradients that an estimate needs."""
        return ("G'", "G''") if self.debiased else ("G",)

    def gradients(
        self, x_ed: Tensor, buffers: Buffers, round_: int, local_e: Ints
    ) -> dict[str, Tensor]:
        """Return the gradients, (E, d) each, at any models on the data of hosted peers (E,)."""
        batches = self.engine.batches(
            round_, Purpose.ESTIMATE, peers=local_e, steps=1, batch_size=self.batch_size,
            halves=self.debiased,
        )  # fmt: skip
        return {
            part: self.engine.gradients(x_ed, buffers, batch).values
            for part, batch in zip(self.parts, batches, strict=True)
        }

    def ratios(self, r_pn: Floats, local: dict[str, Tensor], answers: Letters) -> Floats:
        """Return the ratios (P, n) after a refresh; nan where never estimated.

        Peers that did not answer keep their previous ratio, `r_pn`. `local` has the gradients
        (P, d) of the hosted peers at their own models, `answers` those of the peers they asked.
        """
        if not len(answers):
            return r_pn
        inner, rows = self.engine.inner, np.searchsorted(self.engine.peers, answers.recipients)
        first, last = self.parts[0], self.parts[-1]
        squared_p = inner(local[first], local[last]).cpu().numpy()
        away_e, away2_e = (answers.each(part) - local[part][rows] for part in (first, last))
        ratio_e = ratio(inner(away_e, away2_e).cpu().numpy(), squared_p[rows])
        at, r_pn = (rows, answers.senders), r_pn.copy()
        mixed_e = self.memory * r_pn[at] + (1 - self.memory) * ratio_e
        mixed_e = np.where(np.isnan(r_pn[at]), ratio_e, mixed_e)
        r_pn[at] = np.where(np.isnan(ratio_e), r_pn[at], mixed_e)
        return r_pn


def ratio(apart: Floats, squared: Floats) -> Floats:
    """Compute the similarity ratio max(0, 1 - |G_k - G_i|^2 / |G_i|^2), at most 1.

    `apart` and `squared` are |G_k - G_i|^2 and |G_i|^2, or unbiased estimates. The ratio is 1 where
    both are 0, 0 where only `squared` is; nan where `squared` is negative, less than its noise.
    """
    at_rest = np.where(apart == 0, 1.0, 0.0)
    r = 1 - apart / np.where(squared == 0, 1.0, squared)
    clipped = np.clip(np.where(squared == 0, at_rest, r), 0.0, 1.0)
    return np.where(squared < 0, np.nan, clipped)


def normalised(r_pn: Floats, n_k: Floats, threshold: float | None) -> Floats:
    """Return weights (P, n) that sum to 1, as in the authors' code, from ratios r_ik and rows n_k.

    `threshold` is lambda of the binary criterion n_k 1{r > lambda}; None for the continuous one, r.
    """
    raw_pn = r_pn if threshold is None else n_k * (r_pn > threshold)
    weights: Floats = raw_pn / raw_pn.sum(axis=1, keepdims=True)
    return weights


def by_definition(r_pn: Floats, n_k: Floats, threshold: float | None) -> Floats:
    """Return the weights (P, n) of definition 1, phi(r_ik) n_k / sum_j n_j r_ij phi(r_ij).

    `threshold` is lambda of phi = lambda 1{r >= lambda} (binary); None for phi = r (continuous).
    """
    phi_pn = r_pn if threshold is None else threshold * (r_pn >= threshold)
    weights: Floats = n_k * phi_pn / (n_k * r_pn * phi_pn).sum(axis=1, keepdims=True)
    return weights
