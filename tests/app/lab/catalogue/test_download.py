"""Downloads from an HTTPS server of this machine: what differs from the catalogue is refused."""

from __future__ import annotations

import datetime
import hashlib
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from coterie.app.lab.catalogue.download import download, read
from coterie.app.lab.catalogue.sets import File
from coterie.datasets.problem import DataError

CONTENT = b"hospital,age\na,1\n"
ENDLESS = 1 << 40


class Answers(BaseHTTPRequestHandler):
    """Answers by path."""

    def do_GET(self) -> None:
        place, _, target = self.path.partition("?")
        if place == "/redirect":
            self.send_response(302)
            self.send_header("Location", target)
            self.end_headers()
        elif place == "/missing":
            self.send_error(404)
        elif place == "/truncated":
            self.start(len(CONTENT))
            self.wfile.write(CONTENT[:-1])
        elif place == "/endless":
            self.start(ENDLESS)
            try:
                for _ in range(ENDLESS):
                    self.wfile.write(bytes(1 << 16))
            except OSError:
                self.close_connection = True  # the client stopped reading
        else:
            body = CONTENT if place == "/data.csv" else CONTENT.upper()
            self.start(len(body))
            self.wfile.write(body)

    def start(self, size: int) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of 127.0.0.1 with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    path = tmp_path_factory.mktemp("certificate") / "server.pem"
    plain = serialization.NoEncryption()
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    path.write_bytes(made.public_bytes(pem) + secret)
    return path


@pytest.fixture
def server(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a server whose certificate this machine trusts."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as web:
        web.socket = context.wrap_socket(web.socket, server_side=True)
        web.daemon_threads = True
        thread = threading.Thread(target=web.serve_forever, args=(0.01,))
        thread.start()
        yield f"https://127.0.0.1:{web.server_address[1]}"
        web.shutdown()
        thread.join()


def file_at(url: str) -> File:
    return File(url, hashlib.sha256(CONTENT).hexdigest(), len(CONTENT))


def test_the_published_file_is_returned(server: str) -> None:
    assert download(file_at(f"{server}/data.csv")) == CONTENT
    assert download(file_at(f"{server}/redirect?{server}/data.csv")) == CONTENT


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/changed.csv", r"SHA-256 \w{64}, expected \w{64}: .* nothing was written"),
        ("/truncated", f"{len(CONTENT) - 1} bytes, expected {len(CONTENT)}"),
        ("/endless", f"more than {len(CONTENT)} bytes"),
        ("/missing", r"the download failed \(Not Found\).*--from FOLDER"),
        ("/redirect?http://127.0.0.1/data.csv", "redirected to http://127.0.0.1/data.csv"),
        (
            "/redirect?ftp://127.0.0.1/data.csv",
            "redirected to ftp://127.0.0.1/data.csv, which is not",
        ),
        ("/redirect?file:///etc/passwd", "not allowed"),
    ],
)
def test_another_answer_is_refused(server: str, path: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        download(file_at(f"{server}{path}"))


def test_an_unknown_certificate_is_refused(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(DataError, match="certificate verify failed"):
        download(file_at(f"{server}/data.csv"))


@pytest.mark.parametrize("scheme", ["http", "ftp", "file"])
def test_other_schemes_are_refused(scheme: str) -> None:
    with pytest.raises(DataError, match=f"{scheme}://.*not https"):
        download(file_at(f"{scheme}://127.0.0.1/data.csv"))


def test_a_file_from_a_folder_is_checked_too(tmp_path: Path) -> None:
    file = file_at("https://example.org/data.csv")
    with pytest.raises(DataError, match=r"data.csv: No such file.*https://example.org/data.csv"):
        read(tmp_path, file)
    (tmp_path / "data.csv").write_bytes(CONTENT)
    assert read(tmp_path, file) == CONTENT
    (tmp_path / "data.csv").write_bytes(CONTENT.upper())
    with pytest.raises(DataError, match="SHA-256"):
        read(tmp_path, file)
