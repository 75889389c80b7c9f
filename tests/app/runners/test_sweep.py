"""A sweep: where they go, what is reused, what a failure or an interruption leaves."""

from __future__ import annotations

import io
import itertools
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from coterie.app.config.config import Config
from coterie.app.config.root import ROOT
from coterie.app.experiments.grid import with_run_dir
from coterie.app.runners import machine, sweep
from coterie.app.runners.sweep import run_all
from coterie.app.runs import plan, progress
from coterie.app.runs.recorder import RunRecorder
from coterie.app.runs.rundir import Run
from coterie.strategies.errors import DesertedError, RelayError
from coterie.strategies.relay.commit import Commit
from tests.marks import case

TINY = {
    "method": "local",
    "peers": 2,
    "num-server-rounds": 4,
    "evaluate-every": 2,
    "local-steps": 1,
    "partition.clusters": 2,
}


def quiet() -> Console:
    return Console(file=io.StringIO(), width=200)


def text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def config(**keys: object) -> Config:
    flat = {key.replace("_", "-"): value for key, value in keys.items()}
    return Config.from_flat({**TINY, **flat})


def times(directory: Path) -> dict[str, int]:
    """Modification time of every file below."""
    return {str(p): p.stat().st_mtime_ns for p in directory.rglob("*") if p.is_file()}


def test_a_directory_is_named_after_what_decides_the_run(tmp_path: Path) -> None:
    one = with_run_dir(config(seed=3), tmp_path)
    assert one.name.startswith("local-seed3-")
    assert one.run_dir == str(tmp_path / one.name)
    assert with_run_dir(config(seed=3, out="elsewhere"), tmp_path) == replace(one, out="elsewhere")
    assert with_run_dir(config(seed=3, learning_rate=0.2), tmp_path).name != one.name
    assert with_run_dir(one, tmp_path) == one, "where it is does not matter"


def test_finished_runs_are_reused_and_new_ones_added(tmp_path: Path) -> None:
    first = [with_run_dir(config(seed=seed), tmp_path) for seed in (0, 1)]
    for each in first:
        sweep.run_one(each)
    before = times(tmp_path)
    assert all(f"{each.run_dir}/summary.json" in before for each in first)
    console = quiet()
    run_all(first, 1, console)
    assert times(tmp_path) == before
    assert text(console) == "", "nothing to do, nothing to say"
    third = with_run_dir(config(seed=2), tmp_path)
    run_all([*first, third, third], 1, console)
    assert "1 run to do" in text(console)
    assert "1/1  local seed 2  accuracy" in text(console)
    assert plan.read(tmp_path).runs == tuple(each.name for each in (*first, third))
    (tmp_path / plan.NAME).unlink()
    assert {path: t for path, t in times(tmp_path).items() if third.name not in path} == before


def test_a_run_without_its_summary_is_summed_up_only(tmp_path: Path) -> None:
    one = with_run_dir(config(), tmp_path)
    sweep.run_one(one)
    summary = Path(one.run_dir, "summary.json")
    content, before = summary.read_text(), times(tmp_path)
    summary.unlink()
    assert not sweep.is_finished(one)
    sweep.run_one(one)
    assert summary.read_text() == content
    changed = {path for path, t in times(tmp_path).items() if before[path] != t}
    written = ("summary.json", "graph.csv", "graph-measures.csv")
    assert changed == {str(summary.with_name(name)) for name in written}


def test_a_stopped_run_goes_on_to_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, half = (
        with_run_dir(config(method="fedavg", seed=1), tmp_path / name) for name in ("whole", "half")
    )
    sweep.run_one(whole)
    commit = RunRecorder.round

    def stop_after_two(recorder: RunRecorder, committed: Commit) -> None:
        commit(recorder, committed)
        if committed.ledger.round == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(RunRecorder, "round", stop_after_two)
    with pytest.raises(KeyboardInterrupt):
        sweep.run_one(half)
    monkeypatch.setattr(RunRecorder, "round", commit)
    assert not sweep.is_finished(half)
    before = Run.read(half.run_dir)
    assert before.rounds.tolist() == [0, 2]
    sweep.run_one(half)
    a, b = Run.read(whole.run_dir), Run.read(half.run_dir)
    assert a.rounds.tolist() == b.rounds.tolist() == [0, 2, 4]
    for name in ("test_loss", "bytes_sent", "gradient_evaluations"):
        assert a.metric(name).tolist() == b.metric(name).tolist()


def test_what_takes_long_is_handed_over_and_goes_on_to_the_same_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run has begun; runs of this process take the place of Ray's."""
    handed: list[str] = []

    def elsewhere(queue: Sequence[Config], *_: object) -> Iterator[tuple[Config, Exception | None]]:
        for each in queue:
            handed.append(f"{each.method} {progress.read(Path(each.run_dir)).get('status')}")
            yield each, sweep.run_one(each)

    monkeypatch.setattr(sweep, "_side_by_side", elsewhere)
    monkeypatch.setattr(machine, "cores", lambda: 2)
    runs = [config(method=method, seed=1) for method in ("fedavg", "local")]
    short = [with_run_dir(each, tmp_path / "short") for each in runs]
    assert not run_all(short, None, quiet())
    assert handed == []
    monkeypatch.setattr(sweep, "_ALONE_SECONDS", 0.0)
    long = [with_run_dir(each, tmp_path / "long") for each in runs]
    assert not run_all(long, None, quiet())
    assert handed == ["fedavg stopped", "local None"]
    for one, other in zip(short, long, strict=True):
        a, b = (Path(each.run_dir, "metrics.jsonl").read_bytes() for each in (one, other))
        assert a == b


def broken(one: Config) -> Config:
    """A run that something in its directory stops."""
    Path(one.run_dir).mkdir(parents=True)
    Path(one.run_dir, "models").write_text("in the way")
    return one


def test_a_failed_run_is_one_line_and_the_others_finish(tmp_path: Path) -> None:
    first, bad, last = (with_run_dir(config(seed=seed), tmp_path) for seed in range(3))
    broken(bad)
    console = quiet()
    failed = run_all([first, bad, last], 1, console)
    assert failed.keys() == {bad.run_dir}
    assert str(failed[bad.run_dir]).startswith("round 3")
    assert "\n" not in str(failed[bad.run_dir])
    assert isinstance(failed[bad.run_dir].__cause__, OSError)
    assert "Error: [Errno" in Path(bad.run_dir, "error.log").read_text()
    assert f"local seed 1  failed: {failed[bad.run_dir]}" in text(console)
    assert [sweep.is_finished(each) for each in (first, bad, last)] == [True, False, True]
    before = times(Path(first.run_dir))
    Path(bad.run_dir, "models").unlink()
    assert run_all([first, bad, last], 1, quiet()) == {}
    assert not Path(bad.run_dir, "error.log").exists()
    assert times(Path(first.run_dir)) == before


def test_a_run_that_is_handed_over_is_stopped_and_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its stop here and its start in Ray; the clock jumps in the middle of the run."""
    calls = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: 100.0 * (next(calls) > 6))
    handed: list[dict[str, object]] = []

    def elsewhere(queue: Sequence[Config], *_: object) -> Iterator[tuple[Config, None]]:
        handed.extend(progress.read(Path(each.run_dir)) for each in queue)
        yield from ((each, None) for each in queue)

    monkeypatch.setattr(sweep, "_side_by_side", elsewhere)
    monkeypatch.setattr(sweep, "time", clock)
    monkeypatch.setattr(machine, "cores", lambda: 2)
    runs = [with_run_dir(config(seed=seed, num_server_rounds=40), tmp_path) for seed in (0, 1)]
    run_all(runs, None, quiet())
    begun, waiting = handed
    assert (begun["status"], begun["error"]) == ("stopped", None)
    assert 0 <= int(str(begun["round"])) < 40
    assert waiting == {}
    assert sweep.run_one(runs[0]) is None
    assert progress.read(Path(runs[0].run_dir))["status"] == "finished"


def test_a_run_that_diverged_is_done_and_no_failure(tmp_path: Path) -> None:
    one = with_run_dir(config(dataset="sine", learning_rate=1e30), tmp_path)
    assert run_all([one], 1, quiet()) == {}
    assert progress.read(Path(one.run_dir))["status"] == "diverged"
    before = times(tmp_path)
    assert run_all([one], 1, quiet()) == {}
    assert times(tmp_path) == before


@pytest.mark.parametrize("kind", [RelayError, DesertedError])
def test_an_error_of_the_relay_survives_the_trip_between_processes(kind: type[RelayError]) -> None:
    there = pickle.loads(pickle.dumps(kind("no node is left", 3, "update")))
    assert (type(there), str(there)) == (kind, "no node is left")
    assert (there.round, there.stage) == (3, "update")


SCRIPT = """
import signal
import sys
from pathlib import Path
from rich.console import Console
from coterie.app.config.config import Config
from coterie.app.experiments.grid import with_run_dir
from coterie.app.runners.sweep import run_all
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it
    flat = {"method": "fedavg", "peers": 2, "num-server-rounds": 10**6,
            "evaluate-every": 10**6, "partition.clusters": 2}
    configs = [Config.from_flat({**flat, "seed": s}) for s in (0, 1, 2)]
    runs = [with_run_dir(config, Path(sys.argv[1])) for config in configs]
    run_all(runs, 2, Console())
"""


@pytest.mark.e2e
@pytest.mark.parametrize(
    "how", [case(signal.SIGINT, is_long=False), case(signal.SIGKILL, is_long=True)]
)
def test_no_process_outlives_an_interruption(tmp_path: Path, how: signal.Signals) -> None:
    mark = str(tmp_path)
    script = tmp_path / "grid_script.py"
    script.write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "runs")],
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "SWEEP": mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        until = time.monotonic() + 120
        while not any(tmp_path.glob("runs/*/progress.json")) and time.monotonic() < until:
            time.sleep(0.1)
        process.send_signal(how)
        try:
            assert process.wait(120) != 0
        finally:
            process.kill()
    until = time.monotonic() + 120  # agents of Ray look for their raylet now and then
    while (alive := _marked(f"SWEEP={mark}")) and time.monotonic() < until:
        time.sleep(0.1)
    assert not alive
    assert len(list(tmp_path.glob("runs/*/"))) <= 2, "the next run was not begun"


def _marked(variable: str) -> list[str]:
    """The processes with this variable in their environment."""
    marked = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone in the meantime, or another user's
            if variable.encode() in (process / "environ").read_bytes().split(b"\0"):
                marked.append((process / "cmdline").read_text().replace("\0", " "))
    return marked


def test_runs_that_are_not_used_since_code_changed_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / f"net_{tmp_path.name}.py"
    module.write_text(
        "from torch import nn\n"
        "def net(shape, outputs):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, outputs))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    first, other = config(model=f"{module.stem}:net"), config(model=f"{module.stem}:net", seed=1)
    for run, changed in ((first, False), (other, False), (first, True)):
        if changed:
            module.write_text(module.read_text() + "# changed\n")
        console = quiet()
        assert not run_all([with_run_dir(run, tmp_path / "runs")], 1, console)
        assert ("the code of a part changed" in text(console)) == changed
