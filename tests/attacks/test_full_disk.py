"""A disk that fills up, or a node that is killed, at every write of an institution's records."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from rich.console import Console

from coterie.app.cli.main import main
from coterie.app.config.config import Config
from coterie.app.config.digest import config_digest_of
from coterie.app.institution.commands import status
from coterie.app.institution.security import approval
from coterie.app.institution.security.channel import SecureChannel
from coterie.app.institution.security.journal import Journal
from coterie.app.institution.security.ledger import Ledger
from coterie.app.institution.security.memory import Memory
from coterie.app.institution.security.policy import AnswerPolicy
from coterie.app.institution.security.privacy_ledger import PrivacyLedger
from coterie.app.institution.security.sealing import Sealing
from coterie.app.runs import atomic
from coterie.strategies.protocol import PeerMessage, Request
from tests.attacks.consortium import config_of, institutions, response_of

DIGEST = "ab" * 32
START = Request("start", 0, 0, attempt="a")
CONFIG = Config.from_flat({"method": "local"})


def approve(out: Path, k: int) -> None:
    approval.approve(out, DIGEST)


def use(out: Path, k: int) -> None:
    approval.require_approval(out, f"run-{k}", "cd" * 32)


def decide(out: Path, k: int) -> None:
    approval.record(out / "run", CONFIG, DIGEST, b"", f"refused: {k}")


def audit(out: Path, k: int) -> None:
    channel = SecureChannel([0], out / "run", Sealing(b"", audited=True))
    channel.begin(Request("update", k, k, attempt="a"))
    channel.names = {0: "hospital-ä"}
    channel.write(PeerMessage("offer", 0, None, k, 8, b""), [1])


def answer(out: Path, k: int) -> None:
    journal = Journal(out / "institution" / "ledger-0000.jsonl")
    request = Request("answer", k, k, attempt="a")
    Ledger(journal, "run", AnswerPolicy(max_answers=999)).answering(request, {k: f"model {k}"})


def spend(out: Path, k: int) -> None:
    journal = Journal(out / "institution" / "privacy-0000.jsonl")
    with PrivacyLedger(journal, "run").account(k) as (_, cost_1a):
        cost_1a += k + 1


RECORDS: dict[str, Callable[[Path, int], None]] = {
    "institution/approvals.jsonl": approve,
    "institution/approvals.jsonl, used": use,
    "run/decisions.jsonl": decide,
    "run/audit-0000.jsonl": audit,
    "institution/ledger-0000.jsonl": answer,
    "institution/privacy-0000.jsonl": spend,
}


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let no file of this process grow above a size, as on a disk that is full there."""
    _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def begun(out: Path, do: Callable[[Path, int], None]) -> None:
    """Write the first record, and the approvals that others need."""
    if do is use:
        for _ in range(3):
            approval.approve(out, "cd" * 32)
    do(out, 0)


@pytest.mark.parametrize("name", RECORDS)
def test_a_full_disk_and_a_kill_leave_every_record_whole(tmp_path: Path, name: str) -> None:
    path, do = tmp_path / name.partition(",")[0], RECORDS[name]
    begun(tmp_path, do)
    before, head = path.read_bytes(), path.with_suffix(".head")
    heads = {head: head.read_bytes()} if head.exists() else {}
    count = len(atomic.lines(path))
    do(tmp_path, 1)
    line = path.read_bytes()[len(before) :]
    lengths = sorted({*range(0, len(line), 29), *range(4), *range(len(line) - 3, len(line))})
    for written in lengths:
        path.write_bytes(before)
        for file, content in heads.items():
            file.write_bytes(content)
        with largest_file(len(before) + written), pytest.raises(OSError, match="large") as full:
            do(tmp_path, 1)
        assert (full.value.errno, full.value.filename) == (errno.EFBIG, str(path))
        assert path.read_bytes() == before, "nothing counts that was refused"
        path.write_bytes(before + line[:written])  # killed, before it could take it back
        assert len(atomic.lines(path)) == count
        do(tmp_path, 1)
        assert len(atomic.lines(path)) == count + 1
        do(tmp_path, 2)
        assert len(atomic.lines(path)) == count + 2


def test_the_last_letters_are_shown_after_a_kill(tmp_path: Path) -> None:
    (tmp_path / "run" / "nodes" / "peer-0000").mkdir(parents=True)
    audit(tmp_path, 0)
    with (tmp_path / "run" / "audit-0000.jsonl").open("a") as file:
        file.write('{"time": "20')
    audit(tmp_path, 1)
    console = Console(record=True, width=200)
    status.show(console, status.read(str(tmp_path / "run")))
    assert console.export_text().count("hospital-ä") == 2


def test_a_line_longer_than_a_block_is_found(tmp_path: Path) -> None:
    file = tmp_path / "long.jsonl"
    texts = ["x" * size for size in (1, 1 << 17, 1 << 16, 3)]
    for text in texts:
        atomic.append(file, {"text": text})
        with file.open("a") as torn:
            torn.write("y" * (1 << 16))
    assert [line["text"] for line in atomic.lines(file)] == texts


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root mounts a small file system")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def fill(disk: Path, pages: int) -> Path:
    """Fill a disk, up to a number of pages."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        with suppress(OSError):
            while True:
                file.write(bytes(4096))
        file.truncate(max(0, file.tell() - pages * 4096))
    return filler


@pytest.mark.parametrize("name", RECORDS)
def test_what_a_full_disk_refused_is_not_on_record_and_the_rest_is(name: str, disk: Path) -> None:
    """Lines that cross a block of the disk are torn there.

    A ledger may also charge for what was refused: its line was written, and its head was not.
    """
    out = disk / "out"
    path, do = out / name.partition(",")[0], RECORDS[name]
    if do is use:
        for _ in range(300):
            approval.approve(out, "cd" * 32)
    do(out, 0)
    at_first, done, refused, k = len(atomic.lines(path)), 0, 0, 0
    filler = fill(disk, 1)
    while refused < 3:
        k += 1
        try:
            do(out, k)
            done += 1
        except OSError:
            refused += 1
        surplus = len(atomic.lines(path)) - at_first - done
        assert 0 <= surplus <= (refused if path.with_suffix(".head").exists() else 0)
        assert k < 300, "the disk was never full"
    filler.unlink()
    do(out, k + 1)
    assert len(atomic.lines(path)) == at_first + done + surplus + 1


def test_the_memory_of_a_run_is_the_old_or_the_new_one(disk: Path) -> None:
    path = disk / "run" / "nodes" / "mail-0000.json"
    path.parent.mkdir(parents=True)
    memory = Memory(path, durable=True)
    memory.commit(1)
    memory.offered = {f"2 {peer}": "ab" * 32 for peer in range(60)}  # two pages
    for pages in range(2):
        filler = fill(disk, pages)
        with pytest.raises(OSError, match="No space"):
            memory.keep()
        filler.unlink()
        again = Memory(path)
        again.recall(1)
        assert (again.committed, again.offered) == (1, {})
        assert [*path.parent.iterdir()] == [path]
    memory.keep()
    again.recall(1)
    assert again.offered == memory.offered


def test_a_node_goes_on_when_its_disk_has_space_again(
    tmp_path: Path, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its only approval is neither lost nor used by another run."""
    node = institutions(tmp_path)[0]
    node.set_policy(approval="digest")
    node.node_config["out"] = str(disk / "out")
    digest = config_digest_of(config_of(node)).hex()
    command = ["approve", str(disk / "out" / "run"), "--digest", digest]
    assert isinstance(node.handle(START), str), "it waits"
    filler = fill(disk, 0)
    capsys.readouterr()
    assert main(command) == 1
    assert capsys.readouterr().err.endswith("approvals.jsonl\n")
    filler.unlink()
    assert digest not in approval.unused(disk / "out")
    assert main(command) == 0
    answers = []
    for pages in range(12):
        filler = fill(disk, pages)
        answers.append(node.handle(START))
        filler.unlink()
    assert "machine: disk" in str(answers[0])
    response_of(node, START)
    lines = atomic.lines(disk / "out" / "institution" / "approvals.jsonl")
    assert [line.get("run") for line in lines] == [None, "run"]
