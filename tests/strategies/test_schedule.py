"""Schedules: awake peers of each round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.strategies.errors import ScheduleError
from coterie.strategies.exchange_plan import ExchangePlan
from coterie.strategies.pairs import Pairs
from coterie.strategies.plans import Everyone, Wanted, WantedAnswers, WantedHelp
from coterie.strategies.protocol import no_edges
from coterie.strategies.schedule import SCHEDULES, Churn, Options, Sample, Schedule, Setting
from coterie.strategies.topology import listed, matrix_of
from tests.topologies import topology

N, ROUNDS = 20, 2000


def made(
    peers: int = N, rounds: int = ROUNDS, seed: int = 7, *, waking: bool = False, **options: Any
) -> Schedule:
    own = Options(**options)
    setting = Setting(peers, rounds, seed, own.max_age, waking, None)
    return SCHEDULES[own.kind].schedule(own, setting)


def test_by_default_everybody_is_awake() -> None:
    always = made()
    assert always.is_always
    assert all(always.awake(t).all() for t in (1, 5, ROUNDS))
    assert not always.awake(0).any()
    assert made(kind="sample", fraction=1.0).is_always


@pytest.mark.parametrize("options", [{"kind": "sample"}, {"kind": "churn", "mean_up": 3.0}])
def test_a_schedule_is_a_function_of_the_round(options: dict[str, Any]) -> None:
    """Rounds may be asked in any order; another seed gives another schedule."""
    one, other = made(**options), made(**options)
    forwards = [one.awake(t).tolist() for t in range(1, 40)]
    assert forwards == [other.awake(t).tolist() for t in range(39, 0, -1)][::-1]
    changed = made(seed=8, **options)
    assert forwards != [changed.awake(t).tolist() for t in range(1, 40)]


@pytest.mark.parametrize(("fraction", "size"), [(0.001, 1), (0.1, 2), (0.5, 10)])
def test_a_sample_has_its_size_and_takes_everybody_equally(fraction: float, size: int) -> None:
    sample = made(kind="sample", fraction=fraction)
    assert isinstance(sample, Sample)
    counts = np.sum([sample.awake(t) for t in range(1, ROUNDS + 1)], axis=0)
    assert counts.sum() == size * ROUNDS
    spread = np.sqrt(ROUNDS * size / N * (1 - size / N))
    assert (abs(counts - ROUNDS * size / N) < 4 * spread).all()


def test_churn_has_its_mean_times() -> None:
    churn = made(kind="churn", mean_up=6.0, mean_down=2.0)
    assert isinstance(churn, Churn)
    up_tn = np.array([churn.awake(t) for t in range(1, ROUNDS + 1)])
    assert abs(up_tn.mean() - 0.75) < 0.02
    falls = (up_tn[:-1] & ~up_tn[1:]).sum() / up_tn[:-1].sum()
    rises = (~up_tn[:-1] & up_tn[1:]).sum() / (~up_tn[:-1]).sum()
    assert abs(1 / falls - 6.0) < 0.3
    assert abs(1 / rises - 2.0) < 0.1


def test_a_trace_is_its_file(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("peer,from,to\n0,1,3\n2,2,2\n0,5,5\n", encoding="utf-8")
    trace = made(3, 5, kind="trace", file=str(file))
    awake = [np.flatnonzero(trace.awake(t)).tolist() for t in range(1, 6)]
    assert awake == [[0], [0, 2], [0], [], [0]]
    assert trace.awake(6).all()  # all, for the final update
    assert [trace.last_change([2], t) for t in (1, 2, 3, 4)] == [1, 2, 2, 2]


@pytest.mark.parametrize(
    "content", ["peer,from\n0,1\n", "peer,from,to\n3,1,2\n", "peer,from,to\n0,2,1\n", "0,1,1\n"]
)
def test_a_wrong_trace_names_the_line(tmp_path: Path, content: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text(content + "0,1,1\n", encoding="utf-8")
    with pytest.raises(ScheduleError, match=r"trace\.csv: line 2: "):
        made(3, 5, kind="trace", file=str(file))


def test_a_trace_in_which_nobody_is_ever_awake(tmp_path: Path) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("peer,from,to\n", encoding="utf-8")
    with pytest.raises(ScheduleError, match=r"trace\.csv: no peer is ever awake"):
        made(3, 5, kind="trace", file=str(file))


def test_a_trace_needs_its_file() -> None:
    with pytest.raises(ValueError, match="needs"):
        Options(kind="trace")


@pytest.mark.parametrize("kind", [Everyone, Wanted, WantedAnswers, WantedHelp, Pairs])
@pytest.mark.parametrize("max_age", [0, 2])
def test_edges_lead_from_offers_to_those_who_end_the_round(
    kind: type[ExchangePlan], max_age: int
) -> None:
    graph = topology("k-regular", N, 0, degree=6)
    churn = made(kind="churn", mean_up=2.0, mean_down=3.0, max_age=max_age,
                 waking=kind.receives_on_waking)  # fmt: skip
    strategy = kind(peers=N, rounds=ROUNDS, seed=1, topology=graph, schedule=churn)
    everything = listed(graph)
    for t in range(1, 12):
        edges, asked = strategy.edges(t, everything)
        there = [churn.awake(s) for s in range(max(1, t - max_age), t + 1)]
        if kind in (WantedAnswers, WantedHelp):
            there = there[-1:]
        hears = churn.awake(t)
        if kind.receives_on_waking:
            hears = hears | churn.awake(t + 1)
        expected = graph & np.any(there, axis=0)[:, None] & hears
        assert (edges == listed(expected)).all()
        both = matrix_of(edges, N) & churn.awake(t)[:, None] & churn.awake(t)
        asks = kind in (WantedAnswers, WantedHelp, Pairs)
        assert (matrix_of(edges[asked], N) == (both & asks)).all()


def test_pairs_are_drawn_among_those_who_are_awake() -> None:
    churn = made(kind="churn", mean_up=2.0, mean_down=3.0)
    strategy = Pairs(
        peers=N, rounds=ROUNDS, seed=1, topology=topology("full", N, 0), schedule=churn,
        sampling="constant", probability=0.3,
    )  # fmt: skip
    met, could = 0, 0
    for t in range(1, 300):
        edges, asked = strategy.edges(t, no_edges())
        awake = churn.awake(t)
        assert awake[edges].all()
        assert asked.all()
        met, could = met + len(edges), could + int(awake.sum() * (awake.sum() - 1))
    assert abs(met / could - 0.3) < 0.02
