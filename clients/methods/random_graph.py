"""Random graph: DPFL with random instead of greedily chosen neighbours, as a control.

Each peer draws as many others as DPFL's budget allows, among the senders of round 1, and averages
with all of them from then on ("Decentralized Personalized Federated Learning", 4.4).
"""

from __future__ import annotations

import numpy as np

from coterie.clients.hints import Bools
from coterie.clients.inbox import Inbox
from coterie.clients.methods.dpfl import Budgeted, DPFLState
from coterie.clients.parts.greedy import Choice
from coterie.clients.parts.validation import CHOOSES_MODELS


class RandomGraph(Budgeted, group="references", exposes=CHOOSES_MODELS):
    """DPFL with random neighbours."""

    def choose(self, s: DPFLState, inbox: Inbox, candidates_pn: Bools) -> Choice:
        chosen_pn = self.eye() > 0
        for p, g in enumerate(self.draws(inbox.round)):
            shuffled = g.permutation(np.flatnonzero(candidates_pn[p]))
            chosen_pn[p, shuffled[: self.max_peers - 1]] = True
        return Choice(chosen_pn, np.zeros(len(chosen_pn), dtype=np.int64))
