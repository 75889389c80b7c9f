"""Page of a comparison: its numbers, no network, escaping, and unusual comparisons."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.app.experiments.choice import Choice
from coterie.app.experiments.measures import COST, MEASURES, Column
from coterie.app.experiments.table import Table
from coterie.app.report import comparison_figures, comparison_page
from coterie.app.report.comparison import Comparison
from coterie.app.runs.graph import learnt_edges, row_scales
from coterie.app.runs.rundir import Run
from tests.app.fake_run import Story, write_config, write_metrics, write_progress, write_run
from tests.app.report.pages import Page, decoded, toured

STORY = Story(rounds=4, step=5)
WEIGHTS = {"local": "none", "cobo": "ties"}
CHOICE = Choice({"cobo.rho": 0.05, "learning-rate": 0.1}, {"cobo.rho": "low"}, 15)


def made(
    directory: Path, methods: list[str], story: Story = STORY, seeds: int = 2, **config: object
) -> Table:
    """Return the table of synthetic runs, all different."""
    runs = {
        method: [
            Run.read(
                write_run(
                    directory / f"{method}-{seed}",
                    replace(story, seed=10 * k + seed, weights=WEIGHTS.get(method, "shares")),
                    **{"method": method, "seed": seed, **config},
                )
            )
            for seed in range(seeds)
        ]
        for k, method in enumerate(methods)
    }
    return Table.of_runs(runs, {"cobo": CHOICE} if "cobo" in methods else {})


def page_of(directory: Path, table: Table, title: str = "a preset") -> Page:
    return Page(comparison_page.page(Comparison(table, title)).write(directory))


def floats(values: object) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array(values, dtype=np.float64)


def test_the_curves_are_means_over_peers_and_then_seeds(tmp_path: Path) -> None:
    table = made(tmp_path, ["local", "cobo"], seeds=3)
    data = page_of(tmp_path, table).data
    assert data["rounds"] == [0, 5, 10, 15, 20]
    assert data["seeds"] == [0, 1, 2]
    for name in ("test_accuracy", "test_loss", "validation_loss", "bytes_sent"):
        for m, row in enumerate(table):
            mean_sr = np.stack([run.metric(name).mean(axis=1) for run in row.runs])
            shown = {key: floats(data["metrics"][name][key][m]) for key in ("mean", "std")}
            np.testing.assert_allclose(shown["mean"], mean_sr.mean(axis=0), rtol=1e-5)
            np.testing.assert_allclose(shown["std"], mean_sr.std(axis=0, ddof=1), rtol=1e-5)


def test_rounds_that_a_seed_has_not_reached_are_left_out_of_its_mean(tmp_path: Path) -> None:
    runs = []
    for seed, values in enumerate([[1.0, 3.0], [2.0], [4.0, float("inf")]]):
        run = tmp_path / str(seed)
        run.mkdir()
        write_config(run, {"peers": 1, "seed": seed})
        write_metrics(
            run, [{"round": t, "peer": 0, "test_loss": loss} for t, loss in enumerate(values)]
        )
        runs.append(Run.read(run))
    data = page_of(tmp_path, Table.of_runs({"a": runs[:2], "b": runs[2:] * 2})).data
    assert data["metrics"]["test_loss"]["mean"] == [[1.5, 3], [4, None]]
    assert data["metrics"]["test_loss"]["std"][0] == [pytest.approx(0.5**0.5, rel=1e-5), 0]


def test_the_dots_are_gains_of_the_same_peer_and_seed(tmp_path: Path) -> None:
    table = made(tmp_path, ["local", "cobo", "wga"])
    data = page_of(tmp_path, table).data
    for m, row in enumerate(table):
        for s, run in enumerate(row.runs):
            final = run.metric("test_accuracy")[-1]
            alone = table.rows[0].runs[s].metric("test_accuracy")[-1]
            np.testing.assert_allclose(data["gains"]["final"][m][s], final, rtol=1e-5)
            np.testing.assert_allclose(
                floats(data["gains"]["gain"][m][s]), final - alone, rtol=1e-5
            )


def test_the_maps_are_the_runs_collaboration(tmp_path: Path) -> None:
    table = made(tmp_path, ["local", "cobo", "dpfl"])
    data = page_of(tmp_path, table).data
    maps = data["maps"]
    assert [(each["method"], each["seed"]) for each in maps["of"]] == [
        (1, 0), (1, 1), (2, 0), (2, 1)
    ]  # fmt: skip
    assert maps["rounds"] == [0, 5, 10, 15, 20]
    codes = np.frombuffer(base64.b64decode(maps["shares"]), np.uint8).reshape(4, 5, 8, 8)
    apart = ~np.eye(8, dtype=bool)
    for each, code in zip(maps["of"], codes, strict=True):
        run = table.rows[each["method"]].runs[each["seed"]]
        scales = decoded(each["scales"], 2, 5, 8)
        np.testing.assert_allclose(scales, [*map(row_scales, run.weights)], rtol=0.004)
        shares = each["low"] + (1 - each["low"]) * code / 255
        weights = shares * scales[:, :, None]
        np.testing.assert_allclose(weights[:, apart], run.weights[:, apart], atol=0.005)
        is_dark = (shares > 0.5) & apart
        for f in range(5):
            np.testing.assert_array_equal(is_dark[f], learnt_edges(run.weights[f]))
        assert (each["own"] is not None) is (each["method"] == 2)
        if each["own"]:
            diagonal = np.diagonal(run.weights, axis1=1, axis2=2)
            np.testing.assert_allclose(decoded(each["own"], 2, 5, 8), diagonal, rtol=0.004)
        recovered = Table.of_runs({"x": [run]}).rows[0].numbers(MEASURES["f1"])
        assert each["f1"][-1:] == list(recovered)
    assert data["order"] == [[0, 4, 1, 5, 2, 6, 3, 7]] * 2


def test_a_method_that_learns_no_graph_gets_no_scores_for_one(tmp_path: Path) -> None:
    table = made(tmp_path, ["fedavg", "oracle", "cobo"], replace(STORY, weights="shares"), seeds=1)
    assert [row.numbers(MEASURES["f1"]) == [None] for row in table] == [True, True, False]
    page = page_of(tmp_path, table)
    assert [bool(each["f1"]) for each in page.data["maps"]["of"]] == [False, False, True]
    assert "fedavg: every peer sends its model to every other peer in every round" in page.text
    assert "* not ranked: oracle is given the true clusters" in page.text


def test_a_run_that_failed_is_named_with_its_reason(tmp_path: Path) -> None:
    table = made(tmp_path, ["local", "cobo"], seeds=3)
    table = Table.of_runs({"local": table.rows[0].runs[1:], "cobo": table.rows[1].runs[:2]})
    failed = {"local-seed0-ab": "RelayError: <none> is left"}
    page = Page(comparison_page.page(Comparison(table, "p", failed)).write(tmp_path))
    assert "1 of 5 runs failed: see below." in page.text
    assert "local-seed0-ab: RelayError: <none> is left" in " ".join(page.text.split())
    data = page.data
    assert data["seeds"] == [0, 1, 2]
    assert len(data["order"]) == 3
    peers = [[len(of_seed) for of_seed in of_method] for of_method in data["gains"]["gain"]]
    assert peers == [[0, 8, 8], [0, 8, 0]], "cobo has no seed 2, local no seed 0"
    assert [(each["method"], each["seed"]) for each in data["maps"]["of"]] == [(1, 0), (1, 1)]


def test_a_map_shows_the_latest_recorded_weights(tmp_path: Path) -> None:
    table = made(tmp_path, ["cobo", "wga"], seeds=1)
    late = table.rows[1].runs[0].directory / "collaboration.npz"
    weights = table.rows[1].runs[0].weights[[0, 4]]
    np.savez(late, rounds=[0, 12], weights=weights)
    table = Table.of_runs({row.method: [Run.read(row.runs[0].directory)] for row in table})
    maps = page_of(tmp_path, table).data["maps"]
    assert maps["rounds"] == [0, 5, 10, 12, 15, 20]
    codes = np.frombuffer(base64.b64decode(maps["shares"]), np.uint8).reshape(2, 6, 8, 8)
    assert [np.array_equal(codes[1, f], codes[1, 0]) for f in range(6)] == [True] * 3 + [False] * 3
    assert np.array_equal(codes[1, 3], codes[1, 5])


def test_the_table_is_the_comparison(tmp_path: Path) -> None:
    table = made(tmp_path, ["local", "cobo", "wga"])
    html = page_of(tmp_path, table).html
    columns = table.shown()
    quality, costs = (
        [column for column in columns if (column.group == COST) is is_cost]
        for is_cost in (False, True)
    )
    assert_table(html, "results", table, quality)
    assert_table(html, "costs", table, [columns[0], *costs])
    assert columns[0].key == "accuracy"


def assert_table(html: str, name: str, table: Table, columns: list[Column]) -> None:
    text = html[html.index(f'id="{name}"') :].partition("</table>")[0]
    body = text[text.index("<tbody>") :].split("<tr")[1:]
    for row, line in zip(table, body, strict=True):
        cells = line.split("<td")[2:]
        for column, cell in zip(columns, cells, strict=True):
            summary = row.summary(column)
            value = re.search(r'data-value="([^"]*)"', cell)
            assert (value and float(value[1])) == (summary and summary[0])
            shown = " ".join(re.sub("<[^>]*>", " ", cell[cell.index(">") + 1 :]).split())
            dash = "–" if summary is None else "-"
            assert shown == row.text(column).replace("-", dash)
            marked = re.search(r'class="[^"]*best', cell) is not None
            assert marked == (row.method in table.bold(column))


def test_the_settings_are_what_is_shared_and_what_is_not(tmp_path: Path) -> None:
    table = made(tmp_path, ["local", "cobo"])
    html = page_of(tmp_path, table).html
    separate, common = html[html.index("<h2>Settings") :].split("Common settings")
    assert "<span>cobo.rho = 0.05 (lowest tried), learning-rate = 0.1</span>" in separate
    assert "cobo.gamma = 0.01, cobo.sampling" in separate
    assert separate.count("learning-rate = ") == 1
    assert "<li>learning-rate = 0.1</li>" in common, "though it was tuned, all have it"
    assert "<li>partition.clusters = 4</li>" in common
    assert "cobo." not in common
    assert "trust" not in separate, "a key like a method's name"
    assert "from the same learning rates and 15 trials for each method" in html
    assert "<li>seed" not in common


def test_the_page_fetches_nothing(tmp_path: Path) -> None:
    page = page_of(tmp_path, made(tmp_path, ["local", "cobo"]))
    assert sorted(page.links) == ["comparison-peers.csv", "comparison.csv", "comparison.tex"]
    assert "default-src 'none'" in page.html
    assert set(re.findall(r"https?://[^\"'\s)]+", page.html)) == {"http://www.w3.org/2000/svg"}
    for word in ("url(", "@import", "fetch(", "XMLHttpRequest", "import(", "<link"):
        assert word not in page.html


def test_text_from_files_is_escaped(tmp_path: Path) -> None:
    evil = '</script><script>alert("&")</script>'
    table = made(tmp_path, ["local", "cobo"], dataset=evil, partition={"kind": evil})
    runs = {"local": table.rows[0].runs, evil: table.rows[1].runs}
    write_progress(table.rows[0].runs[0].directory, status="failed", error=evil)
    page = page_of(tmp_path, Table.of_runs(runs, {evil: Choice({evil: evil})}), title=evil)
    assert len(page.scripts) == 2
    assert "<script>alert" not in page.html
    assert page.data["methods"] == ["local", evil]


ODD = {
    "four": (["local", "fedavg", "cobo", "wga"], STORY, 2),
    "losses only": (["local", "cobo"], replace(STORY, accuracy=False), 2),
    "one method, one seed": (["cobo"], STORY, 1),
    "nobody collaborates": (["local"], replace(STORY, validation=False), 2),
    "one round, unknown clusters": (["local", "wga"], replace(STORY, rounds=0, known=False), 1),
    "many": (["local", *(f"m{k}" for k in range(22))], STORY, 1),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_comparisons_have_a_page(tmp_path: Path, name: str) -> None:
    methods, story, seeds = ODD[name]
    page = page_of(tmp_path, made(tmp_path, methods, story, seeds))
    data = page.data
    assert data["methods"] == methods
    assert (data["gains"] is None) == ("local" not in methods)
    assert (data["maps"] is None) == (methods == ["local"])
    assert (data["clusters"] is None) == (not story.known)
    assert ("±" in page.text) == (seeds > 1)


@pytest.mark.slow
def test_unfinished_runs_are_told(tmp_path: Path) -> None:
    table = made(tmp_path, ["local", "cobo"])
    assert "not finished" not in page_of(tmp_path, table).text
    write_progress(table.rows[1].runs[0].directory, status="running")
    table = Table.of_runs({r.method: [Run.read(x.directory) for x in r.runs] for r in table})
    assert "Not finished: 1 of 4 runs" in page_of(tmp_path, table).text
    for row in table:
        for run in row.runs:
            (run.directory / "metrics.jsonl").unlink()
    table = Table.of_runs({r.method: [Run.read(x.directory) for x in r.runs] for r in table})
    assert "There is nothing to compare yet." in page_of(tmp_path, table).text


def test_maps_of_many_methods_are_thinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = made(tmp_path, ["local", "cobo", "wga"], replace(STORY, rounds=30), seeds=1)
    monkeypatch.setattr(comparison_figures, "MAP_BYTES", 10 * 2 * 8 * 8)
    monkeypatch.setattr(comparison_figures, "CURVE_POINTS", 7)
    data = page_of(tmp_path, table).data
    for rounds, kept in ((data["maps"]["rounds"], 10), (data["rounds"], 7)):
        assert (rounds[0], rounds[-1], len(rounds)) == (0, 150, kept), "never the ends"
    assert len(base64.b64decode(data["maps"]["shares"])) == 10 * 2 * 8 * 8


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["four", "losses only", "one round, unknown clusters"])
def test_the_script_runs_in_a_browser(tmp_path: Path, name: str) -> None:
    methods, story, seeds = ODD[name]
    path = comparison_page.page(Comparison(made(tmp_path, methods, story, seeds), name)).write(
        tmp_path
    )
    dom = toured(path)
    assert 'data-ready="yes"' in dom
    chart = dom[dom.index('id="gains"') : dom.index("<h2>Collaboration weights")]
    assert chart.count("<circle") == (len(methods) - 1) * seeds * story.peers
    maps = dom[dom.index('id="maps"') : dom.index('id="silent"')]
    assert maps.count("<canvas") == len(methods) - 1
