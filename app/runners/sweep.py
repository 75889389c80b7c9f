"""A grid of runs: many configurations, each in a directory named after its content.

A finished run whose configuration is the same is reused, a stopped one is continued, the rest is
run: several at a time, one thread each, in processes of their own that end with this one.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from app.config.config import Config
from app.config.keys import paths
from app.config.preflight import check
from app.runners import cores
from app.runners.errors import SweepError
from app.runs import progress, rundir

_PAUSE = 0.5
_LOG_SECONDS = 60.0
_BESIDE = ("name", "run-dir", "resume", "out")
_THREADS = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
"""Runs side by side share the cores: spinning or oversubscribed threads cost a factor of ten."""


def placed(config: Config, directory: Path) -> Config:
    """The configuration with its run directory: `<method>-seed<k>-<hash of all that matters>`.

    That is every key but where results go, and the content of the files that keys name.
    """
    flat = {key: value for key, value in config.flat().items() if key not in _BESIDE}
    hashed = hashlib.sha256(json.dumps(flat, sort_keys=True).encode())
    for key in sorted(paths() & flat.keys()):
        if Path(str(flat[key])).is_file():
            hashed.update(Path(str(flat[key])).read_bytes())
    name = f"{config.method}-seed{config.seed}-{hashed.hexdigest()[:8]}"
    return replace(config, name=name, run_dir=str((directory / name).absolute()))


def is_finished(config: Config) -> bool:
    """Whether the run of a placed configuration has already ended well and is summed up."""
    return (Path(config.run_dir) / "summary.json").exists() and _has_ended(config)


def _has_ended(config: Config) -> bool:
    return progress.read(Path(config.run_dir)).get("status") == "finished"


def run_all(
    configs: Sequence[Config],
    workers: int,
    console: Console,
    labels: Mapping[str, str] | None = None,
) -> None:
    """Run what is not finished yet; every run directory has its summary.json afterwards.

    Parameters
    ----------
    configs : placed configurations; one that stands there twice runs once.
    workers : runs side by side.
    labels : run directory -> what to call a run, where method, seed and accuracy do not tell it.

    Raises
    ------
    SweepError : a run failed. The others that were under way are finished first.
    """
    missing = {config.run_dir: config for config in configs if not is_finished(config)}
    if not missing:
        return
    failed = dict[str, str]()
    watch = _Watch(console, len(missing), labels or {})
    with _threads(), watch.bar, _pool(workers) as pool:
        longest_first = sorted(missing.values(), key=lambda c: -c.num_server_rounds * c.peers)
        waiting = {pool.submit(run_one, config): config for config in longest_first}
        while waiting:
            done, _ = wait(waiting, timeout=_PAUSE, return_when=FIRST_COMPLETED)
            for future in done:
                config = waiting.pop(future)
                error = future.exception()
                if error is None:
                    watch.ended(config)
                    continue
                failed[config.name] = f"{type(error).__name__}: {error}".splitlines()[0]
                waiting = {other: c for other, c in waiting.items() if not other.cancel()}
            watch.goes_on([c for f, c in waiting.items() if f.running()][:workers])
    if failed:
        (name, why), *more = failed.items()
        others = f" (and {len(more)} more)" if more else ""
        raise SweepError(f"{name}: {why}{others}")


def run_one(config: Config) -> None:
    """One run from beginning, or from where it stopped, to its summary."""
    from app.runners import inline
    from app.runs import summary  # torch: only where a run is

    directory = Path(config.run_dir)
    if not _has_ended(config):
        config = replace(config, resume=bool(progress.read(directory)))
        rundir.create(config, check(config))
        inline.run(config)
    summary.finish(directory)


class _Watch:
    """What the user sees of a grid: a line for each run that ends, and what is running now."""

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

    def ended(self, config: Config) -> None:
        self._done += 1
        now = progress.read(Path(config.run_dir))
        default = f"{config.method} seed {config.seed}  {progress.describe(now)}"
        told = self._labels.get(config.run_dir, default)
        place = f"{self._done:>{len(str(self._total))}}/{self._total}"
        self._console.print(f"{place}  {told}  {now.get('seconds', 0.0):.1f} s", soft_wrap=True)

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
