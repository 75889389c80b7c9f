"""Claims: signatures by which a node proves to the relay which peer it hosts.

The relay knows registered nodes by a transport key, which is not bound to peers. With the peers'
public keys in its own trust file, the relay accepts a node as that of a peer only if the node has
signed a claim with the peer's key. The claim is bound to the run, its configuration and the relay's
process, so that others cannot reuse it, now or later.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from cryptography.exceptions import InvalidSignature

from coterie.app.institution.security.keys import PrivateKeys
from coterie.app.institution.security.seal import Scope, framed
from coterie.app.institution.security.trust import Entry
from coterie.strategies.relay.roster import Proof

_PROTOCOL = b"coterie claim 1"


def claim(peer: int, scope: Scope, own: PrivateKeys) -> bytes:
    """Return a signature, 64 bytes, that this is the node of a peer."""
    return own.sign(_claimed(peer, scope))


def proof(trust: Mapping[int, Entry], run: str, config_digest: bytes) -> Proof:
    """Return the relay's verifier of claims; `trust` are the entries of the relay's trust file."""

    def proves(peer: int, signature: bytes, attempt: str) -> bool:
        claimed = _claimed(peer, Scope(run, config_digest, attempt))
        with suppress(InvalidSignature):
            if peer in trust:
                trust[peer].keys.verifier.verify(signature, claimed)
                return True
        return False

    return proves


def _claimed(peer: int, scope: Scope) -> bytes:
    return framed(_PROTOCOL, scope.run, scope.config_digest, scope.attempt, peer)
