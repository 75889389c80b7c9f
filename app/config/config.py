"""Configuration of a run: one pass from sources of keys to checked dataclasses."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from coterie.app.config import limits, parts, recipes, schema
from coterie.app.config.keys import ConfigError, nearest, of_keywords
from coterie.app.config.parts import PARTS
from coterie.app.config.registry import METHODS, method_of, schedule_of, topology_of
from coterie.app.config.schema import Scalar
from coterie.app.config.settings import (
    COMPONENTS,
    INLINED,
    Settings,
    keys,
    keys_of,
    kinds_of,
    tables,
)
from coterie.app.config.sources import Source, of_program
from coterie.clients.models.options import AND, Adaptation, KindOptions, model_of
from coterie.clients.rule import Rule
from coterie.datasets.partition.kinds import KINDS
from coterie.datasets.partition.options import Partition
from coterie.datasets.plugins import Kind
from coterie.datasets.table import dataset_of
from coterie.errors import line_of
from coterie.ranges import options_of
from coterie.strategies import clock, schedule
from coterie.strategies.errors import ScheduleError, TopologyError
from coterie.strategies.exchange_plan import ExchangePlan
from coterie.strategies.names import shortened
from coterie.strategies.topology import AveragingWeights as MixingWeights
from coterie.strategies.topology import Setting

__all__ = ["Config", "ConfigError"]

VALIDATION_SHARE = 0.2
"""Share of the training examples that `validation = "auto"` holds out if a method needs it."""
_NEWCOMERS = 0x4EC0
"""Purpose of the random stream that draws peers that join late."""


@dataclass(frozen=True, kw_only=True)
class Config(Settings):
    """Configuration of a run. Build it with `of`, and from another one with `with_`."""

    sources: tuple[Source, ...] = field(init=False, default=(), compare=False, repr=False)

    @classmethod
    def of(
        cls, *given: Source | Mapping[str, Any], named: Collection[str] = (), deployed: bool = False
    ) -> Self:
        """Make the configuration of sources of keys, in ascending order of precedence."""
        # Files of a run may name only code in `named`; `deployed` machines run only installed code.
        sources = tuple(each if isinstance(each, Source) else of_program(each) for each in given)
        return cls._made(sources, resolve(sources, named, deployed=deployed))

    @classmethod
    def from_flat(cls, flat: Mapping[str, Any]) -> Self:
        """Make a configuration of flat dotted keys; missing keys have defaults."""
        return cls.of(flat)

    def with_(self, keys: Mapping[str, Any] = {}, /, **named: Any) -> Self:
        """Return the configuration with other keys, `with_(peers=3)`; "auto" is decided again."""
        before = self.sources or (of_program(self.flat()),)
        sources = (*before, of_program({**keys, **of_keywords(named)}))
        return self._made(sources, resolve(sources))

    @classmethod
    def _made(cls, sources: tuple[Source, ...], resolved: Resolved) -> Self:
        """Make the components, then the run; "auto" gets its value here."""
        names, top = resolved.names, resolved.values[""]
        made: dict[str, Any] = {
            table: _component(options, table, resolved.values[table])
            for table, options in {**tables(), **resolved.theirs}.items()
            if table
        }
        method, dataset = method_of(names["method"]), dataset_of(names["dataset"])
        model = dataset.model if names["model"] == "auto" else names["model"]
        peers = top.get("peers", keys()["peers"][1].default)
        kinds = kinds_of(top.get("peer_models", ""), model or "auto", peers)
        for table in ("partition", names["dataset"]):
            if getattr(made.get(table), "validation", None) == "auto":
                needs = needs_validation(method, AND.join(kinds))
                made[table] = replace(made[table], validation=VALIDATION_SHARE if needs else 0.0)
        if not top.setdefault("local_steps", 0) and not top.get("local_epochs"):
            top["local_steps"] = dataset.local_steps
        split = replace(made["partition"], options=made.get("partition-options"))
        split = split.of(dataset.division, dataset.samples if split.kind in KINDS else 0)
        made["partition"] = split if dataset.divided else Partition()
        # Of the yardsticks "forest" and "logistic", the table of that name is the model's.
        options = made.get(parts.table_of("method", names["method"]))
        try:
            config = cls(
                **_fields_in(cls, top),
                **{name: of(**_fields_in(of, top)) for name, of in INLINED.items()},
                **{each.name: made[table] for table, each in COMPONENTS.items()},
                options=options if isinstance(options, method) else method(),
                dataset_options=made.get(parts.table_of("dataset", names["dataset"])),
                model_options=(
                    made.get(parts.table_of("model", kinds[0]))
                    if len(kinds) == 1
                    else KindOptions(tuple(made.get(kind) for kind in kinds))
                ),
            )
        except ValueError as error:
            raise ConfigError(str(error)) from None
        object.__setattr__(config, "sources", sources)
        config._check()
        return config

    def located(self, stamp: str) -> Self:
        """Return the configuration with its run directory; a missing name is made from `stamp`."""
        if self.run_dir:
            return self
        what = f"{self.label}-{self.dataset}"
        name = self.name or shortened(what, f"-seed{self.seed}-{stamp}")
        return self.with_(name=name, run_dir=str(Path(self.out, name).absolute()))

    def absolute(self, base: Path | None = None) -> Self:
        """Return the configuration with absolute paths, which start from `base` or here."""
        base, flat = (base or Path()).absolute(), self.flat()
        paths = self.paths & flat.keys()
        return self.with_({key: str(base / str(flat[key])) for key in paths if flat[key]})

    @cached_property
    def newcomers(self) -> tuple[int, ...]:
        """Peers that join late, ascending, drawn by the seed; empty without `late-peers`."""
        if not self.late_peers:
            return ()
        count = min(max(1, round(self.late_peers * self.peers)), self.peers - 1)
        drawn = np.random.default_rng([self.seed, _NEWCOMERS]).permutation(self.peers)[:count]
        return tuple(sorted(drawn.tolist()))

    @property
    def join_round(self) -> int:
        """Round after which the newcomers take part, for the last fifth of the rounds."""
        return self.num_server_rounds - max(1, round(0.2 * self.num_server_rounds))

    @property
    def _setting(self) -> Setting:
        return Setting(self.peers, self.seed, self.topology_degree, self.topology_file)

    def graph(self) -> npt.NDArray[np.bool_]:
        """Return the allowed edges between peers, (n, n), symmetric."""
        try:
            return topology_of(self.topology).matrix(self._setting)
        except TopologyError as error:
            raise ConfigError(str(error)) from None
        except MemoryError:
            raise ConfigError(f"a graph of {self.peers} peers does not fit into memory") from None

    def topology_weights(self) -> MixingWeights | None:
        """Return the topology's averaging weights if the method uses them, else None."""
        if not self.row.mixes:
            return None
        weights = topology_of(self.topology).mixing(self._setting)
        if self.mixing != "samples" and weights is not None:
            raise TopologyError(
                f'mixing = "{self.mixing}": topology = "{self.topology}" has averaging weights of '
                'its own on these edges; set mixing = "samples"'
            )
        return weights

    def strategy(self) -> ExchangePlan:
        method, rounds = self.row, self.num_server_rounds
        try:
            run = schedule.Setting(
                self.peers, rounds, self.seed, self.schedule.max_age,
                method.strategy.receives_on_waking,
                clock.clock(self.clock, self.peers, self.seed),
            )  # fmt: skip
            kind = schedule_of(self.schedule.kind)
            attendance = kind.schedule(self.schedule, run, self.clock.deadline)
            directed = method.strategy.receives_on_waking or not method.strategy.exchanges
            links = topology_of(self.topology).links(self._setting, directed=directed)
            weights = self.topology_weights()
            if weights is not None and self.letters.scheme == "increments":
                raise TopologyError(
                    f'letters.scheme = "increments": topology = "{self.topology}" has averaging '
                    'weights of its own; set letters.scheme = "full"'
                )
            if links is not None and self.mixing == "metropolis" and method.mixes:
                raise TopologyError(
                    'mixing = "metropolis" needs the same undirected edges in all rounds, which '
                    f'topology = "{self.topology}" does not have; set mixing = "uniform"'
                )
        except (ScheduleError, TopologyError) as error:
            raise ConfigError(str(error)) from None
        return self.options.exchange_plan(
            peers=self.peers, rounds=rounds, seed=self.seed, topology=self.graph(),
            evaluate_every=self.evaluate_every, evaluates_all=self.evaluate_peers == "all",
            schedule=attendance, links=links,
        )  # fmt: skip

    def _check(self) -> None:
        data = getattr(self.dataset_options, "check_peers", None)
        parts.checked_by_part(self.method, self.options.check, self)
        if data is not None:
            parts.checked_by_part(self.dataset, data, self.peers)
        numbers = getattr(self.dataset_options, "numbers", lambda _: 0)(self.peers)
        example = math.prod(getattr(self.dataset_options, "sides", ()))
        for count, most, what in (
            (numbers, limits.MAX_NUMBERS, f"for {self.peers} peers"),
            (example, limits.MAX_EXAMPLE, "in an example"),
        ):
            if count > most:
                raise ConfigError(f"{self.dataset}: {count:,} numbers {what}; at most {most:,}")
        try:
            self.attack.attackers(self.peers, self.seed)
        except ValueError as error:
            raise ConfigError(f"attack: {error}") from None
        if self.letters.scheme == "increments":
            self._check_increments()
        if len(self.kinds) > 1:
            self._check_library("peers have different models (peer-models)", is_mixed=True)
        elif library := model_of(self.network).library:
            model = f'model = "{self.network}" is fitted by {library} at once'
            self._check_library(model, is_mixed=False)
        if self.privacy.kind != "none":
            self._check_privacy()

    def _check_privacy(self) -> None:
        """Refuse what the noise on gradients does not cover."""
        why = self.row.exposes if self.method in METHODS else "a plugin has not been checked"
        training, missing = self.training, getattr(self.dataset_options, "missing", "")
        cases = {
            f" does not cover {self.method}: {why}": bool(why),
            ' requires schedule.kind = "all" and no deadline: spending is counted only if all '
            "peers of a node train together": self.schedule.kind != "all" or self.clock.deadline,
            ": model.personal layers are trained without noise: unset it": self.adaptation.personal,
            " does not cover start-from: its models were trained on the same data": self.start_from,
            ': table.missing = "median" would put values of single examples into models; set it to '
            '"mean" or "indicator"': missing == "median",
            ": gradient-clip would scale the noise; set it to 0 and use privacy.clip": (
                training.gradient_clip
            ),
            ": class-weights would give single examples more influence than privacy.clip allows; "
            'set class-weights = "none"': training.class_weights != "none",
            ": mixed-precision rounds norms, so clips are inexact": self.compute.mixed_precision,
        }
        for text, applies in cases.items():
            if applies:
                raise ConfigError(f"privacy{text}")

    def _check_library(self, model: str, is_mixed: bool) -> None:
        """Refuse what needs gradients or sums of parameters for models that have none."""

        def suits(row: type[Rule[Any]]) -> bool:
            return row.any_model and not (is_mixed and row.pools)

        if not suits(self.row):
            able = ", ".join(name for name, row in METHODS.items() if suits(row))
            does = "averages parameters or computes gradients"
            does = "trains one model" if self.row.pools else does
            raise ConfigError(f"{model}, and {self.method} {does}: choose {able}")
        rounding = "parameters such as trees cannot be rounded"
        cases = {
            "privacy.kind": (self.privacy.kind != "none", "noise is added to gradients"),
            "model.*": (self.adaptation != Adaptation(), "these are options of a network's layers"),
            "payload": (self.payload != "full", rounding),
            "letters.scheme": (self.letters.scheme != "full", rounding),
            "mixed-precision": (self.compute.mixed_precision, rounding),
            "start-from": (self.start_from, "only networks are trained further"),
            "late-peers": (self.late_peers, "they are compared with the mean of parameters"),
            "attack.kind": (self.attack.row.needs_letters, "it computes with sums of parameters"),
        }
        for key, (applies, reason) in cases.items():
            if applies:
                raise ConfigError(f"{key}: {model}: {reason}; remove the key")

    def _check_increments(self) -> None:
        """Refuse runs whose offers are not the peers' models as of this round."""
        why = ""
        if not self.row.offers_model:
            why = f'method = "{self.method}" does not offer whole models'
        elif self.schedule.kind == "clock" or self.clock.deadline:
            why = "a schedule by the clock publishes models later than it makes them"
        if why:
            raise ConfigError(f'letters.scheme = "increments": {why}; set letters.scheme = "full"')


def needs_validation(method: type[Rule[Any]], model: str) -> bool:
    """Return whether a method needs validation rows: a library's model has out-of-fold scores."""
    return method.validates and not (method.any_model and bool(model_of(model).library))


class Resolved(NamedTuple):
    """Keys of all sources, each with the value of the last source that has it."""

    names: Mapping[Kind, str]  # of the parts
    theirs: Mapping[str, type]  # tables of plugins' options
    values: dict[str, dict[str, Any]]  # table -> field -> checked value
    flat: dict[str, Any]  # dotted keys as they were given


def resolve(
    sources: Collection[Source], named: Collection[str] | None = None, *, deployed: bool = False
) -> Resolved:
    """Choose and check the value of each key; `named` as in `Config.of`, or None to trust files."""
    last = {key: source for source in sources for key in source.keys}
    flat = {key: source.keys[key] for key, source in last.items()}
    stands = Source(recipes.expand(flat))
    last |= dict.fromkeys(stands.keys, stands)
    names: dict[Kind, str] = {}
    for kind, part in PARTS.items():
        source = last.get(part.key)
        default = keys()[part.key][1].default
        try:
            names[kind] = parts.name_of(kind, source.keys[part.key] if source else default)
        except ConfigError as error:
            raise (source or stands).refusal(part.key, str(error)) from None
    chosen = {PARTS[kind].key: name for kind, name in names.items()}
    if deployed:
        parts.refuse_modules(chosen)
    if named is not None:
        users = (
            each for source in sources if not source.is_of_run for each in source.keys.values()
        )
        words = {*named, *(each for each in users if isinstance(each, str))}
        for source in sources:
            if source.is_of_run and source.file:
                parts.refuse_unnamed(chosen, words, source.file, source.naming)
    theirs, plugins = parts.plugin_tables(chosen), parts.plugins_in(names)
    unused = {table for table, kind in parts.TABLES.items() if kind not in plugins}
    known = {**keys_of(theirs), **keys()}
    values: dict[str, dict[str, Any]] = {table: {} for table in (*tables(), *theirs)}
    for key, source in last.items():
        if key.partition(".")[0] in unused and not source.is_typed:
            continue  # as a comparison shares its keys
        if key not in known:
            raise source.refusal(key, f"unknown key {schema.brief(key)}{nearest(key, known)}")
        table, each = known[key]
        values[table][each.name] = source.value(key, each)
        if source.is_typed:
            flat[key] = values[table][each.name]
    return Resolved(names, theirs, values, flat)


def _fields_in(of: type, values: Mapping[str, Any]) -> dict[str, Any]:
    return {each.name: values[each.name] for each in fields(of) if each.name in values}


def _component(options: type, table: str, values: Mapping[str, Scalar]) -> object:
    for key, each in options_of(options).items():
        if each.default is MISSING and each.name not in values:
            raise ConfigError(f"{table}.{key} has no default: set it")
    try:
        return options(**values)
    except ValueError as error:
        raise ConfigError(f"{table}: {error}") from error
    except Exception as error:  # raised by a plugin's options
        raise ConfigError(f"{table}: {line_of(error)}") from error
