"""`coterie status`: show the state of a run, a node or a connection on one screen."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Column, Table

from coterie.app.config.config import Config
from coterie.app.config.keys import ConfigError
from coterie.app.config.sources import of_record
from coterie.app.institution.security import approval
from coterie.app.institution.security.privacy_ledger import spent_by_peer
from coterie.app.runners.superlink import ask
from coterie.app.runs import atomic, checkpoint_files, files, progress, rundir, units
from coterie.app.runs.files import ResultsError
from coterie.app.runs.progress import RunState, minutes_left
from coterie.app.runs.settings import RunSettings
from coterie.clients.privacy import Privacy
from coterie.errors import FlowerError

ROWS = 20
_LINES = 5
_TAIL = 64 * 1024  # maximum bytes that are read from an audit log
_LOG = 1 << 40
_WRITTEN = {"time", "direction", "kind", "round", "from", "to", "verdict"}
"""Required fields of a line of the audit log."""


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Show a run on this machine, or the state of a SuperLink."""
    parser.add_argument(
        "what", nargs="?", metavar="RUN_DIR|OUT|CONNECTION", help="(the newest run)"
    )
    show(console, parser.parse_args(arguments).what)


def show(console: Console, what: str | None) -> None:
    """Show a run directory, a node's `out`, the newest of `runs/`, or a connection of Flower's."""
    directory = Path(what) if what else _newest(Path("runs"))
    if not directory.is_dir():
        lines = of_connection(str(what))
    else:
        is_node = (directory / approval.OWN).is_dir()
        lines = of_institution(directory) if is_node else of_run(directory)
    for line in lines:
        console.print(line, soft_wrap=isinstance(line, str))


def of_run(directory: Path) -> Iterator[RenderableType]:
    """Return the lines about a run directory of a relay, a node, or both."""
    now = progress.read(directory)
    states = sorted((directory / "nodes").glob("peer*"))
    if not now and not states:
        if (directory / approval.DECISIONS).exists():
            yield from of_institution(directory.parent)
            return
        raise ConfigError(f"{directory}: no run of a relay or of a node is here")
    if now:
        yield from _of_relay(directory, now)
    if states and (directory / "nodes").is_dir():
        yield from _of_node(directory, states, now.get("names", {}))


def of_institution(out: Path) -> Iterator[RenderableType]:
    """Return the lines about a node: privacy spent, approvals waited for, last runs."""
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
    for peer, spent in spent_by_peer(out / approval.OWN, private.delta).items():
        line = f"peer {peer}: epsilon {spent:.2f} spent in all runs (delta {private.delta:g})"
        if private.budget:
            left = max(0.0, private.budget - spent)
            line += f"; {left:.2f} left of {run_name}'s {private.budget:g}"
        yield line
    for _, run, decision in decided:
        if decision.startswith(approval.WAITS) and run in configs:
            until = approval.first_asked(run) + configs[run].join_seconds
            command = shlex.join(["coterie", "approve", str(run)])
            yield f"{run.name} waits for approval: {command}; {minutes_left(until)}"
    for digest, count in approval.unused(out).items():
        yield f"approved in advance, for {units.plural(count, 'run')}: {digest}"
    rows = [
        (
            run.name, configs[run].label if run in configs else "?", at[:19],
            "waits for approval" if decision.startswith(approval.WAITS) else decision,
        )
        for at, run, decision in decided
    ]  # fmt: skip
    yield _table(("run", "method", "decided (UTC)", "decision"), rows)


def of_connection(connection: str) -> Iterator[RenderableType]:
    """Return the lines about a SuperLink: its runs and SuperNodes, as listed by Flower."""
    runs = _ask("list", connection).get("runs", ())[:ROWS]
    yield _table(
        ("run", "app", "status", "for", "traffic"),
        [
            (
                run["run-id"], run["fab-id"], run["status"], units.duration(run["elapsed"]),
                units.size(run["network-traffic"]["total-bytes"]),
            )
            for run in runs
        ],
    )  # fmt: skip
    nodes = _ask("supernode", "list", connection).get("nodes", ())
    yield _table(
        ("SuperNode", "status", "since"),
        [
            (n["node-id"], n["status"], n["online-at" if n["status"] == "online" else "offline-at"])
            for n in nodes
        ],
    )


def _of_relay(directory: Path, now: Mapping[str, Any]) -> Iterator[RenderableType]:
    run = RunState(now, (directory / "progress.json").stat().st_mtime)
    if (directory / "config.toml").exists():
        run = RunState.read(directory, RunSettings.read(directory))
        run = run.judged(directory, rundir.held_inodes())
    ago = f", last update {_ago(time.time() - run.written)}" if now["status"] == "running" else ""
    yield f"{directory.name}: round {run.round} of {run.rounds}, {run.status}{ago}"
    if waits := run.waiting():
        yield waits
    yield (
        f"{run.describe()}; over the relay {units.size(now.get('relayed_bytes', 0))}"
        f" in {units.plural(now['messages'], 'message')};"
        f" {units.plural(now['refused'], 'letter')} refused"
    )
    if peers := run.peers():
        took_part, nodes, rows = now.get("took_part"), now.get("nodes", {}), []
        for peer in sorted(peers, key=lambda peer: peer.state == "awake"):
            more = [f"{took_part[peer.number]} of {run.round}"] if took_part else []
            more += [nodes.get(peer.number, "")] if nodes else []
            missing = "" if peer.state == "awake" else "missing"
            rows.append((peer.name, peer.round, _ago(time.time() - peer.seen), *more, missing))
        titles = [*["took part in"] * bool(took_part), *["SuperNode"] * bool(nodes)]
        yield _table(("peer", "last round", "last seen", *titles, ""), rows[:ROWS])
        rest = f"; {len(peers) - ROWS} not shown" if len(peers) > ROWS else ""
        here = sum(peer.state == "awake" for peer in peers)
        yield f"peers taking part: {here}, missing: {len(peers) - here}{rest}"
    yield from _last("last errors", [*now.get("faults", ()), *filter(None, [now.get("error")])])
    yield from _last("last refused", now.get("refusals", ()))


def _of_node(
    directory: Path, states: Sequence[Path], names: Mapping[str, str]
) -> Iterator[RenderableType]:
    rows = []
    for path in states:
        match = checkpoint_files.FOLDER.fullmatch(path.name)
        saved = checkpoint_files.state_files(path)
        if match and saved:
            (t, _), newest = saved[-1]
            age = time.time() - newest.lstat().st_mtime
            peer, last = match[1], match[2]
            who = names.get(str(int(peer)), f"peer {int(peer)}")
            if last:
                who = f"peers {int(peer)} to {int(last)}"
            rows.append((who, t, _ago(age)))
    if rows:  # a finished simulation has deleted its states
        yield _table(("peers of this node", "state of round", "written"), rows[:ROWS])
    logs = sorted(path.name for path in directory.glob("audit-*.jsonl"))
    letters = [letter for name in logs for letter in _letters(directory, name)]
    lines = [
        f"{letter['time']} {letter['direction']} {letter['kind']} of round {letter['round']}, "
        f"from {letter['from']} to {', '.join(map(str, letter['to']))}: {letter['verdict']}"
        for letter in sorted(letters, key=lambda letter: str(letter["time"]))
    ]
    yield from _last("last letters", lines)
    yield from _last("last refused", [line for line in lines if ": refused" in line])


def _letters(directory: Path, name: str) -> Iterator[Mapping[str, Any]]:
    """Yield the last lines of an audit log; ResultsError if a line is not JSON."""
    with files.opened(directory, name, _LOG) as file:
        start = max(0, file.seek(0, 2) - _TAIL)
        file.seek(start)
        content = file.read()
    for letter in atomic.parsed(
        content[content.find(b"\n") + 1 if start else 0 :], directory / name
    ):
        if not letter.keys() >= _WRITTEN:
            raise ResultsError(f"{directory / name}: a line does not describe a letter")
        if not isinstance(letter["to"], list):
            raise ResultsError(f"{directory / name}: a letter has no recipients")
        yield letter


def _newest(runs: Path) -> Path:
    runs_by_time = sorted(runs.glob("*/progress.json"), key=lambda path: path.stat().st_mtime)
    if not runs_by_time:
        raise ConfigError(f"no run in {runs}: name a run directory, or a connection of Flower's")
    return runs_by_time[-1].parent


def _ask(*arguments: str) -> dict[str, Any]:
    try:
        return ask(*arguments)
    except FlowerError as error:
        connection = arguments[-1]
        why = f"{connection} is neither a run directory nor a reachable connection: {error}"
        raise ConfigError(why) from None


def _last(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield f"{title}:"
        yield from (f"  {line}" for line in lines[-_LINES:])


def _table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    ids = ("run", "SuperNode")  # are copied into other commands
    columns = [Column(title, no_wrap=title in ids, overflow="fold") for title in titles]
    table = Table(*columns, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for row in rows:
        table.add_row(*map(str, row))
    return table


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{max(seconds, 0):.0f} s ago"
