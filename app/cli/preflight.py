"""`python -m app preflight`: whether a node is ready, before the first run comes.

It is run where the node's executor runs, as its user, with the words of --node-config. Numbers of
examples are shown as bands, so that the output may be sent to the relay's operator.
"""

from __future__ import annotations

import argparse
import http.client
import os
import shutil
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from pathlib import Path

from flwr.common.config import parse_config_args
from rich.console import Console

from app.config.config import Config, ConfigError
from app.config.digest import config_digest_of
from app.config.items import read_items
from app.config.preflight import check_method, problem_of
from app.node.faults import StartError
from app.node.service import Job, hosted
from app.runs import units
from app.security import approval
from app.security.approval import OWN
from app.security.policy import PolicyError, check_counts, check_run, is_own, read_policy
from app.security.sealing import deployed
from app.security.trust import KeysError
from datasets.problem import DataError

_BANDS = (20, 50, 100, 500, 1000, 10_000, 100_000, 1_000_000)
_SECONDS = 10.0
_CLOCK_SECONDS = 60.0
_DISK = 2 * 10**9
_MEMORY = 2 * 10**9
_WRONG = (ConfigError, DataError, KeysError, PolicyError, StartError, OSError)


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Check a node and print a line for each thing."""
    parser.add_argument("--node-config", required=True, help="as flower-supernode gets it")
    parser.add_argument("--superlink", metavar="HOST:PORT", help="the relay, to be reached")
    parser.add_argument("--root-certificates", type=Path, metavar="CA.crt", help="of the relay")
    parser.add_argument("items", nargs="*", metavar="PRESET.toml|key=value", help="of a run")
    given = parser.parse_intermixed_args(arguments)
    job = Job(0, read_items(given.items)[1], parse_config_args([given.node_config]), None)
    checks = list(_node(job))
    if given.superlink:
        checks.append(("relay", lambda: _relay(given.superlink, given.root_certificates)))
    if given.items:
        checks.append(("run", lambda: _run(job)))
        checks.append(("data", lambda: _data(job)))
    failed = []
    for what, check in checks:
        try:
            console.print(f"ok  {what}: {check()}", soft_wrap=True)
        except _WRONG as error:
            failed.append(what)
            console.print(f"no  {what}: {error}", soft_wrap=True)
    if failed:
        raise ConfigError(f"not ready: {', '.join(failed)}")
    console.print("ready")


def _node(job: Job) -> Iterator[tuple[str, Callable[[], str]]]:
    yield "versions", lambda: ", ".join(f"{name} {version(name)}" for name in ("flwr", "torch"))
    yield "policy", lambda: _policy(job)
    yield "keys", lambda: _keys(job)
    yield "out", lambda: _out(Path(job.config().out))
    yield "memory", _memory


def _policy(job: Job) -> str:
    policy = read_policy(Path(str(job.node_config.get("policy", ""))))
    return f"approval {policy.approval}, reports {policy.reports.disclosure}"


def _keys(job: Job) -> str:
    required = read_policy(Path(str(job.node_config.get("policy", "")))).sealing
    (peer,) = hosted(job, 10**6)
    sealing = deployed(job.config(), job.node_config, peer, required=required)
    if not sealing.keys:
        return f"peer {peer}, without: letters are plain"
    own, trust = sealing.read()
    if peer not in trust:
        raise KeysError(f"{sealing.trust} has no entry of this node's own, peer {peer}")
    return f"peer {peer}, {own[peer].public.fingerprint[:19]} ..., trusts {len(trust) - 1} others"


def _out(out: Path) -> str:
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=out):
        free = shutil.disk_usage(out).free
    own = out / OWN
    if own.exists() and not os.access(own, os.W_OK):
        raise PermissionError(f"{own} cannot be written to by this user")
    if free < _DISK:
        raise OSError(f"{units.size(free)} free in {out}: a run may need {units.size(_DISK)}")
    return f"{out} can be written to, {units.size(free)} free"


def _memory() -> str:
    found = Path("/proc/meminfo")
    if not found.exists():
        return "not known here"
    lines = dict(line.split(":", 1) for line in found.read_text().splitlines())
    free = 1024 * int(lines["MemAvailable"].split()[0])
    if free < _MEMORY:
        raise OSError(f"{units.size(free)} free: a node may need {units.size(_MEMORY)}")
    return f"{units.size(free)} free"


def _relay(address: str, authority: Path | None) -> str:
    """Reach the SuperLink, and compare its clock with this one's."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=authority)
    connection = http.client.HTTPSConnection(host, int(port), timeout=_SECONDS, context=context)
    connection.request("GET", "/health")
    said = connection.getresponse().headers["Date"]
    if said is None:
        return f"{address} answers, without the time"
    apart = abs(parsedate_to_datetime(said).timestamp() - time.time())
    if apart > _CLOCK_SECONDS:
        raise OSError(f"its clock and this one are {apart:.0f} s apart")
    return f"{address} answers, clocks agree"


def _run(job: Job) -> str:
    """Whether the policy allows the run, and whether a person has approved it."""
    config = job.config()
    policy = read_policy(Path(str(job.node_config.get("policy", ""))))
    check_run(policy, config)
    digest = config_digest_of(config).hex()
    if policy.approval == "digest" and not approval.is_approved(Path(config.out), digest):
        raise PolicyError(f"allowed, but it waits for approval: {digest}")
    return "the policy allows it"


def _data(job: Job) -> str:
    """Whether this node's data fit the run, and roughly how much there is."""
    config: Config = job.config()
    (peer,) = hosted(job, config.peers)
    problem = problem_of(config, peer)
    check_method(config, problem)
    parts = {"train": problem.train, "test": problem.test, "validation": problem.validation}
    sizes = {name: int(part.sizes[peer]) for name, part in parts.items()}
    if is_own(config.dataset):
        check_counts(read_policy(Path(str(job.node_config["policy"]))), sizes)
    return ", ".join(f"{name} {_band(size)}" for name, size in sizes.items())


def _band(size: int) -> str:
    low = max((edge for edge in _BANDS if edge <= size), default=0)
    return f"at least {low}" if low else f"fewer than {_BANDS[0]}"
