"""A rule with its engine; a cohort of all peers, taken from round to round by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from coterie.app.config.config import Config
from coterie.app.config.preflight import problem_of
from coterie.app.config.schema import Scalar
from coterie.app.node.assembly import cohort_of, engine_of
from coterie.clients.letters import Bools
from coterie.datasets.problem import Problem
from coterie.strategies.protocol import Edges

Reaches = Callable[[int, Edges], Bools]
"""(round, edges (E, 2)) -> (E,) which letters arrive."""
Ended = Callable[[int, Edges, Bools], object]
"""(round, its edges (E, 2), which of them were asked (E,))."""


class Stepping:
    """The cohort of a configuration; `state` is what its rule keeps now.

    Parameters
    ----------
    reaches : which letters arrive; default all.
    problem : what the peers learn from, instead of the configuration's data set.
    ended : called when a round has ended and the next one has not begun.
    """

    def __init__(
        self,
        flat: Mapping[str, Scalar],
        reaches: Reaches | None = None,
        *,
        problem: Problem | None = None,
        ended: Ended = lambda t, edges, asked: None,
    ) -> None:
        config = Config.from_flat({"device": "cpu"} | dict(flat))
        problem = problem or problem_of(config)
        engine = engine_of(config, problem, range(config.peers))
        rounds = config.num_server_rounds
        self.rule = config.options.bind(engine, rounds)
        self.strategy = config.strategy()
        self.cohort = cohort_of(config, engine, self.rule, self.strategy.schedule)
        self.reaches, self.ended = reaches, ended
        self.round = 0
        self.cohort.begin(1)

    @property
    def state(self) -> Any:
        return self.cohort.state

    def to(self, last: int) -> Any:
        """Carry on until round `last` has ended; the state then."""
        for this in self.strategy.each_round(self.round + 1, last, self.cohort.wants):
            if self.reaches is not None:
                there = np.asarray(self.reaches(this.t, this.edges), dtype=np.bool_)
                this = replace(this, edges=this.edges[there], asked=this.asked[there])
            self.cohort.exchange(this)
            self.cohort.update(this.t, {})
            self.ended(this.t, this.edges, this.asked)
            self.cohort.begin(this.t + 1)
            self.round = this.t
        return self.state
