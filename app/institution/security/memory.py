"""Memory of a node about a run: committed rounds, offers sent, newest offers accepted.

It is `nodes/mail-<peer>.json` in the run directory. A digest detects damage. The file also records
the heads of the ledgers in `institution/`, and these record which rounds were committed: neither
can be rolled back to an older copy without the other.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.app.institution.security.journal import Head, Journal
from coterie.app.runs import atomic


class Memory:
    """Memory of a node about a run, empty before the first `keep`; on disk only with a path."""

    def __init__(
        self, path: Path | None, journals: Sequence[Journal] = (), *, durable: bool = False
    ) -> None:
        self.path, self._journals, self._durable = path, journals, durable
        self.committed = 0  # last round that the relay announced as committed
        self.offered: dict[str, str] = {}  # "round peer" -> digest of a hosted peer's offer
        self.heard: dict[str, int] = {}  # sender -> round of its newest accepted offer
        self._heads: dict[str, Head] = {}

    def recall(self, at_least: int = 0) -> None:
        """Read the file again; another process may have written it."""
        # DamagedError: it was changed, removed, or rolled back to before round `at_least`.
        assert self.path is not None
        record = _read(self.path) if self.path.exists() else {}
        self.committed = record.get("committed", 0)
        self.offered, self.heard = record.get("offered", {}), record.get("heard", {})
        self._heads = {name: Head(*head) for name, head in record.get("ledgers", {}).items()}
        if self.committed < at_least:
            raise atomic.DamagedError(
                f"{self.path} ends with round {self.committed}, but round {at_least} is over: the "
                "file was removed or rolled back; put it back, or start again under another name"
            )

    def commit(self, committed: int) -> None:
        """Record that rounds up to `committed` are over."""
        self.committed = committed
        self.offered = {k: v for k, v in self.offered.items() if int(k.split()[0]) > committed}
        self.keep()

    def keep(self) -> None:
        """Write the file."""
        if self.path is None:
            return
        self._heads |= self._now()
        record = {
            "committed": self.committed, "offered": self.offered, "heard": self.heard,
            "ledgers": self._heads,
        }  # fmt: skip
        digest = _digest(self.path, record)
        atomic.write(self.path, json.dumps(record | {"digest": digest}), durable=self._durable)

    def keep_heads(self) -> None:
        """Write the file if a ledger has grown since."""
        if self._now().items() - self._heads.items():
            self.keep()

    def _now(self) -> dict[str, Head]:
        return {each.path.name: each.head for each in self._journals if each.head.size}


def heads_in(out: Path, peer: int) -> Mapping[str, Sequence[Head]]:
    """Collect the heads of a peer's ledgers that the runs in `out` have recorded, by file name."""
    by_file: dict[str, list[Head]] = {}
    for path in out.glob(f"*/nodes/mail-{peer:04d}.json"):
        try:
            heads: dict[str, Any] = _read(path).get("ledgers", {})
        except (OSError, atomic.DamagedError):  # the error stops its own run only
            continue
        for name, head in heads.items():
            by_file.setdefault(name, []).append(Head(*head))
    return by_file


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        digest = record.pop("digest")
    except (ValueError, KeyError, AttributeError, TypeError):
        record, digest = {}, None
    if digest != _digest(path, record):
        raise atomic.DamagedError(
            f"{path}: damaged, or of another run or version; put a copy of it back, or begin again "
            "under another name"
        )
    return dict(record)


def _digest(path: Path, record: Mapping[str, Any]) -> str:
    """Hash a record together with its file name and the name of its run."""
    where = f"{path.parents[1].name} {path.name} "
    return hashlib.sha256((where + json.dumps(record, sort_keys=True)).encode()).hexdigest()
