"""Build the image and run a collaboration of three institutions from it: `make image-test`.

It takes root and Debian's buildah and debootstrap, no Docker engine. The services are those of
compose.yaml: commands, environment, mounts, secrets and ports are read from the file. buildah's
containers share the machine's network, so the names of services are names of its loopback here;
everything else a container sees is what Compose would show it.

It does what README.md tells an operator to do, in the same order.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
HOSPITALS = ("hospital-a", "hospital-b", "hospital-c")
COMMON = {"peers": 3, "partition.kind": "iid", "num-server-rounds": 2, "evaluate-every": 2}
RUNS = {
    "trial": COMMON
    | {"method": "cobo", "model": "torchvision:shufflenet_v2_x0_5", "local-steps": 1},
    "trees": COMMON
    | {"method": "stacking", "model": "lightgbm", "peer-models.1": "xgboost", "device": "cpu"}
    | {"lightgbm.trees": 5, "xgboost.trees": 5},
}
_PATIENCE = 240.0
_BUILDAH = {"BUILDAH_ISOLATION": "chroot", "STORAGE_DRIVER": "vfs"}


@dataclass(frozen=True)
class Image:
    """The built image as a root file system that all containers share; they do not write to it."""

    container: str
    user: str
    work: str
    project: Path  # stands for the directory of compose.yaml: data, secrets and volumes are here

    def command(self, service: Mapping[str, Any], arguments: Sequence[str]) -> list[str]:
        """`buildah run` with what the file says of a service."""
        options = ["--user", str(service.get("user", self.user))]
        options += ["--workingdir", service.get("working_dir", self.work)]
        for name, value in service.get("environment", {}).items():
            options += ["--env", f"{name}={value}"]
        for source, target, mode in self._mounts(service):
            options += ["--volume", f"{source}:{target}:{mode}"]
        entry = service.get("entrypoint", [])
        return ["buildah", "run", *options, self.container, "--", *entry, *arguments]

    def _mounts(self, service: Mapping[str, Any]) -> Iterator[tuple[Path, str, str]]:
        for volume in service.get("volumes", ()):
            source, target, mode = [*volume.split(":"), "rw"][:3]
            inside = source if source.startswith("./") else f"volumes/{source}"
            yield self._mine(self.project / inside), target, mode
        for mount in service.get("tmpfs", ()):
            made = self._mine(Path(tempfile.mkdtemp(dir=self.project)))
            yield made, mount.partition(":")[0], "rw"
        for secret in service.get("secrets", ()):
            source, target = (
                (secret, secret)
                if isinstance(secret, str)
                else (secret["source"], secret["target"])
            )
            yield self.project / self.secrets[source], f"/run/secrets/{target}", "ro"

    @property
    def secrets(self) -> Mapping[str, str]:
        """Name of a secret -> its file."""
        return {name: secret["file"] for name, secret in compose()["secrets"].items()}

    def _mine(self, directory: Path) -> Path:
        """A directory that the image's user may write to, as a new named volume is."""
        directory.mkdir(parents=True, exist_ok=True)
        uid, gid = (int(part) for part in self.user.split(":"))
        os.chown(directory, uid, gid)
        return directory


def compose() -> dict[str, Any]:
    """Read compose.yaml as Compose would with no variable set."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (HERE / "compose.yaml").read_text("utf-8"))
    content: dict[str, Any] = yaml.safe_load(text)
    return content


def build(tag: str) -> None:
    """Make the base image unless it is there, and build the Dockerfile on it."""
    base = re.findall(r"^ARG BASE=([^@\s]+)", (HERE / "Dockerfile").read_text("utf-8"), re.M)[0]
    if subprocess.run(["buildah", "inspect", f"localhost/{base}"], capture_output=True).returncode:
        _do(str(HERE / "base.sh"))
    with tempfile.TemporaryDirectory() as directory:
        mounts = [f"--volume={mount}" for mount in _pip(Path(directory))]
        file = ["--file", str(HERE / "Dockerfile"), "--tag", tag]
        _do(
            "buildah", "bud", "--pull-never", f"--build-arg=BASE=localhost/{base}", *file, *mounts,
            str(HERE.parent),
        )  # fmt: skip


def _pip(directory: Path) -> Iterator[str]:
    """What pip in the build needs to reach packages as this machine's pip does."""
    authority = "/etc/ssl/certs/ca-certificates.crt"
    yield f"{authority}:{authority}:ro"
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    ).stdout
    settings = dict(re.findall(r"^(?:global|:env:)\.([\w-]+)='(.*)'$", listed, re.M))
    settings = {key: value for key, value in settings.items() if key != "cert"}
    lines = [f"{key} = {value}" for key, value in settings.items()]
    config = directory / "pip.conf"
    config.write_text("\n".join(["[global]", f"cert = {authority}", *lines, ""]))
    yield f"{config}:/etc/pip.conf:ro"
    for word in " ".join(settings.values()).split():
        place = Path(word.removeprefix("file://"))
        if place.is_absolute() and place.exists():  # an index, wheels, a file of constraints
            root = place.parent if word.startswith("file://") else place
            yield f"{root}:{root}:ro"


@contextmanager
def image(tag: str, project: Path) -> Iterator[Image]:
    """A container of the image, gone at the end."""
    services = compose()["services"]
    joined = [of["networks"] for of in services.values() if isinstance(of["networks"], dict)]
    aliases = [name for of in joined for each in of.values() for name in each.get("aliases", ())]
    here = [f"--add-host={name}:127.0.0.1" for name in (*services, *aliases)]
    container = _output("buildah", "from", "--pull-never", *here, tag)
    try:
        config = json.loads(_output("buildah", "inspect", tag))["OCIv1"]["config"]
        yield Image(container, config["User"], config["WorkingDir"], project)
    finally:
        _output("buildah", "rm", container)


@contextmanager
def up(built: Image, name: str) -> Iterator[None]:
    """`docker compose up` of one service."""
    service = compose()["services"][name]
    with (built.project / f"{name}.log").open("wb") as log:
        running = subprocess.Popen(
            built.command(service, service["command"]),
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def until_healthy(built: Image, name: str) -> None:
    """Wait until a service's health check passes in its container."""
    service = compose()["services"][name]
    kind, *check = service["healthcheck"]["test"]
    assert kind == "CMD"
    deadline = time.monotonic() + _PATIENCE
    while subprocess.run(built.command(service, check), capture_output=True).returncode:
        if time.monotonic() > deadline:
            sys.exit(f"{name} is not healthy:\n{(built.project / f'{name}.log').read_text()}")
        time.sleep(1)


def operator(built: Image, *arguments: str) -> None:
    """`docker compose run --rm operator ...`."""
    print("operator:", *arguments, flush=True)
    _do(*built.command(compose()["services"]["operator"], arguments))


def keys(built: Image) -> None:
    """Certificates, the letter keys that the hospitals make and exchange, and their policies."""
    certified = ["--hosts", "relay", "localhost", "127.0.0.1", "--nodes", *HOSPITALS]
    operator(built, "certificates", "/secrets", *certified)
    for peer, name in enumerate(HOSPITALS):
        operator(built, "keys", "new", name, "--peer", str(peer), "--out", f"/secrets/{name}")
    public = [f"/secrets/{name}/{name}.pub.toml" for name in HOSPITALS]
    for name in HOSPITALS:
        trusting = ["--yes", "--file", f"/secrets/{name}/trust.toml"]
        operator(built, "keys", "trust", *public, *trusting)
        methods = ", ".join(str(run["method"]) for run in RUNS.values())
        allowed = ["approval=none", "data.sets=digits", f"methods={methods}"]
        operator(built, "policy", "init", f"/secrets/{name}/policy.toml", *allowed)


def collaborate(built: Image) -> Iterator[dict[str, Any]]:
    """From keys to finished runs; the summary of each, with its seconds."""
    with ExitStack() as stack:
        for name in ("relay", "relay-executor"):
            stack.enter_context(up(built, name))
        until_healthy(built, "relay")
        registered = ["--nodes", *HOSPITALS, "--register", "relay"]
        operator(built, "certificates", "/secrets", *registered)
        for name in HOSPITALS:
            stack.enter_context(up(built, name))
            stack.enter_context(up(built, f"{name}-executor"))
        for name in HOSPITALS:
            until_healthy(built, name)
        volumes = built.project / "volumes"
        for run, keys in RUNS.items():
            start = time.monotonic()
            pairs = [f"{key}={value}" for key, value in keys.items()]
            place = ["--federation", "relay", "--out", "/var/lib/coterie", "--name", run]
            operator(built, "run", *pairs, *place)
            for peer, name in enumerate(HOSPITALS):
                models = volumes / name / run / "models"
                assert (models / f"peer-{peer:04d}.safetensors").is_file()
            summary = json.loads((volumes / "relay" / run / "summary.json").read_text())
            yield summary | {"seconds": time.monotonic() - start}


def only_its_own_code(built: Image) -> None:
    """Flower installs no other app in a node of the image, and takes the one that is there.

    That one has the digest of what `coterie run --federation` sends, which is what `coterie app`
    writes.
    """
    attempt = """
import subprocess
from pathlib import Path
from flwr.cli.build import build_fab_from_disk
from flwr.cli.install import install_from_fab
subprocess.run(["coterie", "app", "/tmp/app"], check=True, capture_output=True)
app = Path("/tmp/app")
print(*Path("/opt/flwr/apps").iterdir())
print(install_from_fab(build_fab_from_disk(app), skip_prompt=True))
(app / "coterie" / "other.py").write_text("")
install_from_fab(build_fab_from_disk(app), skip_prompt=True)
"""
    service = compose()["services"]["hospital-a-executor"]
    command = built.command(service, ["python", "-c", attempt])
    done = subprocess.run(command, capture_output=True, text=True)
    assert len(places := done.stdout.split()) == 2, done.stderr
    assert places[0].startswith("/opt/flwr/apps/coterie."), done.stderr
    assert places[0] == places[1], "the app in the image is not the one that a run sends"
    refused = ("PermissionError", "Read-only file system")
    assert any(why in done.stderr for why in refused), done.stderr


def main() -> None:
    """Build, run, and print the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tag", default="localhost/coterie")
    parser.add_argument("--built", action="store_true", help="the image is there: do not build it")
    given = parser.parse_args()
    missing = [tool for tool in ("buildah", "debootstrap") if not shutil.which(tool)]
    if missing or os.geteuid():
        sys.exit(f"image-test needs root, and Debian's packages {' '.join(missing) or 'as root'}")
    os.environ.update(_BUILDAH)
    began = time.monotonic()
    if not given.built:
        build(given.tag)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as directory:
        project = Path(directory)
        project.chmod(0o755)
        with image(given.tag, project) as built:
            try:
                keys(built)
                only_its_own_code(built)
                summaries = list(collaborate(built))
            except BaseException:
                for log in sorted(project.glob("*.log")):
                    print(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}")
                raise
    size = json.loads(_output("buildah", "images", "--json", given.tag))[0]["size"]
    print(f"image {size}, built in {start - began:.0f} s")
    for summary in summaries:
        print(
            f"{summary['peers']} institutions, {summary['rounds']} rounds of {summary['method']} "
            f"in {summary['seconds']:.0f} s: test accuracy {summary['mean_test_accuracy']:.4f}"
        )


def _do(*command: str) -> None:
    subprocess.run(command, check=True)


def _output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    main()
