"""Test the peak memory of training: state, and gradients and activations of one chunk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from coterie.app.node.cohort.cohort import HostedPeers
from coterie.clients.engine import tuning
from coterie.clients.engine.engine import Engine
from coterie.clients.letters import Letters, Part
from coterie.clients.methods.cobo import CoBo
from coterie.clients.training import Terms, Training
from coterie.strategies.exchange_plan import Round
from tests.kit import engine_of
from tests.problems import classification

PEERS, BATCH = 16, 8


class Peak(TorchDispatchMode):
    """Record the peak number of bytes of tensors that are created inside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most = 0
        self._held = 0  # by `_live`, some of which may be gone
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and loading the compiler takes seconds

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        outputs = func(*args, **(kwargs or {}))
        inputs = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if _real(t)}
        for tensor in filter(_real, tree_leaves(outputs)):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in inputs:
                _, before = self._live.get(storage.data_ptr(), (None, 0))
                self._live[storage.data_ptr()] = StorageWeakRef(storage), storage.nbytes()
                self._held += storage.nbytes() - before
        if self._held > self.most:  # only then it matters what is gone
            self._live = {k: v for k, v in self._live.items() if not v[0].expired()}
            self._held = sum(size for _, size in self._live.values())
            self.most = max(self.most, self._held)
        return outputs


def _real(value: object) -> bool:
    return isinstance(value, Tensor) and value.untyped_storage().nbytes() > 0


def peak(call: Callable[[], object]) -> int:
    with Peak() as watched:
        call()
    most: int = watched.most
    return most


def small(model: str, shape: tuple[int, ...], chunk: int, **training: Any) -> Engine:
    problem = classification([BATCH] * PEERS, shape=shape, classes=10)
    setting = Training(batch_size=BATCH, local_steps=2, **training)
    backend = "auto" if model == "mlp" or chunk == 1 else "vmapped"
    return engine_of(
        problem, model, training=setting, dtype="float32", chunk=chunk, backend=backend
    )


MODELS = [("mlp", (1, 28, 28)), ("lenet", (3, 32, 32))]


@pytest.mark.parametrize(("model", "shape"), MODELS)
def test_an_engine_holds_no_model(model: str, shape: tuple[int, ...]) -> None:
    """A deployed node has one model: a template of its own would be a second one."""
    engine = small(model, shape, 1)
    assert sum(each.untyped_storage().nbytes() for each in engine.network.module.parameters()) < 100


@pytest.mark.parametrize("chunk", [1, 4, 16])
@pytest.mark.parametrize(("model", "shape"), MODELS)
def test_training_holds_the_new_state_and_one_chunk(
    model: str, shape: tuple[int, ...], chunk: int
) -> None:
    """Weights and momentum of everyone, and what the engine says that one model holds, for each
    model of a chunk: by this bound it chooses chunks. The old state is the caller's.
    """
    engine = small(model, shape, chunk, momentum=0.9)
    x_pd, buffers = engine.initial()
    opt_state, batches = engine.opt_state(x_pd), engine.batches(1)
    most = peak(lambda: engine.fit(x_pd, buffers, opt_state, batches))
    state = 2 * x_pd.nbytes
    a_chunk = chunk * engine.holds(BATCH)
    assert state + a_chunk / 4 < most <= state + a_chunk


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize(("model", "shape"), MODELS)
def test_answers_hold_the_gradients_and_one_chunk(
    model: str, shape: tuple[int, ...], chunk: int
) -> None:
    engine = small(model, shape, chunk)
    x_pd, buffers = engine.initial()
    batch = engine.batches(1)[0]
    most = peak(lambda: engine.gradients(x_pd, buffers, batch))
    assert x_pd.nbytes < most <= x_pd.nbytes + chunk * engine.holds(BATCH)


@pytest.mark.some(1)
@pytest.mark.slow
@pytest.mark.parametrize("chunk", [1, 4])
def test_a_round_of_cobo_holds_the_gradients_of_all_pairs_and_nothing_else_of_that_size(
    chunk: int,
) -> None:
    engine = small("mlp", (1, 28, 28), chunk)
    rule = CoBo().bind(engine, rounds=1)
    state = rule.init()
    ends = np.array([(i, k) for k in range(PEERS) for i in range(PEERS) if i != k])
    senders, recipients = ends.T
    asked = Letters(senders, recipients, senders, np.arange(PEERS), {"x": state.x})
    most = peak(lambda: rule.answer(state, rule.inbox(1, asked)))
    row = state.x[0].nbytes
    assert len(ends) * row < most <= len(ends) * row + chunk * (engine.holds(BATCH) + 3 * row)

    g_ed = rule.answer(state, rule.inbox(1, asked))["g"]
    back = Letters(recipients, senders, np.arange(len(ends)), recipients, {"g": g_ed})
    by_recipient = np.lexsort((back.senders, back.recipients))
    answers = Letters(senders, recipients, by_recipient, recipients, {"g": g_ed})
    updating = peak(lambda: rule.update(state, rule.inbox(1, asked, back, answers)))
    mixing = 5 * state.x.nbytes  # the pull, and two blocks of `mix` in float64
    assert updating <= mixing + chunk * engine.holds(BATCH) < len(ends) * row


@pytest.mark.parametrize("pairs", [1, 8])
def test_a_node_of_all_peers_holds_the_answers_of_a_block_of_pairs(
    monkeypatch: pytest.MonkeyPatch, pairs: int
) -> None:
    engine = small("mlp", (1, 28, 28), 1)
    cohort = HostedPeers(engine, CoBo().bind(engine, rounds=2), 2, in_pairs=True)
    row = cohort.state.x[0].nbytes
    monkeypatch.setattr(tuning, "ANSWER_BYTES", tuning.Threshold(2 * pairs * row, 0))
    ends = np.array([(k, i) for i in range(PEERS) for k in range(PEERS) if i != k])
    this = Round(1, ends, np.ones(len(ends), dtype=np.bool_), evaluated=False)
    cohort.begin(1)
    answering = peak(lambda: cohort.exchange(this))
    assert not cohort.sent.tensors
    compared = 32 * tuning.SUM_CELLS.cpu  # both ends of a pair, also in float64
    bound = 2 * pairs * row + max(engine.holds(BATCH) + 3 * row, compared)
    assert answering <= bound < len(ends) * row / 4


def test_a_drift_adds_one_chunk_of_it() -> None:
    """CoBo's pull: a direction of the chunk that takes its step, not of everyone."""
    engine = small("mlp", (1, 28, 28), 1, momentum=0.9)
    x_pd, buffers = engine.initial()
    opt_state, batches = engine.opt_state(x_pd), engine.batches(1)

    def pull(x_ed: Tensor, at: Part) -> Tensor:
        return 0.1 * x_ed - x_pd[at]

    plain = peak(lambda: engine.fit(x_pd, buffers, opt_state, batches))
    pulled = peak(lambda: engine.fit(x_pd, buffers, opt_state, batches, terms=Terms(pull)))
    assert pulled <= plain + 2 * x_pd[0].nbytes


def test_mixing_needs_no_second_copy_of_the_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "SUM_COLUMNS", tuning.Threshold(1000, 1000))
    monkeypatch.setattr(tuning, "SUM_CELLS", tuning.Threshold(1000, 1000))
    engine = small("mlp", (1, 28, 28), 1)
    x_pd, _ = engine.initial(common=False)
    weights_pp = torch.full((PEERS, PEERS), 1 / PEERS)
    block = 8 * 1000 * PEERS  # float64
    assert peak(lambda: engine.mix(weights_pp, x_pd)) < x_pd.nbytes + 3 * block
