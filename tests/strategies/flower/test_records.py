from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from strategies.errors import WireError
from strategies.flower.records import (
    decode_order,
    decode_reply,
    encode_fault,
    encode_order,
    encode_reply,
)
from strategies.protocol import Edges, Envelope, Order, Reply, Report

peers = st.integers(0, 2**31)
rounds = st.integers(0, 2**40)
edges = st.lists(st.tuples(peers, peers), max_size=5).map(
    lambda pairs: np.array(pairs, dtype=np.int64).reshape(-1, 2)
)
names = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), min_size=1)


@st.composite
def envelopes(draw: st.DrawFn, t: int) -> Envelope:
    recipient = draw(st.none() | peers)
    kind = "offer" if recipient is None else "answer"
    keys = draw(st.dictionaries(peers, st.binary(), max_size=3))
    ends = (kind, draw(peers), recipient)
    return Envelope(*ends, t, draw(rounds), draw(st.binary()), keys)  # type: ignore[arg-type]


@st.composite
def orders(draw: st.DrawFn) -> Order:
    stage = draw(st.sampled_from(["start", "answer", "absorb", "rounds"]))
    t, ends = draw(rounds), draw(edges)
    last = t + draw(st.integers(0, 9)) if stage == "rounds" else t
    asked = np.array(
        draw(st.lists(st.booleans(), min_size=len(ends), max_size=len(ends))), np.bool_
    )
    letters = tuple(draw(st.lists(envelopes(t), max_size=3)))
    return Order(stage, t, last, ends, asked, letters, draw(edges), draw(st.integers(0, t)))  # type: ignore[arg-type]


@st.composite
def replies(draw: st.DrawFn) -> Reply:
    n = draw(st.integers(1, 4))
    numbers = st.none() | st.floats(allow_nan=False) | st.integers(-(2**60), 2**60)
    report = st.builds(
        Report,
        rounds,
        peers,
        st.dictionaries(names, numbers, max_size=3),
        st.tuples(*n * [st.floats(allow_nan=False)]),
    )
    return Reply(
        tuple(draw(st.lists(peers, max_size=3))),
        tuple(draw(st.lists(envelopes(draw(rounds)), max_size=3))),
        draw(edges),
        tuple(draw(st.lists(report, max_size=3))),
        tuple(draw(st.lists(names, max_size=2))),
    )


def comparable(message: Order | Reply) -> dict[str, Any]:
    """The fields; arrays as lists, payloads as bytes."""
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
    """What a deployment does to each record."""
    return RecordDict({key: inflated(value) for key, value in record.items()})


def inflated(value: Any) -> Any:
    children = value.children or {}
    return type(value).inflate(
        value.deflate(), {name: inflated_leaf(child) for name, child in children.items()}
    )


def inflated_leaf(value: Any) -> Any:
    return inflated(value) if hasattr(value, "children") else value


@given(orders())
def test_an_order_comes_back(order: Order) -> None:
    assert comparable(decode_order(encode_order(order))) == comparable(order)
    assert comparable(decode_order(pickle.loads(pickle.dumps(encode_order(order))))) == comparable(
        order
    )


@given(replies(), orders())
def test_a_reply_comes_back(reply: Reply, order: Order) -> None:
    record = encode_reply(reply, order)
    decoded = decode_reply(record, order)
    assert isinstance(decoded, Reply)
    assert comparable(decoded) == comparable(reply)
    for report, sent in zip(decoded.reports, reply.reports, strict=True):
        types = [(name, type(value)) for name, value in report.metrics.items()]
        assert types == [(name, type(value)) for name, value in sent.metrics.items()]


@given(orders(), replies())
def test_records_survive_flowers_own_encoding(order: Order, reply: Reply) -> None:
    record = through_protobuf(encode_order(order))
    assert comparable(decode_order(record)) == comparable(order)
    back = decode_reply(through_protobuf(encode_reply(reply, order)), order)
    assert isinstance(back, Reply)
    assert comparable(back) == comparable(reply)


def test_a_fault_is_a_line() -> None:
    assert decode_reply(encode_fault("OSError: disk full"), Order("start", 0, 0)) == (
        "OSError: disk full"
    )


def test_the_relay_forwards_a_record_by_reference_and_never_looks_inside() -> None:
    start, offer = Order("start", 0, 0), Envelope("offer", 1, None, 1, 3, b"abc")
    record = encode_reply(Reply((1,), (offer,)), start)
    array = cast(ArrayRecord, record["letter-0"])["payload"]
    content = array.__dict__.pop("data")  # whoever touches it now raises AttributeError
    received = decode_reply(record, start)
    assert isinstance(received, Reply)
    forwarded = encode_order(Order("absorb", 1, 1, letters=received.letters))
    assert forwarded["letter-0"] is record["letter-0"]
    array.__dict__["data"] = content
    assert decode_order(forwarded).letters == (offer,)


def test_nodes_neither_copy_what_they_seal_nor_what_they_open() -> None:
    payload = bytes(1000)
    letter = Envelope("offer", 0, None, 1, 1000, payload)
    record = encode_order(Order("absorb", 1, 1, letters=(letter,)))
    assert decode_order(record).letters[0].payload is payload


def order_record() -> RecordDict:
    pairs: Edges = np.array([[0, 1], [2, 1]])
    keys = {1: b"for 1", 3: b"for 3"}
    letters = (
        Envelope("offer", 2, None, 4, 3, b"abc", keys),
        Envelope("answer", 2, 1, 4, 3, b"abc"),
    )
    return encode_order(Order("absorb", 4, 4, pairs, np.array([True, False]), letters))


def reply_record() -> RecordDict:
    report = Report(4, 0, {"test_loss": 1.0, "test_accuracy": None}, (1.0, 0.0))
    letters = (Envelope("offer", 0, None, 5, 3, b"abc"),)
    return encode_reply(Reply((0,), letters, reports=(report,)), Order("absorb", 4, 4))


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
    (put_record("letter-0", payload("numpy.ndarray")), "letter-0: not one payload"),
    (put_record("letter-0", ArrayRecord()), "letter-0: not one payload"),
]
BROKEN_ORDERS = [
    *BROKEN_LETTERS,
    (lambda records: records.pop("order"), "no order"),
    (put_record("order", MetricRecord()), "order is MetricRecord"),
    (put("order", "stage", "explode"), "'explode' is none of start, answer"),
    (put("order", "stage", 3), "stage is int"),
    (put("order", "round", -1), "round: -1 is negative"),
    (put("order", "round", True), "round is bool"),
    (put("order", "round", 4.0), "round is float"),
    (put("order", "last", 5), "stage absorb cannot last from round 4 to 5"),
    (put("order", "last", 3), "cannot last from round 4 to 3"),
    (put("order", "committed", -1), "committed: -1 is negative"),
    (put("order", "committed", 5), "committed: 5 in an order of round 4"),
    (put("order", "edges", bytes(15)), "edges: 15 bytes"),
    (put("order", "edges", bytes(24)), "edges: not pairs"),
    (put("order", "edges", np.array([0, -1]).tobytes()), "edges: not pairs"),
    (put("order", "edges", [0, 1]), "edges is list"),
    (put("order", "asked", bytes(1)), "asked: not 2 marks"),
    (put("order", "asked", bytes([0, 2])), "asked: not 2 marks"),
    (put("order", "wants", bytes(8)), "wants: not pairs"),
    (put("order", "letter-kinds", ["offer"]), "headers"),
    (put("order", "letter-kinds", ["offer", "secret"]), "'secret' is none of offer, answer"),
    (put("order", "letter-kinds", ["answer", "answer"]), "answer to nobody"),
    (put("order", "letter-kinds", ["offer", "offer"]), "offer to one peer"),
    (put("order", "letter-senders", [0, -1]), "letter-senders: -1 is negative"),
    (put("order", "letter-recipients", [-1, -2]), "letter-recipients: -2"),
    (put("order", "letter-rounds", [4, 3]), "a letter of round 3 in an order of round 4"),
    (put("order", "letter-nbytes", [3, -3]), "letter-nbytes: -3"),
    (put("order", "letter-nbytes", 3), "letter-nbytes is int"),
    (put("order", "letter-nbytes", ["3", "3"]), "letter-nbytes is not a list of int"),
    (put("order", "key-letters", [0, 2]), "key-letters: 2 is none of 2 letters"),
    (put("order", "key-letters", [0]), "2 keys of 1 letters for 2 peers"),
    (put("order", "key-letters", [0, -1]), "key-letters: -1 is negative"),
    (put("order", "key-peers", [1, 1]), "letter-0: two keys for peer 1"),
    (put("order", "key-peers", [1, -1]), "key-peers: -1 is negative"),
    (put("order", "key-bytes", [b"for 1"]), "1 keys of 2 letters for 2 peers"),
    (put("order", "key-bytes", ["1", "3"]), "key-bytes is not a list of bytes"),
    *((drop("order", key), f"no {key}") for key in cast(ConfigRecord, order_record()["order"])),
]
BROKEN_REPLIES = [
    *BROKEN_LETTERS,
    (lambda records: records.pop("reply"), "no reply"),
    (lambda records: records.pop("metrics"), "no metrics|payloads for"),
    (put("reply", "stage", "start"), "a reply to .*start"),
    (put("reply", "round", 3), "a reply to .*3"),
    (put("reply", "peers", [-1]), "peers: -1 is negative"),
    (put("reply", "peers", ["0"]), "peers is not a list of int"),
    (put("reply", "refused", [1]), "refused is not a list of str"),
    (put("reply", "report-peers", [0, 1]), "1 reports of 2 peers"),
    (put("reply", "report-rounds", [-1]), "report-rounds: -1"),
    (put("reply", "report-weights", bytes(7)), "report-weights: 7 bytes"),
    (put("reply", "report-metrics", ["0.test_loss", "1.test_loss"]), "metrics: 1.test_loss"),
    (put("reply", "report-metrics", ["0.test_loss", "test_loss"]), "metrics: test_loss"),
    (put("reply", "report-metrics", ["0.test_loss", "0."]), "metrics: 0. is"),
    (put("reply", "report-metrics", ["0.test_loss", "-1.x"]), "metrics: -1.x"),
    (put("metrics", "0.test_loss", [1.0]), "metrics: 0.test_loss"),
    (put("metrics", "0.extra", 1.0), "metrics: 0.extra not announced"),
    *((drop("reply", key), f"no {key}") for key in cast(ConfigRecord, reply_record()["reply"])),
]


@pytest.mark.parametrize(("change", "why"), BROKEN_ORDERS)
def test_a_broken_order_is_refused(change: Callable[[RecordDict], None], why: str) -> None:
    record = order_record()
    change(record)
    with pytest.raises(WireError, match=why):
        decode_order(record)


@pytest.mark.parametrize(("change", "why"), BROKEN_REPLIES)
def test_a_broken_reply_is_refused(change: Callable[[RecordDict], None], why: str) -> None:
    record = reply_record()
    change(record)
    with pytest.raises(WireError, match=why):
        decode_reply(record, Order("absorb", 4, 4))


def test_weights_that_do_not_divide_among_the_reports_are_refused() -> None:
    report = Report(4, 0, {}, (1.0,))
    record = encode_reply(Reply((0,), reports=(report, report)), Order("absorb", 4, 4))
    put("reply", "report-weights", bytes(24))(record)
    with pytest.raises(WireError, match="3 weights"):
        decode_reply(record, Order("absorb", 4, 4))


def test_an_order_of_many_edges_is_small() -> None:
    pairs = np.argwhere(~np.eye(100, dtype=bool))
    order = Order("absorb", 1, 1, pairs, np.zeros(len(pairs), dtype=np.bool_))
    assert len(encode_order(order)["order"].deflate()) < 17 * len(pairs) + 500
