"""Decentralised, personalised collaborative learning: peers that choose their collaborators.

`run` carries out one run and `compare` several methods; both give their results as data frames and
modules. `load` reads what a run left. Methods, models, data sets and partitions of your own are
made of `Method`, `Rule`, `State`, `Source`, `Shares` and the strategies.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.api import compare as compare
    from coterie.api import load as load
    from coterie.api import run as run
    from coterie.app.config.keys import ConfigError as ConfigError
    from coterie.app.config.registry import Method as Method
    from coterie.app.runners.errors import RunError as RunError
    from coterie.app.runs.files import ResultsError as ResultsError
    from coterie.clients.letters import Letters as Letters
    from coterie.clients.rule import Grid as Grid
    from coterie.clients.rule import Rule as Rule
    from coterie.clients.rule import State as State
    from coterie.datasets.partition.options import Shares as Shares
    from coterie.datasets.problem import DataError as DataError
    from coterie.datasets.source import Source as Source
    from coterie.results import Comparison as Comparison
    from coterie.results import Run as Run
    from coterie.strategies.brokering import Brokering as Brokering
    from coterie.strategies.everyone import Everyone as Everyone
    from coterie.strategies.pairs import Pairs as Pairs
    from coterie.strategies.silent import Silent as Silent
    from coterie.strategies.wanted import Wanted as Wanted
    from coterie.strategies.wanted import WantedAnswers as WantedAnswers
    from coterie.strategies.wanted import WantedHelp as WantedHelp

_PLACES = {
    "coterie.api": ("run", "load", "compare"),
    "coterie.results": ("Run", "Comparison"),
    "coterie.app.config.keys": ("ConfigError",),
    "coterie.app.config.registry": ("Method",),
    "coterie.app.runners.errors": ("RunError",),
    "coterie.app.runs.files": ("ResultsError",),
    "coterie.clients.letters": ("Letters",),
    "coterie.clients.rule": ("Grid", "Rule", "State"),
    "coterie.datasets.partition.options": ("Shares",),
    "coterie.datasets.problem": ("DataError",),
    "coterie.datasets.source": ("Source",),
    "coterie.strategies.brokering": ("Brokering",),
    "coterie.strategies.everyone": ("Everyone",),
    "coterie.strategies.pairs": ("Pairs",),
    "coterie.strategies.silent": ("Silent",),
    "coterie.strategies.wanted": ("Wanted", "WantedAnswers", "WantedHelp"),
}
_PLACE = {name: place for place, names in _PLACES.items() for name in names}

__all__ = sorted(_PLACE)  # each is loaded when it is asked for


def __getattr__(name: str) -> Any:
    """Load a name where it is asked for: a plugin on a node needs neither pandas nor reports."""
    if name not in _PLACE:
        raise AttributeError(f"module 'coterie' has no attribute '{name}'")
    return getattr(import_module(_PLACE[name]), name)


def __dir__() -> list[str]:
    return __all__
