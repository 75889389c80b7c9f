"""DisPFL: a plain loop, the masks, the letters, and its limits."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, cos, pi
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.app.config.config import Config, ConfigError
from coterie.clients.engine.streams import Purpose, stream
from coterie.clients.letters import Letters
from coterie.clients.methods.dispfl import DisPFL, entries
from tests.inline import Floats, run
from tests.kit import Plain, digits, quadratic, stacked
from tests.problems import write_quadratic
from tests.stepping import Stepping

N, D = 5, 11


def problem(directory: Path, **more: Any) -> dict[str, Any]:
    """Return the keys of a run on quadratics in eleven dimensions."""
    g = np.random.default_rng(2)
    flat: dict[str, Any] = write_quadratic(
        directory / "problem.json", g.uniform(0.3, 1.2, (N, D)), g.normal(size=(N, D)),
        g.normal(size=D), samples=[4, 1, 9, 2, 3],
    )  # fmt: skip
    return flat | {
        "method": "dispfl", "num-server-rounds": 6, "local-steps": 3, "learning-rate": 0.2,
        "momentum": 0.5, **more,
    }  # fmt: skip


def twin(flat: dict[str, Any], kept: int, prune: float, growth: str) -> tuple[Floats, Floats]:
    """Return models and masks of algorithm 1, entry by entry.

    A letter has the trained entries, those that the next mask drops among them; an entry that the
    next mask adds is the mean of the peers that trained it, or 0.
    """
    q = Plain(flat)
    mask = np.zeros((N, D))
    for i in range(N):
        mask[i, stream(0, i, 0, Purpose.CHOICE).permutation(D)[:kept]] = 1
    x = q.start * mask
    for t in range(1, q.rounds + 1):
        share = prune / 2 * (1 + cos(pi * (t - 1) / q.rounds))
        trained = mask.copy()
        for i in range(N):
            for _ in range(q.steps):
                g = q.a[i] * (x[i] - q.c[i]) * mask[i]
                q.velocity[i] = q.momentum * q.velocity[i] + g
                x[i] = x[i] - q.eta * q.velocity[i]
            merit = np.abs(q.a[i] * (x[i] - q.c[i]))
            if growth == "random":
                merit = stream(0, i, t, Purpose.CHOICE).random(D)
            replaced = ceil(share * kept)
            has = sorted(np.flatnonzero(mask[i]), key=lambda e: abs(x[i, e]))
            mask[i, has[:replaced]] = 0
            out = sorted(np.flatnonzero(mask[i] == 0), key=lambda e: -merit[e])
            mask[i, out[:replaced]] = 1
            q.velocity[i] *= mask[i]
        shown, x = x.copy(), np.zeros_like(x)
        for i in range(N):
            for e in np.flatnonzero(mask[i]):
                have = [j for j in range(N) if q.heard[i, j] and trained[j, e]]
                x[i, e] = sum(shown[j, e] for j in have) / len(have) if have else 0.0
    return x, mask


@pytest.mark.some(4)
@pytest.mark.parametrize(("topology", "nodes"), [("full", 1), ("ring", 5)])
@pytest.mark.parametrize(
    ("density", "prune", "growth"),
    [
        (0.5, 0.5, "gradient"),
        (0.3, 0.8, "random"),
        (0.8, 0.0, "gradient"),
        (0.8, 0.9, "gradient"),
        (1.0, 0.5, "random"),
    ],
)
def test_it_equals_a_plain_loop(
    tmp_path: Path, density: float, prune: float, growth: str, topology: str, nodes: int
) -> None:
    options = {"density": density, "prune": prune, "growth": growth}
    keys = {f"dispfl.{key}": value for key, value in options.items()}
    flat = problem(tmp_path, topology=topology, **keys)
    x, mask = twin(flat, round(density * D), prune, growth)
    result = run(flat, tmp_path, nodes)
    assert np.abs(result.theta() - x).max() < 1e-12
    assert (result.theta()[mask == 0] == 0).all()
    assert (len({tuple(row) for row in mask}) > 1) == (density < 1)


@pytest.mark.parametrize("topology", ["full", "ring"])
def test_with_all_entries_it_is_the_uniform_average(tmp_path: Path, topology: str) -> None:
    keys = {"dispfl.density": 1.0, "topology": topology}
    result = run(quadratic(tmp_path, "dispfl", **keys), tmp_path / "a")
    average = quadratic(tmp_path, "fedavg", topology=topology, mixing="uniform")
    assert np.abs(result.theta() - run(average, tmp_path / "b").theta()).max() < 1e-14
    network = run(digits("dispfl", dtype="float64", **keys), tmp_path / "c")
    fedavg = digits("fedavg", dtype="float64", mixing="uniform", topology=topology)
    assert (stacked(network) - stacked(run(fedavg, tmp_path / "d"))).abs().max() < 1e-13


def test_masks_keep_their_number_of_entries(tmp_path: Path) -> None:
    """In every tensor, in every round; entries outside are exactly 0 and masks do change."""
    flat = digits("dispfl", **{"num-server-rounds": 4, "dispfl.density": 0.3})
    stepping = Stepping(flat)
    rule, before = stepping.rule, stepping.state.mask.clone()
    assert isinstance(rule, DisPFL)
    for t in range(1, 5):
        state = stepping.to(t)
        assert (state.x[state.mask == 0] == 0).all()
        at = 0
        for size, kept in zip(rule.engine.network.sizes, rule.kept, strict=True):
            assert (state.mask[:, at : at + size].sum(dim=1) == kept).all()
            at += size
    assert (state.mask != before).any()
    assert sum(rule.kept) == pytest.approx(0.3 * rule.engine.d, abs=len(rule.kept))


def test_entries_by_hand() -> None:
    """Two matrices, 4 x 4 and 8 x 2: (4 + 4) / 16 = 1/2 and 10 / 16, a vector of 4: 4 / 4 = 1.

    Half of 36 parameters: scale s with s (8 + 10 + 4) = 18, so 6.5, 8.2 and 3.3. At 0.9 the vector
    would exceed 1 (s = 32.4 / 22), then both matrices: 28.4 / 18 = 1.58 times 10 / 16 = 0.99.
    """
    shapes = [(4, 4), (8, 2), (4,)]
    assert entries(shapes, 0.5) == [7, 8, 3]
    assert entries(shapes, 0.9) == [13, 16, 4]
    assert entries(shapes, 1.0) == [16, 16, 4]
    assert entries([(100, 100)], 1e-9) == [1]


def test_masks_travel_as_bits() -> None:
    rule = Stepping(digits("dispfl")).rule
    state, offers = rule.offer(rule.init(), 1)
    bits = offers["mask"]
    assert bits.dtype == torch.uint8
    assert bits.shape == (len(state.x), -(-rule.engine.d // 8))
    places = (bits[:, :, None] >> torch.arange(8)) & 1  # the lowest bit first
    assert torch.equal(places.flatten(1)[:, : rule.engine.d].bool(), state.mask > 0)


def test_a_mask_of_another_size_is_left_out(tmp_path: Path) -> None:
    """A letter that claims more entries than it has values changes nobody's model."""
    rule = Stepping(problem(tmp_path)).rule
    state, offers = rule.offer(rule.init(), 1)
    recipients, senders = np.nonzero(~np.eye(N, dtype=bool))
    letters = Letters(senders, recipients, senders, np.arange(N), offers)
    bits = offers["mask"].clone()
    bits[4] = 255
    lying = replace(letters, tensors={**offers, "mask": bits})
    without = letters.select(senders != 4)
    lied, expected = (rule.update(state, rule.inbox(1, each)) for each in (lying, without))
    assert lied.x[:4].equal(expected.x[:4])
    assert lied.w[:4].tolist() == expected.w[:4].tolist()
    assert lied.x[4].equal(state.x[4]) or lied.x[4].isfinite().all()


def test_robust_rules_are_refused() -> None:
    with pytest.raises(ConfigError, match=r'set defence\.rule = "none"'):
        Config.from_flat({"method": "dispfl", "defence.rule": "median"})


def test_an_attacker_s_values_are_false_also_where_the_mask_is_longer(tmp_path: Path) -> None:
    """At a density below 1/8 the bits of the mask are more bytes than there are values."""
    flat = digits("dispfl", **{"dispfl.density": 0.05})
    honest = stacked(run(flat, tmp_path / "honest"))
    attack = {"attack.kind": "sign-flip", "attack.peers": "2"}
    assert not stacked(run(flat | attack, tmp_path / "attacked"))[:2].equal(honest[:2])
