"""`coterie setup`: what the machine of a relay or of a member needs, in one directory.

    both        coterie.env, coterie (the command with this environment), flwr/ (app), systemd/
    a member    NAME.pub.toml, letters.key, node.key, superexec.secret, policy.toml
                and from consortium.toml: ca.crt, trust.toml
    the relay   ca.key, ca.crt, server.key, server.crt, superexec.secret, peers.toml
                and for the members: consortium.toml

A member sends NAME.pub.toml to the relay's operator, who sends consortium.toml, the address of the
relay, its authority and the keys of all members, to each of them. A member finds its own keys
unchanged in it, so that one fingerprint, which all parties compare, covers all keys.

As root, private keys belong to the user `coterie`, everything else to root: no service can change
it. Keys, certificates and a policy that are there stay; everything else is written again.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from getpass import getuser
from importlib import resources
from pathlib import Path

import tomli_w
from rich.console import Console

from coterie.app.config.keys import ConfigError
from coterie.app.institution.commands import certificates, policy
from coterie.app.institution.commands.approve import confirm
from coterie.app.institution.security.files import closed
from coterie.app.institution.security.keys import grouped
from coterie.app.institution.security.trust import Entry, create, entry_of, read_entries, read_trust
from coterie.app.runners import bundle, superlink
from coterie.app.runs import atomic
from coterie.errors import FlowerError

_PORT = 9092
_USER = "coterie"
_PRIVATE = ("letters.key", "node.key", "server.key", "superexec.secret")
"""Files that the services read and nobody else does."""


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Write keys, certificates, environment, Flower app and systemd units of a machine."""
    parser.add_argument("role", choices=["relay", "member"])
    parser.add_argument("directory", type=Path, help="such as /etc/coterie")
    what = "relay: the members' NAME.pub.toml; member: policy keys, the relay's consortium.toml"
    parser.add_argument("items", nargs="*", metavar="FILE|key=value", help=what)
    parser.add_argument("--hosts", nargs="+", help="relay: its names and addresses")
    parser.add_argument("--name", help="member: its name, e.g. hospital-a")
    parser.add_argument("--peer", type=int, help="member: its number in the runs, from 0")
    parser.add_argument("--data", type=Path, help="member: its data (/srv/coterie/data)")
    parser.add_argument("--yes", action="store_true", help="do not ask: fingerprint was compared")
    options = parser.parse_intermixed_args(arguments)
    foreign = ("name", "peer", "data") if options.role == "relay" else ("hosts",)
    if wrong := [name for name in foreign if getattr(options, name) is not None]:
        raise ConfigError(f"setup {options.role}: --{wrong[0]} is not for it")
    home = options.directory = options.directory.absolute()
    environment = home / "coterie.env"
    before = environment.read_text("utf-8") if environment.exists() else ""
    data = re.search('data-dir="(.*?)"', before)
    options.data = (options.data or Path(data[1] if data else "/srv/coterie/data")).absolute()
    if spaced := [path for path in (home, sys.prefix, options.data) if " " in str(path)]:
        raise ConfigError(f"{spaced[0]}: systemd units take no path with a space")
    with closed(0o022):
        (_relay if options.role == "relay" else _member)(options, console)
    for name in _PRIVATE if os.geteuid() == 0 else ():
        if (home / name).exists():
            try:
                shutil.chown(home / name, _USER)
            except LookupError:
                raise ConfigError(f"no user {_USER}: useradd --system {_USER}, again") from None


@dataclass(frozen=True)
class Consortium:
    """Content of consortium.toml."""

    relay: str  # host and port
    app: str  # name, version and digest of the Flower app
    authority: str  # certificate in PEM
    members: Sequence[Entry]  # by their number

    def toml(self) -> str:
        """Return the file."""
        about = {"relay": self.relay, "app": self.app, "authority": self.authority}
        return tomli_w.dumps({**about, "members": {e.name: e.table() for e in self.members}})

    @classmethod
    def read(cls, path: Path) -> Consortium:
        """Read the file; ConfigError if it is none."""
        try:
            of = tomllib.loads(path.read_text("utf-8"))
            members = [entry_of(path, name, table) for name, table in of["members"].items()]
            return cls(str(of["relay"]), str(of["app"]), str(of["authority"]), members)
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise ConfigError(f"{path} is no consortium.toml of the relay: {error}") from None

    @property
    def fingerprint(self) -> str:
        """Digest of the file for people to compare over another channel."""
        return grouped(hashlib.sha256(self.toml().encode()).digest())


def _relay(options: argparse.Namespace, console: Console) -> None:
    home: Path = options.directory
    file, peers = home / "consortium.toml", home / "peers.toml"
    if options.hosts:
        certificates.for_relay(home, [*dict.fromkeys([*options.hosts, "localhost"])], home=home)
        host = f"[{options.hosts[0]}]" if ":" in options.hosts[0] else options.hosts[0]
        address = f"{host}:{_PORT}"
    elif file.exists():
        address = Consortium.read(file).relay
    else:
        raise ConfigError("setup relay: --hosts are the names by which members reach the relay")
    known = {entry.name: entry for entry in read_entries(peers)} if peers.exists() else {}
    known |= {entry.name: entry for path in options.items for entry in read_entries(Path(path))}
    _trust(peers, list(known.values()))
    members = list(read_trust(peers).values())
    app = _app(home)
    connection = {"address": f"localhost:{_PORT}", "root-certificates": str(home / "ca.crt")}
    flower = {"default": "relay", "relay": connection}
    atomic.write(home / "flwr" / "config.toml", tomli_w.dumps({"superlink": flower}))
    _services("coterie-relay", home, {})
    authority = (home / "ca.crt").read_text("utf-8")
    consortium = Consortium(address, app, authority, members)
    atomic.write(file, consortium.toml())
    _public(file, peers, home / "flwr" / "config.toml")
    for entry in members:
        console.print(f"peer {entry.peer}: {entry.name}: {_register(home, entry)}", soft_wrap=True)
    console.print(f"{file}: send it to {len(members)} members; read its fingerprint to them:")
    console.print(consortium.fingerprint)


def _register(home: Path, entry: Entry) -> str:
    """Register a member's SuperNode with the relay of this machine; return a line for people."""
    if not entry.node:
        return "its file has no key of a SuperNode: it needs the one of coterie setup member"
    try:
        socket.create_connection(("localhost", _PORT), timeout=10).close()
    except OSError:
        return f"to register: start the relay's services, then coterie setup relay {home} again"
    place = home / "nodes" / entry.name
    place.mkdir(parents=True, exist_ok=True)
    atomic.write(place / "node.pub", f"{entry.node} {entry.name}\n")
    return certificates.register(place / "node.pub", "relay", _environment(home))


def _member(options: argparse.Namespace, console: Console) -> None:
    home: Path = options.directory
    files = [Path(item) for item in options.items if "=" not in item]
    if not [*home.glob("*.pub.toml")]:
        if options.name is None or options.peer is None or options.peer < 0:
            raise ConfigError("setup member: --name and --peer (from 0) say which member this is")
        items = [item for item in options.items if "=" in item]
        policy.write(home / "policy.toml", items, console)
        private, public, entry = create(options.name, home, options.peer)
        private.rename(home / "letters.key")
        node = certificates.for_node(home, options.name, home).read_text("utf-8")
        atomic.write(public, replace(entry, node=node.rpartition(" ")[0]).toml())
        _public(public)
    (public,) = home.glob("*.pub.toml")
    (own,) = read_entries(public)
    app = _app(home)
    about = {
        "name": own.name, "keys": home / "letters.key", "trust": home / "trust.toml",
        "policy": home / "policy.toml", "data-dir": options.data, "out": "/var/lib/coterie",
    }  # fmt: skip
    config = " ".join(f'{key}="{value}"' for key, value in about.items())
    environment = {"NODE_CONFIG": f"'{config}'", "ROOT_CERTIFICATES": str(home / "ca.crt")}
    kept = home / "consortium.toml"
    if files:
        consortium = Consortium.read(files[0])
        _compare(consortium, own, app, home / "trust.toml", console)
        if not options.yes:
            confirm(
                "Compare it with the relay and another member on the telephone. Type yes: ",
                "not trusted", "compare the fingerprint over another channel, then add --yes",
            )  # fmt: skip
        for name, text in (
            ("consortium.toml", consortium.toml()),
            ("ca.crt", consortium.authority),
        ):
            atomic.write(home / name, text)
            _public(home / name)
        _trust(home / "trust.toml", consortium.members)
    if kept.exists():
        environment["RELAY"] = Consortium.read(kept).relay
        console.print(f"{home}: ready to start")
    else:
        console.print(f"{public}: send it to the relay's operator, who answers consortium.toml")
    _services("coterie-node", home, environment)


def _compare(of: Consortium, own: Entry, app: str, trust: Path, console: Console) -> None:
    """Print what a consortium.toml changes and its fingerprint; ConfigError: not for this node."""
    if of.app != app:
        raise ConfigError(f"the relay has the app {of.app}, this machine {app}: same version first")
    if own not in of.members:
        raise ConfigError(
            f"consortium.toml does not have the keys of {own.name} as they are here: send "
            f"{own.name}.pub.toml to the relay's operator again, and tell the others"
        )
    before = {e.name: e for e in read_entries(trust)} if trust.exists() else {}
    for entry in of.members:
        was = before.pop(entry.name, None)
        change = "new" if was is None else "as before" if was == entry else "other keys"
        console.print(f"peer {entry.peer}: {entry.name}: {change}")
    for name in before:
        console.print(f"{name}: no member any more")
    console.print(f"relay {of.relay}, {len(of.members)} members; fingerprint:\n{of.fingerprint}")


def _trust(path: Path, entries: Sequence[Entry]) -> None:
    """Write a trust file; KeysError if two entries have the same number or keys."""
    with atomic.replacing(path) as draft:
        draft.write_text("\n".join(entry.toml() for entry in entries), encoding="utf-8")
        draft.chmod(0o644)
        read_trust(draft)


def _environment(home: Path) -> dict[str, str]:
    return {**os.environ, **superlink.QUIET, "FLWR_HOME": str(home / "flwr")}


def _app(home: Path) -> str:
    """Install the Flower app below `home`; return its name, version and digest."""
    apps = home / "flwr" / "apps"
    shutil.rmtree(apps, ignore_errors=True)
    flwr = Path(sys.executable).with_name("flwr")
    with tempfile.TemporaryDirectory() as scratch:
        bundle.write_app(Path(scratch, "app"))
        script = f"{flwr} build --app app && {flwr} install coterie.*.fab"
        done = subprocess.run(
            script, shell=True, cwd=scratch, env=_environment(home), capture_output=True, text=True
        )
    if done.returncode:
        raise FlowerError(f"flwr build: {superlink.reason(done.stderr or done.stdout)}")
    (app,) = apps.iterdir()
    return app.name


def _services(kind: str, home: Path, environment: Mapping[str, str]) -> None:
    """Write environment, command and systemd units of a machine."""
    units = resources.files("coterie.app.institution.commands") / "units"
    known = {"/opt/coterie": sys.prefix, "/etc/coterie": str(home)}
    known["User=coterie"] = f"User={_USER if os.geteuid() == 0 else getuser()}"
    (home / "systemd").mkdir(exist_ok=True)
    for unit in units.iterdir():
        text = unit.read_text("utf-8")
        for name, here in known.items():
            text = text.replace(name, here)
        if unit.name == "coterie.env":
            text += "".join(f"{key}={value}\n" for key, value in environment.items())
            atomic.write(home / unit.name, text)
            _public(home / unit.name)
        elif unit.name.startswith(kind):
            atomic.write(home / "systemd" / unit.name, text)
            _public(home / "systemd" / unit.name)
    # Root would leave files in the services' folders that they cannot write.
    user = f'[ "$(id -u)" -ne 0 ] || exec runuser -u {_USER} -- "$0" "$@"'
    # Nor may the user be in a folder such as /root.
    command = f'[ -x . ] || cd /\nset -a\n. {home}/coterie.env\nexec {sys.prefix}/bin/coterie "$@"'
    atomic.write(home / "coterie", f"#!/bin/sh\n{user}\n{command}\n")
    (home / "coterie").chmod(0o755)


def _public(*files: Path) -> None:
    for file in files:
        file.chmod(0o644)
