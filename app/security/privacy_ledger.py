"""What a peer's examples have told so far: a file that outlives runs, and that no run can reset.

`institution/privacy-<peer>.jsonl` in the node's `out` has a line for each request that was answered
from gradients of private examples: the Rényi divergences that it cost, at the orders of
`coterie.clients.engine.accountant`. The sum over all runs is what the peer has spent, whichever columns or
labels a run took; a person who has new data begins a new file.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coterie.app.runs import atomic
from coterie.app.security.ledger import LedgerError
from coterie.clients.engine.accountant import ORDERS

Floats = npt.NDArray[np.float64]


class PrivacyLedger:
    """The privacy that one peer has spent, in all runs.

    Parameters
    ----------
    path : of the file. run : name of the run that adds to it.
    """

    def __init__(self, path: Path, run: str) -> None:
        self._path, self._run = path, run

    def spent(self) -> Floats:
        """(A,) Rényi divergences of everything so far.

        Raises
        ------
        LedgerError
            The file is damaged, or of other orders: nothing is answered before a person has looked.
        """
        try:
            rows = [line["rdp"] for line in atomic.lines(self._path)]
            spent_ra = np.array(rows, dtype=np.float64).reshape(-1, len(ORDERS))
        except (KeyError, ValueError) as error:
            why = f"{self._path}: {error}: nothing is answered before a person has looked"
            raise LedgerError(why) from None
        total: Floats = spent_ra.sum(axis=0)
        return total

    def add(self, cost_a: Floats, round_: int) -> None:
        """Write down what a request has cost; before its response leaves the node."""
        if cost_a.any():
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            line = {"time": now, "run": self._run, "round": round_, "rdp": cost_a.tolist()}
            atomic.append(self._path, line)
