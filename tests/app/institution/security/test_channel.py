"""Test a node's secure channel: accepted letters, its memory and its audit log."""

from __future__ import annotations

import hashlib
import json
import weakref
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.app.config.config import Config
from coterie.app.config.digest import config_digest_of
from coterie.app.config.schema import Scalar
from coterie.app.institution.security.channel import SecureChannel
from coterie.app.institution.security.seal import TAG, SealError
from coterie.app.institution.security.sealing import Sealing, simulated
from coterie.app.institution.security.trust import KeysError
from coterie.app.wire.payload import LetterFormat
from coterie.strategies.protocol import PeerMessage, Request

CONFIG = Config.from_flat({"peers": 3, "sealing": True})
PLAIN = Config.from_flat({"peers": 3})
FORM = LetterFormat({"x": ((5,), torch.float32)})
MODELS = {"x": torch.arange(15.0).view(3, 5)}
PAYLOAD, ANOTHER, ANSWER = (FORM.encode(MODELS, row) for row in range(3))
EDGES = np.array([(s, r) for r in range(3) for s in range(3) if s != r], dtype=np.int64)
NO_KEYS = Sealing(b"", audited=True)


def channel(directory: Path, *peers: int, sealing: Sealing | None = None) -> SecureChannel:
    """A new process of a node."""
    return aged(directory, *peers, sealing=sealing)


def aged(
    directory: Path, *peers: int, sealing: Sealing | None = None, max_age: int = 0
) -> SecureChannel:
    """Return a channel that also accepts offers of earlier rounds."""
    sealing = sealing or simulated(CONFIG, peers, directory)
    return SecureChannel(peers, directory, sealing, max_age=max_age)


def begun(
    node: SecureChannel,
    stage: Any,
    t: int,
    committed: int = 0,
    attempt: str = "a",
    letters: Sequence[PeerMessage] = (),
) -> SecureChannel:
    """Return the channel with the letters of a request in which all peers ask all peers."""
    asked = np.ones(len(EDGES), dtype=np.bool_)
    node.begin(
        Request(stage, t, t, EDGES, asked, tuple(letters), committed=committed, attempt=attempt)
    )
    return node


def offer(node: SecureChannel, sender: int, t: int, payload: bytes = PAYLOAD) -> PeerMessage:
    letter = node.write(
        PeerMessage("offer", sender, None, t, FORM.nbytes, payload), {0, 1, 2} - {sender}
    )
    assert letter is not None
    return letter


def read(node: SecureChannel, kind: Any = "offer") -> dict[tuple[int, int | None], list[float]]:
    """The letters that the channel accepts."""
    return {ends: tensors["x"].tolist() for ends, tensors in node.read(kind, FORM).items()}


def refusals(node: SecureChannel) -> list[str]:
    """Return the reasons of the refusals; nothing was accepted."""
    assert not read(node)
    return [line.partition(": it ")[2] for line in node.finish()]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "run" / "nodes").mkdir(parents=True)
    return tmp_path / "run"


def test_the_channel_keeps_no_letter_that_it_has_opened(run: Path) -> None:
    """A letter can be large, and training follows."""
    letters = [replace(offer(begun(channel(run, k), "start", 0), k, 1)) for k in (1, 2)]
    lives, node = [weakref.ref(letter) for letter in letters], channel(run, 0)
    node.begin(Request("update", 1, 1, EDGES, np.zeros(6, dtype=np.bool_), letters, attempt="a"))
    alive = list[list[bool]]()

    class Watched:
        max_bytes = FORM.max_bytes

        def decode(self, payload: bytes, sender: int) -> dict[str, Tensor]:
            alive.append([each() is not None for each in lives])
            return FORM.decode(payload, sender)

    assert not letters
    assert len(node.read("offer", Watched())) == 2
    assert alive == [[True, True], [False, True]]
    assert [each() for each in lives] == [None, None]


def test_another_process_of_the_node_opens_what_the_first_would(run: Path) -> None:
    letter = offer(begun(channel(run, 1), "start", 0), 1, 1)
    assert isinstance(letter.payload, bytes)
    assert PAYLOAD not in letter.payload
    for _ in range(2):  # the same request once more, e.g. after a crash
        reader = begun(channel(run, 0), "update", 1, letters=[letter])
        assert read(reader) == {(1, None): [0, 1, 2, 3, 4]}
        assert reader.finish() == ()


def test_what_the_relay_called_over_does_not_come_back(run: Path) -> None:
    """Not by a restart of the relay or of the node, nor in a run of the same name."""
    old = offer(begun(channel(run, 1), "update", 3, 2), 1, 4)
    begun(channel(run, 0), "update", 6, committed=5)
    for stage, t in (("update", 5), ("answer", 4), ("start", 4), ("start", 0), ("rounds", 1)):
        with pytest.raises(SealError, match=r'run "run" has committed round 5 on this node'):
            begun(channel(run, 0), stage, t, attempt="b")
    for stage, t in (("start", 5), ("update", 6)):
        reader = begun(channel(run, 0), stage, t, letters=[replace(old, round=t + 1)])
        (why,) = refusals(reader)
        assert why.startswith("was not sealed by peer 1")


def test_what_was_offered_in_rounds_that_are_over_is_forgotten(run: Path) -> None:
    node = begun(channel(run, 0), "start", 0)
    for t in (1, 2, 3):
        offer(node, 0, t)
    begun(channel(run, 0), "update", 3, committed=2)
    memory = json.loads((run / "nodes" / "mail-0000.json").read_text())
    assert memory["committed"] == 2
    assert memory["offered"] == {"3 0": hashlib.sha256(PAYLOAD).hexdigest()}


def test_a_round_that_is_played_again_takes_the_letters_of_its_own_attempt(run: Path) -> None:
    first = offer(begun(channel(run, 1), "start", 3, 3), 1, 4)
    again = offer(begun(channel(run, 1), "start", 3, 3, "b"), 1, 4, ANOTHER)
    reader = begun(channel(run, 0), "update", 4, 3, "b", letters=[again])
    assert read(reader) == {(1, None): [5, 6, 7, 8, 9]}
    reader = begun(channel(run, 0), "update", 4, 3, "b", letters=[first])
    (why,) = refusals(reader)
    assert "run, attempt and round" in why


def test_an_answer_is_for_the_model_that_was_offered_in_its_round(run: Path) -> None:
    owner = begun(channel(run, 0), "start", 0)
    model = offer(owner, 0, 1)
    helper = begun(channel(run, 1), "answer", 1, letters=[model])
    assert read(helper)
    answer = helper.write(PeerMessage("answer", 1, 0, 1, FORM.nbytes, ANSWER), {0})
    assert answer is not None
    owner = begun(channel(run, 0), "update", 1, letters=[answer])
    assert read(owner, "answer") == {(1, 0): [10, 11, 12, 13, 14]}
    fresh = begun(channel(run, 0), "start", 0)  # it lost its disk, and begins with another model
    offer(fresh, 0, 1, ANOTHER)
    owner = begun(channel(run, 0), "update", 1, letters=[answer])
    assert not read(owner, "answer")
    (why,) = owner.finish()
    assert "not a reply to our message" in why


@pytest.mark.parametrize("sealed", [True, False])
def test_what_is_too_large_is_not_even_looked_at(run: Path, sealed: bool) -> None:
    """Refuse one byte more than the maximum; the bytes of the seal are not counted."""
    sealing = None if sealed else NO_KEYS
    writer = begun(channel(run, 1, sealing=sealing), "start", 0)
    for size, why in (
        (FORM.max_bytes, "is not safetensors"),
        (FORM.max_bytes + 1, f"has {FORM.max_bytes + 1} bytes, more than the {FORM.max_bytes}"),
    ):
        letter = offer(writer, 1, 1, bytes(size))
        assert isinstance(letter.payload, bytes)
        assert len(letter.payload) == size + TAG * sealed
        reader = channel(run, 0, sealing=sealing)
        (refused,) = refusals(begun(reader, "update", 1, letters=[letter]))
        assert refused.startswith(why)


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("payload", [bytearray(PAYLOAD), "text", None, dict(MODELS)], ids=type)
def test_what_is_no_bytes_is_refused(run: Path, payload: object, sealed: bool) -> None:
    sealing = None if sealed else NO_KEYS
    letter = offer(begun(channel(run, 1, sealing=sealing), "start", 0), 1, 1)
    reader = channel(run, 0, sealing=sealing)
    begun(reader, "update", 1, letters=[replace(letter, payload=payload)])
    assert refusals(reader) == [f"is {type(payload).__name__}, not bytes"]


def test_a_letter_is_read_where_its_edge_ends_and_once(run: Path) -> None:
    """Peer 0 accepts the offers of 1 and 2, but none from itself or for another peer."""
    written = [offer(begun(channel(run, peer), "start", 0), peer, 1) for peer in (1, 2)]
    strange = [replace(written[0], sender=0), replace(written[1], kind="answer", recipient=1)]
    reader = begun(channel(run, 0), "update", 1, letters=[*written, *strange, written[0]])
    assert read(reader).keys() == {(1, None), (2, None)}
    assert not read(reader)  # neither when it is read again
    assert not read(reader, "answer")
    reasons = [line.partition(": it ")[2].partition(":")[0] for line in reader.finish()]
    assert reasons == ["was not expected", "was received before", "was not expected"]


def test_what_nobody_reads_is_refused(run: Path) -> None:
    letter = offer(begun(channel(run, 1), "start", 0), 1, 1)
    reader = begun(channel(run, 0), "update", 1, letters=[letter])
    (line,) = reader.finish()
    assert line == (
        "round 1: peers [0] refused the offer of peer 1: it was not expected: no edge of this "
        "round delivers it to this node"
    )
    begun(reader, "update", 1)  # the next request has refusals of its own
    assert reader.finish() == ()


def test_the_trust_file_is_read_again_for_each_request(run: Path) -> None:
    writer, reader = channel(run, 1), channel(run, 0)
    letter = offer(begun(writer, "start", 0), 1, 1)
    trust = run / "keys" / "trust.toml"
    known = trust.read_text()
    trust.write_text(known.partition("[peer-0001]")[0])  # 0 alone
    (why,) = refusals(begun(reader, "update", 1, letters=[letter]))
    assert why == "is from a peer that is not in the trust file"
    assert begun(writer, "start", 0).write(replace(letter, payload=b"", keys={}), {2}) is None
    trust.unlink()
    with pytest.raises(KeysError, match="No such file"):
        begun(reader, "update", 1)


def test_the_config_digest_is_of_what_results_depend_on() -> None:
    flat = CONFIG.flat()
    same: dict[str, Scalar] = {
        "out": "x",
        "name": "y",
        "resume": True,
        "run-dir": "/z",
        "device": "cpu",
        "quorum": 2,
    }
    same["topology-file"] = same["data-dir"] = "/elsewhere"

    def digest(changes: dict[str, Scalar]) -> bytes:
        return config_digest_of(Config.from_flat(flat | changes))

    assert digest(same) == digest({})
    changes: list[dict[str, Scalar]] = [
        {"seed": 1},
        {"learning-rate": 0.2},
        {"method": "fedavg"},
        {"cobo.rho": 1.0},
    ]
    for change in changes:
        assert digest(change) != digest({})


def test_every_letter_has_a_line(run: Path) -> None:
    writer = begun(channel(run, 1), "start", 0)
    letter = offer(writer, 1, 1)
    reader = begun(channel(run, 0), "update", 1, letters=[letter, replace(letter, sender=2)])
    assert read(reader).keys() == {(1, None)}
    (sent,) = map(json.loads, (run / "audit-0001.jsonl").read_text().splitlines())
    accepted, refused = map(json.loads, (run / "audit-0000.jsonl").read_text().splitlines())
    assert isinstance(letter.payload, bytes)
    common = {
        "run": "run", "attempt": "a", "kind": "offer", "round": 1, "bytes": 20, "sealed": True,
        "digest": hashlib.sha256(letter.payload).hexdigest(),
    }  # fmt: skip
    for line in (sent, accepted, refused):
        assert line.pop("time").endswith("+00:00")
        assert common.items() <= line.items()
    rest = [{k: v for k, v in line.items() if k not in common} for line in (sent, accepted)]
    names = ["0 peer-0000", "1 peer-0001", "2 peer-0002"]
    assert rest[0] == {
        "direction": "sent", "from": names[1], "to": [names[0], names[2]], "verdict": "sent"
    }  # fmt: skip
    assert rest[1] == {
        "direction": "received", "from": names[1], "to": names[:1], "verdict": "accepted"
    }  # fmt: skip
    assert refused["from"] == "2 peer-0002"
    assert refused["verdict"].startswith("refused: it was not sealed by peer 2")


def test_plain_letters_of_a_deployment_are_audited_too(run: Path) -> None:
    node = begun(channel(run, 0, sealing=NO_KEYS), "start", 0)
    letter = offer(node, 0, 1)
    assert letter.payload == PAYLOAD
    (line,) = map(json.loads, (run / "audit-0000.jsonl").read_text().splitlines())
    assert not line["sealed"]
    assert line["digest"] == hashlib.sha256(PAYLOAD).hexdigest()


def test_a_plain_simulation_writes_nothing_down(run: Path) -> None:
    node, other = (channel(run, peer, sealing=simulated(PLAIN, (peer,), run)) for peer in (0, 1))
    letter = offer(begun(other, "start", 0), 1, 1)
    assert read(begun(node, "update", 1, letters=[letter]))
    assert [path.name for path in run.iterdir()] == ["nodes"]
    assert not list((run / "nodes").iterdir())


def test_a_refused_offer_does_not_make_later_ones_old(run: Path) -> None:
    """A relay adds a forged letter of a later round, so that the node refuses those in between."""
    sender, node = begun(channel(run, 1), "start", 0), begun(aged(run, 0, max_age=3), "start", 0)
    letters = {t: offer(sender, 1, t) for t in (1, 2)}
    begun(node, "update", 3, letters=[letters[1], replace(letters[2], round=3)])
    assert list(node.read("offer", FORM)) == [(1, None)]
    begun(node, "update", 3, letters=[letters[2]])
    assert list(node.read("offer", FORM)) == [(1, None)]


def test_an_older_offer_is_heard_within_its_age_but_never_after_a_newer_one(run: Path) -> None:
    """Refuse replayed letters, also in a new process."""
    sender, node = channel(run, 1), aged(run, 0, max_age=2)
    begun(sender, "start", 0)
    letters = {t: offer(sender, 1, t) for t in (1, 2, 3)}
    begun(node, "start", 0)
    begun(node, "update", 3, letters=[letters[1]])
    assert list(node.read("offer", FORM)) == [(1, None)]
    begun(node, "update", 4, letters=[letters[3]])
    assert list(node.read("offer", FORM)) == [(1, None)]
    for late in (node, aged(run, 0, max_age=2)):
        begun(late, "update", 4, letters=[letters[2]])
        assert not late.read("offer", FORM)
        assert "older than one received before" in late.finish()[0]
    strict = begun(channel(run, 2), "update", 4, letters=[letters[3]])
    assert not strict.read("offer", FORM)
    assert "it is of round 3" in strict.finish()[0]
    begun(node, "update", 4, letters=[replace(letters[2], round=3)])  # the seal says otherwise
    assert not node.read("offer", FORM)


@pytest.mark.parametrize("error", [RuntimeError, OverflowError, MemoryError, RecursionError])
def test_whatever_error_a_decoder_raises_refuses_that_letter_and_no_more(
    error: type[Exception], run: Path
) -> None:
    """A3: an increment as a first letter was a RuntimeError, which failed the whole request."""
    letters = [offer(begun(channel(run, sender), "update", 1), sender, 1) for sender in (1, 2)]

    class Fragile(LetterFormat):
        def decode(self, payload: bytes, sender: int = -1) -> dict[str, Tensor]:
            if sender == 1:
                raise error("the size of tensor a must match the size of tensor b")
            return super().decode(payload, sender)

    node = begun(channel(run, 0), "update", 1, letters=letters)
    assert node.read("offer", Fragile(FORM.layout)).keys() == {(2, None)}
    (line,) = node.finish()
    assert "peer 1: it cannot be decoded: " + error.__name__ in line
