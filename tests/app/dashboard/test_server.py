"""Event streams and the cost of pages."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import numpy as np
import pytest

from coterie.app.dashboard import server
from coterie.app.dashboard.library import Library
from coterie.app.dashboard.pages import Pages
from coterie.app.report import run_page
from coterie.app.runs.rundir import Run
from tests.app.dashboard.running import Running
from tests.app.dashboard.serving import TOKEN, served
from tests.app.fake_run import Story, write_progress, write_run
from tests.app.report.pages import Page


@contextmanager
def stream(port: int, kind: str, at: str = "") -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    with closing(connection):
        connection.request("GET", f"/{TOKEN}/events/{kind}?at={at}")
        with connection.getresponse() as response:
            yield response


def event(response: http.client.HTTPResponse) -> str:
    line, blank = response.readline().decode(), response.readline()
    assert (line[:6], blank) == ("data: ", b"\n")
    data = json.loads(line[6:])
    assert abs(data["now"] - time.time()) < 10
    return str(data["version"])


def test_an_event_comes_at_once_and_whenever_there_is_more(tmp_path: Path) -> None:
    run = Running(tmp_path / "mine")
    with (
        served(tmp_path) as up,
        stream(up.port, "list") as every,
        stream(up.port, "run", "mine") as one,
    ):
        seen = [(event(every), event(one))]
        for t in (5, 10):
            run.reach(t)
            seen.append((event(every), event(one)))
        assert len(set(seen)) == 3
        page = up.get("/run?at=mine").text
        assert f'<meta name="version" content="{seen[-1][1]}">' in page, "nothing is missed"


def test_open_streams_end_in_order_with_the_server(tmp_path: Path) -> None:
    with served(tmp_path) as up, ExitStack() as stack:
        open_ = [stack.enter_context(stream(up.port, "list")) for _ in range(20)]
        for each in open_:
            event(each)
        up.server.shutdown()
        for each in open_:
            assert each.read() == b"", "its last chunk came: it was not cut off"


@pytest.mark.slow
def test_a_page_says_what_the_report_says(tmp_path: Path) -> None:
    write_run(tmp_path / "mine", Story())
    run_page.write(tmp_path / "mine")
    report = Page(tmp_path / "mine" / "report.html")
    html = Pages(Library(tmp_path)).page("run", "mine")
    (tmp_path / "live.html").write_text(html)
    live = Page(tmp_path / "live.html")
    assert live.data == report.data
    for text in ("After 1,500 rounds", "Mean test accuracy", "partition.kind"):
        assert text in report.text.replace("\xa0", " ")
        assert text in live.text.replace("\xa0", " ")


def test_a_page_is_made_again_only_when_its_run_has_more(tmp_path: Path) -> None:
    run = Running(tmp_path / "mine")
    run.reach(0)
    pages = Pages(Library(tmp_path))
    first = pages.page("run", "mine")
    assert pages.page("run", "mine") is first
    run.reach(10)
    time.sleep(0.6)  # the directory is scanned at most twice a second
    second = pages.page("run", "mine")
    assert "round 10 of 100" in second
    assert pages.page("run", "mine") is second


@pytest.mark.slow
def test_a_thousand_peers(tmp_path: Path) -> None:
    """A live page of three rounds stays small and refreshes rarely."""
    directory = write_run(tmp_path / "mine", Story(peers=1000, clusters=10, rounds=2))
    run = Run.read(directory)
    (directory / "relay").mkdir()
    rows = np.concatenate([run.weight_rounds[:, None], run.weights.reshape(3, -1)], axis=1)
    rows.tofile(directory / "relay" / "weights.f64")
    seen = {peer: (200 - (peer % 5 == 0), 0.0) for peer in range(1000)}
    write_progress(directory, status="running", round=200, rounds=900, last_seen=seen)
    pages = Pages(Library(tmp_path))
    page = pages.page("run", "mine")
    assert len(page) < 2_000_000
    assert "800 awake" in page
    assert "180 more peers are not shown" in page
    assert pages.pause("run", "mine") > 1.0


def test_a_comparison_that_was_tuned_shows_its_settings(tmp_path: Path) -> None:
    group = tmp_path / "digits"
    write_run(group / "cobo-0", Story(rounds=2))
    (group / "comparison.csv").touch()
    settings = json.dumps({"cobo.rho": 0.05}).replace('"', '""')
    (group / "tuning.csv").write_text(
        f'method,settings,quality,chosen,run\ncobo,"{settings}",0.5,1,a\ncobo,"{{}}",0.4,0,b\n'
    )
    (tmp_path / "page.html").write_text(Pages(Library(tmp_path)).page("comparison", "digits"))
    assert (
        "Tuned: chosen on validation data of the first seed, from the same learning rates and 2"
        in Page(tmp_path / "page.html").text
    )


def test_a_connection_without_a_whole_request_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections without a complete request are closed; a stream stays open."""
    monkeypatch.setattr(server, "PATIENCE_SECONDS", 0.1)
    begun = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
    answered = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
    run = Running(tmp_path / "mine")
    with served(tmp_path) as up, stream(up.port, "list") as every:
        first = event(every)
        for half in (b"", b"GET", begun, answered):
            with socket.create_connection(("127.0.0.1", up.port), timeout=30) as connection:
                connection.sendall(half)
                while connection.recv(4096):
                    pass
        run.reach(5)
        assert event(every) != first
