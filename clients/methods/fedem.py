"""FedEM: every peer's data is a mixture of K distributions that all peers learn together.

Marfoq, Neglia, Bellet, Kameni, Vidal, "Federated Multi-Task Learning under a Mixture of
Distributions", NeurIPS 2021, algorithm 1. Symbols: theta_k `state.members`, pi_ik `state.pi`, q
the responsibility of component k for example s of peer i, K `options.components`. In a round each
peer

1. E-step: q_ik(s) = softmax_k(log pi_ik - loss of theta_k on s), example by example;
2. M-step: pi_ik is the mean of q_ik over its examples, and theta_k is trained on the peer's loss
   with each example weighted by q_ik(s);
3. receives all peers' K models and averages them one by one: theta_k = sum_i p_i theta_ik.

Its prediction is sum_k pi_ik h_k(x): class probabilities are averaged (outputs in regression).

Readings and deviations: the K models start as different draws that every peer knows; a problem that
prescribes starts gives the k-th model that of peer k. All K train on the same minibatches. Each
keeps batch-norm statistics of its own at each peer. The saved model of a peer is its component with
the largest weight; all of them, and `mixture`, lie beside it. Mixture weights travel too (K
numbers), for the report: peer j teaches theta_k in proportion to p_j pi_jk, so its weight in peer
i's prediction is sum_k pi_ik p_j pi_jk / sum_l p_l pi_lk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from coterie.clients.letters import Letters
from coterie.clients.methods.fedavg import FedAvg
from coterie.clients.rule import Floats, Grid, Mixture, State

if TYPE_CHECKING:
    from torch import Tensor

Stacks = dict[str, "Tensor"]


@dataclass(frozen=True)
class Options:
    """FedEM's knob.

    Attributes
    ----------
    components : number of models K.
    """

    components: int = 4
    grid: ClassVar[Grid] = {"components": (2, 3, 4)}

    def __post_init__(self) -> None:
        if self.components < 1:
            raise ValueError("components must be at least 1")

    def models_kept(self, peers: int) -> int:
        """Number of models that a peer keeps."""
        return self.components


@dataclass(frozen=True)
class FedEMState(State):
    """What a peer keeps; `opt_state` are (P, K, ...), and `personal` makes `x` and `buffers`.

    Attributes
    ----------
    members : (P, K, d) the components.
    statistics : name -> (P, K, ...), their buffers.
    pi : (P, K) mixture weights.
    w : (P, n) weight of everybody's data in each peer's prediction.
    """

    members: Tensor
    statistics: Stacks
    pi: Floats
    w: Floats


class FedEM(FedAvg[FedEMState]):
    """Expectation maximisation in which peers share the M-step."""

    def init(self) -> FedEMState:
        k, engine = self.options.components, self.engine
        start = self.start()
        peers = len(start.x)
        members_pkd = engine.starts(k).expand(peers, -1, -1)
        statistics = {b: v[:, None].repeat_interleave(k, 1) for b, v in start.buffers.items()}
        return FedEMState(
            members_pkd[:, 0],
            start.buffers,
            self._split(engine.opt_state(members_pkd.flatten(0, 1))),
            members_pkd,
            statistics,
            pi=np.full((peers, k), 1 / k),
            w=self.eye(),
        )

    def offer(self, state: FedEMState, round_: int) -> tuple[FedEMState, Mapping[str, Tensor]]:
        engine, k = self.engine, self.options.components
        of = np.repeat(np.arange(len(state.pi)), k)
        members_ed, statistics = state.members.flatten(0, 1), _flat(state.statistics)
        losses_en = engine.example_losses(members_ed, statistics, "train", of)
        losses_pkn = losses_en.unflatten(0, (-1, k)).double()
        with np.errstate(divide="ignore"):
            log_pi = losses_pkn.new_tensor(np.log(state.pi))
        q_pkn = (log_pi[:, :, None] - losses_pkn).softmax(dim=1)
        pi = self._means(q_pkn)
        q_en = q_pkn.flatten(0, 1).to(members_ed.dtype)
        batches = [b.weighted(q_en.gather(1, b.rows_eb)) for b in engine.batches(round_, peers=of)]
        fit = engine.fit(members_ed, statistics, _flat(state.opt_state), batches)
        trained_pkd = fit.x.unflatten(0, (-1, k))
        shown_pkd = self.pushed(state.members, trained_pkd, round_)
        state = replace(
            state,
            members=trained_pkd,
            statistics=self._split(fit.buffers),
            opt_state=self._split(fit.opt_state),
            pi=pi,
        )
        return state, {"x": shown_pkd.flatten(1), "pi": engine.tensor(pi)}

    def update(
        self, state: FedEMState, round_: int, offers: Letters, sent: Letters, answers: Letters
    ) -> FedEMState:
        k = self.options.components
        members_pkd = self.average(offers, "x", self.averaging(round_)).unflatten(1, (k, -1))
        pi_kn = np.zeros((k, self.engine.n))
        pi_kn[:, offers.authors] = offers["pi"].cpu().numpy().T
        shares_pn = self.discounted(self.shares() * self.present(offers), offers)
        taught_pkn = shares_pn[:, None] * pi_kn
        total_pk1 = taught_pkn.sum(axis=2, keepdims=True)
        taught_pkn /= np.where(total_pk1 > 0, total_pk1, 1.0)
        w_pn = np.einsum("pk,pkn->pn", state.pi, taught_pkn)
        return replace(state, members=members_pkd, w=w_pn)

    def personal(self, state: FedEMState) -> FedEMState:
        largest = np.arange(len(state.pi)), state.pi.argmax(axis=1)
        own = {name: value[largest] for name, value in state.statistics.items()}
        return replace(state, x=state.members[largest], buffers=own)

    def mixture(self, state: FedEMState) -> Mixture:
        return Mixture(self.engine.tensor(state.pi), state.members, state.statistics)

    def weights(self, state: FedEMState) -> Floats:
        return state.w

    def _means(self, q_pkn: Tensor) -> Floats:
        """(P, K) mean responsibilities over each peer's own examples."""
        lengths_p1 = self.engine.data.shards["train"].lengths_p[:, None]
        valid_pn = q_pkn.new_tensor(np.arange(q_pkn.shape[2]) < lengths_p1)
        pi: Floats = (q_pkn * valid_pn[:, None]).sum(dim=2).cpu().numpy() / lengths_p1
        pi /= pi.sum(axis=1, keepdims=True)
        return pi

    def _split(self, stacks: Stacks) -> Stacks:
        """From one row a component to (P, K, ...)."""
        k = self.options.components
        return {name: value.unflatten(0, (-1, k)) for name, value in stacks.items()}


def _flat(stacks: Stacks) -> Stacks:
    """From (P, K, ...) to one row a component."""
    return {name: value.flatten(0, 1) for name, value in stacks.items()}
