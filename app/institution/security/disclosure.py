"""Disclosure of reports to the relay, as the node's policy allows."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import replace

from coterie.app.institution.security.ledger import Ledger
from coterie.app.institution.security.policy import Disclosure, Policy, ReportPolicy
from coterie.strategies.protocol import MEASURES, Report

TRAFFIC = ("bytes_sent", "bytes_received")
"""Metrics that the relay can observe itself."""
LOSSES = ("test_loss", "validation_loss", "train_loss")
PER_CLASS = ("balanced_accuracy", "macro_f1", "auroc", "sensitivity", "specificity", "c_index")
"""Metrics that are computed from the test examples of single classes, or with an event."""
SHARES = ("expected_calibration_error", "r2")
"""Measures of the test examples with the precision of a share."""
_PARTS = ("train", "validation", "test")
_WEIGHT_DIGITS = 2
_log = logging.getLogger("coterie.node")


class Reports:
    """Reports of a deployed peer to the relay: limited by the policy, counted by the ledger."""

    def __init__(
        self,
        policy: Policy,
        sizes: Mapping[str, int],  # examples, by part of the split
        rarest: int,  # test examples of the rarest class, or with an event; 0 without either
        ledger: Ledger,
        *,
        own: bool,
    ) -> None:
        self._policy, self._own = policy.reports, own
        self._sizes, self._ledger = sizes, ledger
        self._rarest = rarest if rarest >= policy.data.min_examples else 0

    def disclosed(self, report: Report) -> Report:
        """Return a report as disclosed to the relay, without numbers if their budget is used up."""
        if not self._own:
            return limited(report, self._policy.disclosure)
        result = protected(report, self._policy, self._sizes, self._rarest)
        budget = self._policy.max_numbers_per_example * sum(self._sizes.values())
        weights = {k: w for k, w in result.weight_by_peer.items() if k != result.peer}
        counted = weights if any(weights.values()) else {}  # all are 0 if it received nothing
        if self._ledger.reporting(result.round, numbers_in(result), counted, budget):
            return result
        _log.warning(
            "reports.max-numbers-per-example = %g is used up: no numbers are reported",
            self._policy.max_numbers_per_example,
            extra={"round": report.round},
        )
        return limited(result, "none")


def limited(report: Report, disclosure: Disclosure) -> Report:
    """Return the report with its losses, traffic and weights only, or ("none") its traffic."""
    if disclosure == "all":
        return report
    kept = TRAFFIC + (LOSSES if disclosure == "loss" else ())
    metrics = {name: value if name in kept else None for name, value in report.metrics.items()}
    if disclosure == "loss":
        return replace(report, metrics=metrics)
    if report.columns:
        return replace(report, metrics=metrics, weights=(1.0,), columns=(report.peer,))
    own = tuple(float(peer == report.peer) for peer in report.weight_by_peer)
    return replace(report, metrics=metrics, weights=own)


def protected(
    report: Report, policy: ReportPolicy, sizes: Mapping[str, int], rarest: int = 0
) -> Report:
    """Return the report of a peer on own data, rounded so that it does not identify examples.

    A number taken over m examples is rounded to `precision(m)`: a share as it is, anything else
    relative to its own power of ten. Weights keep two decimals. `sizes` are examples by part;
    `rarest` is the number of test examples of the rarest class, or with an event, 0 if too few:
    then measures per class, which may concern one person, are omitted.
    """
    metrics = {
        name: value
        if value is None or name in (*TRAFFIC, "epsilon")  # rounding down would promise too much
        else _protected(name, value, policy.training, sizes, rarest)
        for name, value in report.metrics.items()
    }
    weights = tuple(round(weight, _WEIGHT_DIGITS) for weight in report.weights)
    return limited(replace(report, metrics=metrics, weights=weights), policy.disclosure)


def numbers_in(report: Report) -> dict[str, float]:
    """Return the metrics of a `protected` report that depend on own examples."""
    free = (*TRAFFIC, "epsilon")
    return {k: v for k, v in report.metrics.items() if isinstance(v, float) and k not in free}


def precision(examples: int) -> float:
    """Return the largest of 1, 0.5, 0.2, 0.1, ... up to 0.5 / sqrt(examples)."""
    # The bound is a share's largest standard error: finer digits describe these examples only.
    return step_below(0.5 / math.sqrt(examples))


def step_below(error: float) -> float:
    """Return the largest of ..., 1, 2, 5, 10, 20, ... up to a positive number."""
    power = 10.0 ** math.floor(math.log10(error))
    return max(step * power for step in (1, 2, 5) if step * power <= error * (1 + 1e-9))


def _protected(
    name: str, value: float, training: bool, sizes: Mapping[str, int], rarest: int
) -> float | int | None:
    if name in PER_CLASS:
        return to_step(value, precision(rarest)) if rarest else None
    part = "test" if name in MEASURES else next((p for p in _PARTS if f"{p}_" in name), "")
    if not part and isinstance(value, int):  # counts of work
        return value
    if not part:  # it is unknown
        return _relative(value, min(filter(None, map(sizes.get, _PARTS))))
    if not sizes[part] or (part == "train" and not training):
        return None
    if name.endswith("accuracy") or name in SHARES:
        return to_step(value, precision(sizes[part]))
    return _relative(value, sizes[part])


def _relative(value: float, examples: int) -> float:
    if value == 0:
        return 0.0
    return to_step(value, precision(examples) * 10.0 ** math.floor(math.log10(abs(value))))


def to_step(value: float, step: float) -> float:
    """Round to a multiple of `step`, without the digits that binary fractions add."""
    return float(f"{round(value / step) * step:.12g}")
