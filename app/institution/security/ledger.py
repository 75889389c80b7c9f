"""Ledger of a peer's answers and reported numbers over all runs, with their limits.

`institution/ledger-<peer>.jsonl` in the node's `out` has a line for each set of letters that a
round was run with, for each answer, and for each report with numbers about own data. A round that
is not committed can be repeated; the ledger records each repetition and its differences. The same
answer to the same model counts once, and so does the same report of a round: they disclose nothing
new. Processes that use the file at the same time wait for each other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from coterie.app.institution.security.journal import Journal, LedgerError
from coterie.app.institution.security.policy import AnswerPolicy
from coterie.strategies.protocol import Kind, Request


class Ledger:
    """Ledger of a peer, as used by one run, with the limits of the institution's policy."""

    def __init__(self, journal: Journal, run: str, limits: AnswerPolicy) -> None:
        self._journal, self._run, self._limits = journal, run, limits
        self._mine: list[dict[str, Any]] = []  # the lines of this run
        self._answers = 0  # of all runs
        self._numbers = 0  # reported in all runs

    def committed(self) -> int:
        """Return the last round that was committed when a round of this run was last run."""
        with self._open():
            return max((line.get("committed", 0) for line in self._mine), default=0)

    def heard(
        self, request: Request, kind: Kind, letters: Mapping[int, str], committed: int = 0
    ) -> None:
        """Record a round's letters, digests by sender; LedgerError: repeated too often."""
        about = {"run": self._run, "round": request.round, "heard": kind}
        with self._open():
            before = [line for line in self._mine if about.items() <= line.items()]
            if len(before) > self._limits.max_replays:
                raise LedgerError(
                    f"answers.max-replays = {self._limits.max_replays}: round {request.round} "
                    f"was run {len(before)} times"
                )
            varied = request.edges, request.asked, request.samples  # by the relay, and the letters
            digest = _digest([sorted(letters.items()), *(each.tolist() for each in varied)])
            differs = bool(before) and digest not in {line["digest"] for line in before}
            line: dict[str, object] = {
                "from": sorted(letters),
                "digest": digest,
                "attempt": request.attempt,
            }
            line |= {"committed": committed, "repeat": len(before), "differs": differs}
            self._add({**about, **line})

    def answering(self, request: Request, models: Mapping[int, str]) -> None:
        """Count answers to models, digests by owner, in advance; LedgerError at a limit."""
        # The limits are of a round, of a recipient in this run, and of all runs.
        with self._open():
            mine = [line for line in self._mine if "answer-to" in line]
            known = {(line["round"], line["answer-to"], line["model"]) for line in mine}
            new = {k: v for k, v in models.items() if (request.round, k, v) not in known}
            in_round = sum(line["round"] == request.round for line in mine)
            _within("max-answers-per-round", self._limits.max_answers_per_round, in_round, len(new))
            for owner in new:
                got = sum(line["answer-to"] == owner for line in mine)
                _within("max-answers-per-peer", self._limits.max_answers_per_peer, got, 1)
            _within("max-answers", self._limits.max_answers, self._answers, len(new))
            about = {"run": self._run, "round": request.round}
            self._add(*({**about, "answer-to": k, "model": v} for k, v in sorted(new.items())))

    def reporting(
        self, t: int, metrics: Mapping[str, float], weights: Mapping[int, float], budget: float
    ) -> bool:
        """Count the numbers of a report, unless they exceed the `budget` of all runs (False)."""
        # The same metrics of a round count once, and so do weights until they change.
        parts: list[tuple[dict[str, Any], int]] = [
            ({"round": t, "report": _digest(sorted(metrics.items()))}, len(metrics)),
            ({"weights": _digest(sorted(weights.items()))}, len(weights)),
        ]
        with self._open():
            new = [
                (fields, count)
                for fields, count in parts
                if count and not any(fields.items() <= line.items() for line in self._mine)
            ]
            numbers = sum(count for _, count in new)
            if self._numbers + numbers > budget and new:
                return False
            if new:
                about = {key: value for fields, _ in new for key, value in fields.items()}
                self._add({"run": self._run, **about, "round": t, "numbers": numbers})
        return True

    @contextmanager
    def _open(self) -> Iterator[None]:
        """Lock the ledger and count the lines of other processes."""
        with self._journal.locked(_checked) as lines:
            for line in lines:
                self._count(line)
            yield

    def _count(self, line: Mapping[str, Any]) -> None:
        self._answers += "answer-to" in line
        self._numbers += int(line.get("numbers", 0))
        if line.get("run") == self._run:
            self._mine.append(dict(line))

    def _add(self, *lines: Mapping[str, Any]) -> None:
        if lines:
            self._journal.add(*lines)
        for line in lines:
            self._count(line)


def _checked(line: dict[str, Any]) -> dict[str, Any]:
    """Return the line if it has the fields that are counted; else raise an error."""
    numbers = line["round"], line.get("committed", 0), line.get("numbers", 0)
    if not isinstance(line["run"], str) or {*map(type, numbers)} != {int} or numbers[-1] < 0:
        raise TypeError
    if "report" in line or "weights" in line:
        line["numbers"]
    elif "answer-to" in line:
        line["model"]
    else:
        line["heard"], line["digest"]
    return line


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _within(key: str, most: int, answered: int, more: int) -> None:
    if answered + more > most:
        raise LedgerError(f"answers.{key} = {most}: {answered} given, {more} more requested")
