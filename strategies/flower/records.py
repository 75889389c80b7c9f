"""Encoding of requests and responses as Flower records; only this module knows record keys.

A `RecordDict` holds a header (`ConfigRecord` "request" or "response"), in a response the numbers of
the reports (`MetricRecord` "metrics", keys "<report>.<metric>", without None), and an `ArrayRecord`
"letter-<k>" per letter. Only nodes create and open payloads: on the relay `PeerMessage.payload` is
the `ArrayRecord` itself, forwarded by reference. The keys of sealed letters are in the header, so
that the relay can send each recipient its key without copying the payload. A node that failed
answers with a "fault" instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from coterie.strategies.errors import WireError
from coterie.strategies.flower import fields
from coterie.strategies.flower.stored import size_of
from coterie.strategies.protocol import Edges, Kind, PeerMessage, Report, Request, Response, Stage

_PAYLOAD = "payload"
_STYPE = "coterie.payload"
_OVERHEAD = 2**16
"""Maximum bytes of a letter besides its tensors: names, shapes and seal."""
_KEY = 4096
"""Maximum bytes of a sealed letter's key for one peer."""
_ALL = -1
"""Encoding of `recipient` = None, since the column holds integers."""


def encode_request(request: Request) -> RecordDict:
    """Encode a request on the relay."""
    header = ConfigRecord(
        {
            "stage": request.stage,
            "round": request.round,
            "last": request.last,
            "committed": request.committed,
            "attempt": request.attempt,
            "clock": request.clock,
            "keyframes-wanted": list(request.keyframes_wanted),
            "samples": fields.packed(request.samples, "<i8"),
            "edges": fields.packed(request.edges, "<i8"),
            "asked": fields.packed(request.asked, "u1"),
        }
    )
    return _posted("request", header, request.letters)


def decode_request(record: RecordDict) -> Request:
    """Decode a request on a node; payloads become bytes, letters a list; WireError: it is none."""
    header = fields.require(record, "request", ConfigRecord)
    stage: Stage = fields.one_of(fields.require(header, "stage", str), Stage)
    t, last = fields.count(header, "round"), fields.count(header, "last")
    if last < t or (stage != "local-rounds" and last != t):
        raise WireError(f"stage {stage} cannot span rounds {t} to {last}")
    edges, asked = _edges(header, "edges"), fields.unpacked(header, "asked", "u1")
    if asked.shape != (len(edges),) or (asked > 1).any():
        raise WireError(f"asked: must be {len(edges)} values of 0 or 1")
    letters = [*_letters(record, header, 1, opened=True)]
    for letter in letters:
        if letter.round != t and (letter.kind == "answer" or letter.round > t):
            raise WireError(f"a letter of round {letter.round} in a request of round {t}")
    committed = fields.count(header, "committed")
    if committed > t:  # a node would delete states that it needs
        raise WireError(f"committed: {committed} in a request of round {t}")
    return Request(
        stage,
        t,
        last,
        edges,
        asked.astype(np.bool_),
        letters,
        committed,
        fields.require(header, "attempt", str),
        _samples(header),
        fields.require(header, "clock", float),
        tuple(fields.counts(header, "keyframes-wanted")),
    )


def encode_response(response: Response, request: Request) -> RecordDict:
    """Encode a node's response to `request`."""
    metrics = {
        f"{k}.{name}": value
        for k, report in enumerate(response.reports)
        for name, value in report.metrics.items()
    }
    header = ConfigRecord(
        {
            "stage": request.stage,
            "round": request.round,
            "peers": list(response.peers),
            "wants": fields.packed(response.wants, "<i8"),
            "refused": list(response.refused),
            "samples": list(response.samples),
            "names": list(response.names),
            "claims": list(response.claims),
            "checks": [word for check in response.checks for word in check],
            "elapsed": response.elapsed,
            "ready": list(response.ready),
            "backend": response.backend,
            "missing-from": list(response.missing_from),
            "reads": response.reads,
            "restored": [] if response.restored is None else [response.restored],
            "report-rounds": [report.round for report in response.reports],
            "report-peers": [report.peer for report in response.reports],
            "report-widths": [len(report.weights) for report in response.reports],
            "report-weights": fields.packed(
                [weight for report in response.reports for weight in report.weights], "<f8"
            ),
            "report-columns": fields.packed(
                [peer for report in response.reports for peer in report.columns], "<i8"
            ),
            "report-metrics": list(metrics),
        }
    )
    record = _posted("response", header, response.letters)
    record["metrics"] = MetricRecord({k: v for k, v in metrics.items() if v is not None})
    return record


def encode_fault(why: str, *, is_final: bool = False) -> RecordDict:
    """Encode the line that a node sends if it cannot carry out a request."""
    # `is_final`: the same request would fail again, because a user's part raised an error.
    return RecordDict({"fault": ConfigRecord({"why": why, "final": is_final})})


def is_final_fault(record: RecordDict) -> bool:
    """Return True for a fault that the same request would cause again."""
    fault = record.get("fault")
    return isinstance(fault, ConfigRecord) and fault.get("final") is True


def decode_response(record: RecordDict, request: Request) -> Response | str:
    """Decode the response to `request` on the relay, or the reason of a node that failed."""
    # Payloads stay closed. WireError: the record is neither, or answers another request.
    if "fault" in record:
        return fields.require(fields.require(record, "fault", ConfigRecord), "why", str)
    header = fields.require(record, "response", ConfigRecord)
    answers = (fields.require(header, "stage", str), fields.count(header, "round"))
    if answers != (request.stage, request.round):
        raise WireError(f"a response to {answers}, not to {(request.stage, request.round)}")
    return Response(
        tuple(fields.counts(header, "peers")),
        tuple(_letters(record, header, 2, opened=False)),
        _edges(header, "wants"),
        tuple(_reports(record, header)),
        tuple(fields.list_of(header, "refused", str)),
        tuple(fields.counts(header, "samples")),
        tuple(fields.list_of(header, "names", str)),
        next(iter(fields.list_of(header, "restored", int)), None),
        tuple(fields.list_of(header, "claims", bytes)),
        _checks(header),
        fields.require(header, "elapsed", float),
        tuple(fields.counts(header, "ready")),
        fields.require(header, "backend", str),
        tuple(fields.counts(header, "missing-from")),
        fields.count(header, "reads"),
    )


# --- letters ---------------------------------------------------------------------------------


def _posted(name: str, header: ConfigRecord, letters: Sequence[PeerMessage]) -> RecordDict:
    header["letter-kinds"] = [str(letter.kind) for letter in letters]
    header["letter-senders"] = [letter.sender for letter in letters]
    header["letter-recipients"] = [
        _ALL if letter.recipient is None else letter.recipient for letter in letters
    ]
    header["letter-rounds"] = [letter.round for letter in letters]
    header["letter-nbytes"] = [letter.nbytes for letter in letters]
    keys = [(k, peer, key) for k, post in enumerate(letters) for peer, key in post.keys.items()]
    header["key-letters"] = [k for k, _, _ in keys]
    header["key-peers"] = [peer for _, peer, _ in keys]
    header["key-bytes"] = [key for _, _, key in keys]
    record = RecordDict({name: header})
    for k, letter in enumerate(letters):
        record[f"letter-{k}"] = _wrapped(letter.payload)
    return record


def _letters(
    record: RecordDict, header: ConfigRecord, others: int, *, opened: bool
) -> Iterator[PeerMessage]:
    columns: list[list[Any]] = [
        fields.list_of(header, "letter-kinds", str),
        fields.counts(header, "letter-senders"),
        fields.list_of(header, "letter-recipients", int),
        fields.counts(header, "letter-rounds"),
        fields.counts(header, "letter-nbytes"),
    ]
    keys = _keys(header)
    payloads = len(record) - others
    if {len(column) for column in columns} != {payloads}:
        raise WireError(f"{payloads} payloads for {[len(column) for column in columns]} headers")
    if keys and max(keys) >= payloads:
        raise WireError(f"key-letters: {max(keys)} is not the index of one of {payloads} letters")
    for k, (kind, sender, recipient, t, nbytes) in enumerate(zip(*columns, strict=True)):
        if recipient < _ALL:
            raise WireError(f"letter-recipients: {recipient} is not a peer")
        to = None if recipient == _ALL else recipient
        if (fields.one_of(kind, Kind) == "answer") != (to is not None):
            raise WireError(f"letter-{k}: an {kind} to {'all' if to is None else 'one peer'}")
        payload = fields.require(record, f"letter-{k}", ArrayRecord)
        if list(payload) != [_PAYLOAD] or payload[_PAYLOAD].stype != _STYPE:
            raise WireError(f"letter-{k}: must be one {_STYPE} array")
        size = size_of(payload[_PAYLOAD])
        if (payload[_PAYLOAD].dtype, payload[_PAYLOAD].shape) != ("uint8", (size,)):
            raise WireError(f"letter-{k}: {size} bytes that do not add up to its shape")
        if not nbytes <= size <= nbytes + _OVERHEAD:
            raise WireError(f"letter-{k}: {size} bytes that claim to hold {nbytes}")
        if any(len(key) > _KEY for key in keys.get(k, {}).values()):
            raise WireError(f"letter-{k}: a key of more than {_KEY} bytes")
        content = payload[_PAYLOAD].data if opened else payload
        yield PeerMessage(kind, sender, to, t, nbytes, content, keys.get(k, {}))


def _keys(header: ConfigRecord) -> dict[int, dict[int, bytes]]:
    letters, peers = fields.counts(header, "key-letters"), fields.counts(header, "key-peers")
    values = fields.list_of(header, "key-bytes", bytes)
    if not len(letters) == len(peers) == len(values):
        raise WireError(f"{len(values)} keys of {len(letters)} letters for {len(peers)} peers")
    keys: dict[int, dict[int, bytes]] = {}
    for k, peer, key in zip(letters, peers, values, strict=True):
        if peer in keys.setdefault(k, {}):
            raise WireError(f"letter-{k}: two keys for peer {peer}")
        keys[k][peer] = key
    return keys


def _wrapped(payload: object) -> ArrayRecord:
    if isinstance(payload, ArrayRecord):  # forwarded by the relay
        return payload
    assert isinstance(payload, bytes)
    return ArrayRecord({_PAYLOAD: Array("uint8", (len(payload),), _STYPE, payload)})


# --- reports ---------------------------------------------------------------------------------


def _reports(record: RecordDict, header: ConfigRecord) -> Iterator[Report]:
    rounds, peers = fields.counts(header, "report-rounds"), fields.counts(header, "report-peers")
    weights = fields.unpacked(header, "report-weights", "<f8").tolist()
    columns = fields.unpacked(header, "report-columns", "<i8").tolist()
    widths = fields.counts(header, "report-widths")
    if (
        not len(peers) == len(widths) == len(rounds)
        or sum(widths) != len(weights)
        or len(columns) not in (0, len(weights))
    ):
        raise WireError(f"{len(rounds)} reports of {len(peers)} peers and {len(weights)} weights")
    metrics: dict[str, dict[str, float | None]] = {str(k): {} for k in range(len(rounds))}
    values = fields.require(record, "metrics", MetricRecord)
    names = fields.list_of(header, "report-metrics", str)
    if not values.keys() <= set(names):
        raise WireError(f"metrics: {len(values.keys() - set(names))} not in report-metrics")
    for key in names:
        k, _, name = key.partition(".")
        value = values.get(key)
        if k not in metrics or not name or isinstance(value, list):
            raise WireError(f"metrics: {key:.80} is not a number of one of {len(rounds)} reports")
        metrics[k][name] = value
    ends = [*accumulate(widths)]
    for t, peer, numbers, width, end in zip(
        rounds, peers, metrics.values(), widths, ends, strict=True
    ):
        row, about = (tuple(values[end - width : end]) for values in (weights, columns))
        yield Report(t, peer, numbers, row, about)


def _checks(header: ConfigRecord) -> tuple[tuple[str, str], ...]:
    words = fields.list_of(header, "checks", str)
    if len(words) % 2:
        raise WireError(f"checks: {len(words)} words are not pairs")
    return tuple(zip(words[::2], words[1::2], strict=True))


# --- arrays ----------------------------------------------------------------------------------


def _samples(header: ConfigRecord) -> npt.NDArray[np.int64]:
    samples = fields.unpacked(header, "samples", "<i8").astype(np.int64)
    fields.not_negative("samples", samples.tolist())
    return samples


def _edges(header: ConfigRecord, key: str) -> Edges:
    ends = fields.unpacked(header, key, "<i8").astype(np.int64)
    if ends.size % 2 or (ends < 0).any():
        raise WireError(f"{key}: not pairs of peers")
    return ends.reshape(-1, 2)
