"""Stands in for `docker compose` where no Docker engine is: `compose.py compose COMMAND ...`.

It does what compose.yaml in the working directory says, with the checkout above it in the image's
place: every container is a process with a root directory of its own, in which the service's
volumes and secrets are mounted where the file says. Networks are one: names of services are names
of the loopback. What it does not know it refuses, so that no documented argument is ignored.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

Service = Mapping[str, Any]
PROJECT = Path.cwd()
CHECKOUT = PROJECT.parent
STATE = PROJECT / ".stand-in"
BIN = CHECKOUT / ".venv" / "bin"
_PATIENCE = 600.0
_ENTER = """
set -eu
root=$1; shift
mount -t tmpfs tmpfs "$root"
for path in /*; do
    name=${path#/}
    case $name in
        run|data|secrets) mkdir "$root/$name" ;;
        *) if [ -L "$path" ]; then cp -P "$path" "$root/"
           elif [ -d "$path" ]; then mkdir "$root/$name"; mount --rbind "$path" "$root/$name"
           fi ;;
    esac
done
mount -t tmpfs tmpfs "$root/var/lib"
mount --bind "$root/../hosts" "$root/etc/hosts"
while [ "$1" != -- ]; do
    target=$root$2
    if [ -d "$1" ]; then mkdir -p "$target"; else mkdir -p "${target%/*}"; touch "$target"; fi
    mount --bind "$1" "$target"
    [ "$3" = rw ] || mount -o remount,bind,ro "$target"
    shift 3
done
shift
work=$1; shift
exec chroot "$root" sh -c 'cd "$0" && exec "$@"' "$work" "$@"
"""


def compose() -> dict[str, Any]:
    """compose.yaml as Compose reads it with no variable set."""
    text = (PROJECT / "compose.yaml").read_text("utf-8")
    content: dict[str, Any] = yaml.safe_load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text))
    return content


def services() -> dict[str, Service]:
    found: dict[str, Service] = compose()["services"]
    return found


def hosts() -> Iterator[str]:
    """Names by which services are reached."""
    for name, service in services().items():
        yield name
        if isinstance(service["networks"], dict):
            for joined in service["networks"].values():
                yield from joined.get("aliases", ())


def mounts(service: Service) -> Iterator[tuple[Path, str, str]]:
    """Source, target and mode of what a service sees."""
    for volume in service.get("volumes", ()):
        source, target, mode = [*volume.split(":"), "rw"][:3]
        path = PROJECT / source if source.startswith("./") else STATE / "volumes" / source
        path.mkdir(parents=True, exist_ok=True)
        yield path, target, mode
    files = {name: of["file"] for name, of in compose()["secrets"].items()}
    for secret in service.get("secrets", ()):
        given = {"source": secret, "target": secret} if isinstance(secret, str) else secret
        yield PROJECT / files[given["source"]], f"/run/secrets/{given['target']}", "ro"


def command(service: Service, arguments: Sequence[str]) -> list[str]:
    """What starts a container of a service."""
    STATE.mkdir(exist_ok=True)
    root = STATE / f"root-{os.getpid()}-{time.monotonic_ns()}"
    root.mkdir()
    names = " ".join(hosts())
    (STATE / "hosts").write_text(f"127.0.0.1 localhost {names}\n")
    bound = [word for mount in mounts(service) for word in map(str, mount)]
    entry = list(service.get("entrypoint", ()))
    inside = ["env", *environment(), *entry, *arguments]
    enter = ["unshare", "--mount", "sh", "-c", _ENTER, "sh", str(root)]
    return [*enter, *bound, "--", "/var/lib/coterie", *inside]


def environment() -> list[str]:
    """The image's environment, from the Dockerfile's last stage."""
    stage = (PROJECT / "Dockerfile").read_text("utf-8").rpartition("\nFROM ")[2]
    pairs = re.findall(r"\b([A-Z_]+)=(\S+)", re.sub(r"^(?!ENV|   ).*$", "", stage, flags=re.M))
    given = dict(pairs) | {"FLWR_HOME": str(STATE / "flwr"), "PATH": f"{BIN}:{os.environ['PATH']}"}
    return [f"{name}={value}" for name, value in given.items()]


def build() -> None:
    """What the Dockerfile does with the app, and Flower's configuration."""
    home = STATE / "flwr"
    home.mkdir(parents=True)
    at = {**os.environ, **dict(pair.split("=", 1) for pair in environment())}
    subprocess.run([BIN / "coterie", "app", "app"], cwd=STATE, env=at, check=True)
    subprocess.run([BIN / "flwr", "build", "--app", "app"], cwd=STATE, env=at, check=True)
    (fab,) = STATE.glob("*.fab")
    subprocess.run([BIN / "flwr", "install", fab], cwd=STATE, env=at, check=True)
    shutil.copy(PROJECT / "config.toml", home)


def up(names: Sequence[str]) -> None:
    """Start services that do not run yet, and wait until they are healthy."""
    for name in names:
        log = STATE / f"{name}.log"
        if not log.exists():
            service = services()[name]
            with log.open("wb") as out:
                subprocess.Popen(
                    command(service, service["command"]),
                    stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
                )  # fmt: skip
    deadline = time.monotonic() + _PATIENCE
    for name in names:
        check = services()[name].get("healthcheck", {}).get("test")
        while (
            check
            and subprocess.run(command(services()[name], check[1:]), capture_output=True).returncode
        ):
            if time.monotonic() > deadline:
                sys.exit(f"{name} is not healthy:\n{(STATE / f'{name}.log').read_text()}")
            time.sleep(1)


def main() -> None:
    assert sys.argv[1] == "compose", "only docker compose is known"
    parser = argparse.ArgumentParser()
    commands = parser.add_subparsers(dest="what", required=True)
    commands.add_parser("build")
    start = commands.add_parser("up")
    start.add_argument("--detach", action="store_true", required=True)
    start.add_argument("--wait", action="store_true", required=True)
    start.add_argument("services", nargs="*")
    once = commands.add_parser("run")
    once.add_argument("--rm", action="store_true", required=True)
    once.add_argument("service")
    once.add_argument("arguments", nargs=argparse.REMAINDER)
    copy = commands.add_parser("cp")
    copy.add_argument("source")
    copy.add_argument("target", type=Path)
    given = parser.parse_args(sys.argv[2:])
    if given.what == "build":
        build()
    elif given.what == "up":
        named = [name for name, of in services().items() if not of.get("profiles")]
        up(given.services or named)
    elif given.what == "run":
        service = services()[given.service]
        sys.exit(subprocess.run(command(service, given.arguments)).returncode)
    else:
        name, _, inside = given.source.partition(":")
        bound = {target: path for path, target, _ in mounts(services()[name])}
        target = next(target for target in bound if inside.startswith(f"{target}/"))
        shutil.copytree(bound[target] / inside.removeprefix(f"{target}/"), given.target)


if __name__ == "__main__":
    main()
