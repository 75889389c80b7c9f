"""Checkpoints of a node: the states of its peers on disk, one file per version.

A version is (round, step): step 0 once `round` has ended and the next offers are written, step 1
once the next round's answers are given too. A file holds the rows of peers whose state has changed
since the previous file, so its size grows with the number of awake peers; a version is complete if
every hosted peer has a row of it, or has slept since its last row. Once the files hold several rows
of each peer, the next one holds all peers again.

Peers may move to another node between runs: nodes that host the same peers share a folder, and a
starting node reads the folders of all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
from torch import Tensor

from coterie.app.node.cohort.cohort import Cohort
from coterie.app.node.cohort.packing import Piece, kinds, packed
from coterie.app.node.cohort.part import TOGETHER
from coterie.app.node.requests.faults import StateError
from coterie.app.node.storage.tensor_file import metadata, read_checked, write_checked
from coterie.app.runs import atomic
from coterie.clients.letters import Ints, nobody

_NAME = re.compile(r"(\d{8,})-([01])(?:-\d{4,})?\.state")
_COPIES = 3
"""Mean number of rows per peer at which the next file holds all peers again."""
_REMEDY = (
    "remove it to continue from an older state, or its folder to start again: the run "
    "then reports that it is not an exact continuation"
)
Version = tuple[int, int]
Files = Sequence[tuple[Version, Path]]
Where = Mapping[Path, tuple[Ints, Ints]]
"""File -> local indices of hosted peers, and their rows in the file."""
Fingerprint = list[tuple[int, int]]


class CheckpointStore:
    """Checkpoints of a cohort, below `directory`.

    The letters of the current round have a separate file, which is removed at the end of the round.

    Parameters
    ----------
    directory : Path
        Directory of the files.
    cohort : Cohort
        Cohort that is saved and restored.
    run : bytes
        Digest of the run's configuration; files of another run, other peers or another version are
        rejected.
    durable : bool
        Sync files to disk, so that a version survives a power failure.
    """

    def __init__(
        self, directory: Path, cohort: Cohort, run: bytes = b"", *, durable: bool = False
    ) -> None:
        self._cohort = cohort
        self._directory = directory
        self._run = run
        self._durable = durable
        self._attempt = directory / "attempt"
        self._folder = directory / _folder(cohort.peers)
        self._letters = directory / f"letters-{cohort.peers[0]:04d}.state"
        self._copies = directory / f"copies-{cohort.peers[0]:04d}.state"
        self._folder.mkdir(parents=True, exist_ok=True)
        # Version of the cohort in memory, and the identity of its files when it was saved.
        self._in_memory: tuple[Version, Sequence[Path], Fingerprint] | None = None
        self._peers_in: dict[Path, tuple[Fingerprint, Ints]] = {}
        # An institution's cohort is made before its secret seed and the others' numbers are known.
        self._is_new = not durable

    def take_over(self, attempt: str) -> None:
        """Assign the peers of this directory to an attempt at the run from now on."""
        atomic.write(self._attempt, attempt)

    def taken_over_by(self, attempt: str) -> bool:
        """Return whether this attempt was the last to take over."""
        return not self._attempt.exists() or self._attempt.read_text(encoding="utf-8") == attempt

    def save(self, version: Version) -> None:
        """Write the rows of peers that changed, and the letters of a round under way."""
        cohort = self._cohort
        if version[1]:
            letters = (("received", cohort.received), ("sent", cohort.sent))
            both = [packed(name, which) for name, which in letters]
            self._write(self._letters, both[0] | both[1])
        if cohort.copies is not None and len(cohort.peers) < cohort.engine.n:
            self._write(self._copies, cohort.copies.packed())
        held = sum(len(self._rows_in(path)) for _, path in _files(self._folder))
        everybody = held > _COPIES * len(cohort.peers)
        rows, files = np.flatnonzero(everybody | cohort.changed), list[Path]()
        for first in range(0, len(rows), TOGETHER):
            name = f"{version[0]:08d}-{version[1]}{f'-{first:04d}' if first else ''}.state"
            files.append(self._folder / name)
            some = rows[first : first + TOGETHER]
            self._write(files[-1], cohort.snapshot(some), cohort.peers[some])
        cohort.saved()
        self._in_memory = version, files, _fingerprint(files)

    def recall(self, *versions: Version) -> None:
        """Restore the first of these versions that exists.

        The state in memory is used only if the files are unchanged since it was saved: another
        process of this node may have restarted the run. Until the next `save`, the cohort does not
        correspond to a version.

        Raises
        ------
        StateError
            If none of the versions exists, or a file is damaged.
        """
        in_memory, self._in_memory = self._in_memory, None
        for version in versions:
            if in_memory is not None and self._is_same(version, *in_memory):
                return
            if where := self._where(version, _files(self._folder)):
                self._read(where, answered=version[1] == 1)
                return
        raise StateError(
            f"peers {self._cohort.peers.tolist()} have no state of round {versions[-1][0]} in "
            f"{self._directory}: it was lost, or this node joined later"
        )

    def resume(self, t: int) -> int | None:
        """Restore the newest round up to `t`, saved by any node.

        Later versions are removed, including answers to a round that will be repeated.

        Returns
        -------
        int or None
            The round; None if the cohort must start from the beginning.
        """
        for version, path in _files(self._folder):
            if version > (t, 0):
                path.unlink(missing_ok=True)
        files = sorted(
            (each for folder in self._directory.glob("peer*") for each in _files(folder)),
            key=lambda each: (each[0], each[1].stat().st_mtime_ns),
        )
        rounds = {s for (s, step), _ in files if s <= t and not step} if t else set[int]()
        for s in sorted(rounds, reverse=True):
            if where := self._where((s, 0), files):
                self._in_memory = None
                self._read(where, answered=False)
                return s
        return None

    def restart(self) -> None:
        """Restart the cohort from the beginning; a simulation's new one is there already."""
        self._in_memory = None
        if not self._is_new:
            self._cohort.restart()
        self._is_new = False

    def forget(self, before: Version) -> None:
        """Remove files that are not needed for that version or a later one."""
        files = [each for each in _files(self._folder) if each[0] <= before]
        if len({version for version, _ in files}) < 2:
            return
        newest_p, _ = self._newest(files)
        for number, (version, path) in enumerate(files):
            if version < before and number not in newest_p:
                path.unlink(missing_ok=True)
                self._peers_in.pop(path, None)

    def _is_same(
        self, version: Version, saved: Version, files: Sequence[Path], were: Fingerprint
    ) -> bool:
        """Return whether a version was saved from memory and its files are unchanged."""
        if saved != version:
            peers = self._cohort.peers.tolist()
            changed = self._cohort.schedule.last_change(peers, version[0])
            if saved[1] or version[1] or not changed <= saved[0] <= version[0]:
                return False
        try:
            return _fingerprint(files) == were
        except FileNotFoundError:
            return False

    def _where(self, version: Version, files: Files) -> Where:
        """Return the files and rows of a version; empty if it does not exist.

        Parameters
        ----------
        version : Version
            Version to find.
        files : Files
            Files, oldest first.
        """
        schedule, peers = self._cohort.schedule, self._cohort.peers
        t, step = version
        files = [(v, path) for v, path in files if v == version or (v < version and not v[1])]
        newest_p, row_p = self._newest(files)
        if (newest_p < 0).any():
            return {}
        round_p, exact_p = np.array([s for (s, _), _ in files])[newest_p], newest_p < 0
        if step:
            exact_p = schedule.ending(t + 1)[peers]
            steps_p = np.array([v[1] for v, _ in files])[newest_p]
            if not exact_p.any() or (exact_p & (steps_p == 0)).any():  # no peer here had to answer
                return {}
        if schedule.foresees:
            for s in range(t, int(round_p.min()), -1):
                if (schedule.changes(s)[peers] & (round_p < s)).any():
                    return {}
        elif (round_p != round_p[0]).any():  # all are saved together
            return {}
        return {
            files[number][1]: (np.flatnonzero(newest_p == number), row_p[newest_p == number])
            for number in np.unique(newest_p).tolist()
        }

    def _newest(self, files: Files) -> tuple[Ints, Ints]:
        """Return the last file with each hosted peer (-1 if none) and the row in it, (P,) each."""
        peers = self._cohort.peers
        newest_p, row_p = np.full((2, len(peers)), -1, dtype=np.int64)
        for number, (_, path) in enumerate(files):
            _, local, rows = np.intersect1d(peers, self._rows_in(path), return_indices=True)
            newest_p[local], row_p[local] = number, rows
        return newest_p, row_p

    def _rows_in(self, path: Path) -> Ints:
        """Return the peers in a file by its metadata; the content is checked when it is read."""
        now = _fingerprint([path])
        if path not in self._peers_in or self._peers_in[path][0] != now:
            try:
                with path.open("rb") as file:
                    peers = metadata(file)["peers"].split()
                self._peers_in[path] = now, np.array(peers, dtype=np.int64)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, MemoryError):
                raise StateError(f"{path}: damaged, or of another run; {_REMEDY}") from None
        return self._peers_in[path][1]

    def _read(self, where: Where, *, answered: bool) -> None:
        self._is_new = False
        pieces = [Piece(local, rows, self._snapshot(path)) for path, (local, rows) in where.items()]
        self._cohort.restore(pieces, self._load(self._letters) if answered else None)
        if self._cohort.copies is not None:
            self._cohort.copies.unpack(self._load(self._copies) if self._copies.exists() else {})

    def _snapshot(self, path: Path) -> dict[str, Tensor]:
        """Read a file and check its layout, as the digest does not prove who wrote the file.

        Raises
        ------
        StateError
            An array is missing or unknown, or has another type or shape.
        """
        tensors, expected = self._load(path), kinds(self._cohort.snapshot(nobody()))
        rows = {len(tensors[name]) if tensors[name].dim() else 0 for name in kinds(tensors)}
        if kinds(tensors) != expected or rows != {len(self._rows_in(path))}:
            raise StateError(f"{path}: holds no state of these peers; {_REMEDY}")
        return tensors

    def _write(self, path: Path, tensors: Mapping[str, Tensor], peers: Ints | None = None) -> None:
        named = {} if peers is None else {"peers": " ".join(map(str, peers.tolist()))}
        write_checked(path, tensors, named, bound=self._bound(path), durable=self._durable)

    def _load(self, path: Path) -> dict[str, Tensor]:
        try:
            return read_checked(path, bound=self._bound(path))
        except FileNotFoundError:
            raise StateError(f"{path}: missing; {_REMEDY}") from None
        except atomic.DamagedError as error:
            raise StateError(f"{error}; {_REMEDY}") from None

    def _bound(self, path: Path) -> bytes:
        return self._run + str(path.relative_to(self._directory)).encode()


def _fingerprint(files: Iterable[Path]) -> Fingerprint:
    """Return the identity of files; a replaced file of the same name differs."""
    stats = [file.stat() for file in files]
    return [(stat.st_ino, stat.st_mtime_ns) for stat in stats]


def _folder(peers: Ints) -> str:
    """Return the name of the folder of a node that hosts these peers."""
    if len(peers) == 1:
        return f"peer-{peers[0]:04d}"
    which = sha256(peers.astype("<i8").tobytes()).hexdigest()[:8]
    return f"peers-{peers[0]:04d}-{peers[-1]:04d}-{which}"


def _files(directory: Path) -> list[tuple[Version, Path]]:
    """Return the version files in a folder, oldest first; other files are ignored."""
    named = ((_NAME.fullmatch(path.name), path) for path in directory.glob("*.state"))
    return sorted(((int(match[1]), int(match[2])), path) for match, path in named if match)
