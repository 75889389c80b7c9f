"""Partial pooling: each peer sends its estimate and curvature once, and shrinks towards its group.

The model is linear, theta_i the parameters of peer i. Its letter is the quadratic expansion of its
log likelihood, (b_i, H_i) of `coterie.clients.engine.linear`, at its estimate under a weak prior.
With the letters that arrived and its own one a peer estimates the random effects

    theta_i ~ sum_k pi_k N(mu_k, T) + pi_0 N(0, s^2 I),

groups of similar peers and a background for peers like nobody, with free intercepts and the number
of groups by evidence (`coterie.clients.parts.random_effects`), and its model is the posterior mean
of theta_i. Nothing is tuned, and one round is enough. The map has the influence of each letter on
the slopes of peer i, and is 1 on the diagonal if no group has evidence.

With `letters` above 1 a peer expands its likelihood again, at the maximum under its current prior.
Letters of a peer that sleeps or comes late are requested until they arrive: a peer with more
letters knows more, and nothing else changes. A letter that is not finite, or whose curvature is not
positive semidefinite, is left out with a warning.

Related: DerSimonian and Laird, Controlled Clinical Trials 1986 (random effects); Luo et al., dPQL,
JAMIA 2022 (mixed models from aggregated data); Grimberg et al., Optimal Model Averaging, 2021. The
groups with a background, chosen by evidence from one letter, are ours.

Legend: p = peers of this node, n = all peers, d = parameters, l = numbers of a letter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

from coterie.clients.engine.linear import contrast, quadratic
from coterie.clients.inbox import Inbox
from coterie.clients.letters import Bools, Ints
from coterie.clients.parts.random_effects import ALONE, FREE, Effects, estimated
from coterie.clients.rule import Floats, Rule, State
from coterie.ranges import option
from coterie.strategies.wanted import Wanted

if TYPE_CHECKING:
    from torch import Tensor

    from coterie.datasets.problem import Problem

_ROUNDING = 1e-5
"""Relative size of a negative eigenvalue that rounding may give a curvature."""


@dataclass(frozen=True)
class PartialPoolingState(State):
    """State of partial pooling."""

    letters: Floats  # newest letters that arrived, and the own one, (P, n, L)
    numbers: Ints  # how many letters each peer had made by then, (P, n); 0 for none
    w: Floats  # influence of each peer's letter, (P, n)


class PartialPooling(
    Rule[PartialPoolingState], strategy=Wanted, group="unknown", learns_graph=True,
    exposes="its letters are an estimate and a curvature, not gradients",
    summary="random effects from one letter each: estimate and curvature; linear models only",
):  # fmt: skip
    """Random effects of linear models, with groups by evidence."""

    letters: int = option(1, "Number of letters of each peer; two at few rows per column.", low=1)
    groups: int | Literal["auto"] = option(
        "auto", 'Number of groups of peers; "auto" is chosen by evidence, 0 shares nothing.', low=0
    )

    offers_model: ClassVar[bool] = False

    def check(self, config: Any) -> None:
        """Reject models that are not linear."""
        if config.network != "linear":
            raise ValueError(
                f'needs a model that is linear in its parameters: set model = "linear" instead of '
                f'"{config.network}"'
            )

    def fits(self, problem: Problem) -> None:
        """Reject problems without rows."""
        if problem.task not in ("classification", "regression", "survival"):
            raise ValueError(f"has no likelihood of {problem.task}")

    def init(self) -> PartialPoolingState:
        start, shape = self.start(), (len(self.engine.peers), self.engine.n)
        letters = np.zeros((*shape, self.size))
        return self.begin(start, letters=letters, numbers=np.zeros(shape, dtype=np.int64))

    @property
    def parameters(self) -> int:
        """Number of free parameters d."""
        c = contrast(self.engine.kind, self.engine.outputs).shape[1]
        return c * self.engine.d // self.engine.outputs

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
        for p, peer in enumerate(own):
            made = int(numbers[p, peer])
            if made == 0 or (made < self.letters and (numbers[p] > 0).sum() > 1):
                letters[p, peer] = self._letter(s, p)
                numbers[p, peer] += 1
        rows = np.arange(len(own))
        sent = np.concatenate([letters[rows, own], numbers[rows, own, None]], axis=1)
        return replace(s, letters=letters, numbers=numbers), {"letter": self.engine.tensor(sent)}

    def update(self, s: PartialPoolingState, inbox: Inbox) -> PartialPoolingState:
        letters, numbers, w, x_pd = s.letters.copy(), s.numbers.copy(), s.w.copy(), s.x.clone()
        if len(inbox):
            arrived = inbox.offers.each("letter").double().cpu().numpy()
            sound = np.array([self._is_sound(each) for each in arrived])
            if not sound.all():
                self.warn_once(f"{(~sound).sum()} letters with an invalid curvature were left out")
            at = inbox.peer[sound], inbox.senders[sound]
            letters[at], numbers[at] = arrived[sound, :-1], arrived[sound, -1].clip(1, self.letters)
        known = dict[bytes, tuple[Effects, float]]()
        for p, peer in enumerate(self.engine.peers):
            present = np.flatnonzero(numbers[p])
            key = present.tobytes() + letters[p, present].tobytes()
            if key not in known:
                known[key] = self._effects(letters[p, present])
            effects, unit = known[key]
            at = int(np.searchsorted(present, peer))
            x_pd[p] = self._model(effects.estimates[at] * unit)
            w[p] = 0
            w[p, present] = effects.influence[at]
        return replace(s, letters=letters, numbers=numbers, w=w, x=x_pd)

    def effects(self, s: PartialPoolingState, p: int) -> tuple[Effects, Ints]:
        """Return the random effects that a hosted peer knows, in its unit, and whose they are."""
        present = np.flatnonzero(s.numbers[p])
        return self._effects(s.letters[p, present])[0], present

    def _effects(self, letters_nl: Floats) -> tuple[Effects, float]:
        """Return the random effects of letters, and the unit of their parameters."""
        d = self.parameters
        b_nd, h_ndd, unit_n = self._unpacked(letters_nl)
        unit = float(np.exp(np.log(unit_n).mean()))
        ratio_n = unit / unit_n
        with threadpool_limits(1):  # sums do not depend on the machine's cores
            effects = estimated(
                b_nd * ratio_n[:, None], h_ndd * ratio_n[:, None, None] ** 2, self.is_free[:d],
                None if self.groups == "auto" else self.groups,
            )  # fmt: skip
        return effects, unit

    def _letter(self, s: PartialPoolingState, p: int) -> Floats:
        """Return a letter of a hosted peer, (L,), in the precision of its network."""
        engine, d = self.engine, self.parameters
        mean_d, precision_d = np.zeros(d), 1 / np.where(self.is_free, FREE, ALONE)
        inputs_rm, targets_r, _ = engine.training_rows(p)
        if s.numbers[p].any():
            effects, present = self.effects(s, p)
            r_c = effects.membership[np.searchsorted(present, engine.peers[p])]
            slopes_cd = np.array(
                [effects.spread] * effects.groups + [np.full(d, effects.background)]
            )
            precision_d = np.where(self.is_free, 1 / FREE, r_c @ (1 / slopes_cd))
            mean_d = r_c[:-1] @ effects.means / np.maximum(slopes_cd[0] * precision_d, 1e-12)
        engine.n_gradients[p] += len(targets_r)
        of = quadratic(
            engine.task, engine.kind, inputs_rm, targets_r, engine.outputs, mean_d, precision_d
        )
        letter = np.concatenate([of.b, of.h[np.tril_indices(d)], [of.unit]])
        return np.asarray(engine.tensor(letter).double().cpu().numpy())

    def _unpacked(self, letters_nl: Floats) -> tuple[Floats, Floats, Floats]:
        """Return b (n, d), H (n, d, d) and units (n,) of letters."""
        d = self.parameters
        h_ndd = np.zeros((len(letters_nl), d, d))
        rows, columns = np.tril_indices(d)
        h_ndd[:, rows, columns] = h_ndd[:, columns, rows] = letters_nl[:, d:-1]
        return letters_nl[:, :d], h_ndd, letters_nl[:, -1]

    def _is_sound(self, sent_l: Floats) -> bool:
        """Return whether a received letter is one that rows can give."""
        if not np.isfinite(sent_l).all() or sent_l[-2] <= 0:
            return False
        values = np.linalg.eigvalsh(self._unpacked(sent_l[None, :-1])[1][0])
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
