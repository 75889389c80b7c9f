"""Hosts on one machine: network namespaces linked to a switch; needs root."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.harness.deployment import Host

_SWITCH = "coterie-switch"


@contextmanager
def network(nodes: int) -> Iterator[dict[str, Host]]:
    """A switch, and hosts "relay" and "node-K" linked to it; gone at the end."""
    names = ["relay", *(f"node-{k}" for k in range(nodes))]
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


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
