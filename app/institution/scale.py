"""Common scale of a deployed node's table: the statistics that it sends, and the scale of all.

Before round 1 each node sends the statistics of its columns to all peers, in a sealed letter. Every
node combines the same letters, so all have the same scale. What left stands in
`statistics-0003.csv` of the node's run directory, the scale in `nodes/scale-0003.json`.

The means before and after one patient more would give that patient's values. So they are rounded to
their standard errors, and a node sends what it sent in an earlier run until enough of its values
are new (`Memory`).
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.digest import config_digest_of
from coterie.app.institution.security.approval import OWN
from coterie.app.institution.security.disclosure import step_below, to_step
from coterie.app.institution.security.policy import Policy
from coterie.app.institution.security.run_check import shares_statistics
from coterie.app.institution.security.split import secret
from coterie.app.runs import atomic
from coterie.app.wire.payload import LetterFormat, RemoteLetters
from coterie.clients.leakage import units
from coterie.datasets.own.scale import agreed, combined, known, publishable, rescaled, statistics
from coterie.datasets.own.tabular import TableOptions
from coterie.datasets.preprocessing import Column, Floats
from coterie.datasets.problem import DataError, Problem
from coterie.strategies.protocol import PeerMessage

DIGITS = 3
"""Significant digits of a number of values."""
_MEMORY = "statistics.jsonl"
_NAME = "statistics"
_ROWS = ""
"""Name, in the memory, of all columns together."""
_LARGEST = 1e100
_FAR = 100.0
"""Maximum deviation and distance of a node's values on the common scale; the inverse is the minimum
deviation."""
_log = logging.getLogger("coterie.data")


class SharedScale:
    """Statistics of one peer, and the scale that follows from those of all."""

    # `problem` is on the common scale once that is known, until then on the node's own.

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
        # Zero where a node sends no statistics.
        self.form = LetterFormat({_NAME: ((3, len(self._columns)), torch.float64)})
        self._own, self._sent = statistics(problem, peer), np.zeros((3, len(self._columns)))
        self.fewest: int | None = None
        """Minimum number of patients behind a statistic, or behind what is new in it."""
        if policy is None or shares_statistics(policy, config):
            minimum = 1 if policy is None else policy.data.min_examples
            groups = None if problem.groups is None else problem.groups[problem.train.rows[peer]]
            self._sent = disclosed(known(problem, peer), self._columns, minimum, groups)
            if policy is not None:
                parts = problem.train, problem.validation, problem.test
                rows, most = np.concatenate([part.rows[peer] for part in parts]), 1
                if problem.groups is not None:  # a patient more is that many values more
                    most = int(np.unique(problem.groups[rows], return_counts=True)[1].max())
                memory = Memory(directory.parent / OWN)
                of_table = problem.table.cells[rows], self._columns, minimum * most
                self._sent = memory.held(self._sent, *of_table)
                sent = ~np.isnan(known(problem, peer)[:, self._sent[0] > 0])
                behind = [units(column, groups) for column in sent.T]
                behind += [] if memory.newest is None else [memory.newest // most]
                self.fewest = min(behind, default=None)
        self._scale_2c = scale_2c = self._stored()
        self.problem = problem if scale_2c is None else rescaled(problem, scale_2c, self._missing)

    @property
    def is_known(self) -> bool:
        """True if this node has the scale of the run."""
        return self._scale_2c is not None

    def letter(self) -> PeerMessage:
        """Return the letter to all peers; what it holds is written beside the audit log."""
        names = [atomic.safe(column.name) for column in self._columns]
        rows = [row for row in zip(names, *self._sent, strict=True) if row[1]]
        text = atomic.as_csv([("column", "count", "mean", "variance"), *rows])
        atomic.write(self._directory / f"statistics-{self._peer:04d}.csv", text)
        payload = self.form.encode({_NAME: torch.from_numpy(self._sent)[None]}, 0)
        return PeerMessage("statistics", self._peer, None, 0, self.form.nbytes, payload)

    def require_readers(self, letters: Sequence[PeerMessage]) -> None:
        """Check that all others can read the sealed letter; ConfigError names those that cannot."""
        others = sorted({*range(self._peers)} - {self._peer})
        if lacking := [k for k in others if not any(letter.opens_for(k) for letter in letters)]:
            raise ConfigError(
                f"table.scale: the statistics of all peers make the common scale, but peers "
                f'{lacking} are not in the trust file: add them, or set table.scale = "schema"'
            )

    def combine(
        self, letters: RemoteLetters, samples: Sequence[int] | npt.NDArray[np.int64]
    ) -> bool:
        """Put the problem on the scale of all statistics; return False if it is on it already."""
        # DataError: a letter is missing or wrong, a column has no scale, or the run began with
        # another one.
        statistics_p = {self._peer: self._sent}
        for (peer, _), content in letters.items():
            if peer < self._peers:  # the trust file can have others
                statistics_p[peer] = content[_NAME].numpy()
        if lacking := sorted({*range(self._peers)} - statistics_p.keys()):
            if self.is_known:
                return False
            raise DataError(
                f"table.scale: no valid statistics of peers {lacking}: the common scale needs "
                'those of all peers; or set table.scale = "schema"'
            )
        if silent := sorted(k for k, values in statistics_p.items() if not values[0].any()):
            _log.warning("peers %s share no statistics: the scale is that of schema.toml", silent)
            scale_2c = agreed(self._columns)
        else:
            most_p = samples if len(samples) == self._peers else [_LARGEST] * self._peers
            for k, values in statistics_p.items():
                check_sound(k, values, float(most_p[k]))
            scale_2c = combined([statistics_p[k] for k in sorted(statistics_p)])
            scale_2c = completed(scale_2c, self._columns)
            check_near(self._own, scale_2c, self._columns, statistics_p)
        if self._scale_2c is not None:
            if not np.allclose(scale_2c, self._scale_2c, rtol=1e-9, atol=0, equal_nan=True):
                raise DataError(
                    f"table.scale: the scale differs from that with which this run began "
                    f"({self._file}): data or a policy changed; start it under another name"
                )
            return False
        stored = {
            "config": self._run,
            "columns": [column.name for column in self._columns],
            "mean": scale_2c[0].tolist(),
            "scale": scale_2c[1].tolist(),
        }
        atomic.write(self._file, json.dumps(stored) + "\n", durable=True)
        self.problem, self._scale_2c = rescaled(self.problem, scale_2c, self._missing), scale_2c
        return True

    def _stored(self) -> Floats | None:
        """Return the scale with which this run began on this node, (2, c); None before."""
        if not self._file.exists():
            return None
        try:
            content = json.loads(self._file.read_text(encoding="utf-8"))
            run, names = content["config"], content["columns"]
            scale_2c = np.array([content["mean"], content["scale"]], dtype=np.float64)
            is_whole = scale_2c.shape == (2, len(names))
        except (ValueError, KeyError, TypeError, RecursionError):
            is_whole = False
        if not is_whole:
            raise atomic.DamagedError(
                f"{self._file}: damaged; put it back, or start again under another name"
            )
        if run != self._run:
            return None
        if names != [column.name for column in self._columns]:
            raise DataError(
                f"table: the columns here are not those with which this run began ({self._file}): "
                "start it under another name"
            )
        return scale_2c


def disclosed(
    cells: Floats,
    columns: Sequence[Column],
    min_values: int,
    groups: npt.NDArray[np.int64] | None = None,
) -> Floats:
    """Return the statistics that may leave, (3, c), rounded; zero: none. See `publishable`."""
    result = np.zeros((3, len(columns)))
    for c, column in enumerate(columns):
        at = ~np.isnan(cells[:, c])
        values = publishable(cells[at, c], min_values, None if groups is None else groups[at])
        if column.kind != "category" and len(values):
            n, mean, variance = len(values), values.mean(), values.var()
            if variance > 0:  # errors of the mean, and of the variance of normal values
                mean = to_step(mean, step_below(math.sqrt(variance / n)))
                variance = to_step(variance, step_below(variance * math.sqrt(2 / n)))
            result[:, c] = float(f"{n:.{DIGITS - 1}e}"), mean, variance
    return result


class Memory:
    """Statistics sent in all runs, with keyed hashes of the values that they are about."""

    def __init__(self, own: Path) -> None:
        self._file, self._key = own / _MEMORY, secret(own)
        self.newest: int | None = None  # minimum number of new values that made `held` send again

    def held(self, sent_3c: Floats, cells: Floats, columns: Sequence[Column], least: int) -> Floats:
        """Return the statistics that leave, (3, c): earlier ones until `least` values are new."""
        # `cells` (n, c) are those of all the peer's rows: another division of them is nothing new.
        result = sent_3c.copy()
        with atomic.locked(self._file.with_suffix(".lock")):
            earlier = atomic.lines(self._file)
            for c in np.flatnonzero(sent_3c[0]).tolist():
                values = np.asarray(cells[~np.isnan(cells[:, c]), c], dtype="<f8")
                name, marks = columns[c].name, self._marks(each.tobytes() for each in values)
                of_column = (line for line in earlier if line["column"] == name)
                apart = [(_new(marks, Counter(line["values"])), line) for line in of_column]
                new, nearest = min(apart, key=lambda each: each[0], default=(least, {}))
                if new < least:
                    result[:, c] = nearest["statistics"]
                    continue
                new = new if nearest else marks.total()
                self.newest = new if self.newest is None else min(self.newest, new)
                line = {"column": name, "statistics": result[:, c].tolist()}
                atomic.append(self._file, {**line, "values": [*marks.elements()]})
        return result

    def changed(self, rows_nm: Floats, groups_n: npt.NDArray[np.int64] | None) -> int | None:
        """Return by how few patients rows differ from those of an earlier exact letter; else None.

        A letter is exact if it is a sum over patients: the difference of two tells of those that
        only one of them has.
        """
        of_n = np.arange(len(rows_nm)) if groups_n is None else groups_n
        rows_nm = np.asarray(rows_nm, dtype="<f8")
        marks = self._marks(np.sort(rows_nm[of_n == u], axis=0).tobytes() for u in np.unique(of_n))
        with atomic.locked(self._file.with_suffix(".lock")):
            earlier = atomic.lines(self._file)
            before = (Counter(line["values"]) for line in earlier if line["column"] == _ROWS)
            apart = [_new(marks, each) for each in before]
            if 0 not in apart:
                line = {"column": _ROWS, "statistics": [], "values": [*marks.elements()]}
                atomic.append(self._file, line)
        return min(filter(None, apart), default=None)

    def _marks(self, values: Iterable[bytes]) -> Counter[str]:
        hashed = (blake2b(each, key=self._key, digest_size=8) for each in values)
        return Counter(each.hexdigest() for each in hashed)


def _new(one: Counter[str], other: Counter[str]) -> int:
    """Return the number of values that are in one of two collections only; replaced ones once."""
    return max((one - other).total(), (other - one).total())


def completed(scale_2c: Floats, columns: Sequence[Column]) -> Floats:
    """Return the scale, that of schema.toml (else DataError) where no peer sent statistics."""
    schema_2c = np.array([(each.mean, each.scale) for each in columns], dtype=np.float64).T
    scale_2c = np.where(np.isnan(scale_2c), schema_2c, scale_2c)
    unscaled = np.isnan(scale_2c[0]) & [each.kind != "category" for each in columns]
    if names := [each.name for each, c in zip(columns, unscaled, strict=True) if c]:
        raise DataError(
            f"table.scale: no institution has data.min-examples different values of "
            f"{', '.join(names)}, so no statistics of it left: leave it out, or write mean and "
            "scale of it into schema.toml"
        )
    return scale_2c


def check_sound(peer: int, statistics_3c: Floats, samples: float) -> None:
    """Refuse statistics that no rows of a peer with so many training examples have."""
    count_c, mean_c, variance_c = statistics_3c
    most = min(_LARGEST, samples * (1 + 0.5 * 10.0 ** (1 - DIGITS)))  # a count is rounded too
    is_sound = (count_c >= 0) & (variance_c >= 0) & (np.abs(mean_c) <= _LARGEST)
    if not (is_sound & (count_c <= most) & (variance_c <= _LARGEST)).all():
        raise DataError(f"table.scale: peer {peer} sent statistics that no rows have")


def check_near(
    own_3c: Floats, scale_2c: Floats, columns: Sequence[Column], statistics_p: Mapping[int, Floats]
) -> None:
    """Refuse a scale, perhaps invented, on which cells stand out here, or all are alike."""
    (count_c, mean_c, variance_c), (common_c, scale_c) = np.nan_to_num(own_3c), scale_2c
    own_c = np.sqrt(variance_c)
    is_far_c = np.maximum(own_c, np.abs(mean_c - common_c)) > _FAR * scale_c
    is_far_c |= (own_c > 0) & (scale_c > _FAR * own_c)
    far = []
    for c in np.flatnonzero(is_far_c & (count_c > 0)).tolist():
        distance_p = {
            peer: max(abs(mean[c] - mean_c[c]), abs(np.sqrt(variance[c]) - own_c[c]))
            for peer, (count, mean, variance) in statistics_p.items()
            if count[c]
        }
        most = max(distance_p, key=lambda peer: distance_p[peer], default=None)
        far.append(f"{columns[c].name} ({'schema.toml' if most is None else f'peer {most}'})")
    if far:
        raise DataError(
            f"table.scale: on the common scale the values here are more than {_FAR:g} deviations "
            f"wide or away, or less than 1/{_FAR:g} of one wide, in columns (what differs most): "
            f"{', '.join(far)}. Compare units and outliers with the other institutions, or set "
            'table.scale = "schema"'
        )
