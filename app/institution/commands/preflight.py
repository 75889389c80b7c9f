"""`coterie preflight`: check this node, or with --federation all nodes from the relay."""

from __future__ import annotations

import argparse
import re
import ssl
import time
import tomllib
import urllib.request
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.items import read_items
from coterie.app.config.keys import flatten
from coterie.app.config.schema import Scalar
from coterie.app.institution.process import readiness
from coterie.app.institution.process.job import Job
from coterie.app.institution.process.readiness import CLOCK_SECONDS, Check
from coterie.app.institution.requests.faults import MEANINGS
from coterie.app.runners import flower
from coterie.errors import Error

_SECONDS = 10.0


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Check one node or all nodes, and print a line per check."""
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument("--node-config", help="this node's, as flower-supernode gets it")
    who.add_argument("--federation", metavar="CONNECTION", help="all nodes of a SuperLink")
    parser.add_argument("--superlink", metavar="HOST:PORT", help="address of the relay")
    parser.add_argument("--root-certificates", type=Path, metavar="CA.crt", help="of the relay")
    parser.add_argument("--out", help="with --federation: the relay's directory of runs (runs)")
    parser.add_argument("items", nargs="*", metavar="PRESET.toml|key=value", help="of a run")
    options = parser.parse_intermixed_args(arguments)
    if options.federation:
        _ask(options, console)
    else:
        _check(options, console)


def _check(options: argparse.Namespace, console: Console) -> None:
    """Check the node of this machine."""
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
    failed = []
    for check in checks:
        try:
            console.print(f"ok  {check.name}: {check.run()}")
        except (Error, OSError) as error:
            failed.append(check.name)
            console.print(f"no  {check.name}: {error}")
    if failed:
        raise ConfigError(f"not ready: {', '.join(failed)}")
    console.print("ready")


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


def _ask(options: argparse.Namespace, console: Console) -> None:
    """Check all nodes through the relay."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    _, flat = read_items(options.items, deployed=True)
    flat |= {"name": f"preflight-{stamp}", "preflight": True}
    flat["out"] = str(Path(options.out or str(flat["out"])).absolute())  # also for the relay
    config = Config.from_flat(flat).located(stamp)
    answers = flower.survey(config, options.federation, console)
    not_ready = show(answers, console)
    if not_ready:
        raise ConfigError(f"not ready: {', '.join(not_ready)}")
    console.print("ready: every peer")


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
    """Connect to the SuperLink, through a proxy if `HTTPS_PROXY` is set, and compare the clocks."""
    context = ssl.create_default_context(cafile=authority)
    url = f"https://{address}/health"
    with urllib.request.urlopen(url, timeout=_SECONDS, context=context) as response:
        date = response.headers["Date"]
    if date is None:
        return f"{address} answers, without the time"
    apart = abs(parsedate_to_datetime(date).timestamp() - time.time())
    if apart > CLOCK_SECONDS:
        raise OSError(f"its clock and this one are {apart:.0f} s apart")
    return f"{address} answers, clocks agree"
