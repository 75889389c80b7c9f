"""Part: a subset of a node's peers, with their engine, rule and rows of the state."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from coterie.app.node.cohort.checked_rule import CheckedRule
from coterie.app.node.cohort.costs import Costs
from coterie.clients.diagnostics import diagnose, diagnose_survival
from coterie.clients.engine.data import SplitName
from coterie.clients.engine.engine import Engine, Scores
from coterie.clients.letters import Bools, Ints, no_peers
from coterie.clients.measures import MEASURES
from coterie.clients.rule import Rule
from coterie.strategies.protocol import Report

Predicted = tuple[int, tuple[Any, Any] | None]
"""Number of the distinct model, and predictions and targets; None without sound predictions."""
_RECORDED = 1 << 27
"""Maximum number of predictions of pixels that are kept for the last report."""
TOGETHER = 512
"""Maximum number of peers per chunk of evaluation or saving if most peers sleep."""


class Part(NamedTuple):
    """Subset of the hosted peers, with their engine, rule and state."""

    rows: Ints  # local indices of the peers in the cohort
    engine: Engine
    rule: Rule[Any]
    state: Any
    fresh: Bools = np.zeros(0, dtype=np.bool_)  # (P,): peers with a finite offer of this round
    averages: bool = False  # the round ends in an average instead of training

    def reports(
        self,
        t: int,
        costs: Costs,
        heard: Mapping[int, Ints] | None,
        curves: dict[int, dict[str, Any]] | None,
        models: dict[int, dict[str, Tensor]] | None,
        *,
        attendance: bool,
    ) -> Iterator[Report]:
        """Evaluate the personal models, each on its peer's own data."""
        # `costs` are those of the whole cohort; the costs of making the personal models count in
        # this report only. `heard`: peer -> peers with a weight in the collaboration matrix, None:
        # all. `curves` (last report only) and `models` receive figure data and models by peer.
        splits: tuple[SplitName, ...] = ("test", "validation", "train")
        columns: dict[str, list[Any]] = {}
        spent, before = self.engine.n_gradients, self.engine.n_gradients.copy()
        personal = self.rule.personal(self.state)
        recorded: dict[SplitName, list[Predicted]] = {}
        for split in splits:
            if curves is not None and split in self._to_record:
                (losses, accuracies), recorded[split] = self._recorded(personal, split)
            else:
                losses, accuracies = self.rule.evaluate(personal, split)
            columns[f"{split}_loss"] = losses.tolist()
            columns[f"{split}_accuracy"] = accuracies.tolist()
        measured = {} if curves is None else self._measured(recorded, curves)
        if curves is not None:
            rule = self.rule.rule if isinstance(self.rule, CheckedRule) else self.rule
            for p, beyond in enumerate(rule.beyond(personal)):
                if beyond:
                    peer = int(self.engine.peers[p])
                    curves[peer] = {**curves.get(peer, {}), "limited": beyond}
        if models is not None:
            models |= {
                peer: {name: value.clone() for name, value in tensors.items()}
                for peer, tensors in self._named(personal)
            }
        columns["bytes_sent"] = costs.sent[self.rows].tolist()
        columns["bytes_received"] = costs.received[self.rows].tolist()
        total = costs.n_gradients[self.rows] + spent
        columns["gradient_evaluations"] = total.tolist()
        spent[:] = before
        columns |= {name: value.tolist() for name, value in self.rule.metrics(self.state).items()}
        if attendance:
            columns["awake"] = costs.awake[self.rows].tolist()
        if self.engine.guard is not None:
            columns["epsilon"] = self.engine.guard.epsilon().tolist()
        counts = {"unsound_results": costs.unsound, "refused_models": costs.refused}
        counted = [{k: int(v[row]) for k, v in counts.items() if v[row]} for row in self.rows]
        weights = self.rule.weights(self.state) if heard is None or heard else no_peers()
        for p, peer in enumerate(self.engine.peers.tolist()):
            metrics = {k: v[p] if math.isfinite(v[p]) else None for k, v in columns.items()}
            metrics |= counted[p]
            metrics |= {k: v if math.isfinite(v) else None for k, v in measured.get(p, {}).items()}
            about, row = no_peers(), weights[p] if len(weights) else no_peers()
            if heard is not None:
                about = heard.get(peer, about)
                row = row[about]
            yield Report(t, peer, metrics, tuple(row.tolist()), tuple(about.tolist()))

    @property
    def _to_record(self) -> tuple[SplitName, ...]:
        """Splits whose predictions the last report measures."""
        if self.engine.kind not in MEASURES:
            return ()
        if self.engine.kind == "segmentation":
            targets = self.engine.data.shards["test"].targets_pn
            return ("test",) if targets.numel() * self.engine.outputs <= _RECORDED else ()
        return ("test", "validation") if self._has_two_classes else ("test",)

    @property
    def _has_two_classes(self) -> bool:
        return self.engine.kind == "classification" and self.engine.outputs == 2

    def _recorded(self, personal: Any, split: SplitName) -> tuple[Scores, list[Predicted]]:
        """Return the scores on a split, and each peer's predictions, (P,) or empty."""
        engine = self.engine
        scores, predictions, row_p = engine.recorded(lambda: self.rule.evaluate(personal, split))
        if predictions is None:
            return scores, []
        shard, finite_p = engine.data.shards[split], scores.losses.isfinite().tolist()
        result: list[Predicted] = []
        for p, (count, k) in enumerate(zip(shard.lengths_p.tolist(), row_p.tolist(), strict=True)):
            own = None
            if count and finite_p[p]:
                own = predictions[k, :count].numpy(), shard.targets_pn[p, :count].cpu().numpy()
            result.append((k, own))
        return scores, result

    def _measured(
        self, recorded: Mapping[SplitName, list[Predicted]], curves: dict[int, dict[str, Any]]
    ) -> dict[int, dict[str, float]]:
        """Return by row the further measures of the last report, and store the figure data."""
        if not recorded.get("test"):
            return {}
        measure, curves_of = MEASURES[self.engine.kind]
        validation = recorded.get("validation") or [(0, None)] * len(self.rows)
        private = self.engine.guard is not None
        known: dict[tuple[int, int], tuple[dict[str, float], dict[str, Any]]] = {}
        measured = {}
        groups = self.engine.data.groups
        for p, ((k, own), (v, judged)) in enumerate(zip(recorded["test"], validation, strict=True)):
            if own is None:
                continue
            if (k, v) not in known:  # each distinct model once
                more: dict[str, Any] = {}
                of_rows = groups("test", p), groups("validation", p)
                if self._has_two_classes:
                    more = {"diagnostics": diagnose(own, judged, private=private, groups=of_rows)}
                elif self.engine.kind == "survival":
                    more = {"diagnostics": diagnose_survival(*own, of_rows[0])}
                known[k, v] = measure(*own), curves_of(*own) | more
            measured[p], curves[int(self.engine.peers[p])] = known[k, v]
        return measured

    def models(self) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Yield each peer's personal model as named tensors, with all that prediction needs."""
        yield from self._named(self.rule.personal(self.state))

    def _named(self, state: Any) -> Iterator[tuple[int, dict[str, Tensor]]]:
        named = self.engine.network.named(state.x) | state.buffers
        beside = self.rule.saved(state)
        for p, peer in enumerate(self.engine.peers.tolist()):
            yield peer, {name: value[p] for name, value in named.items()} | dict(beside[p])


def predicts_as_saved(rule: type[Rule[Any]]) -> bool:
    """Return whether the files of `Part.models` suffice to reproduce the rule's predictions."""
    return rule.evaluate is Rule.evaluate or rule.saved is not Rule.saved
