"""Replacement for `docker compose` without a Docker engine: `compose.py compose COMMAND ...`.

It starts the services of compose.yaml in the working directory from the checkout above it instead
of the image. Each container is a process with its own root directory, in which the service's
volumes and secrets are mounted. All networks are one: the names of services resolve to the
loopback. Unknown arguments are rejected, so that no documented argument is ignored.
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
mount --bind "$root.hosts" "$root/etc/hosts"
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
    """Return compose.yaml as Compose reads it without variables."""
    text = (PROJECT / "compose.yaml").read_text("utf-8")
    content: dict[str, Any] = yaml.safe_load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text))
    return content


def services() -> dict[str, Service]:
    by_name: dict[str, Service] = compose()["services"]
    return by_name


def hosts() -> Iterator[str]:
    """Yield the host names of services."""
    for name, service in services().items():
        yield name
        if isinstance(service["networks"], dict):
            for joined in service["networks"].values():
                yield from joined.get("aliases", ())


def mounts(service: Service) -> Iterator[tuple[Path, str, str]]:
    """Yield source, target and mode of the mounts of a service."""
    for volume in service.get("volumes", ()):
        source, target, mode = [*volume.split(":"), "rw"][:3]
        path = PROJECT / source if source.startswith("./") else STATE / "volumes" / source
        path.mkdir(parents=True, exist_ok=True)
        yield path, target, mode
    files = {name: of["file"] for name, of in compose()["secrets"].items()}
    for secret in service.get("secrets", ()):
        entry = {"source": secret, "target": secret} if isinstance(secret, str) else secret
        yield PROJECT / files[entry["source"]], f"/run/secrets/{entry['target']}", "ro"


def command(service: Service, arguments: Sequence[str]) -> list[str]:
    """Return the command that starts a container of a service."""
    STATE.mkdir(exist_ok=True)
    root = STATE / f"root-{os.getpid()}-{time.monotonic_ns()}"
    root.mkdir()
    names = " ".join(hosts())
    # A file of its own: the others read theirs.
    root.with_suffix(".hosts").write_text(f"127.0.0.1 localhost {names}\n")
    bound = [word for mount in mounts(service) for word in map(str, mount)]
    entry = list(service.get("entrypoint", ()))
    inside = ["env", *environment(), *entry, *arguments]
    enter = ["unshare", "--mount", "sh", "-c", _ENTER, "sh", str(root)]
    limits = [
        f"--{name}={of['soft']}:{'unlimited' if of['hard'] < 0 else of['hard']}"
        for name, of in service.get("ulimits", {}).items()
    ]
    limited = ["prlimit", *limits] if limits else []
    return [*limited, *enter, *bound, "--", "/var/lib/coterie", *inside]


def environment() -> list[str]:
    """Return the image's environment from the Dockerfile's last stage."""
    stage = (PROJECT / "Dockerfile").read_text("utf-8").rpartition("\nFROM ")[2]
    pairs = re.findall(r"\b([A-Z_]+)=(\S+)", re.sub(r"^(?!ENV|   ).*$", "", stage, flags=re.M))
    values = dict(pairs) | {"FLWR_HOME": str(STATE / "flwr"), "PATH": f"{BIN}:{os.environ['PATH']}"}
    return [f"{name}={value}" for name, value in values.items()]


def build() -> None:
    """Install the app and Flower's configuration as the Dockerfile does."""
    home = STATE / "flwr"
    home.mkdir(parents=True)
    at = {**os.environ, **dict(pair.split("=", 1) for pair in environment())}
    subprocess.run([BIN / "coterie", "app", "app"], cwd=STATE, env=at, check=True)
    subprocess.run([BIN / "flwr", "build", "--app", "app"], cwd=STATE, env=at, check=True)
    (fab,) = STATE.glob("*.fab")
    subprocess.run([BIN / "flwr", "install", fab], cwd=STATE, env=at, check=True)
    shutil.copy(PROJECT / "config.toml", home)


def up(names: Sequence[str]) -> None:
    """Start services that are not running, and wait until they are healthy."""
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
    assert sys.argv[1] == "compose", "only docker compose is supported"
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
    parsed = parser.parse_args(sys.argv[2:])
    if parsed.what == "build":
        build()
    elif parsed.what == "up":
        named = [name for name, of in services().items() if not of.get("profiles")]
        up(parsed.services or named)
    elif parsed.what == "run":
        service = services()[parsed.service]
        sys.exit(subprocess.run(command(service, parsed.arguments)).returncode)
    else:
        name, _, inside = parsed.source.partition(":")
        bound = {target: path for path, target, _ in mounts(services()[name])}
        target = next(target for target in bound if inside.startswith(f"{target}/"))
        shutil.copytree(bound[target] / inside.removeprefix(f"{target}/"), parsed.target)


if __name__ == "__main__":
    main()
