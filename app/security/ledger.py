"""What a peer has been asked: a file that outlives runs and restarts, and the limits on it.

`institution/ledger-<peer>.jsonl` in the node's `out` has a line for each set of letters that a
round was played with, and for each answer that was given. A round that is not committed can be
played again; that it was, and whether anything was different, stands here. The same answer to the
same model is counted once: it tells nothing new.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from app.runs import atomic
from app.security.policy import AnswerPolicy
from strategies.protocol import Kind, Request


class LedgerError(ValueError):
    """More is asked than the policy allows, or the ledger is damaged; names the limit."""


class Ledger:
    """The ledger of one peer, seen from one run.

    Parameters
    ----------
    path : of the file.
    run : name of the run.
    limits : how much may be asked.
    """

    def __init__(self, path: Path, run: str, limits: AnswerPolicy) -> None:
        self._path, self._run, self._limits = path, run, limits
        self._bytes_read = 0
        self._mine: list[dict[str, Any]] = []  # the lines of this run
        self._answers = 0  # of all runs

    def heard(self, request: Request, kind: Kind, letters: Mapping[int, str]) -> None:
        """Count that a round is played with these letters.

        Parameters
        ----------
        letters : sender -> digest of the plain letter.

        Raises
        ------
        LedgerError
            The round was played too often.
        """
        self._read()
        about = {"run": self._run, "round": request.round, "heard": kind}
        before = [line for line in self._mine if about.items() <= line.items()]
        if len(before) > self._limits.max_replays:
            raise LedgerError(
                f"answers.max-replays = {self._limits.max_replays}: round {request.round} was "
                f"played {len(before)} times"
            )
        digest = _digest_of(request, letters)
        differs = bool(before) and digest not in {line["digest"] for line in before}
        line = {"from": sorted(letters), "digest": digest, "attempt": request.attempt}
        self._add({**about, **line, "repeat": len(before), "differs": differs})

    def answering(self, request: Request, models: Mapping[int, str]) -> None:
        """Count the answers that are about to be given.

        Parameters
        ----------
        models : owner of a model -> digest of the model; each gets an answer.

        Raises
        ------
        LedgerError
            They are too many for a round, for a recipient in this run, or in all.
        """
        self._read()
        mine = [line for line in self._mine if "answer-to" in line]
        known = {(line["round"], line["answer-to"], line["model"]) for line in mine}
        new = {k: v for k, v in models.items() if (request.round, k, v) not in known}
        in_round = sum(line["round"] == request.round for line in mine)
        _within("max-answers-per-round", self._limits.max_answers_per_round, in_round, len(new))
        for owner in new:
            got = sum(line["answer-to"] == owner for line in mine)
            _within("max-answers-per-peer", self._limits.max_answers_per_peer, got, 1)
        _within("max-answers", self._limits.max_answers, self._answers, len(new))
        for owner, model in sorted(new.items()):
            self._add(
                {"run": self._run, "round": request.round, "answer-to": owner, "model": model}
            )

    def _read(self) -> None:
        """Read what was added since, by this process or another."""
        size = self._path.stat().st_size if self._path.exists() else 0
        if size < self._bytes_read:
            raise LedgerError(f"{self._path} was cut: nothing is answered before it is put back")
        try:
            lines = atomic.lines(self._path, self._bytes_read)
        except ValueError as error:
            raise LedgerError(f"{error}: nothing is answered before a person has looked") from None
        self._bytes_read = size
        self._answers += sum("answer-to" in line for line in lines)
        self._mine += [line for line in lines if line.get("run") == self._run]

    def _add(self, line: Mapping[str, Any]) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        atomic.append(self._path, {"time": now, **line})


def _digest_of(request: Request, letters: Mapping[int, str]) -> str:
    """SHA-256 of all that the relay can vary when it has a round played again."""
    varied = [sorted(letters.items()), request.edges.tolist(), request.asked.tolist()]
    return hashlib.sha256(json.dumps([*varied, request.samples.tolist()]).encode()).hexdigest()


def _within(key: str, most: int, given: int, more: int) -> None:
    if given + more > most:
        raise LedgerError(f"answers.{key} = {most}: {given} were given, {more} more are asked")
