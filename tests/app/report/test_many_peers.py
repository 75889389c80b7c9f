"""Report of a thousand peers: size, numbers, and captions that state what is left out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coterie.app.report import figures
from coterie.app.runs.rundir import PartSplit, PeerSplit, Run
from tests.app.fake_run import write_config, write_metrics
from tests.app.report.pages import Page, decoded, page_of, toured

PEERS, CLUSTERS, ROUNDS = 1000, 8, 40


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run of a thousand peers in eight clusters, with larger weights inside a cluster."""
    directory = tmp_path_factory.mktemp("run")
    write_config(directory, {"peers": PEERS})
    write_metrics(directory, [])
    rng = np.random.default_rng(0)
    cluster_n = np.arange(PEERS) % CLUSTERS
    accuracy = 0.9 - 0.8 * np.exp(-np.arange(ROUNDS) / 9)[:, None] * rng.uniform(0.7, 1, PEERS)
    names = ("test_accuracy", "test_loss", "validation_accuracy", "validation_loss", "train_loss")
    costs = ("bytes_sent", "bytes_received", "gradient_evaluations")
    shapes = dict.fromkeys(names, accuracy) | dict.fromkeys(costs, 1e6 * accuracy)
    same_nn = cluster_n[:, None] == cluster_n
    weights_nn = rng.random((PEERS, PEERS)) * np.where(same_nn, 1.0, 0.3)
    weights_nn /= weights_nn.sum(axis=1, keepdims=True)
    train = PartSplit(size=60, labels=[6] * 10)
    return replace(
        Run.read(directory),
        rounds=np.arange(ROUNDS),
        metrics={name: each + 0.01 * rng.random(each.shape) for name, each in shapes.items()},
        reported=np.ones((ROUNDS, PEERS), dtype=np.bool_),
        weight_rounds=np.arange(20),
        weights=np.broadcast_to(weights_nn, (20, PEERS, PEERS)),
        split=tuple(PeerSplit(cluster=int(c), train=train) for c in cluster_n),
    )


@pytest.fixture(scope="module")
def path(run: Run) -> Path:
    return page_of(run)


@pytest.mark.slow
def test_the_page_is_small_and_says_what_it_leaves_out(path: Path) -> None:
    page = Page(path)
    assert path.stat().st_size < 1_500_000
    assert "16 of 40 evaluated rounds" in page.text
    assert "16 of 20 recorded rounds" in page.text
    assert "1 per peer, 3 of a selected peer; ties are broken at random" in page.text
    assert "the mean over two blocks of 10 to 11 peers" in page.text
    assert "mean over a block of 10 to 11 peers" in page.text
    for rounds, last in ((page.data["rounds"], 39), (page.data["graph"]["rounds"], 19)):
        assert (rounds[0], rounds[-1]) == (0, last), "the ends are never thinned out"


@pytest.mark.slow
def test_every_peer_is_there(run: Run, path: Path) -> None:
    data = Page(path).data
    accuracy = decoded(data["metrics"]["test_accuracy"], 3, -1, PEERS)
    np.testing.assert_allclose(accuracy, run.metric("test_accuracy")[data["rounds"]], rtol=2**-16)
    np.testing.assert_allclose(data["last"]["test_accuracy"], run.metric("test_accuracy")[-1], 1e-5)
    assert sorted(data["order"]) == list(range(PEERS))
    links = data["graph"]["links"]
    first = decoded(links["to"], 3, -1, PEERS, links["each"])[-1, :, 0]
    others = np.where(np.eye(PEERS, dtype=np.bool_), -1.0, run.weights[-1])
    np.testing.assert_array_equal(first, others.argmax(axis=1))


@pytest.mark.slow
def test_the_pictures_show_bands_and_blocks(run: Run) -> None:
    drawn, _ = figures.write(figures.pictures(run), run.directory, "png")
    assert [picture.name for picture in drawn] == ["curves.png", "collaboration.png"]
    for picture in drawn:
        assert picture.stat().st_size < 200_000


@pytest.mark.e2e
def test_the_script_runs_in_a_browser(path: Path) -> None:
    dom = toured(path)
    table = dom[dom.index('id="peers"') : dom.index("</table>")]
    assert table.count("<tr") == 2 + 50, "a page of them"
    assert "951 to 1000 of 1,000" in dom
