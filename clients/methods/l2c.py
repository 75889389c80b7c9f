"""L2C: each peer learns the weights of its average by gradient descent on validation data.

Li, Zhou, Tian, Tao, "Learning to Collaborate in Decentralized Learning of Personalized Models",
CVPR 2022. Symbols: theta_i `state.x`, Delta_j the update of peer j in the round, alpha_i
`state.logits`, w_i `state.w`, N_i `state.near`, T_0 `options.warm_up`, K `options.keep`, L_i the
loss on the validation data. In a round each peer

1. trains from theta_i and sends Delta_i = theta_i - (the trained model);
2. sets w_i = softmax(alpha_i) over the peers that it received from and itself, and
   theta_i <- theta_i - sum_j w_ij Delta_j;
3. takes an Adam step on alpha_i down the gradient of L_i(theta_i): with g that of L_i at the new
   theta_i and s_j = -<Delta_j, g>, dL_i / dalpha_ij = w_ij (s_j - sum_k w_ik s_k).

N_i are all neighbours for T_0 rounds; then the K with the largest alpha_ij stay, and a peer
requests only their updates.

Readings and deviations: one Adam step per round, on all validation data (the paper: one per
minibatch of these); Adam's learning rate is `options.rate`, its weight decay 0.01, as in the paper.
The paper removes 90 of 100 neighbours, K = 10; our runs have fewer peers. An update that is missing
has no weight in the round. meta-L2C, which computes the weights with a network that all peers train
together, is left out. Batch-norm buffers stay personal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np

from coterie.clients.letters import Bools, Ints, Letters
from coterie.clients.methods.fedavg import LocalTraining
from coterie.clients.rule import Floats, Grid, State
from coterie.clients.training import Training
from coterie.ranges import Range

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.clients.engine.engine import Engine

WEIGHT_DECAY = 0.01


@dataclass(frozen=True)
class Options:
    """Options of L2C.

    Attributes
    ----------
    rate : float
        Learning rate of the weights (Adam).
    warm_up : int
        Number of rounds T_0 in which every peer receives the updates of all its neighbours.
    keep : int
        Number of neighbours K that it keeps after these rounds.
    """

    rate: Annotated[float, Range(0)] = 0.1
    warm_up: Annotated[int, Range(1)] = 10
    keep: Annotated[int, Range(1)] = 3
    grid: ClassVar[Grid] = {"rate": (0.03, 0.1, 0.3)}
    validates: ClassVar[bool] = True


@dataclass(frozen=True)
class L2CState(State):
    """State of L2C.

    Attributes
    ----------
    logits : Tensor, (P, n)
        Logits alpha of the weights.
    logits_opt_state : dict of str to Tensor, (P, ...)
        Adam's memory of the logits.
    near : ndarray of bool, (P, n)
        Neighbours N_i.
    w : ndarray, (P, n)
        Weights of the last update; the diagonal is that of the peer's own.
    """

    logits: Tensor
    logits_opt_state: dict[str, Tensor]
    near: Bools
    w: Floats


class L2C(LocalTraining[L2CState]):
    """L2C: a mean of updates, whose weights lower the validation loss."""

    offers_model: ClassVar[bool] = False

    def __init__(self, engine: Engine, options: Options, rounds: int) -> None:
        super().__init__(engine, options, rounds)
        self._adam = Training(
            optimizer="adam", learning_rate=options.rate, weight_decay=WEIGHT_DECAY
        )

    def init(self) -> L2CState:
        w_pn = self.eye()
        logits = self.engine.tensor(np.zeros_like(w_pn))
        return L2CState(
            **vars(self.start()),
            logits=logits,
            logits_opt_state=self.engine.opt_state(logits, self._adam),
            near=self.engine.topology[self.engine.peers],
            w=w_pn,
        )

    def wants(self, state: L2CState, round_: int) -> Ints:
        return self.pairs(state.near)

    def offer(self, state: L2CState, round_: int) -> tuple[L2CState, Mapping[str, Tensor]]:
        trained = self.train(state, round_)
        return trained, {"update": state.x - trained.x}

    def update(
        self, state: L2CState, round_: int, offers: Letters, sent: Letters, answers: Letters
    ) -> L2CState:
        engine, update_sd = self.engine, offers["update"]
        used_pn = self.present(offers) & (state.near | (self.eye() > 0))
        w_pn = self.discounted(_softmax(state.logits, used_pn, self.eye()), offers)
        own_p = np.searchsorted(offers.authors, engine.peers)
        step_pd = engine.mix(w_pn[:, offers.authors], update_sd)
        x_pd = state.x + (update_sd[own_p] - step_pd)  # exactly the trained model at w_ii = 1
        state = self._learned(replace(state, x=x_pd, w=w_pn), round_, offers)
        return state if round_ < self.options.warm_up else replace(state, near=self._kept(state))

    def weights(self, state: L2CState) -> Floats:
        return state.w

    def _learned(self, state: L2CState, round_: int, offers: Letters) -> L2CState:
        """Return the state after a step on the logits."""
        held_out = self.engine.data.everything(split="validation")
        g_pd = self.engine.gradients(state.x, state.buffers, held_out).values
        s_pn = np.zeros_like(state.w)
        s_pn[:, offers.authors] = -self.engine.products(g_pd, offers["update"])
        slope_pn = self.engine.tensor(slope(state.w, s_pn))
        fit = self.engine.step(state.logits, slope_pn, state.logits_opt_state, round_, self._adam)
        return replace(state, logits=fit.x, logits_opt_state=fit.opt_state)

    def _kept(self, state: L2CState) -> Bools:
        """Return a mask (P, n) of the neighbours with the largest logits."""
        logits_pn = np.where(state.near, state.logits.cpu().numpy(), -np.inf)
        best_pk = np.argsort(-logits_pn, axis=1, kind="stable")[:, : self.options.keep]
        kept_pn = np.zeros_like(state.near)
        np.put_along_axis(kept_pn, best_pk, values=True, axis=1)
        return kept_pn & state.near


def slope(w_pn: Floats, s_pn: Floats) -> Floats:
    """Return the gradient with respect to logits, given weights and the gradient s of these."""
    slopes: Floats = w_pn * (s_pn - (w_pn * s_pn).sum(axis=1, keepdims=True))
    return slopes


def _softmax(logits_pn: Tensor, used_pn: Bools, eye_pn: Floats) -> Floats:
    """Return weights (P, n) over the updates in a mask; a peer without any uses its own."""
    used_pn = np.where(used_pn.any(axis=1, keepdims=True), used_pn, eye_pn > 0)
    masked_pn = np.where(used_pn, logits_pn.double().cpu().numpy(), -np.inf)
    raised_pn = np.exp(masked_pn - masked_pn.max(axis=1, keepdims=True))
    weights_pn: Floats = raised_pn / raised_pn.sum(axis=1, keepdims=True)
    return weights_pn
