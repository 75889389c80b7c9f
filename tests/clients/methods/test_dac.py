"""DAC: a plain loop, gossip by hand, and the distribution of the draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.clients.engine.streams import Purpose, stream
from coterie.clients.letters import Letters
from coterie.clients.methods.dac import DAC, decoded, encoded, learned, similarity
from tests.inline import Floats, run
from tests.kit import CAMP, Plain, camps, digits, rule_of, stacked
from tests.problems import parabolas


def taken_over(s: Floats, s_before: Floats, i: int, asked: Sequence[int], j: int) -> float:
    """Return the score of j that i takes over, written as in the paper: its closest who knows j."""
    for k in sorted(asked, key=lambda k: -s[i, k]):
        if s_before[k, j] > 0:
            return float(min(s_before[k, j], max(s[i, k] for k in asked)))
    return float(s_before[i, j])


def twin(flat: dict[str, Any], m: int, tau: float, *, gossip: bool, rising: bool) -> Any:
    """Return models, weights of the last average, scores, and the number of scores taken over."""
    q = Plain(flat)
    x, s, met, gossiped = q.start.copy(), np.zeros((q.n, q.n)), np.eye(q.n, dtype=bool), 0
    w = np.eye(q.n)
    for t in range(1, q.rounds + 1):
        tau_t = 2 * tau / (1 + np.exp(-0.2 * (t - 2))) - tau + 1 if rising else tau
        tau_t = 0.0 if t == 1 else tau_t
        shown, s_before = q.train(x), s.copy()
        for i in range(q.n):
            noise = stream(0, i, t, Purpose.CHOICE).gumbel(size=q.n)
            near = [j for j in range(q.n) if q.heard[i, j] and j != i]
            asked = sorted(near, key=lambda j: -(tau_t * s_before[i, j] + noise[j]))[:m]
            for j in asked:
                s[i, j] = 1 / q.loss(i, shown[j])
                met[i, j] = True
            for j in range(q.n) if gossip else ():
                if not met[i, j]:
                    s[i, j] = taken_over(s, s_before, i, asked, j)
                    gossiped += s[i, j] > 0
            who = np.isin(np.arange(q.n), [i, *asked])
            x[i], w[i] = q.mean(shown, who), q.samples * who / q.samples[who].sum()
    return x, w, s, gossiped


@pytest.mark.some(4)
@pytest.mark.parametrize(("topology", "nodes"), [("full", 1), ("full", 6), ("ring", 3)])
@pytest.mark.parametrize(
    ("m", "tau", "gossip", "rising"),
    [(1, 30.0, True, False), (2, 3.0, True, True), (2, 1.0, False, False)],
)
def test_it_equals_a_plain_loop(
    tmp_path: Path, m: int, tau: float, gossip: bool, rising: bool, topology: str, nodes: int
) -> None:
    options: dict[str, Any] = {"models": m, "tau": tau, "gossip": gossip}
    options["tau-schedule"] = "rising" if rising else "constant"
    flat = camps(tmp_path, "dac", topology=topology, **{f"dac.{k}": v for k, v in options.items()})
    x, w, _, gossiped = twin(flat, m, tau, gossip=gossip, rising=rising)
    result = run(flat, tmp_path, nodes)
    assert np.abs(result.theta() - x).max() < 1e-10
    assert np.abs(result.weights() - w).max() < 1e-12
    if topology == "full":
        assert (gossiped > 0) == gossip


def test_it_finds_the_camps(tmp_path: Path) -> None:
    """With one model per round, below the size of a camp, peers end in their own."""
    flat = camps(tmp_path, "dac", **{"dac.models": 1, "num-server-rounds": 30})
    assert (run(flat, tmp_path).weights()[CAMP[:, None] != CAMP] == 0).all()


def test_pulling_everything_is_fedavg(tmp_path: Path) -> None:
    for make in (camps, lambda _, method, **more: digits(method, **more)):
        flat = make(tmp_path / "a", "dac", **{"dac.models": 9, "dac.tau": 3.0})
        result = run(flat, tmp_path / "a")
        fedavg = run(make(tmp_path / "b", "fedavg"), tmp_path / "b")
        assert stacked(result).equal(stacked(fedavg))
        assert np.array_equal(result.weights(), fedavg.weights())


def test_a_round_by_hand(tmp_path: Path) -> None:
    """Peer 0 receives models 1 and 2: losses 1/2 and 2, scores 2 and 1/2.

    Both know peer 3, so peer 0 believes 1, which is closer; only 2 knows peer 4, and its claim of
    70 is cut to 2. Nobody is asked about the sender itself or about peer 0.
    """
    rule = rule_of(DAC(models=2), parabolas(tmp_path, 5))
    x = torch.tensor([[4.0], [1.0], [2.0], [9.0], [9.0]], dtype=torch.float64)
    claims = np.array([[0.0] * 5, [9, 0, 9, 1.5, 0], [9, 9, 0, 0.3, 70], [0] * 5, [0] * 5])
    senders = np.array([1, 2])
    tensors = {"x": x, "known": torch.tensor(encoded(claims))}
    offers = Letters(senders, senders * 0, senders, np.arange(5), tensors)
    after = rule.update(replace(rule.init(), x=x), rule.inbox(1, offers))
    assert after.scores[0].tolist() == pytest.approx([0, 2, 0.5, 1.5, 2], rel=1e-12)
    assert after.measured[0].tolist() == [False, True, True, False, False]
    assert after.x[0].item() == pytest.approx((4 + 1 + 2) / 3)
    assert not after.scores[1:].any()  # they received nothing

    later = rule.update(
        after,
        rule.inbox(
            2, replace(offers, senders=senders[:0] + 3, recipients=senders[:0], rows=senders[:0])
        ),
    )
    asked = rule.edges(rule.wants(after, 2))
    silent = asked[asked[:, 1] == 0, 0]
    expected = after.scores[0].copy()
    expected[silent] /= 2
    assert later.scores[0].tolist() == expected.tolist()


def test_gossip_never_replaces_what_a_peer_measured(tmp_path: Path) -> None:
    rule = rule_of(DAC(models=1), parabolas(tmp_path, 3))
    x = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
    measured = np.array([[False, False, True]] * 3)
    state = replace(rule.init(), x=x, scores=np.array([[0.0, 0, 0.25]] * 3), measured=measured)
    tensors = {
        "x": x,
        "known": torch.tensor(encoded(np.array([[0.0] * 3, [0, 0, 1.9], [0.0] * 3]))),
    }
    one = np.array([1])
    offers = Letters(one, one * 0, one, np.arange(3), tensors)
    wanted = rule.edges(rule.wants(state, 5))
    after = rule.update(state, rule.inbox(5, offers))
    kept = 0.125 if [2, 0] in wanted.tolist() else 0.25
    assert after.scores[0].tolist() == pytest.approx([0, 2, kept])


def test_claims_that_no_peer_could_measure_do_no_harm() -> None:
    values = decoded(np.array([np.nan, -3.0, 1e30, np.inf, 0.0, 0.5]))
    assert values.tolist() == [0, 0, 1e12, 1e12, 0, 1]
    scores, senders = np.array([0, 0.5, 0, 0]), np.array([False, True, False, False])
    assert learned(scores, senders, values[None, 1:5])[1:].tolist() == [0.5, 0.5, 0.0]


def test_letters_carry_scores_without_loss() -> None:
    scores = np.array([0, 1e-9, 0.3, 2.5, 1e6])
    assert decoded(encoded(scores)) == pytest.approx(scores, rel=1e-9)
    assert (encoded(np.array([0.0, 1e300])) <= 1).all()
    assert similarity(np.array([0.5, 0.0, np.inf, np.nan])).tolist() == [2, 1e12, 0, 0]


def drawn(rule: DAC, scores: Floats, rounds: int) -> Floats:
    """Return how often each peer pulled each other, (n, n)."""
    state, n = replace(rule.init(), scores=scores), rule.engine.n
    count = np.zeros((n, n))
    for t in range(2, rounds + 2):
        sender, recipient = rule.edges(rule.wants(state, t)).T
        count[recipient, sender] += 1
    return count / rounds


@pytest.mark.slow
def test_the_draw_has_the_probabilities_of_the_paper(tmp_path: Path) -> None:
    """Two groups of 3 and 4, losses 1/2 inside and 1 outside: P(in) = 1 / (1 + 4/2 exp(-tau)).

    With tau = 0 every other peer is as likely: m / (n - 1). Bounds: five standard deviations.
    """
    group = np.array([0, 0, 0, 1, 1, 1, 1])
    scores = np.where(group[:, None] == group, 2.0, 1.0) * (1 - np.eye(7))
    rounds = 2000
    rule = rule_of(DAC(1, 1.5, "constant"), parabolas(tmp_path, 7))
    inside = drawn(rule, scores, rounds)[0, 1:3].sum()
    expected = 1 / (1 + 4 / 2 * np.exp(-1.5 * (2 - 1)))
    assert inside == pytest.approx(expected, abs=5 * (expected * (1 - expected) / rounds) ** 0.5)
    uniform = drawn(rule_of(DAC(2, 0.0, "constant"), parabolas(tmp_path, 7)), scores, rounds)
    assert np.abs(uniform - 2 / 6 * (1 - np.eye(7))).max() < 5 * (2 / 9 / rounds) ** 0.5
    certain = drawn(rule_of(DAC(2, 1e6, "constant"), parabolas(tmp_path, 7)), scores, 50)
    assert certain[0].tolist() == [0, 1, 1, 0, 0, 0, 0]


def test_tau_rises_from_1_to_tau_plus_1(tmp_path: Path) -> None:
    rising = rule_of(DAC(tau=30.0, tau_schedule="rising"), parabolas(tmp_path, 2))
    assert rising.temperature(2) == 1
    assert rising.temperature(7) == pytest.approx(60 / (1 + np.exp(-1)) - 29)
    assert rising.temperature(200) == pytest.approx(31)


def test_permuting_peers_permutes_a_round(tmp_path: Path) -> None:
    n, g = 5, np.random.default_rng(4)
    rule = rule_of(DAC(models=2), parabolas(tmp_path, n))
    x, scores = g.normal(size=(n, 1)), g.random((n, n)) * (1 - np.eye(n))
    order = g.permutation(n)

    def after(old: Any, known: Floats) -> Any:
        x_nd = torch.tensor(x[old])
        state = replace(
            rule.init(), x=x_nd, scores=known[np.ix_(old, old)], measured=np.ones((n, n), bool)
        )
        recipients, senders = np.nonzero(~np.eye(n, dtype=bool))
        tensors = {"x": x_nd, "known": torch.tensor(encoded(state.scores))}
        offers = Letters(senders, recipients, senders, np.arange(n), tensors)
        return rule.update(state, rule.inbox(3, offers))

    plain, permuted = after(np.arange(n), scores), after(order, scores)
    assert permuted.scores == pytest.approx(plain.scores[np.ix_(order, order)])
    assert permuted.x.numpy() == pytest.approx(plain.x.numpy()[order])


def test_choices_do_not_depend_on_who_hosts_whom(tmp_path: Path) -> None:
    whole = rule_of(DAC(models=2), parabolas(tmp_path, 7))
    part = rule_of(DAC(models=2), parabolas(tmp_path, 7), [2, 5])
    for t in (1, 2, 3):
        every, some = (
            whole.edges(whole.wants(whole.init(), t)),
            part.edges(part.wants(part.init(), t)),
        )
        assert some.tolist() == every[np.isin(every[:, 1], [2, 5])].tolist()
