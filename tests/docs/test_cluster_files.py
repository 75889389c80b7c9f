"""Scripts and manifests of the page about clusters: they parse, and name what exists."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from coterie.app.config.config import Config
from coterie.app.config.items import sources_of
from coterie.app.institution.commands.preflight import node_config
from coterie.app.institution.security.trust import create, read_private
from tests.docs.test_image import COMPOSE

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "deploy" / "cluster"
PAGE = (ROOT / "docs" / "cluster.md").read_text("utf-8")
SCRIPTS = sorted(CLUSTER.glob("*.sbatch"))
NODE = {each["kind"]: each for each in yaml.safe_load_all((CLUSTER / "node.yaml").read_text())}
POD: dict[str, Any] = NODE["StatefulSet"]["spec"]["template"]["spec"]


def test_the_page_names_each_file() -> None:
    for path in CLUSTER.iterdir():
        assert f"`{path.name}`" in PAGE or f"deploy/cluster/{path.name}" in PAGE


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.name))
def test_a_script_parses_and_its_directives_come_first(script: Path) -> None:
    text = script.read_text("utf-8")
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    lines = text.splitlines()
    directives = [k for k, line in enumerate(lines) if line.startswith("#SBATCH ")]
    first = next(k for k, line in enumerate(lines) if line and not line.startswith("#"))
    assert max(directives) < first, "SLURM reads no directive after the first command"
    assert {"--time", "--mem", "--signal"} <= {
        lines[k].split()[1].partition("=")[0] for k in directives
    }


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.name))
def test_the_keys_of_a_script_are_accepted(script: Path, tmp_path: Path) -> None:
    text = script.read_text("utf-8").replace("\\\n", " ")
    (command,) = re.findall(r"coterie (?:run|compare|sweep) .*", text)
    experiment = tmp_path / "experiment.toml"
    experiment.write_text("")
    words = shlex.split(command.replace("$SLURM_ARRAY_TASK_ID", "3"))
    keys = [w.partition(",")[0] for w in words if re.match(r"[a-z.-]+=", w)]
    Config.of(*sources_of([str(experiment), *keys])[1])


@pytest.mark.parametrize("service", ["hospital-a", "hospital-a-executor"])
def test_a_pod_runs_what_compose_runs(service: str) -> None:
    name = "executor" if service.endswith("executor") else "node"
    (container,) = [each for each in POD["containers"] if each["name"] == name]
    words = re.split(r"[\s=]", " ".join(container["command"]))
    options = {
        re.sub(r"=.*", "", word, flags=re.S) for word in COMPOSE["services"][service]["command"]
    }
    program = words[words.index("coterie") :][:3]
    assert options == {*program, *(word for word in words if word.startswith("--"))}
    assert not {"secret"} & {mount["name"] for mount in container["volumeMounts"]}


def test_only_the_executor_sees_data_and_letters() -> None:
    mounts = {c["name"]: {m["name"] for m in c["volumeMounts"]} for c in POD["containers"]}
    assert {"data", "executor", "state"} <= mounts["executor"]
    assert not {"data", "executor", "state"} & mounts["node"]


@pytest.mark.skipif(os.geteuid() != 0, reason="changes owners")
def test_the_copied_keys_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 10001)
    (script,) = [each["command"][-1] for each in POD["initContainers"]]
    folders = {name: tmp_path / name for name in ("secret", "config", "node", "executor", "lib")}
    for folder in folders.values():
        folder.mkdir(mode=0o777)
        folder.chmod(0o777)  # as an emptyDir
    private, public, _ = create("hospital-a", tmp_path / "made", 0)
    for name in ("letters.key", "node.key", "superexec.secret"):
        shutil.copyfile(private, folders["secret"] / name)
    for name in ("trust.toml", "policy.toml"):
        shutil.copyfile(public, folders["config"] / name)
    script = script.replace("/var/lib/coterie", str(folders["lib"]))
    script = re.sub(r"(?<= )/(secret|config|node|executor)\b", rf"{tmp_path}/\1", script)
    subprocess.run(["sh", "-euc", script], check=True)
    (container,) = [each for each in POD["containers"] if each["name"] == "node"]
    (config,) = [w for w in container["command"] if w.startswith("--node-config")]
    keys = Path(str(node_config(config.partition("=")[2])["keys"]))
    copied = tmp_path / keys.relative_to("/")
    assert stat.S_IMODE(copied.stat().st_mode) == 0o600
    assert copied.stat().st_uid == 10001
    for folder in tmp_path.parents:  # those of the test belong to root
        assert folder.stat().st_uid == 0
    read_private(copied)
