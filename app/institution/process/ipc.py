"""Send Flower records over a local socket: JSON, then the raw bytes it refers to."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

_LENGTH = 8
_MOST = 2**30  # bytes in one call: Linux takes no more than 2 GiB
_RECORDS = {kind.__name__: kind for kind in (RecordDict, ArrayRecord, ConfigRecord, MetricRecord)}


def send(connection: socket.socket, about: Mapping[str, Any], record: RecordDict) -> None:
    """Send a JSON object and a record."""
    raw: list[bytes] = []

    def encoded(value: Any) -> dict[str, Any]:
        """Return kind and content of what JSON lacks; of bytes the position in `raw`."""
        kind = type(value).__name__
        if isinstance(value, bytes):
            raw.append(value)
            return {kind: len(raw) - 1}
        if isinstance(value, Array):
            return {kind: [value.dtype, value.shape, value.stype, value.data]}
        return {kind: [*value.items()]}

    content = json.dumps(record, default=encoded)
    header = json.dumps({"about": about, "record": content, "sizes": [*map(len, raw)]}).encode()
    connection.sendall(len(header).to_bytes(_LENGTH, "little") + header)
    for piece in filter(None, raw):  # the other end may have gone after the last byte
        connection.sendall(piece)


def receive(connection: socket.socket) -> tuple[dict[str, Any], RecordDict]:
    """Receive a message of `send`; ConnectionError if the other end closed the connection."""
    size = int.from_bytes(_exactly(connection, _LENGTH), "little")
    header = json.loads(_exactly(connection, size))
    raw = [_exactly(connection, size) for size in header["sizes"]]

    def decoded(value: dict[str, Any]) -> Any:
        ((kind, content),) = value.items()
        if kind == "bytes":
            return raw[content]
        if kind == "Array":
            dtype, shape, stype, data = content
            return Array(dtype, tuple(shape), stype, data)
        return _RECORDS[kind](dict(content))

    return header["about"], json.loads(header["record"], object_hook=decoded)


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
