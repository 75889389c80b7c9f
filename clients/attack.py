"""Simulated attacks: the [attack] table, and the table of their kinds. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from coterie.clients.engine.streams import Purpose, stream
from coterie.clients.hints import Ints, Tensor
from coterie.datasets import plugins
from coterie.datasets.problem import Problem
from coterie.ranges import option


@dataclass(frozen=True)
class Knowledge:
    """Knowledge of an attacker that forges one tensor of a letter."""

    own: Tensor  # honest tensor y
    others: Tensor  # honest models received in the last round, or its own answers to all; (k, ...)
    reference: Tensor  # of a model, the mean of `others`, or y if there are none; of an answer, 0
    strength: float
    noise: Callable[[], Tensor]  # standard normal, in the shape of y


@dataclass(frozen=True)
class AttackKind:
    """Kind of attack: a row of `ATTACKS`."""

    summary: str
    forge: Callable[[Knowledge], Tensor] | None = None
    """Function from the attacker's knowledge to each large tensor that it sends; None: honest."""
    data: Callable[[Problem, Ints, float], Problem] | None = None
    """Function from problem, ids of attackers and strength to their problem; None: the same."""
    strength: float = 0.0  # default strength; 0 if the attack has none
    listens: bool = True  # the attacker's method uses the letters that it receives
    needs_classes: bool = False  # works on classification problems only
    needs_letters: bool = False  # honest as long as the attacker has received no letters


def _flipped_labels(problem: Problem, attackers: Ints, strength: float) -> Problem:
    targets = list(problem.train.targets)
    for peer in attackers.tolist():
        targets[peer] = problem.outputs - 1 - targets[peer]
    return replace(problem, train=replace(problem.train, targets=tuple(targets)))


def _false_samples(problem: Problem, attackers: Ints, strength: float) -> Problem:
    samples = problem.samples.copy()
    samples[attackers] = np.round(samples[attackers] * strength)
    return replace(problem, samples=samples)


def _of_others(forge: Callable[[Knowledge], Tensor]) -> Callable[[Knowledge], Tensor]:
    """Return the attack that is honest until letters have arrived."""
    return lambda known: forge(known) if len(known.others) else known.own


ATTACKS: Mapping[str, AttackKind] = {
    "none": AttackKind("no attack"),
    "nan": AttackKind("numbers that are not finite", lambda k: k.own * float("nan")),
    "scale": AttackKind(
        "r + strength (y - r)",
        lambda k: k.reference + k.strength * (k.own - k.reference),
        strength=10.0,
        needs_letters=True,
    ),
    "sign-flip": AttackKind(
        "r - strength (y - r)",
        lambda k: k.reference - k.strength * (k.own - k.reference),
        strength=1.0,
        needs_letters=True,
    ),
    "gaussian": AttackKind(
        "y + strength times normal noise", lambda k: k.own + k.strength * k.noise(), strength=1.0
    ),
    "label-flip": AttackKind(
        "y, trained on labels C - 1 - c instead of c", data=_flipped_labels, needs_classes=True
    ),
    "label-flip-alone": AttackKind(
        "as label-flip, ignoring all received letters",
        data=_flipped_labels,
        listens=False,
        needs_classes=True,
    ),
    "ipm": AttackKind(
        "-strength m (inner-product manipulation)",
        _of_others(lambda k: -k.strength * k.others.mean(dim=0)),
        strength=0.5,
        needs_letters=True,
    ),
    "alie": AttackKind(
        "m - strength s (a little is enough)",
        _of_others(lambda k: k.others.mean(dim=0) - k.strength * k.others.std(dim=0, correction=0)),
        strength=1.5,
        needs_letters=True,
    ),
    "mimic": AttackKind(
        "letter of the first honest peer",
        _of_others(lambda k: k.others[0].clone()),
        needs_letters=True,
    ),
    "samples": AttackKind(
        "y, with a claim of strength times as many examples", data=_false_samples, strength=1000.0
    ),
}
"""Kinds of attack by name; `Attack` defines the symbols."""


@dataclass(frozen=True)
class Attack:
    """Attacks by some of the peers, for simulations.

    An attacker computes an honest letter y (a model or an answer), and sends a malicious one. It
    knows mean m and standard deviation s per coordinate of the honest models that it received in
    the last round, or of its own answers to all peers. The reference r is 0 for answers, m for
    models, and y before any model has arrived.
    """

    kind: str = option(
        "none", "Kind of attack, see `coterie list attacks`, or the name of a plugin."
    )
    peers: str = option("", 'Ids of the attackers, like "0,3".')
    share: float = option(
        0.0,
        "Share of the peers that attack, drawn from the seed; instead of `peers`.",
        low=0,
        below=1,
    )
    strength: float = option(0.0, "Strength of the attack; 0 for the default of its kind.", low=0)

    def __post_init__(self) -> None:
        if self.peers and not all(i.isdecimal() for i in self.peers.split(",")):
            raise ValueError(f'peers must be ids like "0,3", not "{self.peers}"')
        if self.strength and not self.row.strength:
            known = ", ".join(name for name, kind in ATTACKS.items() if kind.strength)
            raise ValueError(f'strength applies to {known}, not to kind "{self.kind}"')
        selections = bool(self.peers) + bool(self.share)
        if self.kind == "none" and selections:
            raise ValueError('kind = "none", but peers or share selects attackers: set kind')
        if self.kind != "none" and selections != 1:
            raise ValueError("select the attackers: set either peers or share")

    @property
    def row(self) -> AttackKind:
        """Row of `ATTACKS`, or of a plugin."""
        return attack_of(self.kind)

    @property
    def power(self) -> float:
        """Strength, or its default for this kind."""
        return self.strength or self.row.strength

    def attackers(self, n: int, seed: int) -> Ints:
        """Return the ids of the attackers, ascending; ValueError: out of range, or all attack."""
        if self.kind == "none":
            return np.empty(0, dtype=np.int64)
        if self.peers:
            ids = np.unique([int(i) for i in self.peers.split(",")])
        else:
            order = stream(seed, 0, 0, Purpose.ATTACK).permutation(n)
            ids = np.sort(order[: max(1, round(self.share * n))])
        if ids.max() >= n:
            raise ValueError(f'peers = "{self.peers}", but peers are 0 to {n - 1}')
        if len(ids) == n:
            raise ValueError("all peers attack: leave at least one honest")
        return ids.astype(np.int64)


attack_of = partial(plugins.row, "attack", built_in=ATTACKS, wanted=AttackKind)
"""Kind of attack by name, built in or of a plugin."""
