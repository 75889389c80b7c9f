"""What a peer computes: the interface of a method's peer rule, and the state all rules share.

A rule is `init` plus transitions over named state: each returns what it changed and nothing is
mutated. Every array in a state has a leading axis of the node's peers, so a node can store, move
and resume each peer by itself. Rules are formulas over the engine's four operations and need no
torch of their own; `Tensor` is a name for type checkers. Legend: p = peers of this node, n = all
peers, e = letters, d = parameters.
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
"""`grid` of an option dataclass: the key that `compare --tune` varies, and its three values."""


class Clustered(Protocol):
    """What may know the peers' true clusters: a problem, an engine."""

    @property
    def clusters(self) -> Ints | None: ...


def true_clusters(
    of: Clustered,
    remedy: str = "set partition.kind to label-permutation, label-groups or label-flip",
) -> Ints:
    """(n,) the true cluster of each peer.

    Raises
    ------
    ValueError : nobody knows it; says the remedy.
    """
    if of.clusters is None:
        raise ValueError(f"the true clusters are unknown here: {remedy}")
    return of.clusters


@dataclass(frozen=True)
class State:
    """What every peer keeps.

    Attributes
    ----------
    x : (P, d) personal models.
    buffers : name -> (P, ...), running statistics; they never travel.
    opt_state : name -> (P, ...), the optimizer's memory.
    """

    x: Tensor
    buffers: dict[str, Tensor]
    opt_state: dict[str, Tensor]

    def buffers_at(self, rows: Ints) -> dict[str, Tensor]:
        """The buffers of some hosted peers, each as often as it stands in `rows`."""
        return {name: value[rows] for name, value in self.buffers.items()}

    def trained(self, fit: Fit) -> Self:
        """The state after the personal models were trained."""
        return replace(self, x=fit.x, buffers=fit.buffers, opt_state=fit.opt_state)


class Mixture(NamedTuple):
    """Models whose predictions are averaged, for each hosted peer.

    Attributes
    ----------
    weights : (P, M) of the members; rows sum to 1, and a member of weight 0 is none.
    models : (P, M, d). buffers : name -> (P, M, ...).
    """

    weights: Tensor
    models: Tensor
    buffers: dict[str, Tensor]


S = TypeVar("S", bound=State)


class Rule(Generic[S]):
    """A method's peer rule, for all peers of a node at once.

    A round is offer / answer / update; pull and silent methods leave `answer` alone.

    Parameters
    ----------
    engine : the stacked models and the peers' data.
    options : the method's option dataclass.
    rounds : rounds of the whole run.
    """

    common_start: ClassVar[bool] = True
    """Whether all peers start from one model."""
    mixes: ClassVar[bool] = False
    """Whether rounds end in an average whose weights a topology may bring (`Engine.mixing`)."""
    reported: ClassVar[tuple[str, ...]] = ()
    """Names of further measurements that a report carries; a relay takes no others."""

    def __init__(self, engine: Engine, options: Any, rounds: int) -> None:
        self.engine, self.options, self.rounds = engine, options, rounds

    def narrowed(self, engine: Engine) -> Self:
        """The same rule for the peers of another engine: some of this one's."""
        return type(self)(engine, self.options, self.rounds)

    def start(self) -> State:
        """The shared part of a fresh state."""
        x_pd, buffers = self.engine.initial(common=self.common_start)
        return State(x_pd, buffers, self.engine.opt_state(x_pd))

    def init(self) -> S:
        """The state before round 1."""
        return self.start()  # type: ignore[return-value]  # S is State unless `init` is overridden

    def wants(self, state: S, round_: int) -> Ints:
        """Edges (W, 2), sender and recipient, that the peers want in `round_`.

        Only brokers that ask for wants read them; each edge has a hosted peer at one end.
        """
        return np.empty((0, 2), dtype=np.int64)

    def offer(self, state: S, round_: int) -> tuple[S, Mapping[str, Tensor]]:
        """Begin the round: the state after, and what each peer shows, name -> (P, ...).

        Methods that train before they share train here.
        """
        return state, {"x": state.x}

    def answer_shapes(self, round_: int) -> dict[str, tuple[int, ...]]:
        """Shape of each tensor in one answer of `round_`, for ask methods."""
        return {"g": (self.engine.d,)}

    def answer(self, state: S, round_: int, asked: Letters) -> tuple[S, Mapping[str, Tensor]]:
        """Answer offers that want it: the state after, and name -> (E, ...), one row a letter."""
        raise NotImplementedError(f"{type(self).__name__} gives no answers")

    def update(self, state: S, round_: int, offers: Letters, sent: Letters, answers: Letters) -> S:
        """End the round.

        Parameters
        ----------
        offers : models this node's peers received.
        sent : answers they gave (sender = hosted peer).
        answers : answers they got (recipient = hosted peer).
        """
        raise NotImplementedError

    def personal(self, state: S) -> S:
        """The state whose `x` and `buffers` a peer would deploy if the run ended here.

        These are the models that are evaluated and saved; by default what the state holds. What
        it costs to make them counts for that evaluation only.
        """
        return state

    def evaluate(self, state: S, split: SplitName) -> Scores:
        """Loss and accuracy of the personal models (see `personal`) on the peers' own split."""
        mixture = self.mixture(state)
        if mixture is None:
            return self.engine.losses(state.x, state.buffers, split)
        return self.engine.mixture_losses(*mixture, split)

    def mixture(self, state: S) -> Mixture | None:
        """The models that make each peer's prediction together; None: the personal model alone."""
        return None

    def saved(self, state: S) -> Sequence[Mapping[str, Tensor]]:
        """What each hosted peer's prediction needs beside its personal model; its file has it.

        A mixture's weights are called "mixture", its models' tensors "members.<name>" (M, ...).
        A rule that overrides `evaluate` says here what `coterie.app.trained.personal` predicts
        with.
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
        """The measurements `reported`, name -> (P,); nan where there is none."""
        return {}

    def weights(self, state: S) -> Floats:
        """(P, n) weight each peer gives every peer; self weight on the diagonal, else 1."""
        return self.eye()

    # ---- small things many rules need ------------------------------------------------------

    def eye(self) -> Floats:
        """(P, n) 1 at each hosted peer itself."""
        peers = self.engine.peers
        own_pn = np.zeros((len(peers), self.engine.n))
        own_pn[np.arange(len(peers)), peers] = 1.0
        return own_pn

    def same_cluster(self) -> Bools:
        """(P, n) who shares each hosted peer's true cluster (see `true_clusters`), and itself."""
        clusters = true_clusters(self.engine)
        same: Bools = clusters[self.engine.peers][:, None] == clusters[None, :]
        return same

    def local(self, peers: Ints) -> Ints:
        """Local index of hosted peers given by id."""
        return np.searchsorted(self.engine.peers, peers)

    def pairs(self, mask_pn: Bools, *, hearing: bool = True) -> Ints:
        """Edges (W, 2) of a mask over (hosted peer, other); hosted peers receive, or send."""
        p, other = np.nonzero(mask_pn)
        own = self.engine.peers[p]
        edges = np.stack([other, own] if hearing else [own, other], axis=1)
        away: Ints = edges[edges[:, 0] != edges[:, 1]]
        return away

    def present(self, offers: Letters) -> Bools:
        """(P, n) whose models each peer has: those it received, and its own unless that expired."""
        own_pn = self.eye() > 0
        own_pn[np.isin(self.engine.peers, offers.expired)] = False
        return offers.senders_to(self.engine.peers, self.engine.n) | own_pn

    def freshness(self, offers: Letters) -> Floats:
        """(n,) staleness discount of everybody's model: (s + 1)^-a at an age of s rounds."""
        fresh_n = np.ones(self.engine.n)
        if len(offers.ages):
            ages_s = np.maximum(offers.ages, 0)
            fresh_n[offers.authors] = (ages_s + 1.0) ** -self.engine.staleness_discount
        return fresh_n

    def discounted(self, weights_pn: Floats, offers: Letters) -> Floats:
        """Weights of models, less where they are old (`freshness`); rows sum to what they did."""
        found_pn = weights_pn * self.freshness(offers)
        before_p1, after_p1 = (w.sum(axis=1, keepdims=True) for w in (weights_pn, found_pn))
        scaled: Floats = found_pn * (before_p1 / np.where(after_p1 > 0, after_p1, 1.0))
        return scaled

    def average(self, offers: Letters, name: str, weights_pn: Floats) -> Tensor:
        """Each peer's weighted sum of the models it received and its own (P, d).

        Weights are taken at those models, discounted by their age, and scaled to sum to 1. A peer
        without any keeps its own.
        """
        weights_pn = np.where(self.present(offers), weights_pn, 0.0)
        weights_pn = np.where(weights_pn.any(axis=1, keepdims=True), weights_pn, self.eye())
        weights_pn = self.discounted(weights_pn, offers)
        weights_pn /= weights_pn.sum(axis=1, keepdims=True)
        own_pd = Rows(offers[name], np.searchsorted(offers.authors, self.engine.peers))
        return self.engine.mix(weights_pn[:, offers.authors], offers[name], own_pd)

    def answered(self, answers: Letters, name: str, weights_pn: Floats) -> Tensor:
        """Each peer's weighted sum of the answers it got (P, d); 0 where none came."""
        rows = self.local(answers.recipients)
        if not len(rows):
            return self.engine.tensor(np.zeros((len(weights_pn), self.engine.d)))
        weights_e = weights_pn[rows, answers.senders]
        return self.engine.collect(weights_e, answers[name], answers.rows, rows)
