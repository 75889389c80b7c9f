"""Test tuning: the same rates and trials for every method, chosen by validation data only."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.app.comparisons import tune
from coterie.app.config import schema
from coterie.app.config.config import VALIDATION_SHARE, Config, ConfigError
from coterie.app.config.preflight import problem_of
from coterie.app.config.registry import METHODS
from coterie.app.experiments.choice import FILE, Choice
from coterie.app.experiments.choice import read as read_choices
from coterie.app.runs.rundir import Run
from coterie.clients.methods.fedavg import FedAvg
from coterie.clients.rule import State
from coterie.datasets import plugins
from coterie.ranges import option
from tests.app.fake_run import write_config, write_metrics
from tests.output import Terminal, csv_rows
from tests.problems import write_quadratic

Peers = Sequence[Mapping[str, Any]]
"""Last metrics of each peer of a trial."""
FIRST = (0.01, 0.03, 0.1, 0.3, 1.0)
"""The first learning rates around 0.1."""


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
    runs = [tune.Trial({"k": k}, trial(tmp_path / str(k), peers)) for k, peers in enumerate(trials)]
    return tune.best(runs)[0].settings["k"]


# --- the grid --------------------------------------------------------------------------------


@pytest.mark.some(10)
@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_gets_the_same_rates_and_number_of_trials(method: str, tmp_path: Path) -> None:
    model = {"boosting": {"model": "boosted-trees"}, "partial-pooling": {"model": "linear"}}.get(
        method, {}
    )
    config = Config.from_flat({"method": method, "partition.validation": 0.2} | model)
    trials = tune.trials(config)
    assert len({tuple(sorted(each.items())) for each in trials}) == 15
    assert sorted({each["learning-rate"] for each in trials}) == list(FIRST)
    grid = schema.grid(METHODS[method])
    knobs = [f"{method}.{knob}" for knob in grid] or ["weight-decay"]
    assert all(each.keys() == {"learning-rate", *knobs} for each in trials)
    assert len({each[knobs[0]] for each in trials}) == 3
    assert trials[0] == {key: config.flat()[key] for key in trials[0]}, "the preset comes first"
    assert (
        len({made.run_dir for of in trials for made in tune.trial_configs(config, of, tmp_path)})
        == 15
    )
    short = [made for of in trials for made in tune.trial_configs(config, of, tmp_path, part=9)]
    assert {made.num_server_rounds for made in short} == {17}, "a ninth of 150"


def test_rates_are_those_of_the_preset_times_1_3_10_and_so_on() -> None:
    config = Config.from_flat({"learning-rate": 0.07})
    factors = [tune.rate(config, level) / 0.07 for level in range(-4, 5)]
    np.testing.assert_allclose(factors, [0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100], rtol=1e-12)
    rates = [each["learning-rate"] for each in tune.trials(config)]
    assert rates[::3] == [0.07, 0.021, 0.21, 0.007, 0.7], "the nearest first, of two the lower"


@pytest.mark.parametrize(("preset", "tried"), [(0.0, {0, 0.001, 0.01}), (0.5, {0.05, 0.5, 5.0})])
def test_weight_decay_is_tuned_where_a_method_has_no_key_of_its_own(
    preset: float, tried: set[float]
) -> None:
    config = Config.from_flat({"method": "local", "weight-decay": preset})
    key, values = tune.grid(config)
    assert (key, values[0], set(values)) == ("weight-decay", preset, tried)


def test_the_default_of_a_key_is_among_its_values() -> None:
    for method in METHODS.values():
        for knob, values in schema.grid(method).items():
            assert schema.defaults(method)[knob] in values


class TwoValues(FedAvg[State]):
    """Method whose grid is too small."""

    strength: float = option(0.1, "Strength.", grid=(0.1, 0.2))


def test_a_plugin_s_grid_names_one_key_and_three_values() -> None:
    name = plugins.register("method", "two", TwoValues)
    with pytest.raises(ConfigError, match=r"here:two: the grid .* one key and three values"):
        tune.grid(Config.from_flat({"method": name}))


class OwnValues(TwoValues):
    """Method with a grid of its own beside the one that it inherits."""

    rank: int = option(3, "Rank.", grid=(1, 3, 5))


def test_a_subclass_s_own_grid_replaces_the_inherited_one() -> None:
    name = plugins.register("method", "own", OwnValues)
    config = Config.from_flat({"method": name})
    assert tune.grid(config) == ("method-options.rank", (3, 1, 5))


def test_validation_data_is_set_aside_where_there_is_none(tmp_path: Path) -> None:
    for wanted, used in ((0.0, VALIDATION_SHARE), (0.3, 0.3)):
        flat = tune.with_validation({"method": "dpfl", "partition.validation": wanted})
        config = Config.from_flat(flat)
        for tried in tune.trials(config):
            (made,) = tune.trial_configs(config, tried, tmp_path)
            assert made.partition.validation == used
            assert Path(made.run_dir).parent == tmp_path / "tuning"
    assert tune.with_validation({})["partition.validation"] == VALIDATION_SHARE


# --- which trial is best ---------------------------------------------------------------------


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
        runs.append(tune.Trial({"k": k}, run))
    best_two = [each.settings for each in tune.best(runs, 2)]
    assert best_two == [{"k": 2}, {"k": 1}], "and a diverged peer is never the best"
    assert tune.best(runs[:1])[0].settings == {"k": 0}


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(*[st.floats(0, 1)] * 4), min_size=2, max_size=9))
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


# --- quadratics, of which the best rate is known ---------------------------------------------
#
# f_i(theta) = a/2 (theta - c_i)^2. A round of Local: theta <- theta - eta a (theta - c_i). After T
# rounds theta - c_i = (1 - eta a)^T (theta_0 - c_i), and the validation loss
#     mean_i a/2 (1 - eta a)^(2 T) (theta_0 - c_i)^2
# is least at eta = 1/a, where it is 0. Weight decay w adds eta w theta to each step; with w = 0
# among its values and c_i != 0 it can only lose at the best rate.


def quadratic(
    directory: Path, curvature: float, methods: Sequence[str], **keys: object
) -> dict[str, Config]:
    """Two peers with minima at 1 and 2, which start at 0; the preset's rate is 0.1."""
    file = directory / "problem.json"
    flat: dict[str, Any] = {
        **write_quadratic(file, [[curvature]] * 2, [[1.0], [2.0]], [0.0]), "num-server-rounds": 1,
        "evaluate-every": 1, "learning-rate": 0.1, **keys,
    }  # fmt: skip
    return {method: Config.from_flat({**flat, "method": method}) for method in methods}


def tuned(
    configs: Mapping[str, Config], directory: Path, how: tune.Tuning = "whole"
) -> tuple[dict[str, Choice], list[dict[str, str]]]:
    """The choices, and the lines of tuning.csv."""
    console = Terminal()
    choices, failed = tune.tuned(configs, how, directory, 1, console)
    assert not failed
    for method, choice in choices.items():
        line = f"tuned {method}: {choice.described()}; {choice.trials} trials"
        assert line in console.text
    path = directory / FILE
    assert read_choices(directory) == choices
    return choices, csv_rows(path)


@pytest.mark.some(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("best_rate", "levels"),
    [
        (0.1, 5),
        (0.3, 5),
        (1.0, 6),  # the highest of five: 3 is tried, too
        (3.0, 7),  # 3 is best of six, 10 is tried, too
        (0.001, 8),  # 0.003, then 0.001, then 0.0003
    ],
)
def test_the_rates_extend_until_the_best_lies_inside(
    tmp_path: Path, best_rate: float, levels: int
) -> None:
    choices, lines = tuned(quadratic(tmp_path, 1 / best_rate, ["local"]), tmp_path)
    choice = choices["local"]
    assert choice.settings == {"learning-rate": best_rate, "weight-decay": 0.0}
    assert choice.edges == {}, "no weight decay is no edge: nothing lies below it"
    assert choice.trials == len(lines) == 3 * levels
    for line in lines:
        tried = json.loads(line["settings"])
        eta, decay = tried["learning-rate"], tried["weight-decay"]
        a, centre = 1 / best_rate, np.array([1.0, 2.0])
        theta = eta * a * centre  # from 0, where weight decay pulls nowhere
        assert decay in (0.0, 0.001, 0.01)
        loss = np.mean(a / 2 * (theta - centre) ** 2)
        assert -float(line["quality"]) == pytest.approx(loss, rel=1e-12, abs=1e-12)


@pytest.mark.slow
def test_a_grid_extends_only_so_often_and_the_edge_is_told(tmp_path: Path) -> None:
    for best_rate, edge, reached in ((1e6, "high", 100.0), (1e-6, "low", 1e-4)):
        directory = tmp_path / edge
        directory.mkdir()
        configs = quadratic(directory, 1 / best_rate, ["local"])
        choices, lines = tuned(configs, directory)
        assert choices["local"].settings["learning-rate"] == pytest.approx(reached)
        assert choices["local"].edges == {"learning-rate": edge}
        assert f"({edge}est tried)" in choices["local"].described()
        assert len(lines) == 3 * (5 + tune.EXTENSIONS)


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("how", ["halving", "whole"])
def test_what_one_method_needs_is_tried_with_every_method(tmp_path: Path, how: tune.Tuning) -> None:
    """Local's best rate is 3. FedAvg ends nowhere near its minima, whatever its rate."""
    configs = quadratic(
        tmp_path, 1 / 3, ["local", "fedavg", "ditto", "fedprox"], **{"num-server-rounds": 9}
    )
    choices, lines = tuned(configs, tmp_path, how)
    assert choices["local"].settings["learning-rate"] == 3.0
    tried: dict[str, list[tuple[str, float]]] = {method: [] for method in configs}
    for line in lines:
        rate = json.loads(line["settings"])["learning-rate"]
        if how == "whole" or line["rounds"] == "1":
            tried[line["method"]].append((line["rounds"], rate))
    first, *others = tried.values()
    assert all(sorted(other) == sorted(first) for other in others)
    assert {rate for _, rate in first} >= {*FIRST, 3.0, 10.0}
    assert len({choice.trials for choice in choices.values()}) == 1
    for line in lines:
        assert (line["chosen"] == "1") == (
            json.loads(line["settings"]) == choices[line["method"]].settings
        )


@pytest.mark.slow
def test_halving_keeps_the_best_third_of_each_rung(tmp_path: Path) -> None:
    """With c = 0.01 the preset's rate of 0.1 is best after one round and after nine alike."""
    configs = quadratic(tmp_path, 10.0, ["local", "ditto"], **{"num-server-rounds": 9})
    choices, lines = tuned(configs, tmp_path, "halving")
    for method, choice in choices.items():
        rungs: dict[str, list[tuple[float, str]]] = {}
        for line in lines:
            if line["method"] == method:
                quality = float(line["quality"])
                rungs.setdefault(line["rounds"], []).append((quality, line["settings"]))
        counts = {rounds: len(rung) for rounds, rung in rungs.items()}
        assert counts == {"1": 15, "3": 5, "9": 1}
        for before, after in (("1", "3"), ("3", "9")):
            kept = sorted(rungs[before], key=lambda trial: -trial[0])[: len(rungs[after])]
            assert [each for _, each in rungs[after]] == [each for _, each in kept]
        assert json.loads(rungs["9"][0][1]) == choice.settings


@pytest.mark.slow
def test_a_plateau_leaves_the_preset_alone(tmp_path: Path) -> None:
    """If all trials are equal, tuning chooses nothing and reaches no edge."""
    file = tmp_path / "problem.json"
    (config,) = quadratic(tmp_path, 1.0, ["local"]).values()
    problem = json.loads(file.read_text()) | {"centre": [[0.0], [0.0]]}  # they start there
    file.write_text(json.dumps(problem))
    choices, lines = tuned({"local": Config.from_flat(config.flat())}, tmp_path)
    assert choices["local"].settings == {"learning-rate": 0.1, "weight-decay": 0.0}
    assert len(lines) == 15


def test_the_edge_of_a_method_s_own_key(tmp_path: Path) -> None:
    """Without collaboration Ditto is Local at any lambda, so its preset stays; 1.0 is an edge."""
    configs = quadratic(tmp_path, 10.0, ["ditto"], **{"ditto.lambda": 1.0, "topology": "ring"})
    (config,) = configs.values()
    search = tune._Search(configs, tmp_path, 1, Terminal())
    choice = search.choice("ditto", {"learning-rate": 0.1, "ditto.lambda": 1.0})
    assert choice.edges == {"ditto.lambda": "high"}
    assert search.choice("ditto", {"learning-rate": 0.1, "ditto.lambda": 0.1}).edges == {
        "ditto.lambda": "low"
    }
    assert search.choice("ditto", {"learning-rate": 0.1, "ditto.lambda": 0.3}).edges == {}
    assert tune.grid(config)[1][0] == 1.0
    wga = quadratic(tmp_path, 10.0, ["wga"])
    search = tune._Search(wga, tmp_path, 1, Terminal())
    assert search.choice("wga", {"learning-rate": 1.0, "wga.alpha": 0.75}).edges == {
        "learning-rate": "high"
    }, "a key with words among its values has no edge"


# --- cross-validation ------------------------------------------------------------------------


def tables(folder: Path, rows: int) -> dict[str, Any]:
    """Write two institutions' tables; return the keys of a run on them."""
    g = np.random.default_rng(0)
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        x = g.normal(size=rows)
        y = np.where(x + g.normal(size=rows) > 0, "yes", "no")
        lines = [f"{value:.4f},{label}\n" for value, label in zip(x, y, strict=True)]
        (folder / name / "train.csv").write_text("x,y\n" + "".join(lines))
    return {
        "dataset": "table", "data-dir": str(folder), "peers": 2, "table.columns": "x",
        "table.label": "y", "table.classes": "no, yes", "table.test": 0.4, "model": "linear",
        "table.validation": 0.2, "num-server-rounds": 1, "local-steps": 1, "batch-size": 8,
    }  # fmt: skip


def test_folds_are_disjoint_parts_of_the_same_training_rows(tmp_path: Path) -> None:
    flat = tables(tmp_path, 50)
    assert tune.folds(Config.from_flat(flat)) == 3
    problems = [problem_of(Config.from_flat(flat | {"table.fold": k})) for k in range(3)]
    for peer in range(2):
        held = [problem.validation.rows[peer] for problem in problems]
        every = [np.union1d(p.validation.rows[peer], p.train.rows[peer]) for p in problems]
        assert len(np.unique(np.concatenate(held))) == 30, "all rows that are not tested"
        assert all(np.array_equal(rows, every[0]) for rows in every)
        assert all(np.array_equal(p.test.rows[peer], problems[0].test.rows[peer]) for p in problems)


@pytest.mark.parametrize(
    "more",
    [
        {"rows": 600},
        {"dataset": "digits", "partition.clusters": 2, "partition.validation": 0.2},
        {"file": True},
    ],
)
def test_large_validation_parts_and_other_data_are_not_folded(
    tmp_path: Path, more: dict[str, Any]
) -> None:
    flat = tables(tmp_path, more.pop("rows", 50))
    if more.pop("file", False):
        for name in ("a", "b"):
            (tmp_path / name / "validation.csv").write_text("x,y\n0.5,yes\n-0.5,no\n")
    assert tune.folds(Config.from_flat(flat | more)) == 1


@pytest.mark.slow
def test_weight_decay_grows_as_long_as_it_helps(tmp_path: Path) -> None:
    """Labels are chance: the larger the decay, the better, to the most that is tried."""
    flat = tables(tmp_path / "data", 30) | {"weight-decay-on": "weights", "local-steps": 50}
    for name in ("a", "b"):
        file = tmp_path / "data" / name / "train.csv"
        header, *lines = file.read_text().splitlines()
        rows = [f"{line.split(',')[0]},{('no', 'yes')[k % 2]}" for k, line in enumerate(lines)]
        file.write_text("\n".join([header, *rows]) + "\n")
    configs = {m: Config.from_flat({**flat, "method": m}) for m in ("local", "ditto")}
    console = Terminal()
    choices, _ = tune.tuned(configs, "whole", tmp_path / "out", 1, console, rates=[0.03])
    rows_of = csv_rows(tmp_path / "out" / FILE)
    for method, choice in choices.items():
        tried = {
            json.loads(row["settings"]).get("weight-decay", 0.0)
            for row in rows_of
            if row["method"] == method
        }
        assert tried == {0.0, 0.001, 0.01, 0.1, 1.0, 10.0}
        decay = choice.settings["weight-decay"]
        assert decay in (1.0, tune.MOST_DECAY)
        assert ("weight-decay" in choice.edges) == (decay == tune.MOST_DECAY)


@pytest.mark.long
def test_every_method_is_judged_by_the_mean_loss_over_the_folds(tmp_path: Path) -> None:
    """Methods without a key of their own have 15 trials of rate and decay, others 2 more decays."""
    flat = tables(tmp_path / "data", 50)
    console = Terminal()
    configs = {m: Config.from_flat({**flat, "method": m}) for m in ("local", "ditto")}
    choices, failed = tune.tuned(configs, "whole", tmp_path / "out", 1, console)
    assert not failed
    assert "cross-validation of 3 folds" in console.text
    assert choices["ditto"].trials == choices["local"].trials + 2
    rows = csv_rows(tmp_path / "out" / FILE)
    for method in configs:
        of_method = [row for row in rows if row["method"] == method]
        (chosen,) = (row for row in of_method if row["chosen"] == "1")
        assert float(chosen["quality"]) == max(float(row["quality"]) for row in of_method)
        settings = json.loads(chosen["settings"])
        assert "weight-decay" in settings or method == "ditto"
        runs = [
            Run.read(trial.run_dir)
            for trial in tune.trial_configs(configs[method], settings, tmp_path / "out", n_folds=3)
        ]
        losses = [run.at("validation_loss", run.last_row()).mean() for run in runs]
        assert len({run.directory for run in runs}) == 3
        assert float(chosen["quality"]) == pytest.approx(-np.mean(losses))
