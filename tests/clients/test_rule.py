"""Rules: options in one line, a state that is declared, and the edges of a mask."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, dataclass
from typing import Any, Literal

import numpy as np
import pytest

from coterie.app.config import schema
from coterie.clients.engine.engine import Engine
from coterie.clients.rule import Floats, Rule, State
from coterie.clients.training import Training
from coterie.ranges import RangeError, option
from coterie.strategies.pairs import Pairs
from coterie.strategies.plans import Wanted, WantedHelp
from tests.problems import classification


@dataclass(frozen=True)
class Seen(State):
    w: Floats
    seen: Floats


class Mine(Rule[Seen], strategy=Pairs, summary="of a test"):
    """A method."""

    lambda_: float | Literal["auto"] = option(0.5, "Share of `at_most`.", above=0, grid=(1, 2, 3))
    at_most: int = option(3, "Maximum.", low=1)
    sampling: Literal["full", "constant"] = option("constant", "Schedule.")
    probability: float = option(0.25, "Probability.", low=0, high=1)


class Asks(Mine, strategy=WantedHelp):
    """A method whose peers name those that they ask."""


class Pulls(Mine, strategy=Wanted):
    """A method whose peers name those whose models they want."""


def bound(rule: Rule[Any]) -> Rule[Any]:
    problem = classification([6, 7, 8, 9])
    engine = Engine(problem, "linear", None, [1, 3], Training(), dtype="float64", device="cpu")
    return rule.bind(engine, 10)


def test_an_option_is_one_line() -> None:
    """Default, type, range, text and grid are read from the field."""
    assert schema.defaults(Mine) == {
        "lambda": 0.5, "at-most": 3, "sampling": "constant", "probability": 0.25
    }  # fmt: skip
    options = schema.options_of(Mine)
    assert options["lambda"].text == "Share of `at-most`."
    assert options["lambda"].values == 'number above 0, "auto"'
    assert options["at-most"].values == "integer at least 1"
    assert options["lambda"].take("auto") == "auto"
    with pytest.raises(RangeError, match="must be above 0"):
        options["lambda"].take(0.0)
    assert schema.grid(Mine) == {"lambda": (1, 2, 3)}


def test_options_of_a_strategy_reach_it() -> None:
    topology = ~np.eye(4, dtype=np.bool_)
    strategy = Mine(probability=0.75).exchange_plan(peers=4, rounds=3, seed=0, topology=topology)
    assert isinstance(strategy, Pairs)
    assert (strategy.sampling, strategy.probability) == ("constant", 0.75)


def test_a_rule_cannot_be_changed_and_binds_anew() -> None:
    rule: Any = bound(Mine(at_most=7))
    with pytest.raises(FrozenInstanceError):
        rule.at_most = 8
    narrowed = rule.narrowed(rule.engine)
    assert narrowed is not rule
    assert (narrowed.at_most, narrowed.rounds, narrowed) == (7, 10, rule)


def test_names_of_the_rule_and_unknown_keywords_are_refused() -> None:
    with pytest.raises(TypeError, match=r"option weights of Bad .* write weights_ \(its key"):

        class Bad(Rule[State]):
            weights: str = option("a", "B.")  # type: ignore[assignment]

    with pytest.raises(TypeError, match="Worse has no class keyword learns"):

        class Worse(Rule[State], learns=True):
            pass


def test_a_state_begins_with_the_identity_as_its_weights() -> None:
    rule = bound(Mine())
    state = rule.begin(seen=np.zeros(2))
    assert isinstance(state, Seen)
    assert np.array_equal(rule.weights(state), np.eye(4)[[1, 3]])


def test_edges_of_a_mask_end_or_begin_at_the_hosted_peers() -> None:
    mask = np.array([[True, True, False, False], [False, True, True, True]])
    pulls = bound(Pulls()).edges(mask)
    assert pulls.tolist() == [[0, 1], [1, 3], [2, 3]]
    assert bound(Asks()).edges(mask).tolist() == pulls[:, ::-1].tolist()
    assert bound(Mine()).edges(None).shape == (0, 2)
