"""Check whether a node is ready for a run; the relay gets codes and bands, if the policy agrees."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from coterie.app.config.digest import config_digest_of
from coterie.app.config.preflight import check_method, problem_of
from coterie.app.institution.process.job import Job, hosted
from coterie.app.institution.requests import faults
from coterie.app.institution.requests.faults import MachineError, StartError
from coterie.app.institution.requests.vetting import RequestError
from coterie.app.institution.security import approval
from coterie.app.institution.security.approval import ApprovalError
from coterie.app.institution.security.policy import Policy, read_policy
from coterie.app.institution.security.proof import claim
from coterie.app.institution.security.run_check import check_own_data, check_run
from coterie.app.institution.security.seal import Scope
from coterie.app.institution.security.sealing import Sealing, deployed
from coterie.app.institution.security.split import split_seed
from coterie.app.institution.security.trust import KeysError
from coterie.app.runs import units
from coterie.datasets import account
from coterie.datasets.problem import Problem
from coterie.strategies.protocol import Request, Response

CLOCK_SECONDS = 60.0
_BANDS = (20, 50, 100, 500, 1000, 10_000, 100_000, 1_000_000)
_DISK = 2 * 10**9
_MEMORY = 2 * 10**9

_log = logging.getLogger("coterie.node")


@dataclass(frozen=True)
class Check:
    """Check of a node; `run` returns its result or raises an error."""

    name: str
    run: Callable[[], str]
    disclosed: bool = False  # the relay may receive the result unchanged


def node_checks(job: Job) -> Iterator[Check]:
    """Yield the checks for any run."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("flwr", "torch"))
    yield Check("versions", lambda: versions, disclosed=True)
    in_words = "approval {0.approval}, reports {0.reports.disclosure}"
    yield Check("policy", lambda: in_words.format(_policy(job)))
    yield Check("keys", lambda: _keys(job))
    yield Check("out", lambda: _out(Path(job.config().out)))
    yield Check("memory", _memory)


def run_checks(job: Job) -> Iterator[Check]:
    """Yield the checks for the run of `job`; the last one reads data."""
    yield Check("run", lambda: _run(job))
    yield Check("data", lambda: _data(job), disclosed=True)


def answer(request: Request, job: Job) -> Response:
    """Return "ok", a band or a code per check for the relay; details go to the node's log."""
    if len(request.edges) or request.letters:
        raise RequestError("a preflight with edges or letters")
    config = job.config()
    checks = (Check("clock", lambda: _clock(request.clock)), *node_checks(job), *run_checks(job))
    results: dict[str, str] = {}
    for check in checks:
        if check.name == "data" and results["run"] != "ok":
            results["data"] = "not looked at"  # a refused run must not read data
            continue
        try:
            result = check.run()
        except Exception as error:
            _log.warning("%s: %s: %s", check.name, type(error).__name__, error)
            results[check.name] = faults.code_of(error)
        else:
            hidden = check.name == "data" and _policy(job).reports.disclosure != "all"
            results[check.name] = result if check.disclosed and not hidden else "ok"
    claims = _claims(job, request.attempt) if results["keys"] == "ok" else ()
    return Response(hosted(job, config.peers), checks=tuple(results.items()), claims=claims)


def _claims(job: Job, attempt: str) -> tuple[bytes, ...]:
    peer, sealing = _sealing(job)
    if not sealing.keys:
        return ()
    keys, _ = sealing.read()
    scope = Scope(Path(job.config().run_dir).name, sealing.config_digest, attempt)
    return (claim(peer, scope, keys[peer]),)


def _sealing(job: Job) -> tuple[int, Sealing]:
    (peer,) = hosted(job, 10**6)  # without items, the number of peers is unknown
    return peer, deployed(job.config(), job.node_config, peer, required=_policy(job).sealing)


def _clock(relays: float) -> str:
    apart = abs(relays - time.time())
    if apart > CLOCK_SECONDS:
        raise MachineError(f"the relay's clock and this one are {apart:.0f} s apart")
    return "clocks agree"


def _policy(job: Job) -> Policy:
    if "policy" not in job.node_config:
        raise StartError('this node has no policy: start it with policy="FILE" in --node-config')
    return read_policy(Path(str(job.node_config["policy"])))


def _keys(job: Job) -> str:
    peer, sealing = _sealing(job)
    if not sealing.keys:
        return f"peer {peer}, without: letters are plain"
    keys, trust = sealing.read()
    if peer not in trust:
        raise KeysError(f"{sealing.trust} has no entry for this node's peer {peer}")
    if job.config().peers > 1 and len(trust) == 1:
        raise KeysError(
            f"{sealing.trust} has no other peer, so this node can read no letter: coterie keys "
            f"trust NAME.pub.toml --file {sealing.trust}"
        )
    return f"peer {peer}, {keys[peer].public.fingerprint[:19]} ..., trusts {len(trust) - 1} others"


def _out(out: Path) -> str:
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=out):
        free = shutil.disk_usage(out).free
    folder = out / approval.OWN
    if folder.exists() and not os.access(folder, os.W_OK):
        raise MachineError(f"this user cannot write to {folder}")
    if free < _DISK:
        raise MachineError(f"{units.size(free)} free in {out}: a run may need {units.size(_DISK)}")
    return f"{out} can be written to, {units.size(free)} free"


def _memory() -> str:
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return "not known here"
    lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    free = 1024 * int(lines["MemAvailable"].split()[0])
    if free < _MEMORY:
        raise MachineError(f"{units.size(free)} free: a node may need {units.size(_MEMORY)}")
    return f"{units.size(free)} free"


def _run(job: Job) -> str:
    """Check that the policy allows the run, and that a person has approved it."""
    config, policy = job.config(), _policy(job)
    check_run(policy, config)
    digest = config_digest_of(config).hex()
    out = Path(config.out)
    if policy.approval == "digest" and digest not in approval.unused(out):
        raise ApprovalError(f"allowed, but it waits for approval: {digest}")
    return "the policy allows it"


def _data(job: Job) -> str:
    """Check that this node's data fit the run, and return the number of examples as a band."""
    config = job.config()
    (peer,) = hosted(job, config.peers)
    problem = _problem(job)
    check_method(config, problem)
    check_own_data(_policy(job), config, problem, peer)
    sizes = problem.sizes(peer, in_groups=True)
    return ", ".join(f"{name} {_band(size)}" for name, size in sizes.items())


def _problem(job: Job) -> Problem:
    config = job.config()
    (peer,) = hosted(job, config.peers)
    return problem_of(config, peer, split_seed(Path(config.out) / approval.OWN, config))


def files(job: Job) -> str:
    """Return the account of this node's files, for its own terminal only."""
    problem = _problem(job)
    return "; ".join((*account.lines(account.named(problem.accounts, ())), *problem.left_out))


def _band(size: int) -> str:
    low = max((edge for edge in _BANDS if edge <= size), default=0)
    return f"at least {low}" if low else f"fewer than {_BANDS[0]}"
