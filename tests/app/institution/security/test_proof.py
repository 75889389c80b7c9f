"""Test that a peer belongs to the node with its key, not to the first node that claims it."""

from __future__ import annotations

from pathlib import Path

import pytest

from coterie.app.config.digest import config_digest_of
from coterie.app.config.schema import Scalar
from coterie.app.institution.security import trust
from coterie.app.institution.security.keys import PrivateKeys
from coterie.app.institution.security.proof import claim, proof
from coterie.app.institution.security.seal import Scope
from coterie.app.institution.security.trust import Entry
from coterie.strategies.protocol import Request, Response
from coterie.strategies.relay.broker import Broker
from coterie.strategies.relay.preflight import survey
from coterie.strategies.relay.vetting import fault_of
from tests.attacks.consortium import Institution, Relay, config_of, institutions
from tests.strategies.relay.runs import Notes

HERE = Scope("run", b"digest", "attempt")


@pytest.fixture(scope="module")
def keys() -> PrivateKeys:
    return PrivateKeys.generate()


def test_a_claim_is_good_for_its_peer_run_configuration_and_attempt_only(keys: PrivateKeys) -> None:
    theirs = {3: Entry("c", 3, keys.public), 4: Entry("d", 4, PrivateKeys.generate().public)}
    proves = proof(theirs, "run", b"digest")
    good = claim(3, HERE, keys)
    assert proves(3, good, "attempt")
    assert not proves(3, good, "another attempt")
    assert not proves(4, claim(4, HERE, keys), "attempt"), "signed by another peer"
    assert not proves(5, claim(5, HERE, keys), "attempt"), "a peer that the relay does not know"
    assert not proof(theirs, "another run", b"digest")(3, good, "attempt")
    assert not proof(theirs, "run", b"another configuration")(3, good, "attempt")
    assert not any(proves(3, bad, "attempt") for bad in (b"", good[:-1], good + b"x", bytes(64)))


def impostor_of(node: Institution, directory: Path) -> Institution:
    """Return a node that claims another node's peer, with new keys."""
    name = str(node.node_config["name"])
    private, public, _ = trust.create(name, directory, node.peer)
    config: dict[str, Scalar] = {
        "keys": str(private),
        "trust": str(public),
        "out": str(directory / "out"),
    }
    return Institution(node.peer, node.node_config | config, dict(node.run_config))


@pytest.mark.parametrize("checked", [True, False])
def test_an_impostor_that_comes_first_is_refused(checked: bool, tmp_path: Path) -> None:
    """S6: the peer's own node takes part; without a trust file the relay accepts the first node."""
    nodes = institutions(tmp_path)
    for node in nodes:
        node.run_config |= {"method": "fedavg", "num-server-rounds": 1}
    impostor = impostor_of(nodes[2], tmp_path / "impostor")
    config, known = config_of(nodes[0]), trust.read_trust(tmp_path / "keys" / "trust.toml")
    proves = proof(known, "run", config_digest_of(config)) if checked else None
    notes = Notes()
    Broker(
        config.strategy(), Relay([impostor, *nodes]), notes, join_timeout=5, deployed=True,
        proves=proves,
    ).run()  # fmt: skip
    (fault,) = notes.commits[0].faults
    trained = [node for node in (*nodes, impostor) if (node.home / "run" / "models").exists()]
    if checked:
        assert fault.endswith("claims peer 2 without the key that the relay trusts for it")
        assert trained == nodes
        assert notes.refused == []
    else:
        assert "node 3: claims peers [2] of another node" in fault
        assert trained == [nodes[0], nodes[1], impostor]


@pytest.mark.parametrize("checked", [True, False])
def test_a_preflight_counts_an_impostor_as_the_run_does(checked: bool, tmp_path: Path) -> None:
    nodes = institutions(tmp_path)
    impostor = impostor_of(nodes[2], tmp_path / "impostor")
    known = trust.read_trust(tmp_path / "keys" / "trust.toml")
    proves = proof(known, "run", config_digest_of(config_of(nodes[0]))) if checked else None
    result = survey(Relay([impostor, nodes[0], nodes[2]]), 3, proves)
    (fault,) = result.faults
    if checked:
        assert fault.endswith("claims peer 2 without the key that the relay trusts for it")
    else:
        assert "claims peers [2] of another node" in fault
    assert (set(result.peers), result.missing) == ({0, 2}, (1,))


def test_a_node_has_as_many_claims_as_peers() -> None:
    response = Response((0, 1), claims=(b"",))
    assert fault_of(response, Request("start", 0, 0), (), 2) == "has 1 claims for 2 peers"
