"""Letters made to stop their readers: decoders, requests for keyframes, hostile peers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save

from coterie.app.config.config import Config
from coterie.app.institution.node import simulated_node
from coterie.app.node.node import Node
from coterie.app.wire.increments import Copy, IncrementFormat, digest
from coterie.app.wire.operators import OPERATORS
from coterie.app.wire.payload import LetterFormat, PayloadError, Precision
from coterie.app.wire.quantise import Layout
from coterie.strategies.inprocess import InProcessTransport
from coterie.strategies.protocol import Request, Response
from coterie.strategies.relay.broker import Broker
from coterie.strategies.relay.commit import Commit
from tests.encoded import Encoded
from tests.fuzz.formats import STAMP, VERSIONS, broken
from tests.problems import write_quadratic

D = 130
LAYOUT: Layout = {
    "x": ((D,), torch.float32),
    "mask": ((D,), torch.bool),
    "shares": ((70,), torch.float64),
    "cluster": ((), torch.int64),
}
PRECISIONS: tuple[Precision, ...] = ("full", "float16", "bfloat16", "int8", "int4")


def stacks() -> dict[str, torch.Tensor]:
    """One row of offers of the layout."""
    g = torch.Generator().manual_seed(0)
    return {
        "x": torch.randn(1, D, generator=g),
        "mask": torch.rand(1, D, generator=g) < 0.5,
        "shares": torch.rand(1, 70, generator=g, dtype=torch.float64),
        "cluster": torch.tensor([3]),
    }


def letters_of(body: bytes, rng: random.Random) -> Iterator[bytes]:
    """Yield a payload with each of its parts changed, and one of other types."""
    yield from broken(body, rng)
    yield save({name: torch.full(s, 2**62, dtype=torch.int64) for name, (s, _) in LAYOUT.items()})


def assert_layout(tensors: Mapping[str, torch.Tensor]) -> None:
    """Assert that a payload that was not refused is of the layout, and finite."""
    assert {name: (tuple(v.shape), v.dtype) for name, v in tensors.items()} == LAYOUT
    assert all(bool(value.isfinite().all()) for value in tensors.values())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_whole_letter_is_refused_or_has_the_layout(precision: Precision) -> None:
    form, rng, refused = LetterFormat(LAYOUT, precision), random.Random(0), 0
    for payload in letters_of(form.encode(stacks(), 0), rng):
        try:
            assert_layout(form.decode(payload))
        except PayloadError:
            refused += 1
    assert refused > 60


@pytest.mark.some(5)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("operator", OPERATORS)
def test_an_increment_is_refused_or_gives_the_layout(operator: str, precision: Precision) -> None:
    """Try every kind and version on readers with any copy; the author signs what it likes."""
    shapes = [(12, 10), (10,)]
    form = IncrementFormat(LAYOUT, OPERATORS[operator](shapes, 0.1), precision)
    rng, offers, refused = random.Random(0), stacks(), 0
    x_d = form.first.rounded(offers)["x"][0]
    q = OPERATORS[operator](shapes, 0.1)
    parts = form.rounded(q.encode(x_d / 7, q.memory(torch.float32))[0])
    copies = [Copy(0, torch.zeros(0)), Copy(1, x_d), Copy(2, x_d)]
    after = [x_d, x_d + q.decode(parts, torch.float32), torch.zeros(0)]
    bodies = {b"f": form.first.encode(offers, 0), b"k": form.key.encode(offers, 0)}
    bodies[b"i"] = form.encode(offers, 0, 2, parts)[STAMP.size :]
    for kind, body in bodies.items():
        for payload in (body, *letters_of(body, rng)):
            version = rng.choice(VERSIONS) if payload != body else 1
            for signed in map(digest, after):
                letter = STAMP.pack(rng.choice([kind, kind, kind, b"x"]), version, signed) + payload
                for before in copies:
                    try:
                        tensors, copy = form.decode(letter, before, 5)
                    except PayloadError:
                        refused += 1
                        continue
                    assert_layout(tensors)
                    assert copy.version == version > 0
        for version in VERSIONS:  # nothing else is wrong
            for before in copies:
                for signed in map(digest, after):
                    try:
                        tensors, copy = form.decode(
                            STAMP.pack(kind, version, signed) + body, before, 5
                        )
                    except PayloadError:
                        continue
                    assert_layout(tensors)
    assert refused > 300


# --- runs among hostile peers ----------------------------------------------------------------


@dataclass
class Hostile:
    """An honest node whose responses, or requests, are forged on the way."""

    node: Node
    forge: Callable[[Request, Response], Response] = lambda request, response: response
    owes: bool = False

    def handle(self, request: Request) -> Response:
        if self.owes and request.stage == "update":
            request = replace(request, keyframes_wanted=(self.node.peers[0],))
        return self.forge(request, self.node.handle(request))


@dataclass
class Notes:
    """Recorder of the relay's commits."""

    commits: list[Commit] = field(default_factory=list)

    def round(self, commit: Commit) -> None:
        self.commits.append(commit)

    @property
    def refused(self) -> list[str]:
        return [line for commit in self.commits for line in commit.refused]


def letters(
    change: Callable[[int, bytes], bytes], **fields: Any
) -> Callable[[Request, Response], Response]:
    """Return a forgery of the payloads of all letters."""

    def forge(request: Request, response: Response) -> Response:
        forged = [
            replace(letter, payload=change(letter.round, letter.payload), **fields)  # type: ignore[arg-type]
            for letter in response.letters
        ]
        return replace(response, letters=tuple(forged))

    return forge


def stamped(kind: bytes, version: int) -> Callable[[int, bytes], bytes]:
    return lambda t, payload: (
        STAMP.pack(kind, version, payload[5 : STAMP.size]) + payload[STAMP.size :]
    )


FORGERIES: Mapping[str, Callable[[Request, Response], Response]] = {
    **{f"increment {v}": letters(stamped(b"i", v)) for v in (0, 1, 2, 2**32 - 1)},
    **{f"first {v}": letters(stamped(b"f", v)) for v in (0, 2**32 - 1)},
    "key": letters(stamped(b"k", 1)),
    "no kind": letters(stamped(b"x", 1)),
    "empty": letters(lambda t, payload: b"", nbytes=0),
    "cut": letters(lambda t, payload: payload[:-1]),
    "stamp only": letters(lambda t, payload: payload[: STAMP.size], nbytes=0),
    "nothing is finite": letters(lambda t, payload: payload[:-80] + 80 * b"\xff"),
    "noise": letters(lambda t, payload: random.Random(t).randbytes(len(payload))),
    "zeros": letters(lambda t, payload: bytes(len(payload))),
    "ten times as long": letters(lambda t, payload: bytes(80 * D), nbytes=80 * D),
    "claims a terabyte": letters(lambda t, payload: payload, nbytes=2**40),
    "another round": letters(lambda t, payload: payload, round=3),
    "another sender": letters(lambda t, payload: payload, sender=0),
    "missing-from": lambda request, response: replace(response, missing_from=tuple(range(40))),
    "wants": lambda request, response: replace(response, wants=np.array([[0, 1], [1, 2**40]])),
    "reads nothing": lambda request, response: replace(response, reads=1),
    "reads anything": lambda request, response: replace(response, reads=2**60),
    "no letters": lambda request, response: replace(response, letters=()),
}  # fmt: skip


def quadratics(where: Path, peers: int, rounds: int, **changes: Any) -> dict[str, Any]:
    """A run on quadratics of D numbers, whose increments have a twentieth of them."""
    centre = np.random.default_rng(0).standard_normal((peers, D))
    where.mkdir()
    return {
        **write_quadratic(where / "problem.json", np.ones((peers, D)), centre, np.zeros(D)),
        "num-server-rounds": rounds, "evaluate-every": 1, "device": "cpu", "method": "fedavg",
        "letters.scheme": "increments", "letters.operator": "top-k", "letters.ratio": 0.05,
        **changes,
    }  # fmt: skip


def play(
    flat: Mapping[str, Any], directory: Path, hostile: Mapping[int, Callable[[Node], Hostile]]
) -> Notes:
    """Run a node per peer, some of them hostile."""
    config, notes = Config.from_flat(dict(flat)), Notes()
    nodes = [simulated_node(config, [peer], directory) for peer in range(config.peers)]
    hosts = [hostile.get(peer, Hostile)(node) for peer, node in enumerate(nodes)]
    transport = InProcessTransport([Encoded(host) for host in hosts])
    Broker(config.strategy(), transport, notes, join_timeout=1.0, quorum=2).run()
    return notes


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["increments", "full"])
def test_among_one_hostile_peer_of_every_kind_the_honest_complete_every_round(
    scheme: str, tmp_path: Path
) -> None:
    honest, rounds = 3, 4
    hostile = {
        honest + k: lambda node, forge=forge: Hostile(node, forge)
        for k, forge in enumerate(FORGERIES.values())
    }
    flat = quadratics(tmp_path / "problem", honest + len(hostile), rounds)
    if scheme == "full":
        flat = {key: value for key, value in flat.items() if not key.startswith("letters.")}
    notes = play(flat, tmp_path / "run", hostile)
    long = honest + [*FORGERIES].index("ten times as long")
    line = f"the relay refused the offer of peer {long}: {80 * D} bytes are more than peers 0, "
    assert sum(line in each for each in notes.refused) >= rounds
    assert len(notes.commits) == rounds + 1
    for commit in notes.commits:
        assert commit.present >= set(range(honest))
        assert {r.peer for r in commit.reports} >= set(range(honest))
        assert not any(f"peers {k}:" in line for line in commit.faults for k in range(honest))


def bytes_of(notes: Notes) -> int:
    return notes.commits[-1].ledger.nbytes


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("liar", ["node", "node without letters", "relay"])
def test_nobody_makes_all_letters_whole(liar: str, tmp_path: Path) -> None:
    """A node that cannot read anything, or a relay that says so, gets a tenth of them whole."""
    rounds, whole = 20, 8 * D
    flat = quadratics(tmp_path / "problem", 4, rounds, **{"evaluate-every": rounds})
    if liar == "node without letters":
        flat |= {"topology": "ring"}  # peer 2 sends it nothing
    edges = {"node": 12, "node without letters": 8, "relay": 12}[liar]
    quiet = bytes_of(play(flat, tmp_path / "quiet", {}))
    increment = (quiet / edges - whole) / (rounds - 1)
    assert increment < whole / 8

    def gaps(request: Request, response: Response) -> Response:
        return replace(response, missing_from=(1, 2, 3))

    attacks: dict[str, Mapping[int, Callable[[Node], Hostile]]] = {
        "node": {0: lambda node: Hostile(node, gaps)},
        "node without letters": {0: lambda node: Hostile(node, gaps)},
        "relay": {k: lambda node: Hostile(node, owes=True) for k in range(4)},
    }
    notes = play(flat, tmp_path / "run", attacks[liar])
    asked = 1 + rounds // 10
    assert quiet < bytes_of(notes) <= quiet + asked * edges * (whole - increment)
    if liar == "node without letters":
        assert any("a gap: no letter of peer 2 to read" in line for line in notes.refused)
