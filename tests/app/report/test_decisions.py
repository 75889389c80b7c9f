"""Decisions: the choice of the method, the intervals and the sentences of each institution."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Group

from coterie.app.experiments.choice import Choice
from coterie.app.experiments.table import Table
from coterie.app.report import by_peer, comparison, comparison_page, decisions, html, words
from coterie.app.report.comparison import Comparison
from coterie.app.report.decisions import Decisions
from coterie.app.runs import quality
from coterie.app.runs.rundir import Run
from coterie.app.runs.summary import summarise
from tests.app.fake_run import write_config, write_metrics, write_progress
from tests.output import csv_rows, printed

SEEDS = 5
HOSPITALS = ("north", "south", "village", "cardiology")
TEST = ((30, 30), (40, 20), (1, 1), (0, 40))  # healthy, ill
OWN = (0.80, 0.75, 0.0, 1.0)
GAINS = {"dpfl": (0.1, 0.0, 0.9, 0.0), "fedavg": (-0.2, -0.1, 0.9, -0.3)}
NOISE = (0.01, -0.01, 0.0, 0.005, -0.005)


def write(
    directory: Path,
    method: str,
    seed: int,
    accuracy: Sequence[float],
    fixed: bool = False,
    tests: Sequence[tuple[int, int]] = TEST,
    visits: int = 0,
    **metrics: float,
) -> Run:
    run = directory / f"{method}-{seed}"
    run.mkdir(parents=True)
    table = {"test": 0.25, "split": "random"}
    keys: dict[str, Any] = {"method": method, "peers": 4, "seed": seed, "dataset": "table"}
    write_config(run, {**keys, "table": table, "partition": {}})
    write_metrics(
        run,
        [
            {"round": 0, "peer": p, "peer_name": HOSPITALS[p], "test_loss": 1.0}
            | {"test_accuracy": value, **metrics}
            for p, value in enumerate(accuracy)
        ],
    )
    split: list[dict[str, Any]] = []
    has_validation = "validation_accuracy" in metrics
    for name, (healthy, ill) in zip(HOSPITALS, tests, strict=True):
        train = {"size": 3 * (healthy + ill), "labels": [3 * healthy, 3 * ill]}
        test = {"size": healthy + ill, "labels": [healthy, ill]} | (
            {"fixed": True} if fixed else {}
        )
        held = [5 * (has_validation and healthy > 0), 5 * has_validation]
        validation = {"size": sum(held), "labels": held}
        parts: dict[str, Any] = {"train": train, "validation": validation, "test": test}
        for part in parts.values() if visits else ():
            part["groups"] = part["size"] // visits
            part["group_labels"] = [count // visits for count in part["labels"]]
        split.append({"name": name, **parts})
    (run / "split.json").write_text(json.dumps(split))
    (run / "classes.json").write_text('["healthy", "ill"]')
    write_progress(run)
    return Run.read(run)


def rows(
    directory: Path,
    gains: Mapping[str, Sequence[float]] = GAINS,
    validation: Mapping[str, float] = {},
    auroc: Mapping[str, float] = {},
    seeds: int = SEEDS,
    **options: Any,
) -> Table:
    runs: dict[str, list[Run]] = {}
    for method, gain_p in {"local": (0.0,) * 4, **gains}.items():
        for seed in range(seeds):
            off = NOISE[seed] if method != "local" else 0.0
            ends = [own + gain + off for own, gain in zip(OWN, gain_p, strict=True)]
            metrics = dict(options)
            if validation:
                metrics["validation_accuracy"] = validation[method]
            if auroc:
                metrics["auroc"] = auroc[method] - off / 2
            run = write(directory, method, seed, ends, **metrics)
            runs.setdefault(method, []).append(run)
    return Table.of_runs(runs)


def of(directory: Path, **options: Any) -> Decisions:
    result = decisions.compared(Comparison(rows(directory, **options)))
    assert result is not None
    return result


def test_each_institution_has_an_advice_with_its_rule(tmp_path: Path) -> None:
    made = of(tmp_path)
    assert [(d.institution, d.text) for d in made.institutions] == [
        ("north", "use dpfl"),
        ("south", "no gain larger than 1.6 points"),
        ("village", "not known"),
        ("cardiology", "not known"),
    ]
    village = " ".join(made.institutions[2].sentences)
    assert "90.0 points" not in village, "no number about two patients"


def test_patients_are_counted_instead_of_their_visits(tmp_path: Path) -> None:
    """Six visits each: 5 of 20 patients of the rarer class at north, and wider intervals.

    Of 20 patients, a quarter of whom is tested, five seeds test 20 (1 - 0.75^5) = 15.
    """
    made = of(tmp_path / "6", visits=6)
    north = made.institutions[0]
    assert north.text == "not known"
    assert north.sentences[0].startswith("240 rows of 40 groups: 180 for training")
    assert north.reason == (
        "Only 15 of its 20 groups of the rarer class are tested in some seed; 20 would decide."
    )
    lines = csv_rows(made.files()[decisions.FILE])
    assert (lines[0]["rows"], lines[0]["groups"]) == ("240", "40")
    assert made.forests[0].lines[0].rows == "40 groups"
    tests = ((120, 120), *TEST[1:])
    options: dict[str, Any] = {"tests": tests, "seeds": 1, "gains": {"dpfl": (0.1, 0.0, 0.9, 0.0)}}
    width = {}
    for visits in (1, 4):
        table = rows(tmp_path / f"{visits}-few", visits=visits, **options)
        of_visits = decisions.compared(Comparison(table))
        assert of_visits is not None
        low, high = of_visits.institutions[0].gain[1:]
        width[visits] = high - low
        shown = by_peer.compared(Comparison(table))
        assert shown is not None
        assert shown.rows[0][1][2].text == f"240 ({240 // visits} groups)"
        line = csv_rows(shown.files()[by_peer.FILE])[0]
        assert float(line["train_groups"]) == 720 // visits
    assert width[4] == pytest.approx(2 * width[1], rel=0.05), "a quarter of independent rows"


def test_the_interval_is_that_of_the_paired_test(tmp_path: Path) -> None:
    """Nadeau and Bengio: sd sqrt(1/5 + 1/3), at level 1 - 0.05/2 for the better of two methods.

    Of two institutions nothing is shrunk, but both say how much five seeds scatter.
    """
    north = of(tmp_path).institutions[0]
    reach = np.std(NOISE, ddof=1) * np.sqrt(1 / 5 + 0.25 / 0.75) * 2.7515  # t, 0.9875, 8 df
    assert north.gain == pytest.approx((0.1, 0.1 - reach, 0.1 + reach), rel=1e-4)


def test_validation_rows_choose_the_method_before_test_rows(tmp_path: Path) -> None:
    made = of(tmp_path, validation={"local": 0.5, "dpfl": 0.6, "fedavg": 0.7})
    north = made.institutions[0]
    assert north.text == "do not use fedavg"
    assert "validation rows of all institutions, which other seeds test on." in made.notes[0]
    assert made.notes[1].startswith("Interval: 97.5 %, corrected for the choice among 2 methods")
    reach = np.std(NOISE, ddof=1) * np.sqrt(1 / 5 + 0.25 / 0.75) * 2.7515  # t, 0.9875, 8 df
    assert north.gain[1] == pytest.approx(-0.2 - reach, rel=1e-4)


def test_validation_rows_that_are_never_test_rows_need_no_correction(tmp_path: Path) -> None:
    made = of(tmp_path, validation={"local": 0.5, "dpfl": 0.6, "fedavg": 0.5}, fixed=True)
    assert "no test row took part in the choice" in made.notes[0]
    assert made.notes[1].startswith("Interval: 95 %, of the method minus")


def test_only_institutions_that_are_judged_choose_the_method(tmp_path: Path) -> None:
    """The village has 24 rows, of which five seeds test 12 (1 - 0.75^5) = 9 of the rarer class."""
    tests = (*TEST[:2], (3, 3), TEST[3])
    gains = {"dpfl": (0.0, 0.0, 0.9, 0.0), "fedavg": (0.1, 0.0, 0.0, 0.0)}
    made = of(tmp_path, gains=gains, tests=tests)
    assert [each.advice for each in made.institutions][2] == "not known"
    assert made.notes[0].startswith("fedavg is judged everywhere")
    assert made.notes[0].endswith("mean gain over local on the test rows of north and south.")


def test_test_rows_of_a_file_are_as_uncertain_with_many_seeds(tmp_path: Path) -> None:
    """All seeds agree on 0.9 against 0.8 of the same 60 rows, which is within Wilson's reach."""
    made = of(tmp_path, gains={"dpfl": (0.1, 0.0, 0.9, 0.0)}, fixed=True)
    north, south = made.institutions[:2]
    assert north.gain[1] < 0 < north.gain[2]
    assert north.reason.endswith(" rows here would find it in 80."), "more seeds would not"
    half = np.hypot(north.gain[2] - north.gain[0], south.gain[2] - south.gain[0]) / 2
    low, high = (f"{100 * (0.05 + sign * half):+.1f}" for sign in (-1, 1))
    assert made.consortium.endswith(f"; mean gain in accuracy (points): +5.0 ({low} to {high}).")


def test_an_advice_names_the_number_that_decides(tmp_path: Path) -> None:
    """Accuracy gains at north, but the AUROC loses everywhere."""
    made = of(tmp_path, gains={"dpfl": GAINS["dpfl"]}, auroc={"local": 0.8, "dpfl": 0.75})
    north = made.institutions[0]
    assert north.text == "do not use dpfl"
    assert north.reason.startswith("It ranks the rows worse than your own model: AUROC -0.050 (-0")
    of_accuracy, of_ranking = (plot.lines[0] for plot in made.forests)
    assert (of_accuracy.name, of_accuracy.answer) == ("north", "do not use")
    assert of_accuracy.number.startswith("+10.0 (+")
    assert of_ranking.number.startswith("-0.050 (-0")
    line = csv_rows(made.files()[decisions.FILE])[0]
    assert float(line["auroc_low"]) < -0.05 < float(line["auroc_high"]) < 0


def test_few_seeds_are_as_uncertain_as_the_test_rows(tmp_path: Path) -> None:
    """Wilson's intervals of 90 and 80 % of 60 rows are far wider than 10 points apart."""
    made = of(tmp_path, seeds=1, gains={"dpfl": (0.1, 0.0, 0.9, 0.0)})
    gain = made.institutions[0].gain
    assert made.institutions[0].text == "not known"
    assert made.institutions[0].reason.endswith("; about 3 seeds would find it in 80.")
    assert gain[1] < 0 < gain[2]


def test_a_better_ranking_with_worse_decisions_says_so(tmp_path: Path) -> None:
    made = of(tmp_path, gains={"fedavg": GAINS["fedavg"]}, auroc={"local": 0.8, "fedavg": 0.85})
    north = made.institutions[0]
    assert north.text == "use fedavg after setting your own threshold"
    assert north.reason.startswith("It ranks the rows better (AUROC +0.050 (+0")
    assert "but decides worse at probability 0.5: choose the threshold" in north.reason


def test_decision_csv_has_a_line_per_institution(tmp_path: Path) -> None:
    made = of(tmp_path)
    lines = csv_rows(made.files()[decisions.FILE])
    assert [*lines[0]] == [
        "institution", "advice", "method", "gain", "low", "high",
        "auroc_gain", "auroc_low", "auroc_high", "rows", "reason",
    ]  # fmt: skip
    assert (lines[0]["advice"], lines[0]["method"], lines[0]["rows"]) == ("use", "dpfl", "240")
    assert float(lines[0]["low"]) > 0
    assert (lines[2]["gain"], lines[2]["rows"]) == ("", "8")
    table = made.files()[decisions.LATEX].splitlines()
    assert r"institution & rows & Gain in accuracy (points) & answer \\" in table
    assert r"village & 8 & – & not known \\" in table


def test_a_sentence_and_a_row_per_institution_come_first(tmp_path: Path) -> None:
    """The page starts with them; a terminal of 80 columns shows the same."""
    compared = Comparison(rows(tmp_path))
    made, page = decisions.compared(compared), comparison_page.page(compared)
    assert made is not None
    assert made.consortium.startswith(
        "dpfl is shown to help at 1 of 4 institutions (no relevant gain at 1, not known at 2); "
        "mean gain in accuracy (points): +5.0 ("
    )
    text = html.render(page.template, **page.content())
    head = text[text.index('class="lede"') :]
    places = [head.index(part) for part in (made.consortium, "<svg", "<details", 'id="results"')]
    assert places == sorted(places)
    assert head.count('class="mean"') == 1, "a diamond"
    shown = printed(Group(*made.lines()))
    assert re.search(r"north +240 .*│.*─■─ *\+10\.0 \(\+8\.4 to \+11\.6\) +use", shown)
    assert re.search(r"mean .*◆.*\+5\.0 \(", shown)


def test_the_ranking_leads_where_a_class_is_rare(tmp_path: Path) -> None:
    """3 of 60 rows are ill; a model that never says so is right in 95 % of them."""
    tests, gains = ((970, 30),) * 4, {"dpfl": (0.0,) * 4}
    options: dict[str, Any] = {"gains": gains, "auroc": {"local": 0.7, "dpfl": 0.8}}
    table = rows(tmp_path / "rare", tests=tests, **options)
    assert table.rare == (1, 0.03)
    assert table.main is not None
    assert table.main.key == "auroc"
    compared = Comparison(table)
    made = decisions.compared(compared)
    assert made is not None
    assert [each.advice for each in made.institutions] == ["use"] * 4
    assert [plot.title for plot in made.forests] == ["Gain in AUROC"]
    note = (
        "3.0 % of the test rows are “ill”: always predicting “healthy” has accuracy 97.0 %; "
        "guessing has AUROC 0.5 and AUPRC 0.030"
    )
    assert made.about.replace("\xa0", " ") == note
    assert "dpfl is the best of 2 methods" in " ".join(compared.outcome)
    assert "mean AUROC 0.8" in " ".join(compared.outcome)
    files = comparison.results(compared).files()
    assert r"method & AUROC & accuracy \%" in files["comparison.tex"]
    usual = rows(tmp_path / "usual", **options)
    assert usual.rare is None
    assert usual.main is not None
    assert usual.main.key == "accuracy"


def test_errors_of_numbers_are_in_the_unit_of_the_label(tmp_path: Path) -> None:
    """The loss is in squared units, so RMSE leads: 9 instead of 10 is a reduction of 1."""
    table = rows(tmp_path, gains={"dpfl": (0.0,) * 4}, rmse=10.0)
    for row in table:
        for run in row.runs:
            config = run.directory / "config.toml"
            config.write_text(config.read_text().replace("[table]", '[table]\nlabel = "sbp"'))
            lines = [
                json.loads(x) for x in (run.directory / "metrics.jsonl").read_text().splitlines()
            ]
            for line in lines:
                line["rmse"] -= (row.method == "dpfl") * (1 + NOISE[run.settings.seed])
                del line["test_accuracy"]
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (run.directory / "metrics.jsonl").write_text(text)
    runs = {row.method: [Run.read(run.directory) for run in row.runs] for row in table}
    made = decisions.compared(Comparison(Table.of_runs(runs)))
    assert made is not None
    assert made.forests[0].title == "Reduction of RMSE (units of sbp)"
    assert made.forests[0].lines[0].number.startswith("+1 (+0.9")
    assert made.institutions[0].text == "use dpfl"


def test_a_model_that_diverged_with_one_seed_leaves_the_other_seeds(tmp_path: Path) -> None:
    """Loss 1 alone and 0.9 with dpfl; infinite alone at north with seed 0."""
    for method in ("local", "dpfl"):
        for seed in range(3):
            run = write(tmp_path, method, seed, OWN)
            lines = [
                json.loads(x) for x in (run.directory / "metrics.jsonl").read_text().splitlines()
            ]
            for line in lines:
                del line["test_accuracy"]
                line["test_loss"] = 1.0 if method == "local" else 0.9
            ends = [{**line, "round": 1} for line in lines]
            ends[0]["test_loss"] = (
                np.inf if (method, seed) == ("local", 0) else ends[1]["test_loss"]
            )
            write_metrics(run.directory, [*lines, *ends])
    runs = {m: [Run.read(tmp_path / f"{m}-{s}") for s in range(3)] for m in ("local", "dpfl")}
    made = decisions.compared(Comparison(Table.of_runs(runs)))
    assert made is not None
    north, south = made.institutions[:2]
    assert north.gain[0] == south.gain[0] == pytest.approx(0.1)
    assert "Test loss 0.9 with dpfl, 1 with your own model" in north.sentences[1]
    assert north.reason == "No test is possible with 2 seeds: 3 are needed."
    assert "inf" not in made.consortium


def test_the_last_institution_that_a_terminal_lacks_is_one(tmp_path: Path) -> None:
    made = of(tmp_path)
    many = replace(made, institutions=made.institutions * 6)
    assert many.lines()[-1] == "4 more institutions on the page"
    assert replace(many, institutions=many.institutions[:21]).lines()[-1] == (
        "1 more institution on the page"
    )


def test_no_decision_without_own_models_or_institutions(tmp_path: Path) -> None:
    made = rows(tmp_path)
    runs = {row.method: row.runs for row in made}
    others = {name: of for name, of in runs.items() if name != "local"}
    assert decisions.compared(Comparison(Table.of_runs(others))) is None
    assert decisions.compared(Comparison(Table.of_runs({"local": runs["local"]}))) is None
    for row in made:
        for run in row.runs:
            config = (run.directory / "config.toml").read_text()
            (run.directory / "config.toml").write_text(config.replace('"table"', '"digits"'))
    runs = {row.method: [Run.read(run.directory) for run in row.runs] for row in made}
    assert decisions.compared(Comparison(Table.of_runs(runs))) is None
    assert not quality.too_few_rows(runs["local"][0])


def test_a_single_run_says_rows_and_what_cannot_be_judged(tmp_path: Path) -> None:
    run = write(tmp_path, "dpfl", 0, OWN)
    made = decisions.of_run(run)
    assert made is not None
    assert [(d.institution, d.text) for d in made.institutions] == [
        ("village", "not known"), ("cardiology", "not known")
    ]  # fmt: skip
    assert made.consortium == (
        "2 of 4 institutions can be judged by a comparison with models of their own rows: coterie "
        f"compare {run.directory}/config.toml --methods local,dpfl"
    )
    text = words.outcome(run, summarise(run)).replace("\xa0", " ")
    assert "the lowest peer reaches 75.0 %" in text, "not the 0 % of two patients"
    assert "77.5 % on average" in text
    assert "Not counted: village (fewer than 20 test rows) and cardiology (one class only)" in text


def test_headlines_have_the_peers_that_can_be_judged(tmp_path: Path) -> None:
    """AUROC 0.8 at north and south, 0.1 of two patients; 30 of 100,000 rows are ill."""
    run = write(tmp_path, "dpfl", 0, OWN, tests=((49_985, 15), (49_985, 15), (2, 1), (0, 9)))
    lines = [json.loads(x) for x in (run.directory / "metrics.jsonl").read_text().splitlines()]
    for line, auroc in zip(lines, (0.7, 0.9, 0.1, None), strict=True):
        line["auroc"] = auroc
    write_metrics(run.directory, lines)
    run = Run.read(run.directory)
    text = words.outcome(run, summarise(run)).replace("\xa0", " ")
    assert "reach an AUROC of 0.8 and a test accuracy of 77.5 % on average" in text
    assert words.tiles(run, summarise(run))[0] == ("AUROC", "0.8", "mean over peers")
    assert "0.040 % of the test rows are “ill”: always predicting “healthy” has accuracy" in text
    assert "99.960 %; guessing has AUROC 0.5 and AUPRC 0.00040." in text


def test_a_run_whose_peers_are_all_small_says_so(tmp_path: Path) -> None:
    run = write(tmp_path, "dpfl", 0, OWN, tests=((2, 2),) * 4)
    text = words.outcome(run, summarise(run)).replace("\xa0", " ")
    assert "a test accuracy of 63.7 % on average" in text
    assert "No peer can be judged: north, south, village and cardiology (fewer than 20" in text
    made = decisions.of_run(run)
    assert made is not None
    assert made.consortium == (
        "None of 4 institutions can be judged by a comparison with models of their own rows."
    )


@pytest.mark.parametrize("fixed", [False, True])
def test_tuning_on_rows_that_other_seeds_test_says_so(tmp_path: Path, fixed: bool) -> None:
    """Five seeds that divide the same rows again, or share the test rows of a file."""
    runs = {row.method: row.runs for row in rows(tmp_path, fixed=fixed)}
    table = Table.of_runs(runs, {"dpfl": Choice({"learning-rate": 0.1}, trials=15)})
    (about,) = comparison_page.settings(Comparison(table)).about
    assert "15 trials for each method; its test data decided nothing" in about
    assert ("but other seeds test some of these validation rows" in about) is not fixed
