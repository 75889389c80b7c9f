from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.strategies.errors import WireError
from coterie.strategies.flower.records import (
    decode_request,
    decode_response,
    encode_fault,
    encode_request,
    encode_response,
)
from coterie.strategies.protocol import Edges, PeerMessage, Report, Request, Response

quick = settings(derandomize=True, deadline=None)
peers = st.integers(0, 2**31)
rounds = st.integers(0, 2**40)
edges = st.lists(st.tuples(peers, peers), max_size=5).map(
    lambda pairs: np.array(pairs, dtype=np.int64).reshape(-1, 2)
)
names = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1)


@st.composite
def messages(draw: st.DrawFn, t: int) -> PeerMessage:
    recipient = draw(st.none() | peers)
    kind = "offer" if recipient is None else "answer"
    keys = draw(st.dictionaries(peers, st.binary(), max_size=3))
    ends, payload = (kind, draw(peers), recipient), draw(st.binary())
    nbytes = draw(st.integers(0, len(payload)))
    return PeerMessage(*ends, t, nbytes, payload, keys)  # type: ignore[arg-type]


@st.composite
def requests(draw: st.DrawFn) -> Request:
    stage = draw(st.sampled_from(["start", "answer", "update", "local-rounds"]))
    t, ends = draw(rounds), draw(edges)
    last = t + draw(st.integers(0, 9)) if stage == "local-rounds" else t
    asked = np.array(
        draw(st.lists(st.booleans(), min_size=len(ends), max_size=len(ends))), np.bool_
    )
    letters = tuple(draw(st.lists(messages(t), max_size=3)))
    return Request(stage, t, last, ends, asked, letters, draw(st.integers(0, t)))  # type: ignore[arg-type]


@st.composite
def responses(draw: st.DrawFn) -> Response:
    n = draw(st.integers(1, 4))
    numbers = st.none() | st.floats(allow_nan=False) | st.integers(-(2**60), 2**60)
    report = st.builds(
        Report,
        rounds,
        peers,
        st.dictionaries(names, numbers, max_size=3),
        st.tuples(*n * [st.floats(allow_nan=False)]),
    )
    return Response(
        tuple(draw(st.lists(peers, max_size=3))),
        tuple(draw(st.lists(messages(draw(rounds)), max_size=3))),
        draw(edges),
        tuple(draw(st.lists(report, max_size=3))),
        tuple(draw(st.lists(names, max_size=2))),
        names=tuple(draw(st.lists(names, max_size=2))),
    )


def comparable(message: Request | Response) -> dict[str, Any]:
    """Return the fields, with arrays as lists and payloads as bytes."""
    fields = dict(vars(message))
    for key, value in fields.items():
        if isinstance(value, np.ndarray):
            fields[key] = (value.dtype, value.tolist())
    fields["letters"] = tuple(
        replace(letter, payload=sealed["payload"].data)
        if isinstance(sealed := letter.payload, ArrayRecord)
        else letter
        for letter in message.letters
    )
    return fields


def through_protobuf(record: RecordDict) -> RecordDict:
    """Serialise and parse a record, as a deployment does."""
    return RecordDict({key: inflated(value) for key, value in record.items()})


def inflated(value: Any) -> Any:
    children = value.children or {}
    return type(value).inflate(
        value.deflate(), {name: inflated_leaf(child) for name, child in children.items()}
    )


def inflated_leaf(value: Any) -> Any:
    return inflated(value) if hasattr(value, "children") else value


@quick
@given(requests())
def test_an_order_comes_back(request: Request) -> None:
    assert comparable(decode_request(encode_request(request))) == comparable(request)
    assert comparable(
        decode_request(pickle.loads(pickle.dumps(encode_request(request))))
    ) == comparable(request)


@quick
@given(responses(), requests())
def test_a_reply_comes_back(response: Response, request: Request) -> None:
    record = encode_response(response, request)
    decoded = decode_response(record, request)
    assert isinstance(decoded, Response)
    assert comparable(decoded) == comparable(response)
    for report, sent in zip(decoded.reports, response.reports, strict=True):
        types = [(name, type(value)) for name, value in report.metrics.items()]
        assert types == [(name, type(value)) for name, value in sent.metrics.items()]


@quick
@given(requests(), responses())
def test_records_survive_flowers_own_encoding(request: Request, response: Response) -> None:
    record = through_protobuf(encode_request(request))
    assert comparable(decode_request(record)) == comparable(request)
    back = decode_response(through_protobuf(encode_response(response, request)), request)
    assert isinstance(back, Response)
    assert comparable(back) == comparable(response)


def test_a_fault_is_a_line() -> None:
    assert decode_response(encode_fault("OSError: disk full"), Request("start", 0, 0)) == (
        "OSError: disk full"
    )


class Weighed:
    """Payload with a size only; reading its content raises a TypeError."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __len__(self) -> int:
        return len(self._content)


def test_the_relay_forwards_a_record_by_reference_and_never_looks_inside() -> None:
    start, offer = Request("start", 0, 0), PeerMessage("offer", 1, None, 1, 3, b"abc")
    record = encode_response(Response((1,), (offer,)), start)
    array = cast(ArrayRecord, record["letter-0"])["payload"]
    content = array.__dict__["data"]
    array.__dict__["data"] = Weighed(content)
    received = decode_response(record, start)
    assert isinstance(received, Response)
    forwarded = encode_request(Request("update", 1, 1, letters=received.letters))
    assert forwarded["letter-0"] is record["letter-0"]
    array.__dict__["data"] = content
    assert decode_request(forwarded).letters == [offer]


def test_nodes_neither_copy_what_they_seal_nor_what_they_open() -> None:
    payload = bytes(1000)
    letter = PeerMessage("offer", 0, None, 1, 1000, payload)
    record = encode_request(Request("update", 1, 1, letters=(letter,)))
    assert decode_request(record).letters[0].payload is payload


def order_record() -> RecordDict:
    pairs: Edges = np.array([[0, 1], [2, 1]])
    keys = {1: b"for 1", 3: b"for 3"}
    letters = (
        PeerMessage("offer", 2, None, 4, 3, b"abc", keys),
        PeerMessage("answer", 2, 1, 4, 3, b"abc"),
    )
    return encode_request(Request("update", 4, 4, pairs, np.array([True, False]), letters))


def reply_record() -> RecordDict:
    report = Report(4, 0, {"test_loss": 1.0, "test_accuracy": None}, (1.0, 0.0))
    letters = (PeerMessage("offer", 0, None, 5, 3, b"abc"),)
    return encode_response(Response((0,), letters, reports=(report,)), Request("update", 4, 4))


def put(record: str, key: str, value: Any) -> Callable[[RecordDict], None]:
    def change(records: RecordDict) -> None:
        cast(ConfigRecord, records[record])[key] = value

    return change


def put_record(key: str, value: Any) -> Callable[[RecordDict], None]:
    return lambda records: records.__setitem__(key, value)


def drop(record: str, key: str) -> Callable[[RecordDict], None]:
    def change(records: RecordDict) -> None:
        del cast(ConfigRecord, records[record])[key]

    return change


def payload(stype: str) -> ArrayRecord:
    return ArrayRecord({"payload": Array("uint8", (3,), stype, b"abc")})


BROKEN_LETTERS = [
    (put_record("letter-9", payload("coterie.payload")), "payloads for"),
    (lambda records: records.pop("letter-0"), "payloads for"),
    (put_record("letter-0", ConfigRecord()), "letter-0 is ConfigRecord"),
    (put_record("letter-0", payload("numpy.ndarray")), "letter-0: must be one coterie"),
    (put_record("letter-0", ArrayRecord()), "letter-0: must be one coterie"),
]
BROKEN_ORDERS = [
    *BROKEN_LETTERS,
    (lambda records: records.pop("request"), "no request"),
    (put_record("request", MetricRecord()), "request is MetricRecord"),
    (put("request", "stage", "explode"), "'explode' is not one of preflight, start, answer"),
    (put("request", "stage", 3), "stage is int"),
    (put("request", "round", -1), "round: -1 is negative"),
    (put("request", "round", True), "round is bool"),
    (put("request", "round", 4.0), "round is float"),
    (put("request", "last", 5), "stage update cannot span rounds 4 to 5"),
    (put("request", "last", 3), "cannot span rounds 4 to 3"),
    (put("request", "committed", -1), "committed: -1 is negative"),
    (put("request", "committed", 5), "committed: 5 in a request of round 4"),
    (put("request", "edges", bytes(15)), "edges: 15 bytes"),
    (put("request", "edges", bytes(24)), "edges: not pairs"),
    (put("request", "edges", np.array([0, -1]).tobytes()), "edges: not pairs"),
    (put("request", "edges", [0, 1]), "edges is list"),
    (put("request", "asked", bytes(1)), "asked: must be 2 values"),
    (put("request", "asked", bytes([0, 2])), "asked: must be 2 values"),
    (put("request", "letter-kinds", ["offer"]), "headers"),
    (put("request", "letter-kinds", ["offer", "secret"]), "'secret' is not one of offer, answer"),
    (put("request", "letter-kinds", ["answer", "answer"]), "answer to all"),
    (put("request", "letter-kinds", ["offer", "offer"]), "offer to one peer"),
    (put("request", "letter-senders", [0, -1]), "letter-senders: -1 is negative"),
    (put("request", "letter-recipients", [-1, -2]), "letter-recipients: -2"),
    (put("request", "letter-rounds", [4, 3]), "a letter of round 3 in a request of round 4"),
    (put("request", "letter-nbytes", [3, -3]), "letter-nbytes: -3"),
    (put("request", "letter-nbytes", [3, 4]), "letter-1: 3 bytes that claim to hold 4"),
    (put("request", "letter-nbytes", 3), "letter-nbytes is int"),
    (put("request", "letter-nbytes", ["3", "3"]), "letter-nbytes is not a list of int"),
    (put("request", "key-letters", [0, 2]), "key-letters: 2 is not the index of one of 2 letters"),
    (put("request", "key-letters", [0]), "2 keys of 1 letters for 2 peers"),
    (put("request", "key-letters", [0, -1]), "key-letters: -1 is negative"),
    (put("request", "key-peers", [1, 1]), "letter-0: two keys for peer 1"),
    (put("request", "key-peers", [1, -1]), "key-peers: -1 is negative"),
    (put("request", "key-bytes", [b"for 1"]), "1 keys of 2 letters for 2 peers"),
    (put("request", "key-bytes", ["1", "3"]), "key-bytes is not a list of bytes"),
    (put("request", "key-bytes", [b"1", bytes(5000)]), "letter-.: a key of more than 4096 bytes"),
    *((drop("request", key), f"no {key}") for key in cast(ConfigRecord, order_record()["request"])),
]
BROKEN_REPLIES = [
    *BROKEN_LETTERS,
    (lambda records: records.pop("response"), "no response"),
    (lambda records: records.pop("metrics"), "no metrics|payloads for"),
    (put("response", "stage", "start"), "a response to .*start"),
    (put("response", "round", 3), "a response to .*3"),
    (put("response", "wants", bytes(8)), "wants: not pairs"),
    (put("response", "peers", [-1]), "peers: -1 is negative"),
    (put("response", "peers", ["0"]), "peers is not a list of int"),
    (put("response", "refused", [1]), "refused is not a list of str"),
    (put("response", "report-peers", [0, 1]), "1 reports of 2 peers"),
    (put("response", "report-rounds", [-1]), "report-rounds: -1"),
    (put("response", "report-weights", bytes(7)), "report-weights: 7 bytes"),
    (put("response", "report-widths", [1, 1]), "1 reports of 1 peers"),
    (put("response", "report-widths", [-1]), "report-widths: -1"),
    (put("response", "report-columns", bytes(72)), "1 reports of 1 peers"),
    (put("response", "report-metrics", ["0.test_loss", "1.test_loss"]), "metrics: 1.test_loss"),
    (put("response", "report-metrics", ["0.test_loss", "test_loss"]), "metrics: test_loss"),
    (put("response", "report-metrics", ["0.test_loss", "0."]), "metrics: 0. is"),
    (put("response", "report-metrics", ["0.test_loss", "-1.x"]), "metrics: -1.x"),
    (put("response", "report-metrics", ["0.test_loss", 5000 * "9" + ".x"]), "metrics: 9{80} is"),
    (put("metrics", "0.test_loss", [1.0]), "metrics: 0.test_loss"),
    (put("metrics", "0.extra", 1.0), "metrics: 1 not in report-metrics"),
    *(
        (drop("response", key), f"no {key}")
        for key in cast(ConfigRecord, reply_record()["response"])
    ),
]


@pytest.mark.parametrize(("change", "why"), BROKEN_ORDERS)
def test_a_broken_order_is_refused(change: Callable[[RecordDict], None], why: str) -> None:
    record = order_record()
    change(record)
    with pytest.raises(WireError, match=why):
        decode_request(record)


@pytest.mark.parametrize(("change", "why"), BROKEN_REPLIES)
def test_a_broken_reply_is_refused(change: Callable[[RecordDict], None], why: str) -> None:
    record = reply_record()
    change(record)
    with pytest.raises(WireError, match=why):
        decode_response(record, Request("update", 4, 4))


def test_weights_that_do_not_divide_among_the_reports_are_refused() -> None:
    report = Report(4, 0, {}, (1.0,))
    record = encode_response(Response((0,), reports=(report, report)), Request("update", 4, 4))
    put("response", "report-weights", bytes(24))(record)
    with pytest.raises(WireError, match="3 weights"):
        decode_response(record, Request("update", 4, 4))


def test_an_order_of_many_edges_is_small() -> None:
    pairs = np.argwhere(~np.eye(100, dtype=bool))
    request = Request("update", 1, 1, pairs, np.zeros(len(pairs), dtype=np.bool_))
    assert len(encode_request(request)["request"].deflate()) < 17 * len(pairs) + 500
