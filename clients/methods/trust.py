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
on the inputs of its own validation data, so no public data are needed and nothing else is sent. The
number of local steps is the interval between averages (`trust_freq`); no rounds only train before
the first average (`pretraining_rounds`). A model with an infinite loss has no weight. Batch-norm
buffers stay personal.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np

from coterie.clients.hints import Floats
from coterie.clients.inbox import Inbox
from coterie.clients.methods.fedavg import LocalTraining
from coterie.clients.parts.simplex import softmax
from coterie.clients.parts.validation import CHOOSES_WEIGHTS
from coterie.clients.rule import Weighted
from coterie.ranges import option

_OUTPUTS, _SPREAD = 100, 10.0


class Trust(
    LocalTraining[Weighted], group="unknown", learns_graph=True,
    validates=True, exposes=CHOOSES_WEIGHTS,
):  # fmt: skip
    """Averages all models by their similarity on its validation data."""

    similarity: Literal["validation", "predictions", "weights"] = option(
        "validation",
        "Comparison of a model with the peer's own: by its loss on the peer's validation data, by "
        "its outputs there, or by its parameters.",
    )
    sharpness: float = option(
        1.0, "Factor of the similarities in the softmax; 0 for equal weights.",
        low=0, grid=(1.0, 3.0, 10.0),
    )  # fmt: skip

    def update(self, s: Weighted, inbox: Inbox) -> Weighted:
        match self.similarity:
            case "weights":
                own = self.eye() > 0
                peer, author = np.nonzero(inbox.heard | own)
                rows = np.searchsorted(inbox.authors, author)
                s_pn = np.zeros_like(s.w)
                s_pn[peer, author] = self.engine.row_cosines(inbox["x"], rows, inbox.own[peer])
            case "validation":
                s_pn = -inbox.losses(s, "validation", own=True)
                if self.engine.kind == "language":  # perplexities
                    with np.errstate(over="ignore"):
                        s_pn = -np.exp(-s_pn)
            case "predictions":
                apart_pn = inbox.table(self._apart(s, inbox))  # the peer's own is at distance 0
                total_p1 = apart_pn.sum(axis=1, keepdims=True)
                s_pn = -_SPREAD * (apart_pn / np.where(total_p1 > 0, total_p1, 1.0))
        w_pn = softmax(s_pn, inbox.present, self.sharpness)
        return replace(s, x=inbox.average("x", w_pn), w=inbox.shares(w_pn))

    def _apart(self, s: Weighted, inbox: Inbox) -> Floats:
        """Return the mean L1 distance (E,) of the outputs of each letter and its recipient."""
        if not len(inbox):
            return np.zeros(0)
        x_ed, own_ed = inbox.offers.each("x"), inbox["x"][inbox.own[inbox.peer]]
        buffers = s.buffers_at(inbox.peer)
        return self.engine.output_distances(
            x_ed, own_ed, buffers, "validation", inbox.peer, _OUTPUTS
        )
