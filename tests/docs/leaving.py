"""List the bytes that leave an institution: `python -m tests.docs.leaving` writes the tables.

They stand in docs/consortium/what-leaves.md, and come from runs of three institutions with tables
of their own, one for each method. The institutions are deployed nodes with keys, policies and
sealed letters; their answers are read as they leave, the letters opened with their readers' keys.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from io import StringIO
from math import prod
from pathlib import Path
from typing import get_args

from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from safetensors.torch import load

from coterie.app.config.digest import config_digest_of
from coterie.app.config.registry import METHODS
from coterie.app.config.schema import Scalar
from coterie.app.institution.requests.faults import MEANINGS
from coterie.app.institution.security.policy import Disclosure
from coterie.app.institution.security.seal import KEY, Scope, digest_of, unseal
from coterie.app.institution.security.trust import read_private, read_trust
from coterie.strategies.errors import RelayError
from coterie.strategies.flower.records import encode_response
from coterie.strategies.protocol import METRICS, Kind, Request, Response
from coterie.strategies.relay.broker import Broker
from tests.attacks.consortium import RUN, Institution, Relay, config_of, institutions

PAGE = Path(__file__).parents[2] / "docs" / "consortium" / "what-leaves.md"
_OPTIONS: Mapping[str, dict[str, Scalar]] = {
    "ifca": {"ifca.clusters": 2},
    "partial-pooling": {"model": "linear", "partial-pooling.min-rows": 8},
    "boosting": {
        "model": "boosted-trees", "boosted-trees.trees": 1, "boosted-trees.max-leaf-nodes": 3,
        "boosted-trees.min-samples-leaf": 32, "boosted-trees.threshold-step": 0.05,
    },
}  # fmt: skip
"""Options that methods require and institutions' data do not provide."""
FIELDS: Mapping[str, str] = {
    "stage": "the request that this answers",
    "round": "the round of that request",
    "peers": "the institution's number",
    "wants": "edges that it requests for the next round: pairs of institutions' numbers",
    "refused": "a line per refused letter: round, sender, reason",
    "samples": "its exact number of training examples; when a run starts",
    "names": "its name in its own trust file; when a run starts",
    "claims": "a signature that proves its number; when a run or a preflight starts",
    "restored": "the round from which it continues; when a run starts",
    "checks": "only to a preflight: ok, a band or a code for each check",
    "elapsed": "virtual seconds of its work; 0 unless the run has a virtual clock",
    "ready": "empty; in simulations with a virtual clock, the round in which each peer is ready",
    "backend": "the name of its engine's backend; when a run starts",
    "missing-from": "the peers whose increments it cannot read; empty with whole letters",
    "reads": "the maximum size of a letter that it reads, as the run has it; when a run starts",
    "report-rounds": "the rounds of the measurements",
    "report-peers": "the peer of the measurements: its own number",
    "report-weights": "the weight it gives each peer, rounded to two decimals",
    "report-widths": "the number of weights",
    "report-columns": "the peers of these weights if a run has more than 1,024; otherwise empty",
    "report-metrics": "names of the measurements; their values are rounded",
    "letter-kinds": "of each letter: offer, answer or statistics",
    "letter-senders": "of each letter: its own number",
    "letter-recipients": "of each letter: its recipient",
    "letter-rounds": "of each letter: its round; 0 for statistics",
    "letter-nbytes": "of each letter: the number of bytes of tensors",
    "key-letters": "the letter of each key",
    "key-peers": "the recipient of each key",
    "key-bytes": "the letter's key, encrypted for that peer, and a signature",
}
"""Every field of a node's answer to the relay, letters apart."""


@dataclass(frozen=True)
class Opened:
    """A letter as its reader sees it.

    Attributes
    ----------
    tensors : name -> shape.
    plain, sealed : bytes of the payload, before and after it is encrypted.
    readers : how many peers it is sealed for.
    """

    kind: Kind
    tensors: Mapping[str, tuple[int, ...]]
    nbytes: int
    plain: int
    sealed: int
    readers: int


class Tap(Relay):
    """A transport that keeps what the institutions answered."""

    def __init__(self, nodes: Sequence[Institution]) -> None:
        super().__init__(nodes)
        self.exchanges: list[tuple[Request, Response]] = []

    def exchange(self, requests: Mapping[int, Request]) -> dict[int, Response | str]:
        """Deliver the requests and store the responses."""
        outcome = super().exchange(requests)
        for node, answer in outcome.items():
            if isinstance(answer, Response):
                self.exchanges.append((requests[node], answer))
        return outcome


@dataclass(frozen=True)
class Left:
    """Responses of the institutions in a run, and their decrypted letters."""

    exchanges: list[tuple[Request, Response]]
    letters: list[Opened]


def run(method: str, scale: Scalar = "own", **policy: Scalar) -> Left:
    """Two rounds of three institutions.

    Raises
    ------
    RelayError
        Institutions cannot run the method on data of their own.
    """
    changed: dict[str, Scalar] = {
        "method": method, "num-server-rounds": 2, "table.validation": 0.2, "dtype": "float32",
        "model": "mlp", "mlp.hidden": "4", "table.scale": scale,
    }  # fmt: skip
    flat = {key: value for key, value in RUN.items() if not key.startswith("cobo.")}
    flat |= changed | _OPTIONS.get(method, {})
    with tempfile.TemporaryDirectory() as directory, redirect_stderr(StringIO()):
        nodes = institutions(Path(directory), flat)
        for node in nodes:
            node.set_policy(methods=method, data__min_examples=1, **policy)
        tap, config = Tap(nodes), config_of(nodes[0])
        Broker(config.strategy(), tap, join_timeout=0).run()
        return Left(tap.exchanges, list(_opened(tap.exchanges, nodes, config_digest_of(config))))


def _opened(
    exchanges: Sequence[tuple[Request, Response]], nodes: Sequence[Institution], digest: bytes
) -> Iterator[Opened]:
    """The letters, opened by the first peer that can; an answer is tied to an offer."""
    keys = [read_private(Path(str(node.node_config["keys"]))) for node in nodes]
    trust = read_trust(Path(str(nodes[0].node_config["trust"])))
    offers: dict[tuple[int, int], bytes] = {}
    for request, response in exchanges:
        scope = Scope("run", digest, request.attempt)
        for letter in response.letters:
            assert isinstance(letter.payload, ArrayRecord)
            payload = letter.payload["payload"].data
            about, reader = b"", min(letter.keys)
            if letter.recipient is not None:
                about = offers[letter.round, letter.recipient]
            plain = unseal(
                replace(letter, payload=payload), scope, reader, keys[reader],
                trust[letter.sender].keys, digest_of(payload), about,
            )  # fmt: skip
            if letter.kind == "offer":
                offers[letter.round, letter.sender] = digest_of(plain)
            shapes = {name: tuple(value.shape) for name, value in load(plain).items()}
            yield Opened(
                letter.kind, shapes, letter.nbytes, len(plain), len(payload), len(letter.keys)
            )


def methods_table() -> str:
    """Return the table of methods: content of letters, and additional reports."""
    lines = [
        "| method | an offer holds | an answer holds | requests letters | also reports |",
        "|---|---|---|---|---|",
    ]
    for method in METHODS:
        try:
            left = run(method)
        except RelayError:
            lines.append(f"| `{method}` | refused: it needs what no institution knows | | | |")
            continue
        wants = any(len(response.wants) for _, response in left.exchanges)
        reported = {
            name for _, response in left.exchanges for report in response.reports
            for name, value in report.metrics.items() if value is not None
        }  # fmt: skip
        names = ", ".join(sorted(name.replace("_", " ") for name in reported - METRICS))
        cells = [_holding(left, "offer"), _holding(left, "answer"), "yes" if wants else "no", names]
        lines.append(f"| `{method}` | {' | '.join(cells)} |".replace("|  |", "| |"))
    return "\n".join(lines)


def _holding(left: Left, kind: Kind) -> str:
    """The tensors of the letters of that kind."""
    fields = set[str]()
    for letter in left.letters:
        if letter.kind == kind:
            tensors = (f"{name} {prod(shape)}" for name, shape in sorted(letter.tensors.items()))
            fields.add(f"{', '.join(tensors)}: {letter.nbytes} bytes")
    return " or ".join(sorted(fields)) or "nothing is sent"


def letters_table() -> str:
    """Return the table of the parts of a letter, with the bytes of FedAvg's offer."""
    offer = run("fedavg").letters[0]
    return "\n".join(
        [
            "| part of a letter | bytes |",
            "|---|---|",
            f"| the numbers of the model | {offer.nbytes} |",
            f"| their names and shapes | {offer.plain - offer.nbytes} |",
            f"| added by encryption | {offer.sealed - offer.plain} |",
            f"| for each reader, the key and a signature | {KEY:,} |",
            f"| readers, all of them in the trust file | {offer.readers} |",
        ]
    )


def statistics_table() -> str:
    """Return the table of the letter with statistics, one for each institution."""
    left = run("fedavg", "common", data__share_statistics="yes")
    letter = next(each for each in left.letters if each.kind == "statistics")
    ((name, shape),) = letter.tensors.items()
    return "\n".join(
        [
            "| part of the letter | bytes |",
            "|---|---|",
            f"| `{name}`: {shape[0]} numbers for each of {shape[1]} columns | {letter.nbytes} |",
            f"| their name and shape | {letter.plain - letter.nbytes} |",
            f"| added by encryption | {letter.sealed - letter.plain} |",
            f"| for each reader, the key and a signature | {KEY:,} |",
            f"| readers, all of them in the trust file | {letter.readers} |",
        ]
    )


def disclosure_table() -> str:
    """Return the table of disclosures with the reported measurements."""
    lines = ["| `disclosure` | `training` | measurements | weights |", "|---|---|---|---|"]
    for level in get_args(Disclosure):
        for training in (False, True):
            reports = [
                report
                for _, response in run("fedavg", **_reports(level, training=training)).exchanges
                for report in response.reports
            ]
            disclosed = {
                name
                for report in reports
                for name, value in report.metrics.items()
                if value is not None
            }
            shown = ", ".join(sorted(name.replace("_", " ") for name in disclosed))
            others = any(
                weight
                for report in reports
                for peer, weight in enumerate(report.weights)
                if peer != report.peer
            )
            weights = "of each peer" if others else "none"
            lines.append(f"| `{level}` | {str(training).lower()} | {shown} | {weights} |")
    return "\n".join(lines)


def _reports(level: str, *, training: bool) -> dict[str, Scalar]:
    return {"reports__disclosure": level, "reports__training": training}


def fields_table() -> str:
    """Return the table of the fields of an answer, with bytes at a start and after a round."""
    exchanges = run("cobo").exchanges
    start = next(pair for pair in reversed(exchanges) if pair[0].stage == "start")
    update = next(pair for pair in exchanges if pair[0].stage == "update")
    sizes = [sizes_of(encode_response(response, request)) for request, response in (start, update)]
    lines = [
        "| field | content | bytes at the start | bytes after a round |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{name}` | {about} | {sizes[0][name]:,} | {sizes[1][name]:,} |"
        for name, about in FIELDS.items()
    ]
    return "\n".join(lines)


def sizes_of(record: RecordDict) -> dict[str, int]:
    """Bytes of each field of an answer's header; a number has eight."""
    header = record["response"]
    assert isinstance(header, ConfigRecord)
    return {name: _size(value) for name, value in header.items()}


def _size(value: object) -> int:
    match value:
        case bytes():
            return len(value)
        case str():
            return len(value.encode())
        case list():
            return sum(map(_size, value))
        case _:
            return 8


def codes_table() -> str:
    """Return the table of fault codes, all that the relay receives about errors."""
    lines = [f"| `{code}` | {meaning} |" for code, meaning in MEANINGS.items()]
    return "\n".join(["| code | meaning |", "|---|---|", *lines])


TABLES: Mapping[str, Callable[[], str]] = {
    "methods": methods_table,
    "letters": letters_table,
    "statistics": statistics_table,
    "disclosure": disclosure_table,
    "fields": fields_table,
    "codes": codes_table,
}
"""Name of a table of the page -> what makes it."""


def written(page: str, name: str) -> str:
    """The table of that name as the page has it."""
    return _split(page, name)[1]


def _split(page: str, name: str) -> tuple[str, str, str]:
    before, begin, rest = page.partition(f"<!-- table: {name} -->\n")
    table, end, after = rest.partition("<!-- end -->")
    return before + begin, table.rstrip("\n"), end + after


def main() -> None:
    """Rewrite the tables."""
    page = PAGE.read_text("utf-8")
    for name, made in TABLES.items():
        before, _, after = _split(page, name)
        page = f"{before}{made()}\n{after}"
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
