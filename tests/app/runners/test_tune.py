"""Tuning: the same effort for every method, by validation data and nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.app.config import schema
from coterie.app.config.config import VALIDATION_SHARE, Config
from coterie.app.config.registry import METHODS
from coterie.app.runners import tune
from coterie.app.runs.rundir import Run
from tests.app.fake_run import write_config, write_metrics

Peers = Sequence[Mapping[str, Any]]
"""What each peer of a trial ends with."""


def trial(directory: Path, peers: Peers) -> Run:
    directory.mkdir(parents=True)
    write_config(directory, {"peers": len(peers)})
    lines: list[Mapping[str, Any]] = [
        {"round": 0, "peer": p, "validation_accuracy": 1.0, "validation_loss": 0.0}
        for p in range(len(peers))
    ]
    lines += [{"round": 5, "peer": p, **metrics} for p, metrics in enumerate(peers)]
    write_metrics(directory, lines)
    return Run.read(directory)


def best(tmp_path: Path, *trials: Peers) -> object:
    runs = [({"k": k}, trial(tmp_path / str(k), peers)) for k, peers in enumerate(trials)]
    return tune.best(runs)[0]["k"]


@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_gets_nine_different_trials(method: str, tmp_path: Path) -> None:
    config = Config.from_flat({"method": method, "partition.validation": 0.2})
    trials = tune.trials(config)
    assert len({tuple(sorted(each.items())) for each in trials}) == 9
    rates = [each["learning-rate"] for each in trials]
    assert min(map(float, rates)) < config.learning_rate < max(map(float, rates))
    grid = getattr(METHODS[method].options, "grid", {})
    assert [len(values) for values in grid.values()] in ([], [3]), "at most one knob"
    assert all(
        each.keys() - {f"{method}.{knob}" for knob in grid} == {"learning-rate"} for each in trials
    )
    assert len(tune.trial_configs(config, trials, tmp_path)) == 9
    short = tune.trial_configs(config, trials, tmp_path, part=9)
    assert {made.num_server_rounds for _, made in short.values()} == {17}, "a ninth of 150"


def test_the_presets_own_rate_is_among_the_trials() -> None:
    for method in METHODS:
        config = Config.from_flat(
            {"method": method, "learning-rate": 0.07, "partition.validation": 0.2}
        )
        assert 0.07 in [each["learning-rate"] for each in tune.trials(config)]


def test_validation_data_is_set_aside_where_there_is_none(tmp_path: Path) -> None:
    for given_share, used in ((0.0, VALIDATION_SHARE), (0.3, 0.3)):
        flat = tune.validating({"method": "dpfl", "partition.validation": given_share})
        config = Config.from_flat(flat)
        trials = tune.trial_configs(config, tune.trials(config), tmp_path)
        for directory, (_, made) in trials.items():
            assert made.partition.validation == used
            assert Path(directory).parent == tmp_path / "tuning"
    assert tune.validating({})["partition.validation"] == VALIDATION_SHARE


def test_a_knob_s_default_is_among_its_values() -> None:
    for method in METHODS.values():
        for knob, values in getattr(method.options, "grid", {}).items():
            assert schema.defaults(method.options)[knob] in values


def test_the_last_mean_validation_accuracy_decides(tmp_path: Path) -> None:
    low = [{"validation_accuracy": 0.9}, {"validation_accuracy": 0.1}]
    high = [{"validation_accuracy": 0.6}, {"validation_accuracy": 0.6}]
    assert best(tmp_path / "a", low, high) == 1
    assert best(tmp_path / "b", high, low, high) == 0, "the earlier of equals"
    partly: Peers = [{"validation_accuracy": 0.7}, {"validation_accuracy": None}]
    assert best(tmp_path / "c", high, partly) == 1, "a peer without validation data has no vote"


def test_losses_decide_where_there_is_no_accuracy(tmp_path: Path) -> None:
    def losses(*values: float) -> Peers:
        return [{"validation_accuracy": None, "validation_loss": value} for value in values]

    directory = tmp_path / "runs"
    runs = []
    for k, peers in enumerate([losses(math.inf, 0.0), losses(3.0, 1.0), losses(1.0, 2.0)]):
        run = trial(directory / str(k), peers)
        run.metrics["validation_accuracy"][:] = math.nan
        runs.append(({"k": k}, run))
    assert tune.best(runs, 2) == [{"k": 2}, {"k": 1}], "and a diverged peer is never the best"
    assert tune.best(runs[:1]) == [{"k": 0}]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(*[st.floats(0, 1)] * 4),
        min_size=2,
        max_size=9,
    )
)
def test_test_data_decides_nothing(
    tmp_path_factory: pytest.TempPathFactory, values: list[tuple[float, ...]]
) -> None:
    directory = tmp_path_factory.mktemp("tune")
    chosen = []
    for flip in (False, True):
        trials: list[Peers] = [
            [
                {
                    "validation_accuracy": valid,
                    "test_accuracy": 1 - test if flip else test,
                    "test_loss": 1 - loss if flip else loss,
                    "global_test_accuracy": 1 - other if flip else other,
                }
            ]
            for valid, test, loss, other in values
        ]
        chosen.append(best(directory / str(flip), *trials))
    assert chosen[0] == chosen[1]
    assert values[int(str(chosen[0]))][0] == max(valid for valid, *_ in values)
