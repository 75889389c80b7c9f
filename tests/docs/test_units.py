"""systemd units: valid, restricted, and with the commands of the guide."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.checkout import copy
from tests.harness import booted
from tests.harness.hosts import network

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "app/institution/commands/units").rglob("*.service"))
GUIDE = ROOT / "docs" / "consortium" / "without-docker.md"
EXPOSED = 20
"""Maximum exposure of a unit in `systemd-analyze security`, 0 to 100; 96 without options."""


def command(text: str, program: str) -> list[list[str]]:
    """Return the option names of each call of a program, with continuation lines joined."""
    joined = re.sub(r"\\\n\s*", " ", text)
    lines = (line for line in joined.splitlines() if program in line)
    return [sorted(re.findall(r"--[\w-]+", line)) for line in lines]


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: str(path.name))
def test_a_unit_runs_what_the_guide_rehearses(unit: Path) -> None:
    text = unit.read_text("utf-8")
    program = re.search(r"^ExecStart=\S*/(flower-\w+|coterie flower \w+)", text, re.M)
    assert program is not None
    (options,) = command(text, f"/{program[1]}")
    assert options in command(GUIDE.read_text("utf-8"), program[1])


def test_the_guide_names_every_unit() -> None:
    assert len(UNITS) == 4
    for unit in UNITS:
        assert f"`{unit.stem}`" in GUIDE.read_text("utf-8")


@pytest.mark.e2e
@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    installed = str(Path(sys.executable).parent)
    for unit in UNITS:
        text = unit.read_text("utf-8").replace("/opt/coterie/bin", installed)
        (tmp_path / unit.name).write_text(text)
    files = [str(tmp_path / unit.name) for unit in UNITS]
    done = subprocess.run(["systemd-analyze", "verify", *files], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    for file in files:
        judged = subprocess.run(
            ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSED}", file],
            capture_output=True, text=True,
        )  # fmt: skip
        assert judged.returncode == 0, judged.stdout


def page_blocks() -> dict[str, str]:
    """Return the blocks of the section about machines, by their first words."""
    _, _, section = GUIDE.read_text("utf-8").partition("## On four machines")
    texts = re.findall(r"^```sh\n(.*?)^```$", section, re.M | re.S)
    names = ("install", "member", "relay", "join", "approve", "run")
    return dict(zip(names, texts, strict=True))


def written(name: str, text: str) -> str:
    """Return what a block of the rehearsal writes to a file with `cat`, or runs with Python."""
    found: list[str] = re.findall(rf"^{re.escape(name)} <<'?END'?\n(.*?)^END$", text, re.M | re.S)
    return found[0]


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.skipif(bool(booted.missing()), reason=booted.missing() or "it can")
def test_the_page_sets_up_machines_that_train(tmp_path: Path) -> None:
    """O1: no test had booted the units, which could not find Flower's programs."""
    guide, blocks = GUIDE.read_text("utf-8"), page_blocks()
    copy(tmp_path / "checkout")
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*wheel, "--wheel-dir", tmp_path, tmp_path / "checkout"], check=True)
    (built,) = tmp_path.glob("coterie-*.whl")
    data = tmp_path / "data"
    data.mkdir()
    subprocess.run([sys.executable, "-c", written("python -", guide)], cwd=data, check=True)
    preset = written("cat > consortium/readmission.toml", guide).replace("peers = 3", "peers = 2")
    members = ("hospital-a", "hospital-b")
    with ExitStack() as stack:
        hosts = stack.enter_context(network(2))
        names = dict(zip(("relay", *members), hosts.values(), strict=True))
        machines = {
            name: stack.enter_context(booted.machine(name, host, tmp_path / name))
            for name, host in names.items()
        }
        for machine in machines.values():
            shutil.copy(built, machine.root / "root")
            machine.do(f"echo {hosts['relay'].address} relay.example.org >> /etc/hosts")
            booted.install(machine, blocks["install"])
            (machine.root / "etc/coterie").mkdir()
            (machine.root / "etc/coterie/readmission.toml").write_text(preset)
        relay, hospitals = machines["relay"], [machines[name] for name in members]
        for peer, name in enumerate(members):
            home = machines[name].root
            shutil.copytree(data / "consortium" / name / "data", home / "srv/coterie/data")
            numbered = (
                blocks["member"].replace("hospital-a", name).replace("--peer 0", f"--peer {peer}")
            )
            machines[name].do(numbered)
            shutil.copy(home / f"etc/coterie/{name}.pub.toml", relay.root / "root")
        printed = relay.do(blocks["relay"])
        assert printed.count("is registered") == 2, printed
        digest = [line for line in printed.splitlines() if re.fullmatch(r"(\w{4} ?){16}", line)][-1]
        for hospital in hospitals:
            shutil.copy(relay.root / "etc/coterie/consortium.toml", hospital.root / "root")
            joined = hospital.do(blocks["join"].replace("consortium.toml", "consortium.toml --yes"))
            assert digest in joined
            assert "\nready\n" in joined
            check = "policy check /etc/coterie/policy.toml /etc/coterie/readmission.toml"
            (run,) = re.findall("[0-9a-f]{64}", hospital.do(f"/etc/coterie/coterie {check}"))
            hospital.do(blocks["approve"].replace("approve", f"approve --digest {run}"))
        try:
            relay.do(blocks["run"])
        except AssertionError as error:
            raise AssertionError("\n".join(each.journal() for each in hospitals)) from error
        for peer, hospital in enumerate(hospitals):
            assert list((hospital.root / "var/lib/coterie").glob(f"*/models/peer-000{peer}.*"))
            hospital.do("! runuser -u coterie -- tee -a /etc/coterie/policy.toml < /dev/null")
            assert "NRestarts=0" in hospital.do("systemctl show coterie-node-executor")
