"""Institutions with real keys, policies and tables, and a relay that asks what it likes.

Everything that a deployed node does is real, from Flower's record to Flower's record; only the
processes are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import load

from coterie.app.config.config import Config
from coterie.app.config.digest import config_digest_of
from coterie.app.config.schema import Scalar
from coterie.app.institution.process import service
from coterie.app.institution.process.job import Job
from coterie.app.institution.security.keys import PrivateKeys, PublicKeys
from coterie.app.institution.security.policy import Policy, policy_of
from coterie.app.institution.security.seal import Scope, digest_of, seal, unseal
from coterie.app.institution.security.trust import read_private, read_trust
from coterie.app.runs import atomic
from coterie.app.wire.payload import LetterFormat
from coterie.strategies.flower.records import decode_response, encode_request
from coterie.strategies.protocol import Edges, PeerMessage, Request, Response
from tests.harness.deployment import exchange_keys

Array = npt.NDArray[np.float64]
ROWS = (60, 50, 40)
RUN: dict[str, Scalar] = {
    "dataset": "table", "table.columns": "a, b", "table.label": "y", "table.classes": "no, yes",
    "table.test": 0.5, "peers": 3, "num-server-rounds": 5, "evaluate-every": 1, "method": "cobo",
    "cobo.sampling": "full", "model": "linear", "batch-size": 8, "local-steps": 1,
    "dtype": "float64", "name": "run", "table.scale": "own", "table.split": "plain",
}  # fmt: skip
POLICY: dict[str, Scalar] = {
    "approval": "none", "methods": "cobo, fedavg, local", "data.sets": "table, quadratic",
    "data.columns": "a, b", "data.label": "y", "data.classes": "no, yes",
    "answers.kind": "plain", "answers.min-examples": 8,
    "data.max-held-out": 0.9, "reports.max-numbers-per-example": 100.0,
}  # fmt: skip


@dataclass
class Institution:
    """A deployed node; `errors` keeps the lines that the relay received instead of responses."""

    peer: int
    node_config: dict[str, Scalar]
    run_config: dict[str, Scalar]
    version: int | None = None
    errors: list[str] = field(default_factory=list)

    @property
    def home(self) -> Path:
        """Its `out`."""
        return Path(str(self.node_config["out"]))

    def handle(self, request: Request) -> Response | str:
        """Give the request to the node, through Flower's records."""
        job = Job(7, self.run_config, self.node_config, self.version)
        record, self.version = service.handle_request(encode_request(request), job)
        answer = decode_response(record, request)
        if isinstance(answer, str):
            self.errors.append(answer)
        return answer

    def set_policy(self, **changes: Scalar) -> None:
        """Write another policy; `data__label` is data.label."""
        named = {key.replace("__", ".").replace("_", "-"): value for key, value in changes.items()}
        write(Path(str(self.node_config["policy"])), policy_of(POLICY | named))


def write(path: Path, policy: Policy) -> None:
    """Write a policy file."""
    atomic.write(path, policy.toml())
    path.chmod(0o644)


def institutions(directory: Path, run: Mapping[str, Scalar] = RUN) -> list[Institution]:
    """Three of them, each with its own table."""
    exchange_keys(directory / "keys", range(3))
    result = []
    for peer, rows in enumerate(ROWS):
        home = directory / f"node-{peer}"
        (home / "data").mkdir(parents=True)
        draw = np.random.default_rng(peer)
        x = draw.normal(size=(rows, 2)).round(3)
        labels = np.where(x.sum(axis=1) > 0, "yes", "no")
        lines = [f"{a},{b},{y}" for (a, b), y in zip(x, labels, strict=True)]
        (home / "data" / "data.csv").write_text("\n".join(["a,b,y", *lines]) + "\n")
        write(home / "policy.toml", policy_of(POLICY))
        config: dict[str, Scalar] = {
            "name": f"node-{peer}", "keys": str(directory / "keys" / f"node-{peer}.key"),
            "trust": str(directory / "keys" / "trust.toml"), "policy": str(home / "policy.toml"),
            "out": str(home / "out"), "data-dir": str(home / "data"), "device": "cpu",
        }  # fmt: skip
        result.append(Institution(peer, config, dict(run)))
    return result


def started(nodes: list[Institution]) -> dict[int, PeerMessage]:
    """Start a run; peer -> its offer for round 1."""
    for node in nodes:
        response_of(node, Request("start", 0, 0, attempt="a"))
    samples = np.array([rows // 2 for rows in ROWS])
    begin = Request("start", 0, 0, attempt="a", samples=samples)
    return {node.peer: response_of(node, begin).letters[0] for node in nodes}


class Relay:
    """A transport to institutions."""

    def __init__(self, nodes: Sequence[Institution]) -> None:
        self._nodes = nodes

    def nodes(self) -> list[int]:
        return list(range(len(self._nodes)))

    def exchange(self, requests: Mapping[int, Request]) -> dict[int, Response | str]:
        return {node: self._nodes[node].handle(request) for node, request in requests.items()}


def response_of(node: Institution, request: Request) -> Response:
    """The response, which must be one."""
    answer = node.handle(request)
    assert isinstance(answer, Response), answer
    return answer


def asking(
    letters: list[PeerMessage], t: int = 1, change: Callable[[Edges], Edges] = lambda edges: edges
) -> Request:
    """The relay asks peer 0 to answer these offers."""
    edges = change(np.array([[k, 0] for k in sorted(letter.sender for letter in letters)]))
    asked = np.ones(len(edges), dtype=np.bool_)
    samples = np.array([rows // 2 for rows in ROWS])
    return Request("answer", t, t, edges, asked, tuple(letters), 0, "a", samples)


def config_of(node: Institution) -> Config:
    """The run's configuration as the node has it."""
    return Job(7, node.run_config, node.node_config, None).config()


def offer_of(
    nodes: Sequence[Institution], sender: int, tensors: Mapping[str, Array], t: int = 1
) -> tuple[PeerMessage, bytes]:
    """Return an offer that a peer invents and seals with its own keys, and its plain payload."""
    stacks = {name: torch.from_numpy(value)[None] for name, value in tensors.items()}
    form = LetterFormat({name: (tuple(x.shape[1:]), x.dtype) for name, x in stacks.items()})
    plain = form.encode(stacks, 0)
    keys, readers, scope = _keys(nodes[sender])
    del readers[sender]
    letter = PeerMessage("offer", sender, None, t, form.nbytes, plain)
    return seal(letter, scope, keys, readers)[0], plain


def opened(
    nodes: Sequence[Institution],
    letter: PeerMessage,
    reader: int,
    about: bytes = b"",
    attempt: str = "a",
) -> dict[str, Array]:
    """The tensors of a letter to `reader`, which answers the plain letter `about`."""
    keys, readers, scope = _keys(nodes[reader])
    payload: Any = letter.payload
    content = payload["payload"].data  # the relay's end of a record
    scope = replace(scope, attempt=attempt)
    plain = unseal(
        replace(letter, payload=content), scope, reader, keys, readers[letter.sender],
        digest_of(content), digest_of(about) if about else b"",
    )  # fmt: skip
    return {name: value.numpy() for name, value in load(plain).items()}


def _keys(node: Institution) -> tuple[PrivateKeys, dict[int, PublicKeys], Scope]:
    keys = read_private(Path(str(node.node_config["keys"])))
    trust = read_trust(Path(str(node.node_config["trust"])))
    scope = Scope(str(node.run_config["name"]), config_digest_of(config_of(node)), "a")
    return keys, {peer: entry.keys for peer, entry in trust.items()}, scope
