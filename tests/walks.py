"""Product files that a task leads through, found by tracing it.

`python -m tests.walks` writes them into the table of CONTRIBUTING.md, and
`tests/packaging/test_contributing.py` compares. Code that runs during an import does not count.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any, cast
from uuid import uuid4

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

import coterie
from coterie.app.client import app
from coterie.app.config.config import Config
from coterie.app.config.items import read_items
from coterie.app.institution.security.trust import create
from coterie.app.node.node import Node
from coterie.clients.letters import Letters
from coterie.strategies.flower.transport import FlowerTransport
from coterie.strategies.protocol import PeerMessage, Request, Response
from coterie.strategies.relay.broker import Broker
from tests.checkout import ROOT
from tests.harness.deployment import write_policy

FOLDERS = ("app/", "clients/", "strategies/", "datasets/", "coterie/")
RATE = 0.0123
PEERS: dict[str, Any] = {
    "dataset": "digits", "peers": 2, "num-server-rounds": 2, "partition.clusters": 2,
    "partition.samples-per-peer": 20, "device": "cpu",
}  # fmt: skip
Files = set[str]
Counts = Callable[[FrameType, Any], bool]
"""Decides about a call by its frame, when it begins (result None) and when it ends."""


@contextmanager
def traced(counts: Counts = lambda frame, result: True) -> Iterator[Files]:
    """Yield the set of the product's files with a call in this block that counts."""
    files, called, importing = Files(), Files(), 0

    def watch(frame: FrameType, event: str, result: Any) -> None:
        nonlocal importing
        step = {"call": 1, "return": -1}.get(event, 0)
        if frame.f_code.co_name == "<module>":
            importing += step
        elif step and not importing:
            name = _product_file(frame.f_code.co_filename)
            if name and name not in called and counts(frame, result):
                called.add(name)

    sys.setprofile(watch)
    try:
        yield files
    finally:
        sys.setprofile(None)
        files |= called


@cache
def _product_file(path: str) -> str:
    """Return the path of a product file from the root of the checkout, "" for other files."""
    real = Path(path).resolve()
    name = real.relative_to(ROOT).as_posix() if real.is_relative_to(ROOT) else ""
    return name if name.endswith(".py") and name.startswith(FOLDERS) else ""


def method() -> Files:
    """Return the file of CoBo, and the modules of clients and strategies that it imports."""
    file = "clients/methods/cobo.py"
    names = {
        node.module
        for node in ast.walk(ast.parse((ROOT / file).read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module
    }
    paths = {name.removeprefix("coterie.").replace(".", "/") + ".py" for name in names}
    return {file} | {path for path in paths if path.startswith(("clients/", "strategies/"))}


def key() -> Files:
    """Return the files with a call that has the learning rate, from a file to the training."""

    def has_rate(frame: FrameType, result: Any) -> bool:
        return any(map(is_rate, (result, *frame.f_locals.values())))

    def is_rate(value: Any) -> bool:
        if isinstance(value, Mapping):
            return value.get("learning-rate") == RATE
        if isinstance(value, str):
            return str(RATE) in value
        return (type(value) is float and value == RATE) or _field(value) == RATE

    with tempfile.TemporaryDirectory() as folder:
        preset = Path(folder, "preset.toml")
        text = [f"{key} = {value!r}\n" for key, value in PEERS.items()]
        preset.write_text("".join([*text, f"learning-rate = {RATE}\n"]))
        with traced(has_rate) as files:
            config = Config.from_flat(read_items([str(preset)])[1])
            node = Node(config, range(config.peers), Path(folder))
            node.handle(Request("start", 0, 0))
            node.handle(Request("local-rounds", 1, 1))
    return files


def _field(value: object) -> Any:
    return vars(value).get("learning_rate") if hasattr(value, "__dict__") else None


def letter() -> Files:
    """Return the files with a call that has a letter, in a round of two institutions that seal.

    The letter is a row of a stack, a message, a record of Flower or encrypted bytes, which are
    longer than anything else.
    """
    kinds = PeerMessage, Letters, Request, Response, RecordDict, Message

    def has_letter(frame: FrameType, result: Any) -> bool:
        return any(
            isinstance(value, kinds) or (isinstance(value, bytes) and len(value) > 1 << 14)
            for value in (result, *frame.f_locals.values())
        )

    class Round:
        """Recorder of the relay that traces the round after the first commit."""

        def __init__(self) -> None:
            self.files, self.trace = Files(), ExitStack()

        def round(self, commit: Any) -> None:
            self.trace.close()
            if commit.ledger.round == 0:
                self.files = self.trace.enter_context(traced(has_letter))

    run = PEERS | {"method": "fedavg", "model": "mlp", "evaluate-every": 2, "name": "run"}
    for name in ("_run_id", "_task_id", "_node_id"):  # a message names its sender
        setattr(TaskIdentity, name, 1)
    with tempfile.TemporaryDirectory() as folder:
        grid, record = Institutions(Path(folder), run), Round()
        transport = FlowerTransport(cast(Grid, grid), 60.0)
        Broker(Config.from_flat(run).strategy(), transport, record, deployed=True).run()
    return record.files


class Institutions:
    """Grid whose nodes are the ClientApps of two institutions, called in this process."""

    def __init__(self, folder: Path, run: dict[str, Any]) -> None:
        entries = [create(f"hospital-{peer}", folder, peer)[2] for peer in range(2)]
        (folder / "trust.toml").write_text("".join(entry.toml() for entry in entries))
        files = {"trust": "trust.toml", "policy": write_policy(folder / "policy.toml").name}
        self._contexts, self._replies = dict[int, Context](), dict[str, Message]()
        for peer in range(2):
            files |= {"keys": f"hospital-{peer}.key", "out": str(peer)}
            node: dict[str, Any] = {name: str(folder / file) for name, file in files.items()}
            node_config = {**node, "peer": peer, "device": "cpu", "worker": False}
            self._contexts[peer] = Context(1, peer, node_config, RecordDict(), run)

    def get_node_ids(self) -> Iterable[int]:
        return self._contexts

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        sent = list[str]()
        for message in messages:
            sent.append(uuid4().hex)
            message.metadata.__dict__["_message_id"] = sent[-1]  # as Flower's grids do
            reply = app(message, self._contexts[message.metadata.dst_node_id])
            self._replies[sent[-1]] = reply
        return sent

    def pull_messages(self, ids: list[str]) -> list[Message]:
        return [self._replies.pop(id_) for id_ in ids]


def table() -> Files:
    """Return the files with a call in a comparison that a single run does not call."""
    with tempfile.TemporaryDirectory() as folder:
        keys = {**PEERS, "out": folder}
        with traced() as of_run:
            for method in ("local", "fedavg"):
                coterie.run(None, keys, method=method, name=method)
        with traced() as of_comparison:
            coterie.compare(["local", "fedavg"], None, keys, seeds=1)
    return of_comparison - of_run


WALKS: Mapping[str, Callable[[], Files]] = {
    "write a method": method,
    "follow a key from a file to the training step": key,
    "follow a letter from one institution to another": letter,
    "change a table of runs": table,
}


def row(task: str, files: Files) -> str:
    """Return the row of a task: its files by folder, their number and their lines."""
    lines = sum(len((ROOT / file).read_text("utf-8").splitlines()) for file in files)
    cells = []
    for folder, names in groupby(sorted(files), lambda file: file.rpartition("/")[0]):
        stems = ",".join(Path(name).stem for name in names)
        cells.append(f"`{folder}/{{{stems}}}.py`" if "," in stems else f"`{folder}/{stems}.py`")
    return f"| {task} | {', '.join(cells)} | {len(files)} files, {round(lines, -2):,} lines |"


def main(arguments: list[str]) -> None:
    """Print the row of one task, or update all rows in CONTRIBUTING.md."""
    if arguments:
        print(row(arguments[0], WALKS[arguments[0]]()))
        return
    page = ROOT / "CONTRIBUTING.md"
    lines = page.read_text("utf-8").splitlines()
    for task in WALKS:  # each in its own process: what is cached is not called
        command = [sys.executable, "-m", "tests.walks", task]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        (at,) = (k for k, line in enumerate(lines) if line.startswith(f"| {task} |"))
        lines[at] = done.stdout.splitlines()[-1]
    page.write_text("\n".join([*lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
