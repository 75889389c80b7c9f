"""Malformed and mutated letters against a real node: `python -m tests.fuzz.letters [N]`.

A node of a sealed run (peer 0 of three, CoBo on a quadratic problem) gets requests whose letters
are all bad, over the wire's own encoding: bits flipped, cut, grown, keys exchanged between letters
and recipients, headers rewritten, letters of other rounds, runs, attempts and configurations, of
strangers and of peers it does not trust, plain ones, and well-sealed letters of a trusted peer with
a payload that is none; and requests whose header is broken on top. Counted are crashes (an
exception that is not a refusal) and letters accepted (the peer's state differs from that without
letters).
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ConfigRecord, RecordDict
from safetensors.torch import save

from coterie.app.config.config import Config
from coterie.app.config.digest import config_digest_of
from coterie.app.institution.node import simulated_node
from coterie.app.institution.security.keys import PrivateKeys
from coterie.app.institution.security.seal import Scope, SealError, seal
from coterie.app.institution.security.trust import read_private, read_trust
from coterie.strategies.errors import StateError, WireError
from coterie.strategies.flower.records import decode_request, encode_request
from coterie.strategies.protocol import PeerMessage, Request

PEERS, D = 3, 4
EDGES = np.array([(s, r) for r in range(PEERS) for s in range(PEERS) if s != r], dtype=np.int64)
_MINE = EDGES[(EDGES == 0).any(axis=1)]
_TENSOR = {"offer": "x", "answer": "g"}


def good_payload(kind: str) -> bytes:
    """Return a valid payload of this run."""
    return save({_TENSOR[kind]: torch.arange(D, dtype=torch.float64)})


def bad_payloads(kind: str) -> list[bytes]:
    """Return invalid payloads."""
    name, row = _TENSOR[kind], torch.zeros(D, dtype=torch.float64)
    return [
        b"",
        b"{}" * 40,
        (2**62).to_bytes(8, "little") + b"{}",  # a header that promises too much
        (8).to_bytes(8, "little") + b"[[[[[[[[" + bytes(32),
        save({name: row + torch.nan}),
        save({name: row + torch.inf}),
        save({name: row.float()}),
        save({name: row[None]}),
        save({"y": row}),
        save({name: row, "y": row + 1}),
        save({name: row.repeat(5000)}),
        save({name: row})[:-1],
    ]


class Target:
    """The node under attack, in `directory`."""

    def __init__(self, directory: Path) -> None:
        problem = directory / "problem.json"
        rows: dict[str, Any] = {"curvature": PEERS * [D * [1.0]], "noise": PEERS * [0.0]}
        rows |= {"centre": np.eye(PEERS, D).tolist(), "start": D * [0.0]}
        problem.write_text(json.dumps(rows))
        self.config = Config.from_flat(
            {
                "method": "cobo", "dataset": "quadratic", "quadratic.file": str(problem),
                "peers": PEERS, "num-server-rounds": 9, "cobo.gamma": 0.1, "sealing": True,
            }
        )  # fmt: skip
        self.directory = directory / "run"
        self.node = simulated_node(self.config, [0], self.directory)
        self.node.handle(Request("start", 0, 0, attempt="a"))
        keys = self.directory / "keys"
        self.keys = [read_private(keys / f"peer-{peer:04d}.key") for peer in range(PEERS)]
        self.trust = {peer: entry.keys for peer, entry in read_trust(keys / "trust.toml").items()}
        self.scope = Scope("run", config_digest_of(self.config), "a")
        memory = json.loads((self.directory / "nodes" / "mail-0000.json").read_text())
        self.about = bytes.fromhex(memory["offered"]["1 0"])
        self.unmoved = self.state_after(())
        good = self.state_after([self.write("answer", 1, 1)])
        assert good != self.unmoved, "a letter that is as it should be has to be accepted"

    def write(self, kind: str, sender: int, t: int, **changes: Any) -> PeerMessage:
        """A letter to peer 0 that is as it should be but for `changes`."""
        to = 0 if kind == "answer" else None
        payload = changes.pop("payload", good_payload(kind))
        about = changes.pop("about", self.about if kind == "answer" else b"")
        letter = PeerMessage(kind, sender, to, t, 8 * D, payload)  # type: ignore[arg-type]
        sender_keys: PrivateKeys = changes.pop("own", self.keys[sender])
        scope = replace(self.scope, **changes)
        readers = {peer: keys for peer, keys in self.trust.items() if peer != sender}
        return seal(letter, scope, sender_keys, readers, about)[0]

    def request(self, letters: Any) -> Request:
        """The request to update in round 1 with these letters."""
        asked = np.ones(len(_MINE), dtype=np.bool_)
        return Request("update", 1, 1, _MINE, asked, tuple(letters), attempt="a")

    def state_after(self, letters: Any) -> bytes:
        """Return the state of peer 0 after round 1."""
        return self.carried_out(encode_request(self.request(letters)))[0]

    def carried_out(self, record: RecordDict) -> tuple[bytes, int]:
        """Let the node handle a record; return its state and the number of refused letters."""
        response = self.node.handle(decode_request(record))
        state = self.directory / "nodes" / "peer-0000" / "00000001-0.state"
        return state.read_bytes(), len(response.refused)


def flipped(rng: random.Random, content: bytes) -> bytes:
    """Flip one to eight bits."""
    changed = bytearray(content)
    for at in rng.sample(range(8 * len(changed)), rng.randint(1, 8)):
        changed[at // 8] ^= 1 << at % 8
    return bytes(changed)


def cut_or_grown(rng: random.Random, content: bytes) -> bytes:
    """Another length."""
    if rng.random() < 0.5:
        return content[: rng.randrange(len(content))]
    return content + rng.randbytes(rng.randint(1, 5000))


def mutations(target: Target) -> Mapping[str, Callable[[random.Random, PeerMessage], PeerMessage]]:
    """Name -> makes a bad letter of a good one to peer 0."""
    stranger = PrivateKeys.generate()

    def key(letter: PeerMessage, value: bytes) -> PeerMessage:
        return replace(letter, keys={**letter.keys, 0: value})

    def again(letter: PeerMessage, **changes: Any) -> PeerMessage:
        return target.write(letter.kind, letter.sender, changes.pop("t", 1), **changes)

    def header(rng: random.Random, letter: PeerMessage) -> PeerMessage:
        other: dict[str, Any] = {
            "sender": rng.choice([0, 3 - letter.sender, 3, 2**31]),
            "nbytes": rng.choice([0, 1, 8 * D + 1, 2**40]),
            "kind": "offer" if letter.kind == "answer" else "answer",
        }
        name = rng.choice(sorted(other))
        changed = replace(letter, **{name: other[name]})
        return replace(changed, recipient=0 if changed.kind == "answer" else None)

    def badly_filled(rng: random.Random, letter: PeerMessage) -> PeerMessage:
        return again(letter, payload=rng.choice(bad_payloads(letter.kind)))

    def swapped(rng: random.Random, letter: PeerMessage) -> PeerMessage:
        other = target.write(rng.choice(["offer", "answer"]), rng.choice([1, 2]), 1)
        part = rng.choice(["payload", "keys"])
        return replace(letter, **{part: getattr(other, part)})

    return {
        "payload bits": lambda r, x: replace(x, payload=flipped(r, x.payload)),
        "payload length": lambda r, x: replace(x, payload=cut_or_grown(r, x.payload)),
        "payload noise": lambda r, x: replace(x, payload=r.randbytes(r.randint(0, 4000))),
        "key bits": lambda r, x: key(x, flipped(r, x.keys[0])),
        "key length": lambda r, x: key(x, cut_or_grown(r, x.keys[0])),
        "key noise": lambda r, x: key(x, r.randbytes(len(x.keys[0]))),
        "another's key": lambda r, x: key(x, x.keys[3 - x.sender]),
        "no key": lambda r, x: replace(x, keys={3 - x.sender: x.keys[3 - x.sender]}),
        "plain": lambda r, x: replace(x, payload=good_payload(x.kind), keys={}),
        "parts of two letters": swapped,
        "header": header,
        "another round": lambda r, x: replace(again(x, t=r.choice([0, 2, 3, 99])), round=1),
        "another run": lambda r, x: again(x, run=r.choice(["", "ran", "run2"])),
        "other config_digest": lambda r, x: again(x, config_digest=r.randbytes(32)),
        "another attempt": lambda r, x: again(x, attempt=r.choice(["", "b", "aa"])),
        "a stranger": lambda r, x: again(x, own=stranger),
        "another peer's hand": lambda r, x: again(x, own=target.keys[3 - x.sender]),
        "a bad payload, well sealed": badly_filled,
        "an answer to another model": lambda r, x: target.write(
            "answer", x.sender, 1, about=r.choice([b"", r.randbytes(32)])
        ),
    }


def broken(rng: random.Random, record: RecordDict) -> RecordDict:
    """The record with something wrong in its header, or a piece missing."""
    header = record["request"]
    assert isinstance(header, ConfigRecord)
    name = rng.choice(sorted(header))
    scalars: list[Any] = [-1, 2**62, True, "", "x", b"", b"x", 0.5]
    lists: list[Any] = [[], [0], [-1], ["x"], [b"x"], [0] * 99]
    what: list[Callable[[], None]] = [
        lambda: header.__delitem__(name),
        lambda: header.__setitem__(name, rng.choice(scalars)),
        lambda: header.__setitem__(name, rng.choice(lists)),
        lambda: record.__delitem__(rng.choice(sorted(record))),
        lambda: record.__setitem__(f"letter-{rng.randint(0, 9)}", ConfigRecord()),
    ]
    rng.choice(what)()
    return record


def attack(target: Target, seed: int, cases: int) -> Counter[str]:
    """Send `cases` requests of bad letters; how often each mutation was tried, and what happened.

    "crash" and "accepted" have to be zero; "letters" is how many were sent.
    """
    rng = random.Random(seed)
    counts: Counter[str] = Counter(crash=0, accepted=0)
    bad = mutations(target)
    for case in range(cases):
        letters = []
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            name = rng.choice(sorted(bad))
            good = target.write(rng.choice(["offer", "answer"]), rng.choice([1, 2]), 1)
            letters.append(bad[name](rng, good))
            counts[name] += 1
        counts["letters"] += len(letters)
        record = encode_request(target.request(letters))
        if rng.random() < 0.1:
            record = broken(rng, record)
            counts["a broken record on top"] += 1
        try:
            state, refused = target.carried_out(record)
        except (WireError, StateError, SealError):  # named refusals
            counts["requests refused whole"] += 1
            continue
        except Exception as error:  # what this is here to find
            print(f"case {case} of seed {seed}: {type(error).__name__}: {error}")
            counts["crash"] += 1
            continue
        counts["letters refused"] += refused
        if state != target.unmoved:
            print(f"case {case} of seed {seed}: accepted")
            counts["accepted"] += 1
    return counts


def main(cases: int) -> None:
    """Attack, print what was found, and fail if anything got through."""
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        counts = attack(Target(Path(directory)), 0, cases)
    print(f"{cases} requests in {time.perf_counter() - start:.0f} s")
    for name, count in sorted(counts.items()):
        print(f"{count:>7}  {name}")
    if counts["crash"] or counts["accepted"]:
        raise SystemExit("something got through")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
