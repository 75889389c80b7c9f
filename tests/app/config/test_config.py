"""Test the run configuration: accepted and refused values, lossless round trips."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from inspect import getsource
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.app.cli.list import notes
from coterie.app.config import defaults, schema
from coterie.app.config.config import VALIDATION_SHARE, Config, ConfigError
from coterie.app.config.keys import flatten
from coterie.app.config.parts import PARTS
from coterie.app.config.preflight import check
from coterie.app.config.registry import METHODS
from coterie.app.config.root import ROOT
from coterie.app.config.settings import keys
from coterie.clients.models.options import MODELS, MlpOptions
from coterie.clients.rule import Rule
from coterie.datasets.table import DATASETS
from coterie.ranges import Option, Range

PRESETS = sorted((ROOT / "presets").rglob("*.toml"))


def test_pyproject_holds_every_key_with_its_default() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert defaults.written_into(text) == text, "run: python -m coterie.app.config.defaults"


def test_the_default_run_is_the_product_s() -> None:
    config = Config.from_flat({})
    assert (config.method, config.dataset, config.peers) == ("cobo", "digits", 8)
    assert (config.num_server_rounds, config.local_steps, config.training.batch_size) == (
        150,
        10,
        32,
    )
    assert (config.training.learning_rate, config.evaluate_every) == (0.1, 10)
    split = config.partition
    assert (split.kind, split.clusters, split.samples_per_peer) == ("label-permutation", 4, 60)
    cobo = schema.values(config.options)
    assert (cobo["rho"], cobo["gamma"], cobo["sampling"]) == (0.05, 0.01, "full")


def test_what_flower_passes_is_the_default_run() -> None:
    """A bare `flwr run .` passes every key of every table."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    passed = flatten(project["tool"]["flwr"]["app"]["config"])
    assert Config.from_flat(passed) == Config.from_flat({})


def test_names_share_one_space_of_tables() -> None:
    names = [*METHODS, *MODELS, "partition"]
    names += [name for name, dataset in DATASETS.items() if dataset.options]
    assert len(names) == len(set(names))


NEEDS: dict[str, dict[str, Any]] = {
    "ifca": {"ifca.clusters": 2}, "boosting": {"model": "boosted-trees"},
    "partial-pooling": {"model": "linear"},
}  # fmt: skip


@pytest.mark.parametrize("method", METHODS)
def test_every_method_survives_flat_and_toml(method: str) -> None:
    config = Config.from_flat(
        {
            **NEEDS.get(method, {}),
            "method": method,
            "learning-rate": 1,
            "seed": 7,
            "partition.validation": 0.25,
            "out": "a b",
        }
    )
    assert Config.from_flat(config.flat()) == config
    assert Config.from_flat(flatten(tomllib.loads(config.toml()))) == config


def test_toml_starts_the_run_again_elsewhere() -> None:
    config = Config.from_flat({"name": "mine", "run-dir": "/somewhere", "resume": True})
    again = Config.from_flat(flatten(tomllib.loads(config.toml())))
    assert (again.name, again.run_dir, again.resume) == ("", "", False)


def test_only_the_chosen_tables_are_kept() -> None:
    config = Config.from_flat({"method": "local", "cobo.rho": 9.0, "quadratic.file": "x.json"})
    assert not any(key.startswith(("cobo.", "quadratic.")) for key in config.flat())


def test_the_notes_of_a_preset() -> None:
    text = "# Title: one\n# Reproduces: table 1\n# Other: words\n# Takes: 2 min\nmethod = 'x'\n"
    assert notes(text) == {"": "Title: one", "reproduces": "table 1", "takes": "2 min"}


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: str(path.relative_to(ROOT)))
def test_presets_are_valid_and_say_what_they_are(preset: Path) -> None:
    text = preset.read_text()
    assert notes(text)[""]
    Config.from_flat(flatten(tomllib.loads(text)))


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("learning_rate", "learning-rate"),
        ("leraning-rate", "learning-rate"),
        ("cobo.ro", "cobo.rho"),
        ("rho", "cobo.rho"),
        ("coob.gamma", "cobo.gamma"),
        ("rounds", "num-server-rounds"),
        ("epochs", "local-epochs"),
        ("validation", "partition.validation"),
        ("partition.sample-per-peer", "partition.samples-per-peer"),
        ("hold-out", "late-peers"),
        ("fraction-train", "schedule.fraction"),
        ("clients-per-round", "schedule.fraction"),
        ("client-sampling", "schedule.kind"),
        ("fraction-evaluate", "evaluate-peers"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest(key: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f'^unknown key "{key}", did you mean "{meant}"\\?$'):
        Config.from_flat({key: 1})


@pytest.mark.parametrize("key", ["", ".", "cobo", "cobo.", ".peers", "a.b.c", "partition.kind.x"])
def test_other_unknown_keys_are_refused_too(key: str) -> None:
    with pytest.raises(ConfigError, match=r"^unknown key"):
        Config.from_flat({key: 1})


@pytest.mark.parametrize(
    ("flat", "message"),
    [
        ({"peers": 8.0}, "peers = 8.0: must be an integer"),
        ({"peers": True}, "peers = true: must be an integer"),
        ({"seed": 2**63}, "must be an integer"),
        ({"peers": 4, "quorum": 5}, "quorum = 5 must be at most peers = 4"),
        ({"learning-rate": 10**400}, "must be a number"),
        ({"resume": 1}, "resume = 1: must be true or false"),
        ({"learning-rate": "fast"}, 'learning-rate = "fast": must be a number'),
        ({"learning-rate": float("nan")}, "learning-rate = nan: must be a number"),
        (
            {"mixed-precision": True, "dtype": "float64"},
            'mixed-precision = true requires dtype = "float32"',
        ),
        ({"dtype": "float16"}, 'dtype = "float16": must be "float32" or "float64"'),
        ({"mlp.hidden": 64}, "mlp.hidden = 64: must be a string"),
        (
            {"schedule.fraction": 0.5},
            'schedule: fraction = 0.5 needs kind = "sample": client sampling',
        ),
        ({"method": "cobbo"}, 'unknown method "cobbo", did you mean "cobo"?'),
        ({"dataset": "digit"}, 'unknown dataset "digit", did you mean "digits"?'),
        (
            {"partition.kind": "dirichlett"},
            'unknown partition.kind "dirichlett", did you mean "dirichlet"?',
        ),
        ({"model": "lennet"}, 'unknown model "lennet", did you mean "lenet"?'),
        ({"peers": 0}, "peers = 0: must be at least 1"),
        ({"seed": -1}, "seed = -1: must be at least 0"),
        ({"learning-rate": 0}, "learning-rate = 0: must be above 0"),
        ({"momentum": 1}, "momentum = 1: must be at least 0 and below 1"),
        ({"optimizer": "adam", "momentum": 0.9}, "momentum needs optimizer"),
        ({"optimizer": "adamw", "momentum": 0.9}, "momentum needs optimizer"),
        ({"patience": 2}, 'patience requires keep-models = "best"'),
        ({"warm-up-rounds": 150}, "warm-up-rounds must be below"),
        (
            {"learning-rate-schedule": "cosine", "learning-rate-decay": 0.5},
            'learning-rate-decay needs learning-rate-schedule = "step"',
        ),
        (
            {"privacy.kind": "examples", "method": "fedavg", "gradient-clip": 1.0},
            "gradient-clip",
        ),
        (
            {"privacy.kind": "examples", "method": "fedavg", "model.personal": "head"},
            "model.personal layers are trained without noise",
        ),
        (
            {"privacy.kind": "examples", "method": "fedavg", "class-weights": "balanced"},
            "class-weights would give single examples more influence",
        ),
        ({"topology": "file"}, 'topology = "file" needs topology-file'),
        ({"name": "../x"}, "name must be the name of one directory"),
        ({"mlp.hidden": "64-"}, "mlp: hidden must be"),
    ],
)
def test_one_line_says_what_is_wrong(flat: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        Config.from_flat(flat)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_graph_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no graph of 7 peers with 3 neighbours"):
        Config.from_flat({"topology": "k-regular", "topology-degree": 3, "peers": 7}).graph()
    missing = {"topology": "file", "topology-file": str(tmp_path / "none.json")}
    with pytest.raises(ConfigError, match=r"none\.json"):
        Config.from_flat(missing).graph()


def test_local_steps_follow_the_dataset() -> None:
    assert Config.from_flat({"local-steps": 0}).local_steps == 10
    assert Config.from_flat({"dataset": "fashion-mnist"}).local_steps == 1
    assert Config.from_flat({"dataset": "fashion-mnist", "local-steps": 7}).local_steps == 7


@pytest.mark.parametrize("method", sorted(METHODS.keys() - {"boosting", "partial-pooling"}))
def test_every_method_runs_on_the_defaults(method: str) -> None:
    """Only methods that validate set validation data aside."""
    config = Config.from_flat({"method": method})
    problem = check(config)
    share = VALIDATION_SHARE if METHODS[method].validates else 0.0
    assert config.validation == ("partition.validation", share)
    assert problem.validation.sizes.tolist() == [round(60 * share)] * 8
    assert Config.from_flat({"method": method, "partition.validation": 0}).partition.validation == 0


def test_a_table_has_validation_data_where_the_method_needs_it() -> None:
    flat = {"dataset": "table", "table.columns": "age", "table.classes": "yes,no"}
    for method, share in (("dpfl", VALIDATION_SHARE), ("cobo", 0.0)):
        config = Config.from_flat({**flat, "method": method})
        assert config.validation == ("table.validation", share)


def test_local_epochs_may_replace_local_steps() -> None:
    training = Config.from_flat({"local-steps": 0, "local-epochs": 2}).training
    assert (training.local_steps, training.local_epochs) == (0, 2)  # digits: else 10 steps


def test_a_run_without_a_name_gets_one_from_what_it_is() -> None:
    config = Config.from_flat({"method": "local", "seed": 3}).located("42")
    assert config.name == "local-digits-seed3-42"
    assert Path(config.run_dir) == Path("runs", config.name).absolute()
    assert config.located("43") == config


def test_absolute_touches_paths_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = Config.from_flat({"dataset": "quadratic", "quadratic.file": "p.json"})
    before, after = config.flat(), config.absolute().flat()
    changed = {key: after[key] for key in before if before[key] != after[key]}
    assert changed == {
        "out": str(tmp_path / "runs"),
        "data-dir": str(tmp_path / "data"),
        "quadratic.file": str(tmp_path / "p.json"),
    }


def test_the_keys_that_name_paths_are_those_annotated_so() -> None:
    assert {key for key, (_, option) in keys().items() if option.is_path} == {
        "clock.file", "data-dir", "gpt2.weights-file", "out", "quadratic.file", "run-dir",
        "model.weights", "schedule.file", "topology-file", "trust",
    }  # fmt: skip


def test_mlp_widths() -> None:
    assert MlpOptions().widths(64) == (64,)
    assert MlpOptions().widths(65) == (128,)
    assert MlpOptions("1000-200").widths(64) == (1000, 200)


@dataclass(frozen=True)
class Table:
    lambda_: float = 0.5
    at_most: int | Literal["all"] = "all"
    inner: Any = None


def test_a_table_s_keys() -> None:
    assert list(schema.options_of(Table)) == ["lambda", "at-most"]
    assert schema.defaults(Table) == {"lambda": 0.5, "at-most": "all"}
    assert schema.values(Table(lambda_=2.0)) == {"lambda": 2.0, "at-most": "all"}


@pytest.mark.slow
@given(
    st.booleans() | st.integers() | st.floats() | st.text(),
    st.sampled_from([bool, int, float, str]),
)
def test_nothing_but_int_to_float_is_converted(value: schema.Scalar, kind: type) -> None:
    try:
        converted = Option("x", "x", (kind,), None).take(value)
    except ValueError:
        too_large = not isinstance(value, str) and not abs(value) < 2**63  # also nan
        assert too_large or type(value) is not kind
        assert too_large or (type(value), kind) != (int, float)
    else:
        assert type(converted) is kind
        assert converted == (float(value) if kind is float else value)


@pytest.mark.parametrize(
    ("text", "kinds", "value"),
    [
        ("64", int, 64),
        ("64", float, 64.0),
        ("64", str, "64"),
        ("1000-200", str, "1000-200"),
        ("1e-3", float, 1e-3),
        ("true", bool, True),
        ("true", str, "true"),
        ('"true"', str, "true"),
        ("", str, ""),
        ("a=b", str, "a=b"),
        ("all", (int, "all"), "all"),
        ("3", (int, "all"), 3),
    ],
)
def test_values_typed_at_the_prompt(text: str, kinds: Any, value: schema.Scalar) -> None:
    read = Option("x", "x", kinds if isinstance(kinds, tuple) else (kinds,), None).read(text)
    assert (read, type(read)) == (value, type(value))


LIMITED = {key: option.range for key, (_, option) in keys().items() if option.range != Range()}


@pytest.mark.parametrize("key", LIMITED)
def test_a_value_out_of_range_is_refused_with_key_value_and_range(key: str) -> None:
    table = key.rpartition(".")[0]
    kind = next((kind for kind, part in PARTS.items() if table in part.built_in), None)
    chosen = {} if kind is None else {PARTS[kind].key: table}
    limits = LIMITED[key]
    outside: list[int | float] = []
    outside += [limits.low - 1] if limits.low > -np.inf else []
    outside += [limits.high + 1] if limits.high < np.inf else []
    outside += [bound for bound in (limits.above, limits.below) if abs(bound) < np.inf]
    for value in outside:
        typed = int(value) if value == int(value) else value  # a float takes both
        with pytest.raises(ConfigError, match=re.escape(f"must be {limits}")) as refusal:
            Config.from_flat({**chosen, key: typed})
        assert str(refusal.value) == f"{key} = {schema.written(typed)}: must be {limits}"


@pytest.mark.parametrize("topology", ["epidemic", "push"])
def test_directed_edges_are_for_methods_without_answers(topology: str) -> None:
    """Local, to which comparisons relate the others, sends nothing at all."""
    asks = [name for name in METHODS if METHODS[name].answer is not Rule.answer]
    assert "cobo" in asks
    assert "local" not in asks
    for name in METHODS:
        flat: dict[str, Any] = {"method": name, "topology": topology, "topology-degree": 2}
        config = Config.from_flat(flat | NEEDS.get(name, {}))
        if name in asks:
            with pytest.raises(ConfigError, match="the method needs answers"):
                config.strategy()
        else:
            config.strategy()


TOLD = {"oracle", "bias-correction", "all-for-one"}
"""Methods whose code reads the true clusters."""


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_told_the_truth_by_existing_options_only(name: str) -> None:
    method = METHODS[name]
    table: type = method
    assert bool(method.true_clusters) == (name in TOLD)
    assert method.knows_clusters({}) == (method.true_clusters is True)
    for key, value in (
        () if isinstance(method.true_clusters, bool) else method.true_clusters.items()
    ):
        assert schema.options_of(table)[key].take(value) == value
        assert value != schema.defaults(table)[key]
        assert method.knows_clusters({key: value})


@pytest.mark.slow
def test_methods_that_read_the_true_clusters_say_so() -> None:
    """Check by the code: the rule or its options use the true clusters."""
    readers = {
        name
        for name, method in METHODS.items()
        for cls in method.__mro__
        if cls.__module__.startswith("coterie.clients.")
        and re.search(r"true_clusters\(|same_cluster\(\)", getsource(cls))
        and cls.__name__ not in ("Formulas",)
    }
    # IFCA reads their number only; bias correction may be given the true bias instead
    assert readers - {"ifca"} == TOLD - {"bias-correction"}


@pytest.mark.parametrize(
    ("keys", "kind", "limit"),
    [
        ({}, "label-permutation", 60),
        ({"partition.kind": "iid"}, "iid", 60),
        ({"partition.kind": "json:loads"}, "json:loads", 0),
        ({"dataset": "fashion-mnist"}, "dirichlet", 0),
        ({"dataset": "heart-disease", "peers": 4}, "natural", 0),
        ({"dataset": "breast-cancer"}, "iid", 0),
        ({"dataset": "fashion-mnist", "partition.samples-per-peer": 7}, "dirichlet", 7),
    ],
)
def test_a_data_set_named_alone_is_divided_as_usual(
    keys: dict[str, Any], kind: str, limit: int
) -> None:
    config = Config.from_flat(keys)
    assert (config.partition.kind, config.partition.samples_per_peer) == (kind, limit)
    assert Config.from_flat(config.flat()) == config
