"""Comparison of `coterie.clients.engine.robust` with byzfl on random letters.

    python -m studies.robust_rules [--cases 10000] [--costs]

A case is a rule, with or without nearest-neighbour mixing, on letters of which some are copies of
each other (ties), some whole numbers (ties in coordinates) and some not finite. Ours leaves these
out; byzfl, which would not, gets the others. It prints how far the two are apart, relative to the
largest number of a case. byzfl's geometric median is an iteration that stops early: there the
summed distances are compared, of which ours may be the smaller. Of letters with equal scores at
Krum's cut either may be chosen, so such cases are only counted. `--costs` prints what the rules
cost instead: CPU time for one recipient, as a multiple of the weighted mean's.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from typing import Any

import byzfl
import numpy as np
import numpy.typing as npt
import torch

from coterie.clients.defence import RULES as ALL_RULES
from coterie.clients.defence import Defence
from coterie.clients.engine import sums
from coterie.clients.engine.robust import Received, aggregated

Floats = npt.NDArray[np.float64]
RULES = [rule for rule in ALL_RULES if rule != "none"]
CLOSE = 1e-6


def letters(g: np.random.Generator) -> Floats:
    """Draw letters (k, d), in random order."""
    k, d = int(g.integers(3, 16)), int(g.integers(1, 6))
    x = g.normal(size=(k, d)) * 10.0 ** g.integers(-3, 4)
    if d > 1 and g.random() < 0.3:  # else distances tie, and which is nearest is open
        x[:, 0] = g.integers(-2, 3, k)
    if g.random() < 0.5:
        x = np.concatenate([x, x[g.integers(k, size=g.integers(1, 4))]])
    if g.random() < 0.5:
        bad = x[g.integers(k, size=g.integers(1, 4))].copy()
        bad[np.arange(len(bad)), g.integers(d, size=len(bad))] = g.choice([np.nan, np.inf, -np.inf])
        x = np.concatenate([x, bad])
    return g.permutation(x)


def ours(defence: Defence, x: Floats, own: Floats) -> Floats:
    """Return our aggregate (d,) with equal weights."""
    received = Received(np.arange(len(x)), np.full(len(x), 1 / len(x)), torch.from_numpy(own))
    result: Floats = aggregated(defence, torch.from_numpy(x), [received])[0].numpy()
    return result


def theirs(rule: str, x: Floats, f: int, own: Floats) -> Floats:
    """Return byzfl's aggregate of finite letters (k, d)."""
    away = np.linalg.norm(x - own, axis=1)
    radius = float(np.sort(away)[len(x) - f - 1])
    rules: dict[str, Any] = {
        "clip": lambda: byzfl.CenteredClipping(L=1, tau=radius),
        "median": byzfl.Median,
        "trimmed-mean": lambda: byzfl.TrMean(f),
        "krum": lambda: byzfl.Krum(f),
        "multi-krum": lambda: byzfl.MultiKrum(f),
        "geometric-median": lambda: byzfl.GeometricMedian(1e-9, 300),
    }
    result: Floats = rules[rule]()(x - own) + own  # its clipping is around 0
    return result


def tied(rule: str, x: Floats, f: int) -> bool:
    """Return True if different letters have equal scores at the cut of (multi-)Krum."""
    squares = ((x[:, None] - x) ** 2).sum(axis=2)
    scores = np.sort(squares, axis=1)[:, : len(x) - f].sum(axis=1)
    last = np.sort(scores)[0 if rule == "krum" else len(x) - f - 1]
    at_cut = x[np.isclose(scores, last, rtol=1e-9, atol=1e-20)]
    return bool(np.ptp(at_cut, axis=0).max() > CLOSE * np.abs(x).max())


def apart(rule: str, nnm: bool, x: Floats, tolerate: float, own: Floats) -> float | None:
    """Return the relative difference of the two; None if both may be right."""
    result = ours(Defence(rule, tolerate, nnm), x, own)
    x = x[np.isfinite(x).all(axis=1)]
    f = int(tolerate * len(x) + 1e-9)
    x = byzfl.NNM(f)(x) if nnm else x
    expected = theirs(rule, x, f, own)
    if rule.endswith("krum") and tied(rule, x, f):
        return None
    scale = float(np.abs(x).max()) or 1.0
    if rule == "geometric-median":
        costs = [np.linalg.norm(x - v, axis=1).mean() for v in (result, expected)]
        return max(0.0, float(costs[0] - costs[1])) / scale
    return float(np.abs(result - expected).max()) / scale


def cost(defence: Defence, k: int, d: int) -> float:
    """Return the CPU seconds of aggregating k letters of d numbers; minimum of 5."""
    x_kd = torch.from_numpy(np.random.default_rng(0).normal(size=(k, d))).float()
    weights = np.linspace(1, 2, k)
    received, seconds = Received(np.arange(k), weights / weights.sum(), x_kd[0]), []
    for _ in range(5):
        began = time.process_time()
        if defence.rule == "none":
            sums.mixed(received.weights[None], x_kd)
        else:
            aggregated(defence, x_kd, [received])
        seconds.append(time.process_time() - began)
    return min(seconds)


def show_costs(k: int = 10, d: int = 100_000) -> None:
    """Print a line per rule: without and with nearest-neighbour mixing."""
    torch.set_num_threads(1)
    mean = cost(Defence(), k, d)
    print(
        f"{k} letters of {d} numbers: mean {1000 * mean:.2f} ms; times as long, then mixed first:"
    )
    for rule in RULES:
        both = [Defence(rule, nnm=nnm) for nnm in (False, True)]
        plain, mixed = (cost(defence, k, d) / mean for defence in both)
        print(f"{rule:20}{plain:4.0f}{mixed:4.0f}")


def main() -> None:
    """Run the cases, and print a line per rule."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--costs", action="store_true")
    arguments = parser.parse_args()
    if arguments.costs:
        show_costs()
        return
    g = np.random.default_rng(arguments.seed)
    result = defaultdict[tuple[str, bool], list[float | None]](list)
    for case in range(arguments.cases):
        rule, nnm = RULES[case % len(RULES)], case // len(RULES) % 2 == 1
        x, own = letters(g), g.normal(size=1)
        own = np.resize(own, x.shape[1])
        tolerate = float(g.choice([0, 0.1, 0.2, 0.3, 0.45]))
        result[rule, nnm].append(apart(rule, nnm, x, tolerate, own))
    for (rule, nnm), values in sorted(result.items()):
        known = [value for value in values if value is not None]
        beyond = sum(not value < CLOSE for value in known)
        name = f"{rule}{' after mixing' if nnm else ''}"
        tally = f"{len(values):5} cases, {len(values) - len(known):3} tied"
        print(f"{name:30} {tally}, {beyond} beyond {CLOSE:g}, most {max(known):.1e}")


if __name__ == "__main__":
    main()
