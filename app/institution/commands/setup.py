"""`coterie setup`: what the machine of a relay or of a member needs, in one directory.

Both: environment, app, systemd units, and `coterie`, the command as the services' user. A member
sends NAME.pub.toml to the relay's operator, who sends consortium.toml, the relay's address and
authority and the keys of all members, to each of them. A member finds its own keys unchanged in it,
so that one fingerprint, which all parties compare, covers all keys.

Run as root, private keys belong to the user `coterie`, everything else to root: no service can
change it. Keys, certificates, a policy and further keys of NODE_CONFIG stay; everything else is
written again.
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
from collections.abc import Mapping
from dataclasses import replace
from getpass import getuser
from pathlib import Path

import tomli_w
from rich.console import Console

from coterie.app import private_ray
from coterie.app.config.keys import ConfigError
from coterie.app.institution.commands import certificates, policy
from coterie.app.institution.commands.approve import confirm
from coterie.app.institution.security.files import closed
from coterie.app.institution.security.trust import Entry, create, entry_of, read_entries, read_trust
from coterie.app.runners import bundle, superlink
from coterie.app.runs import atomic
from coterie.errors import FlowerError

_PORT = 9092
_USER = "coterie"
_DATA = "/srv/coterie/data"
_OUT = 'out="/var/lib/coterie"'
_NODE_KEYS = ("name", "keys", "trust", "policy", "data-dir", "out")
_UNITS = Path(__file__).with_name("units")
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
    parser.add_argument("--data", type=Path, help=f"member: its data ({_DATA})")
    parser.add_argument("--yes", action="store_true", help="do not ask: fingerprint was compared")
    options = parser.parse_intermixed_args(arguments)
    foreign = ("name", "peer", "data") if options.role == "relay" else ("hosts",)
    if wrong := [name for name in foreign if getattr(options, name) is not None]:
        raise ConfigError(f"setup {options.role}: --{wrong[0]} is not for it")
    home = options.directory = options.directory.absolute()
    if spaced := [path for path in (home, sys.prefix, options.data) if " " in str(path)]:
        raise ConfigError(f"{spaced[0]}: systemd units take no path with a space")
    flower = {**superlink.QUIET, "FLWR_HOME": str(home / "flwr")}
    with closed(0o022), private_ray.environment(flower):
        (_relay if options.role == "relay" else _member)(home, options, console)
    for name in _PRIVATE if os.geteuid() == 0 else ():
        if (home / name).exists():
            try:
                shutil.chown(home / name, _USER)
            except LookupError:
                raise ConfigError(f"no user {_USER}: useradd --system {_USER}, again") from None


def _relay(home: Path, options: argparse.Namespace, console: Console) -> None:
    file, peers = home / "consortium.toml", home / "peers.toml"
    if options.hosts:
        certificates.for_relay(home, [*dict.fromkeys([*options.hosts, "localhost"])], 365, home)
        host = f"[{options.hosts[0]}]" if ":" in options.hosts[0] else options.hosts[0]
        address = f"{host}:{_PORT}"
    elif file.exists():
        address = _read(file)[0]["relay"]
    else:
        raise ConfigError("setup relay: --hosts are the names by which members reach the relay")
    files = [*filter(Path.exists, [peers]), *map(Path, options.items)]
    _trust(peers, {entry.name: entry for path in files for entry in read_entries(path)})
    members = read_trust(peers)
    about = {"relay": address, "app": _app(home), "authority": (home / "ca.crt").read_text("utf-8")}
    tables = {entry.name: entry.table() for _, entry in sorted(members.items())}
    atomic.write(file, tomli_w.dumps({**about, "members": tables}))
    _services(home, "relay", {})
    for peer, entry in sorted(members.items()):
        console.print(f"peer {peer}: {entry.name}: {_register(home, entry)}", soft_wrap=True)
    console.print(f"{file}: send it to {len(members)} members; read its fingerprint to them:")
    console.print(_fingerprint(file))


def _register(home: Path, entry: Entry) -> str:
    """Register a member's SuperNode with the relay of this machine; return a line for people."""
    if not entry.node:
        return "its file has no key of a SuperNode: it needs the one of coterie setup member"
    try:
        socket.create_connection(("localhost", _PORT), timeout=10).close()
    except OSError:
        return f"to register: start the relay's services, then coterie setup relay {home} again"
    place = home / "members" / entry.name
    place.mkdir(parents=True, exist_ok=True)
    atomic.write(place / "node.pub", f"{entry.node} {entry.name}\n")
    return certificates.register(place / "node.pub", "relay")


def _member(home: Path, options: argparse.Namespace, console: Console) -> None:
    items = [item for item in options.items if "=" in item]
    is_new, file = not [*home.glob("*.pub.toml")], home / "policy.toml"
    if is_new and (options.name is None or options.peer is None or options.peer < 0):
        raise ConfigError("setup member: --name and --peer (from 0) say which member this is")
    if not file.exists():
        policy.write(file, items, console)
    elif items:
        raise ConfigError(f"{file} is there: change it with an editor")
    if is_new:
        private, public, entry = create(options.name, home, options.peer)
        private.rename(home / "letters.key")
        node = certificates.for_node(home, options.name, home).read_text("utf-8")
        atomic.write(public, replace(entry, node=node.rpartition(" ")[0]).toml())
    (public,) = home.glob("*.pub.toml")
    (own,) = read_entries(public)
    app, kept, env = _app(home), home / "consortium.toml", home / "node.env"
    for answer in (Path(item) for item in options.items if "=" not in item):
        _compare(home, answer, own, app, console)
        if not options.yes:
            question = "Compare it with the relay and the members on the telephone. Type yes: "
            confirm(question, "not trusted", "compare the fingerprint, then add --yes")
        about, members = _read(answer)
        _trust(home / "trust.toml", members)
        atomic.write(home / "ca.crt", about["authority"])
        atomic.write(kept, answer.read_bytes())
    text = env.read_text("utf-8") if env.exists() else ""
    known = dict(re.findall(r'([a-z][a-z-]*)=("[^"]*"|[\w.]+)', text))
    data = str(options.data.absolute()) if options.data else known.get("data-dir", _DATA).strip('"')
    more = [f"{key}={known[key]}" for key in known if key not in _NODE_KEYS]
    names = {"hospital-a": own.name, _DATA: data, _OUT: " ".join([_OUT, *more])}
    if kept.exists():
        names["relay.example.org:9092"] = _read(kept)[0]["relay"]
    _services(home, "member", names)
    sent = f"{public}: send it to the relay's operator, who answers consortium.toml"
    console.print(f"{home}: ready to start" if kept.exists() else sent, soft_wrap=True)


def _compare(home: Path, file: Path, own: Entry, app: str, console: Console) -> None:
    """Print what a consortium.toml changes, and its fingerprint; ConfigError: not for this node."""
    about, members = _read(file)
    if about["app"] != app:
        raise ConfigError(f"the relay has the app {about['app']}, this machine {app}: upgrade")
    if own != members.get(own.name):
        raise ConfigError(
            f"{file} has other keys of {own.name} than {own.name}.pub.toml: send that again"
        )
    kept = home / "consortium.toml"
    before = _read(kept)[1] if kept.exists() else {}
    for name, entry in members.items():
        change = "as before" if before.get(name) == entry else "other keys"
        console.print(f"peer {entry.peer}: {name}: {change if name in before else 'new'}")
    for name in before.keys() - members:
        console.print(f"{name}: no member any more")
    console.print(f"relay {about['relay']}, {len(members)} members; fingerprint of the file:")
    console.print(_fingerprint(file))


def _read(path: Path) -> tuple[dict[str, str], dict[str, Entry]]:
    """Return address, app and authority of a consortium.toml, and its members by name."""
    try:
        about = tomllib.loads(path.read_text("utf-8"))
        tables = about.pop("members")
        if about.keys() != {"relay", "app", "authority"}:
            raise ValueError("it has other keys")
        if not re.fullmatch(r"[\w.:[\]-]+:\d+", about["relay"]):  # a shell reads node.env
            raise ValueError(f"relay = {about['relay']!r} is not HOST:PORT")
        return about, {name: entry_of(path, name, table) for name, table in tables.items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ConfigError(f"{path} is no consortium.toml of a relay: {error}") from None


def _fingerprint(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).digest().hex(" ", 2)


def _trust(path: Path, entries: Mapping[str, Entry]) -> None:
    """Write a trust file; KeysError if two entries have the same number or keys."""
    with atomic.replacing(path) as draft:
        draft.write_text("\n".join(e.toml() for e in entries.values()), encoding="utf-8")
        read_trust(draft)


def _app(home: Path) -> str:
    """Install the Flower app below `home`; return its name, version and digest."""
    apps, flwr = home / "flwr" / "apps", Path(sys.executable).with_name("flwr")
    shutil.rmtree(apps, ignore_errors=True)
    with tempfile.TemporaryDirectory() as scratch:
        bundle.write_app(Path(scratch, "app"))
        compiled = f"{sys.executable} -m compileall -q --invalidation-mode unchecked-hash {apps}"
        script = f"{flwr} build --app app && {flwr} install coterie.*.fab && {compiled}"
        done = subprocess.run(["sh", "-c", script], cwd=scratch, capture_output=True, text=True)
    if done.returncode:
        raise FlowerError(f"flwr build: {superlink.reason(done.stderr or done.stdout)}")
    (app,) = apps.iterdir()
    return app.name


def _services(home: Path, role: str, names: dict[str, str]) -> None:
    """Write the templates of `units/` with the names of this machine."""
    user = _USER if os.geteuid() == 0 else getuser()
    names = {
        "/etc/coterie": str(home),
        "/opt/coterie": sys.prefix,
        f"User={_USER}": f"User={user}",
    } | names
    for folder in (_UNITS / "both", _UNITS / role):
        for template in filter(Path.is_file, folder.rglob("*")):
            text, target = template.read_text("utf-8"), home / template.relative_to(folder)
            text = re.sub("|".join(map(re.escape, names)), lambda match: names[match[0]], text)
            target.parent.mkdir(exist_ok=True)
            atomic.write(target, text)
    (home / "coterie").chmod(0o755)
