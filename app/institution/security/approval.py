"""Approvals of runs by a person, and a node's record of its decisions, as lines of JSON.

An approval is for a configuration, by its digest, and for one run: the first with that digest.
"""

from __future__ import annotations

import getpass
import hashlib
import re
import shlex
from contextlib import AbstractContextManager, suppress
from datetime import UTC, datetime
from pathlib import Path

from coterie.app.config.config import Config
from coterie.app.institution.security.files import closed
from coterie.app.runs import atomic
from coterie.errors import Error

OWN = "institution"
"""The folder in a node's `out` that belongs to no run: approvals and ledgers."""
_APPROVALS, _CONTACT = "approvals.jsonl", "contact"
DECISIONS = "decisions.jsonl"
WAITS = "refused: the run waits for approval"
"""Beginning of the decision about a run that nobody has approved yet."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


class ApprovalError(Error, ValueError):
    """A run waits for a person's approval; the message has the command that approves it."""


class DecisionError(Error, ValueError):
    """The record of approvals is damaged."""


def note_contact(out: Path) -> None:
    """Record that a relay has sent a message to this node."""
    with suppress(OSError):  # a full disk: the message will say so
        (out / OWN).mkdir(parents=True, exist_ok=True)
        (out / OWN / _CONTACT).touch()


def last_contact(out: Path) -> float | None:
    """Return the time of the last message of a relay, in seconds since 1970, or None."""
    file = out / OWN / _CONTACT
    return file.stat().st_mtime if file.exists() else None


def approve(out: Path, digest: str) -> None:
    """Record that the user of this terminal approves one run of that configuration."""
    line = {"time": _now(), "digest": digest, "approved-by": getpass.getuser()}
    with closed(), _locked(out):
        atomic.append(out / OWN / _APPROVALS, line)


def require_approval(out: Path, run: str, digest: str) -> None:
    """Consume an approval of a configuration, for one run, or raise ApprovalError."""
    with _locked(out):
        used, users = _approvals(out).get(digest, ([], []))
        approved = len(users)
        if run in used:
            return
        if len(used) < approved:
            line = {"time": _now(), "digest": digest, "run": run}
            atomic.append(out / OWN / _APPROVALS, line)
            return
    where = shlex.quote(str(out / run))
    raise ApprovalError(f"the run waits for approval of {digest}: coterie approve {where}")


def approver(out: Path, run: str, digest: str) -> list[str]:
    """Return the user whose approval of a digest a run has used; empty without: in their order."""
    used, users = _approvals(out).get(digest, ([], []))
    return users[used.index(run) :][:1] if run in used else []


def unused(out: Path) -> dict[str, int]:
    """Return digest -> number of approvals that no run has used."""
    left = {digest: len(users) - len(used) for digest, (used, users) in _approvals(out).items()}
    return {digest: count for digest, count in left.items() if count > 0}


def record(
    directory: Path, config: Config, digest: str, policy: bytes | None, decision: str
) -> None:
    """Record a run's configuration and its decision, "allowed" or "refused: ...", once."""
    file = config_file(directory, digest)
    used = "" if policy is None else hashlib.sha256(policy).hexdigest()
    line = {"digest": digest, "config": file.name, "policy": used, "decision": decision}
    with _locked(directory.parent):
        last = atomic.lines(directory / DECISIONS)[-1:]
        if last and line.items() <= last[0].items():
            return
        directory.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            atomic.write(file, config.toml())
        atomic.append(directory / DECISIONS, {"time": _now(), **line})


def newest_config(directory: Path) -> tuple[Path, str]:
    """Return the configuration file of a node's last decision about a run, and its digest."""
    path = directory / DECISIONS
    if not path.is_file():
        raise DecisionError(f"{directory} has no {DECISIONS}: no such run was sent to this node")
    digest = ""
    with suppress(ValueError, LookupError):
        digest = str(atomic.lines(path)[-1]["digest"])
    return config_file(directory, digest), digest


def first_asked(directory: Path) -> float:
    """Return when this node first asked to approve the run's last configuration, since 1970."""
    lines = atomic.lines(directory / DECISIONS)
    asked = (line for line in lines if line["digest"] == lines[-1]["digest"])
    return datetime.fromisoformat(next(asked)["time"]).timestamp()


def config_file(directory: Path, digest: str) -> Path:
    """Return the file with the configuration of a digest; DecisionError if it is not a digest."""
    if not _DIGEST.fullmatch(digest):
        raise DecisionError(f"{directory / DECISIONS} has a line without a digest")
    return directory / f"config-{digest}.toml"


def _locked(out: Path) -> AbstractContextManager[None]:
    return atomic.locked(out / OWN / f"{_APPROVALS}.lock")


def _approvals(out: Path) -> dict[str, tuple[list[str], list[str]]]:
    """Return digest -> the runs that used an approval of it, and the users who gave one."""
    approvals: dict[str, tuple[list[str], list[str]]] = {}
    try:
        for line in atomic.lines(out / OWN / _APPROVALS):
            used, users = approvals.setdefault(line["digest"], ([], []))
            used += [line["run"]] if "run" in line else []
            users += [line["approved-by"]] if "approved-by" in line else []
    except (ValueError, KeyError, TypeError) as error:
        raise DecisionError(str(error)) from None
    return approvals


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
