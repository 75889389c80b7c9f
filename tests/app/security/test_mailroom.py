"""What a node's mailroom remembers, and what it writes down."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.config.config import Config
from app.config.schema import Scalar
from app.security.mailroom import Mailroom
from app.security.seal import SealError
from app.security.sealing import Sealing, config_digest_of, simulated
from app.security.trust import KeysError
from strategies.protocol import PeerMessage, Request

CONFIG = Config.from_flat({"peers": 3, "sealing": True})
PLAIN = Config.from_flat({"peers": 3})
PAYLOAD = b"the weights of a model"


def mailroom(directory: Path, *peers: int) -> Mailroom:
    """A new process of a node."""
    return Mailroom(peers, directory, simulated(CONFIG, peers, directory))


def begun(room: Mailroom, stage: Any, t: int, committed: int = 0, attempt: str = "a") -> Mailroom:
    room.begin(Request(stage, t, t, committed=committed, attempt=attempt))
    return room


def offer(room: Mailroom, sender: int, t: int, payload: bytes = PAYLOAD) -> PeerMessage:
    letter = room.close(PeerMessage("offer", sender, None, t, len(payload), payload), {0, 1, 2})
    assert letter is not None
    return letter


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run" / "nodes").mkdir(parents=True)
    return tmp_path / "run"


def test_another_process_of_the_node_opens_what_the_first_would(run: Path) -> None:
    letter = offer(begun(mailroom(run, 1), "start", 0), 1, 1)
    for _ in range(2):  # the same request once more, e.g. after a crash
        reader = begun(mailroom(run, 0), "update", 1)
        assert reader.open(letter, 100) == PAYLOAD


def test_what_the_relay_called_over_does_not_come_back(run: Path) -> None:
    """Not by a restart of the relay or of the node, nor in a run of the same name."""
    old = offer(begun(mailroom(run, 1), "update", 3, 2), 1, 4)
    begun(mailroom(run, 0), "update", 6, committed=5)
    for stage, t in (("update", 5), ("answer", 4), ("start", 4), ("start", 0), ("rounds", 1)):
        with pytest.raises(SealError, match=r'run "run" has committed round 5 here'):
            begun(mailroom(run, 0), stage, t, attempt="b")
    for stage, t in (("start", 5), ("update", 6)):
        reader = begun(mailroom(run, 0), stage, t)
        with pytest.raises(SealError, match="was not sealed by peer 1"):
            reader.open(replace(old, round=t + 1), 100)


def test_what_was_offered_in_rounds_that_are_over_is_forgotten(run: Path) -> None:
    room = begun(mailroom(run, 0), "start", 0)
    for t in (1, 2, 3):
        offer(room, 0, t)
    begun(mailroom(run, 0), "update", 3, committed=2)
    memory = json.loads((run / "nodes" / "mail-0000.json").read_text())
    assert memory == {"committed": 2, "offered": {"3 0": hashlib.sha256(PAYLOAD).hexdigest()}}


def test_a_round_that_is_played_again_takes_the_letters_of_its_own_attempt(run: Path) -> None:
    first = offer(begun(mailroom(run, 1), "start", 3, 3), 1, 4)
    again = offer(begun(mailroom(run, 1), "start", 3, 3, "b"), 1, 4)
    reader = begun(mailroom(run, 0), "update", 4, 3, "b")
    assert reader.open(again, 100) == PAYLOAD
    with pytest.raises(SealError, match="run, attempt and round"):
        reader.open(first, 100)


def test_an_answer_is_for_the_model_that_was_offered_in_its_round(run: Path) -> None:
    owner = begun(mailroom(run, 0), "start", 0)
    model = offer(owner, 0, 1)
    helper = begun(mailroom(run, 1), "answer", 1)
    helper.open(model, 100)
    answer = helper.close(PeerMessage("answer", 1, 0, 1, 9, b"gradients"), {0})
    assert answer is not None
    assert begun(mailroom(run, 0), "update", 1).open(answer, 100) == b"gradients"
    fresh = begun(mailroom(run, 0), "start", 0)  # it lost its disk, and begins with another model
    offer(fresh, 0, 1, b"another model")
    with pytest.raises(SealError, match="no answer to ours"):
        begun(mailroom(run, 0), "update", 1).open(answer, 100)


def test_what_is_too_large_is_not_even_looked_at(run: Path) -> None:
    letter = offer(begun(mailroom(run, 1), "start", 0), 1, 1)
    reader = begun(mailroom(run, 0), "update", 1)
    assert reader.open(letter, len(PAYLOAD)) == PAYLOAD
    with pytest.raises(SealError, match="has 22 bytes, more than the 21"):
        reader.open(letter, len(PAYLOAD) - 1)


def test_the_trust_file_is_read_again_for_each_order(run: Path) -> None:
    writer, reader = mailroom(run, 1), mailroom(run, 0)
    letter = offer(begun(writer, "start", 0), 1, 1)
    trust = run / "keys" / "trust.toml"
    known = trust.read_text()
    trust.write_text(known.partition("[peer-0001]")[0])  # 0 alone
    with pytest.raises(SealError, match="is from a peer that is not in the trust file"):
        begun(reader, "update", 1).open(letter, 100)
    assert begun(writer, "start", 0).close(replace(letter, payload=b"", keys={}), {2}) is None
    trust.unlink()
    with pytest.raises(KeysError, match="No such file"):
        begun(reader, "update", 1)


def test_the_terms_are_what_results_depend_on() -> None:
    flat = CONFIG.flat()
    same: dict[str, Scalar] = {
        "out": "x",
        "name": "y",
        "resume": True,
        "run-dir": "/z",
        "device": "cpu",
        "quorum": 2,
    }
    assert config_digest_of(flat | same) == config_digest_of(flat)
    changes: list[dict[str, Scalar]] = [
        {"seed": 1},
        {"learning-rate": 0.2},
        {"method": "fedavg"},
        {"cobo.rho": 1.0},
    ]
    for change in changes:
        assert config_digest_of(flat | change) != config_digest_of(flat)


def test_every_envelope_has_a_line(run: Path) -> None:
    writer = begun(mailroom(run, 1), "start", 0)
    letter = offer(writer, 1, 1)
    reader = begun(mailroom(run, 0), "update", 1)
    reader.open(letter, 100)
    reader.received(letter, "accepted")
    reader.received(replace(letter, sender=2), "refused: it was not sealed by peer 2")
    (sent,) = map(json.loads, (run / "audit-0001.jsonl").read_text().splitlines())
    accepted, refused = map(json.loads, (run / "audit-0000.jsonl").read_text().splitlines())
    assert isinstance(letter.payload, bytes)
    common = {
        "run": "run", "attempt": "a", "kind": "offer", "round": 1, "bytes": 22, "sealed": True,
        "digest": hashlib.sha256(letter.payload).hexdigest(),
    }  # fmt: skip
    for line in (sent, accepted, refused):
        assert line.pop("time").endswith("+00:00")
        assert common.items() <= line.items()
    rest = [{k: v for k, v in line.items() if k not in common} for line in (sent, accepted)]
    both = ["0 peer-0000", "1 peer-0001", "2 peer-0002"]
    assert rest[0] == {"direction": "sent", "from": both[1], "to": both, "verdict": "sent"}
    assert rest[1] == {
        "direction": "received", "from": both[1], "to": both[:1], "verdict": "accepted"
    }  # fmt: skip
    assert refused["from"] == "2 peer-0002"
    assert refused["verdict"] == "refused: it was not sealed by peer 2"


def test_plain_letters_of_a_deployment_are_audited_too(run: Path) -> None:
    room = Mailroom((0,), run, Sealing(b"", audited=True))
    room.begin(Request("start", 0, 0))
    letter = offer(room, 0, 1)
    assert letter.payload == PAYLOAD
    (line,) = map(json.loads, (run / "audit-0000.jsonl").read_text().splitlines())
    assert not line["sealed"]
    assert line["digest"] == hashlib.sha256(PAYLOAD).hexdigest()


def test_a_plain_simulation_writes_nothing_down(run: Path) -> None:
    room = Mailroom((0,), run, simulated(PLAIN, (0,), run))
    room.begin(Request("start", 0, 0))
    room.received(offer(room, 0, 1), "accepted")
    assert [path.name for path in run.iterdir()] == ["nodes"]
    assert not list((run / "nodes").iterdir())
