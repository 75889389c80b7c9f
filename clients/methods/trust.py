"""Trust: each peer averages all models with weights from their losses on its validation data.

Wagner, Fan, Jaggi, "Personalized Collaborative Fine-Tuning for On-Device Large Language Models",
COLM 2024, strategy 2, and the authors' code (epfml/personalized-collaborative-llms@007fefc,
`src/optim/strategies.py`). Symbols: x_i `state.x` (there the LoRA parameters, here
`model.lora-rank`), W row i `state.w`, s_ij the similarity. In a round each peer trains on its own
data, receives the models of all neighbours, and sets

    W_ij = exp(beta s_ij) / sum_k exp(beta s_ik), k over the received models and its own,
    x_i <- sum_j W_ij x_j,   beta = `sharpness`, which is 1 in the paper.

s_ij is minus the perplexity of x_j on i's validation data for language models, and minus the mean
loss for other tasks.

Readings and deviations: beta is our addition; with beta = 0 all models count alike. The paper's
strategies 1 and 3 compare parameters, and outputs on shared reference batches. The number of local
steps is the interval between averages (`trust_freq`); no rounds only train before the first average
(`pretraining_rounds`). A model with an infinite loss has no weight. Batch-norm buffers stay
personal.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coterie.clients.inbox import Inbox
from coterie.clients.methods.fedavg import LocalTraining
from coterie.clients.parts.simplex import softmax
from coterie.clients.parts.validation import CHOOSES_WEIGHTS
from coterie.clients.rule import Weighted
from coterie.ranges import option


class Trust(
    LocalTraining[Weighted], group="unknown", learns_graph=True,
    validates=True, exposes=CHOOSES_WEIGHTS,
):  # fmt: skip
    """Averages all models by their similarity on its validation data."""

    sharpness: float = option(
        1.0, "Factor of the similarities in the softmax; 0 for equal weights.",
        low=0, grid=(1.0, 3.0, 10.0),
    )  # fmt: skip

    def update(self, s: Weighted, inbox: Inbox) -> Weighted:
        s_pn = -inbox.losses(s, "validation", own=True)
        if self.engine.kind == "language":  # perplexities
            with np.errstate(over="ignore"):
                s_pn = -np.exp(-s_pn)
        w_pn = softmax(s_pn, inbox.present, self.sharpness)
        return replace(s, x=inbox.average("x", w_pn), w=inbox.shares(w_pn))
