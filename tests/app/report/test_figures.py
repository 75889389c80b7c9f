"""Figures for papers: what they draw is what was measured; their files are the same each time."""

from __future__ import annotations

import html
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import LineCollection

from coterie.app.cli.main import main
from coterie.app.experiments.measures import MEASURES, gains
from coterie.app.report import comparison_page, decisions, figures
from coterie.app.report.comparison import Comparison, in_paper
from coterie.app.report.forest import Forest, Line
from coterie.app.runs import plan
from coterie.app.runs.graph import learnt_edges
from coterie.app.runs.rundir import Run
from tests.app.fake_run import Story, write_metrics, write_run
from tests.app.report.pages import in_a_browser, page_of
from tests.app.report.test_comparison_page import made
from tests.app.report.test_decisions import GAINS, OWN, SEEDS, rows

METHODS = ["local", "cobo", "fedavg"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run.read(write_run(tmp_path_factory.mktemp("run"), Story(rounds=4)))


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return Comparison(made(tmp_path_factory.mktemp("compared"), METHODS), "three")


def drawn(source: Run | Comparison) -> dict[str, Any]:
    """Return the figures of a run or comparison by name, or why there is none."""
    make = figures.of_run if isinstance(source, Run) else figures.of_comparison
    return dict(make(source))  # type: ignore[arg-type]


def test_a_curve_of_a_run_is_the_mean_over_its_peers(run: Run) -> None:
    made = drawn(run)
    for measure, field in (("accuracy", "test_accuracy"), ("loss", "test_loss")):
        for axis, x_r in (("rounds", run.rounds), ("bytes", run.metric("bytes_sent").mean(1))):
            axes = made[f"{measure}-{axis}"].axes[0]
            mean = axes.lines[-1]
            np.testing.assert_allclose(mean.get_ydata(), run.metric(field).mean(axis=1))
            np.testing.assert_allclose(mean.get_xdata(), x_r)
            np.testing.assert_array_equal(
                [line.get_ydata() for line in axes.lines[:-1]], run.metric(field).T
            )
            quartiles_r2 = np.quantile(run.metric(field), [0.25, 0.75], axis=1).T
            ends = axes.collections[0].get_datalim(axes.transData)
            assert (ends.ymin, ends.ymax) == pytest.approx((quartiles_r2.min(), quartiles_r2.max()))
    assert made["accuracy-time"] == "no record of virtual time"


def test_a_crowd_is_two_bands(tmp_path: Path) -> None:
    crowd = Run.read(write_run(tmp_path, Story(peers=80, rounds=2)))
    (axes,) = drawn(crowd)["accuracy-rounds"].axes
    assert (len(axes.lines), len(axes.collections)) == (1, 2)
    assert drawn(crowd)["graph"].startswith("more than 60 peers")


def test_a_round_in_which_nobody_was_evaluated_is_left_out(tmp_path: Path) -> None:
    directory = write_run(tmp_path, Story(peers=2, rounds=1, weights="none"))
    of = [(0, 0, 0.1), (0, 1, 0.3), (1, 0, None), (2, 0, 0.5), (2, 1, None)]
    write_metrics(
        directory,
        [
            {"round": t, "peer": p, "test_loss": 1.0, "test_accuracy": value, "bytes_sent": 8 * t}
            for t, p, value in of
        ],
    )
    line = drawn(Run.read(directory))["accuracy-rounds"].axes[0].lines[-1]
    np.testing.assert_allclose(line.get_xydata(), [(0, 0.2), (2, 0.5)])


def test_a_curve_of_a_method_has_a_band_over_seeds(compared: Comparison) -> None:
    made = drawn(compared)
    axes = made["accuracy-rounds"].axes[0]
    for k, row in enumerate(compared.table.rows):
        of_sr = np.stack([run.metric("test_accuracy").mean(axis=1) for run in row.runs])
        mean_r, std_r = of_sr.mean(axis=0), of_sr.std(axis=0, ddof=1)
        assert axes.lines[k].get_label() == row.name
        np.testing.assert_allclose(axes.lines[k].get_ydata(), mean_r)
        ends = axes.collections[k].get_datalim(axes.transData)
        expected = (mean_r - std_r).min(), (mean_r + std_r).max()
        assert (ends.ymin, ends.ymax) == pytest.approx(expected)
        cost_r = np.mean([run.metric("bytes_sent").mean(axis=1) for run in row.runs], axis=0)
        np.testing.assert_allclose(made["loss-bytes"].axes[0].lines[k].get_xdata(), cost_r)


def test_a_method_without_cost_is_a_level(tmp_path: Path) -> None:
    table = made(tmp_path, ["local", "fedavg"], seeds=1)
    alone = table.rows[0].runs[0]
    alone.metrics["bytes_sent"][:] = 0.0
    level = drawn(Comparison(table))["accuracy-bytes"].axes[0].lines[0]
    assert level.get_label() == "local (0)"
    np.testing.assert_allclose(level.get_ydata(), alone.metric("test_accuracy")[-1].mean())


def test_methods_differ_without_colour() -> None:
    looks = {(figures._DASHES[k % 5], figures._MARKERS[k % 9]) for k in range(45)}
    assert (len(figures._DASHES), len(figures._MARKERS), len(looks)) == (5, 9, 45)


def test_gains_have_a_dot_per_peer_and_seed(compared: Comparison) -> None:
    axes = drawn(compared)["gains"].axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["cobo", "fedavg"]
    for dots, row in zip(axes.lines[::2], compared.table.rows[1:], strict=False):
        pairs = zip(row.runs, row.local, strict=True)
        expected = np.sort(np.concatenate([gains(*pair) for pair in pairs]))
        np.testing.assert_allclose(dots.get_xdata(), expected)


def test_each_measure_of_the_table_has_its_values_and_their_mean(compared: Comparison) -> None:
    of = drawn(compared)
    columns = in_paper(compared.table)
    assert "accuracy" in {column.key for column in columns}
    for column in columns:
        axes = of[f"{column.key.replace('_', '-')}-methods"].axes[0]
        means = [container.lines[0].get_xdata()[0] for container in axes.containers]
        expected = [(row.summary(column) or (np.nan,))[0] for row in compared.table.rows]
        np.testing.assert_allclose(means, expected)
    label = of["accuracy-methods"].axes[0].xaxis.get_major_formatter()
    assert [label(0.8), label(0.8125), MEASURES["accuracy"].show(0.8)] == ["80", "81.25", "80.00"]


def test_a_forest_plot_has_the_intervals_of_the_decisions(tmp_path: Path) -> None:
    compared = Comparison(rows(tmp_path), "hospitals")
    decided = decisions.compared(compared)
    assert decided is not None
    axes = drawn(compared)["forest-gain-in-accuracy"].axes[0]
    lines = decided.forests[0].lines
    assert [text.get_text() for text in axes.get_yticklabels()] == [line.name for line in lines]
    for interval, point, line in zip(axes.lines[::3], axes.lines[1::3], lines, strict=False):
        np.testing.assert_array_equal(interval.get_xdata(), line.estimate[1:])
        np.testing.assert_array_equal(point.get_xdata(), [line.estimate[0]])
    assert sum(text.get_text() == " not judged" for text in axes.texts) == 2


def test_the_graph_has_the_learnt_edges(run: Run) -> None:
    (axes,) = drawn(run)["graph"].axes
    (edges,) = (each for each in axes.collections if isinstance(each, LineCollection))
    assert len(edges.get_segments()) == learnt_edges(run.weights[-1]).sum() > 0
    assert {text.get_text() for text in axes.texts} == {str(peer) for peer in range(run.peers)}


def test_gain_against_risk_has_a_point_per_measured_method(tmp_path: Path) -> None:
    compared = Comparison(rows(tmp_path, letter_auc=0.625))
    (axes,) = drawn(compared)["gain-risk"].axes
    risk, gain = MEASURES["letter_auc"], MEASURES["gain"]
    for point, row in zip(axes.lines, compared.table.rows, strict=True):
        at = row.summary(risk), row.summary(gain)
        assert all(at)
        expected = [each[0] for each in at if each]
        np.testing.assert_allclose(point.get_xydata(), [expected * np.array([1, 100])], atol=0.01)
    assert drawn(Comparison(rows(tmp_path / "plain")))["gain-risk"].startswith(
        "compare --clearance"
    )


def test_a_map_shows_shares_of_the_largest_weight_of_a_row(run: Run) -> None:
    axes = drawn(run)["collaboration"].axes[:-1]
    assert [each.get_title() for each in axes][::3] == ["round 0", f"round {run.weight_rounds[-1]}"]
    shown = np.ma.filled(axes[-1].images[0].get_array(), np.nan)
    assert run.clusters is not None
    order = np.argsort(run.clusters, kind="stable")
    weights = run.weights[-1][np.ix_(order, order)]
    np.fill_diagonal(weights, np.nan)
    scale = np.maximum(1.0, np.nanmax(weights, axis=1, keepdims=True))
    np.testing.assert_allclose(shown, weights / scale)


def test_names_with_dollars_are_no_formulas(tmp_path: Path, run: Run) -> None:
    odd = replace(run, names=(*(f"$site_{{$ {k}" for k in range(run.peers)),))
    kept = [(name, of) for name, of in figures.of_run(odd) if name in ("collaboration", "graph")]
    forest = Forest("$ in $", str, [Line("a$^$b", "9", (1.0, 0.0, 2.0), "1")])
    paths, _ = figures.write([*kept, ("forest", figures._forest(forest))], tmp_path, "svg")
    texts = [html.unescape(path.read_text()) for path in paths]
    assert ["$site_{$ 7" in text for text in texts] == [True, True, False]
    assert "$ in $" in texts[2]
    assert "a$^$b" in texts[2]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["pdf", "svg", "png"])
def test_files_are_the_same_each_time(tmp_path: Path, run: Run, form: str) -> None:
    wanted = ("accuracy-rounds", "collaboration", "graph")
    contents = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        kept = ((name, of) for name, of in figures.of_run(run) if name in wanted)
        paths, missing = figures.write(kept, folder, form)
        assert ([path.name for path in paths], missing) == (
            [f"{name}.{form}" for name in wanted],
            {},
        )
        contents.append([path.read_bytes() for path in paths])
    assert contents[0] == contents[1]
    first = contents[0][0]
    if form == "pdf":
        assert b"/FontFile2" in first, "embedded as TrueType"
        assert b"/Type3" not in first
        assert b"CreationDate" not in first
        (box,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ", first)
        assert float(box) == pytest.approx(3.3 * 72, abs=0.1), "the width of a column"
    elif form == "svg":
        texts = [each.text for each in ET.fromstring(first).iter() if each.tag.endswith("}text")]
        assert {"round", "test accuracy", "mean"} <= set(texts)
        assert b"<dc:date>" not in first


def sweep(directory: Path) -> Path:
    """Write a comparison of two runs, one of which failed before it was evaluated."""
    write_run(directory / "cobo-seed0", Story(rounds=2))
    write_run(directory / "local-seed0", Story(rounds=2, weights="none"), method="local")
    (directory / "local-seed0" / "metrics.jsonl").unlink()
    plan.write(directory, ["cobo-seed0", "local-seed0", "fedavg-seed0"])
    return directory


@pytest.mark.slow
def test_the_command_names_each_file_and_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compared = sweep(tmp_path / "compared")
    assert main(["figures", str(compared), "--format", "svg", "--out", str(tmp_path / "out")]) == 0
    *lines, last = capsys.readouterr().out.splitlines()
    assert sorted(lines) == sorted(map(str, (tmp_path / "out").iterdir()))
    assert last.startswith("not drawn: local-seed0: failed: no evaluated round; fedavg-seed0: ")
    assert "no such run directory" in last
    assert "accuracy-time, loss-time: no record of virtual time" in last
    assert "gains: needs runs of local" in last


def test_what_is_no_run_and_no_comparison_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["figures", str(tmp_path)]) == 2
    assert "neither a run (config.toml) nor a comparison (sweep.json)" in capsys.readouterr().err
    directory = write_run(tmp_path / "run", Story(rounds=1))
    (directory / "metrics.jsonl").unlink()
    assert main(["figures", str(directory)]) == 2
    assert "no round has been evaluated yet" in capsys.readouterr().err
    plan.write(tmp_path / "begun", ["run"])
    assert main(["figures", str(tmp_path / "begun")]) == 2
    assert "comparison (sweep.json) with an evaluated round" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.pdf"))


def test_losses_over_many_decades_are_logarithmic(tmp_path: Path) -> None:
    run = Run.read(write_run(tmp_path, Story(accuracy=False)))
    figure = drawn(run)["loss-rounds"]
    assert figure.axes[0].get_yscale() == "log"
    assert drawn(run)["accuracy"] == "no record of test accuracy"


SAVE = """<script>
const files = [];
const url = URL.createObjectURL;
URL.createObjectURL = (file) => (files.push(file), url(file));
window.Blob = class extends Blob {
  constructor(parts, options) {
    super(parts, options);
    this.written = parts.join("");
  }
};
HTMLAnchorElement.prototype.click = function () {
  document.title += ` ${this.download}`;
};
addEventListener("load", () => {
  for (const button of document.querySelectorAll(".save"))
    if (button.checkVisibility()) button.click();
  for (const file of files) {
    const box = document.createElement("pre");
    box.textContent = file.written;
    box.className = "saved";
    document.body.append(box);
  }
});
</script></body>"""


def saved(path: Path) -> list[ET.Element]:
    """Press every "Save as SVG" of a page, which is opened as a file; return what is saved."""
    copy = path.with_name("saved.html")
    copy.write_text(path.read_text("utf-8").replace("</body>", SAVE), encoding="utf-8")
    texts = re.findall(r'<pre class="saved">(.*?)</pre>', in_a_browser(copy), re.DOTALL)
    return [ET.fromstring(html.unescape(text)) for text in texts]


def of_kind(svg: ET.Element, kind: str) -> list[ET.Element]:
    return [each for each in svg.iter() if each.tag == f"{{http://www.w3.org/2000/svg}}{kind}"]


@pytest.mark.e2e
def test_figures_of_a_report_are_saved_as_shown(run: Run, tmp_path: Path) -> None:
    curves, weights, graph, split = saved(page_of(Run.read(write_run(tmp_path, Story(rounds=4)))))
    assert len(of_kind(curves, "path")) > run.peers
    texts = [each.text or "" for each in of_kind(curves, "text")]
    assert {"Test accuracy", "round", "mean", "cluster 3"} <= set(texts)
    assert not any("Click" in text or "Save" in text for text in texts)
    assert {each.get("stroke") for each in of_kind(curves, "path")} >= {"rgb(29, 32, 37)"}
    for picture in (weights, graph, split):
        (image,) = of_kind(picture, "image")
        assert str(image.get("href")).startswith("data:image/png;base64,")
    assert len(of_kind(weights, "rect")) > 40, "the colours of the scale"


@pytest.mark.e2e
def test_figures_of_a_comparison_are_saved_as_shown(tmp_path: Path) -> None:
    compared = Comparison(rows(tmp_path, letter_auc=0.625), "hospitals")
    accuracy, *others = saved(comparison_page.page(compared).write(tmp_path))
    texts = [each.text or "" for each in of_kind(accuracy, "text")]
    assert {"Gain in accuracy (points)", "north", "village", "mean"} <= set(texts)
    assert len(of_kind(accuracy, "rect")) == 1 + 2, "the paper, and a square per judged institution"
    dots = len(GAINS) * SEEDS * len(OWN)
    assert dots in [len(of_kind(each, "circle")) for each in others], "one per peer and seed"
    assert len(GAINS) + 1 in [len(of_kind(each, "circle")) for each in others], "gain and risk"
