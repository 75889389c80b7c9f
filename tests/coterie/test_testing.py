"""The fixture for methods of others: it passes ours, and tells what is wrong with bad ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from coterie.clients.inbox import Inbox
from coterie.clients.methods import fedavg
from coterie.clients.rule import Floats, State
from coterie.testing import check_method

__all__ = ["check_method"]


@pytest.mark.slow
def test_a_method_of_ours_passes(check_method: Callable[..., None]) -> None:
    check_method("fedavg")


@pytest.mark.parametrize("check_method", ["quadratic"], indirect=True)
def test_what_a_method_refuses_is_skipped(check_method: Callable[..., None]) -> None:
    with pytest.raises(pytest.skip.Exception, match="clusters are unknown"):
        check_method("oracle")


class Hosted(fedavg.FedAvg[State]):
    """Averages those that it finds on its node."""

    def update(self, s: State, inbox: Inbox) -> State:
        return replace(s, x=s.x.mean(dim=0, keepdim=True).expand_as(s.x))


class Careless(fedavg.FedAvg[State]):
    """Rule whose weights are all zero."""

    def weights(self, s: State) -> Floats:
        return np.zeros((len(self.engine.peers), self.engine.n))


@pytest.mark.parametrize("check_method", ["classification"], indirect=True)
@pytest.mark.parametrize(
    ("rule", "complaint"),
    [(Hosted, "depends on the assignment to nodes"), (Careless, r"a row of weights\(\) is zero")],
)
def test_what_is_wrong_is_said(
    check_method: Callable[..., None], rule: type[fedavg.FedAvg[State]], complaint: str
) -> None:
    with pytest.raises(AssertionError, match=complaint):
        check_method(rule)
