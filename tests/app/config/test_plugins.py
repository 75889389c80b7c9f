"""Names from outside are loaded or refused in one line; their options work as built-in ones do."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.common.config import flatten_dict, fuse_dicts

from coterie.app.cli.main import main
from coterie.app.comparisons import tune
from coterie.app.config import parts
from coterie.app.config.config import Config, ConfigError
from coterie.app.config.items import read_items
from coterie.app.config.keys import flatten
from coterie.app.config.preflight import check
from coterie.app.config.root import ROOT
from coterie.app.config.sources import of_record
from coterie.app.experiments.grid import with_run_dir
from coterie.app.institution.process.job import Job
from coterie.clients.defence import Defence
from coterie.clients.engine import robust
from coterie.datasets import plugins
from coterie.datasets.problem import DataError
from tests import plugins as theirs
from tests.inline import run

METHOD, NET = "tests.plugins:Mine", "tests.plugins:Net"
DATA, HALVES = "tests.plugins:arrays", "tests.plugins:halves"
ALL: dict[str, Any] = {
    "method": METHOD, "method-options.strength": 0.25,
    "model": NET, "model-options.width": 3, "model-options.file": "x.txt",
    "dataset": DATA, "dataset-options.size": 20,
    "partition.kind": HALVES, "peers": 2, "num-server-rounds": 1, "device": "cpu",
}  # fmt: skip


def test_options_survive_flat_toml_and_flower() -> None:
    config = Config.from_flat(ALL)
    assert config.options == theirs.Mine(0.25)
    assert config.model_options == theirs.NetOptions(3, "x.txt")
    assert config.dataset_options == theirs.DataOptions(20)
    assert Config.from_flat(config.flat()) == config
    assert Config.from_flat(flatten(tomllib.loads(config.toml()))) == config
    packed = parts.packed(config.flat())
    assert packed["method-options"] == "strength = 0.25"
    assert not any(key.startswith("method-options.") for key in packed)
    assert Config.from_flat(packed) == config


def test_flower_knows_every_key() -> None:
    """It refuses a run configuration with keys that pyproject.toml lacks."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    known = flatten_dict(project["tool"]["flwr"]["app"]["config"])
    packed = parts.packed(Config.from_flat(ALL | {"model.personal": "fc"}).flat())
    fused = fuse_dicts(known, packed)
    assert Config.from_flat(fused) == Config.from_flat(packed)


def test_options_at_the_prompt(tmp_path: Path) -> None:
    preset = tmp_path / "mine.toml"
    preset.write_text(f'method = "{METHOD}"\n[method-options]\nstrength = 2\n')
    _, flat = read_items([str(preset)])
    assert Config.from_flat(flat).options == theirs.Mine(2.0)
    for items in (["method-options.strength=3"], ["method-options=strength = 3"]):
        _, flat = read_items([str(preset), *items])
        assert Config.from_flat(flat).options == theirs.Mine(3.0)
    _, flat = read_items([str(preset), "method=fedavg"])  # its options are idle
    assert Config.from_flat(flat).method == "fedavg"


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (["model=tests.plugins:Nett"], '"tests.plugins" has no "Nett", did you mean "Net"?'),
        (["model=tests.pluggins:Net"], 'no module "tests.pluggins" is installed or in'),
        (["method=tests.plugins:Net"], "is a type: it must be a class that extends coterie.Rule"),
        ([f"model={NET}", "model-options.widht=3"], 'did you mean "model-options.width"?'),
        ([f"model={NET}", "model-options.width=x"], "model-options.width=x: must be an integer"),
        (["method-options.strength=1"], 'unknown key "method-options.strength"'),
        ([f"method={METHOD}", "method-options=strength"], "must be options like"),
        (["model=tests.plugins:thawed"], "write @dataclass(frozen=True) above Thawed"),
    ],
)
def test_what_is_wrong_is_one_line(items: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as refusal:
        Config.from_flat(read_items(items)[1])
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"method-options.strength": -1.0}, "method-options: strength must not be negative"),
        ({"dataset-options.size": None}, "dataset-options.size has no default: set it"),
        ({"dataset": "tests.plugins:wants_folder"}, 'has a parameter "folder"'),
        ({"dataset": "tests.plugins:number"}, "returns a int: it must return a Source, or a list"),
        ({"dataset": "digits", "partition.kind": "tests.plugins:foreign_rows"}, "source.train"),
        ({"model": "tests.plugins:no_network"}, "returns a int: it must return a torch.nn.Module"),
        ({"model": "tests.plugins:too_narrow"}, 'in layer "1" (Linear): mat1 and mat2 shapes'),
        ({"model": "tests.plugins:one_output"}, "classification wants (2, 2)"),
        ({"model": "torchvision:resnet18"}, "it classifies images, but an example has shape (3,)"),
        ({"model": "transformers:/none"}, "no config.json in /none"),
    ],
)
def test_what_does_not_fit_is_found_before_anything_is_written(
    more: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flat = {key: value for key, value in {**ALL, **more}.items() if value is not None}
    for key in ("model-options.width", "model-options.file"):
        flat.pop(key) if flat["model"] != NET else None
    if flat["dataset"] != DATA:
        flat.pop("dataset-options.size", None)
    items = [f"{key}={value}" for key, value in flat.items()]
    assert main(["run", *items, f"out={tmp_path / 'runs'}"]) == 2
    error = capsys.readouterr().err.replace("addmm: mat1", "mat1")  # PyTorch 2.15 names the kernel
    assert message in error
    assert not (tmp_path / "runs").exists()


def test_a_run_of_nothing_but_plugins(tmp_path: Path) -> None:
    done = run(ALL, tmp_path / "one")
    assert done.metric("test_loss", 1).shape == (2,)
    both = {key: value for key, value in ALL.items() if not key.startswith("dataset-options")}
    both |= {"dataset": "tests.plugins:source", "partition.samples-per-peer": 0}
    done = run(both, tmp_path / "two", 2)
    assert done.metric("test_loss", 1).shape == (2,)


WORLD: dict[str, Any] = {
    "method": "fedavg", "dataset": "digits", "peers": 4, "num-server-rounds": 4,
    "partition.kind": "iid", "device": "cpu", "evaluate-every": 1,
}  # fmt: skip


def test_a_topology_of_a_plugin_is_the_graph_of_the_run() -> None:
    config = Config.from_flat(WORLD | {"topology": "tests.plugins:PATH"})
    assert np.argwhere(np.triu(config.graph())).tolist() == [[0, 1], [1, 2], [2, 3]]
    assert Config.from_flat(flatten(tomllib.loads(config.toml()))) == config
    with pytest.raises(ConfigError, match="must return a symmetric array of bool"):
        Config.from_flat(WORLD | {"topology": "tests.plugins:ONE_WAY"}).graph()
    with pytest.raises(ConfigError, match=r"is a type: it must be a coterie\.Topology"):
        Config.from_flat(WORLD | {"topology": METHOD})


def test_a_schedule_of_a_plugin_decides_who_is_awake(tmp_path: Path) -> None:
    flat = WORLD | {"schedule.kind": "tests.plugins:FIRST_HALF"}
    done = run(flat, tmp_path / "run")
    assert (done.metric("bytes_sent", 2) > 0).all()
    assert Config.from_flat(flat).strategy().schedule.awake(3).sum() == 0


def test_an_attack_of_a_plugin_forges_letters(tmp_path: Path) -> None:
    """An attacker that doubles the model is the built-in scaling around 0 of one peer's letter."""
    flat = WORLD | {"attack.peers": "1", "attack.kind": "tests.plugins:DOUBLED", "peers": 2}
    assert Config.from_flat(flat).attack.power == 2
    honest = run(WORLD | {"peers": 2, "num-server-rounds": 1}, tmp_path / "honest")
    forged = run(flat | {"num-server-rounds": 1}, tmp_path / "forged")
    for name, value in honest.models()[0].items():
        assert not torch.equal(value, forged.models()[0][name])


def test_an_aggregation_rule_of_a_plugin_weighs_letters() -> None:
    x = torch.tensor([[0.0, 1.0], [10.0, 10.0], [2.0, 3.0]], dtype=torch.float64)
    received = robust.Received(np.arange(3), np.full(3, 1 / 3), None)
    mean = robust.aggregated(Defence("tests.plugins:ENDS"), x, [received])
    assert mean.tolist() == [[1.0, 2.0]]


def test_a_deployed_node_and_its_relay_take_what_is_installed_only() -> None:
    for key in (part.key for part in parts.PARTS.values()):
        flat = {key: "no.such.module:anything"}
        with pytest.raises(ConfigError, match=f'{key} = "no.such.*entry points "coterie'):
            parts.refuse_modules(flat)
        with pytest.raises(ConfigError, match="is not installed"):
            Job(1, flat, {"peer": 0}, None).config()
    parts.refuse_modules({"model": "torchvision:resnet18"})


@pytest.mark.parametrize("key", [part.key for part in parts.PARTS.values()])
def test_a_file_of_a_run_loads_no_part_that_the_user_has_not_named(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "trap.py").write_text("raise AssertionError('imported')\n")
    table, _, name = key.rpartition(".")
    line = f'{name} = "trap:ROW"\n'
    (tmp_path / "config.toml").write_text(f"[{table}]\n{line}" if table else line)
    with pytest.raises(ConfigError, match="is not built in, and a file of a run loads no code"):
        Config.of(of_record(tmp_path / "config.toml"))
    with pytest.raises(ConfigError, match=r"does not load: .*imported"):
        Config.of(of_record(tmp_path / "config.toml"), named=["trap:ROW"])


def test_paths_of_a_plugin_s_options_are_the_node_s() -> None:
    config = Config.from_flat(ALL)
    assert "model-options.file" in config.paths
    assert config.absolute(Path("/base")).flat()["model-options.file"] == "/base/x.txt"


def test_a_plugin_s_code_tells_its_runs_apart(tmp_path: Path) -> None:
    name = plugins.register("method", "Mine", theirs.Mine)
    first = with_run_dir(Config.from_flat({**ALL, "method": name}), tmp_path)
    plugins.register("method", "Mine", theirs.Mine)
    again = with_run_dir(Config.from_flat({**ALL, "method": name}), tmp_path)
    assert first.run_dir != again.run_dir
    assert "here-Mine-seed0" in first.run_dir
    assert with_run_dir(Config.from_flat(ALL), tmp_path).name.startswith("tests.plugins-Mine")


def test_tuning_takes_a_plugin_s_grid() -> None:
    tried = tune.trials(Config.from_flat(ALL))
    assert {trial["method-options.strength"] for trial in tried} == {0.1, 0.5, 1.0}
    assert len(tried) == 15


def test_what_another_process_was_given_is_named() -> None:
    with pytest.raises(ConfigError, match="registered in another Python process"):
        Config.from_flat({"method": "here:Unknown"})


def test_arrays_become_a_problem() -> None:
    problem = check(Config.from_flat(ALL))
    assert problem.names == ("site 0", "site 1")
    assert problem.classes == ("False", "True")
    assert problem.test.sizes.tolist() == [4, 4]
    plugins.register("dataset", "two", lambda: theirs.arrays(2, 0, theirs.DataOptions(5)))
    three = Config.from_flat({"dataset": "here:two", "peers": 3})
    with pytest.raises(DataError, match="set peers = 2"):
        check(three)


def test_the_fingerprint_of_a_row_covers_the_files_that_define_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row is an object of a class of ours: its own code is in the module that is named."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine_graphs.py").write_text("def path(setting): ...\n")
    (tmp_path / "mine_row.py").write_text(
        "from coterie import Topology\nfrom mine_graphs import path\nROW = Topology('', path)\n"
    )
    content = plugins.fingerprint("topology", "mine_row:ROW")
    for file in ("mine_row.py", "mine_graphs.py"):
        assert (tmp_path / file).read_bytes() in content
    assert Path(theirs.__file__).read_bytes() in plugins.fingerprint("method", METHOD)


def test_a_method_of_the_old_form_is_told_what_to_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old_methods.py").write_text("from coterie import Method, Rule\nMINE = Method()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="a method is one class: class Mine") as refusal:
        Config.from_flat({"method": "old_methods:MINE"})
    assert "\n" not in str(refusal.value)
