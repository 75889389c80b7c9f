"""Send Flower records over a local socket: a line of JSON, then the raw bytes it refers to."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

_LENGTH = 8
_MOST = 2**30  # bytes in one call: Linux takes no more than 2 GiB


def send(connection: socket.socket, about: Mapping[str, Any], record: RecordDict) -> None:
    """Send a JSON object and a record."""
    raw: list[bytes] = []
    entries = {name: _flat(entry, raw) for name, entry in record.items()}
    sizes = [len(piece) for piece in raw]
    header = json.dumps({"about": about, "record": entries, "sizes": sizes}).encode()
    connection.sendall(len(header).to_bytes(_LENGTH, "little") + header)
    for piece in filter(None, raw):  # the other end may have gone after the last byte
        connection.sendall(piece)


def receive(connection: socket.socket) -> tuple[dict[str, Any], RecordDict]:
    """Receive a message of `send`; ConnectionError if the other end closed the connection."""
    size = int.from_bytes(_exactly(connection, _LENGTH), "little")
    header = json.loads(_exactly(connection, size))
    raw = [_exactly(connection, size) for size in header["sizes"]]
    record = RecordDict({name: _record(entry, raw) for name, entry in header["record"].items()})
    return header["about"], record


def _exactly(connection: socket.socket, size: int) -> bytes:
    """Read exactly `size` bytes, without a copy if one system call returns all of them."""
    pieces = []
    while size:
        piece = connection.recv(min(size, _MOST), socket.MSG_WAITALL)
        if not piece:
            raise ConnectionError("the connection was closed")
        pieces.append(piece)
        size -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _flat(entry: object, raw: list[bytes]) -> dict[str, Any]:
    """Convert a record to JSON; bytes are appended to `raw` and referred to by position."""
    match entry:
        case ArrayRecord():
            arrays = [
                [name, each.dtype, list(each.shape), each.stype, _put(each.data, raw)]
                for name, each in entry.items()
            ]
            return {"arrays": arrays}
        case MetricRecord():
            return {"metrics": dict(entry)}
        case ConfigRecord():
            values = {name: _value(value, raw) for name, value in entry.items()}
            return {"config": values}
    raise TypeError(f"{type(entry).__name__} is not a record")


def _value(value: Any, raw: list[bytes]) -> Any:
    if isinstance(value, bytes):
        return {"bytes": _put(value, raw)}
    if isinstance(value, list) and value and isinstance(value[0], bytes):
        return {"list": [_put(each, raw) for each in value]}
    return value


def _put(piece: bytes, raw: list[bytes]) -> int:
    raw.append(piece)
    return len(raw) - 1


def _record(entry: Mapping[str, Any], raw: list[bytes]) -> Any:
    if "arrays" in entry:
        return ArrayRecord(
            {
                name: Array(dtype, tuple(shape), stype, raw[at])
                for name, dtype, shape, stype, at in entry["arrays"]
            }
        )
    if "metrics" in entry:
        return MetricRecord(dict(entry["metrics"]))
    return ConfigRecord({name: _read(value, raw) for name, value in entry["config"].items()})


def _read(value: Any, raw: list[bytes]) -> Any:
    if isinstance(value, dict):
        return raw[value["bytes"]] if "bytes" in value else [raw[at] for at in value["list"]]
    return value
