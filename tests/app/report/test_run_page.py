"""Report page of a run: its numbers, no network, escaping, and unusual runs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coterie.app.report import words
from coterie.app.report.run_data import page_data
from coterie.app.report.run_page import page, write
from coterie.app.runs import quality
from coterie.app.runs.progress import attendance
from coterie.app.runs.rundir import Run
from coterie.app.runs.settings import RunSettings
from coterie.app.runs.summary import summarise
from coterie.datasets.quality import ColumnQuality
from tests.app.fake_run import Story, write_config, write_metrics, write_progress, write_run
from tests.app.report.pages import Page, decoded, in_a_browser, page_of, toured

Shown = tuple[Run, Page]


@pytest.fixture(scope="module", params=["ties", "shares"])
def shown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """Return a run with weights of the given kind, and its report."""
    directory = write_run(tmp_path_factory.mktemp("run"), Story(weights=request.param))
    return Run.read(directory), Page(page_of(directory))


def test_the_curves_are_the_runs_numbers(shown: Shown) -> None:
    run, data = shown[0], shown[1].data
    assert data["rounds"] == run.rounds.tolist()
    for name in ("test_accuracy", "test_loss", "validation_loss", "train_loss"):
        values = decoded(data["metrics"][name], 3, *run.reported.shape)
        np.testing.assert_allclose(values, run.metric(name), rtol=2**-16)
    for name in ("bytes_sent", "bytes_received", "gradient_evaluations"):
        assert data["last"][name] == run.metric(name)[-1].tolist()
    np.testing.assert_allclose(data["last"]["test_accuracy"], run.metric("test_accuracy")[-1], 1e-5)
    best = run.metric("validation_loss").argmin(axis=0)
    assert data["best"]["round"] == run.rounds[best].tolist()
    assert data["clusters"] == [0, 1, 2, 3] * 2
    assert data["order"] == [0, 4, 1, 5, 2, 6, 3, 7]


def test_the_heat_map_is_the_runs_collaboration(shown: Shown) -> None:
    run, graph = shown[0], shown[1].data["graph"]
    order = np.array(shown[1].data["order"])
    weights = decoded(graph["weights"], 2, *run.weights.shape)
    listed = run.weights[:, order[:, None], order]
    np.testing.assert_allclose(weights, listed, rtol=2**-8)
    assert graph["rounds"] == run.weight_rounds.tolist()
    has_own = not (run.weights.diagonal(axis1=1, axis2=2) == 1).all()
    assert graph["own"] is has_own, "a diagonal of ones is no own weight"
    final = summarise(run)["recovery"]
    assert graph["scores"][-1]["precision"] == final["precision"]
    assert graph["scores"][-1]["rand"] == final["adjusted_rand_index"]
    assert (graph["edges"][-1], graph["groups"][-1]) == (8, 4)


def test_the_headline_numbers_are_the_summarys(shown: Shown) -> None:
    summary, text = summarise(shown[0]), shown[1].text.replace("\xa0", " ")
    for name in ("mean", "weighted_mean", "worst_decile", "best_mean"):
        key = f"{name}_test_accuracy"
        assert f"{100 * summary[key]:.1f} %" in text
    assert f"± {100 * summary['std_test_accuracy']:.1f} points" in text
    assert f"first exact in round {summary['recovery']['rounds_to_recovery']:,}" in text
    assert f"{summary['total_bytes'] / 1e6:.1f} MB in total" in text
    assert "1 min 13 s" in text
    assert 'partition.kind = "label-permutation"' in text


def test_own_data_are_called_by_their_folder() -> None:
    def title(**more: str) -> str:
        return words.title(RunSettings.of(own | more))

    own = {"method": "cobo", "dataset": "table", "data-dir": "data/heart-disease"}
    assert title() == "cobo on heart-disease"
    assert title(**{"data-dir": "data"}) == "cobo on table"
    assert title(dataset="digits") == "cobo on digits"
    assert title(title="Four hospitals") == "Four hospitals"


def test_the_page_fetches_nothing(shown: Shown) -> None:
    _, page = shown
    assert sorted(page.links) == ["collaboration.png", "curves.png"], "links to files beside it"
    assert "link" not in page.tags
    assert "default-src 'none'" in page.html
    assert set(re.findall(r"https?://[^\"'\s)]+", page.html)) == {"http://www.w3.org/2000/svg"}
    for word in ("url(", "@import", "fetch(", "XMLHttpRequest", "import("):
        assert word not in page.html


STORIES = {
    "losses only": Story(accuracy=False),
    "nobody collaborates": Story(weights="none"),
    "one round": Story(rounds=0),
    "one peer": Story(peers=1, clusters=1, weights="none", rounds=3),
    "two strangers": Story(peers=2, clusters=2, known=False, rounds=3),
    "unknown clusters": Story(known=False, weights="shares"),
    "no validation": Story(validation=False),
    "more clusters than colours": Story(peers=13, clusters=13, rounds=2),
}


@pytest.mark.some(4)
@pytest.mark.slow
@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES.keys())
def test_odd_runs_have_a_report(tmp_path: Path, story: Story) -> None:
    write(write_run(tmp_path, story))
    page = Page(tmp_path / "report.html")
    data = page.data
    assert data["peers"] == story.peers
    assert sorted(data["order"]) == list(range(story.peers))
    assert ("test_accuracy" in data["metrics"]) == story.accuracy
    assert (data["clusters"] is None) == (not story.known)
    assert (data["best"] is None) == (not story.validation)
    assert (data["graph"] is None) == (story.weights == "none")
    assert ("no graph to show" in page.text) == (story.weights == "none")
    assert (tmp_path / "curves.png").exists()
    assert (tmp_path / "collaboration.png").exists() == (story.weights != "none")


def test_an_unfinished_run_says_so(tmp_path: Path) -> None:
    write_config(tmp_path, {"peers": 3})
    page = Page(page_of(tmp_path))
    assert "has not finished" in page.text
    assert "No round has been evaluated yet" in page.text
    write_metrics(tmp_path, [{"round": 0, "peer": 1, "test_accuracy": 0.5, "test_loss": None}])
    write_progress(tmp_path, status="failed", error="node 2 < node 3", round=1, rounds=9)
    page = Page(page_of(tmp_path))
    assert "This run failed (round 1 of 9): node 2 < node 3" in page.text
    accuracy = decoded(page.data["metrics"]["test_accuracy"], 3)
    np.testing.assert_array_equal(accuracy, [np.nan, 0.5, np.nan])


def test_who_was_not_always_there_is_said_in_table_and_summary(tmp_path: Path) -> None:
    directory = write_run(tmp_path / "run", Story(rounds=2, peers=3))
    assert "took_part" not in page_data(Run.read(directory))
    assert "took_part" not in summarise(Run.read(directory))
    write_progress(directory, round=200, rounds=200, took_part=[200, 7, 200])
    assert page_data(Run.read(directory))["took_part"] == {
        "rounds": [200, 7, 200], "of": 200,
    }  # fmt: skip
    summary = summarise(Run.read(directory))
    assert summary["took_part"] == {"peer 0": 200, "peer 1": 7, "peer 2": 200}
    assert page(Run.read(directory)).sections[0].attendance == [  # type: ignore[attr-defined]
        "peer 0: in 200 of 200 rounds",
        "peer 1: in 7 of 200 rounds",
        "peer 2: in 200 of 200 rounds",
    ]
    many = attendance({f"peer {k}": k for k in range(21)}, 30)
    assert many == ["peers: in 0 to 20 of 30 rounds, half in 10 or more"]


def test_text_from_files_is_escaped(tmp_path: Path) -> None:
    evil = '</script><script>alert("&")</script>'
    write_run(tmp_path, Story(rounds=1), method=evil, dataset=evil, partition={"kind": evil})
    write_progress(tmp_path, status="failed", error=evil)
    page = Page(page_of(tmp_path))
    assert len(page.scripts) == 2
    assert "<script>alert" not in page.html
    assert evil in page.text, "shown as it is, as text"


def test_diverged_losses_are_no_numbers(tmp_path: Path) -> None:
    write_config(tmp_path, {"peers": 1})
    (tmp_path / "metrics.jsonl").write_text(
        '{"round": 0, "peer": 0, "test_loss": 2.0}\n'
        '{"round": 1, "peer": 0, "test_loss": Infinity}\n'
    )
    page = Page(page_of(tmp_path))
    assert decoded(page.data["metrics"]["test_loss"], 3).tolist() == [2.0, np.inf]
    assert page.data["last"]["test_loss"] == [None]
    assert page.data["diverged"] == [0]
    assert "After 1 round, 1 of 1 peer diverged: its loss or model is not finite." in page.text


def test_a_peer_may_diverge_and_still_have_an_accuracy(tmp_path: Path) -> None:
    write_config(tmp_path, {"peers": 2})
    ends: list[dict[str, object]] = [{"test_loss": None}, {"test_loss": 1.0}]
    lines = [
        {"round": t, "peer": p, "test_accuracy": 0.5, "test_loss": 2.0, **(end if t else {})}
        for t in (0, 1)
        for p, end in enumerate(ends)
    ]
    write_metrics(tmp_path, lines)
    page = Page(page_of(tmp_path))
    assert "1 of 2 peers diverged: its loss or model is not finite; the last finite" in page.text
    assert page.data["diverged"] == [0]
    assert "Mean test accuracy" in page.text
    write_metrics(
        tmp_path, [line | ({"test_loss": None} if line["round"] else {}) for line in lines]
    )
    page = Page(page_of(tmp_path))
    assert "2 of 2 peers diverged" in page.text
    assert "Mean test accuracy" not in page.text, "it is that of models before the training"


@pytest.mark.parametrize("method", ["fedavg", "oracle"])
def test_a_method_gets_no_praise_for_a_graph_that_it_does_not_learn(
    tmp_path: Path, method: str
) -> None:
    page = Page(page_of(write_run(tmp_path, Story(weights="shares"), method=method)))
    assert "learnt graph" not in page.text.lower()
    assert "Graph recovery" not in page.text
    assert 'id="recovery" hidden' in page.html
    for statistic in ("scores", "edges", "groups"):
        assert page.data["graph"][statistic] is None
    assert page.data["recovered"] is None


def test_peers_and_classes_have_names(tmp_path: Path) -> None:
    write_run(tmp_path, Story(peers=3, rounds=1))
    assert Page(page_of(tmp_path)).data["names"] == ["peer 0", "peer 1", "peer 2"]
    lines = [
        {"round": t, "peer": p, "peer_name": f"<b>{p}", "test_loss": 1.0}
        for t in (0, 1)
        for p in range(3)
    ]
    write_metrics(tmp_path, lines)
    (tmp_path / "split.json").unlink()  # it has ten classes
    (tmp_path / "classes.json").write_text('["normal", "pneumonia"]')
    data = Page(page_of(tmp_path)).data
    assert data["names"] == ["<b>0", "<b>1", "<b>2"]
    assert data["classes"] == ["normal", "pneumonia"]


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["losses only", "nobody collaborates", "one round"])
def test_the_script_runs_in_a_browser(tmp_path: Path, name: str) -> None:
    dom = toured(page_of(write_run(tmp_path / "run", STORIES[name])))
    assert 'data-ready="yes"' in dom
    table = dom[dom.index('id="peers"') : dom.index("</table>")]
    assert table.count("<tr") == 2 + STORIES[name].peers


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("measure", "logarithmic"), [("test_loss", True), ("test_accuracy", False)]
)
def test_losses_over_decades_are_drawn_on_a_log_scale_and_accuracies_never(
    tmp_path: Path, measure: str, logarithmic: bool
) -> None:
    write_config(tmp_path, {"peers": 1})
    lines = [f'{{"round": {t}, "peer": 0, "{measure}": {10.0 ** (t - 3)}}}\n' for t in range(3)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    assert ("(logarithmic)</text>" in in_a_browser(page_of(tmp_path))) == logarithmic


@pytest.mark.e2e
def test_newer_data_keep_what_the_reader_chose(tmp_path: Path) -> None:
    """A live page calls `show` of static/page.js again; choices must survive."""
    older, newer = (
        page_of(write_run(tmp_path / name, Story(rounds=rounds)))
        for name, rounds in (("older", 5), ("newer", 9))
    )
    reader = """
      const press = (selector) => document.querySelector(selector).click();
      byId("slider").value = 3;
      byId("slider").dispatchEvent(new Event("input"));
      press('#measure [data-key="test_loss"]');
      press("#peers tbody tr:nth-child(3)");
      show(NEWER);
    """.replace("NEWER", json.dumps(Page(newer).data))
    html = older.read_text(encoding="utf-8")
    older.write_text(html.replace("\nstart();\n", f"\nstart();\n{reader}\n"), encoding="utf-8")
    dom = in_a_browser(older)
    assert 'aria-valuetext="round 300"' in dom
    assert re.search('id="slider"[^>]* max="9"', dom)
    assert re.search('data-key="test_loss" aria-pressed="true"', dom)
    assert re.findall('<tr class="picked"><td class=""><button[^>]*>([^<]*)', dom) == ["2"]
    assert ">800</text>" in dom, "the axis goes on to the newest round"


@pytest.mark.e2e
def test_the_keyboard_selects_a_peer_and_keeps_its_focus(tmp_path: Path) -> None:
    """Enter on a focused button is a click; the table is redrawn by it."""
    page = page_of(write_run(tmp_path / "run", Story(rounds=2)))
    reader = """
      const button = document.querySelector("#peers tbody tr:nth-child(3) button");
      button.focus();
      button.click();
      document.documentElement.dataset.focus = document.activeElement.dataset.key;
    """
    html = page.read_text(encoding="utf-8")
    page.write_text(html.replace("\nstart();\n", f"\nstart();\n{reader}\n"), encoding="utf-8")
    dom = in_a_browser(page)
    assert 'data-focus="peer 2"' in dom
    assert re.findall('<tr class="picked"><td class=""><button[^>]*>([^<]*)', dom) == ["2"]


@pytest.mark.e2e
def test_predictions_have_axis_titles_and_the_area_under_the_roc_curve(tmp_path: Path) -> None:
    """Area of (0, 0), (0, 0.5), (1, 1): 0.75."""
    run = write_run(tmp_path / "run", Story(peers=2, clusters=1, rounds=1))
    (run / "models").mkdir()
    curves = {
        "confusion": [[3, 1], [0, 4]],
        "roc": [[[0, 0], [0, 0.5], [1, 1]]],
        "reliability": [[0.9, 0.8, 5]],
    }
    for peer in range(2):
        (run / "models" / f"peer-{peer:04d}.json").write_text(json.dumps({"curves": curves}))
    (run / "classes.json").write_text('["normal", "pneumonia"]')
    (run / "split.json").unlink()  # it has ten classes
    dom = in_a_browser(page_of(run))
    assert "Confusion matrix (rows: true class, columns: predicted)" in dom
    assert "pneumonia, AUC 0.75" in dom
    for title in ("true positive rate", "false positive rate", "accuracy", "confidence"):
        assert f">{title}</text>" in dom


def test_the_data_quality_is_shown(tmp_path: Path) -> None:
    directory = write_run(tmp_path, Story(peers=8))
    assert "Data quality" not in page_of(directory).read_text(), "without quality.csv"
    column = ColumnQuality(
        0, "<b>chol", "number", 40, 0.1, 12, 0.0, 210.5, 400.0, 190.0, 9.5, 0.0, 0.3, 0.2
    )
    since = replace(column, column="since", kind="date", low=18_262.0, median=18_628.0)
    ill = replace(column, column="ill", low=0.0, high=1.0, mean=0.25, distinct=2, code=np.nan)
    rare = replace(ill, column="rare", mean=0.001, missing=0.999)
    complete = replace(column, peer=1, code=np.nan, missing=0)
    quality.write(directory, [column, complete, since, ill, rare])
    text = page_of(directory).read_text()
    assert "&lt;b&gt;chol is 0 in 30 % of the rows" in text
    assert "<b>chol" not in text
    assert "210.5 (0 to 400)" in text
    assert "10 % missing" in text
    assert "2021-01-01 (2020-01-01 to" in text
    assert "25 % are 1" in text
    assert "under 1 % are 1" in text
    assert "over 99 % missing" in text


def test_the_data_quality_of_many_peers_is_a_list(tmp_path: Path) -> None:
    directory = write_run(tmp_path, Story(peers=16))
    column = ColumnQuality(
        0, "chol", "number", 40, 0.1, 12, 0.0, 210.5, 400.0, 190.0, 9.5, 0.0, 0.3, 0.2
    )
    quality.write(directory, [replace(column, peer=peer) for peer in range(16)])
    text = page_of(directory).read_text()
    assert text.count("chol is 0 in 30 % of the rows") == 16
    assert "210.5" not in text


def test_curves_say_that_only_some_peers_were_evaluated(tmp_path: Path) -> None:
    write_config(tmp_path, {"peers": 3})
    rows = [{"round": 0, "peer": p, "test_loss": 1.0} for p in range(3)]
    write_metrics(tmp_path, rows)
    assert "fewest" not in page_data(Run.read(tmp_path))
    write_metrics(tmp_path, [*rows, {"round": 1, "peer": 1, "test_loss": None}])
    assert "only 1 of 3 peers were evaluated" in " ".join(Page(page_of(tmp_path)).text.split())
