"""Assemble the engine and the cohort of a run: the only place that names all of their options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from coterie.app.config.config import Config
from coterie.app.node.cohort.attackers import Attackers
from coterie.app.node.cohort.checked_rule import CheckedRule
from coterie.app.node.cohort.cohort import ClockedPeers, HostedPeers
from coterie.app.node.cohort.filters import LetterFilter, Withhold
from coterie.app.node.cohort.wire import Increments, Wire
from coterie.clients.engine.engine import Engine
from coterie.clients.letters import no_peers
from coterie.clients.models.build import MAX_PARAMETERS
from coterie.clients.rule import Rule
from coterie.datasets.problem import Problem
from coterie.strategies.schedule import Schedule


def engine_of(
    config: Config,
    problem: Problem,
    peers: Sequence[int],
    *,
    gpu: int = 0,
    doubts: bool = False,
    max_parameters: int = MAX_PARAMETERS,
) -> Engine:
    """Return the engine of some peers; `doubts`: not all peers are known to be honest."""
    return Engine(
        problem,
        config.network,
        config.model_options,
        peers,
        config.training,
        seed=config.seed,
        gpu=gpu,
        **vars(config.compute),
        **vars(config.engine),
        topology=config.graph(),
        defence=replace(config.defence, norm=config.defence.norm and doubts),
        staleness_discount=config.schedule.staleness_discount,
        weighting=config.mixing,
        mixing=config.topology_weights(),
        privacy=config.privacy,
        adaptation=config.adaptation,
        max_parameters=max_parameters,
        pools=config.row.pools,
        kinds=kinds_of(config, problem, peers),
    )


def kinds_of(config: Config, problem: Problem, peers: Sequence[int]) -> list[int]:
    """Return the kind of each peer's model; empty if all have the same."""
    if len(config.kinds) == 1:
        return []
    names = dict(enumerate(problem.names))
    return [config.kinds.index(config.model_of_peer(peer, names.get(peer, ""))) for peer in peers]


def cohort_of(
    config: Config, engine: Engine, rule: Rule[Any], schedule: Schedule, *, doubts: bool = False
) -> HostedPeers:
    """Return the cohort of an engine's peers, with the filters that the run asks for."""
    filters: list[LetterFilter] = []
    attackers = config.attack.attackers(config.peers, config.seed)
    if config.withheld:
        filters.append(Withhold(config.withheld))
    if len(attackers):
        filters.append(Attackers(config.attack, attackers, engine))
    wire = Wire(config.payload)
    if config.letters.scheme == "increments":
        lies = config.attack.row.forge is not None  # then an offer is not of its author's model
        wire = Increments(engine, config.letters, config.payload, attackers if lies else no_peers())
    kind = HostedPeers if schedule.foresees else ClockedPeers
    in_pairs = compares_in_pairs(config, rule) and len(engine.peers) == engine.n and not doubts
    return kind(
        engine, CheckedRule(rule), config.num_server_rounds, filters, wire, schedule,
        keeps_all=config.keep_models == "best", measures_letters=config.clearance,
        evaluates_all=config.evaluate_peers == "all" and schedule.foresees and not doubts,
        in_pairs=in_pairs,
    )  # fmt: skip


def compares_in_pairs(config: Config, rule: Rule[Any]) -> bool:
    """Return whether a node of all peers may forget answers once it has compared pairs of them.

    Attackers, privacy budgets, clearance and sleeping peers need all answers of a round.
    """
    looked_at = config.attack.kind != "none" or config.privacy.kind != "none" or config.clearance
    is_always = config.strategy().schedule.is_always
    return rule.compares_pairs and is_always and not (looked_at or config.withheld)
