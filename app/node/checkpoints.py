"""A node's memory between messages: its peers' state on disk, one file a peer and version.

A version is (round, step): step 0 once `round` has ended and the next offers are written, step 1
once the next round's answers are given too. A file appears whole or not at all, and a version
counts only when every hosted peer has it. Peers have files of their own, so they may move to
another node between runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load, save, save_file
from torch import Tensor

from app.node.arrays import flatten, unflatten
from app.node.cohort import Cohort, Costs
from app.node.faults import StateError
from app.runs import atomic
from clients.letters import Letters

_NAME = re.compile(r"(\d{8,})-([01])\.state")
_REMEDY = (
    "remove it to go on from an older state, or the folder of its peer to begin afresh: the run "
    "then says that it is no continuation"
)
Version = tuple[int, int]
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
        self._in_memory: tuple[Version, Fingerprint] | None = None

    def versions(self) -> list[Version]:
        """The versions that every peer has, ascending."""
        return sorted(set.intersection(*({*_files(path)} for path in self._peers.values())))

    def take_over(self, attempt: str) -> None:
        """From now on these peers belong to that attempt at the run."""
        for path in self._peers.values():
            atomic.write(path / "attempt", attempt)

    def taken_over_by(self, attempt: str) -> bool:
        """Whether that attempt was the last to take over every peer."""
        files = [path / "attempt" for path in self._peers.values()]
        return all(f.read_text(encoding="utf-8") == attempt for f in files if f.exists())

    def save(self, version: Version) -> None:
        """Write the cohort: a file for each peer, and the letters of a round under way."""
        cohort = self._cohort
        state, costs = flatten(cohort.state), flatten(cohort.costs)
        parts = {"state": state, "offer": cohort.offers, "costs": costs}
        stacks = {f"{part}.{k}": v for part, stack in parts.items() for k, v in stack.items()}
        if version[1]:
            self._write(
                self._letters, pack("received", cohort.received) | pack("sent", cohort.sent)
            )
        for row, path in enumerate(self._peers.values()):
            self._write(path / _name(version), {k: value[row] for k, value in stacks.items()})
        self._in_memory = version, self._fingerprint(version)

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
        there = self.versions()
        version = next((version for version in versions if version in there), None)
        if version is None:
            raise CheckpointError(
                f"peers {list(self._peers)} have no state of round {versions[-1][0]} in "
                f"{self._directory}: it was lost, or this node joined later"
            )
        if self._in_memory != (version, self._fingerprint(version)):
            self._read(version)
        self._in_memory = None

    def restart(self) -> None:
        """Let the cohort begin afresh."""
        self._in_memory = None
        self._cohort.restart()

    def forget(self, *, before: Version = (0, 0), after: Version = (2**62, 0)) -> None:
        """Remove the versions before and after these two."""
        for path in self._peers.values():
            for version, file in _files(path).items():
                if not before <= version <= after:
                    file.unlink(missing_ok=True)

    def _fingerprint(self, version: Version) -> Fingerprint:
        """Identity of the files of a version; others of the same name differ."""
        files = [(path / _name(version)).stat() for path in self._peers.values()]
        return [(file.st_ino, file.st_mtime_ns) for file in files]

    def _read(self, version: Version) -> None:
        cohort, device = self._cohort, self._cohort.engine.device
        rows = [self._load(path / _name(version)) for path in self._peers.values()]
        parts: dict[str, dict[str, Tensor]] = {"state": {}, "offer": {}, "costs": {}}
        for name in rows[0]:
            part, _, rest = name.partition(".")
            parts[part][rest] = torch.stack([row[name] for row in rows])
        cohort.state = unflatten(cohort.state, parts["state"])
        cohort.offers = {name: value.to(device) for name, value in parts["offer"].items()}
        cohort.engine.n_gradients[:] = parts["costs"]["n_gradients"].numpy()
        cohort.engine.spent[:] = parts["costs"]["spent"].numpy()
        counted = ("sent", "received", "unsound", "refused")
        costs = {name: parts["costs"][name].numpy() for name in counted}
        engine = cohort.engine
        cohort.costs = Costs(n_gradients=engine.n_gradients, spent=engine.spent, **costs)
        cohort.answered = version[1] == 1
        if cohort.answered:
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
    ends = {k: getattr(letters, k) for k in ("senders", "recipients", "rows", "authors")}
    packed = {f"{name}.{k}": torch.from_numpy(np.ascontiguousarray(v)) for k, v in ends.items()}
    return packed | {f"{name}.tensors.{k}": v for k, v in letters.tensors.items()}


def unpack(name: str, packed: Mapping[str, Tensor], device: torch.device) -> Letters:
    """The inverse of `pack`."""
    ends = {k: packed[f"{name}.{k}"].numpy() for k in ("senders", "recipients", "rows", "authors")}
    prefix = f"{name}.tensors."
    stacks = {
        k.removeprefix(prefix): v.to(device) for k, v in packed.items() if k.startswith(prefix)
    }
    return Letters(**ends, tensors=stacks)


def _name(version: Version) -> str:
    return f"{version[0]:08d}-{version[1]}.state"


def _files(directory: Path) -> dict[Version, Path]:
    """The files of versions in a folder; whatever else lies there is not ours."""
    named = ((_NAME.fullmatch(path.name), path) for path in directory.glob("*.state"))
    return {(int(match[1]), int(match[2])): path for match, path in named if match}
