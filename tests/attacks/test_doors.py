"""Each port that a command opens, tried by another user of the machine, who has no secret of it.

The stranger sends code and orders with Flower's own client, with Ray's calls and over HTTP. The
same attack takes a SuperLink that is open to all, so it works.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import tomli_w

from coterie.app.runners import bundle
from coterie.app.runners.superlink import QUIET
from tests.checkout import free_port, of_this_checkout
from tests.marks import case

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SECONDS = 300
ENDLESS = ("num-server-rounds=1000000", "evaluate-every=1000", "peers=4", "partition.clusters=2")
COMMANDS: Mapping[str, Sequence[str]] = {
    "run": ("run", "method=local", "--nodes", "2", "--name", "run"),
    "compare": ("compare", "--methods", "local,fedavg", "--seeds", "1", "--workers", "2"),
}
CALLS = (  # execute, stop, store
    "CoreWorkerService/PushTask", "CoreWorkerService/KillActor", "CoreWorkerService/Exit",
    "NodeManagerService/RequestWorkerLease", "NodeManagerService/ShutdownRaylet",
    "ObjectManagerService/Push", "JobInfoGcsService/AddJob", "ActorInfoGcsService/RegisterActor",
    "InternalKVGcsService/InternalKVPut",
)  # fmt: skip
REFUSED = {"UNAUTHENTICATED", "UNIMPLEMENTED", "UNAVAILABLE"}
"""Codes of a call without the secret, of a server without this call, and of no such server."""
ORDERS = """
import grpc, http.client, json, os, sys
codes, web = {}, {}
for port in sys.argv[2:]:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        for name in json.loads(sys.argv[1]):
            try:
                channel.unary_unary(f"/ray.rpc.{name}")(b"", timeout=20)
                code = "OK"
            except grpc.RpcError as error:
                code = error.code().name
            codes.setdefault(name, {})[port] = code
    try:
        server = http.client.HTTPConnection("127.0.0.1", int(port), timeout=20)
        server.request("POST", "/get_or_create_runtime_env", b"")
        web[port] = server.getresponse().status
    except (OSError, http.client.HTTPException):
        pass
print(json.dumps([os.getuid(), codes, web]))
"""


def another_user() -> list[str]:
    """Return the start of a command that another user executes, or this one without permission.

    The other one may read what this one may, such as Python in a home directory.
    """
    if os.geteuid() or not shutil.which("setpriv"):
        return []
    who = "--reuid=65534 --regid=65534 --clear-groups"
    reads = "--inh-caps=+dac_read_search --ambient-caps=+dac_read_search"
    return ["setpriv", *who.split(), *reads.split()]


@contextmanager
def started(
    *command: str, place: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in the background, interrupt it, and kill what a host of Flower leaves."""
    restored = ["env", "--default-signal=INT"]  # a background job ignores the signal of Ctrl-C
    with (place / f"{command[-1]}.log").open("w") as log:
        process = subprocess.Popen(
            [*restored, *command], cwd=place, env=environment, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        left = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        process.wait(60)
        for each in left:
            with suppress(psutil.NoSuchProcess):
                each.kill()


def listening(process: subprocess.Popen[bytes]) -> set[int]:
    """Return the ports on which a process and its descendants listen."""
    ports, first = set[int](), psutil.Process(process.pid)
    for each in (first, *first.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it ended in the meantime
            connections = each.net_connections("inet")
            ports |= {of.laddr.port for of in connections if of.status in ("LISTEN", "NONE")}
    return ports


def sent_code(ports: Sequence[int], place: Path, environment: Mapping[str, str]) -> dict[int, bool]:
    """Return whether each port took an app from another user's `flwr run`."""
    flwr, app, going = Path(sys.executable).with_name("flwr"), place / "app", {}
    bundle.write_app(app)
    for port in ports:
        home = place / f"home-{port}"
        home.mkdir()
        home.chmod(0o777)
        connection = {"address": f"127.0.0.1:{port}", "insecure": True}
        text = tomli_w.dumps({"superlink": {"default": "door", "door": connection}})
        (home / "config.toml").write_text(text)
        going[port] = subprocess.Popen(
            [*another_user(), str(flwr), "run", str(app), "door", "--format", "json"],
            env={**environment, **QUIET, "FLWR_HOME": str(home), "no_proxy": "127.0.0.1"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
    answers = {port: process.communicate(timeout=SECONDS)[0] for port, process in going.items()}
    print(answers)
    return {port: '"success": true' in answer for port, answer in answers.items()}


@pytest.mark.parametrize("name", [case("run", is_long=False), case("compare", is_long=True)])
def test_no_port_takes_code_or_orders(tmp_path: Path, name: str) -> None:
    open_port = free_port()
    ours = of_this_checkout([sys.executable], tmp_path)
    environment = {key: value for key, value in ours.items() if not key.startswith("RAY_A")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    coterie = [sys.executable, "-m", "coterie", *COMMANDS[name], *ENDLESS]
    link = Path(sys.executable).with_name("flower-superlink")
    host = [str(link), "--insecure", "--simulation", "--host", "127.0.0.1"]
    with (
        started(*host, "--port", str(open_port), place=tmp_path, environment=environment),
        started(*coterie, place=tmp_path, environment=environment) as process,
    ):
        until = time.monotonic() + SECONDS
        while not [*tmp_path.glob("runs/**/metrics.jsonl")] or len(listening(process)) < 6:
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.2)
        ports = sorted(listening(process))
        taken = sent_code([*ports, open_port], tmp_path, environment)
        answers = subprocess.check_output(
            [*another_user(), sys.executable, "-c", ORDERS, json.dumps(CALLS), *map(str, ports)]
        )
        still = process.poll() is None
    assert {port for port, is_taken in taken.items() if is_taken} == {open_port}
    uid, codes, web = json.loads(answers)
    assert (uid != os.geteuid()) == bool(another_user())
    for call, of_port in codes.items():
        assert "UNAUTHENTICATED" in of_port.values(), f"{call}: Ray has no such call"
        assert set(of_port.values()) <= REFUSED, f"{call}: {of_port}"
    assert web
    assert set(web.values()) <= {401, 403}, web
    assert still
