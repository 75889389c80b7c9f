"""A model per peer: laws, three kinds at four hospitals, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.digest import config_digest_of
from coterie.app.config.items import sources_of
from coterie.app.config.preflight import problem_of
from coterie.app.lab.catalogue.fetch import fetch
from coterie.app.lab.catalogue.sets import SETS
from coterie.app.trained import personal
from tests.clients.methods.test_predictors import METHODS, TREES
from tests.inline import run

KINDS = ("forest", "mlp", "logistic", "linear")
DIGITS = TREES | {
    "model": "mlp", "peers": 4, "forest.trees": 3, "engine.backend": "sequential",
    "weight-decay": 0.01, "momentum": 0.9,
}  # fmt: skip
HEARTS: dict[str, Any] = {
    "dataset": "table", "peers": 4, "model": "logistic", "num-server-rounds": 2,
    "evaluate-every": 1, "local-epochs": 1, "learning-rate": 0.03, "batch-size": 16,
    "table.columns": "all", "table.label": "diagnosis", "table.classes": "healthy, ill",
    "table.schema": "file", "table.test": 0.34, "table.na-values": "cholesterol=0",
    "table.missing": "mean", "device": "cpu", "forest.trees": 5, "boosted-trees.trees": 5,
    "peer-models": {"0-cleveland": "forest", "1": "boosted-trees", "2-switzerland": "mlp"},
}  # fmt: skip


@pytest.fixture(scope="module")
def hearts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("data")
    fetch("heart-disease", SETS["heart-disease"], folder)
    names = sorted(path.name for path in (folder / "heart-disease").iterdir() if path.is_dir())
    models = dict(zip(names, ("forest", "boosted-trees", "mlp"), strict=False))
    return HEARTS | {"data-dir": str(folder / "heart-disease"), "peer-models": models}


@pytest.mark.slow
def test_alone_each_peer_is_what_it_is_in_a_run_of_its_kind(tmp_path: Path) -> None:
    """To the byte, with one backend; weight decay changes no kind."""
    flat = DIGITS | {"method": "local"}
    models = {str(peer): kind for peer, kind in enumerate(KINDS)}
    mixed = run(flat | {"peer-models": models}, tmp_path / "mixed")
    for peer, kind in enumerate(KINDS):
        alone = run(flat | {"model": kind}, tmp_path / kind)
        for t in range(3):
            for name in ("test_loss", "test_accuracy", "gradient_evaluations"):
                assert mixed.metric(name, t)[peer] == alone.metric(name, t)[peer]


@pytest.mark.parametrize("kind", ["forest", "mlp"])
def test_one_kind_for_all_is_a_run_with_this_model(tmp_path: Path, kind: str) -> None:
    flat = TREES | {"method": "mixture", "forest.trees": 3}
    table = {str(peer): kind for peer in range(3)}
    ours = run(flat | {"peer-models": table, "model": "linear"}, tmp_path / "ours")
    theirs = run(flat | {"model": kind}, tmp_path / "theirs")
    for name in ("test_loss", "test_accuracy", "validation_loss", "bytes_sent"):
        assert np.array_equal(ours.metric(name), theirs.metric(name), equal_nan=True)
    assert (ours.weights() == theirs.weights()).all()


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_three_kinds_at_four_hospitals(tmp_path: Path, hearts: dict[str, Any], method: str) -> None:
    """Nodes and a resumed run give the bytes of one process; files predict what was evaluated."""
    flat = hearts | {"method": method}
    one, four = run(flat, tmp_path / "one"), run(flat, tmp_path / "four", 4)
    until = run(flat, tmp_path / "again", 2, until=1)
    again = run(flat, tmp_path / "again", 2, after=until)
    assert not one.refused
    for other in (four, again):
        for name in ("test_loss", "test_accuracy", "bytes_sent", "gradient_evaluations"):
            assert (one.metric(name) == other.metric(name)).all()
        assert (one.weights() == other.weights()).all()
    assert (one.weights() > 0).sum() > 4, "somebody predicts with others"
    problem = problem_of(one.config)
    kinds = [one.config.model_of_peer(p, name) for p, name in enumerate(hearts["peer-models"])]
    for peer, kind in enumerate([*kinds, "logistic"]):
        file = one.directory / "models" / f"peer-{peer:04d}.safetensors"
        card = json.loads(file.with_suffix(".json").read_text())
        assert card["model"] == kind
        assert all(each["model"] in (*kinds, "logistic") for each in card["collaborators"])
        assert problem.table is not None
        rows, targets = problem.test.rows[peer], problem.test.targets[peer]
        predicted = personal.load(file)(torch.from_numpy(problem.table.cells[rows])).argmax(dim=1)
        assert (predicted.numpy() == targets).mean() == one.metric("test_accuracy")[peer]
        assert set(load_file(file)["members.kind"].tolist()) <= {0.0, 1.0, 2.0, 3.0}


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_a_hostile_model_costs_its_sender_its_letters(tmp_path: Path, method: str) -> None:
    """A forest with random numbers, its kind included; the others go on as if it were absent."""
    models = {"0": "forest", "1": "logistic"}
    flat = DIGITS | {"method": method, "attack.peers": "0", "peer-models": models}
    hostile = run(flat | {"attack.kind": "gaussian"}, tmp_path / "hostile", 2)
    absent = run(flat | {"attack.kind": "nan"}, tmp_path / "absent", 2)
    for name in ("test_loss", "test_accuracy"):
        assert (hostile.metric(name)[1:] == absent.metric(name)[1:]).all()
    assert (hostile.weights(2)[1:, 0] == 0).all()
    assert all(hostile.reports[2, peer].metrics["refused_models"] for peer in (1, 2, 3))


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"method": "fedavg"}, "choose local, mixture, selection, stacking"),
        ({"method": "pooled"}, "trains one model"),
        ({"payload": "int8"}, "payload"),
        ({"privacy.kind": "examples"}, "gradients"),
        ({"model.frozen": "kind"}, "layers"),
        ({"late-peers": 0.5}, "late-peers"),
        ({"peer-models": {"9": "mlp"}}, "peers are 0 to 2"),
        ({"peer-models": {"01": "mlp"}}, "peers are 0 to 2"),
        ({"peer-models": {"0": "mpl"}}, "unknown model"),
        ({"peer-models": {"0": "gpt2"}}, "cannot be one"),
        ({"peer-models": {"0": 3}}, "table of models"),
        ({"peer-models": "0, 1"}, "table of models"),
    ],
)
def test_what_peers_with_different_models_cannot_do_is_refused(
    keys: dict[str, Any], why: str
) -> None:
    flat = TREES | {"method": "mixture", "peer-models": {"0": "mlp"}}
    with pytest.raises(ConfigError, match=why):
        Config.from_flat(flat | keys)


def test_a_name_that_no_peer_has_is_refused(tmp_path: Path, hearts: dict[str, Any]) -> None:
    first = next(iter(hearts["peer-models"]))
    for table, why in (
        ({f"{first}x": "mlp"}, f'mean "{first}"'),
        ({first: "mlp", "0": "mlp"}, "same"),
    ):
        with pytest.raises(ConfigError, match=why):
            run(hearts | {"method": "mixture", "peer-models": table}, tmp_path)
    with pytest.raises(ConfigError, match="use numbers"):
        run(TREES | {"method": "mixture", "peer-models": {"north": "mlp"}}, tmp_path)


def test_the_digest_covers_the_models_and_their_options() -> None:
    """Not those of models that no peer has; a file of a run starts it again."""
    flat = TREES | {"method": "mixture", "peer-models": {"0": "mlp"}}
    digests = [
        config_digest_of(Config.from_flat(flat | more))
        for more in ({}, {"peer-models": {"1": "mlp"}}, {"mlp.hidden": "7"}, {"forest.trees": 7})
    ]
    assert len(set(digests)) == 3
    assert digests[0] == digests[3]
    config = Config.from_flat(flat)
    assert Config.from_flat(config.flat()) == config


def test_presets_and_the_command_line_have_the_table(tmp_path: Path) -> None:
    """The command line replaces the table of a preset; config.toml has it as text."""
    preset = tmp_path / "mixed.toml"
    preset.write_text('method = "mixture"\nmodel = "mlp"\n[peer-models]\n"0-a b" = "forest"\n')
    config = Config.of(*sources_of([str(preset)])[1])
    assert config.model_of_peer(0, "0-a b") == "forest"
    assert config.kinds == ("mlp", "forest")
    typed = Config.of(*sources_of([str(preset), "peer-models.1=logistic"])[1])
    assert [typed.model_of_peer(p, "0-a b" * (p == 0)) for p in (0, 1)] == ["mlp", "logistic"]
    (tmp_path / "config.toml").write_text(config.toml())
    assert Config.of(*sources_of([str(tmp_path / "config.toml")])[1]) == config
