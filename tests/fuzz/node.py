"""A hostile party of the drill: its own code, with what it sends forged on the way out.

Every Python process of its executor runs `install`. The file that HOSTILE names says in which
manner it lies: "replies" (each is one that no relay can use), "letters" (each letter is altered,
the rest is honest), "bombs" (each letter, a node's or one that the relay forwards, is a chunk that
is named 20,000 times), or not at all; a line for each lie is appended to `<file>.forged`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from flwr.clientapp import ClientApp
from flwr.superlink.grid import HttpGrid

START = "from tests.fuzz.node import install\ninstall()\n"
"""Content of a `sitecustomize.py` that makes an executor hostile."""
_CHUNK, _TIMES = 5 * 2**20, 20_000


def install() -> None:
    """Let every ClientApp and every relay of this process lie."""
    honest, pushed = ClientApp.__call__, HttpGrid.push_messages

    def lying(app: ClientApp, message: Message, context: Context) -> Message:
        reply = honest(app, message, context)
        manner = Path(os.environ["HOSTILE"])
        forge = {"replies": _unusable, "letters": _altered, "bombs": _inflating}.get(
            manner.read_text()
        )
        if forge is None or reply.has_error():
            return reply
        record = forge(message.content, reply.content, int(context.run_config["peers"]))
        with manner.with_suffix(".forged").open("a") as file:
            file.write(f"{manner.read_text()}\n")
        return Message(record, reply_to=message)

    def forwarding(grid: HttpGrid, messages: Iterable[Message]) -> Iterable[str]:
        manner, messages = Path(os.environ["HOSTILE"]), list(messages)
        full = [message for message in messages if message.content.array_records]
        if full and manner.read_text() == "bombs":  # one node's
            for name in full[0].content.array_records:
                full[0].content[name] = bomb()
            with manner.with_suffix(".forged").open("a") as file:
                file.write("bombs\n")
        return pushed(grid, messages)

    ClientApp.__call__ = lying  # type: ignore[method-assign,assignment]
    HttpGrid.push_messages = forwarding  # type: ignore[method-assign,assignment]


def bomb(size: int = _CHUNK, times: int = _TIMES) -> ArrayRecord:
    """Return a letter of one chunk that its reader joins many times."""
    chunk = ArrayChunk(memoryview(os.urandom(size)))
    record = ArrayRecord({"payload": Array("uint8", (size * times,), "coterie.payload", b"")})
    record["payload"].__dict__["_chunks"] = [(chunk.object_id, chunk)] * times
    return record


# The app that Flower has brought is imported first by the ClientApp, hence these imports inside.


def _unusable(asked: RecordDict, reply: RecordDict, peers: int) -> RecordDict:
    """A forged reply by which the node takes no part, or the part of another."""
    from coterie.strategies.flower.records import decode_request, decode_response
    from coterie.strategies.relay.vetting import fault_of
    from tests.fuzz.forging import forged

    request, g = decode_request(asked), random.Random()
    response = decode_response(reply, request)
    if isinstance(response, str):
        return reply
    while True:
        record = forged(response, request, peers, g)
        try:
            decoded = decode_response(record, request)
        except Exception:
            return record
        if isinstance(decoded, str) or decoded.peers != response.peers:
            return record
        if fault_of(decoded, request, response.peers, peers):
            return record


def _inflating(asked: RecordDict, reply: RecordDict, peers: int) -> RecordDict:
    """The reply with a bomb in place of each letter, of the size that it claims."""
    for name in reply.array_records:
        reply[name] = bomb()
    header = reply.config_records.get("response", ConfigRecord())
    if "letter-nbytes" in header:
        header["letter-nbytes"] = [_CHUNK * _TIMES] * len(reply.array_records)
    return reply


def _altered(asked: RecordDict, reply: RecordDict, peers: int) -> RecordDict:
    """The reply with each of its letters altered so that no recipient may open it."""
    from coterie.strategies.flower.records import decode_request, decode_response, encode_response

    request, g = decode_request(asked), random.Random()
    response = decode_response(reply, request)
    if isinstance(response, str):
        return reply
    letters = []
    for letter in response.letters:
        assert isinstance(letter.payload, ArrayRecord)
        payload = letter.payload["payload"].data
        match g.choice(("flip", "other", "keys")):
            case "flip":
                k = g.randrange(len(payload))
                payload = payload[:k] + bytes([payload[k] ^ 1]) + payload[k + 1 :]
            case "other":
                payload = g.randbytes(len(payload))
            case "keys":
                keys = dict.fromkeys(letter.keys, g.choice([b"", g.randbytes(1232)]))
                letter = replace(letter, keys=keys)
        array = Array("uint8", (len(payload),), "coterie.payload", payload)
        letters.append(replace(letter, payload=ArrayRecord({"payload": array})))
    return encode_response(replace(response, letters=tuple(letters)), request)
