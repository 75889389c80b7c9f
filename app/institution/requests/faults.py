"""Error codes that a deployed node sends to the relay: messages could disclose data."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from coterie.app.config.config import ConfigError
from coterie.app.institution.requests.vetting import RequestError
from coterie.app.institution.security.approval import ApprovalError
from coterie.app.institution.security.journal import LedgerError
from coterie.app.institution.security.policy import PolicyError
from coterie.app.institution.security.seal import SealError
from coterie.app.institution.security.trust import KeysError
from coterie.app.runs.atomic import BusyError, DamagedError
from coterie.datasets.problem import DataError
from coterie.errors import Error
from coterie.strategies.errors import StateError, WireError

MEANINGS: Mapping[str, str] = {
    "approval": "the run waits for a person's approval here",
    "budget": "the request exceeds the limits of the institution's policy",
    "configuration": "the run's configuration cannot be carried out here",
    "data": "this node's data do not fit the run",
    "failed": "something failed here",
    "keys": "keys, trust file or start command of this node are invalid",
    "machine": "disk, memory or clock of this node need attention",
    "policy": "the institution's policy does not allow the run",
    "request": "the run does not allow this request",
    "state": "this node's state is not the one that the request builds on",
}


class StartError(Error):
    """The node was started without a required setting; names the setting."""


class MachineError(Error):
    """This machine lacks disk or memory, or its clock is wrong; the message names which."""


_CODES: Mapping[type[Exception], str] = {
    ApprovalError: "approval",
    BusyError: "state",
    LedgerError: "budget",
    MachineError: "machine",
    ConfigError: "configuration",
    DamagedError: "state",
    DataError: "data",
    KeysError: "keys",
    PolicyError: "policy",
    RequestError: "request",
    SealError: "request",
    StartError: "keys",
    StateError: "state",
    WireError: "request",
}


def line_of(error: Exception) -> str:
    """Return the line for the relay; it depends on the kind of the error only."""
    code = code_of(error)
    return f"{code}: {MEANINGS[code]}; see the log of this node"


def code_of(error: Exception) -> str:
    """Return the code of an error."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "machine"
    return next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), "failed")
