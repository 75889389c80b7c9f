"""L2C: each peer learns the weights of its average by gradient descent on validation data.

Li, Zhou, Tian, Tao, "Learning to Collaborate in Decentralized Learning of Personalized Models",
CVPR 2022. Symbols: theta_i `state.x`, Delta_j the update of peer j in the round, alpha_i
`state.logits`, w_i `state.w`, N_i `state.near`, T_0 `warm_up`, K `keep`, L_i the
loss on the validation data. In a round each peer

1. trains from theta_i and sends Delta_i = theta_i - (the trained model);
2. sets w_i = softmax(alpha_i) over the peers that it received from and itself, and
   theta_i <- theta_i - sum_j w_ij Delta_j;
3. takes an Adam step on alpha_i down the gradient of L_i(theta_i): with g that of L_i at the new
   theta_i and s_j = -<Delta_j, g>, dL_i / dalpha_ij = w_ij (s_j - sum_k w_ik s_k).

N_i are all neighbours for T_0 rounds; then the K with the largest alpha_ij stay, and a peer
requests only their updates.

Readings and deviations: one Adam step per round, on all validation data (the paper: one per
minibatch of these); Adam's learning rate is `rate`, its weight decay 0.01, as in the paper.
The paper removes 90 of 100 neighbours, K = 10; our runs have fewer peers. An update that is missing
has no weight in the round. meta-L2C, which computes the weights with a network that all peers train
together, is left out. Batch-norm buffers stay personal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from coterie.clients.hints import Bools, Floats, Tensor
from coterie.clients.inbox import Inbox
from coterie.clients.methods.fedavg import LocalTraining
from coterie.clients.parts.simplex import highest, softmax
from coterie.clients.parts.validation import CHOOSES_WEIGHTS
from coterie.clients.rule import Weighted
from coterie.clients.training import Training
from coterie.ranges import option
from coterie.strategies.plans import Wanted

WEIGHT_DECAY = 0.01


@dataclass(frozen=True)
class L2CState(Weighted):
    """State of L2C."""

    logits: Tensor  # logits alpha of the weights, (P, n)
    logits_opt_state: dict[str, Tensor]  # Adam's memory of the logits, (P, ...)
    near: Bools  # neighbours N_i, (P, n)


class L2C(
    LocalTraining[L2CState], strategy=Wanted, group="unknown", learns_graph=True, validates=True,
    exposes=CHOOSES_WEIGHTS,
):  # fmt: skip
    """Learns the weights of an average on held-out data."""

    offers_model = False

    rate: float = option(0.1, "Learning rate of the weights (Adam).", low=0, grid=(0.03, 0.1, 0.3))
    warm_up: int = option(
        10,
        "Number of rounds T_0 in which every peer receives the updates of all its neighbours.",
        low=1,
    )
    keep: int = option(3, "Number of neighbours K that it keeps after these rounds.", low=1)

    @cached_property
    def _adam(self) -> Training:
        return Training(optimizer="adam", learning_rate=self.rate, weight_decay=WEIGHT_DECAY)

    def init(self) -> L2CState:
        logits = self.engine.tensor(np.zeros_like(self.eye()))
        opt_state = self.engine.opt_state(logits, self._adam)
        return self.begin(logits=logits, logits_opt_state=opt_state, near=self.near)

    def wants(self, s: L2CState, t: int) -> Bools:
        return s.near

    def offer(self, s: L2CState, t: int) -> tuple[L2CState, Mapping[str, Tensor]]:
        trained = self.train(s, t)
        return trained, {"update": s.x - trained.x}

    def update(self, s: L2CState, inbox: Inbox) -> L2CState:
        own_pn = self.eye() > 0
        used_pn = inbox.present & (s.near | own_pn)
        used_pn = np.where(used_pn.any(axis=1, keepdims=True), used_pn, own_pn)
        w_pn = inbox.discounted(softmax(s.logits.double().cpu().numpy(), used_pn))
        own_pd, step_pd = inbox["update"][inbox.own], inbox.mix("update", w_pn)
        x_pd = s.x + (own_pd - step_pd)  # exactly the trained model at w_ii = 1
        s = self._learned(replace(s, x=x_pd, w=w_pn), inbox)
        if inbox.round < self.warm_up:
            return s
        return replace(s, near=highest(np.where(s.near, s.logits.cpu(), -np.inf), self.keep))

    def _learned(self, s: L2CState, inbox: Inbox) -> L2CState:
        """Return the state after a step on the logits."""
        held_out = self.engine.data.everything(split="validation")
        g_pd = self.engine.gradients(s.x, s.buffers, held_out).values
        s_pn = inbox.by_peer(-self.engine.products(g_pd, inbox["update"]))
        slope_pn = self.engine.tensor(slope(s.w, s_pn))
        fit = self.engine.step(s.logits, slope_pn, s.logits_opt_state, inbox.round, self._adam)
        return replace(s, logits=fit.x, logits_opt_state=fit.opt_state)


def slope(w_pn: Floats, s_pn: Floats) -> Floats:
    """Return the gradient with respect to logits, given weights and the gradient s of these."""
    slopes: Floats = w_pn * (s_pn - (w_pn * s_pn).sum(axis=1, keepdims=True))
    return slopes
