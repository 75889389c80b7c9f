"""Configure all tests: one thread per library, without warnings of other libraries."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

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
settings.register_profile("long", derandomize=True, deadline=None, max_examples=200)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--long",
        action="store_true",
        help="also the tests marked long, and properties with many examples",
    )


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("long" if config.getoption("--long") else "quick")
    # flwr imports typer, which still uses a name that click is giving up
    config.addinivalue_line("filterwarnings", "ignore:'click.utils:DeprecationWarning")
    e2e = "e2e: starts Flower, a worker, the command or a browser as processes of their own"
    config.addinivalue_line("markers", e2e)
    config.addinivalue_line("markers", "long: runs with --long only, in `make test-all`")
    config.addinivalue_line("markers", "xdist_group: tests that share a worker")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with tests that wait for other processes, so that workers compute meanwhile.

    The tests of a file share a worker, and with it what they boot; pages of the documentation share
    nothing, and come first because they take longest.
    """
    if not config.getoption("--long"):
        long = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("long")]
    waiting = {item.path for item in items if item.get_closest_marker("e2e")}
    items.sort(key=lambda item: (item.path not in waiting, item.path.name != "test_commands.py"))
    for item in items:
        is_page = getattr(item, "originalname", "") == "test_the_blocks_of_a_page_run"
        item.add_marker(pytest.mark.xdist_group(item.nodeid if is_page else str(item.path)))
