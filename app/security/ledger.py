"""What a peer has been asked and has reported, over all runs and restarts, and the limits on it.

`institution/ledger-<peer>.jsonl` in the node's `out` has a line for each set of letters that a
round was played with, for each answer that was given, and for each report with numbers about own
data. A round that is not committed can be played again; that it was, and whether anything was
different, stands here. The same answer to the same model is counted once, and so is the same report
of a round: they tell nothing new. Processes that use the file at the same time wait for each other.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
        self._numbers = 0  # reported in all runs

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
        with self._open():
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
            for owner, model in sorted(new.items()):
                self._add(
                    {"run": self._run, "round": request.round, "answer-to": owner, "model": model}
                )

    def reporting(
        self, t: int, metrics: Mapping[str, float], weights: Sequence[float], budget: float
    ) -> bool:
        """Count the numbers of a report, unless they exceed the budget of all runs.

        The same metrics of a round, and the same weights in a run, are counted once.

        Parameters
        ----------
        t : the round.
        metrics : about own examples.
        weights : that the peer gives to others.
        budget : of numbers in all runs together.

        Returns
        -------
        True if they may be reported.

        Raises
        ------
        LedgerError
            The ledger is damaged.
        """
        said = {"run": self._run, "round": t, "metrics": _digest(sorted(metrics.items()))}
        gives = {"run": self._run, "weights": _digest(list(weights))}
        with self._open():
            new = [
                (line, count)
                for line, count in ((said, len(metrics)), (gives, len(weights)))
                if count and not any(line.items() <= known.items() for known in self._mine)
            ]
            if not new:
                return True
            numbers = sum(count for _, count in new)
            if self._numbers + numbers > budget:
                return False
            about = {key: value for line, _ in new for key, value in line.items()}
            self._add({**about, "round": t, "numbers": numbers})
        return True

    @contextmanager
    def _open(self) -> Iterator[None]:
        """Read what others have added, and let nobody add anything meanwhile."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.with_suffix(".lock").open("a") as lock:
            if sys.platform != "win32":
                import fcntl

                fcntl.flock(lock, fcntl.LOCK_EX)
            self._read()
            yield

    def _read(self) -> None:
        """Read what was added since, by this process or another."""
        size = self._path.stat().st_size if self._path.exists() else 0
        if size < self._bytes_read:
            raise LedgerError(f"{self._path} was cut: nothing is answered before it is put back")
        try:
            lines = atomic.lines(self._path, self._bytes_read)
            numbers = [line.get("numbers", 0) for line in lines]
            if not all(type(number) is int and number >= 0 for number in numbers):
                raise ValueError(f"{self._path} has a line that is damaged")
        except ValueError as error:
            raise LedgerError(f"{error}: nothing is answered before a person has looked") from None
        self._bytes_read = size
        self._answers += sum("answer-to" in line for line in lines)
        self._numbers += sum(numbers)
        self._mine += [line for line in lines if line.get("run") == self._run]

    def _add(self, line: Mapping[str, Any]) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        atomic.append(self._path, {"time": now, **line})


def _digest(content: object) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _digest_of(request: Request, letters: Mapping[int, str]) -> str:
    """SHA-256 of all that the relay can vary when it has a round played again."""
    varied = [sorted(letters.items()), request.edges.tolist(), request.asked.tolist()]
    return _digest([*varied, request.samples.tolist()])


def _within(key: str, most: int, given: int, more: int) -> None:
    if given + more > most:
        raise LedgerError(f"answers.{key} = {most}: {given} were given, {more} more are asked")
