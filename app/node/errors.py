"""Errors of a node."""

from __future__ import annotations

from coterie.errors import Error


class StateError(Error):
    """A request builds on a state that this node does not have; names peers, round or file."""
