"""Test keys and certificates: TLS clients accept them, unknown nodes are refused, keys are kept."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from coterie.app.cli.main import main
from coterie.app.config.config import ConfigError
from coterie.app.institution.commands import certificates


def handshake(relay: Path, authority: Path, name: str) -> str | None:
    """Talk TLS to a server with the relay's certificate; the version, or raise."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(relay / "server.crt", relay / "server.key")
    client = ssl.create_default_context(cafile=str(authority))
    near, far = socket.socketpair()

    def serve() -> None:
        try:
            with server.wrap_socket(far, server_side=True) as stream:
                stream.recv(1)
        except (ssl.SSLError, OSError):  # the client hung up: it says why
            far.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client.wrap_socket(near, server_hostname=name) as stream:
            return stream.version()
    finally:
        near.close()
        thread.join()


@pytest.mark.parametrize("name", ["relay", "relay.example.org", "127.0.0.1"])
def test_a_client_that_knows_the_authority_believes_the_relay(tmp_path: Path, name: str) -> None:
    certificates.for_relay(tmp_path, ["relay", "relay.example.org", "127.0.0.1"], days=1)
    assert handshake(tmp_path / "relay", tmp_path / "ca.crt", name) == "TLSv1.3"


def test_another_name_or_another_authority_is_refused(tmp_path: Path) -> None:
    certificates.for_relay(tmp_path / "ours", ["relay"], days=1)
    certificates.for_relay(tmp_path / "theirs", ["relay"], days=1)
    for authority, name in (("ours", "elsewhere"), ("theirs", "relay")):
        with pytest.raises(ssl.SSLCertVerificationError):
            handshake(tmp_path / "ours" / "relay", tmp_path / authority / "ca.crt", name)


def test_a_renewed_certificate_has_the_same_authority(tmp_path: Path) -> None:
    certificates.for_relay(tmp_path, ["old"], days=1)
    authority = (tmp_path / "ca.crt").read_bytes()
    certificates.for_relay(tmp_path, ["new"], days=1)
    assert (tmp_path / "ca.crt").read_bytes() == authority
    assert handshake(tmp_path / "relay", tmp_path / "ca.crt", "new")


def test_a_node_has_a_key_that_flower_reads_and_keeps_it(tmp_path: Path) -> None:
    public = certificates.for_node(tmp_path, "hospital-a")
    private = serialization.load_ssh_private_key((public.parent / "node.key").read_bytes(), None)
    known = serialization.load_ssh_public_key(public.read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(known, ec.EllipticCurvePublicKey)
    assert private.curve.name == "secp384r1"
    assert private.public_key() == known
    before = {path.name: path.read_bytes() for path in public.parent.iterdir()}
    certificates.for_relay(tmp_path, ["relay"], days=1)
    certificates.for_node(tmp_path, "hospital-a")
    after = {path.name: path.read_bytes() for path in public.parent.iterdir()}
    assert after == before | {"ca.crt": (tmp_path / "ca.crt").read_bytes()}


def test_secrets_are_readable_by_their_owner_only_and_differ(tmp_path: Path) -> None:
    certificates.for_relay(tmp_path, ["relay"], days=1)
    for node in ("hospital-a", "hospital-b"):
        certificates.for_node(tmp_path, node)
    private = [path for path in tmp_path.rglob("*") if path.suffix in (".key", ".secret")]
    assert len(private) == 1 + 2 + 2 * 2
    assert all(path.stat().st_mode & 0o077 == 0 for path in private)
    assert len({path.read_bytes() for path in private}) == len(private)


def test_folders_are_private_whatever_the_umask(tmp_path: Path) -> None:
    secrets, keys = tmp_path / "a" / "secrets", tmp_path / "b" / "keys"
    before = os.umask(0)
    try:
        nodes = ["--hosts", "relay", "--nodes", "hospital-a"]
        assert main(["certificates", str(secrets), *nodes]) == 0
        assert main(["keys", "new", "hospital-a", "--out", str(keys)]) == 0
        assert main(["policy", "init", str(tmp_path / "c" / "policy.toml")]) == 0
    finally:
        os.umask(before)
    made = [secrets.parent, secrets, *secrets.iterdir()]
    assert {path.stat().st_mode & 0o777 for path in made if path.is_dir()} == {0o700}
    open_to_read = keys, keys.parent, tmp_path / "c"
    assert {path.stat().st_mode & 0o777 for path in open_to_read} == {0o755}


@pytest.mark.parametrize("name", ["relay", "../elsewhere", "a/b", "ca.key"])
def test_a_node_may_not_take_the_place_of_another_file(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be called"):
        certificates.for_node(tmp_path, name)


@pytest.mark.parametrize(
    "host",
    ["relay.example.org:9092", "https://relay.example.org", "[::1]", "*.example.org", "a b", "",
     "relay.example.org/", "192.0.2.300", "0.0.0.0", "fe80::1%eth0", "relay.", "münchen.de"],
)  # fmt: skip
def test_hosts_that_no_node_can_verify_are_refused(host: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--hosts .*: write "):
        certificates.for_relay(tmp_path / "c", ["localhost", host], 9)
    assert not (tmp_path / "c").exists()


def test_a_public_key_that_was_sent_is_registered_and_never_overwritten(tmp_path: Path) -> None:
    """The relay's operator has the node.pub of a hospital, and nothing else of it."""
    made = certificates.for_node(tmp_path / "hospital", "hospital-a").read_bytes()
    home = tmp_path / "relay" / "hospital-a"
    home.mkdir(parents=True)
    (home / "node.pub").write_bytes(made)
    assert certificates.for_node(tmp_path / "relay", "hospital-a").read_bytes() == made
    assert not (home / "node.key").exists()
    (home / "node.pub").unlink()
    key = tmp_path / "hospital" / "hospital-a" / "node.key"
    (home / "node.key").write_bytes(key.read_bytes())
    assert certificates.for_node(tmp_path / "relay", "hospital-a").read_bytes() == made
    other = certificates.for_node(tmp_path / "other", "hospital-a").read_bytes()
    for content, why in ((other, "is not the public key of"), (b"ssh-rsa x", "is not a node")):
        (home / "node.pub").write_bytes(content)
        with pytest.raises(ConfigError, match=why):
            certificates.for_node(tmp_path / "relay", "hospital-a")
