"""Errors of the project, derived from one root, and their place in a user's code.

Error
├── ConfigError              a key, a name, an option or a command line is wrong
├── DataError                a data set or a partition is missing, damaged or does not fit the run
│   ├── BadImageError        an image of an institution cannot be used
│   ├── NoImageError         a file holds no image
│   ├── PluginError          a part of the user's does not load, or is not what it has to be
│   └── RefusedError         rows or files of an institution do not fit the run; lists them
├── ModelError               a network cannot learn the problem; names the layer
├── SizeError                a network is larger than it may be
├── ResultsError             a directory is no run, or one of its files is damaged
├── DamagedError             a file is not what was written
├── RunError                 a run that was started did not reach its end
│   ├── PartError            a method, a model, a data set or a callback raised an error
│   ├── DivergedError        every peer diverged
│   ├── AwayError            it reached its end, but peers missed it and lack its final model
│   ├── FlowerError          Flower could not start, or did not take the run
│   ├── SweepError           a run of several failed
│   └── RelayError           relay and nodes cannot continue; has the round and the stage
│       └── DesertedError    no node is left in a round
├── RangeError               a number is out of the range of its option
├── TopologyError            the configured graph does not exist
├── ScheduleError            the file of a schedule or a clock is missing or wrong
├── WireError                a message between relay and node does not decode
├── PayloadError             the tensors in a message are not those of this run
├── OfferError               offers lack the model that increments of letters are made of
├── SealError                a sealed message cannot be opened
├── RequestError             the relay asks for something that the run does not allow
├── StateError               a node does not have the state that a request builds on
├── StartError               a node was started without something that it needs
├── MachineError             disk, memory or clock of a node are not in order
├── WorkerError              a node's worker process did not start, or did not finish
├── KeysError                a key or trust file is missing or wrong
├── PolicyError              an institution's policy does not allow the run, or is wrong
├── LedgerError              the run asks for more than the policy allows, or a ledger is damaged
├── BusyError                another process holds a lock
├── ApprovalError            the run waits for a person's approval
└── DecisionError            the record of approvals is damaged

An error in a user's code is the `__cause__` of the error that reports it.
"""

from __future__ import annotations

import errno
import os
import traceback
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from types import FrameType

_OURS = "coterie"
_LIBRARIES = ("site-packages", "dist-packages")


class Error(Exception):
    """Root of all errors that this package raises on purpose; the message is for people."""


class RunError(Error):
    """A run that was started did not reach its end."""


class FlowerError(RunError):
    """Flower could not start, or rejected the run."""


class SweepError(RunError):
    """One of several runs failed."""


class Interrupted(KeyboardInterrupt):
    """The user interrupted a command; the message is the command that continues it."""


class DivergedError(RunError):
    """Every peer diverged: at the end no peer has a finite loss and a finite model."""


class AwayError(RunError):
    """A run reached its last round without some peers, which have an older model or none."""


class PartError(RunError):
    """A method, a model, a data set or a callback raised an error; that error is the `__cause__`.

    It has the `round`, None if unknown, and the `peers` that were being computed.
    """

    def __init__(self, message: str, round_: int | None = None, peers: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.round, self.peers = round_, tuple(peers)

    @classmethod
    def of(
        cls, error: BaseException, round_: int | None = None, peers: Sequence[int] = ()
    ) -> PartError:
        """Report an error: file, line, function, peers and round, then its own message."""
        return cls.at(place_of(error), summary(error), round_, peers)

    @classmethod
    def at(
        cls, place: str, why: str, round_: int | None = None, peers: Sequence[int] = ()
    ) -> PartError:
        """Report what is wrong at a place, which may be empty, with peers and round."""
        when = "" if round_ is None else f"round {round_}"
        where = ", ".join(filter(None, (place, peers_of(peers), when)))
        return cls(f"{where}: {why}" if where else why, round_, peers)


def summary(error: BaseException) -> str:
    """Return type, message and notes of an error, in one line."""
    message = " ".join(str(error).split())
    line = f"{type(error).__name__}: {message}" if message else type(error).__name__
    notes = "; ".join(getattr(error, "__notes__", ()))
    return f"{line} ({notes})" if notes else line


_FULL = "the disk is full"


def line_of(error: BaseException) -> str:
    """Describe any error in one line: ours and a full disk in words, another with its place."""
    if isinstance(error, Error):
        return str(error)
    if is_full_disk(error):
        where = f": {error.filename}" if isinstance(error, OSError) and error.filename else ""
        return f"{_FULL}{where}"
    return str(PartError.of(error))


def is_full_disk(error: BaseException | None) -> bool:
    """Tell whether a full disk or quota caused an error, perhaps in another process."""
    causes = _FULL, os.strerror(errno.ENOSPC), os.strerror(errno.EDQUOT)
    while error is not None and not any(cause in str(error) for cause in causes):
        error = error.__cause__ or error.__context__
    return error is not None


def peers_of(peers: Sequence[int]) -> str:
    """Write "peer 3", "peers 0 to 7", or "peers 0, 2 and 5"."""
    if len(peers) < 2:
        return f"peer {peers[0]}" if peers else ""
    if list(peers) == list(range(peers[0], peers[-1] + 1)):
        return f"peers {peers[0]} to {peers[-1]}"
    return f"peers {', '.join(map(str, peers[:-1]))} and {peers[-1]}"


def place_of(error: BaseException) -> str:
    """Return "mine.py:12, in offer()": the innermost call of the user's code, or of ours; or ""."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{short_path(error.filename)}:{error.lineno}"
    users, ours = _places(error)
    return users or ours


def is_users(error: BaseException) -> bool:
    """Tell whether an error arose in the user's code, or in what that called."""
    return bool(_places(error)[0])


def _places(error: BaseException) -> tuple[str, str]:
    """Return the innermost place in the user's code, and the innermost in this package."""
    ours = users = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if _package(frame) == _OURS:
            ours = written(frame, line)
        elif in_users_code(frame):
            users = written(frame, line)
    return users, ours


def in_users_code(frame: FrameType) -> bool:
    """Tell whether a frame is of the user's code: neither this package nor a library."""
    package = _package(frame)
    return package != _OURS and (package in _plugins() or not _is_library(frame.f_code.co_filename))


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _plugins() -> set[str]:
    return {
        entry.module.partition(".")[0]
        for group in metadata.entry_points().groups
        if group.startswith(f"{_OURS}.")
        for entry in metadata.entry_points(group=group)
    }


def _is_library(file: str) -> bool:
    inside = Path(file).parts
    if file.startswith("<frozen ") or any(folder in inside for folder in _LIBRARIES):
        return True
    return Path(traceback.__file__).parent in Path(file).parents


def written(frame: FrameType, line: int) -> str:
    """Return file, line and function: "mine.py:12, in offer()"."""
    function = frame.f_code.co_name
    inside = "" if function == "<module>" else f", in {function}()"
    return f"{short_path(frame.f_code.co_filename)}:{line}{inside}"


def short_path(file: str) -> str:
    """Return a path relative to the working directory where it lies below it."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file
