"""A run whose costs are read by round, and what the symbols of docs/methods/index.md mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from coterie.app.config.config import Config
from coterie.clients.letters import Bools
from coterie.datasets.problem import Problem
from coterie.strategies.protocol import Edges
from coterie.strategies.topology import matrix_of
from tests.stepping import Stepping

Names = dict[str, Any]
Columns = dict[str, npt.NDArray[Any]]
"""Name -> (n,)."""


class Round(NamedTuple):
    """Costs of one round: symbols of every peer, its costs by column of the page, (n,), edges."""

    names: list[Names]
    paid: Columns
    edges: Edges


class Metered:
    """All rounds of a configuration, in `rounds`.

    Parameters
    ----------
    problem : what the peers learn from, instead of the configuration's data set.
    """

    def __init__(self, flat: Mapping[str, Any], problem: Problem | None = None) -> None:
        self.config = Config.from_flat(flat)
        stepping = Stepping(flat, problem=problem, ended=self._read)
        self.cohort, self.rounds = stepping.cohort, list[Round]()
        self.engine = self.cohort.engine
        self.rule: Any = stepping.rule
        self._passes = np.zeros(self.engine.n)
        self._count_passes("losses")
        self._count_passes("example_losses")
        self._count_passes("example_outputs")
        self.cohort.restart()
        self._passes[:] = 0  # a start is no round
        self._totals: Columns = dict.fromkeys(("sent", "received", "gradients"), 0 * self._passes)
        self._w, self._further = self.cohort.rule.weights(self.cohort.state), Columns()
        self.cohort.begin(1)
        stepping.to(self.config.num_server_rounds)

    def _count_passes(self, operation: str) -> None:
        real = getattr(self.engine, operation)

        def counted(x: Tensor, buffers: Any, split: str, *peers: Any) -> Any:
            np.add.at(self._passes, peers[0] if peers else np.arange(len(x)), 1)
            return real(x, buffers, split, *peers)

        setattr(self.engine, operation, counted)

    def _read(self, t: int, edges: Edges, asked: Bools) -> None:
        """Record the costs of round `t`, between its end and the start of the next one."""
        costs = self.cohort.costs
        totals = {
            "sent": costs.sent.copy(), "received": costs.received.copy(),
            "gradients": costs.n_gradients.copy(),
        }  # fmt: skip
        paid: Columns = {name: total - self._totals[name] for name, total in totals.items()}
        paid["passes"], self._totals = self._passes.copy(), totals
        reports = self.cohort.evaluate(t)
        self._passes[:] = 0  # nor is a report
        reported = {
            name: np.array([r.metrics[name] for r in reports]) for name in reports[0].metrics
        }
        paid["reports"] = reported["gradient_evaluations"] - totals["gradients"]
        assert (costs.n_gradients == totals["gradients"]).all(), (
            "a report is on no other report's costs"
        )
        assert (reported["bytes_sent"] == totals["sent"]).all()
        assert (reported["bytes_received"] == totals["received"]).all()
        paid["state"] = np.full(self.engine.n, _kept(self.cohort.state))
        received = matrix_of(edges, self.engine.n).T  # [recipient, sender]
        met = matrix_of(edges[asked], self.engine.n).T
        paid["heard"] = received.sum(axis=1)
        near, likes = self.engine.topology, self._w > 0
        of_all = {
            "heard": received.sum(axis=1), "shown": received.sum(axis=0), "met": met.sum(axis=1),
            "liked": (near & likes).sum(axis=1), "likers": (near & likes.T).sum(axis=1),
            "linked": (near & (likes | met)).sum(axis=1),
            "picked": self._picked(),
            **self._greedy(t, received.sum(axis=1), reported),
        }  # fmt: skip
        every = [{name: column[i] for name, column in of_all.items()} for i in range(len(near))]
        round_ = {"t": t, "estimates": self._estimates(t)}
        names = [{**self._lasting(i), **round_, **mine} for i, mine in enumerate(every)]
        self.rounds.append(Round(names, paid, edges))
        self._w, self._further = np.array([r.weights for r in reports]), reported

    def _lasting(self, i: int) -> Names:
        """The symbols that mean the same in every round."""
        engine, config = self.engine, self.config
        near, clusters = engine.topology, engine.clusters
        options = vars(config.options)
        examples = int(engine.data.shards["train"].lengths_p[i])
        first, epochs = min(config.training.batch_size, examples), config.training.local_epochs
        every = (
            1 if engine.kind == "quadratic" else int(engine.data.shards["train"].lengths_p.sum())
        )
        asks = options.get("targets", "all")
        same = near[i] if clusters is None else clusters == clusters[i]
        asking = near[i] & same if options.get("helpers") == "cluster" else near[i]
        targets = range(engine.n) if asks == "all" else [*map(int, str(asks).split(","))]
        network = engine.network
        head = network.columns(network.head)
        shapes = dict(zip(network.names, network.shapes, strict=True))
        widths = [shapes[name][-1] for name in network.head if len(shapes[name]) > 1]
        budget = int(options.get("budget", 0))
        return {
            **options, "n": engine.n, "d": engine.d, "body": engine.d - int(head.sum()),
            "C": engine.outputs, "m": max(widths, default=0),
            "b": engine.dtype.itemsize, "N": examples, "R": config.num_server_rounds,
            "V": int(engine.data.shards["validation"].lengths_p[i]),
            "B": config.training.batch_size,
            "first": first,
            "train": epochs * examples if epochs else config.local_steps * first,
            "pooled": config.local_steps * min(config.training.batch_size, every)
            if not epochs else epochs * every,
            "kept": sum(getattr(self.rule, "kept", ())),
            "near": near[i].sum(), "widest": near.sum(axis=1).max(),
            "mates": (near[i] & same).sum(), "targets": asking[targets].sum(),
            "by_variance": int(options.get("weights_") == "inverse-variance"),
            "knows": int(options.get("bias") == "oracle"),
            "parts": 2 if options.get("estimator") == "debiased" else 1,
            "most": budget + (not options.get("budget_counts_self")) if budget else engine.n,
        }  # fmt: skip

    def _picked(self) -> npt.NDArray[np.int64]:
        """Return PENS' neighbours at the start of the round; in round 1 there is no selection."""
        if self.config.method != "pens":
            return np.zeros(self.engine.n, dtype=np.int64)
        return np.asarray(self.rule.neighbours(self.cohort.state).sum(axis=1))

    def _estimates(self, t: int) -> int:
        options: Any = self.config.options
        if self.config.method != "all-for-one" or options.criterion == "oracle":
            return 0
        return int((t - 1) % options.refresh_every == 0)

    def _greedy(self, t: int, heard_n: npt.NDArray[np.int64], reported: Columns) -> Columns:
        """DPFL's own symbols."""
        options: Any = self.config.options
        if self.config.method != "dpfl":
            return {}
        due = t == 1 or (t - 2) % options.period == 0
        zero = np.zeros(self.engine.n)
        took_n = reported["validation_passes"] - self._further.get("validation_passes", zero)
        return {
            "chooses": due * (heard_n > 0),
            "tried": took_n // 2 - 1 if options.budget else heard_n,
            "candidates": self._further.get("candidates", zero),
        }


def _kept(state: Any) -> float:
    """Return the count of a peer's numbers beside model, statistics and optimizer state."""

    def count(item: Any) -> int:
        if isinstance(item, Mapping):
            return sum(map(count, item.values()))
        return item.numel() if isinstance(item, Tensor) else item.size

    beside = [
        item for name, item in vars(state).items() if name not in ("x", "buffers", "opt_state")
    ]
    return sum(map(count, beside)) / len(state.x)
