"""`coterie status`: show the state of a run, a node or a connection on one screen."""

from __future__ import annotations

import argparse
import json
import shlex
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console, RenderableType
from rich.table import Column, Table

from coterie.app.config.keys import ConfigError
from coterie.app.institution.commands import probe, state
from coterie.app.institution.commands.state import ROWS, Document
from coterie.app.institution.security import approval
from coterie.app.runs import atomic, units
from coterie.app.runs.progress import RunState, minutes_left
from coterie.app.runs.terminal import add_json

_LINES = 5


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Show a run on this machine, or the state of a SuperLink."""
    parser.add_argument(
        "what", nargs="?", metavar="RUN_DIR|OUT|CONNECTION", help="(the newest run)"
    )
    parser.add_argument("--superlink", metavar="HOST:PORT", help="with OUT: the relay, to try it")
    parser.add_argument("--root-certificates", type=Path, metavar="CA.crt", help="of the relay")
    parser.add_argument("--metrics", type=Path, metavar="FILE", help="write Prometheus's format")
    add_json(parser, "the state")
    options = parser.parse_args(arguments)
    relay = (options.superlink, options.root_certificates) if options.superlink else None
    document = read(options.what, relay)
    if options.metrics:
        with atomic.replacing(options.metrics) as draft:
            draft.write_text("".join(state.metrics(document)), encoding="utf-8")
            draft.chmod(0o644)  # another user collects it
    if options.json:
        print(json.dumps(document, indent=1))
    elif not options.metrics:
        show(console, document)


def read(what: str | None, relay: tuple[str, Path | None] | None = None) -> Document:
    """Return the state of a run directory, a node's `out`, or a connection of Flower's.

    None: the newest run of `runs/`. `relay`: see `state.of_node`.
    """
    directory = Path(what) if what else _newest(Path("runs"))
    if not directory.is_dir():
        return state.of_connection(str(what))
    if (directory / approval.OWN).is_dir():
        return state.of_node(directory, relay)
    return state.of_run(directory)


def show(console: Console, document: Document) -> None:
    """Print a state in lines and tables."""
    kinds = {"run": _of_run, "node": _of_node, "connection": _of_connection}
    for line in kinds[document["kind"]](document):
        console.print(line, soft_wrap=isinstance(line, str))


def _of_run(run: Document) -> Iterator[RenderableType]:
    if run["relay"]:
        yield from _of_relay(run["name"], run["relay"])
    if rows := [(of["peers"], of["round"], _ago(of["written_at"])) for of in run["states"]]:
        yield _table(("peers of this node", "state of round", "written"), rows[:ROWS])
    lines = [
        f"{letter['time']} {letter['direction']} {letter['kind']} of round {letter['round']}, "
        f"from {letter['from']} to {', '.join(map(str, letter['to']))}: {letter['verdict']}"
        for letter in run["letters"]
    ]
    yield from _last("last letters", lines)
    yield from _last("last refused", [line for line in lines if ": refused" in line])


def _of_relay(name: str, now: Document) -> Iterator[RenderableType]:
    run = RunState(now)
    ago = "" if run.is_over else f", last update {_ago(now['updated_at'])}"
    yield f"{name}: round {run.round} of {run.rounds}, {run.status}{ago}"
    if waits := run.waiting():
        yield waits
    letters, sealing = (units.size(now.get(key, 0)) for key in ("relayed_bytes", "sealing_bytes"))
    line = "" if now["line_bytes"] is None else f", line {units.size(now['line_bytes'])}"
    yield (
        f"{run.describe()}; over the relay: letters {letters}, sealing {sealing}{line}, in "
        f"{units.plural(now['messages'], 'message')}; {units.plural(now['refused'], 'letter')} "
        "refused"
    )
    if peers := sorted(now["peers"], key=lambda peer: bool(peer["state"] == "awake")):
        rows = [
            (
                peer["name"], peer["round"], _ago(peer["seen_at"]),
                "" if peer["took_part"] is None else f"{peer['took_part']} of {run.round}",
                peer["supernode"] or "", "" if peer["state"] == "awake" else "missing",
            )
            for peer in peers
        ]  # fmt: skip
        titles = ("peer", "last round", "last seen", "took part in", "SuperNode", "")
        shown = [k for k, title in enumerate(titles) if not title or any(row[k] for row in rows)]
        columns = [[row[k] for k in shown] for row in rows[:ROWS]]
        yield _table([titles[k] for k in shown], columns)
        rest = f"; {len(peers) - ROWS} not shown" if len(peers) > ROWS else ""
        here = sum(peer["state"] == "awake" for peer in peers)
        yield f"peers taking part: {here}, missing: {len(peers) - here}{rest}"
    yield from _last("last errors", [*now.get("faults", ()), *filter(None, [now.get("error")])])
    yield from _last("last refused", now.get("refusals", ()))
    yield from now["away"]


def _of_node(node: Document) -> Iterator[RenderableType]:
    contact = _ago(node["contact_at"]) if node["contact_at"] else "never"
    executor = "runs" if node["executor"] else "does not run on this machine"
    free = units.size(node["free_bytes"])
    yield f"last message from a relay: {contact}; executor {executor}; {free} free"
    yield from _line_of(node["connection"])
    for of in node["privacy"]:
        line = f"peer {of['peer']}: epsilon {of['epsilon']:.2f} spent in all runs"
        line += f" (delta {node['delta']:g})"
        if node["budget"]:
            left = max(0.0, node["budget"] - of["epsilon"])
            line += f"; {left:.2f} left of {node['budget_of']}'s {node['budget']:g}"
        yield line
    for run in node["runs"]:
        if run["approval_until"]:
            command = shlex.join(["coterie", "approve", run["directory"]])
            minutes = minutes_left(run["approval_until"])
            yield f"{run['run']} waits for approval: {command}; {minutes}"
    for of in node["approved"]:
        yield f"approved in advance, for {units.plural(of['runs'], 'run')}: {of['digest']}"
    rows = [(of["run"], of["method"] or "?", of["decided"], of["decision"]) for of in node["runs"]]
    yield _table(("run", "method", "decided (UTC)", "decision"), rows)


def _of_connection(link: Document) -> Iterator[RenderableType]:
    yield from _line_of(link["connection"])
    rows = []
    for of in link["runs"]:
        sizes = units.duration(of["seconds"]), units.size(of["line_bytes"])
        rows.append((of["run"], of["app"], of["status"], *sizes))
    yield _table(("run", "app", "status", "for", "traffic"), rows)
    nodes = [(of["supernode"], of["status"], of["since"]) for of in link["supernodes"]]
    yield _table(("SuperNode", "status", "since"), nodes)


def _line_of(reached: Document | None) -> Iterator[str]:
    """Yield a line about the connection to a relay, if it was tried."""
    if reached is not None:
        until = reached["certificate_until"]
        yield f"{reached['address']}: {reached['error'] or probe.certificate(until)}"


def _newest(runs: Path) -> Path:
    runs_by_time = sorted(runs.glob("*/progress.json"), key=lambda path: path.stat().st_mtime)
    if not runs_by_time:
        raise ConfigError(f"no run in {runs}: name a run directory, or a connection of Flower's")
    return runs_by_time[-1].parent


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


def _ago(at: float) -> str:
    seconds = time.time() - at
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{max(seconds, 0):.0f} s ago"
