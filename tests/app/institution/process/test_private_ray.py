"""Ray of a simulation and of a comparison: nobody joins, and nothing leaves the machine."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests import private_names
from tests.checkout import of_this_checkout

pytestmark = [pytest.mark.e2e, pytest.mark.long]

ROOT = Path(__file__).parents[4]
SECONDS = 600
ENDLESS = ("num-server-rounds=1000000", "evaluate-every=1000", "peers=4", "partition.clusters=2")
COMMANDS: Mapping[str, Sequence[str]] = {
    "run": ("run", "method=local", "--nodes", "2", "--name", "run"),
    "public": ("run", "method=local", "--nodes", "2", "--name", "public"),
    "compare": ("compare", "--methods", "local,fedavg", "--seeds", "1", "--workers", "2"),
}
HIDDEN = "public"
"""Command for which Ray's private names are hidden: not on the isolated host, since Ray's dashboard
asks the services of clouds for their names."""
LOOPBACK = re.compile(r"(127\.[\d.]+|\[::1\]|\[::ffff:127\.[\d.]+\]):\d+")
STRANGER = """
import pathlib, ray, sys
ray.init(sys.argv[1], log_to_driver=False)
mark = pathlib.Path(sys.argv[2])
write = ray.remote(num_cpus=0)(lambda: mark.write_text("here"))
ray.get(write.remote(), timeout=60)
"""
# A host whose every packet to another one is seen, and whose every question to a name server.
# It ends with a packet of its own, to show that it sees.
HOST = """
import ipaddress, select, socket, subprocess, sys
for line in ("link set lo up", "link add outside type veth peer name wire", "link set wire up",
             "link set outside arp off up", "addr add 192.0.2.1/24 dev outside",
             "route add default dev outside", "-6 addr add 2001:db8::1/64 dev outside nodad",
             "-6 route add default dev outside"):
    subprocess.run(["ip", *line.split()], check=not line.startswith("-6"), stderr=2)
packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
print("up", flush=True)
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
seen, sees = set(), True
while sees or select.select([packets], [], [], 0)[0]:
    if sees and sys.stdin in select.select([packets, sys.stdin], [], [])[0]:
        sees = False
        probe.sendto(b"end", ("203.0.113.1", 9))
        continue
    packet, (device, *_) = packets.recvfrom(65535)
    old = packet[0] >> 4 == 4
    head, kind = (packet[0] % 16 * 4, packet[9]) if old else (40, packet[6])
    to = ipaddress.ip_address(packet[16:20] if old else packet[24:40])
    port = int.from_bytes(packet[head + 2 : head + 4], "big")
    if kind in (socket.IPPROTO_TCP, socket.IPPROTO_UDP) and (device != "lo" or port == 53):
        seen.add(f"{to}:{port}")
print(*sorted(seen))
"""


@dataclass
class Scene:
    """Commands that were attacked while they ran, and what came of it."""

    left: list[str] | None = None
    """Addresses of other machines to which something was sent; None without permission to look."""
    listening: dict[str, list[str]] = field(default_factory=dict)
    codes: dict[str, int] = field(default_factory=dict)
    output: dict[str, str] = field(default_factory=dict)
    strangers: dict[str, str] = field(default_factory=dict)
    joined: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    place, scene = tmp_path_factory.mktemp("scene"), Scene()
    if not shutil.which("ss"):
        pytest.skip("needs ss (iproute2)")
    isolated = ["unshare", "--net"]
    if subprocess.run([*isolated, "ip", "link"], capture_output=True).returncode:
        play(place, scene, [])
    else:
        with subprocess.Popen(
            [*isolated, sys.executable, "-c", HOST],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as host:  # fmt: skip
            assert host.stdout is not None
            assert host.stdout.readline() == "up\n"
            play(place, scene, ["nsenter", f"--net=/proc/{host.pid}/ns/net"])
            scene.left = host.communicate()[0].split()
    return scene


def play(place: Path, scene: Scene, inside: Sequence[str]) -> None:
    """Run each command, let a stranger attack its Ray, and interrupt it."""
    places = {name: [] if name == HIDDEN else inside for name in COMMANDS}
    ours = of_this_checkout([*inside, sys.executable], place)
    environment = {key: value for key, value in ours.items() if not key.startswith("RAY_A")}
    few = ("num-server-rounds=2", *ENDLESS[1:], "--name", "few")
    # A background job ignores the signal of Ctrl-C.
    coterie = ["env", "--default-signal=INT", sys.executable, "-m", "coterie"]
    subprocess.run(
        [*inside, *coterie, "run", "method=local", *few], cwd=place, env=environment, check=True
    )
    running = {}
    try:
        (place / "sitecustomize.py").write_text(private_names.START)
        for name, words in COMMANDS.items():
            more = {"PYTHONPATH": f"{place}{os.pathsep}{ROOT}"} if name == HIDDEN else {}
            with (place / f"{name}.log").open("w") as log:
                running[name] = subprocess.Popen(
                    [*places[name], *coterie, *words, *ENDLESS], cwd=place, env=environment | more,
                    stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
        wait_for(lambda: len(list(place.glob("runs/**/metrics.jsonl"))) >= 5, place)
        for name, process in running.items():  # one may be ahead of the other
            wait_for(partial(has_ray, process, places[name]), place)
        none: dict[str, str] = {}
        tokens = (none, none, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "guessed"})
        strangers = {}
        for (name, process), token in zip(running.items(), tokens, strict=True):
            ports = listening(process, places[name])
            scene.listening[name] = [where for every in ports.values() for where in every]
            (where,) = ports["gcs_server"]
            there = f"127.0.0.1:{where.rpartition(':')[2]}"
            strangers[name] = subprocess.Popen(
                [*places[name], sys.executable, "-c", STRANGER, there, str(place / name)],
                env=environment | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"} | token,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip
        for name, stranger in strangers.items():
            scene.strangers[name] = stranger.communicate(timeout=SECONDS)[0]
        scene.joined = [name for name in COMMANDS if (place / name).exists()]
        for name, process in running.items():
            process.send_signal(signal.SIGINT)
            scene.codes[name] = process.wait(SECONDS)
            scene.output[name] = (place / f"{name}.log").read_text()
    finally:
        for process in running.values():
            process.kill()


def wait_for(is_so: Callable[[], bool], place: Path) -> None:
    until = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < until, "".join(p.read_text() for p in place.glob("*.log"))
        time.sleep(0.1)


def has_ray(process: subprocess.Popen[bytes], inside: Sequence[str]) -> bool:
    """Return whether Ray's server and its services have their ports."""
    ports = listening(process, inside)
    return "gcs_server" in ports and sum(map(len, ports.values())) > 3


def listening(process: subprocess.Popen[bytes], inside: Sequence[str]) -> dict[str, list[str]]:
    """Name -> addresses on which a process and its children listen."""
    family = psutil.Process(process.pid)
    names = {str(each.pid): each.name() for each in (family, *family.children(recursive=True))}
    command = [*inside, "ss", "--no-header", "--listening", "--tcp", "--numeric", "--processes"]
    found: dict[str, list[str]] = {}
    for line in subprocess.check_output(command, text=True).splitlines():
        for pid in set(re.findall(r"pid=(\d+)", line)) & names.keys():
            found.setdefault(names[pid], []).append(line.split()[3])
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_a_stranger_does_not_join(scene: Scene, name: str) -> None:
    assert name not in scene.joined
    assert "ConnectionError: Failed to connect to Ray cluster" in scene.strangers[name]


@pytest.mark.parametrize("name", COMMANDS)
def test_it_listens_to_this_machine_only(scene: Scene, name: str) -> None:
    assert len(scene.listening[name]) > 3
    assert [where for where in scene.listening[name] if not LOOPBACK.fullmatch(where)] == []


def test_nothing_leaves_the_machine(scene: Scene) -> None:
    """Not even a question for a name: in a run, a run on nodes, and a comparison."""
    if scene.left is None:
        pytest.skip("needs permission for network namespaces, and ip (iproute2)")
    assert scene.left == ["203.0.113.1:9"], "and this test's own packet"


@pytest.mark.parametrize("name", COMMANDS)
def test_an_interruption_is_one_line(scene: Scene, name: str) -> None:
    assert scene.codes[name] == 130
    last = scene.output[name].splitlines()[-1]
    assert last.startswith("interrupted; continue with: coterie ")
    assert "Traceback" not in scene.output[name]
