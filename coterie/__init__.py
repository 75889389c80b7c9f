"""Train one model per peer without pooling data, and find out who is worth learning from.

`run` executes one run, `compare` compares several methods, `sweep` several settings, `load` reads a
run directory, `contribution` measures how much each peer helps every other. Results are data
frames and modules. Build your own parts with `Rule`, `option`, `State`, `Inbox` and the strategies,
`Model`, `Source`, `Shares`, `Topology`, `Schedule` and `ScheduleKind`, `AttackKind` and
`AggregationRule`.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

_HERE = Path(__file__).resolve().parent
if not (_HERE / "clients").is_dir():  # a checkout: the subpackages lie beside this folder
    __path__.append(str(_HERE.parent))

if TYPE_CHECKING:
    __version__: str
    from coterie.api import compare as compare
    from coterie.api import contribution as contribution
    from coterie.api import load as load
    from coterie.api import reproduce as reproduce
    from coterie.api import run as run
    from coterie.api import sweep as sweep
    from coterie.app.config.keys import ConfigError as ConfigError
    from coterie.app.runs.files import ResultsError as ResultsError
    from coterie.clients.attack import AttackKind as AttackKind
    from coterie.clients.defence import AggregationRule as AggregationRule
    from coterie.clients.inbox import Inbox as Inbox
    from coterie.clients.letters import Letters as Letters
    from coterie.clients.models.options import Model as Model
    from coterie.clients.rule import Rule as Rule
    from coterie.clients.rule import State as State
    from coterie.clients.rule import Weighted as Weighted
    from coterie.datasets.partition.options import Shares as Shares
    from coterie.datasets.problem import DataError as DataError
    from coterie.datasets.source import Source as Source
    from coterie.errors import DivergedError as DivergedError
    from coterie.errors import Error as Error
    from coterie.errors import PartError as PartError
    from coterie.errors import RunError as RunError
    from coterie.errors import SweepError as SweepError
    from coterie.ranges import Range as Range
    from coterie.ranges import option as option
    from coterie.results import Comparison as Comparison
    from coterie.results import Run as Run
    from coterie.strategies.exchange_plan import ExchangePlan as ExchangePlan
    from coterie.strategies.pairs import Pairs as Pairs
    from coterie.strategies.plans import Everyone as Everyone
    from coterie.strategies.plans import Silent as Silent
    from coterie.strategies.plans import Wanted as Wanted
    from coterie.strategies.plans import WantedAnswers as WantedAnswers
    from coterie.strategies.plans import WantedHelp as WantedHelp
    from coterie.strategies.schedule import Schedule as Schedule
    from coterie.strategies.schedule import ScheduleKind as ScheduleKind
    from coterie.strategies.topology import Topology as Topology

_PLACES = {
    "coterie.api": ("run", "load", "compare", "sweep", "reproduce", "contribution"),
    "coterie.errors": ("DivergedError", "Error", "PartError", "RunError", "SweepError"),
    "coterie.ranges": ("Range", "option"),
    "coterie.results": ("Run", "Comparison"),
    "coterie.app.config.keys": ("ConfigError",),
    "coterie.app.runs.files": ("ResultsError",),
    "coterie.clients.attack": ("AttackKind",),
    "coterie.clients.defence": ("AggregationRule",),
    "coterie.clients.inbox": ("Inbox",),
    "coterie.clients.letters": ("Letters",),
    "coterie.clients.models.options": ("Model",),
    "coterie.clients.rule": ("Rule", "State", "Weighted"),
    "coterie.datasets.partition.options": ("Shares",),
    "coterie.datasets.problem": ("DataError",),
    "coterie.datasets.source": ("Source",),
    "coterie.strategies.exchange_plan": ("ExchangePlan",),
    "coterie.strategies.plans": ("Everyone", "Silent", "Wanted", "WantedAnswers", "WantedHelp"),
    "coterie.strategies.pairs": ("Pairs",),
    "coterie.strategies.schedule": ("Schedule", "ScheduleKind"),
    "coterie.strategies.topology": ("Topology",),
}
_PLACE = {name: place for place, names in _PLACES.items() for name in names}

__all__ = sorted(_PLACE)  # loaded on first access


def __getattr__(name: str) -> Any:
    """Load a name on first access: a plugin on a node needs neither pandas nor reports."""
    if name == "__version__":
        return import_module("importlib.metadata").version("coterie")
    if name == "worth":
        raise import_module("coterie.errors").Error("coterie.worth is now coterie.contribution")
    if name in ("Method", "Grid"):  # of version 0.1
        raise import_module("coterie.errors").Error(
            f"coterie.{name} is gone, as a method is one class: class Mine(coterie.Rule, "
            'strategy=coterie.Everyone, summary="..."), with options as fields, step: float = '
            'coterie.option(0.5, "Share of the way.", low=0, high=1), and update(self, s, inbox); '
            'name it "package.module:Mine", see docs/extend.md'
        )
    if name == "Brokering":
        raise import_module("coterie.errors").Error("coterie.Brokering is now coterie.ExchangePlan")
    if name not in _PLACE:
        raise AttributeError(f"module 'coterie' has no attribute '{name}'")
    return getattr(import_module(_PLACE[name]), name)


def __dir__() -> list[str]:
    return __all__
