"""Test ledgers on disk: changes, cuts and removals are detected; a kill loses nothing."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coterie.app.institution.security.journal import Head, Journal, LedgerError
from tests.killing import killed_before


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


def number(line: dict[str, Any]) -> int:
    value = line["n"]
    assert isinstance(value, int)
    return value


def read(journal: Journal) -> list[int]:
    with journal.locked(number) as numbers:
        return numbers


def add(journal: Journal, *numbers: int) -> None:
    with journal.locked(number):
        journal.add(*({"n": n} for n in numbers))


def add_two(file: Path) -> None:
    add(Journal(file), 2)


def test_another_process_s_lines_come_once(file: Path) -> None:
    one, other = Journal(file), Journal(file)
    assert read(one) == []
    add(one, 1, 2)
    add(other, 3)
    assert read(one) == [3]
    assert read(other) == []
    assert read(Journal(file)) == [1, 2, 3]
    assert one.head == other.head == Head(file.stat().st_size, one.head.digest)
    assert (file.stat().st_mode & 0o777) == 0o600


def killed_after_the_line(file: Path) -> None:
    """The line is written, its head is not yet."""
    head = file.with_suffix(".head").read_bytes()
    add(Journal(file), 3)
    file.with_suffix(".head").write_bytes(head)


def killed_within_the_line(file: Path) -> None:
    with file.open("a") as ledger:
        ledger.write('{"n": 3')


@pytest.mark.parametrize(
    ("killed", "left"), [(killed_after_the_line, [1, 2, 3]), (killed_within_the_line, [1, 2])]
)
def test_a_kill_while_writing_leaves_whole_lines(
    file: Path, killed: Callable[[Path], None], left: list[int]
) -> None:
    add(Journal(file), 1, 2)
    killed(file)
    journal = Journal(file)
    assert read(journal) == left
    add(journal, 4)
    assert read(Journal(file)) == [*left, 4]


def test_killed_before_any_change_to_the_disk_it_goes_on(file: Path) -> None:
    expected, change = [1], 0
    add(Journal(file), 1)
    while killed_before(change, add_two, file):
        now = read(Journal(file))
        assert now in (expected, [*expected, 2])
        expected, change = now, change + 1
    assert read(Journal(file)) == [*expected, 2]
    assert change == 3, "the line, its head, and the name of the head"


def test_each_byte_that_is_changed_is_noticed(file: Path) -> None:
    add(Journal(file), 1, 2, 30)
    content = file.read_bytes()
    for at in range(len(content)):
        file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(LedgerError, match=r"ledger\.jsonl"):
            read(Journal(file))
    for size in range(len(content)):
        file.write_bytes(content[:size])
        with pytest.raises(LedgerError, match=r"ledger\.jsonl was changed, cut or rolled back"):
            read(Journal(file))
    file.unlink()
    with pytest.raises(LedgerError):
        read(Journal(file))
    file.write_bytes(content)
    assert read(Journal(file)) == [1, 2, 30]


def test_each_byte_of_the_head_that_is_changed_is_noticed(file: Path) -> None:
    add(Journal(file), 1, 2)
    head = file.with_suffix(".head")
    content = head.read_bytes()
    for at in range(len(content)):
        for bit in (1, 0x40):
            head.write_bytes(content[:at] + bytes([content[at] ^ bit]) + content[at + 1 :])
            with pytest.raises(LedgerError, match="ledger"):
                read(Journal(file))
    for text in ("", "null", "[]", '[-1, ""]', "[true, null]", "{}", "[1e9, 2]", '[0.5, "x"]'):
        head.write_text(text)
        with pytest.raises(LedgerError, match="ledger"):
            read(Journal(file))


def test_a_process_that_lives_notices_what_was_rolled_back_meanwhile(file: Path) -> None:
    journal = Journal(file)
    add(journal, 1)
    shutil.copytree(file.parent, file.parent.with_name("backup"))
    add(journal, 2)
    for name in os.listdir(file.parent):
        shutil.copy(file.parent.with_name("backup") / name, file.parent)
    for _ in range(2):
        with pytest.raises(LedgerError, match="rolled back"):
            read(journal)
    with pytest.raises(LedgerError, match="rolled back"):
        add(journal, 3)
    assert read(Journal(file)) == [1], "nobody else can know"


@pytest.mark.parametrize("what", ["older", "other", "gone"])
def test_what_others_have_seen_of_it_must_be_there(file: Path, what: str) -> None:
    add(Journal(file), 1)
    files = file, file.with_suffix(".head")
    before = [each.read_bytes() for each in files]
    journal = Journal(file)
    add(journal, 2)
    seen = [journal.head]
    add(journal, 3)
    assert read(Journal(file, seen)) == [1, 2, 3]
    for each, content in zip(files, before, strict=True):
        each.unlink()
        if what == "older":
            each.write_bytes(content)
    if what == "other":
        add(Journal(file), *range(10, 99))
    with pytest.raises(LedgerError, match="rolled back"):
        read(Journal(file, seen))


def test_a_line_that_cannot_be_read_is_never_skipped(file: Path) -> None:
    journal, other = Journal(file), Journal(file)
    add(journal, 1)
    with other.locked(lambda line: line):
        other.add({"m": 2})
    for _ in range(2):
        with pytest.raises(LedgerError, match="damaged"):
            read(journal)


def test_a_disk_that_is_full_between_a_line_and_its_head_hides_no_line(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even from the process that wrote it, and has it neither counted nor done."""
    journal = Journal(file)
    add(journal, 1)

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space"):
            add(journal, 2)
        for _ in range(2):
            with pytest.raises(OSError, match="No space"):
                read(journal)
    assert read(journal) == [2]
    add(journal, 3)
    assert read(Journal(file)) == [1, 2, 3]


def test_a_ledger_without_a_head_is_taken_over(file: Path) -> None:
    """Read a ledger of an older version, or of a process that was killed after its first line."""
    file.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(3)))
    assert read(Journal(file)) == [0, 1, 2]
    file.write_text('{"n": 0}\n')
    with pytest.raises(LedgerError, match="cut"):
        read(Journal(file))


def test_processes_take_turns(file: Path) -> None:
    """Four processes append the next number up to 60: no number occurs twice."""

    def count() -> None:
        journal, numbers = Journal(file), list[int]()
        while len(numbers) < 60:
            with journal.locked(number) as new:
                numbers += new
                if len(numbers) < 60:
                    journal.add({"n": len(numbers)})
                    numbers.append(len(numbers))

    children = []
    for _ in range(4):
        child = os.fork()
        if not child:
            try:
                count()
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    assert read(Journal(file)) == list(range(60))
