"""Replies whose letters stay in the SuperLink's object store.

Flower splits an array into chunks of 5 MB, objects named by their SHA-256, and stores an object
once for all messages that contain it. The relay forwards letters and never reads them, so it does
not hold them either: it pulls a reply chunk by chunk, which shows that the letter has arrived and
how large it is, and keeps the names of the chunks. A request with these chunks finds them in the
store. Flower joins an array's chunks as often as the array names them, so a letter is its own
chunks, each once. A version of Flower without the names of `private` has no such replies.
"""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

from flwr.app import Array, Message

from coterie.strategies.errors import WireError
from coterie.strategies.flower import private

if TYPE_CHECKING:
    from flwr.serverapp import Grid

_ARRAY, _CHUNK = "Array", "ArrayChunk"
_NAME = 64
"""Characters of an object's name."""
_HEADS = 2**24
"""Maximum bytes of a reply besides its chunks: the names of all objects, and those not chunks."""
_DIVIDER = b"\0"
"""Between head and body of an object."""


class StoredChunk(private.InflatableObject):
    """Chunk of an array in the SuperLink's object store: its name, and its size in bytes."""

    def __init__(self, name: str, size: int) -> None:
        self._name, self.size = name, size

    @property
    def object_id(self) -> str:
        return self._name

    @property
    def data(self) -> memoryview:
        """Name of the chunk, which Flower joins in place of the bytes."""
        return memoryview(self._name.encode())

    def deflate(self) -> bytes:
        """Raise an error: Flower asks for the bytes of a chunk that the store does not have."""
        raise RuntimeError("the SuperLink has lost a letter of this round: resume the run")


def cut(array: Array) -> None:
    """Cut an array into chunks of different lengths, so that no two are equal, if Flower can."""
    if not obstacle():
        _cut(array)


def _cut(array: Array) -> None:
    data, start = memoryview(array.data), 0
    chunks: list[tuple[str, Any]] = []
    while start < len(data):
        size = vars(private.arrays)[private.CHUNK_SIZE] - len(chunks)
        chunk = private.ArrayChunk(data[start : start + size])
        chunks.append((chunk.object_id, chunk))
        start += size
    array.__dict__[private.CHUNKS] = chunks


@cache
def obstacle() -> str:
    """Return why letters cannot stay in the store with this version of Flower, or an empty text."""
    # Names may be there and mean something else, so an array is cut, encoded and read.
    if private.MISSING:
        return private.MISSING
    try:
        whole, array = (Array("uint8", (2,), "", data) for data in (b"ab", b""))
        _cut(whole)
        array.__dict__[private.CHUNKS] = whole.__dict__[private.CHUNKS]
        content, name = array.deflate(), array.object_id
        kind, names, _ = private.head_of(content)
        chunks: dict[str, Any] = {each: StoredChunk(each, 2) for each in names}
        _check_chunks(content[content.index(_DIVIDER) + 1 :], names, chunks)
        read = vars(private.inflate(name, {name: content}, objects=chunks))["data"]
        return "" if (kind, read) == (_ARRAY, names[0].encode()) else "arrays have changed"
    except Exception as error:
        return f"arrays have changed: {type(error).__name__}: {error}"


def size_of(array: Array) -> int:
    """Return the size of an array in bytes, without hashing its data."""
    chunks = [chunk for _, chunk in array.__dict__.get(private.CHUNKS, ())]
    return len(array.data) + sum(each.size for each in chunks if isinstance(each, StoredChunk))


@dataclass
class _Arrival:
    """Reply of which a part has arrived."""

    name: str  # of the reply's message
    missing: list[str]  # names of the objects that have not arrived, the next one last
    room: int  # bytes that may still arrive, except in chunks
    heads: dict[str, bytes] = field(default_factory=dict)  # objects that arrived, except chunks
    chunks: dict[str, StoredChunk] = field(default_factory=dict)  # chunks that arrived


class _Reply:
    """Owner of the objects of a reply; they are deleted after its last array."""


class StoredReplies:
    """Receiver of a deployment's replies, in the store until all their letters are dropped."""

    def __init__(self, grid: Grid) -> None:
        self._replies_to, self._object, self._end = private.calls(grid)
        self._arriving: dict[str, _Arrival] = {}  # by request
        self._dropped: list[str] = []

    def pull(self, requests: Collection[str]) -> dict[str, Message | str]:
        """Return complete replies, or why they cannot be read; never wait for a sending node."""
        self._look(requests)
        result: dict[str, Message | str] = {}
        for request in [request for request in self._arriving if request in requests]:
            try:
                if (message := self._advance(self._arriving[request])) is None:
                    continue
                result[request] = message
            except Exception as error:  # the objects are the node's
                self._dropped.append(self._arriving[request].name)
                result[request] = f"not a response: {type(error).__name__}: {error}"
            del self._arriving[request]
        return result

    def discard(self, requests: Collection[str]) -> set[str]:
        """Delete the replies to some requests, also arriving ones; return their requests."""
        # The node that is sending such a reply stops at the next chunk.
        self._look(requests)
        late = self._arriving.keys() & set(requests)
        self._dropped += [self._arriving.pop(request).name for request in late]
        self._delete()
        return late

    def _look(self, requests: Collection[str]) -> None:
        """Ask for new replies; the SuperLink names each one once."""
        self._delete()
        unknown = set(requests) - self._arriving.keys()
        if not unknown:
            return
        response = self._replies_to(unknown)
        for message, tree in zip(
            response.messages_list, response.message_object_trees, strict=True
        ):
            names = dict.fromkeys(node.object_id for node in private.objects_of(tree))
            room = _HEADS - _NAME * len(names)
            arrival = _Arrival(tree.object_id, list(names)[::-1], room)
            self._arriving[message.metadata.reply_to_message_id] = arrival

    def _advance(self, arrival: _Arrival) -> Message | None:
        """Pull the objects that have arrived since; return the message if none is missing."""
        while arrival.missing:
            name = arrival.missing[-1]
            response = self._object(name)
            if not response.object_found:
                raise ConnectionError("the node stopped sending it")
            if not response.object_available:
                return None
            content = response.object_content
            kind, children, _ = private.head_of(content)
            body = content.index(_DIVIDER) + 1
            if kind == _CHUNK:
                arrival.chunks[name] = StoredChunk(name, len(content) - body)
            else:
                arrival.room -= len(content)
                if arrival.room < 0:
                    raise WireError(f"more than {_HEADS} bytes besides the chunks of letters")
                if kind == _ARRAY:
                    _check_chunks(content[body:], children, arrival.chunks)
                arrival.heads[name] = content
            arrival.missing.pop()
            gc.collect(0)  # Flower's client leaves each chunk in a cycle of references
        chunks: dict[str, Any] = {**arrival.chunks}
        message = private.inflate(arrival.name, arrival.heads, objects=chunks)
        assert isinstance(message, Message)
        message.metadata.__dict__[private.MESSAGE_ID] = arrival.name
        reply = _Reply()
        weakref.finalize(reply, self._dropped.append, arrival.name)
        for array in _arrays(message):
            names = bytes(array.data).decode()
            array.data = b""
            pieces = [names[k : k + _NAME] for k in range(0, len(names), _NAME)]
            array.__dict__[private.CHUNKS] = [(piece, chunks[piece]) for piece in pieces]
            array.__dict__["_reply"] = reply
        return message

    def _delete(self) -> None:
        """Delete the replies of which nothing is needed any more."""
        while self._dropped:
            self._end(self._dropped.pop())


def _check_chunks(body: bytes, children: Sequence[str], chunks: Collection[str]) -> None:
    """Refuse an array that names a chunk twice, or anything else than chunks that have arrived."""
    order, names = json.loads(body)["arraychunk_ids"], set(children)
    if order != [*range(len(names))] or len(names) < len(children) or not names.issubset(chunks):
        raise WireError("an array that names a chunk twice, or what is not a chunk")


def _arrays(message: Message) -> Iterator[Array]:
    if message.has_content():
        for record in message.content.array_records.values():
            yield from record.values()
