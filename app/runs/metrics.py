"""Read metrics.jsonl, also while it grows; lines are parsed only once.

Shapes: R evaluated rounds, n peers. A missing number (null, or no line for that round and peer) is
NaN; a number that is not finite in the file is infinity, so that a diverged peer is never taken for
one without the metric.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coterie.app.runs import files, units
from coterie.app.runs.files import ResultsError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_WRONG = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
MOST_BYTES = 1 << 30
"""Maximum bytes of the file."""
_LAST = 1 << 53
"""Maximum number of a round."""


class Metrics:
    """Reader of the metrics.jsonl of a run with n peers; empty if the file does not exist."""

    def __init__(self, path: Path, peers: int) -> None:
        self._path = path
        self._peers = peers
        self._begin(inode=0)

    def read(self) -> tuple[Ints, dict[str, Floats], Bools]:
        """Return the evaluated rounds (R,), each field (R, n), and the reporting peers (R, n).

        ResultsError: a line is not a measurement. The last line can be incomplete.
        """
        try:
            opened = files.opened(self._path.parent, self._path.name, MOST_BYTES)
        except FileNotFoundError:
            self._begin(inode=0)
            return self._arrays()
        with opened as file:
            status = os.fstat(file.fileno())
            if status.st_ino != self._inode or status.st_size < self._offset:
                self._begin(status.st_ino)  # a resumed run has truncated it
            file.seek(self._offset)
            block = file.read()
        *lines, rest = block.split(b"\n")
        for line in lines:
            self._number += 1
            try:
                self._add(line)
            except _WRONG as error:
                number = self._number
                self._begin(inode=0)
                why = f"no {error}" if isinstance(error, KeyError) else error
                raise ResultsError(f"{self._path}:{number}: not a measurement: {why}") from error
        self._offset += len(block) - len(rest)
        with suppress(*_WRONG):
            self._add(rest)
        return self._arrays()

    def _begin(self, inode: int) -> None:
        self._inode, self._offset, self._number = inode, 0, 0
        self._fields: dict[str, dict[int, Floats]] = {}  # field -> round -> (n,)
        self._reported: dict[int, Bools] = {}  # round -> (n,)
        self.named: dict[int, object] = {}  # peer -> name in its last line

    def _add(self, line: bytes) -> None:
        """Add a line; an invalid line changes nothing."""
        if not line.strip():
            return
        record = json.loads(line)
        t, peer, name = record.pop("round"), record.pop("peer"), record.pop("peer_name", None)
        lies = float(record.pop("attacker", False))
        values = {name: _number(value) for name, value in record.items()}
        if lies:
            values["attacker"] = lies
        if not (type(t) is type(peer) is int and 0 <= peer < self._peers and 0 <= t <= _LAST):
            raise ValueError(f"no round and peer below {self._peers}")
        self._make_room(t, values)
        reported_n = self._reported.setdefault(t, np.zeros(self._peers, dtype=np.bool_))
        if reported_n[peer]:  # a resumed run may repeat a round; the last line counts
            for of_round in self._fields.values():
                if t in of_round:
                    of_round[t][peer] = np.nan
        reported_n[peer] = True
        self.named[peer] = name
        for name, value in values.items():
            of_round = self._fields.setdefault(name, {})
            if t not in of_round:
                of_round[t] = np.full(self._peers, np.nan)
            of_round[t][peer] = value

    def _make_room(self, t: int, names: Collection[str]) -> None:
        """Refuse a line that makes the arrays too large; a field has a value per round and peer."""
        fields = len(self._fields) + sum(name not in self._fields for name in names)
        rounds = len(self._reported) + (t not in self._reported)
        if 8 * fields * rounds * self._peers > files.memory():
            raise ValueError(
                f"{fields} fields of {self._peers} peers in {rounds} rounds take more than "
                f"{units.size(files.memory())}"
            )

    def _arrays(self) -> tuple[Ints, dict[str, Floats], Bools]:
        rounds = sorted(self._reported)
        missing_n = np.full(self._peers, np.nan)
        metrics = {
            name: np.stack([of_round.get(t, missing_n) for t in rounds])
            for name, of_round in self._fields.items()
        }
        reported = np.zeros((len(rounds), self._peers), dtype=np.bool_)
        for row, t in enumerate(rounds):
            reported[row] = self._reported[t]
        return np.array(rounds, dtype=np.int64), metrics, reported


def _number(value: object) -> float:
    if value is None:
        return np.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{value!r} is not a number")
    return float(value) if math.isfinite(value) else np.inf
