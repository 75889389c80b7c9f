"""Presets that are based on other presets."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from coterie.app.config.config import Config
from coterie.app.config.items import read_items
from coterie.app.config.keys import ConfigError
from coterie.app.config.schema import Scalar


def presets(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        (folder / f"{name}.toml").write_text(text)


def flat_of(folder: Path, *items: str) -> dict[str, Scalar]:
    return read_items([str(folder / "mine.toml"), *items])[1]


def test_a_preset_overrides_its_base_key_by_key(tmp_path: Path) -> None:
    presets(
        tmp_path,
        root='seed = 1\npeers = 5\nlearning-rate = 0.5\n[cobo]\nrho = 0.1\ngamma = 0.2\n',
        middle='base = "root.toml"\nseed = 2\npeers = 6\n',
        mine='base = "middle.toml"\nseed = 3\n[cobo]\nrho = 0.3\n',
    )  # fmt: skip
    flat = flat_of(tmp_path, "cobo.gamma=0.4")
    keys = ("seed", "peers", "learning-rate", "cobo.rho", "cobo.gamma")
    assert [flat[key] for key in keys] == [3, 6, 0.5, 0.3, 0.4]
    assert "base" not in flat
    (tmp_path / "mine.toml").write_text("\ufeff" + (tmp_path / "mine.toml").read_text())
    assert flat_of(tmp_path, "cobo.gamma=0.4") == flat, "with a byte order mark"
    whole = "seed = 3\npeers = 6\nlearning-rate = 0.5\n[cobo]\nrho = 0.3\ngamma = 0.4\n"
    presets(tmp_path, mine=whole)
    assert Config.from_flat(flat).toml() == Config.from_flat(flat_of(tmp_path)).toml()


def test_a_base_is_found_beside_its_preset_or_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "studies").mkdir()
    presets(tmp_path, shared="peers = 3")
    presets(tmp_path / "studies", shared="peers = 4", mine='base = "shared.toml"')
    assert flat_of(tmp_path / "studies")["peers"] == 4
    presets(tmp_path / "studies", mine='base = "../shared.toml"')
    assert flat_of(tmp_path / "studies")["peers"] == 3
    presets(tmp_path / "studies", mine='base = "cobo/fashion-mnist"\npeers = 4')
    flat = flat_of(tmp_path / "studies")
    assert (flat["dataset"], flat["peers"], flat["cobo.probability"]) == ("fashion-mnist", 4, 0.25)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('base = "mine.toml"', "the preset is based on itself"),
        ('base = "other.toml"', "the preset is based on itself"),
        ('base = "cobo/fashion-mnits"', 'did you mean "cobo/fashion-mnist"'),
        ("base = 3", "base = 3: must be the name of a preset"),
        ('base = "wrong.toml"', r'wrong.toml:1: unknown key "seeds", did you mean "seed"'),
    ],
)
def test_a_wrong_base_is_refused(tmp_path: Path, text: str, says: str) -> None:
    presets(tmp_path, mine=text, other='base = "./mine.toml"', wrong="seeds = 3")
    with pytest.raises(ConfigError, match=says):
        flat_of(tmp_path)


def test_a_preset_does_not_contradict_its_recipe(tmp_path: Path) -> None:
    """The keys of a recipe override those of a base; the preset that names it must agree."""
    presets(tmp_path, root="momentum = 0.5", mine='base = "root.toml"\nmethod = "dfedavgm"')
    assert Config.from_flat(flat_of(tmp_path)).training.momentum == 0.9
    presets(tmp_path, mine='method = "dfedavgm"\nmomentum = 0.5')
    with pytest.raises(ConfigError, match="the recipe dfedavgm has momentum ="):
        flat_of(tmp_path)


def test_a_file_of_a_run_directory_names_no_base(tmp_path: Path) -> None:
    """It may come from anywhere: it opens no other file."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").touch()
    presets(tmp_path / "run", mine='base = "../other.toml"')
    presets(tmp_path, other="peers = 3", mine='base = "run/mine.toml"')
    for folder in (tmp_path / "run", tmp_path):
        with pytest.raises(ConfigError, match="its files name no base"):
            flat_of(folder)


def test_a_preset_beside_the_folders_of_a_consortium_is_a_preset(tmp_path: Path) -> None:
    """Folders named `nodes` and `relay` do not make it a file of an old run."""
    for folder in ("nodes", "relay"):
        (tmp_path / folder).mkdir()
    presets(tmp_path, root="peers = 3", mine='base = "root.toml"\ndataset = "table"')
    assert {"peers": 3, "dataset": "table"}.items() <= flat_of(tmp_path).items()
    assert flat_of(tmp_path)["table.scale"] == "common"


def test_a_run_recorded_before_a_key_keeps_what_it_did(tmp_path: Path) -> None:
    """Without `evaluate-peers` a run evaluated participants only; a preset has the default."""
    presets(tmp_path, mine='schedule.kind = "sample"')
    assert Config.from_flat(flat_of(tmp_path)).evaluate_peers == "all"
    (tmp_path / "metrics.jsonl").touch()
    assert Config.from_flat(flat_of(tmp_path)).evaluate_peers == "participants"


def test_a_base_from_a_run_directory_names_no_code(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").touch()
    presets(tmp_path / "run", config='model = "evil:Net"\npeers = 3\n')
    presets(tmp_path, mine='base = "run/config.toml"\npeers = 4\n')
    with pytest.raises(ConfigError, match=re.escape("name it, too: model=evil:Net")):
        flat_of(tmp_path)
    assert "evil" not in sys.modules
    assert flat_of(tmp_path, "model=linear")["peers"] == 4
    presets(tmp_path, mine='base = "run/config.toml"\nmodel = "mlp"\n')
    assert flat_of(tmp_path)["peers"] == 3


@pytest.mark.parametrize(
    "text",
    [
        ".".join("a" * 20_000) + " = 1",
        "[" + ".".join("a" * 20_000) + "]\nx = 1",
        "seed = " + "9" * 5001,
        "seed = " + "[" * 20_000 + "]" * 20_000,
        'seed = "' + "9" * 5001 + '"',
    ],
)
def test_a_file_of_absurd_size_is_one_short_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "absurd.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_items([str(file)])
    assert len(str(error.value).splitlines()) == 1
    assert len(str(error.value)) < 600


@pytest.mark.parametrize("item", [".".join("a" * 20_000) + "=1", "seed=" + "9" * 5001])
def test_an_item_of_absurd_size_is_one_short_line(item: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_items([item])
    assert len(str(error.value)) < 600
