"""A sweep: many configurations, each run in a directory named after its content.

A finished run whose configuration is the same is reused, a stopped one is continued, the rest is
run: several at a time, one thread each, in processes of their own that end with this one. A run
that fails, or takes its process with it, costs the others nothing.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from app.config.config import Config, named
from app.config.parts import fingerprints
from app.config.preflight import check
from app.runners import cores
from app.runs import plan, progress, rundir

_PAUSE = 0.5
_LOG_SECONDS = 60.0
_BESIDE = ("name", "run-dir", "resume", "out")
_THREADS = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
"""Runs side by side share the cores: spinning or oversubscribed threads cost a factor of ten."""


def placed(config: Config, directory: Path) -> Config:
    """The configuration with its run directory: `<method>-seed<k>-<hash of all that matters>`.

    That is every key but where results go, the content of the files that keys name, and the code of
    plugins.
    """
    flat = {key: value for key, value in config.flat().items() if key not in _BESIDE}
    hashed = hashlib.sha256(json.dumps(flat, sort_keys=True).encode())
    for code in fingerprints(config.chosen):
        hashed.update(code)
    for key in sorted(config.paths & flat.keys()):
        if Path(str(flat[key])).is_file():
            hashed.update(Path(str(flat[key])).read_bytes())
    name = f"{named(config.method)}-seed{config.seed}-{hashed.hexdigest()[:8]}"
    return replace(config, name=name, run_dir=str((directory / name).absolute()))


def is_finished(config: Config) -> bool:
    """Whether the run of a placed configuration has already ended well and is summed up."""
    return (Path(config.run_dir) / "summary.json").exists() and _status(config) == "finished"


def _status(config: Config) -> str | None:
    return progress.read(Path(config.run_dir)).get("status")


def run_all(
    configs: Sequence[Config],
    workers: int,
    console: Console,
    labels: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Run what is not finished yet.

    Parameters
    ----------
    configs : placed configurations; one that stands there twice runs once.
    workers : runs side by side.
    labels : run directory -> what to call a run, where method, seed and accuracy do not tell it.

    Returns
    -------
    Run directory -> why in one line, of the runs that failed; the others have their summary.json.
    """
    missing = {config.run_dir: config for config in configs if not is_finished(config)}
    failed = dict[str, str]()
    if not missing:
        return failed
    for directory, names in _by_directory(configs).items():
        plan.write(directory, names)
    watch = _Watch(console, len(missing), labels or {})
    queue = sorted(missing.values(), key=lambda c: -c.num_server_rounds * c.peers)
    with _threads(), watch.bar:
        while queue:
            lost = _batch(queue, workers, watch, failed)
            suspects = [config for config in lost if _status(config) == "running"] or lost[:workers]
            for config in suspects:  # alone, so that the next to die is known
                if _batch([config], 1, watch, failed):
                    failed[config.run_dir] = "its process died, as for want of memory"
                    watch.ended(config, failed[config.run_dir])
            queue = [config for config in lost if config not in suspects]
    return failed


def _by_directory(configs: Sequence[Config]) -> dict[Path, list[str]]:
    """Directory -> the names of the runs in it."""
    names: dict[Path, list[str]] = {}
    for run_dir in dict.fromkeys(Path(config.run_dir) for config in configs):
        names.setdefault(run_dir.parent, []).append(run_dir.name)
    return names


def _batch(
    configs: Sequence[Config], workers: int, watch: _Watch, failed: dict[str, str]
) -> list[Config]:
    """Run `configs` side by side and note what failed; those lost because a process died."""
    lost = list[Config]()
    with _pool(workers) as pool:
        waiting = dict[Future[str | None], Config]()
        for config in configs:
            try:
                waiting[pool.submit(run_one, config)] = config
            except BrokenProcessPool:
                lost.append(config)
        while waiting:
            done, _ = wait(waiting, timeout=_PAUSE, return_when=FIRST_COMPLETED)
            for future in done:
                config = waiting.pop(future)
                try:
                    error = future.result()
                except BrokenProcessPool:
                    lost.append(config)
                    continue
                if error is not None:
                    failed[config.run_dir] = error
                watch.ended(config, error)
            watch.goes_on([c for f, c in waiting.items() if f.running()][:workers])
    return lost


def run_one(config: Config) -> str | None:
    """One run from beginning, or from where it stopped, to its summary; why it failed, if it did.

    The whole story of a failure is in error.log of the run directory.
    """
    from app.runners import inline
    from app.runs import summary  # torch: only where a run is

    directory = Path(config.run_dir)
    try:
        with rundir.held(directory):
            (directory / "error.log").unlink(missing_ok=True)
            if _status(config) != "finished":
                config = replace(config, resume=bool(progress.read(directory)))
                rundir.create(config, check(config))
                inline.run(config)
            summary.finish(directory)
    except Exception as error:
        with suppress(OSError):
            (directory / "error.log").write_text(traceback.format_exc(), encoding="utf-8")
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return None


class _Watch:
    """What the user sees of a sweep: a line for each run that ends, and what is running now."""

    def __init__(self, console: Console, total: int, labels: Mapping[str, str]) -> None:
        self._console, self._total, self._done = console, total, 0
        self._labels = labels
        self._spoken = time.monotonic()
        self.bar = Progress(
            MofNCompleteColumn(),
            BarColumn(bar_width=24),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[state]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self.bar.add_task("", total=total, state="")
        console.print(f"{total} run{'' if total == 1 else 's'} to do")

    def ended(self, config: Config, error: str | None) -> None:
        self._done += 1
        now = progress.read(Path(config.run_dir))
        default = f"{config.method} seed {config.seed}  {progress.describe(now)}"
        text = self._labels.get(config.run_dir, default)
        if error is not None:
            text = f"{config.method} seed {config.seed}  failed: {error}"
        place = f"{self._done:>{len(str(self._total))}}/{self._total}"
        self._console.print(f"{place}  {text}  {now.get('seconds', 0.0):.1f} s", soft_wrap=True)

    def goes_on(self, running: Sequence[Config]) -> None:
        states = []
        for config in running:
            done = progress.read(Path(config.run_dir)).get("round", 0)
            states.append(f"{config.method}:{config.seed} {done}/{config.num_server_rounds}")
        self.bar.update(self._task, completed=self._done, state="  ".join(states))
        if not self._console.is_terminal and time.monotonic() - self._spoken > _LOG_SECONDS:
            self._spoken = time.monotonic()
            self._console.print(f"running: {', '.join(states)}", soft_wrap=True)


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that do not outlive an interruption: what they did so far can be continued."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=_end_with_parent) as pool:
        try:
            yield pool
        except BaseException:
            for process in multiprocessing.active_children():
                process.terminate()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _end_with_parent() -> None:
    """Let a worker end when its parent is gone, even by SIGKILL."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def outlive() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=outlive, daemon=True).start()


@contextmanager
def _threads() -> Iterator[None]:
    """The environment that worker processes inherit."""
    before = {key: os.environ.get(key) for key in _THREADS}
    os.environ |= _THREADS
    try:
        yield
    finally:
        for key, value in before.items():
            os.environ.pop(key) if value is None else os.environ.update({key: value})


def default_workers() -> int:
    """One run per core; a GPU is shared by two, so that one computes while the other decides."""
    return cores.count() if not Path("/dev/nvidiactl").exists() else 2
