"""Record a run: the relay's files of the run directory, written round by round.

Replacing relay/checkpoint.json commits a round: it has the length and digest of the files to which
the round was appended. A resumed run truncates later lines, and refuses files that were changed.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Required

import numpy as np
from typing_extensions import TypedDict

from coterie.app.runs import atomic, checkpoint_files, files
from coterie.app.runs import progress as progress_file
from coterie.app.runs.files import ResultsError
from coterie.strategies.protocol import MATRIX, Report
from coterie.strategies.relay.commit import Commit, Ledger, means

if TYPE_CHECKING:
    from hashlib import _Hash

_SAVE_SECONDS = 30.0
_LINES = 5
"""Number of latest errors and refusals that are kept."""


class Checkpoint(progress_file.Seen):
    """Content of relay/checkpoint.json."""

    ledger: Required[Ledger]
    written: Required[dict[str, tuple[progress_file.Count, str]]]  # file -> its bytes and digest


class _Measured(TypedDict, total=False):
    """Line of metrics.jsonl, as far as it is read."""

    peer: Required[int]
    test_loss: float | None


class RunRecorder:
    """Writer of a run's files; `watch` gets the content of progress.json after each change."""

    def __init__(
        self,
        directory: Path,
        peers: int,
        rounds: int,  # total number of rounds
        *,
        # Continue from the checkpoint in `directory` if there is one; else start again.
        resume: bool = False,
        watch: Callable[[Mapping[str, Any]], None] | None = None,
        run: bytes = b"",  # digest of the configuration; the checkpoint of another run is rejected
        machine: str = "",  # name of the machine
        # Of a deployment: sync committed rounds to disk, so that they survive a power failure.
        durable: bool = False,
    ) -> None:
        self._watch = watch
        self._run, self._durable = run, durable
        self.progress: dict[str, Any] = {}  # content of progress.json
        self._directory = directory
        self._metrics = directory / "metrics.jsonl"
        self._checkpoint = directory / "relay" / "checkpoint.json"
        self._weights = directory / "relay" / "weights.f64"
        self._peers = peers
        self._rounds = rounds
        self._checkpoint.parent.mkdir(parents=True, exist_ok=True)
        saved = self._read() if resume else {}
        self.ledger = saved.get("ledger", Ledger())  # progress of the protocol
        self._refused: int = saved.get("refused", 0)
        self._machine = machine
        self._started: float = time.monotonic() - (saved.get("seconds") or 0.0)
        self._latest: dict[int, Report] = {}
        self._had_loss = set[int]()
        empty: dict[str, Any] = {"names": {}, "last_seen": {}, "faults": [], "refusals": []}
        self._seen = {key: saved.get(key, value) for key, value in empty.items()}
        self._backends = set[str]()
        self._nodes: dict[int, int] = {}
        self._written = {
            path: self._cut(path, *(saved["written"][path.name] if self.ledger.round else (0, "")))
            for path in (self._metrics, self._weights)
        }
        for line in self._metrics.read_bytes().splitlines():
            measured = files.parsed(line, _Measured, self._metrics)
            if measured.get("test_loss") is not None:
                self._had_loss.add(measured["peer"])
        self._saved = time.monotonic()
        self._waiting: dict[str, Any] = {}
        self._away: dict[int, tuple[int, int]] = {}
        self._progress("running")

    def round(self, commit: Commit) -> None:
        """Commit a round: see `coterie.strategies.relay.commit.Recorder`."""
        self._seen["names"] |= commit.names
        self._nodes |= commit.nodes
        self._waiting = {}
        self._backends |= commit.backends
        measured = (json.dumps(self._line(report)) + "\n" for report in commit.reports)
        self._append(self._metrics, "".join(measured).encode())
        self._append(self._weights, b"".join(self._weights_of(commit.reports)))
        self.ledger = ledger = commit.ledger
        self._refused += len(commit.refused)
        for key, lines in (("faults", commit.faults), ("refusals", commit.refused)):
            self._seen[key] = [*self._seen[key], *lines][-_LINES:]
        now = ledger.round, round(time.time(), 3)
        self._seen["last_seen"] |= dict.fromkeys(commit.present, now)
        self._latest |= {r.peer: replace(r, weights=(), columns=()) for r in commit.reports}
        self._had_loss |= {r.peer for r in commit.reports if r.metrics.get("test_loss") is not None}
        if time.monotonic() - self._saved > _SAVE_SECONDS:
            self._save_collaboration()
        written = {p.name: [size, each.hexdigest()] for p, (size, each) in self._written.items()}
        saved = {
            "ledger": asdict(ledger),
            "refused": self._refused,
            "seconds": round(time.monotonic() - self._started, 3),
            "written": written,
        }
        content = json.dumps(saved | self._seen)
        sealed = json.dumps({"sha256": self._digest(content)}) + "\n" + content + "\n"
        atomic.write(self._checkpoint, sealed, durable=self._durable)
        self._progress("running")

    def _weights_of(self, reports: Sequence[Report]) -> Iterator[bytes]:
        """Yield records of the weights: a matrix per round; with many peers, single weights."""
        if self._peers > MATRIX:
            for r in reports:
                own = [
                    (r.round, r.peer, other, weight) for other, weight in r.weight_by_peer.items()
                ]
                yield np.array(own, dtype=np.float64).tobytes()
            return
        for t in sorted({report.round for report in reports}):
            matrix = np.eye(self._peers)  # row of a peer that did not report: it received nothing
            for report in reports:
                if report.round == t:
                    matrix[report.peer] = report.weights
            yield np.float64(t).tobytes() + matrix.tobytes()

    def _append(self, path: Path, content: bytes) -> None:
        with path.open("ab") as file:
            file.write(content)
            if self._durable:
                file.flush()
                os.fsync(file.fileno())
        size, digest = self._written[path]
        digest.update(content)
        self._written[path] = size + len(content), digest

    def _line(self, report: Report) -> dict[str, Any]:
        name = self._seen["names"].get(report.peer, f"peer {report.peer}")
        head = {"round": report.round, "peer": report.peer, "peer_name": name}
        lies = {"attacker": True} if report.metrics.get("attacker") else {}
        return head | dict(report.metrics) | lies | head  # `head` wins over metrics

    def waiting(self, names: Sequence[str], missing: Sequence[str], seconds: float) -> None:
        """Record who has not approved the run, who has no node, and how long the relay waits."""
        awaited = {"for": [*names], "missing": [*missing]} if names or missing else {}
        if awaited != {key: value for key, value in self._waiting.items() if key != "until"}:
            until = round(time.time() + seconds, 3)
            self._waiting = awaited and {**awaited, "until": until}
            self._progress("running")

    def finish(self, away: Collection[int] = ()) -> None:
        """Record the end of the run, and the peers `away`, whose nodes have older models."""
        self._save_collaboration()
        reported = {peer: report.round for peer, report in self._latest.items()}
        self._away = {peer: (self.ledger.ended[peer], reported.get(peer, 0)) for peer in away}
        if 0 < len(self._honest) == len(self._diverged()):
            self._progress("diverged", "every peer diverged: try a smaller learning-rate")
        else:
            self._progress("finished")
        if not self._durable:  # the nodes of a simulation share the directory; nothing resumes it
            checkpoint_files.delete(self._directory / "nodes")

    def fail(self, error: str) -> None:
        """Record the error, in one line, that ended the run early."""
        with suppress(OSError):  # a full disk
            self._save_collaboration()
        self._progress("failed", error)

    def stop(self) -> None:
        """Record that the run was interrupted and can be resumed."""
        with suppress(OSError):
            self._save_collaboration()
        self._progress("stopped")

    @property
    def _honest(self) -> list[Report]:
        return [r for r in self._latest.values() if not r.metrics.get("attacker")]

    def _diverged(self) -> list[Report]:
        """Return the reports of honest peers with a non-finite loss or model."""
        return [
            r
            for r in self._honest
            if (r.metrics.get("test_loss") is None and r.peer in self._had_loss)
            or r.metrics.get("unsound_results")
        ]

    def _cut(self, path: Path, size: int, expected: str) -> tuple[int, _Hash]:
        """Remove lines after the checkpoint, all at round 0; return the rest's bytes and digest."""
        content = path.read_bytes()[:size] if size and path.exists() else b""
        digest = sha256(content)
        if size and expected != digest.hexdigest():
            raise ResultsError(
                f"{path}: missing or damaged before round {self.ledger.round}; put a copy back, or "
                "run again under another name"
            )
        atomic.write(path, content, durable=self._durable)
        return len(content), digest

    def _read(self) -> dict[str, Any]:
        """Return the content of the checkpoint; empty if no round was committed."""
        path = self._checkpoint
        if not path.exists():
            if self._metrics.exists() and re.search(rb'"round": [1-9]', self._metrics.read_bytes()):
                raise ResultsError(f"{path}: missing; put a copy back, or run under another name")
            return {}
        seal, _, content = path.read_text(encoding="utf-8", errors="replace").partition("\n")
        content = content.removesuffix("\n")
        if seal != json.dumps({"sha256": self._digest(content)}):
            raise ResultsError(
                f"{path}: damaged, or of a run with another configuration; put a copy back, or run "
                "again under another name"
            )
        saved: Checkpoint = files.parsed(content, Checkpoint, path)
        if not self._fits(saved):  # its digest does not prove who wrote it
            raise ResultsError(f"{path}: does not fit the peers and rounds of this run")
        return progress_file.finite(saved)

    def _fits(self, saved: Checkpoint) -> bool:
        """Return whether a checkpoint can be of these peers and rounds."""
        ledger = saved["ledger"]
        return (
            {self._metrics.name, self._weights.name} <= saved["written"].keys()
            and 0 <= ledger.round <= self._rounds
            and min(ledger.messages, ledger.nbytes, ledger.sealing) >= 0
            and 0 <= ledger.virtual_seconds < np.inf
            and {len(ledger.ended), len(ledger.awake)} <= {0, self._peers}
            and all(-1 <= n <= ledger.round for n in (*ledger.ended, *ledger.awake))
        )

    def _digest(self, content: str) -> str:
        return sha256(sha256(self._run).digest() + content.encode()).hexdigest()

    def _save_collaboration(self) -> None:
        width = 1 + self._peers**2 if self._peers <= MATRIX else 4  # of a record of `_weights_of`
        flat = np.fromfile(self._weights) if self._weights.exists() else np.empty(0)
        records = flat[: flat.size // width * width].reshape(-1, width)
        rounds, arrays = records[:, 0].astype(np.int64), dict[str, Any]()
        if self._peers > MATRIX:
            peers, others = records[:, 1:3].T.astype(np.int64)
            arrays = {"peers": peers, "others": others, "weights": records[:, 3]}
        else:
            arrays = {"weights": records[:, 1:].reshape(-1, self._peers, self._peers)}
        target = self._directory / "collaboration.npz"
        with atomic.replacing(target) as draft, draft.open("wb") as file:
            np.savez_compressed(file, rounds=rounds, **arrays)
        self._saved = time.monotonic()

    def _progress(self, status: str, error: str | None = None) -> None:
        measured = means(self._latest.values())
        accuracies = [r.metrics.get("test_accuracy") for r in self._honest]
        spread = [value for value in accuracies if value is not None]
        evaluated = max((r.round for r in self._latest.values()), default=None)
        fresh = sum(r.round == evaluated for r in self._latest.values())
        progress = {
            "round": self.ledger.round,
            "rounds": self._rounds,
            "status": status,
            "error": error,
            "backend": ", ".join(sorted(self._backends)),
            "messages": self.ledger.messages,
            "bytes": sum(int(r.metrics.get("bytes_sent") or 0) for r in self._latest.values()),
            "relayed_bytes": self.ledger.nbytes,
            "sealing_bytes": self.ledger.sealing,
            "refused": self._refused,
            **({} if evaluated is None else {"evaluated": evaluated}),
            **({"evaluated_peers": fresh} if fresh < len(self._latest) else {}),
            "mean_test_accuracy": measured.get("test_accuracy"),
            "std_test_accuracy": float(np.std(spread)) if spread else None,
            "mean_test_loss": measured.get("test_loss"),
            "breaks": self.ledger.breaks,
            "diverged": len(self._diverged()),
            "seconds": round(time.monotonic() - self._started, 3),
            **({"machine": self._machine} if self._machine else {}),
            **({"waiting": self._waiting} if self._waiting else {}),
            **({"away": self._away} if self._away else {}),
        }
        self.progress = progress | self._seen | self._attendance()
        if len(set(self._nodes.values())) > 1:
            self.progress["nodes"] = {p: str(node) for p, node in self._nodes.items()}  # 64 bits
        progress_file.write(self._directory, self.progress)
        if self._watch is not None:
            self._watch(self.progress)

    def _attendance(self) -> dict[str, Any]:
        """Return the number of rounds in which each peer took part, (n,); empty if all of them."""
        t, took_part = self.ledger.round, self.ledger.awake
        return {"took_part": took_part} if any(rounds < t for rounds in took_part) else {}
