"""Inbox: tables over the hosted peers and all peers, by hand."""

from __future__ import annotations

import numpy as np
import torch

from coterie.clients.inbox import Inbox
from coterie.clients.letters import Ints, Letters
from coterie.clients.rule import State
from tests.kit import engine_of
from tests.problems import classification

HOSTED = [1, 3]


def letters(edges: list[tuple[int, int]], authors: list[int], name: str, d: int) -> Letters:
    """Return letters along (sender, recipient), whose author a wrote the vector a + 1."""
    ends = np.array(edges, dtype=np.int64).reshape(-1, 2)
    rows: Ints = np.searchsorted(authors, ends[:, 0])
    x = torch.add(torch.tensor(authors).double()[:, None], torch.ones(d).double())
    return Letters(ends[:, 0], ends[:, 1], rows, np.array(authors), {name: x})


def test_tables_of_the_received_models() -> None:
    engine = engine_of(classification([6, 7, 8, 9]), peers=HOSTED)
    inbox = Inbox(engine, 1, letters([(0, 1), (3, 1), (2, 3)], [0, 1, 2, 3], "x", engine.d))
    heard = np.array([[1, 0, 0, 1], [0, 0, 1, 0]]) > 0
    assert np.array_equal(inbox.heard, heard)
    assert np.array_equal(inbox.present, heard | (np.eye(4)[HOSTED] > 0))
    assert inbox.table([5, 6, 7]).tolist() == [[5, 0, 0, 6], [0, 0, 7, 0]]
    assert inbox.by_peer([[1, 2, 3, 4]]).tolist() == [[1, 2, 3, 4]]
    squares = engine.d * np.array([[1, 0, 0, 4], [0, 0, 1, 0]])
    assert np.array_equal(inbox.squared_distances("x"), squares)
    assert inbox.mix("x", np.array([[1, 0, 0, 1], [0, 0, 1, 0]]))[:, 0].tolist() == [5, 3]
    mean = inbox.average("x", np.ones((2, 4)))[:, 0]  # over the received models and the own one
    np.testing.assert_allclose(mean, [(1 + 4 + 2) / 3, (3 + 4) / 2], rtol=1e-15)


def test_products_of_pairs_that_answered_each_other() -> None:
    """Peer 1 answered 0 and 2 and heard back from 2 and 3: only the pair with 2 met."""
    engine = engine_of(classification([6, 7, 8, 9]), peers=HOSTED)
    sent = letters([(1, 0), (1, 2)], [1], "g", engine.d)
    back = letters([(2, 1), (3, 1)], [2, 3], "g", engine.d)
    inbox = Inbox(engine, 1, letters([], [1, 3], "x", engine.d), sent, back)
    assert np.array_equal(inbox.replied, np.array([[0, 0, 1, 1], [0, 0, 0, 0]]) > 0)
    assert inbox.exchanged("g").tolist() == [[0, 0, 2 * 3 * engine.d, 0], [0, 0, 0, 0]]


def test_losses_of_received_models_on_own_data() -> None:
    engine = engine_of(classification([6, 7, 8, 9]), peers=HOSTED)
    inbox = Inbox(engine, 1, letters([(0, 1)], [0, 1, 3], "x", engine.d))
    own = State(inbox["x"][inbox.own], engine.network.buffers(2), {})
    losses = inbox.losses(own, "train", own=True)
    assert np.isnan(losses).tolist() == [[False, False, True, True], [True, True, True, False]]
    alone = engine.losses(own.x, own.buffers, "train").losses.numpy()
    np.testing.assert_array_equal(losses[[0, 1], HOSTED], alone)
    assert np.isfinite(inbox.losses(own, "train")).sum() == 1
