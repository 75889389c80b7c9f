"""Privacy ledger: the privacy that a peer has spent in all runs.

`institution/privacy-<peer>.jsonl` in the node's `out` has a line for each set of gradients on
private examples: their Rényi divergences at the orders of `coterie.clients.engine.accountant`. The
budget is checked and the line is written under a lock over all processes, before the gradients are
computed. A crash therefore leaves nothing uncharged, and parallel runs share one budget. Gradients
that were charged and then lost in a crash stay charged. The peer has spent the sum over all
runs, whichever columns or labels they used.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.app.institution.security.journal import Journal, LedgerError
from coterie.clients.engine import accountant
from coterie.clients.engine.accountant import ORDERS

Floats = npt.NDArray[np.float64]
_PREFIX = "privacy-"


def spent_by_peer(own: Path, delta: float) -> dict[str, float]:
    """Return the epsilon that each peer has spent in all runs, from a node's `institution/`."""
    return {
        path.stem.removeprefix(_PREFIX).lstrip("0") or "0": float(
            accountant.epsilon(PrivacyLedger(Journal(path), "").spent()[None], delta)[0]
        )
        for path in sorted(own.glob(f"{_PREFIX}*.jsonl"))
    }


class PrivacyLedger:
    """Privacy that a peer has spent, in all runs; `run` is the one that spends the budget."""

    def __init__(self, journal: Journal, run: str) -> None:
        self._journal, self._run = journal, run
        self._spent = np.zeros(len(ORDERS))

    def spent(self) -> Floats:
        """Return the Rényi divergences of all runs so far, (A,); LedgerError: changed."""
        with self._open():
            return self._spent.copy()

    @contextmanager
    def account(self, round_: int) -> Iterator[tuple[Floats, Floats]]:
        """Lock the ledger in order to spend: a `coterie.clients.engine.privacy.Account`."""
        # Yields the divergences spent so far (1, A), and zeros (1, A) to which the caller adds its
        # cost, which is on disk when the context ends; after an error nothing is written.
        with self._open():
            cost_1a = np.zeros((1, len(ORDERS)))
            yield self._spent[None].copy(), cost_1a
            if not cost_1a.any():
                return
            line = {"run": self._run, "round": round_, "rdp": cost_1a[0].tolist()}
            try:
                cost_a = _cost(line)
            except ValueError as error:
                raise LedgerError(f"run {self._run}, round {round_}: {error}") from None
            self._journal.add(line)
            self._spent = self._spent + cost_a

    @contextmanager
    def _open(self) -> Iterator[None]:
        with self._journal.locked(_cost) as costs:
            for cost_a in costs:  # in order, so that every process rounds the sum in the same way
                self._spent = self._spent + cost_a
            yield


def _cost(line: dict[str, Any]) -> Floats:
    """Return the cost of a line, (A,); raise ValueError if the line is invalid."""
    cost_a = np.array(line["rdp"], dtype=np.float64)
    if cost_a.shape != (len(ORDERS),) or not (np.isfinite(cost_a) & (cost_a >= 0)).all():
        raise ValueError(f"a cost is {len(ORDERS)} finite numbers of at least 0")
    return cost_a
