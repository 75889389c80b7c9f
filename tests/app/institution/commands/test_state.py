"""States as JSON and as metrics: the schema of the page, and the law of the metrics."""

from __future__ import annotations

import json
import os
import re
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from coterie.app.cli.main import main
from coterie.app.institution.commands import certificates, probe, state
from coterie.app.institution.security import approval
from coterie.app.runs.recorder import RunRecorder
from coterie.strategies.relay.commit import Commit, Ledger
from tests.app.institution.commands import schema


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """Run of three peers, one of which was away at the end."""
    recorder = RunRecorder(tmp_path / "run", peers=3, rounds=9)
    names, nodes = {0: 'hospital "a"'}, {0: 2**63 + 1, 1: 3, 2: 4}
    ledger = Ledger(9, 18, 9000, 96, (9, 9, 4), awake=(9, 9, 4))
    commit = Commit(ledger, (), ("a letter",), frozenset({0, 1}), ("gone",), names, nodes=nodes)
    recorder.round(Commit(Ledger(4, awake=(4, 4, 4)), present=frozenset({0, 1, 2})))
    recorder.round(commit)
    recorder.finish(away=[2])
    return tmp_path / "run"


@pytest.mark.parametrize("is_waiting", [False, True])
def test_a_run_has_the_documented_fields(
    run_dir: Path, is_waiting: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    if is_waiting:
        RunRecorder(run_dir, 3, 9).waiting(["hospital-a"], ["peer 2"], 60)
    assert main(["status", str(run_dir), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    paths = schema.check(document)
    assert ("relay.waiting" in paths) is is_waiting
    if not is_waiting:
        assert document["relay"]["away"] == [
            "peer 2 was away at the end, after round 4 of 9, and has no model"
        ]


def test_a_node_and_a_connection_have_the_documented_fields(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    approval.note_contact(tmp_path)
    approval.approve(tmp_path, "0" * 64)
    with superlink(tmp_path / "secrets", days=20) as address:
        options = ["--superlink", address, "--root-certificates", str(tmp_path / "secrets/ca.crt")]
        assert main(["status", str(tmp_path), "--json", *options]) == 0
        document = json.loads(capsys.readouterr().out)
        assert main(["status", str(tmp_path), *options]) == 0
    schema.check(document)
    assert document["contact_at"] == pytest.approx(time.time(), abs=60)
    until = document["connection"]["certificate_until"]
    assert until == pytest.approx(time.time() + 20 * 86400, abs=2 * 3600)
    shown = capsys.readouterr().out
    assert re.search(r"certificate valid until 20\d\d-\d\d-\d\d, (19|20) days left: renew", shown)
    runs = [
        {"run-id": "1", "fab-id": "a/b", "status": "running", "elapsed": 1.5,
         "network-traffic": {"total-bytes": 7}},
    ]  # fmt: skip
    nodes = [{"node-id": 2**63, "status": "offline", "offline-at": "2026-01-01"}]
    schema.check(state.superlink(runs, nodes, document["connection"]))


def test_an_expired_certificate_is_explained(tmp_path: Path) -> None:
    """The relay's, seen with an authority that has not signed it, likewise."""
    certificates.for_relay(tmp_path / "other", ["localhost"], 9)
    with (
        superlink(tmp_path / "secrets", days=20) as address,
        pytest.raises(OSError, match=r"certificate of localhost:\d+ is not valid: .*; renew it"),
    ):
        probe.relay(address, tmp_path / "other" / "ca.crt")
    assert "days left" not in probe.certificate(time.time() + 31 * 86400)
    assert ", 29 days left: renew it" in probe.certificate(time.time() + 29.4 * 86400)


def test_metrics_are_the_numbers_of_the_json(run_dir: Path, tmp_path: Path) -> None:
    """Each number once, by its path; labels with quotes are escaped."""
    file = tmp_path / "coterie.prom"
    assert main(["status", str(run_dir), "--metrics", str(file)]) == 0
    assert os.stat(file).st_mode & 0o777 == 0o644
    document, lines = state.of_run(run_dir), file.read_text().splitlines()
    assert len({line.rpartition(" ")[0] for line in lines}) == len(lines), "no series twice"
    assert all(
        re.fullmatch(r'coterie_\w+\{(\w+="([^"\\]|\\.)*",?)*\} -?[\d.e+-]+', x) for x in lines
    )
    assert 'coterie_run_relay_status{status="finished"} 1' in lines
    assert 'coterie_run_relay_peers_state{peer="2",state="missing"} 1' in lines
    numbers = [
        value
        for path, value in schema.fields(document)
        if isinstance(value, int | float) and path != "relay.peers.peer"
    ]
    states = [
        value for path, value in schema.fields(document) if path.endswith(("status", "state"))
    ]
    assert len(states) == 4
    assert len(lines) == len(numbers) + len(states)
    assert f"coterie_run_relay_sealing_bytes{{}} {document['relay']['sealing_bytes']}" in lines


def test_letters_of_the_same_millisecond_are_no_metrics(tmp_path: Path) -> None:
    """A collector rejects a file with a series twice."""
    (tmp_path / "run" / "nodes" / "peer-0001").mkdir(parents=True)
    letter = {
        "time": "2026-01-01T00:00:00.000", "direction": "sent", "kind": "answer", "round": 7,
        "from": 1, "to": [2], "bytes": 9, "sealed": True, "verdict": "sent",
    }  # fmt: skip
    (tmp_path / "run" / "audit-0001.jsonl").write_text(2 * (json.dumps(letter) + "\n"))
    document = state.of_run(tmp_path / "run")
    assert len(document["letters"]) == 2
    assert list(state.metrics(document)) == []


@contextmanager
def superlink(secrets: Path, days: int) -> Iterator[str]:
    """Answer /health with a certificate of this validity."""
    certificates.for_relay(secrets, ["localhost"], days)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(secrets / "relay" / "server.crt", secrets / "relay" / "server.key")

    class Health(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("localhost", 0), Health) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"localhost:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
