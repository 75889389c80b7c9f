"""Interface of a method's peer rule, and the state that all rules share.

A rule is `init` plus transitions over named state: each returns a new state and mutates nothing.
Every array in a state has a leading axis over the node's peers, so a node can store, move and
resume each peer separately. Rules are formulas over the engine's operations and do not import
torch; `Tensor` is imported for type checkers only. Legend: p = peers of this node, n = all peers,
e = letters, d = parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt

from coterie.clients.letters import Bools, Ints, Letters, Rows

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.clients.engine.data import SplitName
    from coterie.clients.engine.engine import Engine, Fit, Scores

Floats = npt.NDArray[np.float64]
Grid = Mapping[str, tuple[float | str, ...]]
"""Search grid of an option dataclass: the key that `--tune` varies and the values it tries."""


class Clustered(Protocol):
    """Object that may know the peers' true clusters: a problem or an engine."""

    @property
    def clusters(self) -> Ints | None: ...


def true_clusters(
    source: Clustered,
    remedy: str = "set partition.kind to label-permutation, label-groups or label-flip",
) -> Ints:
    """Return the true cluster of each peer, (n,).

    Raises
    ------
    ValueError
        The clusters are unknown; the message ends with `remedy`.
    """
    if source.clusters is None:
        raise ValueError(f"the true clusters are unknown for this problem: {remedy}")
    return source.clusters


@dataclass(frozen=True)
class State:
    """State of the hosted peers, common to all methods.

    Attributes
    ----------
    x : Tensor, (P, d)
        Personal models.
    buffers : dict of str to Tensor, (P, ...)
        Running statistics, such as batch norm's; never sent to other peers.
    opt_state : dict of str to Tensor, (P, ...)
        Optimizer state, such as momentum.
    """

    x: Tensor
    buffers: dict[str, Tensor]
    opt_state: dict[str, Tensor]

    def buffers_at(self, rows: Ints) -> dict[str, Tensor]:
        """Return the buffers of the hosted peers `rows`, which may repeat."""
        return {name: value[rows] for name, value in self.buffers.items()}

    def trained(self, fit: Fit) -> Self:
        """Return the state with the trained personal models."""
        return replace(self, x=fit.x, buffers=fit.buffers, opt_state=fit.opt_state)


class Mixture(NamedTuple):
    """Ensemble of models per hosted peer, whose predictions are averaged.

    Attributes
    ----------
    weights : Tensor, (P, M)
        Weights of the members; rows sum to 1. A member of weight 0 is padding.
    models : Tensor, (P, M, d)
        Models of the members.
    buffers : dict of str to Tensor, (P, M, ...)
        Buffers of the members.
    """

    weights: Tensor
    models: Tensor
    buffers: dict[str, Tensor]


S = TypeVar("S", bound=State)


class Averages:
    """Masks, edges and averages over the hosted peers, for the rules of methods.

    Parameters
    ----------
    engine : Engine
        Stacked models and data of the hosted peers.
    options : dataclass
        Options of the method.
    rounds : int
        Number of rounds of the run.
    """

    def __init__(self, engine: Engine, options: Any, rounds: int) -> None:
        self.engine, self.options, self.rounds = engine, options, rounds

    def eye(self) -> Floats:
        """Return the rows of the identity matrix for the hosted peers, (P, n)."""
        peers = self.engine.peers
        eye_pn = np.zeros((len(peers), self.engine.n))
        eye_pn[np.arange(len(peers)), peers] = 1.0
        return eye_pn

    def same_cluster(self) -> Bools:
        """Return a mask (P, n) of the peers in each hosted peer's true cluster, itself included."""
        clusters = true_clusters(self.engine)
        same: Bools = clusters[self.engine.peers][:, None] == clusters[None, :]
        return same

    def local(self, peers: Ints) -> Ints:
        """Return the local indices of hosted peers given by id."""
        return np.searchsorted(self.engine.peers, peers)

    def pairs(self, mask_pn: Bools, *, receiving: bool = True) -> Ints:
        """Return the edges (W, 2) of a mask over (hosted peer, other peer).

        Parameters
        ----------
        mask_pn : ndarray of bool, (P, n)
            Mask of the edges; the diagonal is ignored.
        receiving : bool
            The hosted peers are the recipients (default) or the senders.
        """
        p, other = np.nonzero(mask_pn)
        hosted = self.engine.peers[p]
        edges = np.stack([other, hosted] if receiving else [hosted, other], axis=1)
        away: Ints = edges[edges[:, 0] != edges[:, 1]]
        return away

    def present(self, offers: Letters) -> Bools:
        """Return a mask (P, n) of the models that each peer can average.

        These are the models it received, and its own unless that expired and others arrived.
        """
        received_pn = offers.senders_to(self.engine.peers, self.engine.n)
        expired_p = np.isin(self.engine.peers, offers.expired) & received_pn.any(axis=1)
        return received_pn | ((self.eye() > 0) & ~expired_p[:, None])

    def freshness(self, offers: Letters) -> Floats:
        """Return the staleness discount (n,) of each model: (s + 1)^-a at an age of s rounds."""
        fresh_n = np.ones(self.engine.n)
        if len(offers.ages):
            ages_s = np.maximum(offers.ages, 0)
            fresh_n[offers.authors] = (ages_s + 1.0) ** -self.engine.staleness_discount
        return fresh_n

    def discounted(self, weights_pn: Floats, offers: Letters) -> Floats:
        """Discount the weights of old models (see `freshness`), preserving row sums."""
        fresh_pn = weights_pn * self.freshness(offers)
        before_p1, after_p1 = (w.sum(axis=1, keepdims=True) for w in (weights_pn, fresh_pn))
        scaled: Floats = fresh_pn * (before_p1 / np.where(after_p1 > 0, after_p1, 1.0))
        return scaled

    def present_weights(self, offers: Letters, weights_pn: Floats) -> Floats:
        """Return the weights (P, n) that `average` uses: rows over the models that are there.

        Weights of absent models are dropped, the others discounted by age and normalised. A peer
        with no weight left gives all weight to its own model.
        """
        weights_pn = np.where(self.present(offers), weights_pn, 0.0)
        weights_pn = np.where(weights_pn.any(axis=1, keepdims=True), weights_pn, self.eye())
        weights_pn = self.discounted(weights_pn, offers)
        weights_pn /= weights_pn.sum(axis=1, keepdims=True)
        return weights_pn

    def average(self, offers: Letters, name: str, weights_pn: Floats) -> Tensor:
        """Average the models that each peer received and its own, (P, d).

        See `present_weights` for the weights of models that are absent or old.
        """
        weights_pn = self.present_weights(offers, weights_pn)
        self_pd = Rows(offers[name], np.searchsorted(offers.authors, self.engine.peers))
        return self.engine.mix(weights_pn[:, offers.authors], offers[name], self_pd)

    def answered(self, answers: Letters, name: str, weights_pn: Floats) -> Tensor:
        """Return the weighted sum of the answers that each peer received, (P, d); 0 if none."""
        rows = self.local(answers.recipients)
        if not len(rows):
            return self.engine.tensor(np.zeros((len(weights_pn), self.engine.d)))
        weights_e = weights_pn[rows, answers.senders]
        return self.engine.collect(weights_e, answers[name], answers.rows, rows)


class Rule(Averages, Generic[S]):
    """Peer rule of a method, computed for all peers of a node at once.

    A round is offer, answer, update; only ask methods implement `answer`. `Averages` has helpers
    for these methods.
    """

    common_start: ClassVar[bool] = True
    """All peers start from the same model."""
    mixes: ClassVar[bool] = False
    """Rounds end in an average whose weights a topology may set (`Engine.mixing`)."""
    offers_model: ClassVar[bool] = True
    """Offers have the peer's model, `State.x`, as "x": the scheme "increments" compresses it."""
    pools: ClassVar[bool] = False
    """Training uses the data of all peers (`Engine.fit_pooled`); only simulations have them."""
    reported: ClassVar[tuple[str, ...]] = ()
    """Names of additional metrics in a report; the relay rejects any others."""

    def narrowed(self, engine: Engine) -> Self:
        """Return the rule for another engine that hosts some of this engine's peers."""
        return type(self)(engine, self.options, self.rounds)

    def start(self) -> State:
        """Return the initial models, buffers and optimizer state."""
        x_pd, buffers = self.engine.initial(common=self.common_start)
        return State(x_pd, buffers, self.engine.opt_state(x_pd))

    def init(self) -> S:
        """Return the state before round 1."""
        return self.start()  # type: ignore[return-value]  # S is State unless `init` is overridden

    def wants(self, state: S, round_: int) -> Ints:
        """Return the edges (W, 2) of [sender, recipient] that the hosted peers request.

        Read only by strategies that ask for them. Each edge has a hosted peer at one end.
        """
        return np.empty((0, 2), dtype=np.int64)

    def offer(self, state: S, round_: int) -> tuple[S, Mapping[str, Tensor]]:
        """Begin the round; methods that train before they share train here.

        Returns
        -------
        state : State
            State after local training.
        offers : Mapping of str to Tensor, (P, ...)
            Tensors that each peer sends.
        """
        return state, {"x": state.x}

    def answer_shapes(self, round_: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor in an answer of `round_` (ask methods)."""
        return {"g": (self.engine.d,)}

    def answer(self, state: S, round_: int, asked: Letters) -> tuple[S, Mapping[str, Tensor]]:
        """Answer the offers that ask for it (ask methods).

        Returns
        -------
        state : State
            State after answering.
        answers : Mapping of str to Tensor, (E, ...)
            Tensors of the answers, one row per letter of `asked`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not implement answer()")

    def update(self, state: S, round_: int, offers: Letters, sent: Letters, answers: Letters) -> S:
        """End the round.

        Parameters
        ----------
        state : State
            State after `offer` and `answer`.
        round_ : int
            Number of the round, from 1.
        offers : Letters
            Models that the hosted peers received.
        sent : Letters
            Answers that the hosted peers sent.
        answers : Letters
            Answers that the hosted peers received.
        """
        raise NotImplementedError

    def personal(self, state: S) -> S:
        """Return the state whose `x` and `buffers` would be deployed if the run ended here.

        These models are evaluated and saved. The cost of computing them counts for that
        evaluation only.
        """
        return state

    def evaluate(self, state: S, split: SplitName) -> Scores:
        """Evaluate the personal models (see `personal`) on the peers' data."""
        mixture = self.mixture(state)
        if mixture is None:
            return self.engine.losses(state.x, state.buffers, split)
        return self.engine.mixture_losses(*mixture, split)

    def mixture(self, state: S) -> Mixture | None:
        """Return the ensembles that predict, or None where the personal model predicts alone."""
        return None

    def saved(self, state: S) -> Sequence[Mapping[str, Tensor]]:
        """Return the tensors that prediction needs besides the personal model, per hosted peer.

        They are saved in the peer's model file: the weights of a mixture as "mixture", the tensors
        of its members as "members.<name>" (M, ...). A rule that overrides `evaluate` also
        overrides this, for `coterie.app.trained.personal`.
        """
        mixture = self.mixture(state)
        if mixture is None:
            return [{}] * len(state.x)
        peers, members = mixture.weights.shape
        named = self.engine.network.named(mixture.models.flatten(0, 1))
        stacks = {name: value.unflatten(0, (peers, members)) for name, value in named.items()}
        stacks |= mixture.buffers
        used = mixture.weights > 0
        return [
            {"mixture": mixture.weights[p, used[p]]}
            | {f"members.{name}": value[p, used[p]] for name, value in stacks.items()}
            for p in range(peers)
        ]

    def metrics(self, state: S) -> Mapping[str, Floats]:
        """Return the metrics named in `reported`, each (P,); nan where undefined."""
        return {}

    def weights(self, state: S) -> Floats:
        """Return the collaboration weights (P, n) that each peer gives every peer.

        The diagonal is the self weight where the method has one, else 1.
        """
        return self.eye()
