"""Sweep: many configurations, each run in a directory named after its content.

A finished run of the same configuration and data is reused, a stopped one is continued, the rest is
run: in order in this process as long as that takes no longer than starting Ray, then several at a
time with Ray, on this machine or on the cluster that RAY_ADDRESS names
(`coterie.app.runners.cluster`). Each run has one thread. A run that fails, even one that takes its
process with it, does not stop the others.
"""

from __future__ import annotations

import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from coterie.app import private_ray
from coterie.app.config.config import Config
from coterie.app.config.parts import fingerprints
from coterie.app.config.preflight import check, problem_of
from coterie.app.runners import cluster, machine
from coterie.app.runners.failures import reported
from coterie.app.runners.tracking import Observers
from coterie.app.runs import plan, progress, provenance, rundir, units
from coterie.app.runs.progress import RunState
from coterie.datasets.files import fingerprint
from coterie.datasets.own.institutions import listed
from coterie.datasets.problem import DataError
from coterie.datasets.table import DATASETS
from coterie.errors import Error, RunError, line_of

_PAUSE = 0.5
_ALONE_SECONDS = 10.0
"""Seconds to start Ray and import PyTorch in its workers; shorter sweeps run in this process."""
_LOG_SECONDS = 60.0
_TRIES = 3
"""Times that a run starts again because its machine died."""
OTHER_DATA = "other-data"
"""Folder beside the runs for earlier runs on other data."""
_THREADS = {"OMP_NUM_THREADS": "1"}
"""Environment of parallel runs: one thread each, as oversubscription costs a factor of ten."""


def is_finished(config: Config) -> bool:
    """Return whether a run has ended and has its summary."""
    return (Path(config.run_dir) / "summary.json").exists() and _status(config) in progress.OVER


def _status(config: Config) -> str | None:
    return progress.read(Path(config.run_dir)).get("status")


def _has_other_code(config: Config) -> bool:
    """Return whether an earlier run differs from this one in nothing but the code of its parts."""
    run_dir, keys = Path(config.run_dir), config.toml()
    earlier = run_dir.parent.glob(f"{run_dir.name.rpartition('-')[0]}-*/config.toml")
    return any(path.read_text() == keys for path in earlier if path.parent != run_dir)


def renew(
    configs: Sequence[Config], console: Console
) -> tuple[dict[str, provenance.Content], dict[str, Exception]]:
    """Move runs whose data have changed to `OTHER_DATA`, and print what changed.

    Return the current content of data.json by run directory, and errors of unreadable data.
    """
    known, now = dict[object, provenance.Content](), dict[str, provenance.Content]()
    changed, moved, unknown, failed = set[str](), 0, 0, dict[str, Exception]()
    for config in {config.run_dir: config for config in configs}.values():
        run_dir, paths = Path(config.run_dir), tuple(provenance.paths_of(config).items())
        drawn = None if config.dataset in DATASETS else config.division  # a plugin may use the seed
        key = config.dataset, config.dataset_options, config.data_dir, config.peers, drawn, paths
        try:
            if key not in known:  # seeds and methods share their data
                known[key] = provenance.content_of(config, problem_of(config))
            now[config.run_dir] = known[key]
            since = provenance.since(run_dir, known[key])
            if since:
                _set_aside(run_dir)
                changed, moved = changed | {*since}, moved + 1
            unknown += since is None and is_finished(config)
        except Error as error:
            failed[config.run_dir] = error
    if changed:
        files, runs = listed(sorted(changed)), units.plural(moved, "run")
        line = f"data changed: {files}; {runs} to repeat, earlier results in {OTHER_DATA}/"
        console.print(line, soft_wrap=True)
    if unknown:
        line = f"{units.plural(unknown, 'finished run')} reused; {provenance.UNKNOWN}"
        console.print(line, soft_wrap=True)
    return now, failed


def _set_aside(run_dir: Path) -> None:
    with rundir.held(run_dir):
        data = fingerprint.of_json(provenance.read(run_dir))[:8]
        aside = run_dir.parent / OTHER_DATA / data / run_dir.name
        shutil.rmtree(aside, ignore_errors=True)  # the same run on the same data
        aside.parent.mkdir(parents=True, exist_ok=True)
        run_dir.rename(aside)


def run_all(
    configs: Sequence[Config],
    workers: int | None,
    console: Console,
    labels: Mapping[str, str] | None = None,
    values: Mapping[str, plan.Values] | None = None,
    on_end: Callable[[Config], None] = lambda config: None,
) -> dict[str, Exception]:
    """Run the configurations that are not finished; return the errors of failed ones by directory.

    Duplicates run once; every run without an error has its summary.json. `workers` is the maximum
    number of parallel runs (None: as many as cores, memory and GPUs allow, once the first runs have
    shown that the sweep takes long); with 1, all runs take place in this process. `labels` are
    texts of the progress line by run directory, by default method, seed and accuracy; `values`
    those of swept keys by name of the run directory. `on_end` is called with each run that did not
    fail, as it ends. RunError: RAY_ADDRESS names no cluster.
    """
    data, failed = renew(configs, console)
    left = (config for config in configs if config.run_dir not in failed)
    missing = {config.run_dir: config for config in left if not is_finished(config)}
    if not missing:
        return failed
    if any(_has_other_code(each) for each in missing.values() if any(fingerprints(each.chosen))):
        console.print(
            "earlier runs with the same keys are not used: the code of a part changed, or is in a "
            "script or notebook; a part in a module of its own keeps its runs"
        )
    names: dict[Path, list[str]] = {}
    for run_dir in dict.fromkeys(Path(config.run_dir) for config in configs):
        names.setdefault(run_dir.parent, []).append(run_dir.name)
    for directory in names:
        plan.write(directory, names[directory], values)
    watch = _Watch(console, [*missing.values()], labels or {}, values or {})
    queue = sorted(missing.values(), key=lambda c: (c.num_server_rounds * c.peers, c.seed))
    ends = _ends(queue, workers, watch)
    with private_ray.environment(_THREADS), watch.bar, closing(ends):
        for config, error in ends:
            changed = provenance.since(Path(config.run_dir), data[config.run_dir])
            if error is None and changed:
                error = DataError(f"{listed(changed)} changed while the runs were made")
            if error is not None:
                failed[config.run_dir] = error
            else:
                on_end(config)
            watch.ended(config, error)
    return failed


class _HandOver(BaseException):
    """Interrupts the current run of a long sweep, which then continues in Ray."""


def _ends(
    queue: Sequence[Config], workers: int | None, watch: _Watch
) -> Generator[tuple[Config, Exception | None], None, None]:
    """Yield each run as it ends, and its error if it failed.

    The `queue` is shortest first, so that many end before the rest is handed over.
    """
    alone = workers == 1 or (min(machine.cores(), len(queue)) == 1 and not private_ray.address())
    if not alone and (workers or private_ray.address()):
        yield from _side_by_side(queue, workers, watch)
        return
    rest, until = [*queue], math.inf if alone else time.monotonic() + _ALONE_SECONDS
    with suppress(_HandOver):
        while rest:
            error = run_one(rest[0], watch.of(rest[0], until))
            yield rest.pop(0), error
    if rest:
        yield from _side_by_side(rest, workers, watch)


def _side_by_side(
    queue: Sequence[Config], workers: int | None, watch: _Watch
) -> Iterator[tuple[Config, Exception | None]]:
    """Yield each run as it ends in Ray, and its error; a run whose process died is tried again.

    The longest runs start first.
    """
    queue, limit = queue[::-1], workers or len(queue)
    with ThreadPoolExecutor(1) as aside:  # importing torch takes as long as Ray's start
        needed = aside.submit(cluster.estimates, queue)
        with cluster.connected(min(limit, machine.cores()), _THREADS):
            folder = cluster.Folder.of(Path(queue[0].run_dir).parent)
            tasks = cluster.Tasks(folder, line_of_run)
            waiting = [*zip(queue, needed.result(), strict=True)]
            tries = Counter[str]()
            while waiting or tasks.going:
                while waiting and len(tasks.going) < limit:
                    tasks.send(*waiting.pop(0))
                for config, line, again in tasks.ended(_PAUSE):
                    tries[config.run_dir] += again is not None
                    # A machine may die of something else, a process with all memory hardly.
                    if again is not None and tries[config.run_dir] <= (
                        _TRIES if again < cluster.ALL_MEMORY else 1
                    ):
                        waiting.append((config, again))
                    else:
                        yield config, None if line is None else RunError(line)
                watch.show_progress(tasks.going)


def run_one(
    config: Config,
    watch: Callable[[Mapping[str, Any]], None] | None = None,
) -> Exception | None:
    """Execute or continue a run, and write its summary; return the error if it failed.

    The traceback of an unexpected error is in error.log of the run directory. `watch` is called
    after each round.
    """
    from coterie.app.runners import inline  # loads torch
    from coterie.app.runs import summary

    directory = Path(config.run_dir)
    try:
        with rundir.held(directory), reported(directory):
            if _status(config) not in progress.OVER:
                config = replace(config, resume=bool(progress.read(directory)))
                rundir.create(config, check(config))
                with Observers(config) as observers:

                    def show(now: Mapping[str, Any]) -> None:
                        observers.show(now)
                        if watch is not None:
                            watch(now)

                    inline.run(config, show)
            summary.finish(directory)
    except Exception as error:
        return error
    return None


def line_of_run(config: Config) -> str | None:
    """Execute a run in a process of Ray, which cannot return error objects."""
    error = run_one(config)
    return None if error is None else line_of(error)


class _Watch:
    """Display of a sweep: a line per ended run, and the runs in progress."""

    def __init__(
        self,
        console: Console,
        configs: Sequence[Config],
        labels: Mapping[str, str],
        values: Mapping[str, plan.Values],
    ) -> None:
        self._console, self._total, self._done = console, (total := len(configs)), 0
        self._left = Counter(config.label for config in configs)
        self._seconds = dict[str, float]()  # of the latest run of each method
        self._labels, self._values = labels, values
        self._spoken = self._looked = time.monotonic()
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

    def ended(self, config: Config, error: Exception | None) -> None:
        self._done += 1
        now = progress.read(Path(config.run_dir))
        name = plan.label(config.label, self._values.get(Path(config.run_dir).name, {}))
        default = f"{name} seed {config.seed}  {RunState(now).describe()}"
        text = self._labels.get(config.run_dir, default)
        if error is not None:
            text = f"{name} seed {config.seed}  failed: {line_of(error)}"
        place = f"{self._done:>{len(str(self._total))}}/{self._total}"
        seconds, is_new = now.get("seconds", 0.0), config.label not in self._seconds
        self._console.print(f"{place}  {text}  {seconds:.1f} s", soft_wrap=True)
        self._left[config.label] -= 1
        self._seconds[config.label] = seconds
        if is_new and len(self._seconds) == len(self._left) and (rest := self._left.total()):
            time = units.duration(sum(self._seconds[each] * n for each, n in self._left.items()))
            self._console.print(f"about {time} for the other {units.plural(rest, 'run')}, in order")

    def of(self, config: Config, until: float) -> Callable[[Mapping[str, Any]], None]:
        """Return the function to call after every round of a run in this process.

        It raises `_HandOver`, once, when `until` has passed and round 0 is over.
        """
        is_handed_over = False

        def look(now: Mapping[str, Any]) -> None:
            nonlocal is_handed_over
            if now["last_seen"] and time.monotonic() > until and not is_handed_over:
                is_handed_over = True
                raise _HandOver
            self.show_progress([config])

        return look

    def show_progress(self, running: Sequence[Config]) -> None:
        if time.monotonic() - self._looked < _PAUSE:
            return
        self._looked = time.monotonic()
        states = []
        for config in running:
            now = progress.read(Path(config.run_dir))
            if now.get("status") != "running":
                continue  # not started, or its folder is on another machine
            done = now.get("round", 0)
            states.append(f"{config.label}:{config.seed} {done}/{config.num_server_rounds}")
        if unseen := len(running) - len(states):
            states.append(f"{unseen} waiting for a free machine, or on one without this folder")
        self.bar.update(self._task, completed=self._done, state="  ".join(states))
        if not self._console.is_terminal and time.monotonic() - self._spoken > _LOG_SECONDS:
            self._spoken = time.monotonic()
            self._console.print(f"running: {', '.join(states)}", soft_wrap=True)
