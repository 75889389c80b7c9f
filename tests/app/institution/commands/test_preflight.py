"""`coterie preflight`: the connection to the relay."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args

from coterie.app.cli.main import main
from coterie.app.config.keys import ConfigError
from coterie.app.institution.commands import preflight


@pytest.mark.parametrize(
    "text",
    [
        """name="h a" peer=3 worker=false table.file='/x y/t.csv' a.b.c=-1.5""",
        "",
        "without an equals sign",
        "a=1  b=2\nc=true",
        "node.toml",
    ],
)
def test_the_node_configuration_is_read_as_flower_reads_it(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "node.toml").write_text('peer = 3\n[table]\nfile = "t.csv"\n')
    monkeypatch.chdir(tmp_path)
    assert preflight.node_config(text) == parse_config_args([text])


@pytest.mark.parametrize("text", ["name=hospital", "a=1 a=2", "none.toml"])
def test_a_wrong_node_configuration_is_one_line_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--node-config: .*: write pairs such as name=\"hosp"):
        preflight.node_config(text)


def test_checks_are_data_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON alone on standard output, whatever fails; lines for people beside it."""
    policy_file = tmp_path / "policy.toml"
    assert main(["policy", "init", str(policy_file), "methods=fedavg", "data.sets=digits"]) == 0
    capsys.readouterr()
    node = f'policy="{policy_file}" out="{tmp_path}" peer=0'
    assert main(["preflight", "--node-config", node, "--json"]) == 2
    printed = capsys.readouterr()
    results = json.loads(printed.out)
    assert results["ready"] is False
    checks = results["checks"]
    assert {name for name, of in checks.items() if not of["ok"]} == {"keys"}
    assert all(
        f"{'ok' if of['ok'] else 'no'}  {name}: " in printed.err for name, of in checks.items()
    )
    assert "not ready: keys" in printed.err


def test_the_relay_is_reached_through_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As Flower's SuperNode does; a proxy that refuses is named."""
    lines = list[bytes]()
    with socket.create_server(("127.0.0.1", 0)) as proxy:

        def refuse() -> None:
            connection, _ = proxy.accept()
            with connection:
                lines.extend(connection.recv(65536).splitlines()[:1])
                connection.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")

        thread = threading.Thread(target=refuse)
        thread.start()
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        with pytest.raises(OSError, match="403 Forbidden"):
            preflight._relay("relay.example.org:9092", None)
        thread.join()
    (line,) = lines
    assert line.startswith(b"CONNECT relay.example.org:9092 ")
