"""Execute the documented commands: the shell and Python blocks of all READMEs and of docs/.

`HOW` has a row for each block. The shell blocks of a page run in order in one shell, as in one
terminal, in a copy of the checkout with its own ports, processes and home directory. The Python
blocks of a page are one program.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from coterie.app.config.config import Config
from coterie.app.config.items import read_items
from coterie.app.config.recipes import recipes
from coterie.app.config.registry import METHODS
from tests.checkout import START_SUPERLINK, copy, install

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / folder / "README.md" for folder in ("docker", "examples/plugin")),
]
COMPOSE = Path(__file__).with_name("compose.py")
RUN = "run unchanged"
ENDLESS = "run until the printed address answers, then interrupt"
BOOTED = "tests/docs/test_units.py runs it on machines under systemd"
HOW: dict[str, dict[str, str]] = {
    "README.md": {
        "make run": RUN,
        "import coterie": RUN,
        "coterie data fetch heart-disease": RUN,
        "flwr run . --stream --run-config presets/dpfl/digits-flips.toml": RUN,
    },
    "docs/first-steps.md": {
        "make run": "README.md has the same block",
        "source .venv/bin/activate": RUN,
        "cat > mine.toml <<'END'": RUN,
        "cat > few.toml <<'END'": RUN,
        "coterie run method=fedavg num-server-rounds=20 --name common": RUN,
        "coterie compare mine.toml --methods local,fedavg,dpfl --seeds 2": RUN,
        "coterie sweep mine.toml dpfl.budget=1,3 learning-rate=0.03,0.1 --seeds 2": RUN,
        "coterie figures runs/compare/mine": RUN,
        "flwr run . --stream --run-config mine.toml": RUN,
    },
    "docs/institutions.md": {
        "source .venv/bin/activate": RUN,
        "coterie data fetch azpro": "a download",
    },
    "docs/own-data.md": {
        "source .venv/bin/activate": RUN,
        "cat > readmission.toml <<'END'": RUN,
        "coterie schema hospitals/*/data.csv --out hospitals/schema.toml --label readmitted": RUN,
        "coterie run dataset=heart-disease peers=4 partition.kind=natural "
        "num-server-rounds=20 --name hearts": RUN,
    },
    "docs/own-images.md": {"source .venv/bin/activate": RUN, "python - <<'END'": RUN},
    "docs/own-text.md": {"source .venv/bin/activate": RUN},
    "docs/survival-and-export.md": {
        "source .venv/bin/activate": RUN,
        "import coterie": RUN,
        "coterie predict runs/hearts --peer va new.csv --threshold validation --recalibrate": RUN,
        "import json": RUN,
        "mkdir transplants": RUN,
    },
    "docs/extend.md": {
        "source .venv/bin/activate": RUN,
        "from dataclasses import replace": RUN,
        "from coterie.testing import check_method": "the example package has the same test",
    },
    "docs/hostile.md": {"source .venv/bin/activate": RUN},
    "docs/privacy.md": {"source .venv/bin/activate": RUN},
    "docs/recipes.md": {"source .venv/bin/activate": RUN},
    "docs/python.md": {
        "import coterie": RUN,
        "from torch import nn": RUN,
        "from torchvision import transforms": RUN,
        'compared = coterie.compare(["local", "fedavg"], seeds=2, num_server_rounds=20, '
        "peers_data=peers)": RUN,
        "study = coterie.compare(": RUN,
        "swept = coterie.sweep(": RUN,
    },
    "docs/watching.md": {
        "source .venv/bin/activate": RUN,
        "coterie dashboard": ENDLESS,
    },
    "docs/contribution.md": {"source .venv/bin/activate": RUN},
    "docs/results/league.md": {"source .venv/bin/activate": RUN},
    "docs/consortium/without-docker.md": {
        "source .venv/bin/activate": RUN,
        "python - <<'END'": RUN,
        "coterie certificates consortium/secrets --hosts localhost 127.0.0.1 \\": RUN,
        "for name in hospital-a hospital-b hospital-c; do": RUN,
        "cd consortium": RUN,
        "coterie certificates consortium/secrets --register relay \\": RUN,
        "port=9101": RUN,
        "cat > consortium/readmission.toml <<'END'": RUN,
        "ls consortium/runs/trial/report.html": RUN,
        "useradd --system coterie": BOOTED,
        "/opt/coterie/bin/coterie setup member /etc/coterie --name hospital-a --peer 0 \\": BOOTED,
        "/opt/coterie/bin/coterie setup relay /etc/coterie hospital-?.pub.toml --hosts "
        "relay.example.org": BOOTED,
        "/opt/coterie/bin/coterie setup member /etc/coterie consortium.toml": BOOTED,
        "/etc/coterie/coterie approve /etc/coterie/readmission.toml --out /var/lib/coterie": BOOTED,
        "cd /var/lib/coterie": BOOTED,
    },
    "docs/consortium/clearance.md": {"source .venv/bin/activate": RUN},
    "docs/consortium/runbook.md": {
        "source .venv/bin/activate": RUN,
        "coterie --version": RUN,
        "coterie keys new hospital-b --peer 1 --out hospital-b/new": RUN,
        "rm secrets/hospital-b/node.key secrets/hospital-b/node.pub": RUN,
        "coterie keys distrust hospital-b --file hospital-a/trust.toml": RUN,
        """grep '"peer_name": "peer 0"' runs/trial/metrics.jsonl | tail -n 1""": RUN,
        "openssl x509 -noout -enddate -ext subjectAltName -in secrets/relay/server.crt": RUN,
        "df -h .": RUN,
    },
    "docker/README.md": {
        "cd docker": RUN,
        "operator certificates /secrets --hosts relay localhost --nodes hospital-a hospital-b "
        "hospital-c": RUN,
        "docker compose up --detach --wait relay relay-executor": RUN,
        "operator run method=fedavg peers=3 partition.kind=iid num-server-rounds=2 \\": RUN,
        "./lock.sh --torch-backend cpu": "an index that the test machine does not reach",
    },
    "examples/plugin/README.md": {"source .venv/bin/activate": RUN},
}
"""Page -> first line of each block, in order -> `RUN`, `ENDLESS`, or why it is not run."""

_BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHELL = ("sh", "bash", "shell", "console")
_PYTHON = "python"
_COMMAND = re.compile(
    r"(?:\$ |[A-Z_]+=\S+ |\.?\S*/)?(?:cat|cd|docker|flwr|make|pip|python3?|source|uv) "
)
_SECONDS = 900.0
_ISOLATED = (
    *("setpriv", "--pdeathsig", "KILL"),
    *("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"),
)


@dataclass(frozen=True)
class Block:
    """Fenced block of a page."""

    language: str
    text: str

    @property
    def first(self) -> str:
        """First line without its comment."""
        return re.sub(r"\s+#.*", "", self.text.partition("\n")[0])


def blocks(page: Path) -> list[Block]:
    return [Block(*match.groups()) for match in _BLOCK.finditer(page.read_text("utf-8"))]


def executable(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.language in (*_SHELL, _PYTHON)]


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_has_its_row(page: Path) -> None:
    assert [block.first for block in executable(page)] == list(HOW.get(name(page), {}))


def test_a_block_that_is_not_run_begins_with_no_command() -> None:
    """Except in the result pages, whose commands take minutes to hours."""
    pages = [page for page in PAGES if page.parent.name != "results"]
    others = [(name(page), block) for page in pages for block in blocks(page)]
    texts = [
        (page, block.text) for page, block in others if block.language not in (*_SHELL, _PYTHON)
    ]
    assert not [entry for entry in texts if _COMMAND.match(entry[1])]


def test_a_row_belongs_to_a_page() -> None:
    assert HOW.keys() <= {name(page) for page in PAGES}


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.parametrize(
    "page", [page for page in PAGES if RUN in HOW.get(name(page), {}).values()], ids=name
)
def test_the_blocks_of_a_page_run(page: Path, checkout: Path) -> None:
    how = HOW[name(page)]
    if name(page) == "docker/README.md" and os.geteuid():
        pytest.skip("the stand-in for docker compose mounts: root only")
    script = ["set -euo pipefail", "shopt -s expand_aliases"]
    if any("flwr run" in block.text and how[block.first] == RUN for block in executable(page)):
        script.append(f"( source .venv/bin/activate && {START_SUPERLINK} )")
    program = ""
    for number, block in enumerate(executable(page), start=1):
        if how[block.first] not in (RUN, ENDLESS):
            continue
        if block.language == _PYTHON:
            program += block.text
            continue
        script.append(f"echo '=== block {number} of {name(page)}'")
        script.append(block.text if how[block.first] == RUN else interrupted(block.text))
    if program:
        script.append(f"{checkout}/.venv/bin/python - <<'=== program'\n{program}=== program")
    output = play("\n".join(script), checkout)
    assert "Traceback" not in output, output


def interrupted(text: str) -> str:
    """Return a script that runs a block until it is interrupted, as by Ctrl-C."""
    answers = "import sys, urllib.request as web; web.urlopen(sys.argv[1]).read()"
    return f"""set -m  # a separate process group, which receives the interrupt
( {text.rstrip()} ) > shown &
until grep -q ^http shown; do kill -0 $!; sleep 0.2; done
python -c '{answers}' "$(cat shown)"
kill -INT -- -$!
wait $! || test $? = 130
set +m"""


def commands() -> Iterator[tuple[str, str]]:
    """Yield the commands behind published numbers, with their pages."""
    for page in (
        *(ROOT / "docs" / "results").glob("*.md"),
        *(ROOT / "docs" / "methods").glob("*.md"),
    ):
        text = page.read_text("utf-8")
        spans = re.findall(r"`(coterie (?:run|compare) [^`]*)`", text)
        lines = [line for block in blocks(page) for line in block.text.splitlines()]
        for command in (*spans, *lines):
            if command.startswith("coterie"):
                yield name(page), command


@pytest.mark.parametrize(("page", "command"), sorted(set(commands())))
def test_a_command_behind_a_table_is_accepted(page: str, command: str) -> None:
    """These commands take minutes to hours, so only preset, keys and methods are checked."""
    words = command.replace("KEY=VALUE", "seed=0").split()[4:]
    option = re.search(r"--methods (\S+)", command)
    methods = [name for name in option[1].split(",") if ":" not in name] if option else []
    assert set(methods) <= {*METHODS, *recipes(), "all"}
    items = [word for word in words if "=" in word or word.endswith(".toml")]
    if " sweep " in command:  # the first value of each swept key
        items = [word.partition(",")[0] for word in items]
    _, flat = read_items(items)
    Config.from_flat(flat)


def test_toml_blocks_are_toml() -> None:
    for page in PAGES:
        for block in blocks(page):
            if block.language == "toml":
                tomllib.loads(block.text)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a copy of the checkout with an environment as after `make install`.

    Docker (`tests/docs/compose.py`) and sudo, which a test machine may lack, have replacements.
    """
    place = copy(tmp_path / "checkout")
    install(place)
    # The containers of the stand-in run as root, to whom the image's user is a stranger.
    sudo = """sh -c '[ "$1" = chown ] || "$@"' sh "$@\""""
    stand_ins = {"docker": f'{sys.executable} {COMPOSE} "$@"', "sudo": sudo}
    for command, line in stand_ins.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / command).write_text(f"#!/bin/sh\nexec {line}\n")
        (tmp_path / "bin" / command).chmod(0o755)
    return place


def play(script: str, directory: Path) -> str:
    """Run a script, assert exit code 0, and return its output.

    It runs in its own network namespace, so that documented ports are free, and in its own process
    namespace, so that its background processes end with it.
    """
    user = ("--user", "--map-root-user") if os.geteuid() else ()
    if subprocess.run([*_ISOLATED, *user, "true"], capture_output=True).returncode:
        pytest.skip("no permission for namespaces")
    (directory.parent / "home").mkdir()
    elsewhere = [  # without this environment, which a page must activate
        place
        for place in os.environ["PATH"].split(os.pathsep)
        if Path(place).resolve() != Path(sys.executable).parent.resolve()
    ]
    environment = {
        "HOME": str(directory.parent / "home"),
        "PATH": os.pathsep.join((str(directory.parent / "bin"), *elsewhere)),
        "TMPDIR": os.environ.get("TMPDIR", "/tmp"),
        "LANG": "C.UTF-8",
        "RAY_worker_niceness": "0",  # see tests/conftest.py
    }
    up = "ip link set lo up 2> /dev/null || true"
    log = directory.parent / "log"
    with log.open("wb") as out:
        running = subprocess.Popen(
            [*_ISOLATED, *user, "bash", "-c", f"{up}\n{script}"],
            cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = running.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            code = -1
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
                running.wait()
    output = log.read_text("utf-8", "replace")
    assert code == 0, f"exit {code}\n{output[-6000:]}"
    return output
