"""Run directories of somebody who wants a program run, a file opened, a host asked, or a hang.

`POISONS` maps a name to what it does to a good run directory. `watched` sees what a command does
beside reading, as the interpreter itself reports it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

SECONDS = 120
"""A command that takes longer hangs."""
EVIL = """
from pathlib import Path
Path("PWNED").touch()

def Net(shape, outputs):
    Path("PWNED").touch()

METHOD = data = halves = Net
"""
"""Content of evil.py in the working directory."""


# --- what a command does --------------------------------------------------------------------------


@dataclass
class Events:
    """Audit events of the interpreter.

    Attributes
    ----------
    ran : programs that were started, hosts that were asked. opened : files that were opened.
    """

    ran: list[str] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)


_now: Events | None = None
_RUNS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.startfile")
_ASKS = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname")


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _now is None:
        return
    if event in _RUNS or event in _ASKS:
        _now.ran.append(f"{event} {arguments!r}")
    elif event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        _now.opened.append(os.fsdecode(arguments[0]))


sys.addaudithook(_hook)


class HangError(Exception):
    """A command hangs."""


@contextmanager
def watched() -> Iterator[Events]:
    """See what happens meanwhile, and end it if it does not end."""
    global _now

    def hangs(number: int, frame: object) -> None:
        raise HangError(f"hangs for {SECONDS} s")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(SECONDS)
    _now = events = Events()
    try:
        yield events
    finally:
        _now = None
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# --- model files ----------------------------------------------------------------------------------


def model_says(**strings: str) -> Callable[[Path], None]:
    """Return an attack that changes the metadata of the model file."""

    def poison(run_dir: Path) -> None:
        metadata, tensors = _model(run_dir)
        save_file(tensors, run_dir / MODEL, metadata | strings)

    return poison


def model_holds(change: Callable[[dict[str, torch.Tensor]], object], **strings: str) -> Any:
    """Poison: the model's file holds other tensors."""

    def poison(run_dir: Path) -> None:
        metadata, tensors = _model(run_dir)
        change(tensors)
        save_file(tensors, run_dir / MODEL, metadata | strings)

    return poison


def _model(run_dir: Path) -> tuple[dict[str, str], dict[str, torch.Tensor]]:
    with safe_open(run_dir / MODEL, "pt") as file:
        return file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def normalised(**values: Any) -> str:
    """Return the normalisation in a model file's metadata."""
    return json.dumps({"mean": [[[0.0]]], "std": [[[1.0]]], **values})


def fitted(**values: Any) -> str:
    """Preprocessing of a table."""
    column: dict[str, Any] = {
        "name": "a",
        "kind": "number",
        "categories": [],
        "unit": "",
        "low": None,
        "high": None,
    }
    steps = {"columns": [column], "source": [0] * 64, "code": [-1] * 64, "fill": [0.0] * 64}
    return normalised(preprocessing={**steps, "mean": None, "std": None, **values})


MODEL = "models/peer-0000.safetensors"
NESTED = "[" * 100_000
SHELL = json.dumps(["sh", "-c", "touch PWNED"])
MODELS: dict[str, Callable[[Path], None]] = {
    "a program": model_says(model="subprocess:call", shape=SHELL),
    "a shell": model_says(model="os:system", shape=json.dumps("touch PWNED")),
    "code": model_says(model="evil:Net", model_options="{}"),
    "code in a package": model_says(model="evil.inner:Net.deep", model_options="{}"),
    "an attribute": model_says(model="evil:Net\x1b[2J; touch PWNED", model_options="{}"),
    "a host": model_says(model="timm:hf-hub:evil/net", model_options="{}", shape="[3, 32, 32]"),
    "a folder of timm": model_says(model="timm:local-dir:.", model_options="{}", shape="[3,32,32]"),
    "a folder": model_says(model="transformers:.", model_options="{}", shape="[3, 32, 32]"),
    "a download": model_says(
        model="torchvision:fcn_resnet50", model_options="{}", shape="[3, 32, 32]"
    ),
    "weights of a pipe": model_says(adaptation=json.dumps({"weights": "pipe"})),
    "GPT-2 of a pipe": model_says(
        model="gpt2", model_options=json.dumps({"weights_file": "pipe"}), task="language"
    ),
    "code among kinds": model_says(model="mlp + evil:Net", model_options='{"of": [{}, {}]}'),
    "kinds of a number": model_says(model="mlp + linear", model_options='{"of": 3}'),
    "numbers as options": model_says(model="mlp + linear", model_options='{"of": [3, 3]}'),
    "a kind too many": model_says(model="mlp + linear + linear", model_options='{"of": []}'),
    "no model": model_says(model="nothing"),
    "no string": model_says(model="3"),
    "an endless shape": model_says(shape="[1000000000, 1000000000]"),
    "a shape of many sides": model_says(shape=json.dumps([1] * 100_000)),
    "a negative shape": model_says(shape="[-8, 8]"),
    "a shape of text": model_says(shape='["8", 8]'),
    "a shape of truth": model_says(shape="[true, 8, 8]"),
    "no shape": model_says(shape="8"),
    "a nested shape": model_says(shape=NESTED),
    "a broken shape": model_says(shape="[8,"),
    "endless outputs": model_says(outputs="1000000000000"),
    "no outputs": model_says(outputs="0"),
    "outputs of text": model_says(outputs='"10"'),
    "outputs that do not fit": model_says(outputs="11", classes="[]"),
    "an endless network": model_says(model_options=json.dumps({"hidden": "99999999-99999999"})),
    "a large frozen network": model_says(
        model_options=json.dumps({"hidden": "60000-60000"}), adaptation='{"lora_rank": 1}'
    ),
    "very many layers": model_says(model_options=json.dumps({"hidden": "-".join("1" * 50_000)})),
    "an endless transformer": model_says(
        model="transformer", task="language", shape="[8]",
        model_options='{"layers": 1000000, "width": 4, "heads": 1}',
    ),
    "unknown options": model_says(model_options='{"hidden": "8", "__class__": "os"}'),
    "options of another type": model_says(model_options='{"hidden": ["8"]}'),
    "options that are none": model_says(model_options="[]"),
    "an adapter of text": model_says(adaptation='{"lora_rank": "1"}'),
    "a type of torch": model_says(dtype="load"),
    "a type": model_says(dtype="hub"),
    "no task": model_says(task="arson"),
    "another task": model_says(task="segmentation"),
    "many classes": model_says(classes=json.dumps(["x"] * 1000)),
    "classes of numbers": model_says(classes=json.dumps(list(range(10)))),
    "columns": model_says(columns='["=cmd|calc", "b"]'),
    "no normalisation": model_says(normalisation="{}"),
    "normalisation of text": model_says(normalisation=normalised(mean=["0"])),
    "normalisation of another shape": model_says(normalisation=normalised(mean=[[[[0.0]] * 9]])),
    "normalisation that divides by 0": model_says(normalisation=normalised(std=[[[0.0]]])),
    "normalisation that is not finite": model_says(normalisation=normalised(mean=[[[1e999]]])),
    "ragged normalisation": model_says(normalisation=normalised(mean=[[0.0], [0.0, 1.0]])),
    "nested normalisation": model_says(normalisation='{"mean": ' + NESTED),
    "a column that there is not": model_says(
        normalisation=fitted(source=[7] * 64), columns='["a"]'
    ),
    "preprocessing of another width": model_says(
        normalisation=fitted(source=[0] * 9), columns='["a"]'
    ),
    "preprocessing that is none": model_says(normalisation=normalised(preprocessing=[])),
    "a column that is none": model_says(normalisation=fitted(columns=[{"name": 3}])),
    "a column of another kind": model_says(
        normalisation=fitted(columns=[{"name": "a", "kind": "code", "categories": []}])
    ),
    "a column twice": model_says(
        normalisation=fitted(columns=[{"name": "a", "kind": "number", "categories": []}] * 2),
        columns='["a", "a"]',
    ),
    "a schema that is a path": model_says(normalisation=normalised(
        preprocessing={"columns": [], "schema": "../../etc/passwd"}
    )),
    "no digest": model_says(config_digest="../../etc"),
    "a refusal": model_says(refused="\x1b[2J\u202eno"),
    "no format": model_says(format="coterie model 9"),
    "a missing tensor": model_holds(lambda tensors: tensors.pop("1.weight")),
    "a tensor of another shape": model_holds(
        lambda tensors: tensors.update({"1.weight": torch.zeros(3)})
    ),
    "votes of no method": model_holds(
        lambda tensors: tensors.update({"memory.keys": torch.zeros(2, 64)})
    ),
    "votes of another shape": model_holds(
        lambda tensors: tensors.update(
            {"memory.keys": torch.zeros(2, 64), "memory.labels": torch.zeros(3, 3)}
        ),
        method="knn-per", method_options='{"neighbours": 1, "lambda_": 0.5}',
    ),
    "votes of text": model_holds(
        lambda tensors: tensors.update(
            {"memory.keys": torch.zeros(2, 64), "memory.labels": torch.zeros(2, 10)}
        ),
        method="knn-per", method_options='{"neighbours": "1", "lambda_": 0.5}',
    ),
    "a mixture of a million": model_holds(
        lambda tensors: tensors.update({"mixture": torch.zeros(1_000_000)})
    ),
    "a mixture of nothing": model_holds(
        lambda tensors: tensors.update({"mixture": torch.zeros(0)})
    ),
    "a mixture that is a matrix": model_holds(
        lambda tensors: tensors.update({"mixture": torch.zeros(2, 2)})
    ),
    "an empty file": lambda run_dir: put(run_dir / MODEL, b""),
    "an endless header": lambda run_dir: put(run_dir / MODEL, b"\xff" * 64),
    "a header that is no JSON": lambda run_dir: put(run_dir / MODEL, headed("[[[[")),
    "a header that is a list": lambda run_dir: put(run_dir / MODEL, headed("[]")),
    "a nested header": lambda run_dir: put(run_dir / MODEL, headed(NESTED)),
    "tensors beyond the file": lambda run_dir: put(run_dir / MODEL, beyond()),
    "a pipe": lambda run_dir: pipe(run_dir / MODEL),
    "a link": lambda run_dir: link(run_dir / MODEL, "/dev/zero"),
    "a folder that is a link": lambda run_dir: move(run_dir / "models"),
    "a directory": lambda run_dir: directory(run_dir / MODEL),
}  # fmt: skip
"""Attacks on the run's only model file, by name."""


def beyond() -> bytes:
    """A file whose header claims far more than it has."""
    header = {"w": {"dtype": "F64", "shape": [1 << 40], "data_offsets": [0, 1 << 43]}}
    return headed(json.dumps(header))


def headed(header: str) -> bytes:
    """Return a safetensors file that consists of a header only."""
    return len(header).to_bytes(8, "little") + header.encode()


# --- files of every kind --------------------------------------------------------------------------


def put(path: Path, content: bytes | str) -> None:
    """Write a file in the place of another."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def pipe(path: Path) -> None:
    """Make a pipe without a writer: opening it blocks forever."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)


def link(path: Path, target: str | Path) -> None:
    """A link in the place of a file."""
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def directory(path: Path) -> None:
    """A directory in the place of a file."""
    path.unlink(missing_ok=True)
    path.mkdir()


def move(folder: Path) -> None:
    """Move a folder elsewhere, and link to it."""
    there = folder.with_name(f"elsewhere-{folder.name}")
    shutil.move(folder, there)
    folder.symlink_to(there, target_is_directory=True)


def writes(name: str, content: bytes | str) -> Callable[[Path], None]:
    """Poison: a file has another content."""
    return lambda run_dir: put(run_dir / name, content)


def config(**keys: str) -> Callable[[Path], None]:
    """Poison: config.toml has other lines, `table__key` for a key of a table."""

    def poison(run_dir: Path) -> None:
        path = run_dir / "config.toml"
        top = path.read_text().split("\n[")[0].splitlines()
        rest = path.read_text()[len("\n".join(top)) :]
        named = {key.replace("_", "-"): value for key, value in keys.items() if "__" not in key}
        kept = [line for line in top if line.partition(" ")[0] not in named]
        lines = [*kept, *(f"{key} = {value}" for key, value in named.items())]
        for key, value in keys.items():
            table, inner, name = key.partition("__")
            if inner:
                rest = rest.replace(f"[{table}]", f"[gone-{table}]")
                rest += f"\n[{table}]\n{name.replace('_', '-')} = {value}\n"
        put(path, "\n".join(lines) + "\n" + rest)

    return poison


def row(**values: Any) -> str:
    """A line of metrics.jsonl."""
    return json.dumps({"round": 0, "peer": 0, "test_loss": 1.0, **values}) + "\n"


def worth(**cell: str) -> str:
    """Return a worth.csv of four peers that is valid but for one kind of cell."""
    values = {
        "measure": "test_loss", "alone": "1", "together": "1", "leave_one_out": "0",
        "shapley": "0", "standard_error": "0", "orders": "0", **cell,
    }  # fmt: skip
    ends = "recipient,recipient_name,sender,sender_name"
    rows = [f"{i},a,{k},b,{','.join(values.values())}" for i in range(4) for k in range(4)]
    return "\n".join([f"{ends},{','.join(values)}", *rows]) + "\n"


def archive(**members: bytes) -> bytes:
    """An .npz of these members."""
    import io

    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return packed.getvalue()


def npy(array: Any = None, shape: tuple[int, ...] = (), kind: str = "<f8") -> bytes:
    """An array as a file; without one, a header that claims a shape."""
    import io

    buffer = io.BytesIO()
    if array is not None:
        np.save(buffer, array, allow_pickle=True)
        return buffer.getvalue()
    header = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue()


ROUNDS = npy(np.arange(2))
DIRECTORIES: dict[str, Callable[[Path], None]] = {
    "config: code of a method": config(method='"evil:METHOD"'),
    "config: code of a model": config(model='"evil:Net"'),
    "config: code of data": config(dataset='"evil:data"'),
    "config: code of a partition": config(partition__kind='"evil:halves"'),
    "config: a host": config(model='"timm:hf-hub:evil/net"'),
    "config: a pipe of edges": config(topology='"file"', topology_file='"pipe"'),
    "config: a billion peers": config(peers="1000000000"),
    "config: many peers": config(peers="20000", topology='"k-regular"'),
    "config: peers of text": config(peers='"many"'),
    "config: a degree of text": config(topology='"k-regular"', topology_degree='"two"'),
    "config: a topology that is none": config(topology="3"),
    "config: a negative seed": config(topology='"k-regular"', seed="-1"),
    "config: rounds of text": config(topology='"epidemic"', num_server_rounds='"x"'),
    "config: a list": config(seed="[1, 2]"),
    "config: attackers of 4e8 peers": config(peers="400000000", attack__share="0.5"),
    "config: a table that is none": lambda run_dir: config(defence='"x"')(run_dir),
    "config: nested": writes("config.toml", f"method = {NESTED}"),
    "config: no UTF-8": writes("config.toml", b"method = '\xff'"),
    "config: a pipe": lambda run_dir: pipe(run_dir / "config.toml"),
    "config: a link": lambda run_dir: link(run_dir / "config.toml", "/dev/zero"),
    "config: a directory": lambda run_dir: directory(run_dir / "config.toml"),
    "progress: a pipe": lambda run_dir: pipe(run_dir / "progress.json"),
    "progress: a link": lambda run_dir: link(run_dir / "progress.json", "/dev/zero"),
    "progress: nested": writes("progress.json", NESTED),
    "progress: a list": writes("progress.json", "[]"),
    "progress: a round of text": writes("progress.json", '{"status": "failed", "round": "3"}'),
    "progress: infinite": writes(
        "progress.json", '{"status": "failed", "round": 1, "seconds": 1e999, "bytes": NaN}'
    ),
    "progress: large": writes(
        "progress.json", '{"status": "failed", "round": 1' + "0" * 5000 + "}"
    ),
    "progress: a machine": writes(
        "progress.json", '{"status": "failed", "round": 1, "machine": {"a": "[/b]"}}'
    ),
    "progress: names": writes(
        "progress.json", '{"status": "failed", "round": 1, "names": {"a": []}}'
    ),
    "progress: seen": writes(
        "progress.json", '{"status": "failed", "round": 1, "last_seen": {"0": 3, "1": [1]}}'
    ),
    "progress: attendance": writes(
        "progress.json", '{"status": "failed", "round": 1, "took_part": [1e300]}'
    ),
    "progress: lines": writes(
        "progress.json", '{"status": "failed", "round": 1, "faults": {"x": 1}, "error": 3}'
    ),
    "worth: a pipe": lambda run_dir: pipe(run_dir / "worth.csv"),
    "worth: a link": lambda run_dir: link(run_dir / "worth.csv", "/dev/zero"),
    "worth: nested": writes("worth.csv", NESTED),
    "worth: text": writes("worth.csv", worth(alone='"x')),
    "worth: a measure": writes("worth.csv", worth(measure="<script>")),
    "worth: a large number": writes("worth.csv", worth(alone="1e301")),
    "worth: more digits": writes("worth.csv", worth(alone="1" + "0" * 5000)),
    "worth: orders": writes("worth.csv", worth(orders="-1")),
    "worth: orders without end": writes("worth.csv", worth(orders="1" + "0" * 5000)),
    "worth: a row missing": writes("worth.csv", worth().rpartition("\n0")[0] + "\n"),
    "worth: a folder elsewhere": lambda run_dir: link(run_dir / "worth", ".."),
    "metrics: a pipe": lambda run_dir: pipe(run_dir / "metrics.jsonl"),
    "metrics: a link": lambda run_dir: link(run_dir / "metrics.jsonl", "/dev/zero"),
    "metrics: nested": writes("metrics.jsonl", NESTED + "\n"),
    "metrics: a round beyond": writes("metrics.jsonl", row(round=10**30)),
    "metrics: a negative round": writes("metrics.jsonl", row(round=-1)),
    "metrics: a peer beyond": writes("metrics.jsonl", row(peer=10**9)),
    "metrics: text": writes("metrics.jsonl", row(test_loss="1")),
    "metrics: large": writes("metrics.jsonl", row().replace("1.0", "1" + "0" * 400)),
    "metrics: names": writes("metrics.jsonl", row(peer_name={"x": [1]})),
    "metrics: fields without end": writes(
        "metrics.jsonl", "".join(row(round=t, **{f"f{t}": 1.0}) for t in range(20_000))
    ),
    "map: a pipe": lambda run_dir: pipe(run_dir / "collaboration.npz"),
    "map: no archive": writes("collaboration.npz", "weights"),
    "map: an endless array": writes(
        "collaboration.npz", archive(rounds=ROUNDS, weights=npy(shape=(2, 1 << 20, 1 << 20)))
    ),
    "map: an array of another type": writes(
        "collaboration.npz",
        archive(rounds=ROUNDS, weights=npy(np.full((2, 4, 4), "x" * 9))),
    ),
    "map: objects": writes(
        "collaboration.npz",
        archive(rounds=ROUNDS, weights=npy(np.array([{"a": 1}], dtype=object))),
    ),
    "map: another shape": writes(
        "collaboration.npz", archive(rounds=ROUNDS, weights=npy(np.zeros((2, 3, 3))))
    ),
    "map: negative rounds": writes(
        "collaboration.npz", archive(rounds=npy(-np.arange(2)), weights=npy(np.zeros((2, 4, 4))))
    ),
    "map: rounds without weights": writes("collaboration.npz", archive(rounds=ROUNDS)),
    "map: a negative side": writes(
        "collaboration.npz", archive(rounds=ROUNDS, weights=npy(shape=(-2, 4, 4)))
    ),
    "map: very many files": writes(
        "collaboration.npz", archive(**{f"a{k}": b"" for k in range(3000)})
    ),
    "map: not finite": writes(
        "collaboration.npz", archive(rounds=ROUNDS, weights=npy(np.full((2, 4, 4), np.nan)))
    ),
    "split: ragged": writes(
        "split.json",
        json.dumps([{"train": {"size": 3, "labels": [1] * (k + 1)}} for k in range(4)]),
    ),
    "split: text": writes("split.json", json.dumps([{"train": {"size": "3"}}] * 4)),
    "split: large": writes("split.json", json.dumps([{"cluster": 10**30}] * 4)),
    "split: infinite": writes("split.json", json.dumps([{"samples": np.inf}] * 4)),
    "split: a list of lists": writes("split.json", "[[], [], [], []]"),
    "split: nested": writes("split.json", NESTED),
    "split: a pipe": lambda run_dir: pipe(run_dir / "split.json"),
    "classes: numbers": writes("classes.json", "[1, [2]]"),
    "classes: a pipe": lambda run_dir: pipe(run_dir / "classes.json"),
    "quality: a pipe": lambda run_dir: pipe(run_dir / "quality.csv"),
    "quality: numbers": writes(
        "quality.csv",
        "peer,peer_name,column,kind,rows,missing,distinct,low,median,high,mean,std,code,code_share,"
        "drift,finding\n0,a,</script>,date,1,1e308,2,-inf,1e308,inf,1e9,1,1,1,inf,x\n",
    ),
    "card: diagnostics of another kind": writes(
        "models/peer-0000.json", '{"diagnostics": {"examples": "</script>", "positives": 1e400}}'
    ),
    "card: a pipe": lambda run_dir: pipe(run_dir / "models/peer-0000.json"),
    "card: text": writes("models/peer-0000.json", '{"curves": "</script>"}'),
    "summary: a pipe": lambda run_dir: pipe(run_dir / "summary.json"),
    "summary: nested": writes("summary.json", NESTED),
    "decisions: another file": writes(
        "decisions.jsonl", json.dumps({"digest": "x", "config": "../../pipe"}) + "\n"
    ),
    "decisions: a pipe": lambda run_dir: pipe(run_dir / "decisions.jsonl"),
    "decisions: nested": writes("decisions.jsonl", NESTED + "\n"),
    "audit: text": writes("audit-0000.jsonl", '[]\n{"time": 3}\nx\n'),
    "audit: a pipe": lambda run_dir: pipe(run_dir / "audit-0000.jsonl"),
    "states: names": writes("nodes/peer-x/00000001-0.state", b""),
    "checkpoint: a pipe": lambda run_dir: pipe(run_dir / "relay/checkpoint.json"),
    "checkpoint: nested": writes("relay/checkpoint.json", NESTED),
    "a link to write through": lambda run_dir: link(run_dir / "report.html", run_dir / "../victim"),
    "a folder elsewhere": lambda run_dir: move(run_dir / "relay"),
}  # fmt: skip
"""Attacks on a run directory, by name."""

COMPARISONS: dict[str, Callable[[Path], None]] = {
    "sweep: a run elsewhere": writes("sweep.json", '{"runs": ["../run"]}'),
    "sweep: an absolute path": writes("sweep.json", '{"runs": ["/"]}'),
    "sweep: nested": writes("sweep.json", NESTED),
    "sweep: a pipe": lambda directory: pipe(directory / "sweep.json"),
    "tuning: a pipe": lambda directory: pipe(directory / "tuning.csv"),
    "tuning: text": writes("tuning.csv", "method,chosen,settings\nlocal,1,[[\n"),
    "table: a pipe": lambda directory: pipe(directory / "comparison.csv"),
    "subject: a pipe": lambda directory: pipe(directory / "comparison.toml"),
    "subject: text": writes("comparison.toml", 'methods = 3\nseeds = "x"\ntuned = 1\nkeys = []'),
    "subject: nested": writes("comparison.toml", f"methods = {NESTED}"),
    "page: a link": lambda directory: link(directory / "comparison.html", directory / "../victim"),
}
"""Attacks on the directory of a comparison, by name."""
