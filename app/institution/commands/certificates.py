"""`coterie certificates`: keys and certificates of a deployment's transport.

Writes one directory per machine, with the files that the machine needs:

    DIRECTORY/ca.key                    signs the relay's certificate; stays on this machine
    DIRECTORY/relay/                    ca.crt, server.crt, server.key, superexec.secret
    DIRECTORY/<node>/                   ca.crt, node.key, node.pub, superexec.secret

Letters are encrypted with other keys, which their owners make and exchange: see
`coterie.app.institution.security.keys`.
"""

from __future__ import annotations

import argparse
import ipaddress
import re
import secrets
import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from rich.console import Console

from coterie.app.config.keys import ConfigError
from coterie.app.institution.security.files import closed
from coterie.app.runners.superlink import ask
from coterie.app.runs import atomic
from coterie.errors import FlowerError
from coterie.strategies.names import RULE, is_name

_CA_DAYS = 3650
_CURVE = ec.SECP384R1  # required by Flower for SuperNodes; TLS uses it too
_LABEL = r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)"
_NAME = re.compile(rf"(?=.{{1,253}}$)({_LABEL}\.)*(?!\d+$){_LABEL}")
_OVERLAP = timedelta(hours=1)  # clocks differ


def execute(parser: argparse.ArgumentParser, arguments: list[str], console: Console) -> None:
    """Make keys and certificates for TLS and SuperNode authentication."""
    parser.add_argument("directory", type=Path)
    parser.add_argument("--hosts", nargs="+", help="names and addresses of the relay")
    parser.add_argument("--nodes", nargs="+", default=[], help="names of SuperNodes")
    parser.add_argument("--days", type=int, default=365, help="validity of the certificate (365)")
    parser.add_argument("--register", metavar="CONNECTION", help="SuperLink to register nodes at")
    options = parser.parse_args(arguments)
    if not options.hosts and not options.nodes:
        raise ConfigError("certificates: name the relay's --hosts, or --nodes, or both")
    with closed():
        if options.hosts:
            for_relay(options.directory, options.hosts, options.days)
            relay = options.directory / "relay"
            console.print(f"{relay}: certificate for {', '.join(options.hosts)}")
        for node in options.nodes:
            public = for_node(options.directory, node)
            made_elsewhere = "" if (public.parent / "node.key").exists() else ", made elsewhere"
            console.print(f"{public.parent}: key of {node}{made_elsewhere}")
            if options.register:
                console.print(register(public, options.register))


def for_relay(directory: Path, hosts: Sequence[str], days: int, home: Path | None = None) -> None:
    """Make a certificate for the relay's `hosts`, and its authority unless there is one."""
    if days < 1:
        raise ConfigError(f"--days {days}: must be at least 1")
    names = [_host(host) for host in hosts]
    authority_key, authority = _authority(directory)
    key = ec.generate_private_key(_CURVE())
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    certificate = (
        _unsigned(hosts[0], key.public_key(), authority.subject, days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(usage, critical=False)
        .add_extension(identifier, critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    relay = home or directory / "relay"
    relay.mkdir(exist_ok=True)
    _write_private(relay / "server.key", _pem(key))
    atomic.write(relay / "server.crt", certificate.public_bytes(serialization.Encoding.PEM))
    _secret(directory, relay)


def for_node(directory: Path, name: str, home: Path | None = None) -> Path:
    """Make the key of a SuperNode unless it exists (made elsewhere: a public file alone)."""
    if not is_name(name) or name in ("relay", "ca.crt", "ca.key"):
        raise ConfigError(f'a node cannot be called "{name}": use {RULE}, and not "relay"')
    home = home or directory / name
    home.mkdir(parents=True, exist_ok=True)
    public, private = home / "node.pub", home / "node.key"
    known = _public_of(public) if public.exists() else None
    if private.exists() or known is None:
        if private.exists():
            key = serialization.load_ssh_private_key(private.read_bytes(), None)
            assert isinstance(key, ec.EllipticCurvePrivateKey)
        else:
            key = ec.generate_private_key(_CURVE())
            _write_private(private, _pem(key, serialization.PrivateFormat.OpenSSH))
        if known is None:
            openssh = key.public_key().public_bytes(
                serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
            )
            atomic.write(public, openssh + f" {name}\n".encode())
        elif known != key.public_key():
            raise ConfigError(f"{public} is not the public key of {private}: remove the wrong one")
    _secret(directory, home)
    return public


def _public_of(path: Path) -> ec.EllipticCurvePublicKey:
    try:
        known = serialization.load_ssh_public_key(path.read_bytes())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{path} is not a node's public key: {error}") from None
    if not isinstance(known, ec.EllipticCurvePublicKey) or not isinstance(known.curve, _CURVE):
        raise ConfigError(f"{path} is not a node's public key: Flower reads {_CURVE.name} only")
    return known


def register(public: Path, connection: str) -> str:
    """Register the key of a SuperNode; return Flower's answer, ConfigError if it refuses."""
    name = public.parent.name
    try:
        ask("supernode", "register", str(public), connection, "--name", name)
    except FlowerError as error:
        if "already in use" not in str(error):
            raise ConfigError(f"{name} could not be registered: {error}") from None
        return (
            f"{name}: this key was registered before; if it was unregistered since, it cannot come "
            f"back: remove {public} and node.key beside it, make new ones, and register these"
        )
    return f"{name} is registered"


def _authority(directory: Path) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    path = directory / "ca.key"
    if path.exists():
        key = serialization.load_pem_private_key(path.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return key, x509.load_pem_x509_certificate((directory / "ca.crt").read_bytes())
    directory.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(_CURVE())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Coterie deployment")])
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _unsigned("Coterie deployment", key.public_key(), name, _CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    atomic.write(directory / "ca.crt", certificate.public_bytes(serialization.Encoding.PEM))
    _write_private(path, _pem(key))
    return key, certificate


def _unsigned(
    name: str, key: ec.EllipticCurvePublicKey, issuer: x509.Name, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _OVERLAP)
        .not_valid_after(now + timedelta(days=days))
    )


def _host(host: str) -> x509.GeneralName:
    if not host.isascii():
        raise ConfigError(f"--hosts {host}: write the name in ASCII (xn--...)")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if _NAME.fullmatch(host):
            return x509.DNSName(host)
    else:
        if not address.is_unspecified and "%" not in host:
            return x509.IPAddress(address)
    raise ConfigError(
        f"--hosts {host}: write a name or address by which nodes reach the relay, such as "
        "relay.example.org, 192.0.2.1 or ::1, without https://, port, path, brackets or *"
    )


def _secret(directory: Path, home: Path) -> None:
    """Write an executor's token for its SuperLink or SuperNode, and copy the authority if known."""
    if home != directory and (directory / "ca.crt").exists():
        shutil.copyfile(directory / "ca.crt", home / "ca.crt")
    path = home / "superexec.secret"
    if not path.exists():
        _write_private(path, secrets.token_bytes(32))


def _pem(
    key: ec.EllipticCurvePrivateKey,
    form: serialization.PrivateFormat = serialization.PrivateFormat.PKCS8,
) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _write_private(path: Path, content: bytes) -> None:
    with closed():
        atomic.write(path, content)
