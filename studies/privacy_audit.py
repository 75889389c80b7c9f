"""Epsilon proven by an attack, and the claimed epsilon: `python -m studies.privacy_audit`.

Two worlds differ in one example of a peer: a canary whose gradient is longer than the clip, or one
with the opposite gradient in its place; no other example has a gradient in that direction. Each of
`TRIALS` peers is one trial: the attacker knows the model, all other examples, clip and noise, sees
the peer's letters, and guesses the world by the likelihood ratio. Its threshold is
chosen on half of the trials; on the others, intervals of Clopper and Pearson around its errors give
a lower bound of epsilon that holds with 95 % confidence (Jagielski, Ullman, Oprea, "Auditing
differentially private machine learning", NeurIPS 2020). It must lie below the claim; without noise
it is as large as this number of trials can show.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table
from scipy.special import logsumexp
from scipy.stats import beta

from coterie.clients.engine.engine import Engine
from coterie.clients.privacy import Privacy
from coterie.clients.training import Training
from coterie.datasets.problem import Problem, Split

TRIALS = 2000
EXAMPLES = 32
DELTA = 1e-4
NOISES = (0.0, 2.0, 4.0, 8.0)
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Look:
    """View of an attacker on a peer.

    Attributes
    ----------
    steps : int
        Number of gradients, each with separate noise.
    drawn : int
        Number of examples in each minibatch.
    last : bool
        True if the attacker sees only the trained model, not each gradient.
    """

    steps: int
    drawn: int = EXAMPLES
    last: bool = False


LOOKS = {
    "one answer on all examples": Look(1),
    "ten answers on all examples": Look(10),
    "ten answers on minibatches of 8 of 32": Look(10, drawn=8),
    "the model after ten steps on all examples": Look(10, last=True),
}


def worlds(trials: int) -> Problem:
    """Build peers that differ in their last example: the canary, or (second half) its twin."""
    inputs = np.random.default_rng(0).normal(size=(EXAMPLES + 1, 1, 4, 4))
    inputs[:, :, 0, 0] = 0  # a pixel of the canary's own
    inputs[-2:] = 0
    inputs[-2, 0, 0, 0], inputs[-1, 0, 0, 0] = 100, -100
    labels = np.arange(EXAMPLES, dtype=np.int64) % 3
    rows = np.arange(EXAMPLES, dtype=np.int64)
    twin = np.append(rows[:-1], EXAMPLES)
    half = trials // 2
    train = Split((rows,) * half + (twin,) * half, (labels,) * trials)
    none = Split((rows[:1],) * trials, (labels[:1],) * trials)
    return Problem(
        name="canaries", task="classification", inputs=inputs, train=train, validation=none,
        test=none, outputs=3, mean=np.zeros((1, 1, 1)), std=np.ones((1, 1, 1)),
        samples=np.full(trials, EXAMPLES),
    )  # fmt: skip


def attack(look: Look, noise: float, trials: int = TRIALS) -> tuple[Floats, float]:
    """Return log likelihood ratios of the canary and its twin, and the claimed epsilon.

    Returns
    -------
    likelihoods : ndarray, (2, trials / 2)
        Log likelihood ratios of the trials with the canary and with its twin.
    epsilon : float
        Claimed epsilon.
    """
    problem = worlds(trials)
    training = Training(
        batch_size=look.drawn, local_steps=look.steps, optimizer="sgd", learning_rate=1e-6
    )

    def engine(noise: float, peers: range) -> Engine:
        privacy = Privacy("examples", clip=1.0, noise=noise, delta=DELTA)
        return Engine(
            problem, "linear", None, peers, training, dtype="float64", device="cpu", privacy=privacy
        )

    attacked = engine(noise, range(trials))
    x_pd, buffers = attacked.initial()
    x_pd.zero_()  # where every class is as likely, opposite examples have opposite gradients
    batches = attacked.batches(1)
    if look.last:
        fit = attacked.fit(x_pd, buffers, attacked.opt_state(x_pd), batches)
        seen_spd = [(x_pd - fit.x) / training.learning_rate]
    else:
        seen_spd = [attacked.gradients(x_pd, buffers, batch).values for batch in batches]
    known = engine(0.0, range(trials // 2 - 1, trials // 2 + 1))  # one peer of each world
    x_2d, _ = known.initial()
    g_2d = known.gradients(x_2d.zero_(), buffers, known.data.everything()).values
    towards_d = (g_2d[0] - g_2d[1]) / (g_2d[0] - g_2d[1]).norm()
    assert attacked.guard is not None
    claimed = float(attacked.guard.epsilon().max())
    steps = look.steps if look.last else 1
    of_step = [
        _log_ratio(look.drawn * (seen_pd @ towards_d).numpy(), look, steps, noise)
        for seen_pd in seen_spd
    ]
    return np.sum(of_step, axis=0).reshape(2, -1), claimed


def _log_ratio(sum_p: Floats, look: Look, steps: int, noise: float) -> Floats:
    """Return the log likelihood ratio of gradient sums with the canary (of norm 1) or its twin."""
    share = look.drawn / EXAMPLES
    variance = 2 * steps * max(noise, 0.1) ** 2

    def likelihood(mean: float) -> Floats:
        if share == 1:
            return np.asarray(-((sum_p - steps * mean) ** 2) / variance)
        each = [-((sum_p - mean) ** 2) / variance, -(sum_p**2) / variance]
        weights = np.array([share, 1 - share])[:, None]
        return np.asarray(logsumexp(np.stack(each), axis=0, b=weights))

    return likelihood(1.0) - likelihood(-1.0)


def lower_bound(score_wt: Floats, delta: float = DELTA) -> float:
    """Return the epsilon that scores (2, trials) of two worlds prove with 95 % confidence."""
    thresholds = np.quantile(score_wt[:, ::2], np.arange(0.5, 200) / 200)
    tried = [_proven(delta, *(score_wt[:, ::2] > c)) for c in thresholds]
    chosen = thresholds[np.argmax(tried)]
    return max(0.0, _proven(delta, *(score_wt[:, 1::2] > chosen)))


def _proven(delta: float, hits: Bools, alarms: Bools) -> float:
    """Return epsilon from true and false positives, at the ends of their intervals."""
    true = beta.ppf(0.025, hits.sum(), (~hits).sum() + 1) if hits.any() else 0.0
    false = beta.ppf(0.975, alarms.sum() + 1, (~alarms).sum()) if not alarms.all() else 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        bounds = np.log([(true - delta) / false, (1 - false - delta) / (1 - true)])
    return float(np.nan_to_num(bounds, nan=-math.inf).max())


def main() -> None:
    """Audit every view at every noise."""
    table = Table(title=f"epsilon at delta {DELTA:g}: proven / claimed, {TRIALS} trials")
    for name in ("noise", *LOOKS):
        table.add_column(name)
    for noise in NOISES:
        cells = []
        for name, look in LOOKS.items():
            score_wt, claimed = attack(look, noise)
            proven = lower_bound(score_wt)
            cells.append(f"{proven:.2f} / {claimed:.2f}")
            assert proven <= claimed, f"{name}: more than was claimed"
        table.add_row(f"{noise:g}", *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
