"""`coterie preflight`: check this node, or with --federation all nodes from the relay."""

from __future__ import annotations

import argparse
import json
import os
import re
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.items import read_items
from coterie.app.config.keys import flatten
from coterie.app.config.schema import Scalar
from coterie.app.institution.commands import probe
from coterie.app.institution.process import readiness
from coterie.app.institution.process.job import Job
from coterie.app.institution.process.readiness import CLOCK_SECONDS, Check
from coterie.app.institution.requests.faults import MEANINGS
from coterie.app.runners import flower
from coterie.app.runs.terminal import Terminal, add_json
from coterie.errors import Error


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Check one node or all nodes, and print a line per check."""
    who = parser.add_mutually_exclusive_group(required="NODE_CONFIG" not in os.environ)
    who.add_argument("--node-config", help="this node's, as flower-supernode gets it")
    who.add_argument("--federation", metavar="CONNECTION", help="all nodes of a SuperLink")
    parser.add_argument("--superlink", metavar="HOST:PORT", help="address of the relay")
    parser.add_argument("--root-certificates", type=Path, metavar="CA.crt", help="of the relay")
    for option in ("node_config", "superlink", "root_certificates"):  # in node.env of `setup`
        name = "RELAY" if option == "superlink" else option.upper()
        parser.set_defaults(**{option: os.environ.get(name)})
    parser.add_argument("--out", help="with --federation: the relay's directory of runs (runs)")
    parser.add_argument("items", nargs="*", metavar="PRESET.toml|key=value", help="of a run")
    add_json(parser, "the results")
    options = parser.parse_intermixed_args(arguments)
    lines = Terminal(stderr=True) if options.json else console
    results, not_ready = _ask(options, lines) if options.federation else _check(options, lines)
    if options.json:
        print(json.dumps({"ready": not not_ready, **results}, indent=1))
    if not_ready:
        raise ConfigError(f"not ready: {', '.join(not_ready)}")
    lines.print("ready: every peer" if options.federation else "ready")


def _check(options: argparse.Namespace, console: Console) -> tuple[dict[str, Any], list[str]]:
    """Check the node of this machine; return the results, and the checks that failed."""
    _, flat = read_items(options.items, deployed=True)
    job = Job(0, flat, node_config(options.node_config), None)
    checks = list(readiness.node_checks(job))
    if options.superlink:
        reach = lambda: _relay(options.superlink, options.root_certificates)  # noqa: E731
        checks.append(Check("relay", reach))
    if options.items:
        checks += readiness.run_checks(job)
        if job.config().dataset == "image-folder":
            checks.append(Check("files", lambda: readiness.files(job)))
    results: dict[str, dict[str, Any]] = {}
    for check in checks:
        try:
            results[check.name] = {"ok": True, "result": check.run()}
        except (Error, OSError) as error:
            results[check.name] = {"ok": False, "result": str(error)}
        word = "ok" if results[check.name]["ok"] else "no"
        console.print(f"{word}  {check.name}: {results[check.name]['result']}")
    return {"checks": results}, [name for name, of in results.items() if not of["ok"]]


def node_config(text: str) -> dict[str, Scalar]:
    """Parse --node-config as flower-supernode does: pairs of key and value, or a .toml file."""
    pairs = re.findall(r"(\S+?)=('[^']*'|\"[^\"]*\"|\S+)", text)
    try:
        if text.endswith(".toml"):
            return flatten(tomllib.loads(Path(text).expanduser().read_text("utf-8")))
        return tomllib.loads("\n".join(f'"{key}" = {value}' for key, value in pairs))
    except (OSError, ValueError) as error:
        example = 'name="hospital-a" policy="policy.toml"'
        raise ConfigError(f"--node-config: {error}: write pairs such as {example}") from None


def _ask(options: argparse.Namespace, console: Console) -> tuple[dict[str, Any], list[str]]:
    """Check all nodes through the relay; return the results, and the peers that are not ready."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    _, flat = read_items(options.items, deployed=True)
    flat |= {"name": f"preflight-{stamp}", "preflight": True}
    flat["out"] = str(Path(options.out or str(flat["out"])).absolute())  # also for the relay
    config = Config.from_flat(flat).located(stamp)
    answers = flower.survey(config, options.federation, console)
    return answers, show(answers, console)


def show(survey: Mapping[str, Any], console: Console) -> list[str]:
    """Print the relay's results (preflight.json), and return the peers that are not ready."""
    wrong = []
    for peer, checks in survey["peers"].items():
        codes = {name: status for name, status in checks.items() if status in MEANINGS}
        wrong += [peer] if codes else []
        failed = {name: status for name, status in checks.items() if status != "ok"}
        line = "; ".join(f"{name}: {status}" for name, status in (codes or failed).items())
        console.print(f"{'no' if codes else 'ok'}  peer {peer}: {line}")
    for line in survey["faults"]:
        console.print(f"no  {line}")
    return [f"peer {peer}" for peer in (*wrong, *survey["missing"])]


def _relay(address: str, authority: Path | None) -> str:
    ends, apart = probe.relay(address, authority)
    until = probe.certificate(ends)
    if apart is None:
        return f"{address} answers, without the time; {until}"
    if apart > CLOCK_SECONDS:
        raise OSError(f"its clock and this one are {apart:.0f} s apart")
    return f"{address} answers, clocks agree; {until}"
