"""Partial pooling: each peer sends its estimate and curvature once, and shrinks towards its group.

The model is linear in its trained parameters, theta_i those of peer i: a linear model, or the last
layer of a network whose other layers are frozen. Its letter is the quadratic expansion of its
log likelihood, (b_i, H_i) of `coterie.clients.engine.linear`, at its estimate under a weak prior.
With the letters that arrived and its own one a peer estimates the random effects

    theta_i ~ sum_k pi_k N(mu_k, T) + pi_0 N(0, s^2 I),

groups of similar peers and a background for peers like nobody, with free intercepts and the number
of groups by evidence (`coterie.clients.parts.random_effects`), and its model is the posterior mean
of theta_i. Nothing is tuned, and one round is enough. The map has the influence of each letter on
the slopes of peer i, and is 1 on the diagonal if no group has evidence.

A column whose values differ from its most common one in fewer than `min_rows` training rows, or
groups of rows, is not in a letter: its entries are 0, as if it were constant. Otherwise the row of
H of a rare category would be the average patient of this category.

With `letters` above 1 a peer expands its likelihood again, at the maximum under its current prior.
Letters of a peer that sleeps or comes late are requested until they arrive: a peer with more
letters knows more, and nothing else changes. A letter that is not finite, or whose curvature is not
positive semidefinite, is left out with a warning. Numbers of a regression are measured in the
median of the letters' units, so that no single unit moves it.

Related: DerSimonian and Laird, Controlled Clinical Trials 1986 (random effects); Luo et al., dPQL,
JAMIA 2022 (mixed models from aggregated data); Grimberg et al., Optimal Model Averaging, 2021. The
groups with a background, chosen by evidence from one letter, are ours.

Legend: p = peers of this node, n = all peers, d = parameters, l = numbers of a letter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from coterie.clients.engine.linear import Quadratic, contrast, quadratic, residual_deviation
from coterie.clients.inbox import Inbox
from coterie.clients.leakage import differing
from coterie.clients.letters import Bools, Ints
from coterie.clients.parts.random_effects import ALONE, FREE, Effects, alone, estimated
from coterie.clients.rule import Floats, Rule, State
from coterie.ranges import option
from coterie.strategies.plans import Wanted

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.datasets.problem import Problem

_MOST = 1000
"""Maximum number of parameters: a letter has the square of it, each step on letters the cube."""
_ROUNDING, _SMALLEST, _LARGEST = 1e-5, 1e-12, 1e30
"""Relative size of a negative eigenvalue that rounding may give a curvature; relative size of the
least one with which it is used; largest number of a letter."""


@dataclass(frozen=True)
class PartialPoolingState(State):
    """State of partial pooling."""

    letters: Floats  # newest letters that arrived, and the own one, (P, n, L)
    numbers: Ints  # how many letters each peer had made by then, (P, n); 0 for none
    w: Floats  # influence of each peer's letter, (P, n)


class PartialPooling(
    Rule[PartialPoolingState], strategy=Wanted, group="unknown", learns_graph=True,
    exposes="a letter is an estimate and a curvature of private examples",
    summary="random effects from one letter each: estimate and curvature; linear models only",
):  # fmt: skip
    """Random effects of linear models, with groups by evidence."""

    letters: int = option(1, "Number of letters of each peer; two at few rows per column.", low=1)
    groups: int | Literal["auto"] = option(
        "auto", 'Number of groups of peers; "auto" is chosen by evidence, 0 shares nothing.', low=0
    )

    min_rows: int = option(
        1, "Minimum training rows of a peer (of patients, if rows have groups) in which a column "
        "differs from its most common value; a column with fewer is not in its letter.", low=1,
    )  # fmt: skip

    offers_model: ClassVar[bool] = False

    def check(self, config: Any) -> None:
        if config.network != "linear" and not config.adaptation.frozen:
            raise ValueError(
                f'needs a model that is linear in its parameters: set model = "linear" instead of '
                f'"{config.network}", or model.frozen = "body", which trains the last layer only'
            )

    def check_data(self, problem: Problem) -> None:
        if problem.task not in ("classification", "regression", "survival"):
            raise ValueError(f"has no likelihood of {problem.task}")

    def init(self) -> PartialPoolingState:
        names, shapes = self.engine.network.names, self.engine.network.shapes
        k = self.engine.outputs
        if sorted(shapes, key=len) != [(k,), (k, self.engine.d // k - 1)]:
            raise ValueError(
                f"partial-pooling trains one linear layer with an offset, not {', '.join(names)}: "
                'set model = "linear", or model.frozen = "body"'
            )
        if self.parameters > _MOST:
            raise ValueError(
                f"partial-pooling: {self.parameters} parameters are more than {_MOST}, and a "
                "letter has their square: take fewer columns, or another method"
            )
        start, shape = self.start(), (len(self.engine.peers), self.engine.n)
        letters = np.zeros((*shape, self.size))
        return self.begin(start, letters=letters, numbers=np.zeros(shape, dtype=np.int64))

    @property
    def parameters(self) -> int:
        """Number of free parameters d."""
        c = contrast(self.engine.kind, self.engine.outputs).shape[1]
        return int(c * self.engine.d // self.engine.outputs)

    @property
    def size(self) -> int:
        """Number of entries L of a letter: b, the lower triangle of H, the unit."""
        d = self.parameters
        return d + d * (d + 1) // 2 + 1

    @property
    def is_free(self) -> Bools:
        """Mask of the intercepts, (d,)."""
        per_score = self.engine.d // self.engine.outputs
        return np.asarray(np.arange(self.parameters) % per_score == 0)

    def wants(self, s: PartialPoolingState, t: int) -> Bools:
        return np.asarray(self.near & (s.numbers < min(t, self.letters)))

    def offer(
        self, s: PartialPoolingState, t: int
    ) -> tuple[PartialPoolingState, Mapping[str, Tensor]]:
        letters, numbers, own = s.letters.copy(), s.numbers.copy(), self.engine.peers
        rows = np.arange(len(own))
        made_p = numbers[rows, own]
        is_due = (made_p == 0) | ((made_p < self.letters) & ((numbers > 0).sum(axis=1) > 1))
        if is_due.any():
            inputs_prm = self.engine.embeddings(s.x, s.buffers, "train").double().cpu().numpy()
            for p in np.flatnonzero(is_due):
                letters[p, own[p]] = self._letter(s, int(p), inputs_prm[p])
                numbers[p, own[p]] += 1
        sent = np.concatenate([letters[rows, own], numbers[rows, own, None]], axis=1)
        return replace(s, letters=letters, numbers=numbers), {"letter": self.engine.tensor(sent)}

    def update(self, s: PartialPoolingState, inbox: Inbox) -> PartialPoolingState:
        letters, numbers, w, x_pd = s.letters.copy(), s.numbers.copy(), s.w.copy(), s.x.clone()
        if len(inbox):
            arrived = inbox.offers.each("letter").double().cpu().numpy()
            sound = np.array([self._is_sound(each) for each in arrived])
            if not sound.all():
                self.warn_once(f"{(~sound).sum()} letters with an invalid curvature were left out")
            from_ = inbox.peer[sound], inbox.senders[sound]
            letters[from_] = arrived[sound, :-1]
            numbers[from_] = arrived[sound, -1].clip(1, self.letters)
        for p, peer in enumerate(self.engine.peers):
            present = np.flatnonzero(numbers[p])
            effects, unit = self._effects(letters[p, present])
            at = int(np.searchsorted(present, peer))
            x_pd[p] = self._model(effects.estimates[at] * unit)
            w[p] = 0
            w[p, present] = effects.influence[at]
        return replace(s, letters=letters, numbers=numbers, w=w, x=x_pd)

    def saved(self, s: PartialPoolingState) -> Sequence[Mapping[str, Tensor]]:
        """Return what each hosted peer knows about everybody, for `coefficients.csv` and intervals.

        By letter: "effects.peers" (n,), "effects.own" its estimate alone and "effects.estimates",
        (n, d), with "effects.deviations", and "effects.groups" (n,), -1 for none. By group:
        "effects.means" and "effects.mean_deviations", (K, d). "effects.spread", (d,): the deviation
        within a group; "effects.evidences": by number of groups. "effects.covariance" (d, d) of the
        peer's own estimate, and "effects.noise", the standard deviation of its residuals.
        """
        return [self._saved(s, p) for p in range(len(self.engine.peers))]

    def _saved(self, s: PartialPoolingState, p: int) -> dict[str, Tensor]:
        present, peer = np.flatnonzero(s.numbers[p]), self.engine.peers[p]
        if not len(present):
            return {}
        effects, unit = self._effects(s.letters[p, present])
        b_nd, h_ndd, unit_n = _unpacked(s.letters[p, present], self.parameters)
        own_nd = alone(b_nd, _positive(h_ndd), self.is_free)
        at = int(np.searchsorted(present, peer))
        best = effects.membership.argmax(axis=1)
        values = {
            "peers": present,
            "own": own_nd * unit_n[:, None],
            "estimates": effects.estimates * unit,
            "deviations": _deviations(effects.covariances) * unit,
            "groups": np.where(best < effects.groups, best, -1),
            "means": effects.means * unit,
            "mean_deviations": _deviations(effects.mean_covariances) * unit,
            "spread": np.sqrt(effects.spread) * unit,
            "evidences": effects.evidences,
            "covariance": effects.covariances[at] * unit**2,
        }
        if self.engine.kind == "regression":
            inputs_rm = self.engine.embeddings(s.x, s.buffers, "train")[p].double().cpu().numpy()
            targets_r = self.engine.training_rows(p)[1]
            values["noise"] = residual_deviation(inputs_rm[: len(targets_r)], targets_r)
        return {f"effects.{name}": self.engine.tensor(value) for name, value in values.items()}

    def _effects(self, letters_nl: Floats) -> tuple[Effects, float]:
        groups = None if self.groups == "auto" else self.groups
        return effects_of(letters_nl, self.is_free, groups)

    def _letter(self, s: PartialPoolingState, p: int, inputs_rm: Floats) -> Floats:
        """Return a letter of a hosted peer, (L,), in the precision of its network."""
        engine, d = self.engine, self.parameters
        mean_d, precision_d = np.zeros(d), 1 / np.where(self.is_free, FREE, ALONE)
        _, targets_r, groups_r = engine.training_rows(p)
        inputs_rm = inputs_rm[: len(targets_r)]
        differ_m = differing(inputs_rm, groups_r)
        inputs_rm = np.where(differ_m < self.min_rows, 0.0, inputs_rm)
        if rare := int(((differ_m > 0) & (differ_m < self.min_rows)).sum()):
            self.warn_once(
                f"partial-pooling.min-rows = {self.min_rows}: {rare} of {len(differ_m)} columns "
                f"differ from their most common value in fewer rows, and are not in the letter of "
                f"peer {engine.peers[p]}"
            )
        if s.numbers[p].any():
            present = np.flatnonzero(s.numbers[p])
            effects, unit = self._effects(s.letters[p, present])
            ratio = unit / s.letters[p, engine.peers[p], -1]
            r_c = effects.membership[np.searchsorted(present, engine.peers[p])]
            within_d, beyond_d = 1 / effects.spread, np.full(d, 1 / effects.background)
            slope_d = r_c[:-1].sum() * within_d + r_c[-1] * beyond_d
            mean_d = ratio * (r_c[:-1] @ effects.means) * within_d / slope_d
            precision_d = np.where(self.is_free, 1 / FREE, slope_d / ratio**2)
        engine.n_gradients[p] += len(targets_r)
        of = quadratic(
            engine.task, engine.kind, inputs_rm, targets_r, engine.outputs, mean_d, precision_d
        )
        return np.asarray(engine.tensor(packed(of)).double().cpu().numpy())

    def _is_sound(self, sent_l: Floats) -> bool:
        """Return whether a received letter is one that rows can give."""
        unit = sent_l[-2]
        if not (np.abs(sent_l) < _LARGEST).all() or unit <= 0:  # NaN is not below it
            return False
        if self.engine.kind != "regression" and unit != 1:
            return False
        values = np.linalg.eigvalsh(_unpacked(sent_l[None, :-1], self.parameters)[1][0])
        return bool(values[0] >= -_ROUNDING * max(abs(values[-1]), 1e-12))

    def _model(self, theta_d: Floats) -> Tensor:
        """Return the network (d,) with these parameters."""
        engine = self.engine
        c_kc = contrast(engine.kind, engine.outputs)
        all_kj = c_kc @ theta_d.reshape(c_kc.shape[1], -1)
        x_1d = engine.tensor(np.zeros((1, engine.d)))
        for name, value in engine.network.named(x_1d).items():
            part = all_kj[:, 0] if name.endswith("bias") else all_kj[:, 1:]
            value[0] = engine.tensor(part).view_as(value[0])
        return x_1d[0]


def packed(of: Quadratic) -> Floats:
    """Return the letter of an expansion, (L,)."""
    return np.concatenate([of.b, of.h[np.tril_indices(len(of.b))], [of.unit]])


def effects_of(letters_nl: Floats, is_free_d: Bools, groups: int | None) -> tuple[Effects, float]:
    """Return the random effects of letters, and the unit of their parameters."""
    return _estimated(letters_nl.tobytes(), len(letters_nl), is_free_d.tobytes(), groups)


@lru_cache(maxsize=32)
def _estimated(letters: bytes, n: int, is_free: bytes, groups: int | None) -> tuple[Effects, float]:
    """Return the random effects of n letters, and the unit of their parameters.

    Peers of a node that have the same letters share the result.
    """
    is_free_d = np.frombuffer(is_free, dtype=np.bool_)
    b_nd, h_ndd, unit_n = _unpacked(np.frombuffer(letters).reshape(n, -1), len(is_free_d))
    unit = float(np.exp(np.median(np.log(unit_n))))
    ratio_n = unit / unit_n
    with threadpool_limits(1):  # sums do not depend on the machine's cores
        h_ndd = _positive(h_ndd * ratio_n[:, None, None] ** 2)
        effects = estimated(b_nd * ratio_n[:, None], h_ndd, is_free_d, groups)
    return effects, unit


def _unpacked(letters_nl: Floats, d: int) -> tuple[Floats, Floats, Floats]:
    """Return b (n, d), H (n, d, d) and units (n,) of letters."""
    h_ndd = np.zeros((len(letters_nl), d, d))
    rows, columns = np.tril_indices(d)
    h_ndd[:, rows, columns] = h_ndd[:, columns, rows] = letters_nl[:, d:-1]
    return letters_nl[:, :d], h_ndd, letters_nl[:, -1]


def _positive(h_ndd: Floats) -> Floats:
    """Return curvatures without the negative eigenvalues that the rounding of letters gives."""
    values_nd, vectors_ndd = np.linalg.eigh(h_ndd)
    least_n1 = np.maximum(values_nd[:, -1:] * _SMALLEST, 0)
    return np.asarray(
        (vectors_ndd * np.maximum(values_nd, least_n1)[:, None]) @ vectors_ndd.transpose(0, 2, 1)
    )


def _deviations(covariances_ndd: Floats) -> Floats:
    return np.sqrt(np.diagonal(covariances_ndd, axis1=-2, axis2=-1))
