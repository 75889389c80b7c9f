"""Peers that sleep: every method under schedules, and federated averaging against its paper.

Runs are on quadratics in float64, where what a round computes is known to the last digits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.app.config.config import Config
from coterie.app.config.registry import METHODS
from coterie.app.node.cohort.arrays import flatten
from coterie.clients.letters import Letters, no_peers
from tests.inline import Run, run
from tests.metering import Metered
from tests.problems import write_quadratic
from tests.stepping import Stepping
from tests.test_costs import formula
from tests.test_table import COMMON, NEEDS, PEERS, REFUSES, ROUNDS, configuration

CHURN: dict[str, Any] = {
    "schedule.kind": "churn", "schedule.mean-up": 2.0, "schedule.mean-down": 1.5,
}  # fmt: skip
SAMPLE: dict[str, Any] = {"schedule.kind": "sample", "schedule.fraction": 0.5}
OF_EACH_KIND = ("local", "fedavg", "dpfl", "cobo", "all-for-one", "federico", "fedem")
"""One method per kind of exchange, and one that sends more than its model."""
ON_QUADRATICS = [method for method in METHODS if method not in REFUSES]


def scheduled(method: str, directory: Path, options: dict[str, Any]) -> dict[str, Any]:
    flat = configuration(method, "quadratic", directory) | {"num-server-rounds": 8}
    flat |= {"evaluate-every": 1, "evaluate-peers": "participants", "topology": "full"}
    return flat | options


def assert_same(one: Run, other: Run, tolerance: float) -> None:
    assert one.reports.keys() == other.reports.keys()
    assert not other.ledger.breaks
    assert not one.refused
    assert not other.refused
    for key, report in one.reports.items():
        again = other.reports[key]
        assert report.metrics.keys() - {"awake"} == again.metrics.keys() - {"awake"}
        for name, value in report.metrics.items():
            pair = np.array([value, again.metrics[name]], dtype=np.float64)
            assert np.allclose(pair[0], pair[1], tolerance, tolerance, True), (key, name)
        assert np.allclose(report.weights, again.weights, rtol=tolerance, atol=tolerance), key
    assert np.allclose(one.theta(), other.theta(), rtol=tolerance, atol=tolerance)


def test_fedavg_with_a_sample_is_mcmahans_algorithm_1(tmp_path: Path) -> None:
    """Server and clients written out: the sampled clients start from the global model.

    It is compared with what every peer holds after each round that it took part in ending.
    """
    n, d, steps, rate, rounds = 7, 3, 4, 0.15, 9
    g = np.random.default_rng(3)
    curvature, centre = g.uniform(0.5, 2.0, (n, d)), g.normal(size=(n, d))
    start, samples = g.normal(size=d), g.integers(1, 30, n)
    flat = write_quadratic(
        tmp_path / "problem.json", curvature, centre, start, samples=samples.tolist()
    )
    flat |= COMMON | {
        "method": "fedavg", "num-server-rounds": rounds, "local-steps": steps, "momentum": 0.0,
        "learning-rate": rate, "evaluate-every": 1, "schedule.kind": "sample",
        "evaluate-peers": "participants",
        "schedule.fraction": 0.4,
    }  # fmt: skip
    result = run({**flat, "peers": n}, tmp_path)
    strategy = Config.from_flat({**flat, "peers": n}).strategy()
    w = start
    for t in range(1, rounds + 1):
        chosen = np.flatnonzero(strategy.schedule.awake(t))
        assert len(chosen) == 3
        trained = np.tile(w, (len(chosen), 1))
        for _ in range(steps):
            trained -= rate * curvature[chosen] * (trained - centre[chosen])
        w = samples[chosen] @ trained / samples[chosen].sum()
        reports = {peer: report for (s, peer), report in result.reports.items() if s == t}
        next_ = range(n) if t == rounds else np.flatnonzero(strategy.schedule.awake(t + 1))
        assert reports.keys() == {*chosen.tolist(), *next_}
        for peer, report in reports.items():
            loss = (curvature[peer] * (w - centre[peer]) ** 2).sum() / 2
            assert report.metrics["test_loss"] == pytest.approx(loss, abs=1e-10)
    assert np.abs(result.theta() - w).max() < 1e-10


@pytest.fixture(scope="module")
def always(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[dict[str, Any], Run]]:
    """Return runs by method in which all peers are awake, with a clock of equal machines."""

    @cache
    def made(method: str) -> tuple[dict[str, Any], Run]:
        directory = tmp_path_factory.mktemp(method)
        file = directory / "clock.csv"
        columns = "examples-per-second,up-bytes-per-second,down-bytes-per-second,latency-seconds"
        lines = [f"{peer},3.0,40.0,80.0,0.25" for peer in range(PEERS)]
        file.write_text("\n".join([f"peer,{columns}", *lines]), encoding="utf-8")
        clock = {"clock.profile": "file", "clock.file": str(file), "num-server-rounds": ROUNDS}
        flat = scheduled(method, directory, clock)
        return flat, run(flat, directory)

    return made


@pytest.mark.some(6)
@pytest.mark.parametrize("method", ON_QUADRATICS)
def test_narrowed_to_everybody_is_not_narrowed(
    always: Callable[[str], tuple[dict[str, Any], Run]], tmp_path: Path, method: str
) -> None:
    """A trace in which nobody ever sleeps, against no schedule: the same to the last bit.

    No model is old then, so a staleness discount changes nothing either.
    """
    flat, plain = always(method)
    trace = tmp_path / "trace.csv"
    lines = [f"{peer},1,{ROUNDS}" for peer in range(PEERS)]
    trace.write_text("\n".join(["peer,from,to", *lines]), encoding="utf-8")
    awake: dict[str, Any] = {"schedule.kind": "trace", "schedule.file": str(trace)}
    awake |= {"schedule.max-age": 2, "schedule.staleness-discount": 0.7}
    assert_same(plain, run(flat | awake, tmp_path), 0.0)


def speeds(directory: Path, *speeds: float) -> dict[str, Any]:
    """A clock by file: examples a second of each peer, and links that take no time."""
    file = directory / "clock.csv"
    head = "peer,examples-per-second,up-bytes-per-second,down-bytes-per-second,latency-seconds"
    lines = [f"{peer},{speed},1e9,1e9,0" for peer, speed in enumerate(speeds)]
    file.write_text("\n".join([head, *lines]), encoding="utf-8")
    return {"clock.profile": "file", "clock.file": str(file)}


@pytest.mark.some(6)
@pytest.mark.parametrize(
    ("kind", "method"),
    [("churn", method) for method in ON_QUADRATICS]
    + [("clock", method) for method in OF_EACH_KIND]
    + [(kind, method) for kind in ("sample", "deadline") for method in ("fedavg", "cobo")],
)
def test_neither_who_hosts_whom_nor_a_restart_matters(
    tmp_path: Path, kind: str, method: str
) -> None:
    options = {
        "sample": SAMPLE,
        "churn": CHURN | {"schedule.max-age": 1, "schedule.mean-down": 4.0},
        "clock": {"schedule.kind": "clock", "schedule.max-age": 3, "clock.tick": 3.0},
        "deadline": {"clock.deadline": 3.0, "schedule.max-age": 1},
    }[kind]
    options = options | speeds(tmp_path, 4.0, 2.0, 1.0, 0.5)
    flat = scheduled(method, tmp_path, options) | {"num-server-rounds": 6}
    whole = run(flat, tmp_path / "whole")
    half = run(flat, tmp_path / "shared", 2, until=3)
    assert_same(whole, run(flat, tmp_path / "shared", [[0], [1, 2], [3]], after=half), 1e-10)


@pytest.mark.some(22)
@pytest.mark.parametrize("method", ON_QUADRATICS)
def test_who_sleeps_stands_still_and_pays_nothing(tmp_path: Path, method: str) -> None:
    """Round by round: nothing of a peer changes that is awake neither now nor next."""
    flat = scheduled(method, tmp_path, CHURN | {"schedule.max-age": 1})
    stepping = Stepping(flat)
    schedule, cohort = stepping.strategy.schedule, stepping.cohort
    slept = 0
    for t in range(1, ROUNDS + 1):
        before = {k: v.clone() for k, v in flatten(cohort.state).items()}
        paid = {k: v.copy() for k, v in vars(cohort.costs).items()}
        stepping.to(t)
        still = ~(schedule.awake(t) | schedule.awake(t + 1))
        slept += int(still.sum())
        for name, value in flatten(cohort.state).items():
            assert np.array_equal(value[still], before[name][still], equal_nan=True), (t, name)
        for name, value in vars(cohort.costs).items():
            assert (value[still] == paid[name][still]).all(), (t, name)
    assert slept


@pytest.mark.parametrize("method", OF_EACH_KIND)
@pytest.mark.parametrize("options", [SAMPLE, CHURN], ids=["sample", "churn"])
def test_evaluating_all_peers_changes_nothing_else(
    tmp_path: Path, method: str, options: dict[str, Any]
) -> None:
    """Participants report the same bits, and a peer that slept has the losses of its last round.

    Two nodes report what one does.
    """
    flat = scheduled(method, tmp_path, options)
    some, every = run(flat, tmp_path / "some"), flat | {"evaluate-peers": "all"}
    full = run(every, tmp_path / "all")
    assert full.reports.keys() == {(t, p) for t in range(9) for p in range(PEERS)}
    assert np.array_equal(full.theta(), some.theta())
    for (t, peer), report in full.reports.items():
        last = max(s for s in range(t + 1) if (s, peer) in some.reports)
        known = some.reports[last, peer]
        names = report.metrics.keys() if last == t else {"test_loss", "train_loss"}
        assert {k: report.metrics[k] for k in names} == {k: known.metrics[k] for k in names}
    assert len(some.reports) < len(full.reports)
    assert_same(full, run(every, tmp_path / "two", [[0, 1], [*range(2, PEERS)]]), 1e-10)


@pytest.mark.parametrize("method", ON_QUADRATICS)
def test_peers_that_wake_up_alone_have_a_model(tmp_path: Path, method: str) -> None:
    """No letter arrives, and the own offers are too old to count."""
    rule = Stepping(scheduled(method, tmp_path, {})).rule
    state = rule.init()
    _, offers = rule.offer(state, 1)
    peers, none = np.arange(PEERS), no_peers()
    alone = Letters(none, none, none, peers, offers, np.zeros(PEERS, int), expired=peers)
    state = rule.update(state, rule.inbox(1, alone))
    assert state.x.isfinite().all()
    assert np.isfinite(rule.weights(state)).all()


@pytest.mark.some(7)
@pytest.mark.parametrize("method", ON_QUADRATICS)
def test_virtual_time_is_what_the_formulas_of_the_methods_page_say(
    always: Callable[[str], tuple[dict[str, Any], Run]], method: str
) -> None:
    """With equal machines and links, a round takes as long as its most expensive peer."""
    flat, result = always(method)
    total = 0.0
    for t, (names, *_) in enumerate(Metered(flat).rounds, start=1):
        seconds = []
        for mine in names:
            sent, received = (formula(method, name, mine) for name in ("sent", "received"))
            latency = 0.25 * ((sent > 0) + (received > 0))
            examples = formula(method, "gradients", mine)
            seconds.append(examples / 3 + sent / 40 + received / 80 + latency)
        total += max(seconds)
        assert result.metric("virtual_seconds", t) == pytest.approx([total] * PEERS, rel=1e-12)


def test_who_is_slow_works_on_while_others_go_on(tmp_path: Path) -> None:
    """With the clock, peer 1 needs three ticks per step and then receives all unread offers."""
    flat = write_quadratic(tmp_path / "problem.json", np.ones((2, 1)), [[0.0], [8.0]], [4.0])
    flat |= speeds(tmp_path, 2.0, 0.4) | COMMON | {
        "method": "fedavg", "num-server-rounds": 7, "evaluate-every": 1, "momentum": 0.0,
        "evaluate-peers": "participants",
        "learning-rate": 0.5, "local-steps": 1, "schedule.kind": "clock", "clock.tick": 1.0,
    }  # fmt: skip
    result = run({**flat, "peers": 2}, tmp_path)
    zero, one, expected = 4.0, 4.0, {}
    for t in range(1, 8):
        zero = zero / 2
        if t % 3 == 0:  # its step from where it stood three ticks ago is done
            one = (one + 8) / 2
            zero = one = (zero + one) / 2
        expected[t] = zero
    for t, x in expected.items():
        assert result.reports[t, 0].metrics["test_loss"] == pytest.approx(x * x / 2, abs=1e-12)
        assert result.reports[t, 0].metrics["virtual_seconds"] == t
    assert [t for t, peer in sorted(result.reports) if peer == 1] == [0, 3, 6, 7]
    assert result.reports[6, 1].metrics["awake"] == 2


@pytest.mark.parametrize("method", ["fedavg", "fedem", "dpfl", "ifca", "pfedgraph", "cobo"])
def test_every_method_that_averages_models_discounts_old_ones(tmp_path: Path, method: str) -> None:
    flat = scheduled(method, tmp_path, CHURN | {"schedule.max-age": 3, "seed": 2})
    flat["num-server-rounds"] = 6
    results = [
        run(flat | {"schedule.staleness-discount": a}, tmp_path / str(a)).theta()
        for a in (0.0, 1.0)
    ]
    assert np.abs(results[1] - results[0]).max() > 1e-6


@pytest.mark.parametrize("a", [0.0, 0.5])
def test_a_letter_is_heard_until_it_is_too_old(tmp_path: Path, a: float) -> None:
    """Peer 1 sleeps from round 2 on; FedAvg's peer 0 hears it for `max-age` more rounds.

    With a staleness discount it weighs (s + 1)^-a at an age of s rounds, against the own 1.
    """
    trace = tmp_path / "trace.csv"
    trace.write_text("peer,from,to\n0,1,9\n1,1,1\n", encoding="utf-8")
    flat = write_quadratic(tmp_path / "problem.json", np.ones((2, 1)), [[0.0], [8.0]], [4.0])
    flat |= COMMON | NEEDS.get("fedavg", {}) | {
        "method": "fedavg", "num-server-rounds": 5, "evaluate-every": 1, "momentum": 0.0,
        "evaluate-peers": "participants",
        "learning-rate": 0.5, "local-steps": 1, "schedule.kind": "trace",
        "schedule.file": str(trace), "schedule.max-age": 2, "schedule.staleness-discount": a,
    }  # fmt: skip
    result = run({**flat, "peers": 2}, tmp_path)
    x, received = 4.0, []
    for t in range(1, 6):
        x /= 2  # a step towards 0; the letter of peer 1 is half-way from 4 to 8
        old = t**-a
        x = (x + 6 * old) / (1 + old) if t <= 3 else x
        report = result.reports[t, 0]
        assert report.metrics["test_loss"] == pytest.approx(x * x / 2, abs=1e-12)
        received.append(report.metrics["bytes_received"])
    assert received == [8, 16, 24, 24, 24]
    assert [t for t, peer in sorted(result.reports) if peer == 1] == [0, 1, 5]


def test_a_sleeping_peer_is_asked_while_its_offer_is_young_enough(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    lines = ["0,1,1", *(f"{peer},1,8" for peer in range(1, PEERS))]
    trace.write_text("\n".join(["peer,from,to", *lines]), encoding="utf-8")
    keys: dict[str, Any] = {"schedule.kind": "trace", "schedule.file": str(trace)}
    keys |= {"schedule.max-age": 2}
    asked = dict[int, bool]()
    flat = scheduled("dac", tmp_path, keys)
    Stepping(flat, ended=lambda t, edges, _: asked.update({t: 0 in edges[:, 0]})).to(5)
    assert asked == {1: True, 2: True, 3: True, 4: False, 5: False}
