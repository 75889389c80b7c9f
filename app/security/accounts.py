"""The files by which a deployed node knows, in any process, what it has done, spent and answered.

In `institution/` of its `out`, for all runs: the ledger of answers and that of privacy. In each run
directory: the run's memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from app.security.approval import OWN
from app.security.journal import Journal
from app.security.ledger import Ledger
from app.security.memory import Memory, heads_in
from app.security.policy import AnswerPolicy
from app.security.privacy_ledger import PrivacyLedger


@dataclass(frozen=True)
class Accounts:
    """What is kept of one peer, seen from one run.

    Attributes
    ----------
    answers, privacy : of all runs.
    memory : of this run.
    """

    answers: Ledger
    privacy: PrivacyLedger
    memory: Memory

    @classmethod
    def of(cls, directory: Path, peer: int, limits: AnswerPolicy) -> Accounts:
        """The accounts of a peer in the run of a directory."""
        out, run = directory.parent, directory.name
        seen = heads_in(out, peer)
        answers, privacy = (
            Journal(out / OWN / name, seen.get(name, ()))
            for name in (f"ledger-{peer:04d}.jsonl", f"privacy-{peer:04d}.jsonl")
        )
        path = directory / "nodes" / f"mail-{peer:04d}.json"
        memory = Memory(path, (answers, privacy), durable=True)
        return cls(Ledger(answers, run, limits), PrivacyLedger(privacy, run), memory)
