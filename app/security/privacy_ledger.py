"""What a peer's examples have told so far: a file that outlives runs, and that no run can reset.

`institution/privacy-<peer>.jsonl` in the node's `out` has a line for each set of gradients that the
peer was about to compute on private examples: the Rényi divergences that they cost, at the orders
of `clients.engine.accountant`. A line is on the disk before the first of the gradients is computed,
under a lock over all processes: nothing that a run does later, and no crash, leaves anything
uncharged, and runs side by side share one budget. What was charged and then lost in a crash stays
charged. The sum over all runs is what the peer has spent, whichever columns or labels a run took.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from app.security.journal import Journal, LedgerError
from clients.engine.accountant import ORDERS

Floats = npt.NDArray[np.float64]


class PrivacyLedger:
    """The privacy that one peer has spent, in all runs.

    Parameters
    ----------
    journal : the file.
    run : name of the run that adds to it.
    """

    def __init__(self, journal: Journal, run: str) -> None:
        self._journal, self._run = journal, run
        self._spent = np.zeros(len(ORDERS))

    def spent(self) -> Floats:
        """(A,) Rényi divergences of everything so far.

        Raises
        ------
        LedgerError
            The file is not what was written, or of other orders.
        """
        with self._open():
            return self._spent.copy()

    @contextmanager
    def account(self, round_: int) -> Iterator[tuple[Floats, Floats]]:
        """Have the ledger alone, in order to spend.

        Yields what has been spent (1, A) and what is to be added (1, A); the latter is on the disk
        when this is left. Nothing is added where an error leaves it.

        Raises
        ------
        LedgerError
            As in `spent`; or what is to be added is negative or not finite.
        """
        with self._open():
            cost_1a = np.zeros((1, len(ORDERS)))
            yield self._spent[None].copy(), cost_1a
            if not cost_1a.any():
                return
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            line = {"time": now, "run": self._run, "round": round_, "rdp": cost_1a[0].tolist()}
            try:
                cost_a = _cost(line)
            except ValueError as error:
                raise LedgerError(f"run {self._run}, round {round_}: {error}") from None
            self._journal.add(line)
            self._spent = self._spent + cost_a

    @contextmanager
    def _open(self) -> Iterator[None]:
        with self._journal.locked(_cost) as costs:
            for cost_a in costs:  # one after the other, as they were added: the same sum everywhere
                self._spent = self._spent + cost_a
            yield


def _cost(line: dict[str, Any]) -> Floats:
    """(A,) what a line says; ValueError where that is no cost."""
    cost_a = np.array(line["rdp"], dtype=np.float64)
    if cost_a.shape != (len(ORDERS),) or not (np.isfinite(cost_a) & (cost_a >= 0)).all():
        raise ValueError(f"a cost is {len(ORDERS)} finite numbers of at least 0")
    return cost_a
