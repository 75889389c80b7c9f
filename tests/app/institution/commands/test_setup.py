"""Test the files of coterie setup, the exchange of one file each way, and what it refuses."""

from __future__ import annotations

import re
import shutil
import stat
from pathlib import Path

import pytest

from coterie.app.cli.main import main
from coterie.app.institution.commands import setup
from coterie.app.institution.commands.preflight import node_config
from coterie.app.institution.security.trust import read_private, read_trust

POLICY = ["approval=none", "data.sets=digits", "methods=fedavg"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install no app, which takes seconds of Flower; the machines of test_units.py do."""
    monkeypatch.setattr(setup, "_app", lambda home: "coterie.coterie.1")
    monkeypatch.setattr(setup, "_PORT", 9)  # nobody listens
    monkeypatch.setattr(setup, "_PRIVATE", ())  # there may be no user coterie


def member(home: Path, name: str, peer: int, *more: str) -> Path:
    call = ["setup", "member", str(home), *POLICY, "--name", name, "--peer", str(peer), *more]
    assert main(call) == 0
    return home / f"{name}.pub.toml"


def joined(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Return the directories of two members and a relay that have exchanged their files."""
    homes = tmp_path / "a", tmp_path / "b", tmp_path / "relay"
    public = [member(homes[0], "hospital-a", 0), member(homes[1], "hospital-b", 1)]
    call = ["setup", "relay", str(homes[2]), *map(str, public), "--hosts", "relay.example.org"]
    assert main(call) == 0
    for home in homes[:2]:
        shutil.copy(homes[2] / "consortium.toml", tmp_path)
        assert main(["setup", "member", str(home), str(tmp_path / "consortium.toml"), "--yes"]) == 0
    return homes


def test_one_file_each_way_makes_all_trust_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b, relay = joined(tmp_path)
    prints = set(re.findall(r"(?:[0-9a-f]{4} ){15}[0-9a-f]{4}", capsys.readouterr().out))
    assert len(prints) == 1, "the relay and both members read the same fingerprint"
    assert read_trust(a / "trust.toml") == read_trust(b / "trust.toml")
    assert read_trust(a / "trust.toml") == read_trust(relay / "peers.toml")
    for peer, home in enumerate((a, b)):
        assert (
            read_trust(home / "trust.toml")[peer].keys == read_private(home / "letters.key").public
        )
        assert (home / "ca.crt").read_bytes() == (relay / "ca.crt").read_bytes()
        assert "RELAY=relay.example.org:9" in (home / "node.env").read_text()
    for key in ("letters.key", "node.key", "superexec.secret"):
        assert stat.S_IMODE((a / key).stat().st_mode) == 0o600
    for key in ("ca.key", "server.key", "superexec.secret"):
        assert stat.S_IMODE((relay / key).stat().st_mode) == 0o600


def test_files_name_this_machine_and_stay_when_it_is_set_up_again(tmp_path: Path) -> None:
    home, data = tmp_path / "of-hospital-a", tmp_path / "patients"
    public = member(home, "hospital-x", 3, "--data", str(data))
    before = {
        name: (home / name).read_bytes() for name in ("letters.key", "node.key", "policy.toml")
    }
    env = home / "node.env"
    env.write_text(env.read_text().replace('out="', 'device="cpu" threads=2 out="'))
    assert main(["setup", "member", str(home)]) == 0
    assert main(["setup", "member", str(home), "methods=local"]) == 2
    assert before == {name: (home / name).read_bytes() for name in before}
    assert public.exists()
    (line,) = re.findall("NODE_CONFIG='(.*)'", (home / "node.env").read_text())
    config = node_config(line)
    assert config["name"] == "hospital-x"
    assert config["data-dir"] == str(data)
    assert (config["device"], config["threads"]) == ("cpu", 2), "keys of this machine stay"
    assert all(str(config[key]).startswith(f"{home}/") for key in ("keys", "trust", "policy"))
    texts = [path.read_text() for path in home.rglob("*") if path.suffix in (".service", ".env")]
    assert len(texts) == 4
    assert not [text for text in texts if "/opt/coterie" in text]


def test_a_member_refuses_a_file_in_which_it_has_other_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The relay, or somebody on the way, put keys of its own in the place of a member's."""
    a, b, relay = joined(tmp_path)
    before = (a / "trust.toml").read_bytes()
    text = (relay / "consortium.toml").read_text()
    keys = re.findall('sign = "(.*)"', text)
    for forged in (
        text.replace(keys[0], keys[1]),
        text.replace("[members.hospital-a]", "[members.x]"),
    ):
        (tmp_path / "forged.toml").write_text(forged)
        assert main(["setup", "member", str(a), str(tmp_path / "forged.toml"), "--yes"]) == 2
        assert "has other keys of hospital-a than" in capsys.readouterr().err
    assert (a / "trust.toml").read_bytes() == before
    assert main(["setup", "member", str(b), str(relay / "consortium.toml")]) == 2
    assert "not trusted: no terminal to ask" in capsys.readouterr().err


def test_a_relay_s_address_is_no_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shell reads node.env, as the user of the node: the relay may not write commands there."""
    a, _, relay = joined(tmp_path)
    text, before = (relay / "consortium.toml").read_text(), (a / "node.env").read_text()
    for forged in ("$(id):9092", "relay:9092\\nPATH=/tmp", "relay:9092; id", "relay", "a b:1"):
        (tmp_path / "f.toml").write_text(text.replace("relay.example.org:9", forged))
        assert main(["setup", "member", str(a), str(tmp_path / "f.toml"), "--yes"]) == 2
        assert "is not HOST:PORT" in capsys.readouterr().err
    assert (a / "node.env").read_text() == before


def test_the_fingerprint_covers_every_byte_that_a_member_takes(tmp_path: Path) -> None:
    _, _, relay = joined(tmp_path)
    file = relay / "consortium.toml"
    text, printed = file.read_text(), setup._fingerprint(file)
    for part in (
        "relay.example.org",
        "BEGIN CERT",
        "peer = 1",
        re.findall('node = ".*(.)"', text)[1],
    ):
        file.write_text(text.replace(part, part[:-1] + "Z", 1))
        assert setup._fingerprint(file) != printed


def test_another_version_and_new_or_gone_members_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _, relay = joined(tmp_path)
    third = member(tmp_path / "c", "hospital-c", 2)
    assert main(["keys", "distrust", "hospital-b", "--file", str(relay / "peers.toml")]) == 0
    assert main(["setup", "relay", str(relay), str(third)]) == 0
    capsys.readouterr()
    call = ["setup", "member", str(a), str(relay / "consortium.toml"), "--yes"]
    assert main(call) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"peer 0: hospital-a: as before", "peer 2: hospital-c: new"} <= {*lines}
    assert "hospital-b: no member any more" in lines
    monkeypatch.setattr(setup, "_app", lambda home: "coterie.coterie.2")
    assert main(call) == 2
    assert "the relay has the app coterie.coterie.1, this machine coterie.coterie.2" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("relay made", "--hosts are the names"),
        ("relay made --name a --hosts b", "setup relay: --name is not for it"),
        ("member made", "--name and --peer (from 0) say which member"),
        ("member made --name a --peer -1", "--name and --peer (from 0) say which member"),
        ("member made --hosts b", "setup member: --hosts is not for it"),
    ],
)
def test_what_is_missing_or_foreign_is_said(
    arguments: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["setup", *arguments.split()]) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.key"))
