"""A node's memory of a run: damaged, missing or older than the ledgers know, it stops the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coterie.app.institution.security.journal import Journal
from coterie.app.institution.security.memory import Memory, heads_in
from coterie.app.runs.atomic import DamagedError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run" / "nodes" / "mail-0003.json"
    path.parent.mkdir(parents=True)
    return path


def recalled(file: Path, at_least: int = 0) -> Memory:
    memory = Memory(file)
    memory.recall(at_least)
    return memory


def test_it_outlives_the_process(file: Path) -> None:
    assert recalled(file).committed == 0
    memory = recalled(file)
    memory.offered, memory.heard = {"2 3": "aa", "5 3": "bb"}, {"1": 4}
    memory.commit(4)
    again = recalled(file, at_least=4)
    assert (again.committed, again.offered, again.heard) == (4, {"5 3": "bb"}, {"1": 4})


def test_each_byte_that_is_changed_is_noticed(file: Path) -> None:
    recalled(file).commit(4)
    content = file.read_bytes()
    for at in range(len(content)):
        file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(DamagedError, match=r"mail-0003\.json: damaged"):
            recalled(file)
    for size in range(len(content)):
        file.write_bytes(content[:size])
        with pytest.raises(DamagedError, match=r"mail-0003\.json: damaged"):
            recalled(file)


def test_that_of_another_run_or_peer_is_refused(file: Path, tmp_path: Path) -> None:
    recalled(file).commit(4)
    for name in ("run/nodes/mail-0004.json", "another/nodes/mail-0003.json"):
        other = tmp_path / name
        other.parent.mkdir(parents=True, exist_ok=True)
        other.write_bytes(file.read_bytes())
        with pytest.raises(DamagedError, match="of another run"):
            recalled(other)


def test_one_that_is_older_than_others_know_is_refused(file: Path) -> None:
    memory = recalled(file)
    memory.commit(4)
    with pytest.raises(DamagedError, match="ends with round 4, but round 5 is over"):
        recalled(file, at_least=5)
    file.unlink()
    with pytest.raises(DamagedError, match="ends with round 0, but round 1 is over"):
        recalled(file, at_least=1)


def test_it_says_how_far_ledgers_had_come(file: Path, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "institution" / "privacy-0003.jsonl")
    memory = Memory(file, [journal])
    memory.recall()
    memory.keep_heads()
    assert not file.exists(), "nothing to say"
    heads = []
    for name in ("one", "two"):
        with journal.locked(lambda line: line):
            journal.add({"name": name})
        memory.keep_heads()
        heads.append(journal.head)
        assert heads_in(tmp_path, 3) == {"privacy-0003.jsonl": [journal.head]}
    assert heads[0] != heads[1]
    assert heads_in(tmp_path, 4) == {}
    fresh = Memory(file, [Journal(journal.path)])
    fresh.recall()
    fresh.commit(1)
    assert heads_in(tmp_path, 3) == {"privacy-0003.jsonl": [heads[1]]}, "not read yet, not lost"
    file.write_text(json.dumps({"committed": 0}))
    assert heads_in(tmp_path, 3) == {}, "damaged: it stops its own run, and no other"
