"""What a node's reports disclose to the relay; its operator decides, not the run."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

from app.config.config import ConfigError
from strategies.protocol import Report

Disclosure = Literal["all", "loss", "none"]

TRAFFIC = ("bytes_sent", "bytes_received")
"""Metrics that the relay knows in any case."""
LOSSES = ("test_loss", "validation_loss", "train_loss")


def disclosure_of(value: object) -> Disclosure:
    """Check what --node-config says.

    Raises
    ------
    ConfigError
        It is none of the three.
    """
    for known in get_args(Disclosure):
        if value == known:
            return known  # type: ignore[no-any-return]
    raise ConfigError(f'report = {value!r} in --node-config wants "all", "loss" or "none"')


def limited(report: Report, disclosure: Disclosure) -> Report:
    """The report without what is not disclosed.

    "loss" keeps losses, traffic and the collaboration weights; "none" keeps traffic, and its
    weights are those of a peer that received nothing.
    """
    if disclosure == "all":
        return report
    kept = TRAFFIC + (LOSSES if disclosure == "loss" else ())
    metrics = {name: value if name in kept else None for name, value in report.metrics.items()}
    if disclosure == "loss":
        return replace(report, metrics=metrics)
    own = tuple(float(peer == report.peer) for peer in range(len(report.weights)))
    return replace(report, metrics=metrics, weights=own)
