"""Tables and figures from a paper's file: what runs, what is judged, what is written."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from coterie.app.config.config import ConfigError
from coterie.app.config.items import read_items
from coterie.app.experiments.table import Cell
from coterie.app.lab.commands.reproduce import listed
from coterie.app.lab.reproduction import claims, figures, formulas, page
from coterie.app.lab.reproduction.figures import DEFAULTS
from coterie.app.lab.reproduction.reproduce import FigureRequest, _base, _grid, reproduce
from coterie.app.lab.reproduction.results import better_of
from tests.output import csv_rows

FILE = """
short = "Toy"
method = "fedavg"
title = "A title"
reference = "Somebody, somewhere"

[figures.table-1]
title = "two curvatures"
where = "table 1"
columns = ["loss"]
seeds = 3

[[figures.table-1.panels]]
small = "default"
keys = {peers = 2, dataset = "quadratic", num-server-rounds = 3, evaluate-every = 3}
small-keys = {local-steps = 1}

[[figures.table-1.rows]]
label = "Local"
keys = {method = "local"}
published = {loss = 0.25}

[[figures.table-1.rows]]
label = "FedAvg"
keys = {method = "fedavg"}

[[figures.table-1.claims]]
text = "training alone is better"
quote = "Alone is better"
kind = "beats"
rows = ["Local"]
column = "loss"

[[figures.table-1.claims]]
text = "averaging is better"
quote = "Averaging helps"
kind = "order"
rows = ["FedAvg", "Local"]
column = "loss"

[[figures.table-1.claims]]
text = "both are the same"
kind = "near"
rows = ["FedAvg", "Local"]
column = "loss"
within = 0.01

[figures.figure-2]
title = "contraction over the learning rate"
where = "figure 2"
form = "sweep"
x = "learning-rate"
y = "loss"
values = [0.25, 0.5]
seeds = 3

[[figures.figure-2.panels]]
small = "default"
keys = {peers = 2, dataset = "quadratic", num-server-rounds = 1, evaluate-every = 1}
small-keys = {local-steps = 1}

[[figures.figure-2.rows]]
label = "Local"
keys = {method = "local"}
formula = "one-step"

[[figures.figure-2.claims]]
text = "a step shrinks the loss as the closed form says"
kind = "formula"
rows = ["Local"]
column = "loss"
within = 1e-6

[figures.figure-3]
title = "not here"
where = "figure 3"
missing = "its data are not public"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A paper about f_i(x) = (x - c_i)^2 / 2 with c = -1, 1 and a common start at 0."""
    problem = {
        "curvature": [[1.0], [1.0]],
        "centre": [[-1.0], [1.0]],
        "noise": [0, 0],
        "start": [0],
    }
    (tmp_path / "problem.json").write_text(json.dumps(problem))
    text = FILE.replace(
        'dataset = "quadratic"',
        f'dataset = "quadratic", quadratic = {{file = "{tmp_path / "problem.json"}"}}',
    )
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "toy.toml").write_text(text)
    monkeypatch.setattr(figures.find, "__defaults__", (tmp_path / "papers",))
    monkeypatch.setattr(figures.read, "__defaults__", (tmp_path / "papers",))
    monkeypatch.setattr(figures.names, "__defaults__", (tmp_path / "papers",))
    # From 0 one step of rate eta leaves the distance 1 - eta to each centre.
    monkeypatch.setitem(
        formulas.PREDICTIONS, "one-step", lambda config: (1 - config["learning-rate"]) ** 2 / 2
    )
    return tmp_path


def test_a_table_is_made_and_its_claims_are_judged(folder: Path) -> None:
    """Without noise the sign decides: Local reaches (0.9^3)^2 / 2, the average stays at 1/2."""
    out = folder / "out"
    made = reproduce(FigureRequest("toy/table-1", out=out, workers=1), Console(quiet=True))
    assert [verdict.holds for verdict in made.verdicts] == [True, False, False]
    verdicts = json.loads((made.directory / "claims.json").read_text())
    assert verdicts[0]["evidence"] == "Local − FedAvg: -0.2343 (the same with all 3 seeds)"
    assert [verdict["verdict"] for verdict in verdicts] == [
        verdict.verdict for verdict in made.verdicts
    ]
    lines = csv_rows(made.directory / "results.csv")
    assert [line["row"] for line in lines] == ["Local", "FedAvg"]
    assert float(lines[0]["mean"]) == pytest.approx(0.9**6 / 2, rel=1e-12)
    assert lines[0]["published"] == "0.25"
    text = (made.directory / "page.html").read_text()
    counts = "Claims of the paper: 1 holds here, 1 does not hold here; "
    assert f"{counts}claims of ours: 1 does not hold here." in text
    assert "0.2657" in text


def test_a_second_time_nothing_runs(folder: Path) -> None:
    out = folder / "out"
    first = reproduce(FigureRequest("toy/table-1", out=out, workers=1), Console(quiet=True))
    runs = {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("metrics.jsonl")}
    again = reproduce(FigureRequest("toy/table-1", out=out, workers=1), Console(quiet=True))
    assert again.verdicts == first.verdicts
    assert runs == {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("metrics.jsonl")}


def test_a_sweep_meets_its_closed_form(folder: Path) -> None:
    made = reproduce(
        FigureRequest("toy/figure-2", out=folder / "out", workers=1), Console(quiet=True)
    )
    assert [verdict.holds for verdict in made.verdicts] == [True]
    assert "<svg" in (made.directory / "page.html").read_text()


def test_one_seed_judges_nothing(folder: Path) -> None:
    request = FigureRequest("toy/table-1", seeds=1, out=folder / "out", workers=1)
    made = reproduce(request, Console(quiet=True))
    assert [verdict.holds for verdict in made.verdicts] == [None, None, None]
    assert made.verdicts[0].why == "1 seed, no test"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("toy/figure-3", "not reproduced: its data are not public"),
        ("toy/figure-4", 'no figure "toy/figure-4", did you mean'),
        ("toy/heat-map", "coterie reproduce --list toy shows every one"),
        ("tyo/figure-1", 'no paper "tyo", did you mean "toy"'),
        ("xyz/figure-1", 'no paper "xyz"; papers: toy'),
    ],
)
def test_what_cannot_be_made_says_why(folder: Path, name: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        reproduce(FigureRequest(name, out=folder), Console(quiet=True))
    assert not (folder / "runs").exists()


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ('label = "Local"', 'lable = "Local"', "rows.0.label: Field required"),
        ('rows = ["Local"]', 'rows = ["Loacl"]', 'no row "Loacl"'),
        ('kind = "beats"', 'kind = "bets"', "claims.0.kind: Input should be"),
        ('where = "table 1"', "", "where: Field required"),
    ],
)
def test_a_mistake_in_a_file_is_named(folder: Path, old: str, new: str, why: str) -> None:
    file = folder / "papers" / "toy.toml"
    file.write_text(file.read_text().replace(old, new, 1))
    with pytest.raises(ConfigError, match=why):
        figures.read("toy")


@pytest.mark.long
@pytest.mark.parametrize("paper", figures.names())
def test_every_figure_of_a_paper_can_be_configured(paper: str) -> None:
    """Presets, keys and formulas exist at both sizes, checked without runs."""
    for figure in figures.read(paper).figures.values():
        assert not figure.drawn or figure.drawn in formulas.DRAWINGS
        assert {row.formula for row in figure.rows} <= {"", *formulas.PREDICTIONS}
        assert {claim.kind for claim in figure.claims} <= {*claims._KINDS, "undefined"}
        for size in ("small", "paper"):
            request = FigureRequest(f"{paper}/{figure.name}", size)
            if figure.exists(request.size) and not figure.drawn:
                cells = _grid(figure, request).cells
                assert cells
                assert {cell.row for cell in cells} == {row.label for row in figure.rows}
        for panel in figure.panels:
            for preset in {panel.small, panel.paper} - {"", DEFAULTS}:
                read_items([preset])


def test_a_bound_holds_below_the_closed_form_only(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At rates 0.25 and 0.5 the losses are 0.28 and 0.125; the bound lies between them."""
    file = folder / "papers" / "toy.toml"
    file.write_text(file.read_text().replace('kind = "formula"', 'kind = "bound"'))
    monkeypatch.setitem(formulas.PREDICTIONS, "one-step", lambda config: 0.2)
    request = FigureRequest("toy/figure-2", out=folder / "out", workers=1)
    made = reproduce(request, Console(quiet=True))
    assert [verdict.holds for verdict in made.verdicts] == [False]
    monkeypatch.setitem(formulas.PREDICTIONS, "one-step", lambda config: 0.3)
    made = reproduce(request, Console(quiet=True))
    assert [verdict.holds for verdict in made.verdicts] == [True]


def test_links_have_two_colours_and_attackers_a_third() -> None:
    """Three peers, of which peer 1 attacks and is drawn last."""
    initial = np.array([[1, 1, 1], [0, 1, 0], [1, 0, 1]])
    shown = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.9, 0.0, 0.1]])
    attackers = np.array([False, True, False])
    marks = page.links(shown, initial, attackers)
    np.testing.assert_array_equal(marks, [[0, 1, 3], [2, 0, 0], [0, 0, 0]])
    assert page.links(initial, initial, ~attackers & attackers).tolist() == [
        [0, 2, 2],
        [0, 0, 0],
        [2, 0, 0],
    ]


def test_runs_of_a_panel_start_from_its_base(tmp_path: Path) -> None:
    """The key names the model that the base leaves; at the paper's size there is no base."""
    _, figure = figures.find("cobo/figure-7")
    (panel,) = figure.panels
    request = FigureRequest("cobo/figure-7", out=tmp_path)
    base = Path(_base(panel, request).run_dir)
    assert base.parent == (tmp_path / "runs").absolute()
    for config in _grid(figure, request):
        assert config.flat()[panel.base_key] == str(base / "models" / "peer-0000.safetensors")
    for config in _grid(figure, FigureRequest("cobo/figure-7", "paper", out=tmp_path)):
        assert str(tmp_path) not in str(config.flat()[panel.base_key])


def test_size_paper_crosses_splits_with_seeds(folder: Path) -> None:
    """Differences are tested over divisions: the seeds of a division are averaged first."""
    file = folder / "papers" / "toy.toml"
    text = file.read_text().replace('small = "default"', 'small = "default"\npaper = "default"', 1)
    file.write_text(text.replace("seeds = 3", "seeds = 2\nsplits = 3", 1))
    figure = figures.find("toy/table-1")[1]
    paper = _grid(figure, FigureRequest("toy/table-1", "paper")).cells
    cell = Cell("Local")
    trials = [(config.division, config.seed) for config in paper[cell]]
    assert trials == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]
    small = _grid(figure, FigureRequest("toy/table-1")).cells
    assert [(config.division, config.seed) for config in small[cell]] == [(0, 0), (1, 1)]


def test_size_paper_takes_the_papers_seeds(folder: Path) -> None:
    """Unless a number is asked for, which counts from 0; size small has seeds of its own."""
    file = folder / "papers" / "toy.toml"
    text = file.read_text().replace('small = "default"', 'small = "default"\npaper = "default"', 1)
    file.write_text(text.replace("seeds = 3", "seeds = 3\npaper-seeds = [127, 496]", 1))
    figure = figures.find("toy/table-1")[1]

    def seeds(size: figures.Size, number: int | None = None) -> list[int]:
        cells = _grid(figure, FigureRequest("toy/table-1", size, number)).cells
        return [config.seed for config in cells[Cell("Local")]]

    assert seeds("paper") == [127, 496]
    assert seeds("paper", 2) == [0, 1]
    assert seeds("small") == [0, 1, 2]


def test_one_panel_needs_no_data_of_the_others(tmp_path: Path) -> None:
    """Heart disease runs at size paper without a GPU; MNIST, CIFAR-10 and IXI have other panels."""
    _, figure = figures.find("all-for-one/table-2")
    assert figure.required == ("MNIST", "CIFAR-10", "IXI", "a GPU")
    hearts = figure.only(["Heart Disease"])
    assert hearts.required == ()
    grid = _grid(hearts, FigureRequest("all-for-one/table-2", "paper", out=tmp_path))
    assert {cell.panel for cell in grid.cells} == {"Heart Disease"}
    assert {config.dataset for config in grid} == {"heart-disease"}
    with pytest.raises(ConfigError, match='no panel "Heart"'):
        reproduce(
            FigureRequest("all-for-one/table-2", out=tmp_path, panels=("Heart",)),
            Console(quiet=True),
        )


def lines_of(names: list[str], width: int) -> list[str]:
    """Return the lines of the list in a terminal."""
    console = Console(width=width)
    with console.capture() as shown:
        console.print(listed(names))
    return [line.rstrip() for line in shown.get().splitlines()]


@pytest.mark.parametrize("paper", figures.names())
def test_the_list_of_a_paper_fits_a_screen(paper: str) -> None:
    lines = lines_of([paper], 80)
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(("width", "title"), [(80, 16), (100, 36), (120, 56)])
def test_the_list_of_all_papers_cuts_titles_only(width: int, title: int) -> None:
    head, *lines = lines_of(figures.names(), width)
    assert max(map(len, lines)) <= width
    start, end = head.index("title"), head.index("size paper")
    assert end - start > title
    shown = {line.split()[0]: line for line in lines}
    for paper in figures.names():
        for figure in figures.read(paper).figures.values():
            line = shown[f"{paper}/{figure.name}"]
            assert line[start:end].strip().rstrip("…") in figure.title
            data = [need for need in figure.needs if not need.startswith("a GPU")]
            assert all(need in line[end:] for need in data)


def test_the_list_takes_single_figures(folder: Path) -> None:
    assert [line.split()[0] for line in lines_of(["toy/figure-2"], 80)] == [
        "figure",
        "toy/figure-2",
    ]


def test_another_size_is_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match="toy/table-1 has no size paper; use --size small"):
        reproduce(FigureRequest("toy/table-1", "paper", out=folder), Console(quiet=True))


def test_the_number_of_seeds_that_would_judge_a_claim() -> None:
    """One significant contradiction decides; otherwise all parts must become significant."""
    holds = claims.Comparison("", "", "", True, slack=1)
    few = claims.Comparison("", "", "", None, slack=1, seeds=5)
    many, none = few._replace(seeds=30), few._replace(seeds=None)
    against = few._replace(slack=-1, seeds=12)
    assert claims._seeds([holds, few, many]) == 30
    assert claims._seeds([holds, few, many, against]) == 12
    assert claims._seeds([few, none]) is None
    assert claims._seeds([few, against._replace(seeds=None)]) is None


def _agrees(claim: figures.Claim, values: list[float]) -> bool:
    """Return whether numbers, higher is better, support a claim."""
    first, *others = values
    match claim.kind:
        case "order":
            margin = claim.margin - 1e-9
            return all(a > b and a - b >= margin for a, b in itertools.pairwise(values))
        case "beats":
            margin = claim.margin - 1e-9
            return all(first > other and first - other >= margin for other in others)
        case "near":
            return all(abs(value - values[-1]) <= claim.within + 1e-9 for value in values)
        case "range":
            return all(claim.low <= abs(value) <= claim.high for value in values)
    return True


@pytest.mark.parametrize("paper", figures.names())
def test_the_papers_own_numbers_support_its_claims(paper: str) -> None:
    """A claim is not stronger than the tables of its paper."""
    for figure in figures.read(paper).figures.values():
        rows = {row.label: row for row in figure.rows}
        for claim, panel in itertools.product(figure.claims, figure.panels):
            if claim.panels and panel.label not in claim.panels:
                continue
            sign = -1 if better_of(claim.column) == "low" else 1
            beaten = [label for label in rows if label not in claim.rows]
            labels = [
                *claim.rows,
                *(beaten if claim.kind == "beats" and not claim.rows[1:] else ()),
            ]
            printed = [rows[label].printed(panel.label, claim.column) for label in labels]
            values = [sign * value for value in printed if value is not None]
            if len(values) == len(printed) > 0:
                assert _agrees(claim, values), (figure.name, claim.text, panel.label)
