"""data.json: SHA-256 of the data of each peer and of each file that a run reads.

A deployed node keeps those of its own peer, under a secret key, because a table of few rows could
be guessed from a plain digest; nothing of them is sent.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from typing_extensions import TypedDict

from coterie.app.config.config import Config
from coterie.app.runs import atomic, files
from coterie.datasets.files import fingerprint
from coterie.datasets.own.institutions import listed
from coterie.datasets.problem import DataError, Problem

FILE = "data.json"
UNKNOWN = f"cannot check whether the data changed: there is no {FILE} (run of an earlier version)"
_MANY = 10_000
"""Number of files above which each folder has one digest."""


class Content(TypedDict):
    """Content of data.json."""

    peers: Mapping[str, str]
    files: Mapping[str, str]


def content_of(config: Config, problem: Problem, peer: int | None = None) -> Content:
    """Return the content of data.json; `peer`: of a deployed node, which has its own part only."""
    peers, files_p = range(problem.peers), problem.files or ({},) * problem.peers
    if peer is not None:
        own = {f"peer {peer}": digest(files_p[peer])}
        return {"peers": own, "files": {**files_p[peer], **_inputs(config)}}
    once = {id(of): of for of in files_p}  # peers of public data share them
    digests, named = {key: digest(of) for key, of in once.items()}, dict[str, str]()
    for of in once.values():
        named |= of
    if len(named) > _MANY:
        folders: dict[str, dict[str, str]] = {}
        for name, of_file in named.items():
            folders.setdefault(f"{name.rpartition('/')[0]}/", {})[name] = of_file
        named = {folder: digest(of) for folder, of in folders.items()}
    names = problem.names or [f"peer {peer}" for peer in peers]
    by_name = {names[peer]: digests[id(files_p[peer])] for peer in peers}
    return {"peers": by_name, "files": {**named, **_inputs(config)}}


def digest(files: Mapping[str, str]) -> str:
    """Return the digest of some files together; empty for none."""
    return fingerprint.of_json(files) if files else ""


def paths_of(config: Config) -> dict[str, Path]:
    """Return the files beside the data that a run reads, by key."""
    flat, known, table = config.flat(), config.known, config.table_of("dataset")
    paths = {
        key: Path(str(flat[key]))
        for key in sorted(config.paths & flat.keys())
        if known[key][1].scope == "run" and key.partition(".")[0] != table
    }
    if config.start_from:
        models = Path(config.out, config.start_from, "models").glob("*.safetensors")
        paths |= {f"start-from: {file.name}": file for file in sorted(models)}
    return {key: path for key, path in paths.items() if path.is_file()}


def _inputs(config: Config) -> dict[str, str]:
    paths = paths_of(config)
    with fingerprint.recorded() as reads:
        for path in paths.values():
            fingerprint.record(path)
    return {key: reads[path.absolute()] for key, path in paths.items()}


def keyed(files_p: Iterable[Mapping[str, str]], key: bytes) -> tuple[Mapping[str, str], ...]:
    """Return keyed digests, from which the content cannot be guessed without the key."""
    return tuple(
        {name: hmac.digest(key, of.encode(), hashlib.sha256).hex() for name, of in files.items()}
        for files in files_p
    )


def write(run_dir: Path, content: Content) -> None:
    """Write data.json."""
    atomic.write(run_dir / FILE, json.dumps(content, indent=1))


def read(run_dir: Path) -> Content | None:
    """Return the content of data.json; None without it. ResultsError: the file is damaged."""
    content: Content | None = files.json_of(run_dir, FILE, Content)
    return content


def since(run_dir: Path, now: Content, peer: int | None = None) -> list[str] | None:
    """Return the names of the files that changed since a run began; None if it recorded none."""
    before = read(run_dir)
    if before is None or (peer is not None and f"peer {peer}" not in before["peers"]):
        return None
    return sorted({name for name, _ in before["files"].items() ^ now["files"].items()})


def check(run_dir: Path, now: Content, peer: int | None = None) -> bool:
    """Refuse to continue a run on other data; return whether its data are known."""
    changed = since(run_dir, now, peer)
    if changed:
        raise DataError(
            f"{listed(changed)} changed since {run_dir} began: restore the data to continue it, or "
            "start a new run"
        )
    return changed is not None
