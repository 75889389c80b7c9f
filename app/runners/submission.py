"""Flower runs that a run directory was submitted as: file flower.json of the operator's machine.

A run that was resumed has several. The operator may be elsewhere than the relay.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

from typing_extensions import TypedDict

from coterie.app.runners.superlink import ask
from coterie.app.runs import atomic, files, progress
from coterie.app.runs.files import ResultsError
from coterie.app.runs.progress import Count

_FILE = "flower.json"
_END_SECONDS, _PAUSE = 20.0, 0.1
_CONNECTION = re.compile(r"[\w@][\w.@/-]*")


class Submission(TypedDict):
    """Run at a SuperLink, as Flower described it last."""

    connection: str  # of Flower's configuration
    run: str  # Flower's ID
    status: str  # "pending", "starting", "running", "finished:completed", ...
    details: str
    line_bytes: Count  # on the lines of the SuperLink, both ways


def submissions(run_dir: Path) -> list[Submission]:
    """Return the Flower runs of a run directory, the newest last.

    ResultsError: the file is damaged.
    """
    found: list[Submission] = files.json_of(run_dir, _FILE, list[Submission]) or []
    for each in found:  # arguments of a command: the file may come from anywhere
        if not (_CONNECTION.fullmatch(each["connection"]) and each["run"].isdecimal()):
            raise ResultsError(f"{run_dir / _FILE}: not a run of a Flower connection")
    return found


def newest(run_dir: Path) -> Submission | None:
    """Return the newest Flower run of a run directory, with what Flower says of it now."""
    # FlowerError: the SuperLink does not answer.
    *_, last = [None, *submissions(run_dir)]
    if last is None or is_over(last):
        return last
    return asked(run_dir, last["connection"], last["run"])


def asked(run_dir: Path, connection: str, run: str) -> Submission:
    """Ask the SuperLink of a connection about a run, and note the answer; else FlowerError."""
    (said,) = ask("list", connection, "--run-id", run)["runs"]
    submission = Submission(
        connection=connection,
        run=run,
        status=said["status"],
        details=said["status-details"],
        line_bytes=said["network-traffic"]["total-bytes"],
    )
    others = [each for each in submissions(run_dir) if each["run"] != run]
    atomic.write(run_dir / _FILE, json.dumps([*others, submission]) + "\n")
    return submission


def is_over(submission: Submission) -> bool:
    """Return whether Flower's run has ended, for whatever reason."""
    return submission["status"].startswith("finished")


def stop(run_dir: Path, submission: Submission) -> None:
    """Stop a run at its SuperLink, and mark it as stopped; FlowerError: it did not stop."""
    connection, run = submission["connection"], submission["run"]
    ask("stop", run, connection)
    asked(run_dir, connection, run)
    deadline = time.monotonic() + _END_SECONDS
    while progress.read(run_dir).get("status") == "running" and time.monotonic() < deadline:
        time.sleep(_PAUSE)  # the relay, if it is on this machine, writes its last lines
    if progress.read(run_dir).get("status") not in progress.OVER:
        progress.mark(run_dir, "stopped")
