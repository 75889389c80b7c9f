"""Interface of a method's peer rule, and the state that all rules share.

A rule is `init` plus transitions over named state: each returns a new state and mutates nothing.
Every array in a state has a leading axis over the node's peers, so a node can store, move and
resume each peer separately. Rules do not import torch; `Tensor` is for type checkers only. Legend:
p = peers of this node, n = all peers, e = letters, d = parameters.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, fields, replace
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Literal,
    Protocol,
    Self,
    TypeVar,
    cast,
    dataclass_transform,
    get_args,
)

import numpy as np

from coterie.clients.engine.streams import Purpose, stream
from coterie.clients.hints import (
    Batch,
    Bools,
    Engine,
    Fit,
    GradientFunction,
    Ints,
    Scores,
    SplitName,
    Tensor,
)
from coterie.clients.hints import Floats as Floats
from coterie.clients.inbox import Inbox
from coterie.clients.letters import Letters, no_letters
from coterie.clients.mixture import Mixture
from coterie.clients.training import Drift, Terms
from coterie.strategies.exchange_plan import ExchangePlan
from coterie.strategies.plans import Everyone
from coterie.strategies.protocol import METRICS

Group = Literal["unknown", "groups", "personal", "helpers", "alike", "references"]
GROUPS: Mapping[Group, str] = {
    "unknown": "Unknown similarity of peers",
    "groups": "A few groups of similar peers",
    "personal": "A shared model with personal parts or copies",
    "helpers": "A few peers that want help",
    "alike": "Similar peers",
    "references": "References, to run beside the others",
}
"""Group of methods -> the situation in which to choose one of them, in the order of lists."""


class Clustered(Protocol):
    """Object that may know the peers' true clusters: a problem or an engine."""

    @property
    def clusters(self) -> Ints | None: ...


def true_clusters(
    source: Clustered,
    remedy: str = "set partition.kind to label-permutation, label-groups or label-flip",
) -> Ints:
    """Return the true cluster of each peer, (n,); an error for unknown ones ends with `remedy`."""
    if source.clusters is None:
        raise ValueError(f"the true clusters are unknown for this problem: {remedy}")
    return source.clusters


@dataclass(frozen=True)
class State:
    """State of the hosted peers, common to all methods."""

    x: Tensor  # (P, d), personal models
    buffers: dict[str, Tensor]  # (P, ...)
    """Running statistics, such as batch norm's; never sent to other peers."""
    opt_state: dict[str, Tensor]  # (P, ...), optimizer state, such as momentum

    def buffers_at(self, rows: Ints) -> dict[str, Tensor]:
        """Return the buffers of the hosted peers `rows`, which may repeat."""
        return {name: value[rows] for name, value in self.buffers.items()}

    def buffers_of_members(self, m: int) -> dict[str, Tensor]:
        """Return the buffers of each peer for all M members of its ensemble, (P, M, ...)."""
        return {k: v[:, None].expand(-1, m, *v.shape[1:]) for k, v in self.buffers.items()}

    def trained(self, fit: Fit) -> Self:
        """Return the state with the trained personal models."""
        return replace(self, x=fit.x, buffers=fit.buffers, opt_state=fit.opt_state)


@dataclass(frozen=True)
class Weighted(State):
    """State with the weights of the last average, which are the collaboration weights."""

    w: Floats  # (P, n)


S = TypeVar("S", bound=State)
T = TypeVar("T", bound=State)


@dataclass_transform(frozen_default=True)
class Method:
    """Declaration of a method, known before a run: options, strategy, place in lists."""

    strategy: ClassVar[type[ExchangePlan]] = Everyone
    """Selects the edges of a round; options with the name of one of its fields are also its own."""
    summary: ClassVar[str] = "plugin"  # by default the first line of the class's docstring
    group: ClassVar[Group | None] = None  # situation in which to choose the method, see `GROUPS`
    learns_graph: ClassVar[bool] = False  # learns the weights between peers from models and data
    validates: ClassVar[bool] = False  # needs validation data
    true_clusters: ClassVar[bool | Mapping[str, str]] = False
    """True if the method is given the true clusters, which others must learn; or the option keys
    and values with which it is."""
    reference: ClassVar[str] = ""
    """Why the method is not ranked: "NAME is trained on the data of all peers"."""
    exposes: ClassVar[str] = ""
    """Why differential privacy does not cover it: private examples matter beyond gradients."""
    any_model: ClassVar[bool] = False
    """The method neither averages parameters nor computes gradients itself, so that it also works
    with models that a library fits (`coterie.clients.models.fitted`)."""
    keeps_rounds: ClassVar[bool] = False
    """A peer keeps its models (`models_kept`) of every round."""
    pools: ClassVar[bool] = False
    """Training uses the data of all peers (`Engine.fit_pooled`), which only simulations have."""
    reported: ClassVar[tuple[str, ...]] = ()
    """Names of additional metrics in a report; the relay rejects any others."""
    state: ClassVar[type[State]] = State
    """Type of the state, from the brackets of the base class."""

    if TYPE_CHECKING:

        @property
        def engine(self) -> Engine: ...

        @property
        def rounds(self) -> int: ...

    def __init_subclass__(cls, *, summary: str = "", group: Group | None = None, **row: Any):
        super().__init_subclass__()
        summary = summary or _summary(vars(cls).get("__doc__") or "Plugin.")
        names = "strategy", "learns_graph", "validates", "true_clusters", "reference", "exposes"
        if unknown := row.keys() - set(names):
            raise TypeError(f"{cls.__name__} has no class keyword {min(unknown)}")
        for name, value in {"summary": summary, "group": group, **row}.items():
            setattr(cls, name, value)
        for base in vars(cls).get("__orig_bases__", ()):
            for kind in get_args(base):
                state = getattr(kind, "__bound__", kind)  # of a type variable
                if isinstance(state, type) and issubclass(state, State):
                    cls.state = state
        taken = {name for base in cls.__mro__ if base.__module__ == __name__ for name in vars(base)}
        for name, value in vars(cls).items():
            if name in taken and isinstance(value, Field):
                raise TypeError(
                    f"option {name} of {cls.__name__} has the name of an attribute of "
                    f'coterie.Rule: write {name}_ (its key stays "{name}")'
                )
        dataclass(frozen=True)(cls)

    def bind(self, engine: Engine, rounds: int) -> Self:
        """Return the rule with these options, for the peers of an engine."""
        rule: Self = replace(self)  # type: ignore[type-var]  # subclasses are dataclasses
        vars(rule).update(engine=engine, rounds=rounds)
        return rule

    def narrowed(self, engine: Engine) -> Self:
        """Return the rule for another engine that hosts some of this engine's peers."""
        return self.bind(engine, self.rounds)

    def check(self, config: Any) -> None:
        """Raise a ValueError for a configuration that does not suit the options."""

    def check_data(self, problem: Any) -> None:
        """Raise a ValueError for data that do not suit the options."""

    def models_kept(self, peers: int) -> int:
        """Return the number of models that a peer keeps, for the memory of a node."""
        return 1

    def exchange_plan(self, **run: Any) -> ExchangePlan:
        """Return the strategy of a run; `run` has the fields of `ExchangePlan`."""
        known = {each.name for each in fields(self.strategy)} - {
            each.name for each in fields(ExchangePlan)
        }
        own = {name: getattr(self, name) for name in known if hasattr(self, name)}
        return self.strategy(metrics=METRICS.union(self.reported), **run, **own)

    @classmethod
    def knows_clusters(cls, options: Mapping[str, Any]) -> bool:
        """Return whether a method with these keys and values is given the true clusters."""
        if isinstance(cls.true_clusters, bool):
            return cls.true_clusters
        return any(options.get(key) == value for key, value in cls.true_clusters.items())

    @classmethod
    def unranked(cls, options: Mapping[str, Any]) -> str:
        """Return why the method with these options is not ranked; empty if it is."""
        return cls.reference or cls.knows_clusters(options) * "is given the true clusters"


def _summary(docstring: str) -> str:
    """Return the first line as an entry of a list: "K models.", "One model." -> "one model"."""
    first, space, rest = docstring.partition("\n")[0].removesuffix(".").partition(" ")
    return (first.lower() if first[1:].islower() or first == "A" else first) + space + rest


class Formulas(Method):
    """Operations that the formulas of methods share."""

    @property
    def common_start(self) -> bool:
        """True if all peers start from the same model."""
        return True

    def start(self) -> State:
        """Return the initial models, buffers and optimizer state."""
        x_pd, buffers = self.engine.initial(common=self.common_start)
        return State(x_pd, buffers, self.engine.opt_state(x_pd))

    def fit(
        self,
        state: T,
        round_: int,
        *,
        batches: Sequence[Batch] | None = None,
        gradient: GradientFunction | None = None,
        proximal: tuple[float, Tensor] | None = None,
        mask: Tensor | None = None,
        pull: Drift | None = None,
        **more: Any,
    ) -> T:
        """Return the state after the local training of a round, with `more` fields replaced.

        `batches`: one minibatch per step, None: those of the round. `gradient`, of models, buffers
        and minibatch, is the one to descend, None: that of the local loss. `proximal`: strength mu
        and centre c (P, d) of a term mu/2 |x - c|^2. `mask` (P, d): factors of the gradient's
        entries. `pull`, of models (E, d) and their rows, is a further direction to descend; neither
        momentum nor Adam's scaling applies to it.
        """
        batches = self.engine.batches(round_) if batches is None else batches
        terms = Terms(pull, proximal, mask)
        fit = self.engine.fit(
            state.x, state.buffers, state.opt_state, batches, gradient=gradient, terms=terms
        )
        return replace(state.trained(fit), **more)

    def draws(self, round_: int) -> Iterator[np.random.Generator]:
        """Yield the random generator of each hosted peer for its choices of a round."""
        for peer in self.engine.peers:
            yield stream(self.engine.seed, int(peer), round_, Purpose.CHOICE)

    def eye(self) -> Floats:
        """Return the rows of the identity matrix for the hosted peers, (P, n)."""
        is_own = np.arange(self.engine.n) == self.engine.peers[:, None]
        return np.asarray(is_own, dtype=np.float64)

    @property
    def near(self) -> Bools:
        """Neighbours of the hosted peers in the topology, (P, n)."""
        return np.asarray(self.engine.topology[self.engine.peers])

    def same_cluster(self) -> Bools:
        """Return a mask (P, n) of the peers in each hosted peer's true cluster, itself included."""
        clusters = true_clusters(self.engine)
        return np.asarray(clusters[self.engine.peers][:, None] == clusters[None, :])

    def edges(self, mask_pn: Bools | None) -> Ints:
        """Return the edges (W, 2), [sender, recipient], of a mask as returned by `wants`."""
        if mask_pn is None:
            return np.empty((0, 2), dtype=np.int64)
        p, other = np.nonzero(mask_pn & (self.eye() == 0))
        hosted = self.engine.peers[p]
        ends = [hosted, other] if self.strategy.wanted_by == 0 else [other, hosted]
        return np.stack(ends, axis=1)

    def inbox(
        self, round_: int, offers: Letters, sent: Letters | None = None,
        answers: Letters | None = None,
    ) -> Inbox:  # fmt: skip
        """Return the inbox of a round with these letters."""
        return Inbox(self.engine, round_, offers, sent or no_letters(), answers or no_letters())

    def warn_once(self, message: str) -> None:
        """Warn, at most once."""
        if "_warned" not in vars(self):
            vars(self)["_warned"] = True
            warnings.warn(message, stacklevel=3)


def epsilon_greedy(explores: Iterable[bool], shuffled: Ints, best: Ints) -> Ints:
    """Sample one peer per slot, without repetition.

    A slot that explores takes the next peer of `shuffled`, another one of `best`: the same peers in
    random order and by descending merit, at least one per slot.
    """
    taken: dict[int, None] = {}
    for explore in explores:
        order = shuffled if explore else best
        taken[next(int(k) for k in order if int(k) not in taken)] = None
    return np.array(list(taken), dtype=np.int64)


class Rule(Formulas, Generic[S]):
    """Method: what a peer computes, for all peers of a node at once.

    A round is `offer`, `answer` (of strategies that ask) and `update`. Options are fields,
    `gamma: float = option(0.01, "Step size.", low=0)`, and become keys `<method>.gamma`; an
    underscore at the end of a name is no part of the key. The type of the state is in brackets,
    `class CoBo(Rule[CoBoState], strategy=Pairs)`; see `Method` for the other class keywords. A rule
    cannot be changed: what a round changes belongs into the state.
    """

    mixes: ClassVar[bool] = False
    """Rounds end in an average whose weights a topology may set (`Engine.mixing`)."""
    compares_pairs: ClassVar[bool] = False
    """`update` reads answers by `Inbox.exchanged` alone: they need not all be kept at a time."""
    offers_model: ClassVar[bool] = True
    """Offers have the peer's model, `State.x`, as "x": the scheme "increments" compresses it."""

    def init(self) -> S:
        """Return the state before round 1."""
        return self.begin()

    def begin(self, start: State | None = None, **more: Any) -> S:
        """Return the state before round 1: `start` with these fields, and `w` else the identity."""
        if "w" not in more and any(each.name == "w" for each in fields(self.state)):
            more["w"] = self.eye()
        return cast(S, self.state(**vars(start or self.start()) | more))

    def wants(self, s: S, t: int) -> Bools | None:
        """Return a mask (P, n) of the peers whose letters the hosted peers request.

        Read only by strategies that ask for it; of `WantedHelp`, it masks the peers that the
        hosted ones ask for help. None: none.
        """
        return None

    def offer(self, s: S, t: int) -> tuple[S, Mapping[str, Tensor]]:
        """Begin the round; return also the tensors (P, ...) that each peer sends.

        Methods that train before they share train here.
        """
        return s, {"x": s.x}

    def answer_shapes(self, t: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor in an answer of round `t` (ask methods)."""
        return {"g": (self.engine.d,)}

    def receive(self, s: S, asked: Inbox) -> S:
        """Return the state after offers that ask arrived and before they are answered."""
        return s

    def answer(self, s: S, asked: Inbox) -> Mapping[str, Tensor]:
        """Return the answers (E, ...) to offers that ask, one row per letter of `asked`."""
        raise NotImplementedError(f"{type(self).__name__} does not implement answer()")

    def update(self, s: S, inbox: Inbox) -> S:
        """End the round: `s` is the state after `offer` and `answer`, `inbox` what arrived."""
        raise NotImplementedError

    # ---- the result -------------------------------------------------------------------------

    def personal(self, s: S) -> S:
        """Return the state whose `x` and `buffers` would be deployed if the run ended here.

        The cost of computing them counts for the evaluation only.
        """
        return s

    def evaluate(self, s: S, split: SplitName) -> Scores:
        """Evaluate the personal models (see `personal`) on the peers' data."""
        mixture = self.mixture(s)
        if mixture is None:
            return self.engine.losses(s.x, s.buffers, split)
        return self.engine.mixture_losses(mixture, split)

    def mixture(self, s: S) -> Mixture | None:
        """Return the ensembles that predict, or None where the personal model predicts alone."""
        return None

    def saved(self, s: S) -> Sequence[Mapping[str, Tensor]]:
        """Return the tensors that prediction needs besides the personal model, per hosted peer.

        They are saved in the peer's model file: the weights of a mixture as "mixture", the limits
        of its members as "mixture.low" and "mixture.high", their authors as "mixture.authors",
        their tensors as "members.<name>" (M, ...). A rule that overrides `evaluate` also overrides
        this, for `coterie.app.trained.personal`.
        """
        mixture = self.mixture(s)
        if mixture is None:
            return [{}] * len(s.x)
        peers, members = mixture.weights.shape
        named = self.engine.network.named(mixture.models.flatten(0, 1))
        stacks = {name: value.unflatten(0, (peers, members)) for name, value in named.items()}
        stacks |= mixture.buffers
        used = mixture.weights != 0
        used[:, 0] |= ~used.any(dim=1)  # a file has a member
        offset = mixture.offset
        limits: dict[str, Tensor] = {}
        if mixture.low is not None and mixture.high is not None and mixture.authors is not None:
            authors = mixture.weights.new_tensor(mixture.authors).long()
            limits = {"low": mixture.low, "high": mixture.high, "authors": authors}
        return [
            {"mixture": mixture.weights[p, used[p]]}
            | ({} if offset is None else {"mixture.offset": offset[p]})
            | {f"mixture.{name}": value[p, used[p]] for name, value in limits.items()}
            | {f"members.{name}": value[p, used[p]] for name, value in stacks.items()}
            for p in range(peers)
        ]

    def beyond(self, s: S) -> Sequence[Mapping[int, tuple[int, int]]]:
        """Return by author, per hosted peer, in how many test rows its models were limited.

        The second number counts those whose predicted class they would have changed without.
        """
        mixture = self.mixture(s)
        if mixture is None or mixture.low is None:
            return [{}] * len(s.x)
        return self.engine.beyond_limits(mixture, "test")

    def metrics(self, s: S) -> Mapping[str, Floats]:
        """Return the metrics named in `reported`, each (P,); nan where undefined."""
        return {}

    def weights(self, s: S) -> Floats:
        """Return the collaboration weights (P, n) that each peer gives every peer, the state's `w`.

        The diagonal is the self weight where the method has one, else 1.
        """
        return cast(Floats, getattr(s, "w", None)) if hasattr(s, "w") else self.eye()
