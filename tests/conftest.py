"""Configure all tests: one thread per library, without warnings of other libraries."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

import coterie

ROOT = Path(__file__).parents[1]

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Virtual machines may show matrix instructions for bfloat16 (AMX) that they then forbid.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Ray gives way to other processes (15), so the tests of other workers would stop its runs.
os.environ.setdefault("RAY_worker_niceness", "0")
# The same examples each time, on slow machines too.
settings.register_profile("quick", derandomize=True, deadline=None, max_examples=25)
settings.register_profile("long", derandomize=True, deadline=None, max_examples=100)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long",
        action="store_true",
        help="also the tests marked long, all cases of those marked some, and properties with many "
        "examples",
    )


def pytest_configure(config: pytest.Config) -> None:
    if not Path(coterie.__file__).resolve().is_relative_to(ROOT):
        raise pytest.UsageError(f"tests of {coterie.__file__}: set PYTHONPATH={ROOT}")
    settings.load_profile("long" if config.getoption("--long") else "quick")
    # flwr imports typer, which still uses a name that click is giving up
    config.addinivalue_line("filterwarnings", "ignore:'click.utils:DeprecationWarning")
    for mark in (
        "e2e: starts Flower, a worker, the command or a browser as processes of their own",
        "long: runs with --long only, in `make test-all`",
        "slow: takes about a second or more; not in `make unit`",
        "some(count): of a parametrized test, this many cases run without --long",
    ):
        config.addinivalue_line("markers", mark)


def spread(count: int, cases: int) -> set[int]:
    """Return positions of `count` of the cases, spread evenly by multiples of the golden ratio."""
    return set(sorted(range(cases), key=lambda position: position * 0.618034 % 1)[:count])


def left_out(items: Sequence[pytest.Item]) -> set[pytest.Item]:
    """Return the tests that only run with --long."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    out = {item for item in items if item.get_closest_marker("long")}
    for group in cases.values():
        if some := group[0].get_closest_marker("some"):
            kept = spread(some.args[0], len(group))
            out |= {item for position, item in enumerate(group) if position not in kept}
    return out


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with tests that wait for other processes, so that workers compute meanwhile.

    Pages of the documentation come first, because they take longest.
    """
    if not config.getoption("--long"):
        out = left_out(items)
        config.hook.pytest_deselected(items=[item for item in items if item in out])
        items[:] = [item for item in items if item not in out]
    waiting = {item.path for item in items if item.get_closest_marker("e2e")}
    items.sort(key=lambda item: (item.path not in waiting, item.path.name != "test_commands.py"))


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """The tests of a file share a worker, and with it what they boot; pages share nothing."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        return nodeid if test.startswith("test_the_blocks_of_a_page_run[") else file


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByFile:
    return ByFile(config, log)
