"""Hosts on one machine: network namespaces linked to a switch; needs root."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.harness.deployment import Host

_SWITCH = "coterie-switch"


@contextmanager
def network(nodes: int, *others: str) -> Iterator[dict[str, Host]]:
    """A switch, and hosts "relay", "node-K" and others linked to it; gone at the end."""
    names = ["relay", *(f"node-{k}" for k in range(nodes)), *others]
    spaces = {name: f"coterie-{name}" for name in names}
    try:
        _ip("netns", "add", _SWITCH)
        _ip("-n", _SWITCH, "link", "add", "switch", "type", "bridge")
        _ip("-n", _SWITCH, "link", "set", "switch", "up")
        hosts = {}
        for number, (name, space) in enumerate(spaces.items(), start=1):
            _ip("netns", "add", space)
            _ip(
                "-n", _SWITCH, "link", "add", name, "type", "veth",
                "peer", "name", "eth0", "netns", space,
            )  # fmt: skip
            _ip("-n", _SWITCH, "link", "set", name, "master", "switch", "up")
            _ip("-n", space, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
            _ip("-n", space, "link", "set", "eth0", "up")
            _ip("-n", space, "link", "set", "lo", "up")
            hosts[name] = Host(f"10.77.0.{number}", ("ip", "netns", "exec", space))
        yield hosts
    finally:
        for space in (*spaces.values(), _SWITCH):
            subprocess.run(["ip", "netns", "del", space], capture_output=True)


def plug(name: str, state: str) -> None:
    """Set a host's link to the switch "up" or "down"."""
    _ip("-n", _SWITCH, "link", "set", name, state)


def slow(name: str, host: Host, relay: Host, mbit: float, loss: float) -> None:
    """Limit a host's link to `mbit` Mbit/s each way, and lose a share of packets each way."""
    for space, device in ((host.prefix[-1], "eth0"), (_SWITCH, name)):
        # A packet is one frame: else a loss would be one of 64 kB.
        _ip("-n", space, "link", "set", device, "gso_max_segs", "1", "gso_max_size", "1500")
        shape = ("tbf", "rate", f"{mbit:g}mbit", "burst", "64kb", "latency", "50ms")
        subprocess.run(
            ["tc", "-n", space, "qdisc", "add", "dev", device, "root", *shape], check=True
        )
    drop = ["-m", "statistic", "--mode", "random", "--probability", str(loss), "-j", "DROP"]
    subprocess.run([*host.prefix, "iptables", "-A", "INPUT", "-i", "eth0", *drop], check=True)
    source = ["-s", host.address]
    subprocess.run([*relay.prefix, "iptables", "-A", "INPUT", *source, *drop], check=True)


def forbid(host: Host, other: Host) -> None:
    """Let a host send nothing to another one directly."""
    command = ["iptables", "-A", "OUTPUT", "-d", other.address, "-j", "REJECT"]
    subprocess.run([*host.prefix, *command], check=True)


def carried(name: str) -> tuple[int, int]:
    """Bytes that a host has sent and received over its link."""
    command = ["ip", "-n", _SWITCH, "-s", "-j", "link", "show", name]
    (link,) = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    counts = link["stats64"]
    return counts["rx"]["bytes"], counts["tx"]["bytes"]


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
