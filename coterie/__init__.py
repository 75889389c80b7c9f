"""Decentralised, personalised collaborative learning: peers that choose their collaborators.

`run` executes one run, `compare` compares several methods, `load` reads a run directory. Results
are data frames and modules. Build your own methods, models, data sets and partitions with `Method`,
`Rule`, `State`, `Source`, `Shares` and the strategies.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.config.keys import ConfigError as ConfigError
    from app.config.registry import Method as Method
    from app.runners.errors import RunError as RunError
    from app.runs.metrics import ResultsError as ResultsError
    from clients.letters import Letters as Letters
    from clients.rule import Grid as Grid
    from clients.rule import Rule as Rule
    from clients.rule import State as State
    from coterie.api import compare as compare
    from coterie.api import load as load
    from coterie.api import run as run
    from coterie.results import Comparison as Comparison
    from coterie.results import Run as Run
    from datasets.partition.options import Shares as Shares
    from datasets.problem import DataError as DataError
    from datasets.source import Source as Source
    from strategies.brokering import Brokering as Brokering
    from strategies.everyone import Everyone as Everyone
    from strategies.pairs import Pairs as Pairs
    from strategies.silent import Silent as Silent
    from strategies.wanted import Wanted as Wanted
    from strategies.wanted import WantedAnswers as WantedAnswers
    from strategies.wanted import WantedHelp as WantedHelp

_PLACES = {
    "coterie.api": ("run", "load", "compare"),
    "coterie.results": ("Run", "Comparison"),
    "app.config.keys": ("ConfigError",),
    "app.config.registry": ("Method",),
    "app.runners.errors": ("RunError",),
    "app.runs.metrics": ("ResultsError",),
    "clients.letters": ("Letters",),
    "clients.rule": ("Grid", "Rule", "State"),
    "datasets.partition.options": ("Shares",),
    "datasets.problem": ("DataError",),
    "datasets.source": ("Source",),
    "strategies.brokering": ("Brokering",),
    "strategies.everyone": ("Everyone",),
    "strategies.pairs": ("Pairs",),
    "strategies.silent": ("Silent",),
    "strategies.wanted": ("Wanted", "WantedAnswers", "WantedHelp"),
}
_PLACE = {name: place for place, names in _PLACES.items() for name in names}

__all__ = sorted(_PLACE)  # loaded on first access


def __getattr__(name: str) -> Any:
    """Load a name on first access: a plugin on a node needs neither pandas nor reports."""
    if name not in _PLACE:
        raise AttributeError(f"module 'coterie' has no attribute '{name}'")
    return getattr(import_module(_PLACE[name]), name)


def __dir__() -> list[str]:
    return __all__
