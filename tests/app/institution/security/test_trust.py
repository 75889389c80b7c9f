"""Key files, trust files, and the commands that make them."""

from __future__ import annotations

import base64
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from coterie.app.cli.main import main
from coterie.app.config.config import Config
from coterie.app.institution.security.keys import PrivateKeys, PublicKeys
from coterie.app.institution.security.sealing import deployed, peer_of
from coterie.app.institution.security.trust import (
    Entry,
    KeysError,
    create,
    read_entries,
    read_private,
    read_trust,
)


@pytest.fixture
def trust(tmp_path: Path) -> Path:
    """Return the trust file of two hospitals, with their keys in the same folder."""
    path = tmp_path / "trust.toml"
    entries = [create(name, tmp_path, peer)[2] for peer, name in enumerate(("north", "south"))]
    path.write_text("\n".join(entry.toml() for entry in entries))
    return path


def test_private_keys_come_back_and_are_their_owner_s_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        private, public, entry = create("hospital-a", tmp_path, 3)
    finally:
        os.umask(before)
    assert private.stat().st_mode & 0o777 == 0o600
    keys = read_private(private)
    assert keys.public == entry.keys
    assert read_entries(public) == [entry]
    assert entry == Entry("hospital-a", 3, keys.public)
    assert keys.pem() not in public.read_bytes()


def test_keys_do_not_show_themselves() -> None:
    keys = PrivateKeys.generate()
    assert "Ed25519" not in repr(keys)
    assert repr(keys).startswith("<coterie.app.institution.security.keys.PrivateKeys object")


def test_fingerprints_tell_keys_apart() -> None:
    one, other = PrivateKeys.generate().public, PrivateKeys.generate().public
    assert one.fingerprint != other.fingerprint
    assert replace(one, seal=other.seal).fingerprint not in (one.fingerprint, other.fingerprint)
    assert bytes.fromhex(one.fingerprint.replace(" ", "")) == one.digest


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    private, public, _ = create("a", tmp_path)
    for gone, stays in ((public, private), (private, public)):
        content = stays.read_bytes()
        gone.unlink(missing_ok=True)
        with pytest.raises(KeysError, match=f"{stays} exists already"):
            create("a", tmp_path)
        assert stays.read_bytes() == content
        gone.touch()


@pytest.mark.parametrize("name", ["", "../a", "a b", "-a", "a/b", "x" * 65, "a\n"])
def test_a_name_is_a_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(KeysError, match="is not a valid name of a peer"):
        create(name, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("mode", [0o604, 0o640, 0o620])
def test_private_keys_open_to_others_are_refused(tmp_path: Path, mode: int) -> None:
    private, _, _ = create("a", tmp_path)
    private.chmod(mode)
    with pytest.raises(KeysError, match="chmod 600"):
        read_private(private)


@pytest.mark.parametrize("mode", [0o646, 0o664])
def test_a_trust_file_that_others_may_write_is_refused(tmp_path: Path, mode: int) -> None:
    trust = tmp_path / "trust.toml"
    trust.touch()
    trust.chmod(mode)
    with pytest.raises(KeysError, match="chmod go-w"):
        read_trust(trust)


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
def test_keys_in_a_folder_that_others_may_write_to_are_refused(mode: int, tmp_path: Path) -> None:
    """There they could be exchanged for others; one folder further up as well."""
    folder = tmp_path / "open" / "keys"
    private, public, _ = create("a", folder, 0)
    read_private(private)
    for opened in (folder, folder.parent):
        opened.chmod(mode)
        for read, file in ((read_private, private), (read_trust, public)):
            with pytest.raises(KeysError, match=f"write to the folder {opened}: chmod go-w"):
                read(file)
        opened.chmod(0o1777)  # sticky, like /tmp: users cannot replace others' files
        read_private(private)
        opened.chmod(0o755)


def test_the_folder_that_a_link_leads_to_counts_too(tmp_path: Path) -> None:
    folder, link = tmp_path / "open", tmp_path / "link.toml"
    _, public, _ = create("a", folder, 0)
    link.symlink_to(public)
    read_trust(link)
    folder.chmod(0o777)
    with pytest.raises(KeysError, match="write to the folder"):
        read_trust(link)


@pytest.mark.skipif(os.geteuid() != 0, reason="chown needs root")
def test_who_owns_a_file_a_folder_or_a_link_could_change_it(tmp_path: Path) -> None:
    """Mode bits do not say so: an owner may chmod. OpenSSH's rule: root or this user."""
    folder, link = tmp_path / "far" / "near", tmp_path / "link.toml"
    private, public, _ = create("a", folder, 0)
    link.symlink_to(folder.parent / "near" / public.name)
    for owned in (private, public, folder, folder.parent, link):
        os.chown(owned, 12345, -1, follow_symlinks=False)
        reads = {private: (read_private, private), public: (read_trust, public)}
        for read, file in [reads.get(owned, (read_trust, link))]:
            with pytest.raises(KeysError, match=f"user 12345 owns {owned} and could change it"):
                read(file)
        os.chown(owned, 0, -1, follow_symlinks=False)
    read_trust(link)


@pytest.mark.parametrize("content", [b"", b"nothing", b"-----BEGIN PRIVATE KEY-----"])
def test_private_keys_that_are_none(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.key"
    path.touch(0o600)
    path.write_bytes(content)
    with pytest.raises(KeysError, match=r"private keys .*a.key: not an Ed25519"):
        read_private(path)
    with pytest.raises(KeysError, match=r"private keys .*b.key: No such file"):
        read_private(tmp_path / "b.key")


def test_blocks_in_another_order_are_refused(tmp_path: Path) -> None:
    private, _, _ = create("a", tmp_path)
    first, second, third = private.read_bytes().split(b"-----BEGIN PRIVATE KEY-----\n")[1:]
    begin = b"-----BEGIN PRIVATE KEY-----\n"
    private.write_bytes(b"".join(begin + block for block in (third, second, first)))
    with pytest.raises(KeysError, match="not an Ed25519"):
        read_private(private)


def test_a_trust_file_says_who_is_who(trust: Path) -> None:
    known = read_trust(trust)
    assert {peer: entry.name for peer, entry in known.items()} == {0: "north", 1: "south"}
    assert peer_of({"name": "south", "trust": str(trust)}) == 1
    assert peer_of({"name": "south"}) is None
    with pytest.raises(KeysError, match=r"no entry \[west\]"):
        peer_of({"name": "west", "trust": str(trust)})


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("peer = 1", "peer = 0", "north and south are both peer 0"),
        ("peer = 1\n", "", r"\[south\] has no number: add peer = K"),
        ("peer = 1", "peer = -1", r"\[south\] peer = -1 is not a valid number"),
        ("peer = 1", "peer = true", r"\[south\] peer = True is not a valid number"),
        ("peer = 1", "role = 1", r"\[south\] needs sign and seal"),
        ('sign = "', 'sign = "A', r"\[north\] sign is not the base64 of 32 bytes"),
        ('seal = "', 'seal = "!', r"\[north\] seal is not the base64 of 1216 bytes"),
        ("[north]", "[north", "is not TOML"),
        ("[north]", f"deep = {'[' * 5000}", "is not TOML"),
        ("[north]", "['no name']", "is not a valid name of a peer"),
    ],
)
def test_a_trust_file_that_is_wrong(trust: Path, old: str, new: str, why: str) -> None:
    trust.write_text(trust.read_text().replace(old, new, 1))
    with pytest.raises(KeysError, match=why):
        read_trust(trust)


def test_keys_of_two_peers_are_not_the_same(trust: Path) -> None:
    north, south = read_trust(trust).values()
    for keys in (PublicKeys(north.keys.sign, south.keys.seal), north.keys):
        trust.write_text(north.toml() + replace(south, keys=keys).toml())
        with pytest.raises(KeysError, match="north and south have the same keys"):
            read_trust(trust)


def test_a_key_that_is_no_point_or_no_lattice_vector_is_refused(trust: Path) -> None:
    north, wrong = read_trust(trust)[0], b"\xff" * 1216
    with pytest.raises(ValueError, match="key"):
        PublicKeys(north.keys.sign, wrong)
    seal, none = (base64.b64encode(key).decode() for key in (north.keys.seal, wrong))
    trust.write_text(north.toml().replace(seal, none))
    with pytest.raises(KeysError, match=r"\[north\] has an invalid key"):
        read_trust(trust)


# --- who seals ---------------------------------------------------------------------------------


def wanting(sealing: bool | str) -> Config:
    return Config.from_flat({"sealing": sealing})


def test_a_deployed_node_with_keys_seals_and_one_without_does_not_take_part(trust: Path) -> None:
    keys = {"keys": str(trust.with_name("north.key")), "trust": str(trust)}
    for how in ("auto", True):
        sealing = deployed(wanting(how), keys, 0)
        private, trusted = sealing.read()
        assert sealing.audited
        assert private[0].public == trusted[0].keys
        with pytest.raises(KeysError, match="coterie keys new NAME"):
            deployed(wanting(how), {}, 0)
    with pytest.raises(KeysError, match="coterie keys new NAME"):
        deployed(wanting(False), {}, 0)
    assert deployed(wanting(False), {}, 0, required=False).keys == ()


def test_the_run_cannot_make_a_node_that_seals_send_plain_letters(trust: Path) -> None:
    keys = {"keys": str(trust.with_name("north.key")), "trust": str(trust)}
    with pytest.raises(KeysError, match="takes no part in a run with sealing = false"):
        deployed(wanting(False), keys, 0, required=False)
    for half in ("keys", "trust"):
        for sealing in ("auto", True, False):
            with pytest.raises(KeysError, match='keys="FILE" and trust="FILE"'):
                deployed(wanting(sealing), {half: keys[half]}, 0)


def test_a_node_whose_own_entry_is_somebody_else_s_is_told_so(trust: Path) -> None:
    keys = {"keys": str(trust.with_name("north.key")), "trust": str(trust)}
    with pytest.raises(KeysError, match=r"\[south\] is peer 1, but not the public half of .*north"):
        deployed(wanting("auto"), keys, 1).read()


# --- coterie keys -----------------------------------------------------------------------


def test_from_new_keys_to_a_trust_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, file = str(tmp_path / "keys"), str(tmp_path / "trust.toml")
    assert main(["keys", "new", "hospital-a", "--out", folder]) == 0
    assert main(["keys", "new", "hospital-b", "--peer", "1", "--out", folder]) == 0
    made = capsys.readouterr().out
    public = [str(tmp_path / "keys" / f"hospital-{x}.pub.toml") for x in "ab"]
    assert main(["keys", "trust", public[0], "--peer", "0", "--file", file, "--yes"]) == 0
    assert main(["keys", "trust", public[1], "--file", file, "--yes"]) == 0
    shown = capsys.readouterr().out
    known = read_trust(Path(file))
    assert {peer: entry.name for peer, entry in known.items()} == {0: "hospital-a", 1: "hospital-b"}
    for entry in known.values():
        assert entry.keys.fingerprint in made
        assert entry.keys.fingerprint in shown


def test_new_keys_replace_the_old_ones_with_one_command(
    trust: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = read_trust(trust)
    ((peer, old),) = (each for each in before.items() if each[1].name == "north")
    _, public, new = create("north", tmp_path / "new")  # without its number
    line = ["keys", "trust", str(public), "--file", str(trust)]
    assert main([*line, "--yes"]) == 2
    assert "add --replace if that peer has new keys" in capsys.readouterr().err
    assert main([*line, "--replace", "--yes"]) == 0
    shown = capsys.readouterr().out
    assert f"old keys of north (peer {peer}): {old.keys.fingerprint}" in shown
    assert f"new keys of north (peer {peer}): {new.keys.fingerprint}" in shown
    assert read_trust(trust) == {**before, peer: replace(old, keys=new.keys)}


@pytest.mark.parametrize("answer", ["yes", "no", ""])
def test_fingerprints_are_shown_and_confirmed_before_keys_are_trusted(
    answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    _, public, entry = create("north", tmp_path, 0)
    file, seen = tmp_path / "trust.toml", list[str]()

    def asked(question: str) -> str:
        seen.append(capsys.readouterr().out + question)
        return answer

    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", asked)
    assert main(["keys", "trust", str(public), "--file", str(file)]) == (
        0 if answer == "yes" else 2
    )
    assert seen[0].startswith(f"north (peer 0): {entry.keys.fingerprint}\nCompare the fingerprints")
    assert file.exists() == (answer == "yes")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["trust", "d.pub.toml"], "no terminal to ask; compare the fingerprints"),
        (["trust", "d.pub.toml", "--replace"], r"has no entry \[d\] to replace"),
        (["trust", "a.pub.toml"], r"\[a\] has no number"),
        (["trust", "a.pub.toml", "b.pub.toml", "--peer", "2"], "is for one peer, not 2"),
        (["trust", "c.pub.toml"], "north and c are both peer 0"),
        (["trust", "north.pub.toml"], r"has an entry \[north\] already"),
        (["trust", "nowhere.toml"], "nowhere.toml: No such file"),
        (["new", "a"], "a.key exists already"),
        (["new", "e", "--peer", "-1"], "peers are numbered from 0"),
    ],
)
def test_a_command_that_is_refused_changes_nothing(
    arguments: list[str],
    why: str,
    trust: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, peer in (("a", None), ("b", None), ("c", 0), ("d", 7)):
        create(name, tmp_path, peer)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    monkeypatch.chdir(tmp_path)
    where = ["--out", "."] if arguments[0] == "new" else []
    assert main(["keys", *arguments, *where]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert re.search(why, message)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_peer_that_leaves_is_no_longer_trusted(
    trust: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stays, leaves = read_entries(trust)
    assert main(["keys", "distrust", leaves.name, "--file", str(trust)]) == 0
    assert f"no longer trusts {leaves.name}" in capsys.readouterr().out.replace("\n", " ")
    assert read_entries(trust) == [stays]
    assert main(["keys", "distrust", leaves.name, "--file", str(trust)]) == 2
    assert f"has no entry [{leaves.name}]" in capsys.readouterr().err
