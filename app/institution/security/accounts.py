"""Accounts of a deployed peer: ledgers in `institution/`, memory in each run directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from coterie.app.institution.security.approval import OWN
from coterie.app.institution.security.journal import Journal, LedgerError
from coterie.app.institution.security.ledger import Ledger
from coterie.app.institution.security.memory import Memory, heads_in
from coterie.app.institution.security.policy import AnswerPolicy
from coterie.app.institution.security.privacy_ledger import PrivacyLedger

_LEDGERS = "ledger", "privacy"
"""Beginnings of the files' names: ledgers of answers, and of privacy."""


@dataclass(frozen=True)
class Accounts:
    """Accounts of a peer in a run."""

    answers: Ledger  # over all runs
    privacy: PrivacyLedger  # budgets, over all runs
    memory: Memory  # of this run

    @classmethod
    def of(cls, directory: Path, peer: int, limits: AnswerPolicy) -> Accounts:
        """Open the accounts of a peer in a run; LedgerError: the ledgers are another peer's."""
        out, run = directory.parent, directory.name
        for path in sorted((out / OWN).glob("*.jsonl")):
            kind, _, number = path.stem.partition("-")
            if kind in _LEDGERS and number != f"{peer:04d}":
                raise LedgerError(
                    f"{path} is of peer {number.lstrip('0') or 0}, and this node is peer {peer}: "
                    "give each peer its own `out`; if the number of the institution has changed, "
                    f"rename {number} to {peer:04d} in the names of the files there"
                )
        seen = heads_in(out, peer)
        answers, privacy = (
            Journal(out / OWN / name, seen.get(name, ()))
            for name in (f"{kind}-{peer:04d}.jsonl" for kind in _LEDGERS)
        )
        path = directory / "nodes" / f"mail-{peer:04d}.json"
        memory = Memory(path, (answers, privacy), durable=True)
        return cls(Ledger(answers, run, limits), PrivacyLedger(privacy, run), memory)
