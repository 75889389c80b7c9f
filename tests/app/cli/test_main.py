"""Test the command line: merged keys, refused arguments, no files left after an error."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from rich.console import Console

from coterie.app.cli import main
from coterie.app.config.config import Config
from coterie.app.config.parts import PARTS
from coterie.app.config.recipes import recipes
from coterie.app.config.root import ROOT
from coterie.app.runners import bundle, guard, local, machine, sweep
from coterie.app.runners.cluster import Machine
from coterie.app.runners.superlink import ask, backend_config, reason, workspace
from coterie.app.runs import rundir, units
from coterie.app.runs.progress import RunState
from coterie.datasets.plugins import GROUPS, Kind
from coterie.errors import FlowerError

PRESET = """
num-server-rounds = 3
seed = 5
[cobo]
rho = 0.25
[fedprox]
"""


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Config, int | None]]:
    """Record the runs that `run` and `resume` would start."""
    starts: list[tuple[Config, int | None]] = []

    def start(config: Config, nodes: int | None, console: Console) -> None:
        starts.append((config, nodes))

    monkeypatch.setattr(local, "run", start)
    return starts


def test_defaults_then_preset_then_overrides(
    elsewhere: Path, started: list[tuple[Config, int | None]]
) -> None:
    Path("mine.toml").write_text(PRESET)
    line = ["run", "seed=6", "mine.toml", "--nodes", "4", "mlp.hidden=32", "--out", "o"]
    assert main.main([*line, "cobo.sampling=official", "--name", "n"]) == 0
    ((config, nodes),) = started
    assert nodes == 4
    assert config.flat() | {"peers": 8} == config.flat()  # a default
    assert (config.num_server_rounds, config.seed) == (3, 6)
    flat = config.flat()
    assert (flat["cobo.rho"], flat["cobo.sampling"], flat["mlp.hidden"]) == (0.25, "official", "32")
    assert config.run_dir == str(elsewhere / "o" / "n")


def test_presets_go_by_their_short_name(started: list[tuple[Config, int | None]]) -> None:
    assert main.main(["run", "cobo/fashion-mnist"]) == 0
    assert started[0][0].dataset == "fashion-mnist"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("run cobo.ro=1", 'unknown key "cobo.ro", did you mean "cobo.rho"?'),
        ("run peers=many", "peers=many: must be an integer"),
        ("run rounds=5", 'unknown key "rounds", did you mean "num-server-rounds"?'),
        ("run peers=0", "peers=0: must be at least 1"),
        ("run nowhere.toml", "no preset nowhere.toml"),
        ("run cobo/fashion-mnis", 'did you mean "cobo/fashion-mnist"?'),
        ("run cobo/fashion-mnist other.toml", "one preset at a time"),
        ("run --nodes 9", "--nodes 9: 8 peers need 1 to 8 nodes"),
        ("run --nodes 0", "--nodes 0: 8 peers need 1 to 8 nodes"),
        (
            "run --nodes 2 method=dpfl letters.scheme=increments partition.validation=0.2",
            "over several nodes needs a method, topology and schedule in which every peer sends",
        ),
        ("compare --methods cobo,lokal", 'unknown method "lokal", did you mean "local"?'),
        ("run partition.clusters=99", "partition.clusters = 99"),
        ("run topology=k-regular topology-degree=8", "no graph of 8 peers"),
        ("run dataset=quadratic", "quadratic.file"),
        ("run dataset=quadratic quadratic.file=none.json", "none.json"),
        ("run broken.toml", "broken.toml is not TOML"),
        ("run strange.toml", 'strange.toml:1: unknown key "pears", did you mean "peers"?'),
        ("run list.toml", "seed = [ 1, 2, ]: must be an integer"),
        ("run peers", "peers needs a value"),
        ("run quorum=9", "quorum = 9 must be at most peers = 8"),
        ("run name=..", "name must be the name of one directory"),
        ("run letters.damping=2", "letters.damping=2: must be above 0 and at most 1"),
        ("run resume=true", "`coterie resume RUN_DIR`"),
        ("run --nodes two", "invalid int value: 'two'"),
        ("certificates made --hosts relay --days 0", "--days 0: must be at least 1"),
        ("certificates made --hosts größe", "--hosts größe: write the name in ASCII"),
        ("run --name taken --out .", "exists already"),
        (
            "run dataset=breast-cancer partition.kind=iid model=lenet",
            "images of at least 4x4 (channels, height, width), but an example has shape (30,)",
        ),
        ("resume taken", "taken is not a run directory"),
        ("resume finished", "finished is finished already"),
        ("report taken", "not a run directory"),
        ("walk", "unknown command"),
        ("rune", 'did you mean "run"?'),
        ("train", 'did you mean "run"?'),
        ("walk", "the commands are run, compare, "),
    ],
)
def test_a_wrong_request_is_one_line_and_leaves_nothing(
    line: str, message: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (elsewhere / "broken.toml").write_text("peers = = 8")
    (elsewhere / "strange.toml").write_text("pears = 8")
    (elsewhere / "list.toml").write_text("seed = [1, 2]")
    (elsewhere / "taken").mkdir()
    (elsewhere / "finished").mkdir()
    (elsewhere / "finished" / "config.toml").write_text(Config.from_flat({}).toml())
    (elsewhere / "finished" / "progress.json").write_text('{"status": "finished"}')
    before = sorted(elsewhere.rglob("*"))
    assert main.main(line.split()) == 2
    complaint = capsys.readouterr().err
    assert message in complaint
    assert complaint.count("\n") == 1
    assert sorted(elsewhere.rglob("*")) == before


def test_a_place_that_cannot_be_written_to_is_one_line(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (elsewhere / "taken").write_text("a file")
    assert main.main(["certificates", "taken/inside", "--nodes", "a"]) == 1
    assert capsys.readouterr().err == "taken/inside/a: Not a directory\n"


@pytest.mark.e2e
def test_the_process_exits_with_that_code(elsewhere: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "coterie", "run", "learning_rate=1"],
        cwd=elsewhere,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert done.stderr == 'unknown key "learning_rate", did you mean "learning-rate"?\n'
    assert done.stdout == ""
    assert not list(elsewhere.iterdir())


def test_resume_takes_the_run_as_it_was(
    elsewhere: Path, started: list[tuple[Config, int | None]]
) -> None:
    run_dir = elsewhere / "runs" / "mine"
    run_dir.mkdir(parents=True)
    config = Config.from_flat({"method": "local", "seed": 9})
    (run_dir / "config.toml").write_text(config.toml())
    (run_dir / "progress.json").write_text('{"status": "failed"}')
    assert main.main(["resume", "runs/mine"]) == 0
    resumed = started[0][0]
    assert (resumed.resume, resumed.run_dir, resumed.name) == (True, str(run_dir), "mine")
    assert resumed.toml() == config.toml()


def test_a_run_that_goes_on_is_not_resumed(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (elsewhere / "config.toml").write_text(Config.from_flat({}).toml())
    (elsewhere / "progress.json").write_text('{"status": "running"}')
    with rundir.held(elsewhere):
        assert main.main(["resume", "."]) == 2
    assert "this run is in progress" in capsys.readouterr().err
    assert (elsewhere / "progress.json").exists()


@pytest.mark.slow
def test_a_run_whose_every_peer_diverged_exits_1(
    elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = "method=local peers=4 num-server-rounds=3 learning-rate=1e30"
    assert main.main(["run", *keys.split(), "--name", "run"]) == 1
    printed = capsys.readouterr()
    *_, last = printed.err.splitlines()  # log lines come first if another test set up logging
    assert last.startswith("the run failed: every peer diverged: try a smaller learning-rate")
    assert "report: " in printed.out
    assert "diverged" in printed.out
    assert "test accuracy" not in printed.out
    assert main.main(["resume", "runs/run"]) == 2, "it is over: nothing to resume"


@pytest.mark.parametrize(
    ("line", "continuation"),
    [
        ("run --name run", "coterie resume runs/run"),
        ("run --name run --nodes 2", "coterie resume runs/run --nodes 2"),
        ("run --name run --out 'my runs'", "coterie resume 'my runs/run'"),
        ("resume runs/before", "coterie resume runs/before"),
        (
            "compare --methods local,fedavg --out 'a b' seed=2",
            "coterie compare --methods local,fedavg --out 'a b' seed=2",
        ),
    ],
)
def test_an_interruption_prints_the_command_that_continues(
    line: str,
    continuation: str,
    elsewhere: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = elsewhere / "runs" / "before"
    before.mkdir(parents=True)
    (before / "config.toml").write_text(Config.from_flat({}).toml())

    def begun_and_interrupted(config: Config, *_: object) -> None:
        Path(config.run_dir).mkdir(parents=True, exist_ok=True)
        Path(config.run_dir, "config.toml").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(local, "run", begun_and_interrupted)
    monkeypatch.setattr(sweep, "run_one", begun_and_interrupted)
    assert main.main(shlex.split(line)) == 130
    assert capsys.readouterr().err == f"interrupted; continue with: {continuation}\n"


def test_what_had_not_begun_has_nothing_to_continue(
    elsewhere: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(local, "run", interrupted)
    assert main.main(["run"]) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_without_a_command_it_helps(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(arguments) == 0
    assert "run [PRESET.toml] [key=value ...]" in capsys.readouterr().out


def shown(line: str, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    assert main.main(line.split()) == code
    printed = capsys.readouterr()
    return printed.err if code else printed.out


def test_list_fits_a_screen_and_names_everything(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = shown("list", capsys).splitlines()
    assert len(lines) <= 31
    assert max(map(len, lines)) <= 80
    words = {word.strip(",") for line in lines for word in line.split()}
    presets = {"cobo/...", "language-model"}
    assert words >= {name for part in PARTS.values() for name in part.built_in} | presets


def test_list_says_more_of_each(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert "cobo/fashion-mnist" in shown("list presets", capsys)
    cobo = shown("list cobo", capsys)
    assert cobo.startswith("cobo: pairs whose gradients align")
    assert (
        "cobo.gamma = 0.01  (number at least 0)\n"
        "    Step size of the weights. compare --tune tries 0.01, 0.03, 0.1." in cobo
    )
    assert shown("list cobo.rho", capsys) == (
        "cobo.rho = 0.05  (number at least 0)\n    Strength of the pull towards collaborators.\n"
    )
    assert "peers = 8  (integer at least 1)" in shown("list peers", capsys)
    assert "schedule.fraction = 0.1" in shown("list schedule", capsys)
    assert "fedavg has no keys" in shown("list fedavg", capsys)
    assert 'did you mean "cobo"?' in shown("list coob", capsys, code=2)
    methods = shown("list methods", capsys)
    assert "averages with peers that lower its validation loss (needs validation data)" in methods


def test_list_explains_recipes_and_names_of_two_things(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert all(name in shown("list recipes", capsys) for name in recipes())
    recipe = shown("list dfedavgm", capsys)
    assert recipe.startswith("DFedAvgM: ")
    assert 'method = "fedavg"\nmixing = "metropolis"' in recipe
    assert "missing: peers that average every s steps" in shown("list swift", capsys)
    trust = shown("list trust", capsys)  # the key of a deployment, and the method
    assert trust.startswith('trust = ""  (path)')
    assert "\ntrust: averages all models" in trust
    assert "\ntrust.sharpness = 1.0" in trust
    assert 'did you mean "dfedavgm"?' in shown("list dfedavgn", capsys, code=2)


@pytest.mark.parametrize("kind", PARTS)
def test_a_list_has_every_row_of_its_kind(kind: Kind, capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(f"list {GROUPS[kind].removeprefix('coterie.')}", capsys)
    words = text.split()
    assert set(words) >= PARTS[kind].built_in.keys()
    if kind == "method":
        assert all(words.count(name) == 1 for name in ("cobo", "ifca", "perfedavg"))


def test_lists_are_data_too(capsys: pytest.CaptureFixture[str]) -> None:
    lists = json.loads(shown("list --json", capsys))
    assert lists.keys() >= {"methods", "models", "recipes", "presets"}
    assert [each["name"] for each in lists["models"]] == [*PARTS["model"].built_in]
    assert {each["name"]: each["group"] for each in lists["methods"]}["cobo"].startswith("Unknown")
    assert json.loads(shown("list attacks --json", capsys)) == {"attacks": lists["attacks"]}
    assert "--json is for lists" in shown("list cobo --json", capsys, code=2)


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("worth runs/x", 'did you mean "contribution"?'),
        ("compare --methods local --hold-out 0.2", "late-peers=SHARE"),
        ("run hold-out=0.2", 'did you mean "late-peers"?'),
        ("run table.mean=1", "which is gone: write mean and scale of the column into schema.toml"),
        ("run text.bad-lines=skip", "which is gone: correct the lines that the error names"),
    ],
)
def test_a_former_name_is_answered_with_the_new_one(
    line: str, word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert word in shown(line, capsys, code=2)


def test_an_unknown_connection_has_a_remedy() -> None:
    file = "/home/me/.flwr/config.toml"
    message = (
        f"An unexpected error occurred while reading the Flower configuration file ({file}). "
        f"SuperLink connection 'relay' not found\nin the Flower configuration file ({file})."
    )
    assert reason(message) == (f'no connection "relay" in {file}: add a table [superlink.relay]')
    assert reason("the SuperLink\n is away") == "the SuperLink is away"


def test_progress_in_words() -> None:
    for now, words in (
        ({"mean_test_accuracy": 0.5, "std_test_accuracy": 0.125}, "accuracy 0.500 ± 0.125  0 B"),
        ({"mean_test_loss": None, "diverged": 3, "bytes": 0}, "3 peers diverged  0 B"),
        ({"mean_test_accuracy": 0.1, "diverged": 8, "status": "diverged"}, "8 peers diverged  0 B"),
        ({"mean_test_accuracy": None, "mean_test_loss": 1.5, "bytes": 2e6}, "loss 1.5  2.00 MB"),
        (
            {"mean_test_accuracy": 0.5, "round": 13, "evaluated": 10},
            "accuracy 0.500  0 B  as of round 10",
        ),
        ({"mean_test_accuracy": 0.5, "round": 10, "evaluated": 10}, "accuracy 0.500  0 B"),
        (
            {"mean_test_accuracy": 0.5, "round": 10, "evaluated": 10, "evaluated_peers": 2},
            "accuracy 0.500  0 B  2 peers of this round, the others' last",
        ),
    ):
        assert RunState(now).describe() == words
    assert [units.size(n) for n in (999, 1000, 31.25e9, 5e16)] == [
        "999 B",
        "1.00 kB",
        "31.2 GB",
        "50000 TB",
    ]


def test_nodes_share_cores_and_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for nodes, gpus, cpus_each, gpus_each in (
        (1, 1, 8, 1.0), (3, 2, 4, 1.0), (8, 4, 1, 0.5), (20, 4, 1, 0.5), (20, 0, 1, 0.0),
    ):  # fmt: skip
        settings = backend_config(nodes, [Machine(8, gpus, 0)])
        assert settings["client_resources"] == {"num_cpus": cpus_each, "num_gpus": gpus_each}
        assert settings["init_args"] == {"num_cpus": 8, "num_gpus": gpus}
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    for nodes, cpus_each in ((1, 4), (2, 4), (3, 2), (5, 1), (9, 1)):  # no node on two machines
        settings = backend_config(nodes, [Machine(4, 0, 0), Machine(4, 0, 0), Machine(1, 0, 0)])
        resources = {"num_cpus": cpus_each, "num_gpus": 0.0}
        assert settings == {"client_resources": resources, "init_args": {}}
    for nodes, cpus_each, gpus_each in ((1, 4, 1), (2, 2, 1), (4, 1, 0.5), (9, 1, 0.25)):
        settings = backend_config(nodes, [Machine(4, 0, 0), Machine(4, 2, 0), Machine(1, 0, 0)])
        resources = {"num_cpus": cpus_each, "num_gpus": gpus_each}
        assert settings == {"client_resources": resources, "init_args": {}}


def test_cores_where_the_system_does_not_say_which_are_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert machine.cores() == 6


def test_flower_s_processes_need_linux_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(FlowerError, match="need Linux"), workspace(tmp_path / "log"):
        pass


@pytest.mark.e2e
def test_what_flower_answers_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    with pytest.raises(FlowerError) as refusal:
        ask("list", "nowhere")
    assert "nowhere" in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_what_is_shipped(tmp_path: Path) -> None:
    """Relay and nodes get what they run, presets and recipes; a bare `flwr run` ships the same."""
    bundle.write_app(app := tmp_path / "app")
    copied = {str(path.relative_to(app)) for path in app.rglob("*") if path.is_file()}
    fab = build_fab_from_disk(app)
    packages = ("app", "strategies", "clients", "datasets")
    ours = {str(p.relative_to(ROOT)) for name in packages for p in (ROOT / name).rglob("*.py")}
    stay = (
        "app/lab/",
        "app/institution/commands/",
        "app/cli/",
        "app/comparisons/",
        "app/runners/",
        "app/report/",
        "app/dashboard/",
        "app/experiments/",
    )
    ours = {name for name in ours if not name.startswith(stay)}
    for folder in ("presets", "recipes", "datasets"):
        ours |= {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.toml")}
    ours = {f"coterie/{name}" for name in ours}
    ours |= {"coterie/__init__.py", "coterie/errors.py", "coterie/ranges.py"}
    assert copied == ours | {"pyproject.toml", "README.md", "LICENSE"}
    assert len(fab) < 2_200_000
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    bare = {p for p in project["tool"]["flwr"]["app"]["fab-include"] if p != "LICENSE"}
    assert bare == {p if "/" in p else f"coterie/{p}" for p in bundle.SHIPPED}


@pytest.mark.parametrize("killed", [False, True])
def test_the_guard_clears_up_however_its_owner_ends(tmp_path: Path, killed: bool) -> None:
    workplace = tmp_path / "workplace"
    (workplace / "below").mkdir(parents=True)
    owner = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys, time\n"
            "guard = subprocess.Popen([sys.executable, *sys.argv[1:]], stdin=subprocess.PIPE)\n"
            "sleep = subprocess.Popen(['sleep', '60'], cwd=sys.argv[2] + '/below')\n"
            "print(sleep.pid, flush=True)\n"
            "time.sleep(60) if sys.stdin.read(1) == 'k' else guard.communicate()\n",
            guard.__file__,
            str(workplace),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert owner.stdin is not None
    assert owner.stdout is not None
    with owner, owner.stdin as stdin:
        worker = int(owner.stdout.readline())
        assert guard.working_in(workplace) == [worker]
        stdin.write(b"k" if killed else b"e")
        stdin.flush()
        if killed:
            owner.send_signal(signal.SIGKILL)
        owner.wait(10)
    deadline = time.monotonic() + 10
    while workplace.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not workplace.exists()
    assert guard.working_in(workplace) == []
