"""Letters: what a rule reads from them."""

from __future__ import annotations

import pytest
import torch

from coterie.clients.letters import Letters, no_peers


def test_a_tensor_that_was_not_sent_is_named_with_those_that_were() -> None:
    letters = Letters(no_peers(), no_peers(), no_peers(), no_peers(), {"w": torch.zeros(0, 3)})
    assert letters["w"] is letters.tensors["w"]
    for read in (letters.__getitem__, letters.each, letters.rows_of):
        with pytest.raises(KeyError, match=r"no 'x' in these letters, they have \['w'\]"):
            read("x")
