"""Trust: each peer averages all models with weights from their similarity to its own.

Wagner, Fan, Jaggi, "Personalized Collaborative Fine-Tuning for On-Device Large Language Models",
COLM 2024, and the authors' code (epfml/personalized-collaborative-llms@007fefc,
`src/optim/strategies.py`). Symbols: x_i `state.x` (there the LoRA parameters, here
`model.lora-rank`), W row i `state.w`, s_ij the similarity. In a round each peer trains on its own
data, receives the models of all neighbours, and sets

    W_ij = exp(beta s_ij) / sum_k exp(beta s_ik), k over the received models and its own,
    x_i <- sum_j W_ij x_j,   beta = `sharpness`, which is 1 in the paper. `similarity` is

- "weights" (strategy 1): s_ij = the mean over the rows of all parameter matrices of the cosine of
  row of x_i and row of x_j; a vector is one row;
- "validation" (strategy 2): s_ij = -perplexity of x_j on i's validation data for language models,
  and minus the mean loss for other tasks;
- "predictions" (strategy 3): s_ij = -10 r_ij / sum_k r_ik, r_ij the mean L1 distance of the outputs
  of x_i and x_j, of which all but the 100 largest are set to 0.

Readings and deviations: beta is our addition; with beta = 0 all models count alike. The paper's
peers exchange outputs on shared reference batches; here a peer compares the models that it receives
on the inputs of its own validation data, so no public data are needed and nothing else is sent.
The first `warmup` rounds train only (`pretraining_rounds`); the number of local steps is the
interval between averages (`trust_freq`). A model with an infinite loss has no weight. Batch-norm
buffers stay personal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np

from coterie.clients.letters import Bools, Letters
from coterie.clients.methods.fedavg import LocalTraining
from coterie.clients.rule import Floats, Grid, State
from coterie.ranges import Range

_OUTPUTS, _SPREAD = 100, 10.0


@dataclass(frozen=True)
class Options:
    """Options of trust.

    Attributes
    ----------
    similarity : {"validation", "predictions", "weights"}
        Comparison of a model with the peer's own: by its loss on the peer's validation data, by its
        outputs there, or by its parameters.
    sharpness : float
        Factor of the similarities in the softmax; 0 for equal weights.
    warmup : int
        Number of rounds of local training before the first average.
    """

    similarity: Literal["validation", "predictions", "weights"] = "validation"
    sharpness: Annotated[float, Range(0)] = 1.0
    warmup: Annotated[int, Range(0)] = 0
    grid: ClassVar[Grid] = {"sharpness": (1.0, 3.0, 10.0)}
    validates: ClassVar[bool] = True


@dataclass(frozen=True)
class TrustState(State):
    """State of trust.

    Attributes
    ----------
    w : ndarray, (P, n)
        Weights of the last average.
    """

    w: Floats


class Trust(LocalTraining[TrustState]):
    """Average with softmax weights of similarities."""

    def init(self) -> TrustState:
        return TrustState(**vars(self.start()), w=self.eye())

    def update(
        self, state: TrustState, round_: int, offers: Letters, sent: Letters, answers: Letters
    ) -> TrustState:
        if round_ <= self.options.warmup:
            return state
        s_pn = np.full_like(state.w, -np.inf)
        hosted = np.arange(len(s_pn))
        judges = np.append(self.local(offers.recipients), hosted)
        authors = np.append(offers.senders, self.engine.peers)
        self_p = np.searchsorted(offers.authors, self.engine.peers)
        rows = np.append(offers.rows, self_p)
        x_sd = offers["x"]
        match self.options.similarity:
            case "weights":
                self_e = self_p[judges]
                s_pn[judges, authors] = self.engine.row_cosines(x_sd, rows, self_e)
            case "validation":
                buffers = state.buffers_at(judges)
                losses_e = self.engine.losses(x_sd[rows], buffers, "validation", judges).losses
                s_pn[judges, authors] = -self._surprise(losses_e.cpu().numpy())
            case "predictions":
                apart_pn = np.zeros_like(s_pn)
                others = len(offers.recipients)  # the peer's own model is at distance 0
                apart_pn[judges[:others], authors[:others]] = self._apart(state, offers)
                total_p1 = apart_pn.sum(axis=1, keepdims=True)
                share_pn = apart_pn / np.where(total_p1 > 0, total_p1, 1.0)
                s_pn[judges, authors] = -_SPREAD * share_pn[judges, authors]
        w_pn = softmax(self.options.sharpness, s_pn, self.present(offers))
        x_pd = self.average(offers, "x", w_pn)
        return replace(state, x=x_pd, w=self.present_weights(offers, w_pn))

    def weights(self, state: TrustState) -> Floats:
        return state.w

    def _surprise(self, losses: Floats) -> Floats:
        """Return perplexities of language models, and losses of others."""
        if self.engine.kind != "language":
            return losses
        with np.errstate(over="ignore"):
            return np.exp(losses)

    def _apart(self, state: TrustState, offers: Letters) -> Floats:
        """Return the mean L1 distance (E,) of the outputs of each letter and its recipient."""
        judges = self.local(offers.recipients)
        if not len(judges):
            return np.zeros(0)
        x_sd = offers["x"]
        self_e = np.searchsorted(offers.authors, offers.recipients)
        x_ed, self_ed, buffers = x_sd[offers.rows], x_sd[self_e], state.buffers_at(judges)
        return self.engine.output_distances(x_ed, self_ed, buffers, "validation", judges, _OUTPUTS)


def softmax(sharpness: float, s_pn: Floats, present_pn: Bools) -> Floats:
    """Return the softmax of each row over the models that are present.

    A row without a finite similarity has no weights.
    """
    finite_pn = np.isfinite(s_pn) & present_pn
    top_p1 = np.where(finite_pn, s_pn, -np.inf).max(axis=1, keepdims=True)
    away_pn = np.where(finite_pn, s_pn - np.where(np.isfinite(top_p1), top_p1, 0.0), 0.0)
    raw_pn = np.where(finite_pn, np.exp(sharpness * away_pn), 0.0)
    total_p1 = raw_pn.sum(axis=1, keepdims=True)
    return np.asarray(raw_pn / np.where(total_p1 > 0, total_p1, 1.0))
