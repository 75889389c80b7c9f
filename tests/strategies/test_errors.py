from __future__ import annotations

import pickle

import pytest

from strategies.errors import DesertedError, RelayError, RosterError


@pytest.mark.parametrize("kind", [RelayError, DesertedError, RosterError])
def test_an_error_of_the_relay_survives_the_way_to_another_process(kind: type[RelayError]) -> None:
    error = pickle.loads(pickle.dumps(kind("round 3, update: disk full", 3, "update")))
    assert type(error) is kind
    assert (str(error), error.round, error.stage) == ("round 3, update: disk full", 3, "update")
