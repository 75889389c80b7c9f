"""Live pages in a browser while runs continue, end, fail and disappear."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Semaphore, Thread

import pytest

from coterie.app.runs import atomic, plan
from tests.app.dashboard.browser import Tab, browsing
from tests.app.dashboard.running import Running, running
from tests.app.dashboard.serving import TOKEN, served

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[3]

CELL = "document.getElementById('heat').toDataURL()"
FRAMES = "+document.getElementById('slider').max + 1"


def is_whole(tab: Tab) -> bool:
    """Return whether the page was not reloaded since it was marked, and has no errors."""
    return tab.value("window.marked") is True and tab.errors == []


def test_a_page_follows_its_run_to_the_end(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with served(runs) as up, browsing(tmp_path / "profile") as browser:
        address = f"http://127.0.0.1:{up.port}/{TOKEN}/"
        every = browser.tab()
        every.go(address)
        assert "A run appears here when it starts." in every.text
        every.value("window.marked = true")
        with running(runs / "mine") as run:
            every.wait_for("document.body.innerText.includes('0 of 100')")
            run.reach(0)
            tab = browser.tab()
            tab.go(f"{address}run?at=mine")
            tab.value("window.marked = true")
            tab.wait_for("document.documentElement.dataset.ready === 'yes'")
            assert tab.value("document.querySelectorAll('#peers tbody tr').length") == 4
            run.reach(10)
            tab.wait_for("document.body.innerText.includes('round 10 of 100')")
            tab.wait_for(f"{FRAMES} === 2")
            before = tab.value(CELL)
            tab.value("document.querySelector('#peers tbody tr').click(); 0")
            run.reach(90, absent=[3], faults=("round 90, update: peers 3: no reply within 30 s",))
            tab.wait_for(f"{FRAMES} === 3")
            tab.wait_for("document.body.innerText.includes('no reply within 30 s')")
            assert tab.value(CELL) != before, "the map forms"
            assert "After 90 rounds" in tab.text
            assert "3 awake" in tab.text
            assert "1 missing" in tab.text
            assert "45.0 kB over the relay" in tab.text
            assert tab.value("document.querySelectorAll('tr.picked').length") == 1, "still picked"
            every.wait_for("document.body.innerText.includes('90 of 100')")
            run.reach(91)
            tab.wait_for("document.body.innerText.includes('round 91 of 100')")
            assert "1 missing" not in tab.text
            run.reach(100)
            run.recorder.finish()
        tab.wait_for("document.body.innerText.includes('After 100 rounds')")
        tab.wait_for("!document.querySelector('.standing')")
        every.wait_for("document.body.innerText.includes('finished')")
        assert is_whole(tab)
        assert is_whole(every)


def test_a_run_that_breaks_or_vanishes_says_so_and_the_others_go_on(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with (
        served(runs) as up,
        browsing(tmp_path / "profile") as browser,
        running(runs / "mine") as run,
        running(runs / "other") as other,
    ):
        run.reach(0)
        other.reach(0)
        address = f"http://127.0.0.1:{up.port}/{TOKEN}/"
        tab, every = browser.tab(), browser.tab()
        tab.go(f"{address}run?at=mine")
        every.go(address)
        metrics = runs / "mine" / "metrics.jsonl"
        good = metrics.read_bytes()
        atomic.write(metrics, b"garbage\n" + good)
        tab.wait_for("document.body.innerText.includes('metrics.jsonl:1: not a measurement')")
        atomic.write(metrics, good)
        tab.wait_for("document.body.innerText.includes('At the start')")
        (runs / "mine" / "config.toml").write_text("= nothing")
        every.wait_for("document.body.innerText.includes('config.toml: not TOML')")
        tab.wait_for("document.body.innerText.includes('config.toml: not TOML')")
        shutil.rmtree(runs / "mine")
        tab.wait_for("document.body.innerText.includes('This run does not exist.')")
        other.reach(50)
        every.wait_for("document.body.innerText.includes('50 of 100')")
        assert "mine" not in every.value("document.getElementById('now').innerText")


def test_a_page_that_nobody_sees_holds_no_connection(tmp_path: Path) -> None:
    """A browser opens six connections per server; more tabs than that must still load."""
    runs = tmp_path / "runs"
    with (
        served(runs) as up,
        browsing(tmp_path / "profile") as browser,
        running(runs / "mine") as run,
    ):
        run.reach(0)
        tabs = [browser.tab(window=False) for _ in range(8)]
        for tab in tabs:
            tab.front()
            tab.go(f"http://127.0.0.1:{up.port}/{TOKEN}/run?at=mine")
        run.reach(10)
        tabs[-1].wait_for("document.body.innerText.includes('round 10 of 100')")
        assert "round 0 of 100" in tabs[0].text
        tabs[0].front()
        tabs[0].wait_for("document.body.innerText.includes('round 10 of 100')")


def test_a_comparison_under_way(tmp_path: Path) -> None:
    group = tmp_path / "runs" / "compare" / "digits"
    names = ["local-0", "local-1", "cobo-0", "cobo-1"]
    with served(tmp_path / "runs") as up, browsing(tmp_path / "profile") as browser:
        plan.write(group, names)
        address = f"http://127.0.0.1:{up.port}/{TOKEN}/"
        tab = browser.tab()
        with running(group / "local-0", method="local"):
            tab.go(f"{address}comparison?at=compare%2Fdigits")
            assert "Nothing has been measured yet." in tab.text
            assert "0 of 4 runs done" in tab.text
        made = {}
        for name in names[::2]:
            made[name] = Running(group / name, method=name.partition("-")[0])
            made[name].reach(0)
            made[name].reach(10)
        tab.wait_for("document.querySelectorAll('#results tbody tr').length === 2")
        tab.value("window.marked = true")
        made["cobo-0"].reach(50)
        tab.wait_for("document.querySelector('#results').innerText.includes('50.00')")
        assert "50.00" in tab.value("document.querySelector('#costs').innerText")
        tab.wait_for(f"{FRAMES} === 3")
        assert "Not finished: 2 of 2 runs" in tab.text
        made["cobo-0"].reach(100)
        made["cobo-0"].recorder.finish()
        tab.wait_for("document.body.innerText.includes('1 of 4 runs done')")
        assert "cobo" in tab.value("document.querySelector('.lede').innerText")
        assert is_whole(tab), "nothing that the reader chose was lost"


@contextmanager
def process(runs: Path, port: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start `coterie dashboard`; yield the process and the address that it prints."""
    command = [
        sys.executable,
        "-m",
        "coterie",
        "dashboard",
        "--out",
        str(runs),
        "--port",
        str(port),
    ]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"XDG_STATE_HOME": str(runs.parent / "state")},
    ) as started:  # fmt: skip
        assert started.stdout is not None
        try:
            yield started, started.stdout.readline().strip()
        finally:
            started.kill()


def refuse_once_each(port: int, tabs: int) -> None:
    """Answer the streams of some tabs with an error, as a proxy before a stopped dashboard does."""
    refused = Semaphore(0)

    class Refusal(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response_only(502)
            self.end_headers()
            refused.release()

    with ThreadingHTTPServer(("127.0.0.1", port), Refusal) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        assert all(refused.acquire(timeout=60) for _ in range(tabs))
        server.shutdown()


def test_the_command_prints_an_address_ends_at_once_and_pages_find_it_again(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    with browsing(tmp_path / "profile") as browser, running(runs / "mine") as run:
        run.reach(0)
        tabs = [browser.tab() for _ in range(3)]
        with process(runs, 0) as (started, address):
            port = int(address.split(":")[2].split("/")[0])
            for tab in tabs:
                tab.go(f"{address}run?at=mine")
                tab.value("window.marked = true")
                tab.wait_for("document.querySelector('time').textContent !== ''")
            started.send_signal(signal.SIGINT)
            out, err = started.communicate(timeout=60)  # three streams are open and would not end
            assert (started.returncode, out, err) == (130, "", "interrupted\n")
        for tab in tabs:
            tab.wait_for("document.body.innerText.includes('No connection to the dashboard')")
        run.reach(10)
        run.reach(20)
        refuse_once_each(port, len(tabs))
        with process(runs, port) as (_, again):
            assert again == address
            for tab in tabs:
                tab.wait_for("document.body.innerText.includes('round 20 of 100')")
                tab.wait_for(f"{FRAMES} === 3")
                tab.wait_for("document.getElementById('link').hidden")
                assert tab.value("window.marked") is True


@pytest.mark.long
def test_a_run_that_is_watched_writes_the_same_bytes(tmp_path: Path) -> None:
    runs = tmp_path / "runs"

    def run(name: str) -> dict[str, bytes]:
        keys = ("peers=4", "num-server-rounds=40", "evaluate-every=1", "device=cpu")
        place = ("--out", str(runs), "--name", name)
        command = [sys.executable, "-m", "coterie", "run", *keys, *place]
        subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
        files = ("metrics.jsonl", "relay/weights.f64", "split.json")
        return {file: (runs / name / file).read_bytes() for file in files}

    alone = run("alone")
    with served(runs) as up, browsing(tmp_path / "profile") as browser:
        tab = browser.tab()
        tab.go(f"http://127.0.0.1:{up.port}/{TOKEN}/run?at=watched")
        assert run("watched") == alone
        tab.wait_for("document.body.innerText.includes('After 40 rounds')")
