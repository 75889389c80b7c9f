"""Replies that stay in the SuperLink's object store, on Flower's own handlers and stores."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message
from flwr.app.message import array as arrays
from flwr.app.message.arraychunk import ArrayChunk
from flwr.supercore.corestate import in_memory_corestate, sql_corestate
from flwr.supercore.inflatable.inflatable_object import InflatableObject
from flwr.supercore.task_identity import TaskIdentity

from coterie.strategies.flower import stored, transport
from coterie.strategies.flower.records import decode_request, decode_response, encode_response
from coterie.strategies.flower.transport import FlowerTransport
from coterie.strategies.protocol import PeerMessage, Request, Response
from tests.harness.superlink import Sending, SuperLink, SuperNode

_CHUNK = 1000
_LETTER = np.random.default_rng(0).bytes(4 * _CHUNK + 137)
"""Payload of five chunks."""
_OBJECTS = 5 + 6
"""Objects of a response with it: the chunks; array, letter, header, metrics, content, message."""


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", _CHUNK)
    for name in ("_run_id", "_task_id", "_node_id"):  # set by `SuperLink`, restored at the end
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture(params=["memory", "sqlite"])
def link(request: pytest.FixtureRequest, tmp_path: Path) -> SuperLink:
    return SuperLink(tmp_path / "state.db" if request.param == "sqlite" else None)


class Clock:
    """Time of a transport: each pause runs the next step of a script."""

    def __init__(self, script: Iterator[None]) -> None:
        self.now, self._script = 0.0, script

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        next(self._script, None)


Exchange = Callable[..., Response | str]


@pytest.fixture
def exchange(link: SuperLink, monkeypatch: pytest.MonkeyPatch) -> Exchange:
    """Let the relay send a request to a node, while the node follows a script."""
    relay = FlowerTransport(link.grid, 60.0)

    def run(node: SuperNode, script: Iterator[None], *letters: PeerMessage) -> Response | str:
        monkeypatch.setattr(transport, "time", Clock(script))
        return relay.exchange({node.id: request(*letters)})[node.id]

    run.__dict__["relay"] = relay
    return run


def request(*letters: PeerMessage) -> Request:
    """An "update" of round 1."""
    return Request("update", 1, 1, letters=letters)


def offer(payload: bytes = _LETTER, sender: int = 0) -> PeerMessage:
    """A letter."""
    return PeerMessage("offer", sender, None, 1, len(payload), payload)


def answered(node: SuperNode, *letters: PeerMessage, to: Message | None = None) -> Sending:
    """Let a node begin to send a response with letters, to the request that it receives now."""
    record = encode_response(Response((0,), letters), request())
    return node.reply(to or node.receive(), record)


def payloads(message: Message) -> list[object]:
    """Return the payloads in a request."""
    return [letter.payload for letter in decode_request(message.content).letters]


@pytest.mark.some(1)
@pytest.mark.slow
def test_a_letter_survives_a_cut_after_any_of_its_objects(
    link: SuperLink, exchange: Exchange
) -> None:
    """The node sends the rest, and nothing twice; the next node receives the same bytes."""
    one, other = link.join(), link.join()

    def script(cut: int, payload: bytes) -> Iterator[None]:
        sending = answered(one, offer(payload))
        missing = len(sending.missing)
        assert missing >= len(_LETTER) / _CHUNK  # headers can be those of the round before
        assert sending.send(cut)
        for _ in range(3):  # the line is cut
            yield
        assert len(sending.missing) == max(missing - cut, 0)
        assert sending.send()
        yield

    def forwarded(payload: bytes) -> Iterator[None]:
        message = other.receive()
        assert payloads(message) == [payload]
        answered(other, to=message).send()
        yield

    for cut in range(_OBJECTS):
        payload = np.random.default_rng(cut).bytes(len(_LETTER))
        response = exchange(one, script(cut, payload))
        assert isinstance(response, Response)
        assert isinstance(exchange(other, forwarded(payload), *response.letters), Response)


@pytest.mark.slow
def test_the_relay_sends_no_chunk(link: SuperLink, exchange: Exchange) -> None:
    """The chunks are in the store; the relay sends headers, to any number of recipients."""
    one, other = link.join(), link.join()

    def script() -> Iterator[None]:
        answered(one, offer()).send()
        yield

    response = exchange(one, script())
    assert isinstance(response, Response)
    link.pushed.clear()

    def forwarded() -> Iterator[None]:
        chunks = len(link.pushed)
        assert chunks == 3  # message, content, header: array and letter are in the store too
        assert payloads(other.receive()) == [_LETTER]
        yield

    exchange(other, forwarded(), *response.letters)


@pytest.mark.slow
def test_a_letter_is_deleted_after_the_relay_drops_it_and_its_recipients_have_it(
    link: SuperLink, exchange: Exchange
) -> None:
    one, other = link.join(), link.join()

    def script() -> Iterator[None]:
        answered(one, offer()).send()
        yield

    response = exchange(one, script())
    assert isinstance(response, Response)

    def forwarded() -> Iterator[None]:
        message = other.receive()
        assert payloads(message) == [_LETTER]
        answered(other, to=message).send()
        yield

    def next_round() -> Iterator[None]:
        answered(other).send()
        yield

    letters = list(response.letters)
    (array,) = cast(ArrayRecord, letters[0].payload).values()
    chunks = [name for name, _ in array.slice_array()]
    assert len(chunks) == 5
    del response, array
    exchange(other, forwarded(), *letters)
    exchange(other, next_round())
    assert all(chunk in link.store for chunk in chunks)
    letters.clear()
    exchange(other, next_round())
    assert not any(chunk in link.store for chunk in chunks)


@pytest.mark.slow
def test_a_node_that_sends_slowly_does_not_hold_the_round_past_its_deadline(
    link: SuperLink, exchange: Exchange
) -> None:
    """Its reply is deleted when the relay looks again, so that it stops sending."""
    node = link.join()
    sendings: list[Sending] = []

    def script() -> Iterator[None]:
        sendings.append(answered(node, offer()))
        sendings[0].send(2)
        yield

    assert exchange(node, script()) == "no response within 60 s"
    assert exchange.__dict__["relay"].nodes() == [node.id]
    assert not sendings[0].send(1)
    assert len(link.store) == 0


def test_a_reply_that_a_node_gave_up_is_its_fault(
    link: SuperLink, exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower deletes a reply of which nothing arrived for three minutes."""
    node = link.join()

    def script() -> Iterator[None]:
        for module in (in_memory_corestate, sql_corestate):
            monkeypatch.setattr(module, "OBJECT_PUSH_SESSION_TTL_SECONDS", 0)
        answered(node, offer())
        yield

    line = "not a response: ConnectionError: the node stopped sending it"
    assert exchange(node, script()) == line


def test_flower_gives_a_reply_up_if_a_chunk_was_stored_and_its_answer_was_lost(
    link: SuperLink, exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses the chunk when it comes again; the docs say what a cut at that moment costs."""
    node = link.join()

    def script() -> Iterator[None]:
        sending = answered(node, offer())
        first = sending.missing[0]
        for module in (in_memory_corestate, sql_corestate):
            monkeypatch.setattr(module, "OBJECT_PUSH_SESSION_TTL_SECONDS", 0)
        assert sending.send(1)
        sending.missing.insert(0, first)
        assert not sending.send(1)
        yield

    line = "not a response: ConnectionError: the node stopped sending it"
    assert exchange(node, script()) == line


def test_a_reply_without_its_own_objects_is_its_nodes_fault(
    link: SuperLink, exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tree of a message is the node's word: here a chunk stands for the message."""
    node = link.join()

    def script() -> Iterator[None]:
        record = encode_response(Response((0,), (offer(),)), request())
        sending = node.reply(node.receive(), record, root=True)
        sending.send()
        yield

    outcome = exchange(node, script())
    assert isinstance(outcome, str)
    assert outcome.startswith("not a response: ")


@pytest.mark.slow
@pytest.mark.parametrize(("size", "nbytes"), [(4137, 4138), (2**16 + 1, 0)])
def test_the_relay_knows_how_large_a_letter_is(
    link: SuperLink, exchange: Exchange, size: int, nbytes: int
) -> None:
    """A node cannot send less or more than it says, although the relay has no byte of it."""
    node = link.join()

    def script() -> Iterator[None]:
        letter = replace(offer(np.random.default_rng(0).bytes(size)), nbytes=nbytes)
        answered(node, letter).send()
        yield

    line = f"not a response: letter-0: {size} bytes that claim to hold {nbytes}"
    assert exchange(node, script()) == line


def joined(*pieces: tuple[int, InflatableObject], size: int) -> ArrayRecord:
    """A letter of `size` bytes that names each piece this often."""
    record = ArrayRecord({"payload": Array("uint8", (size,), "coterie.payload", b"")})
    named = [(piece.object_id, piece) for times, piece in pieces for _ in range(times)]
    record["payload"].__dict__["_chunks"] = named
    return record


def inside(level: int) -> Array:
    """An array of two arrays of two arrays ... of a chunk, none of which names anything twice."""
    chunk = ArrayChunk(memoryview(bytes(_CHUNK)))
    pieces: list[InflatableObject] = [chunk]
    for k in range(level):
        below, pieces = pieces, []
        for name in "ab":
            array = Array(f"{name}{k}", (1,), "", b"")
            array.__dict__["_chunks"] = [(each.object_id, each) for each in below]
            pieces.append(array)
    return cast(Array, pieces[0])


_FULL = ArrayChunk(memoryview(np.random.default_rng(1).bytes(_CHUNK)))
_TWICE = "an array that names a chunk twice, or what is not a chunk"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("letter", "nbytes", "line"),
    [
        (joined((20_000, _FULL), size=20_000 * _CHUNK), 20_000 * _CHUNK, f"WireError: {_TWICE}"),
        (joined((1, inside(5)), size=16 * _CHUNK), 16 * _CHUNK, f"WireError: {_TWICE}"),
        (joined((1, _FULL), size=2 * _CHUNK), _CHUNK, "letter-0: 1000 bytes that do not add up"),
    ],
    ids=["a chunk 20,000 times", "arrays of arrays", "another size than its shape"],
)
def test_a_letter_is_its_chunks_each_once(
    letter: ArrayRecord, nbytes: int, line: str, link: SuperLink, exchange: Exchange
) -> None:
    """A2: Flower joins a chunk in the memory of a letter's reader as often as it is named."""
    node = link.join()

    def script() -> Iterator[None]:
        answered(node, replace(offer(), nbytes=nbytes, payload=letter)).send()
        yield

    outcome = exchange(node, script())
    assert isinstance(outcome, str)
    assert outcome.startswith(f"not a response: {line}")


def test_what_is_no_chunk_is_limited(
    link: SuperLink, exchange: Exchange, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "_HEADS", 2**16)
    node = link.join()

    def script() -> Iterator[None]:
        record = encode_response(Response((0,), (offer(),), backend=2**16 * "x"), request())
        node.reply(node.receive(), record).send()
        yield

    line = "not a response: WireError: more than 65536 bytes besides the chunks of letters"
    assert exchange(node, script()) == line


@pytest.mark.some(4)
@pytest.mark.slow
@pytest.mark.parametrize("size", [0, 1, _CHUNK, 7 * _CHUNK])
def test_an_honest_letter_of_zeros_names_no_chunk_twice(
    size: int, link: SuperLink, exchange: Exchange
) -> None:
    one, other = link.join(), link.join()

    def script() -> Iterator[None]:
        record = encode_response(Response((0,), (offer(bytes(size)),)), request())
        for letter in record.array_records.values():
            stored.cut(letter["payload"])
        one.reply(one.receive(), record).send()
        yield

    def forwarded() -> Iterator[None]:
        assert payloads(other.receive()) == [bytes(size)]
        yield

    response = exchange(one, script())
    assert isinstance(response, Response)
    exchange(other, forwarded(), *response.letters)


@pytest.mark.slow
def test_the_memory_of_the_relay_is_that_of_a_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forwarding forty chunks, it never holds more than three."""
    size = 2**20
    monkeypatch.setattr(arrays, "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", size)
    link = SuperLink(tmp_path / "state.db")
    one, other = link.join(), link.join()
    relay = FlowerTransport(link.grid, 60.0)
    (message,) = relay._push({one.id: request()}, 60.0)
    sending = answered(one, offer(np.random.default_rng(0).bytes(40 * size)))
    assert sending.send()
    sending._objects.clear()
    tracemalloc.start()
    try:
        reply = relay._replies.pull({message})[message]
        assert isinstance(reply, Message)
        response = decode_response(reply.content, request())
        assert isinstance(response, Response)
        relay._push({other.id: request(*response.letters)}, 60.0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size < peak < 3 * size
