"""Image and services: packages with hashes, and restrictions of the services."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
COMPOSE: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
UNITS = sorted((ROOT / "app/institution/commands/units").rglob("*.service"))


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
LOCKED = (DOCKER / "requirements.txt").read_text("utf-8")
FOR_SIMULATIONS = {"pandas"}


def locked() -> dict[str, str]:
    """Package -> its version in requirements.txt."""
    return dict(re.findall(r"^([\w.-]+)==([^\s;]+)", LOCKED, re.M))


def test_everything_that_pip_installs_has_its_hashes() -> None:
    """S17: PyTorch came without, by an additional index. Our wheel is made in the image."""
    entries = re.findall(r"^([\w.-]+)==\S+((?: \\\n    --hash=sha256:[0-9a-f]{64})*)", LOCKED, re.M)
    assert not [name for name, hashes in entries if not hashes]
    assert len(entries) == len(re.findall(r"^[^#\s]", LOCKED, re.M)), "nothing but versions"
    commands = re.sub(r"\\\n", " ", (DOCKER / "Dockerfile").read_text("utf-8"))
    from_index, made_here = re.findall(r"pip install ([^&\n]*)", commands)
    assert "--require-hashes" in from_index
    assert re.findall(r"(?<= )[^-\s]\S*", f" {from_index}")[-1] == "/requirements.txt"
    assert {"--no-index", "--no-deps"} < set(made_here.split())
    (wheel,) = re.findall(r"pip wheel ([^&\n]*)", commands)
    assert {"--no-index", "--no-deps", "--no-build-isolation"} < set(wheel.split())


def test_the_image_has_versions_that_the_project_asks_for() -> None:
    developers = PROJECT["project"]["optional-dependencies"]["dev"]
    boosters = [name for name in developers if name.startswith(("xgboost", "lightgbm"))]
    lines = [*PROJECT["project"]["dependencies"], *boosters]
    wanted = {of.name: of for of in map(Requirement, lines)}
    build = {of.name: of for of in map(Requirement, PROJECT["build-system"]["requires"])}
    versions = locked()
    assert wanted.keys() - versions.keys() == FOR_SIMULATIONS
    assert build.keys() <= versions.keys(), "the wheel is built with what is locked"
    for name, of in (wanted | build).items():
        assert name in FOR_SIMULATIONS or of.specifier.contains(versions[name]), name


def test_the_image_is_built_from_every_source_of_the_wheel() -> None:
    kept = set((ROOT / ".dockerignore").read_text("utf-8").split())
    setuptools = PROJECT["tool"]["setuptools"]
    folders = {name.split(".")[1] for name in setuptools["packages"] if "." in name} | {"coterie"}
    folders |= set(setuptools["package-dir"].values())
    files = {"pyproject.toml", PROJECT["project"]["readme"], *PROJECT["project"]["license-files"]}
    assert {f"!{name}" for name in folders | files} <= kept


def test_the_base_can_be_given_by_its_digest() -> None:
    file = (DOCKER / "Dockerfile").read_text("utf-8")
    bases = re.findall(r"^FROM (\S+)(?: AS (\S+))?$", file, re.M)
    made = {name for _, name in bases if name}
    assert [base for base, _ in bases if base not in made] == ["$BASE"]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_confined_and_limited(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"] == service["memswap_limit"]
    assert service["cpus"]
    limited = {"data": {"soft": 2**31, "hard": -1}} if name.startswith("hospital") else None
    assert service.get("ulimits") == (limited if name.endswith("executor") else None)
    assert service["pids_limit"] <= 1024
    assert all(re.search(r":size=\d+m$", mount) for mount in service["tmpfs"])


def test_only_the_relay_has_an_open_port() -> None:
    assert [name for name, service in SERVICES.items() if service.get("ports")] == ["relay"]


def listeners() -> Iterator[tuple[str, str]]:
    """Yield service and address of each server without TLS."""
    for name, service in SERVICES.items():
        for argument in service.get("command", ()):
            if argument.startswith("--host=") and "--ssl-keyfile" not in str(service["command"]):
                yield name, argument.removeprefix("--host=")


def test_who_listens_without_tls_is_heard_by_its_executor_only() -> None:
    """S17: SuperNodes listened on 0.0.0.0, also in the network of all containers."""
    assert len(list(listeners())) == 3
    for name, host in listeners():
        joined = SERVICES[name]["networks"]
        (network,) = [net for net, of in joined.items() if host in of.get("aliases", ())]
        assert COMPOSE["networks"][network] == {"internal": True}
        inside = [other for other, service in SERVICES.items() if network in service["networks"]]
        assert inside == [name, f"{name}-executor"]


def test_who_speaks_to_the_relay_sees_no_data() -> None:
    for name, service in SERVICES.items():
        if "federation" in service["networks"]:
            assert not [volume for volume in service["volumes"] if ":/data" in volume], name


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: str(path.name))
def test_a_unit_has_limits(unit: Path) -> None:
    text = unit.read_text("utf-8")
    assert re.search(r"^MemoryMax=\d+[G%]$", text, re.M)
    assert "MemorySwapMax=0\n" in text
    assert re.search(r"^TasksMax=\d+$", text, re.M)
    trains = unit.stem == "coterie-node-executor"
    assert trains == ("LimitDATA=2G:infinity\n" in text)
    assert trains or re.search(r"^CPUQuota=\d+%$", text, re.M)
    if "--insecure" in text or "--ssl-keyfile" not in text:
        assert "--host=0.0.0.0" not in text
