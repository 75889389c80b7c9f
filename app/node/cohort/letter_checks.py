"""Leave out implausibly large models and answers, and answers beyond the privacy budget.

A recipient compares the norms of letters received in a round with their median m and spread s, the
median of |log(norm / m)|. It refuses models above 3 m exp(6 s), and answers above 10 m exp(6 s),
because honest gradients differ more: that of a converged peer is small. The recipient's own model
counts as one of the models. Of an even number of norms, m is the lower median and s the upper one:
if half of the peers have converged, the others are not refused. With fewer than three norms there
is no median to trust, and only a model with 1000 times the norm of the recipient's is refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.app.wire.payload import LetterFormat
from coterie.clients.engine.engine import Engine
from coterie.clients.letters import Bools, Letters

Floats = npt.NDArray[np.float64]

_OF_MODELS, _OF_ANSWERS, _OF_OWN = 3.0, 10.0, 1000.0
_SPREADS = 6.0
_log = logging.getLogger("coterie.letters")
_ENOUGH = 3  # minimum number of norms: a single outlier is not the median


def oversized_models(offers: Letters) -> Bools:
    """Mark the models that are far larger than the others that their recipient knows, (E,)."""
    size_s = _norms(offers.tensors, len(offers.authors))
    size_e = size_s[offers.rows]
    large_e = np.zeros(len(offers), dtype=np.bool_)
    for peer in np.unique(offers.recipients):
        mine = offers.recipients == peer
        own_size, received = size_s[offers.authors == peer], size_e[mine]
        known = np.concatenate([own_size, received])
        if len(known) >= _ENOUGH:
            large_e[mine] = received > limit(known, _OF_MODELS)
        elif own_size.any():
            large_e[mine] = received > _OF_OWN * own_size[0]
    return large_e


def oversized_answers(answers: Letters) -> Bools:
    """Mark the answers that are far larger than the other answers to their recipient, (E,)."""
    size_e = _norms(answers.tensors, len(answers.authors))[answers.rows]
    large_e = np.zeros(len(answers), dtype=np.bool_)
    for peer in np.unique(answers.recipients):
        mine = answers.recipients == peer
        if mine.sum() >= _ENOUGH:
            large_e[mine] = size_e[mine] > limit(size_e[mine], _OF_ANSWERS)
    return large_e


def limit(sizes_k: Floats, times: float) -> float:
    """Return `times` m exp(6 s) with median m and spread s of some norms; infinity if m is 0."""
    median = np.sort(sizes_k)[(len(sizes_k) - 1) // 2]
    if median == 0:
        return np.inf
    apart_k = np.abs(np.log(sizes_k[sizes_k > 0] / median))
    spread = np.sort(apart_k)[len(apart_k) // 2]
    with np.errstate(over="ignore"):
        return float(times * median * np.exp(_SPREADS * spread))


def malformed_models(engine: Engine, offers: Letters) -> Bools:
    """Mark models that their library cannot have fitted, such as trees with a cycle, (E,)."""
    if engine.library is None or not len(offers):
        return np.zeros(len(offers), dtype=np.bool_)
    wrong_e: Bools = engine.library.malformed(offers["x"])[offers.rows]
    for sender, peer in zip(offers.senders[wrong_e], offers.recipients[wrong_e], strict=True):
        _log.warning("peer=%d refused the model of peer %d: it is not well formed", peer, sender)
    return wrong_e


def _norms(tensors: Mapping[str, Tensor], rows: int) -> Floats:
    """Return the Euclidean norms of rows over all floating-point tensors, (S,)."""
    squares_s = np.zeros(rows)
    for value in tensors.values():
        if value.is_floating_point() and value.numel():
            norm_s = torch.linalg.vector_norm(value.reshape(len(value), -1), dim=1)
            squares_s += norm_s.double().cpu().numpy() ** 2
    norms: Floats = np.sqrt(squares_s)
    return norms


def within_budget(
    engine: Engine, asked: Letters, tensors: Mapping[str, Tensor], form: LetterFormat
) -> Letters:
    """Return answers as letters, without those of peers whose privacy budget is used up."""
    if engine.guard is not None and engine.guard.exhausted.any():
        paid = ~engine.guard.exhausted[np.searchsorted(engine.peers, asked.recipients)]
        at = torch.from_numpy(paid)
        asked, tensors = asked.select(paid), {name: value[at] for name, value in tensors.items()}
    answerers, rows = asked.recipients, np.arange(len(asked))
    return Letters(answerers, asked.senders, rows, answerers, form.rounded(tensors))
