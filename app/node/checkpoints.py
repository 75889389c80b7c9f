"""A node's memory between messages: its peers' state on disk, one file a peer and version.

A version is (round, step): step 0 once `round` has ended and the next offers are written, step 1
once the next round's answers are given too. A file appears whole or not at all, and a version
counts only when every hosted peer has it, or has slept since the one that it has. Peers have files
of their own, so they may move to another node between runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load, save, save_file
from torch import Tensor

from app.node.arrays import flatten, unflatten
from app.node.cohort import Cohort
from app.node.costs import Costs
from app.node.faults import StateError
from app.node.offers import Offers
from app.runs import atomic
from clients.letters import Letters

_NAME = re.compile(r"(\d{8,})-([01])\.state")
_ARRAYS = ("senders", "recipients", "rows", "authors", "ages", "expired")
"""Of `Letters`, beside the tensors."""
_REMEDY = (
    "remove it to go on from an older state, or the folder of its peer to begin afresh: the run "
    "then says that it is no continuation"
)
Version = tuple[int, int]
_NO_END: Version = (2**62, 0)
Fingerprint = list[tuple[int, int]]


class CheckpointError(StateError):
    """The state that a request builds on is not on this node's disk, or damaged; says where."""


class CheckpointStore:
    """The checkpoints of one cohort, below `directory`.

    Letters of a round under way lie in one file for the node: they are gone once it has ended.

    Parameters
    ----------
    run : digest of the run's configuration: a file of another run, peer or version is refused.
    durable : a version outlasts a power cut.
    """

    def __init__(
        self, directory: Path, cohort: Cohort, run: bytes = b"", *, durable: bool = False
    ) -> None:
        self._cohort = cohort
        self._directory = directory
        self._run = run
        self._durable = durable
        self._peers = {peer: directory / f"peer-{peer:04d}" for peer in cohort.peers.tolist()}
        self._letters = directory / f"letters-{min(self._peers):04d}.state"
        for path in self._peers.values():
            path.mkdir(parents=True, exist_ok=True)
        # The version that the cohort in memory is, and what its files were when it was saved.
        self._in_memory: tuple[Version, Sequence[Path], Fingerprint] | None = None
        self._several = {*self._peers}  # peers that may have more than one file

    def versions(self) -> list[Version]:
        """The versions that are there for every peer, ascending."""
        found = {version for path in self._peers.values() for version in _files(path)}
        return [version for version in sorted(found) if self._files_of(version)]

    def take_over(self, attempt: str) -> None:
        """From now on these peers belong to that attempt at the run."""
        for path in self._peers.values():
            atomic.write(path / "attempt", attempt)

    def taken_over_by(self, attempt: str) -> bool:
        """Whether that attempt was the last to take over every peer."""
        files = [path / "attempt" for path in self._peers.values()]
        return all(f.read_text(encoding="utf-8") == attempt for f in files if f.exists())

    def save(self, version: Version) -> None:
        """Write the cohort: a file for each peer that changed, and letters of a round under way."""
        cohort = self._cohort
        parts = {"state": flatten(cohort.state), "costs": flatten(cohort.costs)}
        stacks = {f"{part}.{k}": v for part, stack in parts.items() for k, v in stack.items()}
        shown = {"offer": cohort.offers, "coming": cohort.coming}
        at = {name: {row: at for at, row in enumerate(o.rows)} for name, o in shown.items()}
        if version[1]:
            self._write(
                self._letters, pack("received", cohort.received) | pack("sent", cohort.sent)
            )
        files = []
        for row in np.flatnonzero(cohort.changed).tolist():
            peer = int(cohort.peers[row])
            tensors = {k: value[row] for k, value in stacks.items()}
            for name, offers in shown.items():
                if row in at[name]:
                    own = at[name][row]
                    tensors |= {f"{name}.{k}": value[own] for k, value in offers.stacks.items()}
                    tensors[f"{name} of"] = torch.tensor(offers.written[own])
            files.append(self._peers[peer] / _name(version))
            self._write(files[-1], tensors)
            self._several.add(peer)
        cohort.changed[:] = cohort.schedule.is_always
        self._in_memory = version, files, _fingerprint(files)

    def recall(self, *versions: Version) -> None:
        """Let the cohort stand where the first of these versions that is there was saved.

        What is in memory counts only while the files are those that were written with it: another
        process of this node may have begun again in the meantime. From here to the next `save` the
        cohort is no version at all.

        Raises
        ------
        CheckpointError
            None of them is there, or a file is damaged.
        """
        in_memory, self._in_memory = self._in_memory, None
        for version in versions:
            if in_memory is not None and self._is_same(version, *in_memory):
                return
            if files := self._files_of(version):
                self._read(files, answered=version[1] == 1)
                return
        raise CheckpointError(
            f"peers {list(self._peers)} have no state of round {versions[-1][0]} in "
            f"{self._directory}: it was lost, or this node joined later"
        )

    def restart(self) -> None:
        """Let the cohort begin afresh."""
        self._in_memory = None
        self._cohort.restart()

    def forget(self, *, before: Version = (0, 0), after: Version = _NO_END) -> None:
        """Remove the versions after one, and those before one that nobody needs for it."""
        for peer in sorted(self._peers if after < _NO_END else self._several):
            files = _files(self._peers[peer])
            base = max((version for version in files if version <= before), default=before)
            kept = {version for version in files if base <= version <= after}
            for version in files.keys() - kept:
                files[version].unlink(missing_ok=True)
            if len(kept) <= 1:
                self._several.discard(peer)

    def _is_same(
        self, version: Version, saved: Version, files: Sequence[Path], were: Fingerprint
    ) -> bool:
        """Whether a version is the one that was saved from memory, whose files are still there."""
        if saved != version:
            changed = self._cohort.schedule.last_change([*self._peers], version[0])
            if saved[1] or version[1] or not changed <= saved[0] <= version[0]:
                return False
        try:
            return _fingerprint(files) == were
        except FileNotFoundError:
            return False

    def _files_of(self, version: Version) -> list[Path]:
        """Each peer's file of a version; none where not every peer has one."""
        schedule, peers = self._cohort.schedule, self._cohort.peers
        exact_p = np.zeros(len(peers), dtype=np.bool_)
        if version[1]:
            exact_p = schedule.ending(version[0] + 1)[peers]
            if not exact_p.any():  # nobody here was asked
                return []
        found = []
        for path, exact in zip(self._peers.values(), exact_p.tolist(), strict=True):
            file: Path | None = path / _name(version)
            if not (file and file.exists()):
                file = None if exact else self._older(path, version)
            if file is None:
                return []
            found.append(file)
        return found

    def _older(self, path: Path, version: Version) -> Path | None:
        """The file of a peer that has not changed between it and a version."""
        files = _files(path)
        newest = max((v for v in files if v <= version and not v[1]), default=None)
        peer = next(peer for peer, own in self._peers.items() if own == path)
        schedule = self._cohort.schedule
        if newest is None or (
            schedule.foresees and newest[0] < schedule.last_change([peer], version[0])
        ):
            return None
        return files[newest]

    def _read(self, files: Sequence[Path], *, answered: bool) -> None:
        cohort, device = self._cohort, self._cohort.engine.device
        rows = [self._load(path) for path in files]
        for name in ("offer", "coming"):
            found = _offers_in(rows, name, device)
            setattr(cohort, "offers" if name == "offer" else name, found)
        parts: dict[str, dict[str, Tensor]] = {"state": {}, "costs": {}}
        for name in rows[0]:
            part, _, rest = name.partition(".")
            if part in parts:
                parts[part][rest] = torch.stack([row[name] for row in rows])
        cohort.state = unflatten(cohort.state, parts["state"])
        cohort.engine.n_gradients[:] = 0
        costs = {name: value.numpy() for name, value in parts["costs"].items()}
        if cohort.schedule.is_always:
            cohort.engine.n_gradients[:] = costs["n_gradients"]
            costs["n_gradients"] = cohort.engine.n_gradients
        cohort.engine.spent[:] = costs["spent"]
        cohort.costs = Costs(**{**costs, "spent": cohort.engine.spent})
        cohort.changed[:] = cohort.schedule.is_always
        cohort.answered = answered
        cohort.tell_schedule()
        if answered:
            letters = self._load(self._letters)
            cohort.received, cohort.sent = (
                unpack(name, letters, device) for name in ("received", "sent")
            )

    def _write(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        content = save(_copies(tensors))
        atomic.write_checked(path, content, bound=self._bound(path), durable=self._durable)

    def _load(self, path: Path) -> dict[str, Tensor]:
        try:
            return load(atomic.read_checked(path, bound=self._bound(path)))
        except FileNotFoundError:
            raise CheckpointError(f"{path}: missing; {_REMEDY}") from None
        except atomic.DamagedError as error:
            raise CheckpointError(f"{error}; {_REMEDY}") from None

    def _bound(self, path: Path) -> bytes:
        return self._run + str(path.relative_to(self._directory)).encode()


def write(
    path: Path,
    tensors: Mapping[str, Tensor],
    metadata: Mapping[str, str] | None = None,
    *,
    durable: bool = False,
) -> None:
    """Write a safetensors file that is there whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic.replacing(path, durable=durable) as draft:
        save_file(_copies(tensors), draft, None if metadata is None else dict(metadata))


def _copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Clones: a state and its offers may share memory, which safetensors refuses to write."""
    own = torch.contiguous_format
    return {k: v.detach().cpu().clone(memory_format=own) for k, v in tensors.items()}


def pack(name: str, letters: Letters) -> dict[str, Tensor]:
    """Letters as tensors by dotted name."""
    ends = {k: getattr(letters, k) for k in _ARRAYS}
    packed = {f"{name}.{k}": torch.from_numpy(np.ascontiguousarray(v)) for k, v in ends.items()}
    return packed | {f"{name}.tensors.{k}": v for k, v in letters.tensors.items()}


def unpack(name: str, packed: Mapping[str, Tensor], device: torch.device) -> Letters:
    """The inverse of `pack`."""
    ends = {k: packed[f"{name}.{k}"].numpy() for k in _ARRAYS}
    prefix = f"{name}.tensors."
    stacks = {
        k.removeprefix(prefix): v.to(device) for k, v in packed.items() if k.startswith(prefix)
    }
    return Letters(**ends, tensors=stacks)


def _offers_in(rows: Sequence[Mapping[str, Tensor]], kind: str, device: torch.device) -> Offers:
    """The offers of one kind in the files of a version."""
    having = [at for at, row in enumerate(rows) if f"{kind} of" in row]
    if not having:
        return Offers()
    names = [name for name in rows[having[0]] if name.startswith(f"{kind}.")]
    return Offers(
        {
            name.removeprefix(f"{kind}."): torch.stack([rows[at][name] for at in having]).to(device)
            for name in names
        },
        np.array(having, dtype=np.int64),
        np.array([int(rows[at][f"{kind} of"]) for at in having], dtype=np.int64),
    )


def _fingerprint(files: Iterable[Path]) -> Fingerprint:
    """Identity of files; others of the same name differ."""
    stats = [file.stat() for file in files]
    return [(stat.st_ino, stat.st_mtime_ns) for stat in stats]


def _name(version: Version) -> str:
    return f"{version[0]:08d}-{version[1]}.state"


def _files(directory: Path) -> dict[Version, Path]:
    """The files of versions in a folder; whatever else lies there is not ours."""
    named = ((_NAME.fullmatch(path.name), path) for path in directory.glob("*.state"))
    return {(int(match[1]), int(match[2])): path for match, path in named if match}
