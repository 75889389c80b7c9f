"""State of a run, a node or a SuperLink, as JSON (schema: docs/operations.md) and as metrics."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from coterie.app.config.config import Config
from coterie.app.config.keys import ConfigError
from coterie.app.config.sources import of_record
from coterie.app.institution.commands import probe
from coterie.app.institution.security import approval
from coterie.app.institution.security.privacy_ledger import spent_by_peer
from coterie.app.runners import submission
from coterie.app.runners.superlink import ask
from coterie.app.runs import atomic, checkpoint_files, files, progress, rundir
from coterie.app.runs.files import ResultsError
from coterie.app.runs.progress import RunState
from coterie.app.runs.settings import RunSettings
from coterie.clients.privacy import Privacy
from coterie.errors import FlowerError

ROWS = 20
_TAIL = 64 * 1024  # maximum bytes that are read from an audit log
_LOG = 1 << 40
_LETTERS = 100
_WRITTEN = {"time", "direction", "kind", "round", "from", "to", "verdict"}
"""Required fields of a line of the audit log."""
_OF_PEERS = {"last_seen", "names", "nodes", "took_part"}
"""Fields of progress.json with an entry per peer."""
Document = dict[str, Any]


def of_run(directory: Path) -> Document:
    """Return the state of a run directory of a relay, a node, or both."""
    now = progress.read(directory)
    states = sorted((directory / "nodes").glob("peer*"))
    if not now and not states:
        if (directory / approval.DECISIONS).exists():
            return of_node(directory.parent)
        raise ConfigError(f"{directory}: no run of a relay or of a node is here")
    logs = sorted(path.name for path in directory.glob("audit-*.jsonl")) if states else ()
    letters = [letter for name in logs for letter in _letters(directory, name)]
    return {
        "kind": "run",
        "name": directory.name,
        "relay": _of_relay(directory, now) if now else None,
        "states": list(_states(states, now.get("names", {}))),
        "letters": sorted(letters, key=lambda letter: str(letter["time"]))[-_LETTERS:],
    }


def of_node(out: Path, relay: tuple[str, Path | None] | None = None) -> Document:
    """Return the state of a node's `out`; `relay`: address and authority of a connection to try."""
    try:
        decided = sorted(
            ((str(line["time"]), path.parent, str(line["decision"]))
             for path in out.glob(f"*/{approval.DECISIONS}")
             for line in atomic.lines(path)[-1:]),
            reverse=True,
        )[:ROWS]  # fmt: skip
    except (KeyError, ValueError) as error:
        raise ConfigError(f"the decisions in {out} are damaged: {error}") from None
    configs: dict[Path, Config] = {}
    for _, run, _ in decided:
        with suppress(ConfigError):  # of another version
            configs[run] = Config.of(of_record(approval.newest_config(run)[0]))
    named = ((run.name, of.privacy) for run, of in configs.items() if of.privacy.kind != "none")
    run_name, private = next(named, ("", Privacy()))
    runs = []
    for at, run, decision in decided:
        config = configs.get(run)
        waits = decision.startswith(approval.WAITS)
        until = approval.first_asked(run) + config.join_seconds if waits and config else None
        row = {"run": run.name, "directory": str(run), "method": config.label if config else None}
        decision = "waits for approval" if waits else decision
        runs.append({**row, "decided": at[:19], "decision": decision, "approval_until": until})
    spent = spent_by_peer(out / approval.OWN, private.delta)
    return {
        "kind": "node",
        "contact_at": approval.last_contact(out),
        **probe.machine(out),
        "connection": _connection(*relay) if relay else None,
        "delta": private.delta,
        "budget": private.budget or None,
        "budget_of": run_name or None,
        "privacy": [{"peer": peer, "epsilon": epsilon} for peer, epsilon in spent.items()],
        "approved": [{"digest": key, "runs": n} for key, n in approval.unused(out).items()],
        "runs": runs,
    }


def of_connection(connection: str) -> Document:
    """Return the state of a SuperLink: its runs and SuperNodes, as listed by Flower."""
    reached, home = None, Path(os.environ.get("FLWR_HOME", Path.home() / ".flwr"))
    with suppress(OSError, ValueError, KeyError):  # a form of address that only Flower knows
        of = tomllib.loads((home / "config.toml").read_text("utf-8"))["superlink"][connection]
        reached = _connection(of["address"], home / of["root-certificates"])
    if reached and reached["error"]:  # Flower calls any reason "unavailable"
        raise ConfigError(f"{connection}, {reached['address']}: {reached['error']}")
    try:
        runs = ask("list", connection).get("runs", ())[:ROWS]
        nodes = ask("supernode", "list", connection).get("nodes", ())
    except FlowerError as error:
        why = f"{connection} is neither a run directory nor a reachable connection: {error}"
        raise ConfigError(why) from None
    return superlink(runs, nodes, reached)


def superlink(
    runs: Iterable[Document], nodes: Iterable[Document], reached: Document | None
) -> Document:
    """Return the state of a SuperLink from Flower's lists."""
    return {
        "kind": "connection",
        "connection": reached,
        "runs": [
            {
                "run": run["run-id"], "app": run["fab-id"], "status": run["status"],
                "seconds": run["elapsed"], "line_bytes": run["network-traffic"]["total-bytes"],
            }
            for run in runs
        ],
        "supernodes": [
            {
                "supernode": str(node["node-id"]), "status": node["status"],
                "since": node["online-at" if node["status"] == "online" else "offline-at"],
            }
            for node in nodes
        ],
    }  # fmt: skip


def metrics(state: Document) -> Iterator[str]:
    """Yield the lines of Prometheus's text format: each number, and each status as a label.

    The first key of objects in a list (peer, run, supernode, ...) is a label; letters are none.
    """

    def samples(name: str, labels: Mapping[str, object], value: object) -> Iterator[str]:
        if isinstance(value, dict):
            for key, of in value.items():
                if key in ("status", "state"):
                    yield from samples(f"{name}_{key}", {**labels, key: of}, 1)
                else:
                    yield from samples(f"{name}_{key}", labels, of)
        elif isinstance(value, list):
            for each in value:
                if isinstance(each, dict):
                    (key, of), *others = each.items()
                    yield from samples(name, {**labels, key: of}, dict(others))
        elif isinstance(value, int | float):
            pairs = [f"{k}={json.dumps(str(v), ensure_ascii=False)}" for k, v in labels.items()]
            yield f"{name}{{{','.join(pairs)}}} {+value}\n"

    yield from samples(f"coterie_{state['kind']}", {}, {**state, "letters": None})


def _of_relay(directory: Path, now: Mapping[str, Any]) -> Document:
    run = RunState(now, (directory / "progress.json").stat().st_mtime)
    if (directory / "config.toml").exists():
        run = RunState.read(directory, RunSettings.read(directory))
        run = run.judged(directory, rundir.held_inodes())
    with suppress(FlowerError, OSError):  # this is not the operator's account
        submission.newest(directory)
    line = [each["line_bytes"] for each in submission.submissions(directory)]
    took_part, nodes = now.get("took_part"), now.get("nodes", {})
    return {
        **{key: value for key, value in run.now.items() if key not in _OF_PEERS},
        "updated_at": run.written,
        "line_bytes": sum(line) if line else None,
        "away": progress.away(now),
        "peers": [
            {
                "peer": peer.number, "name": peer.name, "state": peer.state, "round": peer.round,
                "seen_at": peer.seen, "supernode": nodes.get(peer.number),
                "took_part": took_part[peer.number] if took_part else None,
            }
            for peer in run.peers()
        ],
    }  # fmt: skip


def _states(folders: Iterable[Path], names: Mapping[int, str]) -> Iterator[Document]:
    """Yield the newest state of each folder; a finished simulation has deleted its states."""
    for path in folders:
        match = checkpoint_files.FOLDER.fullmatch(path.name)
        saved = checkpoint_files.state_files(path)
        if match and saved:
            (t, _), newest = saved[-1]
            first, last = int(match[1]), match[2]
            peers = f"peers {first} to {int(last)}" if last else names.get(first, f"peer {first}")
            yield {"peers": peers, "round": t, "written_at": newest.lstat().st_mtime}


def _letters(directory: Path, name: str) -> Iterator[Document]:
    """Yield the last lines of an audit log; ResultsError if a line is not JSON."""
    with files.opened(directory, name, _LOG) as file:
        start = max(0, file.seek(0, 2) - _TAIL)
        file.seek(start)
        content = file.read()
    for letter in atomic.parsed(
        content[content.find(b"\n") + 1 if start else 0 :], directory / name
    ):
        if not (letter.keys() >= _WRITTEN and isinstance(letter["to"], list)):
            raise ResultsError(f"{directory / name}: a line does not describe a letter")
        yield letter


def _connection(address: str, authority: Path | None) -> Document:
    ends, apart, error = None, None, None
    try:
        ends, apart = probe.relay(address, authority)
    except OSError as failure:
        error = str(failure)
    return {"address": address, "certificate_until": ends, "clock_apart": apart, "error": error}
