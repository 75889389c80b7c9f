"""Methods for any model under attack: `python -m studies.hostile_members [--seeds 3]`.

Ten peers, two of them attackers, with every attack of the library and one that is made for these
methods: "leaf", an honest model that adds 2,000 to the score of class 0 (a network 37) where the
corner pixel of a digit is bright, as in no row of any peer. All else of it is honest, so that
held-out rows cannot tell. It prints two tables: accuracies of the honest peers, and how many of the
honest peers' test rows class 0 gets if their corner is bright, with the limits of scores and
without them. Finished runs are kept in `runs/hostile-members`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.keys import flatten
from coterie.app.config.preflight import problem_of
from coterie.app.config.schema import Scalar
from coterie.app.runs.rundir import Run
from coterie.app.trained.personal import personal_model
from coterie.clients.attack import ATTACKS, Attack, AttackKind, Knowledge
from studies.kept import kept

METHODS = ("mixture", "selection", "stacking", "boosting")
MODELS: Mapping[str, Mapping[str, Scalar]] = {
    "mlp": {
        "partition.validation": 0.25, "local-steps": 20, "learning-rate": 0.1,
        "num-server-rounds": 5,
    },
    "boosted-trees": {"boosted-trees.trees": 10, "num-server-rounds": 1},
}  # fmt: skip
COMMON: Mapping[str, Scalar] = {
    "dataset": "digits", "peers": 10, "partition.clusters": 1, "partition.samples-per-peer": 80,
    "batch-size": 16, "evaluate-every": 5, "device": "cpu",
}  # fmt: skip
OUT, SHARE, EXTRA = Path("runs/hostile-members"), 0.2, 2000.0
UNNOTICED = 20.0
"""As large a weight as a network can have whose norm is not refused."""
BRIGHT = 16.0
"""Value of a bright pixel; the corner is 0 in all 1,797 digits."""
SHAPES = {  # of the parameters of the two kinds of models, in order
    "mlp": [(64, 64), (64,), (10, 64), (10,)],
    "boosted-trees": [(100, 15), (100, 15), (100, 15), (100, 15, 1), (10,)],
}


def with_leaf(named: Mapping[str, Tensor], above: float = 0.0, extra: float = EXTRA) -> None:
    """Add `extra` to output 0 where feature 0, normalised, is above a number, in place.

    `named` are a model's tensors: those of trees, or of a network with one hidden layer.
    """
    if "feature" in named:
        for name, values in (("feature", (0,)), ("threshold", (above,)), ("left", (1, 0, 0))):
            named[name][0, : len(values)] = named[name].new_tensor(values)
        named["value"][0, :3, 0] = named["value"].new_tensor([0, 0, extra])
        return
    first, bias, last = (named[name] for name in ("1.weight", "1.bias", "3.weight"))
    first[0], bias[0], last[:, 0] = 0, -above, 0
    first[0, 0], last[0, 0] = 1, extra


def forged(known: Knowledge) -> Tensor:
    """Return the attacker's letter."""
    letter = known.own.clone()
    for names, shapes in zip(
        (("1.weight", "1.bias", "3.weight", "3.bias"),
         ("feature", "threshold", "left", "value", "base")),
        SHAPES.values(), strict=True,
    ):  # fmt: skip
        sizes = [math.prod(shape) for shape in shapes]
        if sum(sizes) == letter.numel():
            parts = zip(letter.split(sizes), shapes, strict=True)
            tensors = [part.view(shape) for part, shape in parts]
            extra = EXTRA if "feature" in names else UNNOTICED
            with_leaf(dict(zip(names, tensors, strict=True)), extra=extra)
    return letter


LEAF = AttackKind("y, with 2,000 more for class 0 where the corner is bright", forged)


def case(method: str, model: str, attack: str, seed: int) -> Run | None:
    """Return a run; None if the attack does nothing there."""
    flat = {**COMMON, **MODELS[model], "method": method, "model": model, "seed": seed}
    if method == "boosting":
        flat["num-server-rounds"] = 3
    if attack != "none":
        kind = attack if attack in ATTACKS else f"{__spec__.name}:LEAF"
        flat |= {"attack.kind": kind, "attack.share": SHARE}
    try:
        config = Config.from_flat(flat)
    except ConfigError:
        return None
    return kept(config, OUT)


def accuracy(run: Run) -> float:
    """Return the mean accuracy of the honest peers."""
    return float(run.at("test_accuracy", run.last_row())[_honest(run)].mean())


def decided(run: Run, *, limits: bool) -> float:
    """Return the share of class 0 in the honest peers' test rows with a bright corner."""
    problem, shares = problem_of(Config.from_flat(flatten(run.config))), []
    for peer in np.flatnonzero(_honest(run)).tolist():
        raw = torch.tensor(problem.inputs[problem.test.rows[peer]]).clone()
        raw[..., 0, 0] = BRIGHT
        model = personal_model(run.directory, peer)
        if not limits:
            model.low = None
        with torch.inference_mode():
            shares.append(float((model(raw).argmax(dim=1) == 0).double().mean()))
    return float(np.mean(shares))


def _honest(run: Run) -> np.ndarray:
    """Mask of the peers that are honest under attack."""
    mask = np.ones(run.peers, dtype=np.bool_)
    mask[Attack("scale", share=SHARE).attackers(run.peers, int(run.config["seed"]))] = False
    return mask


def lines(seeds: int) -> list[str]:
    """Return the two tables as Markdown."""
    columns = [(method, model) for model in MODELS for method in METHODS]
    columns.remove(("boosting", "mlp"))
    head = ["attack", *(f"{method}, {model}" for method, model in columns)]
    tables = [[head, ["---"] * len(head)] for _ in range(2)]
    for attack in (*ATTACKS, "leaf"):
        of = {at: [case(*at, attack, seed) for seed in range(seeds)] for at in columns}
        cells = [_mean([accuracy(run) for run in runs if run]) for runs in of.values()]
        tables[0].append([attack, *cells])
        if attack in ("none", "leaf"):
            for limits in (True, False) if attack == "leaf" else (True,):
                shares = (
                    [decided(run, limits=limits) for run in runs if run] for runs in of.values()
                )
                name = attack if limits else f"{attack}, without limits"
                tables[1].append([name, *map(_mean, shares)])
    return [f"| {' | '.join(row)} |" for table in tables for row in [*table, [""]]]


def _mean(values: Sequence[float]) -> str:
    """Return the mean over seeds in percent, and the standard deviation if there are several."""
    if not values:
        return "-"
    spread = f" ± {100 * np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    return f"{100 * np.mean(values):.1f}{spread}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    print("\n".join(lines(parser.parse_args().seeds)))


if __name__ == "__main__":
    main()
