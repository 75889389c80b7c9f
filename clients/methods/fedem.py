"""FedEM: models of K distributions, of which every peer's data is a mixture.

Marfoq, Neglia, Bellet, Kameni, Vidal, "Federated Multi-Task Learning under a Mixture of
Distributions", NeurIPS 2021, algorithm 1. Symbols: theta_k `state.members`, pi_ik `state.pi`, q
the responsibility of component k for example s of peer i, K `components`. In a round each
peer

1. E-step: computes q_ik(s) = softmax_k(log pi_ik - loss of theta_k on s) for each example s;
2. M-step: sets pi_ik to the mean of q_ik over its examples, and trains theta_k on the loss with
   each example weighted by q_ik(s);
3. receives all peers' K models and averages them per component: theta_k = sum_i p_i theta_ik.

Its prediction is sum_k pi_ik h_k(x): class probabilities are averaged (outputs in regression).

Readings and deviations: the K models start as different random draws, known to every peer; where a
problem prescribes starts, the k-th model is that of peer k. All K train on the same minibatches,
with separate batch-norm statistics per peer and component. The personal model of a peer is its
component with the largest weight; its file also holds all components and their weights. Peers send
their K mixture weights too, for the report: peer j trains theta_k in proportion to p_j pi_jk, so
its weight in peer i's prediction is sum_k pi_ik p_j pi_jk / sum_l p_l pi_lk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from coterie.clients.hints import Floats, Tensor
from coterie.clients.inbox import Inbox
from coterie.clients.methods.fedavg import FedAvg
from coterie.clients.mixture import Mixture
from coterie.clients.parts.validation import CHOOSES_WEIGHTS
from coterie.clients.rule import Weighted
from coterie.ranges import option

Stacks = dict[str, "Tensor"]
REPORTED = 10
"""Components whose mixture weights are in a report, the first ones."""


@dataclass(frozen=True)
class FedEMState(Weighted):
    """State of FedEM; `opt_state` is (P, K, ...), and `personal` sets `x` and `buffers`.

    `w` has the weight of each peer's data in each peer's prediction.
    """

    members: Tensor  # components, (P, K, d)
    statistics: Stacks  # buffers of the components, (P, K, ...)
    pi: Floats  # mixture weights, (P, K)


class FedEM(FedAvg[FedEMState], group="groups", learns_graph=True, exposes=CHOOSES_WEIGHTS):
    """Data as a mixture of K distributions, learnt by all."""

    offers_model = False
    reported = tuple(f"component_{k}" for k in range(REPORTED))

    components: int = option(4, "Number of models K.", low=1, grid=(2, 3, 4))

    def models_kept(self, peers: int) -> int:
        return self.components

    def init(self) -> FedEMState:
        k, engine = self.components, self.engine
        start = self.start()
        members_pkd = engine.starts(k).expand(len(start.x), -1, -1)
        statistics = {b: v[:, None].repeat_interleave(k, 1) for b, v in start.buffers.items()}
        opt_state = self._split(engine.opt_state(members_pkd.flatten(0, 1)))
        start = replace(start, x=members_pkd[:, 0], opt_state=opt_state)
        pi = np.full((len(start.x), k), 1 / k)
        return self.begin(start, members=members_pkd, statistics=statistics, pi=pi)

    def offer(self, s: FedEMState, t: int) -> tuple[FedEMState, Mapping[str, Tensor]]:
        engine, k = self.engine, self.components
        peers_e = np.repeat(np.arange(len(s.pi)), k)
        members_ed, statistics = s.members.flatten(0, 1), _flat(s.statistics)
        losses_en = engine.example_losses(members_ed, statistics, "train", peers_e)
        losses_pkn = losses_en.unflatten(0, (-1, k)).double()
        with np.errstate(divide="ignore"):
            log_pi = losses_pkn.new_tensor(np.log(s.pi))
        q_pkn = (log_pi[:, :, None] - losses_pkn).softmax(dim=1)
        pi = self._means(q_pkn)
        q_en = q_pkn.flatten(0, 1).to(members_ed.dtype)
        batches = [
            batch.weighted(q_en.gather(1, batch.rows_eb))
            for batch in engine.batches(t, peers=peers_e)
        ]
        fit = engine.fit(members_ed, statistics, _flat(s.opt_state), batches)
        trained_pkd = fit.x.unflatten(0, (-1, k))
        sent_pkd = self.pushed(s.members, trained_pkd, t)
        statistics, opt_state = self._split(fit.buffers), self._split(fit.opt_state)
        s = replace(s, members=trained_pkd, statistics=statistics, opt_state=opt_state, pi=pi)
        return s, {"x": sent_pkd.flatten(1), "pi": engine.tensor(pi)}

    def update(self, s: FedEMState, inbox: Inbox) -> FedEMState:
        members_pd = inbox.average("x", self.averaging(inbox.round))
        pi_kn = inbox.by_peer(inbox["pi"].cpu().numpy().T)
        shares_pn = inbox.discounted(self.shares() * inbox.present)
        w_pkn = shares_pn[:, None] * pi_kn
        total_pk1 = w_pkn.sum(axis=2, keepdims=True)
        w_pkn /= np.where(total_pk1 > 0, total_pk1, 1.0)
        w_pn = np.einsum("pk,pkn->pn", s.pi, w_pkn)
        return replace(s, members=members_pd.unflatten(1, (self.components, -1)), w=w_pn)

    def personal(self, s: FedEMState) -> FedEMState:
        largest = np.arange(len(s.pi)), s.pi.argmax(axis=1)
        buffers = {name: value[largest] for name, value in s.statistics.items()}
        return replace(s, x=s.members[largest], buffers=buffers)

    def mixture(self, s: FedEMState) -> Mixture:
        return Mixture(self.engine.tensor(s.pi), s.members, s.statistics)

    def metrics(self, s: FedEMState) -> Mapping[str, Floats]:
        return dict(zip(self.reported, s.pi.T, strict=False))

    def _means(self, q_pkn: Tensor) -> Floats:
        """Return the mean responsibilities over each peer's examples, (P, K)."""
        lengths_p1 = self.engine.data.shards["train"].lengths_p[:, None]
        valid_pn = q_pkn.new_tensor(np.arange(q_pkn.shape[2]) < lengths_p1)
        pi: Floats = (q_pkn * valid_pn[:, None]).sum(dim=2).cpu().numpy() / lengths_p1
        pi /= pi.sum(axis=1, keepdims=True)
        return pi

    def _split(self, stacks: Stacks) -> Stacks:
        return {name: value.unflatten(0, (-1, self.components)) for name, value in stacks.items()}


def _flat(stacks: Stacks) -> Stacks:
    """Reshape stacks (P, K, ...) to one row per component."""
    return {name: value.flatten(0, 1) for name, value in stacks.items()}
