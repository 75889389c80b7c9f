"""Changed data are noticed: for every kind of data that users bring, no run answers with others.

A change keeps size and time of the file, as a correction within a second does.
"""

from __future__ import annotations

import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import tomli_w
import torch
from PIL import Image
from pyarrow import parquet
from rich.console import Console
from safetensors.torch import save_file

import coterie
from coterie.app.cli.main import main
from coterie.app.comparisons.run import ComparisonRequest, compare
from coterie.app.config.config import Config
from coterie.app.config.preflight import problem_of
from coterie.app.experiments.grid import with_run_dir
from coterie.app.node.node import Node
from coterie.app.runners import sweep
from coterie.app.runs import provenance, rundir
from coterie.app.runs.files import ResultsError
from coterie.datasets.problem import DataError
from coterie.strategies.protocol import Request
from tests.datasets.own.test_text import write_tokenizer

PEERS = ("a", "b")
BASE: dict[str, Any] = {
    "method": "fedavg", "peers": 2, "num-server-rounds": 2, "evaluate-every": 1, "local-steps": 2,
    "batch-size": 8, "learning-rate": 0.3, "device": "cpu",
}  # fmt: skip
TABLE = {"dataset": "table", "model": "linear", "table.columns": "x", "table.label": "y",
         "table.classes": "lo,hi"}  # fmt: skip


def table(folder: Path, sign: int) -> dict[str, np.ndarray[Any, Any]]:
    g = np.random.default_rng(len(folder.name))
    x = g.integers(-9, 10, 60)
    return {"x": x, "y": np.where(sign * (x + 0.5) > 0, 1, 0)}


def write_csv(root: Path, sign: int) -> None:
    for name in PEERS:
        columns = table(root / name, sign)
        lines = [f"{x},{('lo', 'hi')[y]}" for x, y in zip(*columns.values(), strict=True)]
        (root / name / "data.csv").write_text("\n".join(["x,y", *lines, ""]))


def write_parquet(root: Path, sign: int) -> None:
    for name in PEERS:
        columns = table(root / name, sign)
        columns["y"] = np.array(["lo", "hi"])[columns["y"]]
        content = pa.table({key: pa.array(column) for key, column in columns.items()})
        options = {"use_dictionary": False, "compression": "none", "write_statistics": False}
        parquet.write_table(content, root / name / "data.parquet", **options)


def write_schema(root: Path, sign: int) -> None:
    """Only the schema changes: the scale of a column."""
    write_csv(root, 1)
    (root / "schema.toml").write_text(
        f"[columns.x]\nmean = {5 - 4.5 * sign}\nscale = 4.0\n"
        '[columns.y]\nkind = "category"\ncategories = ["lo", "hi"]\n'
    )


def write_arrays(root: Path, sign: int) -> None:
    for name in PEERS:
        columns = table(root / name, sign)
        np.savez(root / f"{name}.npz", x=columns["x"][:, None] / 9, y=columns["y"])


def write_images(root: Path, sign: int) -> None:
    """Bright images are ill; after the change those of both classes are alike."""
    g = np.random.default_rng(0)
    for name in PEERS:
        for number in range(40):
            kind = ("healthy", "ill")[number % 2]
            bright = 120 * (number % 2 if sign > 0 else number // 2 % 2)
            pixels = (g.integers(0, 100, (4, 4)) + bright).astype(np.uint8)
            folder = root / name / kind
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / f"{number}.tif")


def write_texts(root: Path, sign: int) -> None:
    write_tokenizer(root)
    for name in PEERS:
        words = "a b c d e f g " if sign > 0 else "g a f b e c d "
        (root / name / "1.txt").write_text(words * 12)


def write_quadratic(root: Path, sign: int) -> None:
    content = {"curvature": [[1.0], [2.0]], "centre": [[1.0], [2.0 + sign]], "noise": [0.0, 0.0],
               "start": [0.0]}  # fmt: skip
    (root / "losses.json").write_text(json.dumps(content))


@dataclass(frozen=True)
class Kind:
    """How data of a kind are written, as first given (1) or changed (-1), and used."""

    write: Callable[[Path, int], None]
    keys: dict[str, Any]
    changed: tuple[str, ...]  # files that change


KINDS = {
    "csv": Kind(write_csv, TABLE, ("a/data.csv", "b/data.csv")),
    "parquet": Kind(write_parquet, TABLE, ("a/data.parquet", "b/data.parquet")),
    "schema": Kind(
        write_schema, TABLE | {"table.schema": "file", "table.scale": "schema"}, ("schema.toml",)
    ),
    "arrays": Kind(write_arrays, {"dataset": "arrays", "model": "linear"}, ("a.npz", "b.npz")),
    "image-folder": Kind(
        write_images,
        {"dataset": "image-folder", "model": "linear", "image-folder.classes": "healthy, ill",
         "image-folder.shape": "1x4x4"},
        ("a/healthy/", "a/ill/", "b/healthy/", "b/ill/"),
    ),
    "text": Kind(
        write_texts,
        {"dataset": "text", "text.context": 4, "transformer.width": 8, "transformer.heads": 2,
         "transformer.layers": 1},
        ("a/1.txt", "b/1.txt"),
    ),
    "quadratic": Kind(
        write_quadratic, {"dataset": "quadratic", "quadratic.file": "d/losses.json"},
        ("losses.json",),
    ),
}  # fmt: skip
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def given(kind: Kind, root: Path) -> dict[str, Any]:
    for name in PEERS:
        (root / name).mkdir(parents=True, exist_ok=True)
    kind.write(root, 1)
    return BASE | {"data-dir": "d"} | kind.keys


@contextmanager
def kept_times(root: Path) -> Iterator[None]:
    """Let files that are written keep their size and times, as far as a program can."""
    before = {path: path.stat() for path in root.rglob("*") if path.is_file()}
    yield
    for path, status in before.items():
        assert path.stat().st_size == status.st_size, path
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def change(kind: Kind, root: Path) -> None:
    with kept_times(root):
        kind.write(root, -1)


def numbers(run_dir: Path) -> bytes:
    return (run_dir / "metrics.jsonl").read_bytes()


def started(keys: dict[str, Any], name: str) -> bytes:
    return numbers(coterie.run(None, keys, name=name).directory)


def compared(keys: dict[str, Any], out: str = "out") -> tuple[bytes, str, int]:
    """Return the numbers of a comparison's run, its output, and when the run ended."""
    console = Console(file=io.StringIO(), width=500)
    compare(ComparisonRequest("t", keys, ["local"], Path(out), 1, yardsticks="none"), console)
    (run_dir,) = Path(out).glob("local-*")
    assert isinstance(console.file, io.StringIO)
    ended = (run_dir / "metrics.jsonl").stat().st_mtime_ns
    return numbers(run_dir), console.file.getvalue(), ended


def changes(before: provenance.Content, after: provenance.Content) -> list[str]:
    Path("of").mkdir(exist_ok=True)
    provenance.write(Path("of"), before)
    return provenance.since(Path("of"), after) or []


def now(config: Config) -> provenance.Content:
    return provenance.content_of(config, problem_of(config))


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.some(3)
@every_kind
def test_changed_data_are_noticed_and_others_reused(kind: Kind) -> None:
    keys = given(kind, Path("d"))
    first, before = started(keys, "first"), provenance.read(Path("runs/first"))
    assert started(keys, "same") == first
    assert provenance.read(Path("runs/same")) == before
    assert before is not None
    assert set(before["peers"]) == ({"peer 0", "peer 1"} if "quadratic.file" in keys else {*PEERS})
    assert all(
        len(digest) == 64 for of in (before["peers"], before["files"]) for digest in of.values()
    )
    table_before, output, ended = compared(keys)
    assert "other data" not in output
    assert compared(keys)[::2] == (table_before, ended), "nothing runs again"

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    for name in ("goes-on", "refused"):
        with pytest.raises(KeyboardInterrupt):
            coterie.run(None, keys, name=name, callbacks=[stop])
    assert main(["resume", "runs/goes-on"]) == 0
    assert numbers(Path("runs/goes-on")) == first

    change(kind, Path("d"))
    second, after = started(keys, "second"), provenance.read(Path("runs/second"))
    assert second != first
    assert after is not None
    words = changes(before, after)
    assert all(word.startswith(kind.changed) for word in words)
    assert all(any(word.startswith(file) for word in words) for file in kind.changed)
    table_after, output, _ = compared(keys)
    assert table_after != table_before
    assert f"data changed: {kind.changed[0]}" in output
    assert "; 1 run to repeat" in output
    (aside,) = Path("out", sweep.OTHER_DATA).glob("*/local-*")
    assert numbers(aside) == table_before
    with pytest.raises(DataError, match=rf"^{kind.changed[0]}.* new run$"):
        provenance.check(Path("runs/refused"), after)

    shutil.copytree("d", "fresh/d")
    os.chdir("fresh")
    assert started(keys, "alone") == second, "the numbers of a process that never saw the others"
    os.chdir("..")
    with kept_times(Path("d")):
        kind.write(Path("d"), 1)
    assert compared(keys)[0] == table_before
    assert len([*Path("out", sweep.OTHER_DATA).glob("*/local-*")]) == 2


@pytest.mark.some(3)
@every_kind
def test_resume_refuses_other_data(kind: Kind, capsys: pytest.CaptureFixture[str]) -> None:
    keys = given(kind, Path("d"))

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coterie.run(None, keys, name="stopped", callbacks=[stop])
    before = {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
    change(kind, Path("d"))
    assert main(["resume", "runs/stopped"]) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith(kind.changed[0])
    assert line.endswith("runs/stopped began: restore the data to continue it, or start a new run")
    assert before == {path: path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()}
    with kept_times(Path("d")):
        kind.write(Path("d"), 1)
    assert main(["resume", "runs/stopped"]) == 0


@every_kind
def test_deleted_files_are_an_error(kind: Kind) -> None:
    keys = given(kind, Path("d"))
    problem_of(Config.from_flat(keys))
    for path in sorted(Path("d").rglob("*"), reverse=True):
        if path.is_file() and path.name.startswith(tuple(Path(f).name for f in kind.changed)):
            path.unlink()
    if kind.write is write_images:
        shutil.rmtree("d/a/ill")
        shutil.rmtree("d/a/healthy")
    with pytest.raises(DataError):
        problem_of(Config.from_flat(keys))


def test_a_relative_data_dir_starts_from_the_working_directory(tmp_path: Path) -> None:
    """Two projects with a folder of the same name, one after the other."""
    results = []
    for sign in (1, -1):
        project = tmp_path / f"project{sign}"
        project.mkdir()
        os.chdir(project)
        keys = given(KINDS["csv"], Path("d"))
        write_csv(Path("d"), sign)
        results.append(started(keys, "run"))
    assert results[0] != results[1]


def test_names_of_files_are_data_too() -> None:
    """An image is added, renamed and removed; unrelated files change nothing."""
    config = Config.from_flat(given(KINDS["image-folder"], Path("d")))
    before = now(config)
    Path("d/a/notes.txt").write_text("unrelated")
    assert now(config) == before
    shutil.copy("d/a/ill/1.tif", "d/a/ill/100.tif")
    added = now(config)
    assert changes(before, added) == ["a/ill/100.tif"]
    Path("d/a/ill/100.tif").rename("d/a/ill/101.tif")
    renamed = now(config)
    words = ["a/ill/100.tif", "a/ill/101.tif"]
    assert changes(added, renamed) == words
    Path("d/a/ill/101.tif").unlink()
    assert now(config) == before


def arrays(sign: int) -> list[dict[str, Any]]:
    both = {name: table(Path(name), sign) for name in PEERS}
    return [{"x": of["x"][:, None] / 9, "y": of["y"], "name": name} for name, of in both.items()]


def test_arrays_in_memory_are_known_by_their_bytes() -> None:
    """The user's own arrays change in place; a comparison knows which runs are of them."""
    data, keys = arrays(1), BASE | {"model": "linear"}

    def compared_now() -> tuple[bytes, int]:
        coterie.compare(["local"], None, keys, seeds=1, peers_data=data, out="out")
        (run_dir,) = Path("out").glob("local-*")
        return numbers(run_dir), (run_dir / "metrics.jsonl").stat().st_mtime_ns

    first = coterie.run(None, keys, peers_data=data, name="first")
    before = compared_now()
    assert compared_now() == before
    for mine, theirs in zip(data, arrays(-1), strict=True):
        mine["y"][:] = theirs["y"]
    second = coterie.run(None, keys, peers_data=data, name="second")
    assert numbers(first.directory) != numbers(second.directory)
    assert compared_now()[0] != before[0]
    words = [provenance.read(run.directory) for run in (first, second)]
    assert words[0] is not None
    assert words[1] is not None
    assert changes(words[0], words[1]) == ["a: y", "b: y"]


def file_of_a_plugin() -> list[dict[str, Any]]:
    return arrays(int(Path("sign.txt").read_text()))


def test_a_data_set_of_a_plugin_is_read_by_every_command() -> None:
    results = []
    for sign in (1, -1):
        Path("sign.txt").write_text(str(sign))
        keys = BASE | {"model": "linear", "dataset": f"{__name__}:file_of_a_plugin"}
        results.append((started(keys, f"run{sign}"), compared(keys)[0]))
    assert results[0][0] != results[1][0]
    assert results[0][1] != results[1][1]


def test_other_files_of_a_run_are_inputs_too(capsys: pytest.CaptureFixture[str]) -> None:
    """The graph and pretrained weights, in one process and in a comparison."""
    keys = BASE | {"partition.clusters": 1, "topology": "file", "topology-file": "graph.json"}
    keys |= {"model": "linear", "model.weights": "weights.safetensors"}
    Path("graph.json").write_text("[[0, 1]]")

    def weights(value: float) -> None:
        save_file({"1.weight": torch.full((10, 64), value)}, "weights.safetensors")

    weights(0.125)
    first, before = started(keys, "first"), compared(keys)
    with kept_times(Path()):
        weights(0.25)
    assert started(keys, "second") != first
    after = compared(keys)
    assert after[0] != before[0]
    assert "data changed: model.weights; 1 run to repeat" in after[1]
    Path("graph.json").write_text("[]")
    assert "data changed: topology-file; 1 run to repeat" in compared(keys)[1]


def test_runs_of_earlier_versions_go_on_and_say_that_nothing_is_checked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    keys = given(KINDS["csv"], Path("d"))

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coterie.run(None, keys, name="old", callbacks=[stop])
    Path("runs/old/data.json").unlink()
    assert main(["resume", "runs/old"]) == 0
    assert "cannot check whether the data changed" in capsys.readouterr().out
    ended = compared(keys)[2]
    for file in Path("out").glob("*/data.json"):
        file.unlink()
    _, output, ended_now = compared(keys)
    assert ended_now == ended
    assert "1 finished run reused; cannot check whether the data changed" in output
    Path("runs/old/data.json").write_text('{"peers": {"a": 1}, "files": {}}')
    with pytest.raises(ResultsError, match=r"data.json: peers.a"):
        provenance.read(Path("runs/old"))


def test_data_that_change_while_runs_are_made_are_no_results() -> None:
    """The table is corrected after the first of two runs: only the next command has both."""
    keys = given(KINDS["csv"], Path("d")) | {"method": "local"}
    both = [with_run_dir(Config.from_flat(keys | {"seed": seed}), Path("out")) for seed in (0, 1)]
    console = Console(file=io.StringIO(), width=500)
    failed = sweep.run_all(both, 1, console, on_end=lambda _: write_csv(Path("d"), -1))
    assert len(failed) == 1
    assert "a/data.csv and b/data.csv changed while the runs were made" in str([*failed.values()])
    assert sweep.run_all(both, 1, console) == {}
    assert [provenance.read(Path(config.run_dir)) for config in both] == [now(both[0])] * 2
    shutil.rmtree("d")
    assert sweep.run_all(both, 1, console).keys() == {config.run_dir for config in both}


def test_a_node_of_a_simulation_has_the_data_that_the_run_began_with() -> None:
    """Flower's nodes read for themselves, after the process that has begun the run."""
    config = Config.from_flat(given(KINDS["csv"], Path("d"))).with_(
        run_dir=str(Path("run").absolute())
    )
    rundir.create(config, problem_of(config))
    Node(config, [0], Path("run")).handle(Request("start", 0, 0))
    write_csv(Path("d"), -1)
    with pytest.raises(DataError, match=r"^a/data.csv and b/data.csv changed since"):
        Node(config, [0], Path("run")).handle(Request("start", 0, 0))


@pytest.mark.slow
def test_worth_says_that_it_is_of_other_data(capsys: pytest.CaptureFixture[str]) -> None:
    keys = given(KINDS["csv"], Path("d"))
    coterie.run(None, keys, name="run")
    assert main(["contribution", "runs/run", "--orders", "0", "--workers", "1"]) == 0
    assert "changed" not in capsys.readouterr().out
    change(KINDS["csv"], Path("d"))
    assert main(["contribution", "runs/run", "--orders", "0", "--workers", "1"]) == 0
    output = capsys.readouterr().out
    assert "a/data.csv and b/data.csv changed since the run: worth is of the current data" in output
    assert "; 4 runs to repeat" in output


@pytest.mark.long
def test_a_cell_of_the_league_is_of_the_data_that_it_was_measured_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given(KINDS["csv"], Path("d"))
    problem: dict[str, Any] = {"title": "own", "about": "own", "seeds": 1}
    problem["keys"] = {**BASE, **TABLE, "data-dir": "d"}
    del problem["keys"]["method"]
    Path("league").mkdir()
    Path("league/own.toml").write_text(tomli_w.dumps(problem))
    command = ["league", "run", "own", "--methods", "local", "--workers", "1"]
    contents = list[str]()
    for _ in range(3):
        if len(contents) == 2:
            change(KINDS["csv"], Path("d"))
        assert main(command) == 0
        contents.append(Path("league/own.csv").read_text())
    assert contents[0] == contents[1]
    assert contents[1] != contents[2]
    assert "data changed: a/data.csv and b/data.csv" in capsys.readouterr().out
