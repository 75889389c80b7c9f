"""Common scale of a deployed node's table: the statistics that it sends, and the scale of all.

Before round 1 each node sends the statistics of its columns to all peers, in a sealed letter. Every
node combines the same letters, so all have the same scale. What left stands in
`statistics-0003.csv` of the node's run directory, the scale in `nodes/scale-0003.json`.
"""

from __future__ import annotations

import csv
import io
import json
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.digest import config_digest_of
from coterie.app.runs import atomic
from coterie.app.security.policy import Policy
from coterie.app.wire.payload import Foreign, LetterFormat
from coterie.datasets.own.scale import agreed, combined, rescaled, statistics
from coterie.datasets.own.tabular import TableOptions
from coterie.datasets.preprocessing import Floats
from coterie.datasets.problem import DataError, Problem
from coterie.strategies.protocol import PeerMessage

DIGITS = 3
"""Significant digits of a statistic."""
_NAME = "statistics"
_LARGEST = 1e100
_FAR = 100.0
"""Maximum deviation and distance of a node's values on the common scale."""
_log = logging.getLogger("coterie.data")


class SharedScale:
    """Statistics of one peer, and the scale that follows from those of all.

    Parameters
    ----------
    problem : Problem
        Problem with this node's data, on their own scale.

    Attributes
    ----------
    form : LetterFormat
        Format of the letters with statistics: (3, columns), zero where a node sends none.
    problem : Problem
        Problem on the common scale, or on its own as long as the scale is not known.
    """

    def __init__(
        self, config: Config, problem: Problem, peer: int, directory: Path, policy: Policy | None
    ) -> None:
        assert problem.table is not None
        assert isinstance(config.dataset_options, TableOptions)
        self._columns, self._peer, self._peers = problem.table.columns, peer, config.peers
        self._missing = config.dataset_options.missing
        self._run = config_digest_of(config).hex()
        self._directory = directory
        self._file = directory / "nodes" / f"scale-{peer:04d}.json"
        self.form = LetterFormat({_NAME: ((3, len(self._columns)), torch.float64)})
        self._own, self._sent = statistics(problem, peer), np.zeros((3, len(self._columns)))
        if policy is None or policy.shares_statistics:
            minimum = 1 if policy is None else policy.data.min_examples
            self._sent = disclosed(self._own, minimum)
        scale_2c = self._stored()
        self.is_known = scale_2c is not None
        self.problem = problem if scale_2c is None else rescaled(problem, scale_2c, self._missing)

    def letter(self) -> PeerMessage:
        """Return the letter to all peers; what it holds is written beside the audit log."""
        rows = np.array([column.name for column in self._columns]), *self._sent
        text = io.StringIO()
        table = csv.writer(text)
        table.writerow(["column", "count", "mean", "variance"])
        table.writerows(row for row in zip(*rows, strict=True) if row[1])
        atomic.write(self._directory / f"statistics-{self._peer:04d}.csv", text.getvalue())
        payload = self.form.encode({_NAME: torch.from_numpy(self._sent)[None]}, 0)
        return PeerMessage("statistics", self._peer, None, 0, self.form.nbytes, payload)

    def require_readers(self, letters: Sequence[PeerMessage]) -> None:
        """Check that all other peers can read the sealed letter.

        Raises
        ------
        ConfigError
            Names the peers that cannot.
        """
        others = sorted({*range(self._peers)} - {self._peer})
        if lacking := [k for k in others if not any(letter.opens_for(k) for letter in letters)]:
            raise ConfigError(
                f"table.scale: the statistics of all peers make the common scale, but peers "
                f'{lacking} are not in the trust file: add them, or set table.scale = "schema"'
            )

    def combine(self, letters: Foreign) -> None:
        """Put the problem on the scale of this node's statistics and of those received.

        Raises
        ------
        DataError
            A letter is missing or wrong, or a peer shares nothing and schema.toml has no scale.
        """
        statistics_p = {self._peer: self._sent}
        for (peer, _), content in letters.items():
            if peer < self._peers:  # the trust file can have others
                statistics_p[peer] = content[_NAME].numpy()
        if lacking := sorted({*range(self._peers)} - statistics_p.keys()):
            raise DataError(
                f"table.scale: no valid statistics of peers {lacking}: the common scale needs "
                'those of all peers; or set table.scale = "schema"'
            )
        if silent := sorted(k for k, values in statistics_p.items() if not values[0].any()):
            _log.warning("peers %s share no statistics: the scale is that of schema.toml", silent)
            scale_2c = agreed(self._columns)
        else:
            scale_2c = combined([checked(statistics_p[k]) for k in sorted(statistics_p)])
            check_near(self._own, scale_2c, [column.name for column in self._columns])
        stored = {
            "config": self._run,
            "columns": [column.name for column in self._columns],
            "mean": scale_2c[0].tolist(),
            "scale": scale_2c[1].tolist(),
        }
        atomic.write(self._file, json.dumps(stored) + "\n", durable=True)
        self.problem, self.is_known = rescaled(self.problem, scale_2c, self._missing), True

    def _stored(self) -> Floats | None:
        """Return the scale with which this run began on this node, (2, c); None before."""
        if not self._file.exists():
            return None
        content = json.loads(self._file.read_text(encoding="utf-8"))
        if content["config"] != self._run:
            return None
        return np.array([content["mean"], content["scale"]], dtype=np.float64)


def disclosed(statistics_3c: Floats, min_values: int) -> Floats:
    """Return the statistics that may leave an institution, rounded; zero for the other columns.

    A column with too few values is left out, and so is one that has the same value in all rows: its
    mean would be the value of every patient.
    """
    count_c, _, variance_c = np.nan_to_num(statistics_3c)
    may_leave = (count_c >= min_values) & (variance_c > 0)
    digits = (float(f"{value:.{DIGITS - 1}e}") for value in statistics_3c.flat)
    rounded = np.fromiter(digits, dtype=np.float64).reshape(statistics_3c.shape)
    return np.where(may_leave, rounded, 0.0)


def checked(statistics_3c: Floats) -> Floats:
    """Return received statistics.

    Raises
    ------
    DataError
        No rows have them.
    """
    count_c, mean_c, variance_c = statistics_3c
    is_sound = (count_c >= 0) & (variance_c >= 0) & (np.abs(mean_c) <= _LARGEST)
    if not (is_sound & (count_c <= _LARGEST) & (variance_c <= _LARGEST)).all():
        raise DataError("table.scale: a peer sent statistics that no rows have")
    return statistics_3c


def check_near(own_3c: Floats, scale_2c: Floats, names: Sequence[str]) -> None:
    """Refuse a scale that makes single cells of this node stand out: a peer may have invented it.

    Raises
    ------
    DataError
        Names the columns.
    """
    (count_c, mean_c, variance_c), (common_c, scale_c) = np.nan_to_num(own_3c), scale_2c
    is_far = np.maximum(np.sqrt(variance_c), np.abs(mean_c - common_c)) > _FAR * scale_c
    if far := [name for name, c in zip(names, is_far & (count_c > 0), strict=True) if c]:
        raise DataError(
            f"table.scale: on the common scale the values here of {', '.join(far)} are more than "
            f"{_FAR:g} deviations wide or away: compare units with the other institutions, or set "
            'table.scale = "schema"'
        )
