"""Security of the dashboard: an attack on each claim of docs/watching.md."""

from __future__ import annotations

import secrets
import shutil
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from app.config.keys import ConfigError
from app.dashboard import address
from tests.app.dashboard.browser import browsing
from tests.app.dashboard.serving import TOKEN, Served, served
from tests.app.fake_run import Story, write_run

SECRET = "meet-me-at-noon"
PATHS = (
    *("/", "/run?at=mine", "/comparison?at=compare", "/static/run.js", "/static/report.css"),
    *("/events/list", "/events/run?at=mine", "/events/comparison?at=compare"),
)
EVIL = "</script><script>document.title='owned'</script><img src=x onerror=document.title='owned'>"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory with watched runs and a secret run outside of them."""
    place = tmp_path_factory.mktemp("place")
    write_run(place / "runs" / "mine", Story(rounds=2))
    write_run(place / "runs" / "evil", Story(rounds=2), method=EVIL, dataset=EVIL)
    for seed in (0, 1):
        write_run(place / "runs" / "compare" / f"cobo-{seed}", Story(rounds=2, seed=seed))
    (place / "runs" / "compare" / "comparison.csv").write_text("")
    write_run(place / "elsewhere", Story(rounds=2), dataset=SECRET)
    (place / "runs" / "linked").symlink_to(place / "elsewhere")
    for name in ("config.toml", "progress.json", "relay"):
        inside = write_run(place / "runs" / f"with-{name}", Story(rounds=2))
        shutil.rmtree(inside / name) if (inside / name).is_dir() else None
        (inside / name).unlink(missing_ok=True)
        (inside / name).symlink_to(place / "elsewhere" / name)
    return place


@pytest.fixture(scope="module")
def up(place: Path) -> Iterator[Served]:
    """Yield a running dashboard."""
    with served(place / "runs") as up:
        yield up


@pytest.mark.parametrize("path", PATHS)
def test_with_the_token_every_path_answers(up: Served, path: str) -> None:
    answer = up.get(path)
    assert answer.status == 200
    assert answer.text


@pytest.mark.parametrize("path", [*PATHS, "", "/docs", "/openapi.json", "/no/such/path"])
@pytest.mark.parametrize(
    "token",
    ["", "x", TOKEN[:-1], f"{TOKEN}x", TOKEN.upper(), f"/{TOKEN}", f"x/../{TOKEN}", f".//{TOKEN}"],
)
def test_without_the_token_no_path_says_anything(up: Served, path: str, token: str) -> None:
    answer = up.ask("GET", f"/{token}{path}", [("Host", "localhost")])
    assert (answer.status, answer.text) == (403, "The address has no valid token.\n")


def test_the_token_is_compared_in_constant_time(
    up: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only `compare_digest`, on the whole token, decides about access."""
    compared = []

    def agree(received: bytes, token: bytes) -> bool:
        compared.append((received, token))
        return True

    monkeypatch.setattr(secrets, "compare_digest", agree)
    assert up.ask("GET", "/wrong/", [("Host", "localhost")]).status != 403
    assert compared == [(b"wrong", TOKEN.encode())]


@pytest.mark.parametrize(
    "hosts",
    [
        *([name] for name in ("rebound.example", "127.0.0.1.example", "localhost.example", "")),
        *([name] for name in ("rebound.example:80", "localhost@example", "127.0.0.1:80:80")),
        ["localhost", "rebound.example"],
        [],
    ],
)
def test_a_name_that_was_pointed_here_is_refused(up: Served, hosts: list[str]) -> None:
    """DNS rebinding: the browser treats the page as same-origin with the attacker's site."""
    answer = up.ask("GET", f"/{TOKEN}/", [("Host", host) for host in hosts])
    assert answer.status == 400
    assert "mine" not in answer.text


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "localhost:9000", "127.0.0.1:9000"])
def test_a_tunnel_with_another_port_is_let_in(up: Served, host: str) -> None:
    assert up.ask("GET", f"/{TOKEN}/", [("Host", host)]).status == 200


def test_only_this_machine_can_connect(up: Served) -> None:
    for other in ("127.0.0.2", "::1"):
        with pytest.raises(OSError, match=r"refused|unreachable|assign"):
            socket.create_connection((other, up.port), timeout=5)


@pytest.mark.parametrize("kind", ["run", "comparison"])
@pytest.mark.parametrize(
    "at",
    [
        *(
            "../elsewhere",
            "mine/../../elsewhere",
            "/../elsewhere",
            "linked",
            "linked/.",
            "./linked",
        ),
        *(
            "..",
            ".",
            "/",
            "compare/../linked",
            "%2e%2e/elsewhere",
            "..\\elsewhere",
            "\0",
            "ELSEWHERE",
        ),
    ],
)
def test_no_address_leads_out_of_the_directory(up: Served, place: Path, kind: str, at: str) -> None:
    for text in (at, str(place / "elsewhere") if at == "/" else at):
        answer = up.get(f"/{kind}?at={quote(text)}")
        assert SECRET not in answer.text
        assert f"This {kind} does not exist." in answer.text


@pytest.mark.parametrize("name", ["config.toml", "progress.json", "relay"])
def test_no_link_inside_a_run_is_followed(up: Served, name: str) -> None:
    answer = up.get(f"/run?at=with-{name}")
    assert SECRET not in answer.text
    assert "is a symbolic link; links are not followed" in answer.text
    assert SECRET not in up.get("/").text


@pytest.mark.parametrize("name", ["..%2fpages.py", "../pages.py", "live.js", "run.js/", "%00"])
def test_no_file_is_served_but_the_pages_own(up: Served, name: str) -> None:
    assert up.get(f"/static/{name}").status in (404, 307)
    assert "import" not in up.get(f"/static/{name}").text


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(up: Served, place: Path, method: str) -> None:
    def state() -> dict[Path, tuple[int, int]]:
        files = [path for path in place.rglob("*") if path.exists()]
        return {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in files}

    before = state()
    for path in PATHS:
        assert up.ask(method, f"/{TOKEN}{path}", [("Host", "localhost")]).status == 405
        assert up.get(path).status == 200
    assert state() == before


def test_every_answer_confines_the_page(up: Served) -> None:
    refused = up.ask("GET", "/", [("Host", "localhost")]), up.ask("GET", f"/{TOKEN}/", [])
    for answer in (*map(up.get, (*PATHS, "/none")), *refused):
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "unsafe-eval" not in policy
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "access-control-allow-origin" not in answer.headers


@pytest.mark.e2e
def test_a_page_runs_no_script_but_its_own_and_reaches_no_other_server(
    up: Served, tmp_path: Path
) -> None:
    with browsing(tmp_path) as browser, socket.create_server(("127.0.0.1", 0)) as other:
        tab = browser.tab()
        address = f"http://127.0.0.1:{up.port}/{TOKEN}"
        for path in ("/", "/run?at=evil"):
            tab.go(address + path)
            assert EVIL in tab.text, "shown as it is, as text"
            assert tab.value("document.title") != "owned"
            assert tab.errors == []
        tab.value("window.blocked = []; addEventListener('securitypolicyviolation', "
                  "(event) => blocked.push(event.effectiveDirective)); 0")  # fmt: skip
        there = f"http://127.0.0.1:{other.getsockname()[1]}/"
        for attempt, directive in {
            "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=window.owned=1>')":
                "script-src-attr",
            "document.body.append(Object.assign(document.createElement('script'), "
            "{textContent: 'window.owned = 1'}))": "script-src-elem",
            f"fetch('{there}').catch(() => 0); 0": "connect-src",
            f"new Image().src = '{there}'": "img-src",
            f"document.body.append(Object.assign(document.createElement('iframe'), "
            f"{{src: '{there}'}}))": "frame-src",
        }.items():  # fmt: skip
            tab.value(f"{attempt}; 0")
            tab.wait_for(f"blocked.includes('{directive}')")
        assert tab.value("window.owned") is None


@pytest.mark.e2e
def test_no_other_site_can_frame_a_page(up: Served, tmp_path: Path) -> None:
    frame = f'<iframe src="http://127.0.0.1:{up.port}/{TOKEN}/"></iframe>'
    (tmp_path / "site.html").write_text(f"<body>{frame}</body>")
    with browsing(tmp_path / "profile") as browser:
        tab = browser.tab()
        tab.go((tmp_path / "site.html").as_uri())
        tab.wait_for("frames.length === 1")
        tab.wait_for("document.readyState === 'complete'")
        assert any("frame-ancestors" in error for error in tab.errors)


def test_the_token_is_random_kept_and_the_user_s_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    token = address.token()
    path = tmp_path / "coterie" / "dashboard-token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len(token) == 43, "256 bits"
    assert address.token() == token, "an address survives a restart"
    path.unlink()
    assert address.token() != token

    for mode in (0o640, 0o604):
        path.chmod(mode)
        with pytest.raises(ConfigError, match="other users can read it"):
            address.token()
    path.unlink()
    (tmp_path / "mine").write_text("a" * 43)
    path.symlink_to(tmp_path / "mine")
    with pytest.raises(ConfigError, match="other users can read it"):
        address.token()
    path.unlink()
    path.touch(0o600)
    with pytest.raises(ConfigError, match="not a token"):
        address.token()


def test_a_port_that_is_taken_is_replaced_unless_it_was_asked_for() -> None:
    with address.listen(0) as first:
        port = first.getsockname()[1]
        assert first.getsockname()[0] == "127.0.0.1"
        with pytest.raises(ConfigError, match=f"--port {port}: Address already in use"):
            address.listen(port)
    with pytest.raises(ConfigError, match="--port 70000"):
        address.listen(70000)
    with address.listen(None), address.listen(None) as second:
        assert second.getsockname()[1] != address.PORT
