"""The benchmark of large populations, in small: without the commands of Flower and of `app run`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import population
from benchmarks.dealt import dealt
from benchmarks.peers import loop
from benchmarks.peers.commands import Taken, carried_out, show, ways, write_data
from coterie.app.config.schema import Scalar
from coterie.datasets import plugins
from coterie.datasets.source import Source

EACH = 12


def bands(peers: int, seed: int) -> Source:
    """Return images of MNIST's size with a bright band at the place of the class."""
    g = np.random.default_rng(seed)
    labels = g.integers(10, size=2 * EACH * peers)
    inputs = g.integers(0, 60, size=(len(labels), 1, 28, 28), dtype=np.uint8)
    inputs[np.arange(len(labels)), :, 2 * labels] += 190
    train, test = np.arange(len(labels)).reshape(2, -1)
    return dealt(Source("bands", inputs, labels, train, test, 10), peers, seed)


@pytest.fixture
def images(monkeypatch: pytest.MonkeyPatch) -> None:
    name = plugins.register("dataset", "bands", bands)
    monkeypatch.setitem(population.IMAGES, "dataset", name)


def test_each_peer_gets_its_share_of_both_parts() -> None:
    source = bands(5, 0)
    assert source.groups is not None
    for rows in (source.train, source.test):
        assert np.bincount(source.groups[rows]).tolist() == [EACH] * 5


@pytest.mark.usefixtures("images")
@pytest.mark.parametrize("method", ["fedavg", "cobo"])
def test_a_population_is_measured(method: str) -> None:
    row = population.measure((method, "linear", 50, 5), 3)
    assert row["round"] > 0
    assert 0 < row["GiB"] < 8
    assert 0 < row["MiB of checkpoints"] < 10


@pytest.mark.usefixtures("images")
def test_the_plain_loop_trains_on_the_same_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_data({**population.IMAGES, "peers": 20}, tmp_path)
    loop.main("linear", tmp_path, 20, 10, 8)
    before, after = map(float, capsys.readouterr().out.split())
    assert after > 0.9 > 0.4 > before


@pytest.mark.e2e
@pytest.mark.long
@pytest.mark.usefixtures("images")
def test_every_client_of_the_stock_flower_app_trains_on_the_same_data(tmp_path: Path) -> None:
    write_data({**population.IMAGES, "peers": 20}, tmp_path)
    flat: dict[str, Scalar] = {**population.IMAGES, "model": "linear", "peers": 20}
    assert carried_out(ways(flat, 8, 10, tmp_path)["flower"]).accuracy > 0.9


def test_a_row_says_how_fast_and_good_each_way_was(capsys: pytest.CaptureFixture[str]) -> None:
    show("linear", 10, {"loop": [Taken(2.0, 1.5, 0.5)], "inline": [Taken(4.0, 3.0, 0.75)]})
    _, row = map(json.loads, capsys.readouterr().out.splitlines())
    assert (row["rounds a second"], row["times as fast as the loop"]) == (2.5, 0.5)
    assert row["accuracy"] == 0.75
