"""Well-sealed letters of a trusted peer in every format, broken: `python -m tests.fuzz.formats`.

Three nodes play a round of FedAvg on a quadratic problem, for each scheme of letters, operator and
precision. The offers of peer 1 for round 2 are then changed in each part (kind, version, signed
digest, header, data), sealed as peer 1 seals, and brought to node 0 together with the honest offer
of peer 2. Counted are crashes (an exception that leaves the node) and losses (the node's state
differs from that without peer 1, although the letter was refused). The operator "low-rank" sends
vectors in full: `tests.attacks.test_letters` has its matrices.
"""

from __future__ import annotations

import random
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from coterie.app.config.config import Config
from coterie.app.config.digest import config_digest_of
from coterie.app.institution.node import simulated_node
from coterie.app.institution.security.seal import Scope, seal
from coterie.app.institution.security.trust import read_private, read_trust
from coterie.app.node.node import Node
from coterie.app.wire.operators import OPERATORS
from coterie.strategies.protocol import PeerMessage, Request, Response
from tests.encoded import Encoded
from tests.problems import write_quadratic

PEERS, D = 3, 2000
PRECISIONS = ("full", "float16", "bfloat16", "int8", "int4")
FORMATS = [("full", "", precision) for precision in PRECISIONS] + [
    ("increments", operator, precision) for operator in OPERATORS for precision in PRECISIONS
]
"""Scheme, operator and precision of letters."""
STAMP = struct.Struct("<cI32s")
"""Kind, version and signed digest before the body of a letter of increments."""
_STAMPED = STAMP.size
VERSIONS = (0, 1, 2, 3, 2**31, 2**32 - 1)
_EDGES = np.array([(s, r) for r in range(PEERS) for s in range(PEERS) if s != r], dtype=np.int64)


def broken(body: bytes, rng: random.Random) -> Iterator[bytes]:
    """Yield a payload of safetensors with each of its parts changed."""
    size = 8 + int.from_bytes(body[:8], "little")
    header, data = body[8:size], body[size:]
    yield from (b"", body[:7], body[:size], body[:-1], body + b"\0", bytes(len(body)))
    yield rng.randbytes(8) + header + data
    yield (8).to_bytes(8, "little") + b"[[[[[[[[" + data
    for at in range(0, len(header), 3):  # names, types, shapes and offsets
        changed = header[:at] + bytes([rng.randrange(32, 127)]) + header[at + 1 :]
        yield body[:8] + changed + data
    for name in (b"F64", b"F32", b"BOOL", b"I64", b"F16", b"I8", b"U8"):
        for other in (b"F64", b"U8", b"I8", b"F16"):
            yield body[:8] + header.replace(name, other.ljust(len(name))) + data
    for _ in range(10):
        yield body[:size] + rng.randbytes(len(data))
    yield save({"x": torch.zeros(1)})


def stamped(payload: bytes, rng: random.Random) -> Iterator[bytes]:
    """Yield a letter of increments with each part of its stamp changed."""
    kind, version, signed = STAMP.unpack(payload[: STAMP.size])
    body = payload[STAMP.size :]
    for other in (b"f", b"k", b"i", b"x"):
        for of in VERSIONS:
            if (other, of) != (kind, version):
                yield STAMP.pack(other, of, signed) + body
    yield from (payload[:size] for size in range(0, STAMP.size + 1, 5))
    yield STAMP.pack(kind, version, rng.randbytes(32)) + body


class Target:
    """Three nodes after a round with letters in a format, in `directory`; node 0 is attacked."""

    def __init__(self, directory: Path, scheme: str, operator: str, precision: str) -> None:
        centre = np.random.default_rng(0).standard_normal((PEERS, D))
        keys: dict[str, Any] = {
            **write_quadratic(directory / "p.json", np.ones((PEERS, D)), centre, np.zeros(D)),
            "method": "fedavg", "num-server-rounds": 9, "payload": precision, "sealing": True,
        }  # fmt: skip
        if scheme == "increments":
            keys |= {"letters.scheme": scheme, "letters.operator": operator}
        config, self._run = Config.from_flat(keys), directory / "run"
        nodes = [simulated_node(config, [peer], self._run) for peer in range(PEERS)]
        self._node = nodes[0]
        offers = [handle(node, Request("start", 0, 0, attempt="a")).letters[0] for node in nodes]
        second = [self._update(node, 1, offers).letters[0] for node in nodes]
        self._honest = second[2]
        self._plain = next(iter(nodes[1]._cohort.offer_letters(2)))
        known = read_trust(self._run / "keys" / "trust.toml")
        self._readers = {peer: entry.keys for peer, entry in known.items() if peer != 1}
        self._keys = read_private(self._run / "keys" / "peer-0001.key")
        self._scope = Scope("run", config_digest_of(config), "a")
        assert isinstance(self._plain.payload, bytes)
        self.payload = self._plain.payload
        self.alone, refused = self.carried_out(b"")
        state, none = self.carried_out(self.payload)
        assert (refused, none) == (1, 0)
        assert state != self.alone, "the letter as it was has to be accepted"

    def _update(self, node: Node, t: int, letters: Sequence[PeerMessage]) -> Response:
        """Let a node play a round with the letters of the others."""
        edges = _EDGES[_EDGES[:, 1] == node.peers[0]]
        foreign = tuple(letter for letter in letters if letter.sender != node.peers[0])
        asked = np.zeros(len(edges), dtype=np.bool_)
        return handle(node, Request("update", t, t, edges, asked, foreign, t - 1, attempt="a"))

    def carried_out(self, payload: bytes) -> tuple[bytes, int]:
        """Let node 0 play round 2 with a payload of peer 1; return its state and the refusals."""
        letter = replace(self._plain, payload=payload, nbytes=len(payload))
        sealed, _ = seal(letter, self._scope, self._keys, self._readers, b"")
        response = self._update(self._node, 2, [sealed, self._honest])
        state = self._run / "nodes" / "peer-0000" / "00000002-0.state"
        return state.read_bytes(), len(response.refused)


def handle(node: Node, request: Request) -> Response:
    """Let a node handle a request behind Flower's records."""
    return Encoded(node).handle(request)


def attack(target: Target, seed: int, cases: int | None = None) -> Counter[str]:
    """Bring broken letters, all or some of them; "crash" and "lost" have to be zero."""
    rng, counts = random.Random(seed), Counter[str](crash=0, lost=0)
    stamp, body = target.payload[:_STAMPED], target.payload[_STAMPED:]
    if body[8:9] == b"{":  # a letter of increments
        letters = [*stamped(target.payload, rng), *(stamp + each for each in broken(body, rng))]
    else:
        letters = [*broken(target.payload, rng)]
    for payload in letters if cases is None else rng.sample(letters, cases):
        try:
            state, refused = target.carried_out(payload)
        except Exception as error:  # what this is here to find
            print(f"seed {seed}: {type(error).__name__}: {error}: {payload!r}")
            counts["crash"] += 1
            continue
        counts["refused" if refused else "of the layout"] += 1
        counts["lost"] += bool(refused and state != target.alone)
    return counts


def main(seed: int) -> None:
    """Attack every format, print the counts, and fail if anything got through."""
    start, total = time.perf_counter(), Counter[str]()
    for form in FORMATS:
        with tempfile.TemporaryDirectory() as directory:
            counts = attack(Target(Path(directory), *form), seed)
        print(*form, dict(counts))
        total += counts
    print(f"{dict(total)} in {time.perf_counter() - start:.0f} s")
    if total["crash"] or total["lost"]:
        raise SystemExit("something got through")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
