"""Test that a run's files build only built-in parts and parts that the user named."""

from __future__ import annotations

import shlex
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import coterie
from coterie.app.cli.main import main
from coterie.app.config.items import read_items
from coterie.app.config.keys import ConfigError
from coterie.app.trained.personal import Named, personal_model
from coterie.datasets import plugins
from tests import plugins as theirs
from tests.inline import run

NET = "tests.plugins:Net"
PLUGIN: dict[str, Any] = {
    "method": "fedavg", "model": NET, "model-options.width": 3, "dataset": "digits", "peers": 2,
    "num-server-rounds": 1, "partition.samples-per-peer": 8, "partition.clusters": 1,
    "device": "cpu",
}  # fmt: skip


@pytest.fixture
def x(tmp_path: Path) -> str:
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 1, 8, 8)))
    return str(tmp_path / "x.npz")


def test_code_is_loaded_where_the_user_names_it_in_the_same_words(
    tmp_path: Path, x: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run(PLUGIN, tmp_path / "run")
    line = ["predict", str(tmp_path / "run"), "--peer", "0", x, "--out", str(tmp_path / "y.csv")]
    for named in ([], ["--part", "tests.plugins:Nett"], ["--part", "tests.plugins:Mine"]):
        assert main([*line, *named]) == 2
        assert f"if you trust it, name it, too: --part {NET}\n" in capsys.readouterr().err
    assert main([*line, "--part", NET]) == 0
    assert main(["export", *line[1:4], str(tmp_path / "y.pt2"), "--part", NET]) == 0


def test_python_takes_names_and_classes(tmp_path: Path) -> None:
    run(PLUGIN, tmp_path / "run")
    (tmp_path / "run" / "config.toml").write_text('method = "fedavg"\npeers = 2\n')
    with pytest.raises(coterie.ResultsError, match=f"--part {NET}"):
        coterie.load(tmp_path / "run").model(0)
    for part in (NET, theirs.Net):
        model = coterie.load(tmp_path / "run", parts=[part]).model(0)
        assert sum(each.numel() for each in model.members[0].fc.parameters()) == 40  # type: ignore


class Mine(torch.nn.Sequential):
    """A network of a test."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, outputs))


@pytest.mark.slow
def test_what_a_run_was_given_its_results_are_given_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keys = {key: value for key, value in PLUGIN.items() if not key.startswith("model")}
    done = coterie.run(None, keys, model=Mine, name="mine")
    assert done.predict(0, np.zeros((3, 1, 8, 8))).shape == (3, 10)
    there = coterie.compare(["fedavg"], None, keys, model=Mine, seeds=1)
    assert there.runs["fedavg"][0].predict(0, np.zeros((3, 1, 8, 8))).shape == (3, 10)


def test_an_installed_part_may_be_named_by_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed package is trusted: its entry points may run."""
    entry = EntryPoint("two-layers", NET, "coterie.models")
    monkeypatch.setattr(plugins, "installed", lambda kind: {"two-layers": entry})
    run(PLUGIN | {"model": "two-layers"}, tmp_path / "run")
    assert personal_model(tmp_path / "run", 0).about.model == "two-layers"


@pytest.mark.slow
def test_resume_loads_what_the_user_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = [f"{key}={value}" for key, value in PLUGIN.items()]
    assert main(["run", *items, "--out", str(tmp_path), "--name", "mine"]) == 0
    (tmp_path / "mine" / "progress.json").write_text('{"status": "failed"}')
    capsys.readouterr()
    assert main(["resume", str(tmp_path / "mine")]) == 2
    assert f"--part {NET}\n" in capsys.readouterr().err
    assert main(["resume", str(tmp_path / "mine"), "--part", NET]) == 0


def test_the_configuration_of_a_run_directory_is_no_preset(tmp_path: Path) -> None:
    """A preset is the user's own; the same file in a run directory may be anybody's."""
    file = tmp_path / "config.toml"
    file.write_text('model = "no.such:Net"\n')
    with pytest.raises(ConfigError, match="no module"):
        read_items([str(file)])
    (tmp_path / "progress.json").touch()
    with pytest.raises(ConfigError, match=r"name it, too: model=no\.such:Net"):
        read_items([str(file)])
    file.write_text(f'model = "{NET}"\n')
    assert read_items([str(file), f"model={NET}"])[1]["model"] == NET
    with pytest.raises(ConfigError, match="is not installed: a deployment"):
        read_items([str(file), f"model={NET}"], deployed=True)


def test_the_command_that_an_error_suggests_is_quoted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "my:Net; touch PWNED"
    run(PLUGIN, tmp_path / "run")
    path = tmp_path / "run" / "models" / "peer-0000.safetensors"
    model = personal_model(tmp_path / "run", 0, Named((NET,)))
    save_file({"w": torch.zeros(1)}, path, model.about.strings() | {"model": evil})
    assert main(["predict", str(tmp_path / "run"), "--peer", "0", "x.npz"]) == 2
    suggested = capsys.readouterr().err.partition("name it, too: ")[2]
    assert shlex.split(suggested) == ["--part", evil]
    assert "my" not in sys.modules


# --- trained weights ------------------------------------------------------------------------------


def test_weights_that_a_network_starts_from_are_named(
    tmp_path: Path, x: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file of a model with adapters does not hold their base, and names no path to open."""
    monkeypatch.chdir(tmp_path)
    g = torch.Generator().manual_seed(0)
    base = {"1.weight": torch.randn(8, 64, generator=g), "1.bias": torch.zeros(8)}
    (tmp_path / "data").mkdir()
    save_file(base, tmp_path / "data" / "base.safetensors")
    flat = {key: value for key, value in PLUGIN.items() if not key.startswith("model")}
    flat |= {
        "model": "mlp", "mlp.hidden": "8", "model.weights": "data/base.safetensors",
        "model.lora-rank": 2,
    }  # fmt: skip
    run(flat, tmp_path / "run")
    line = ["predict", str(tmp_path / "run"), "--peer", "0", x, "--out", "y.npz"]
    assert main(line) == 2
    assert "--weights PATH/base.safetensors" in capsys.readouterr().err
    (tmp_path / "data" / "base.safetensors").rename(tmp_path / "other.safetensors")
    assert main([*line, "--weights", "other.safetensors"]) == 2, "called in another way"
    (tmp_path / "moved").mkdir()
    (tmp_path / "other.safetensors").rename(tmp_path / "moved" / "base.safetensors")
    assert main([*line, "--weights", "moved/base.safetensors"]) == 0
    model = personal_model(tmp_path / "run", 0, Named(weights=("moved/base.safetensors",)))
    adapted = model.members[0].get_submodule("1")
    assert torch.equal(adapted.base.weight, base["1.weight"])  # type: ignore[union-attr, arg-type]
