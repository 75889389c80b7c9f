"""Clearance: the attacks of `coterie.clients.leakage` on the letters of hosted peers.

Each peer attacks its own letters, on its own examples; nothing leaves for it. What was measured of
a letter is a mapping, ready for JSON; a key is missing where the letter allows no such attack:

- members, held_out, threshold, ratio: `leakage.membership` by the letter's model, or, where the
  letter has no whole model, by that of the sender ("behind": true); of an answer, by its direction:
  the loss of an example in a gradient grows along it.
- fewest: minimum number of patients behind a leaf, a column of a curvature, the mean of a class.
- thresholds: share of a tree's thresholds that are values of patients.
- readable: number of patients with a row that can be read off a gradient.

Legend: d = parameters, n = examples, s = rows of a stack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from coterie.app.wire.increments import MODEL
from coterie.clients import leakage
from coterie.clients.engine.data import SplitName
from coterie.clients.engine.engine import Engine
from coterie.clients.engine.network import Buffers
from coterie.clients.letters import Floats, Letters, no_letters
from coterie.clients.models.fitted import Fitted

Measured = dict[str, Any]
_STEP = 1e-2  # along an answer, relative to the model
SUMS = frozenset({"letter", "prototypes"})
"""Tensors of an offer that are sums over patients: a curvature, means of classes."""


def of_offers(engine: Engine, state: Any, offers: Letters) -> dict[int, Measured]:
    """Return by author what its offer tells; `state` is that of all hosted peers."""
    measured: dict[int, Measured] = {}
    for s, peer in enumerate(offers.authors.tolist()):
        p = int(np.searchsorted(engine.peers, peer))
        tensors = {name: value[s] for name, value in offers.tensors.items() if value[s].numel()}
        if not tensors:  # such as the body of a network of one layer
            continue
        has_model = MODEL in tensors and tensors[MODEL].shape == (engine.d,)
        x_d = tensors[MODEL] if has_model else state.x[p]
        result = _membership(engine, p, partial(_fits, engine, p, x_d, state.buffers))
        measured[peer] = result | ({} if has_model or not result else {"behind": True})
        measured[peer] |= _described(engine, p, tensors) | _readable(engine, p, tensors)
    return measured


def of_answers(
    engine: Engine, state: Any, sent: Letters, received: Letters
) -> dict[tuple[int, int], Measured]:
    """Return by sender and recipient what an answer tells; `received` are the offers it answers."""
    measured: dict[tuple[int, int], Measured] = {}
    for row, (peer, reader) in zip(sent.rows.tolist(), sent.ends.tolist(), strict=True):
        p = int(np.searchsorted(engine.peers, peer))
        tensors = {name: value[row] for name, value in sent.tensors.items()}
        measured[peer, reader] = _readable(engine, p, tensors)
        asked = (received.senders == reader) & (received.recipients == peer)
        gradients = _gradients(engine, tensors)[:1]  # others are parts of the same
        if gradients and MODEL in received.tensors and asked.any():
            x_d = received[MODEL][received.rows[asked][0]]
            slopes = partial(_slopes, engine, p, x_d, gradients[0], state.buffers)
            measured[peer, reader] |= _membership(engine, p, slopes)
    return measured


def in_reports(
    engine: Engine, state: Any, offers: Letters, sent: Letters
) -> dict[int, dict[str, float | None]]:
    """Return what a simulation reports about its peers' letters, by peer."""
    measured = of_offers(engine, state, offers)
    for (peer, _), answer in of_answers(engine, state, sent, no_letters()).items():
        of_peer = measured.setdefault(peer, {})
        of_peer["readable"] = max(of_peer.get("readable", 0), answer.get("readable", 0))
    return {peer: _metrics(measured.get(peer, {})) for peer in engine.peers.tolist()}


def _metrics(measured: Measured) -> dict[str, float | None]:
    risks = {name: measured.get(name) for name in ("fewest", "readable")}
    for name in ("auc", "tpr"):
        estimate = leakage.worst(measured, name)
        risks[name] = estimate[0] if estimate else None
    return {f"letter_{name}": value for name, value in risks.items()}


def _membership(engine: Engine, p: int, evidence: Callable[[SplitName], Floats]) -> Measured:
    """Return `leakage.membership` of a peer's training examples against its held-out ones."""
    if engine.kind == "quadratic":  # there are no examples
        return {}
    parts, first, splits = list[tuple[Any, ...]](), 0, ("train", "test", "validation")
    for split in cast("tuple[SplitName, ...]", splits):
        shard, groups_n = engine.data.shards[split], engine.data.groups(split, p)
        count = int(shard.lengths_p[p])
        is_class = engine.kind == "classification"
        classes_n = shard.targets_pn[p, :count].cpu().numpy() if is_class else np.zeros(count)
        own_n = np.arange(first, first + count) if groups_n is None else groups_n
        parts.append((evidence(split)[:count], classes_n, own_n))
        first += count
    held_out = [np.concatenate(pair) for pair in zip(*parts[1:], strict=True)]
    return leakage.membership(*zip(parts[0], held_out, strict=True))


def _fits(engine: Engine, p: int, x_d: Tensor, buffers: Buffers, split: SplitName) -> Floats:
    """Return how well a model fits the examples of a split, (n,)."""
    of_p = {name: value[p : p + 1] for name, value in buffers.items()}
    losses_n = engine.example_losses(x_d[None], of_p, split, np.array([p]))[0]
    is_likelihood = engine.kind in ("classification", "language", "survival")
    return leakage.evidence(losses_n.double().cpu().numpy(), bounded=is_likelihood)


def _slopes(
    engine: Engine, p: int, x_d: Tensor, g_d: Tensor, buffers: Buffers, split: SplitName
) -> Floats:
    """Return how fast the losses of a split grow from x along a gradient, (n,), up to a factor."""
    step = _STEP * max(float(x_d.norm()), 1.0) / max(float(g_d.norm()), 1e-12)
    of_p = {name: value[[p, p]] for name, value in buffers.items()}
    x_2d = torch.stack([x_d, x_d + step * g_d])
    losses_2n = engine.example_losses(x_2d, of_p, split, np.array([p, p])).double().cpu().numpy()
    return np.asarray(losses_2n[1] - losses_2n[0])


def _described(engine: Engine, p: int, tensors: Mapping[str, Tensor]) -> Measured:
    """Return on how few patients a number of trees, of a curvature or of a mean depends."""
    if tensors.keys() & SUMS:
        rows_nm, targets_n, groups_n = engine.training_rows(p)
        if "letter" in tensors:
            letter = tensors["letter"].double().cpu().numpy()
            rows_nm = rows_nm[:, leakage.curved(letter, rows_nm.shape[1])]
            counts = leakage.differing(rows_nm, groups_n).tolist()
        else:
            counts = [leakage.units(targets_n == k, groups_n) for k in np.unique(targets_n)]
        return {"fewest": min(filter(None, counts), default=None)}
    named = {} if engine.library is None else engine.network.named(tensors[MODEL][None])
    for name in named:
        start = name.removesuffix("left")
        if start == name or not named[name].any():
            continue  # no trees, or trees of another kind than the peer's
        rows_nm, _, groups_n = engine.training_rows(p)
        module = engine.network.module.get_submodule(start.rstrip("."))
        step = 2 * cast("Fitted", module).threshold_step
        fitted_nm = np.round(rows_nm / step) * step if step else rows_nm
        tree = {k: named[start + k][0].double().cpu().numpy() for k in leakage.TREE}
        fewest = min(leakage.leaves(tree, fitted_nm, groups_n))
        return {"fewest": fewest, "thresholds": leakage.thresholds(tree, rows_nm)}
    return {}


def _gradients(engine: Engine, tensors: Mapping[str, Tensor]) -> list[Tensor]:
    """Return the tensors of a letter that are gradients, or sums of them."""
    others = (value for name, value in tensors.items() if name != MODEL)
    return [value for value in others if value.shape == (engine.d,) and value.any()]


def _readable(engine: Engine, p: int, tensors: Mapping[str, Tensor]) -> Measured:
    """Return how many patients' rows gradients contain, of a network that begins with a layer."""
    network, gradients = engine.network, _gradients(engine, tensors)
    is_layer = len(network.shapes) > 1 and network.shapes[1] == network.shapes[0][:1]
    if not gradients or not is_layer or engine.kind in ("quadratic", "language"):
        return {}
    rows_nm, _, groups_n = engine.training_rows(p)
    if network.shapes[0][1:] != rows_nm.shape[1:]:
        return {}
    counts = []
    for g_d in gradients:
        weight_jm, bias_j = (t[0].double().cpu().numpy() for t in network.tensors(g_d[None])[:2])
        counts.append(leakage.readable(weight_jm, bias_j, rows_nm, groups_n))
    return {"readable": max(counts)}
