"""Patients with several rows, and time: no patient is in two parts, no row is later than a test."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.datasets.own.institutions import (
    Expected,
    HeldOptions,
    Holding,
    RefusedError,
    make_holding,
)
from coterie.datasets.own.schema import described, digest, read_schema
from coterie.datasets.own.tabular import TableOptions
from coterie.datasets.partition.options import Partition
from coterie.datasets.per_peer import problem_of_arrays
from coterie.datasets.problem import DataError, Problem
from coterie.datasets.table import DATASETS
from tests.datasets.own.test_institutions import write_csv

PARTS = ("train", "validation", "test")
CLASSES = Expected("table", "classification", 2, None, None, ("no", "yes"))


def held(
    groups: Any = None, times: Any = None, rows: int = 60, seed: int = 0, **options: Any
) -> Holding:
    """Divide the rows of one institution: targets are random classes, the input is the row."""
    targets = np.random.default_rng(1).integers(2, size=rows)
    parts = {"train": (np.arange(rows, dtype=float)[:, None], targets)}
    named = None if groups is None else {"train": np.asarray(groups)}
    shares = HeldOptions(**{"test": 0.2, "validation": 0.2} | options)
    return make_holding(
        CLASSES, parts, shares, seed, 0, by_class=seed % 2 == 0, groups=named, times=times
    )


@given(
    patients=st.lists(st.integers(0, 9), min_size=8, max_size=40),
    hours=st.none() | st.lists(st.integers(0, 6), min_size=40, max_size=40),
    seed=st.integers(0, 3),
    fold=st.integers(0, 4),
    shares=st.sampled_from([(0.2, 0.2), (0.5, 0.0), (0.3, 0.4)]),
    is_grouped=st.booleans(),
)
def test_parts_share_no_patient_and_keep_all_rows(
    patients: list[int], hours: list[int] | None, seed: int, fold: int,
    shares: tuple[float, float], is_grouped: bool,
) -> None:  # fmt: skip
    rows = len(patients)
    times = None if hours is None else np.array(hours[:rows], dtype=float)
    group_n = np.array(patients) if is_grouped else np.arange(rows)
    more = {"fold": fold, "test": shares[0], "validation": shares[1]}
    try:
        holding = held(group_n.astype(str) if is_grouped else None, times, rows, seed, **more)
    except DataError:  # too few patients, or all rows at one time
        assert len(np.unique(group_n)) < 6 or hours is not None
        return
    parts = [holding.rows[part] for part in PARTS]
    for one, other in itertools.combinations(parts, 2):
        assert not np.intersect1d(group_n[one], group_n[other]).size
    kept = np.concatenate(parts)
    assert len(np.unique(kept)) == len(kept)
    if times is None:
        assert len(kept) == rows
        return
    last = -np.inf
    for part in filter(len, parts):
        assert times[part].min() > last
        last = times[part].max()
    for row in np.setdiff1d(np.arange(rows), kept):  # a later visit of an earlier patient
        own = np.flatnonzero(group_n == group_n[row])
        home = next(part for part in parts if own[times[own].argmin()] in part)
        assert times[row] > times[home].max()


def test_patients_of_one_row_are_divided_as_rows_are() -> None:
    names = [f"patient {k}" for k in np.random.default_rng(0).permutation(60)]
    for seed, fold in itertools.product(range(4), range(3)):
        plain, grouped = held(seed=seed, fold=fold), held(names, seed=seed, fold=fold)
        assert all(np.array_equal(plain.rows[part], grouped.rows[part]) for part in PARTS)
        assert plain.inputs.tobytes() == grouped.inputs.tobytes()


def test_each_part_has_the_rare_class_in_proportion_and_folds_are_disjoint() -> None:
    """A tenth of the patients is ill, in one of three visits."""
    patients = np.repeat(np.arange(100), 3)
    ill = (patients % 10 == 0) & (np.arange(300) % 3 == 1)
    parts = {"train": (np.zeros((300, 1)), ill.astype(np.int64))}
    seen = np.zeros(300)
    for fold in range(4):
        shares = HeldOptions(test=0.2, validation=0.2, fold=fold)
        of = {"groups": {"train": patients}, "by_class": True}
        holding = make_holding(CLASSES, parts, shares, 0, 0, **of)  # type: ignore[arg-type]
        assert [int(ill[holding.rows[part]].sum()) for part in PARTS] == [6, 2, 2]
        seen[holding.rows["validation"]] += 1
    seen[holding.rows["test"]] += 1
    assert (seen == 1).all()


def test_a_patient_in_two_files_is_refused_without_the_name() -> None:
    part = np.zeros((3, 1)), np.array([0, 1, 0])
    groups = {"train": np.array(["a", "secret", "b"]), "test": np.array(["c", "secret", "d"])}
    with pytest.raises(RefusedError, match=r"1 groups .* in both train and test: keep") as refused:
        make_holding(CLASSES, {"train": part, "test": part}, HeldOptions(), 0, 0, groups=groups)
    assert "secret" not in str(refused.value)
    assert refused.value.entries == ["secret"]


def test_left_out_visits_are_counted() -> None:
    """Four of five patients come from day 0 to 29, the fifth from day 15 to 44."""
    times = np.concatenate([*[np.arange(30)] * 4, np.arange(15, 45)]).astype(float)
    holding = held(np.repeat(list("abcde"), 30), times, rows=150, validation=0.0)
    assert "60 of 150 rows left out" in holding.left_out


OPTIONS = TableOptions(
    columns="x, ward", label="ill", classes="no, yes", group="patient", validation=0.2
)
HEADER = ("patient", "day", "x", "ward", "ill")
SCHEMA = """
[columns.patient]
role = "group"
[columns.day]
kind = "date"
role = "time"
[columns.x]
[columns.ill]
kind = "category"
categories = ["no", "yes"]
"""


def visits(hospital: int) -> list[tuple[Any, ...]]:
    """Three visits of 20 patients, one a year; every second patient is ill."""
    g = np.random.default_rng(hospital)
    return [
        (f"{patient:03}", f"20{10 + year}-01-{patient + 1:02}", round(g.normal(), 3), 10 * patient,
         ("no", "yes")[patient % 2])
        for patient in range(20) for year in range(3)
    ]  # fmt: skip


def fill(folder: Path) -> Path:
    for hospital in range(2):
        write_csv(folder / f"h{hospital}" / "data.csv", visits(hospital), HEADER)
    return folder


def loaded(folder: Path, options: TableOptions = OPTIONS, seed: int = 0) -> Problem:
    return DATASETS["table"].load(Partition(), 2, seed, folder, options)


def test_a_table_keeps_its_patients_together_and_counts_them(tmp_path: Path) -> None:
    problem = loaded(fill(tmp_path))
    assert problem.groups is not None
    parts = (problem.train, problem.validation, problem.test)
    for peer in range(2):
        of_parts = [{*problem.groups[part.rows[peer]]} for part in parts]
        assert [len(groups) for groups in of_parts] == [12, 4, 4]
        assert len(set.union(*of_parts)) == 20
        told = problem.describe()[peer]
        assert [told[part]["groups"] for part in PARTS] == [12, 4, 4]
        assert told["test"] == {"size": 12, "labels": [6, 6], "groups": 4, "group_labels": [2, 2]}
        assert problem.sizes(peer) == {"train": 36, "test": 12, "validation": 12}
        assert problem.sizes(peer, in_groups=True) == {"train": 12, "test": 4, "validation": 4}
        assert problem.rarest_class(peer) == 2
    first, second = ({*problem.groups[problem.train.rows[peer]]} for peer in range(2))
    assert not first & second, "each hospital has its own patients"


def test_roles_of_the_schema_are_those_of_the_keys(tmp_path: Path) -> None:
    """Neither the digest nor the features of a schema change by the roles of other columns."""
    (fill(tmp_path) / "schema.toml").write_text(SCHEMA)
    keys = replace(OPTIONS, columns="all", schema="file")
    of_roles = loaded(tmp_path, replace(keys, group=""))
    assert of_roles.table is not None
    assert [column.name for column in of_roles.table.columns] == ["x"]
    named = loaded(tmp_path, keys)
    assert all(map(np.array_equal, of_roles.train.rows, named.train.rows))
    plain = {name: replace(column, role="") for name, column in read_schema(tmp_path).items()}
    assert digest(plain) != digest(read_schema(tmp_path))
    assert "role" not in str(described(plain))
    timed = loaded(tmp_path, replace(keys, group="", split="time"))
    days = np.array([row[1] for row in visits(0)], dtype="datetime64[D]")
    train, validation, test = (
        days[part.rows[0]] for part in (timed.train, timed.validation, timed.test)
    )
    assert timed.own_test == (True, True), "no seed draws them"
    assert train.max() == np.datetime64("2010-01-12"), "later visits of patients are left out"
    assert train.max() < validation.min() <= validation.max() < test.min()


@pytest.mark.parametrize("form", ["date", "text", "number", "hour"])
def test_times_of_every_form_divide_alike(form: str, tmp_path: Path) -> None:
    """The last fifth of 50 minutes; the order in the file is another one."""
    minutes = np.random.default_rng(0).permutation(50)
    stamps = np.datetime64("2024-02-28T23:30") + minutes * np.timedelta64(1, "m")
    cells = {
        "date": pa.array(stamps.astype("datetime64[us]")),
        "text": pa.array([f"{stamp}Z" for stamp in stamps]),
        "number": pa.array(minutes + 1e9),
        "hour": pa.array([str(stamp).replace("T", " ") for stamp in stamps]),
    }
    columns = {"x": pa.array(minutes * 1.0), "at": cells[form], "y": pa.array(minutes * 2.0)}
    (tmp_path / "a").mkdir()
    pa.parquet.write_table(pa.table(columns), tmp_path / "a" / "data.parquet")
    options = TableOptions(columns="x", label="y", split="time", time="at", validation=0.2)
    problem = DATASETS["table"].load(Partition(), 1, 0, tmp_path, options)
    assert problem.table is not None
    cells_n = problem.table.cells[:, 0]
    assert sorted(cells_n[problem.test.rows[0]]) == [*range(40, 50)]
    assert sorted(cells_n[problem.validation.rows[0]]) == [*range(30, 40)]


def test_patients_in_two_files_are_found_in_any_spelling(tmp_path: Path) -> None:
    rows = visits(0)
    for k, name in enumerate(("h0", "h1")):
        write_csv(tmp_path / name / "train.csv", [(k + 7.0, *row[1:]) for row in rows[:30]], HEADER)
        write_csv(tmp_path / name / "test.csv", [(9, *row[1:]) for row in rows[30:]], HEADER)
    assert loaded(tmp_path).sizes(0, in_groups=True)["test"] == 1
    write_csv(tmp_path / "h1" / "test.csv", [(" 8", *row[1:]) for row in rows[30:]], HEADER)
    with pytest.raises(DataError, match=r"h1: table: 1 groups .* both train and test: .*: 8$"):
        loaded(tmp_path, seed=1)
    alone = DATASETS["table"].deployed
    assert alone is not None
    with pytest.raises(DataError, match="in one part; the log of this node"):
        alone(1, 2, 0, tmp_path / "h1", OPTIONS)
    write_csv(tmp_path / "h1" / "test.csv", [row[1:] for row in rows[30:]], HEADER[1:])
    with pytest.raises(DataError, match=r"test.csv has no column patient"):
        loaded(tmp_path, seed=2)


def test_test_files_are_later_than_the_training_rows(tmp_path: Path) -> None:
    rows = sorted(visits(0), key=lambda row: str(row[1]))
    options = replace(OPTIONS, group="", split="time", time="day")
    for name in ("h0", "h1"):
        write_csv(tmp_path / name / "train.csv", rows[:40], HEADER)
        write_csv(tmp_path / name / "test.csv", rows[40:], HEADER)
    assert loaded(tmp_path, options).sizes(0) == {"train": 32, "validation": 8, "test": 20}
    write_csv(tmp_path / "h1" / "test.csv", rows[38:], HEADER)
    with pytest.raises(DataError, match=r"h1: .* 2 rows of test are not later than all of train"):
        loaded(tmp_path, options, seed=1)


def test_rows_without_a_patient_are_refused_or_left_out(tmp_path: Path) -> None:
    fill(tmp_path)
    rows = [("" if k in (4, 7) else row[0], *row[1:]) for k, row in enumerate(visits(1))]
    write_csv(tmp_path / "h1" / "data.csv", rows, HEADER)
    with pytest.raises(DataError, match=r"2 of 60 rows.*line 6: patient.* missing"):
        loaded(tmp_path)
    (tmp_path / "schema.toml").write_text(SCHEMA)
    options = replace(OPTIONS, columns="x", schema="file", bad_rows="leave-out")
    assert sum(loaded(tmp_path, options).sizes(1).values()) == 58


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"group": "x"}, "x divides the rows"),
        ({"group": "ill"}, "ill divides the rows"),
        ({"time": "ward", "split": "time"}, "ward divides the rows"),
        ({"time": "x", "split": "time", "columns": "ward"}, "x is missing"),
        ({"group": "patients"}, "no column patients"),
    ],
)
def test_what_divides_the_rows_is_no_feature(
    keys: dict[str, Any], why: str, tmp_path: Path
) -> None:
    rows = [(*row[:2], "", *row[3:]) for row in visits(0)]
    for name in ("h0", "h1"):
        write_csv(tmp_path / name / "data.csv", rows, HEADER)
    with pytest.raises(DataError, match=why):
        loaded(tmp_path, replace(OPTIONS, **keys))


def test_keys_that_do_not_fit_are_refused_before_data_are_read() -> None:
    for keys, why in (({"time": "day"}, 'needs split = "time"'), ({"split": "time"}, "set time")):
        with pytest.raises(ValueError, match=why):
            replace(OPTIONS, **keys).check_peers(2)  # type: ignore[arg-type]


def test_arrays_have_groups_and_times() -> None:
    g = np.random.default_rng(0)
    x, y, patient = g.normal(size=(60, 2)), g.integers(2, size=60), np.repeat(np.arange(20), 3)
    of = [{"x": x, "y": y, "group": patient}, {"x": x, "y": y}]
    problem = problem_of_arrays("data", of, Partition(validation=0.2), 2, 0)
    assert problem.sizes(0, in_groups=True) == {"train": 12, "test": 4, "validation": 4}
    assert problem.sizes(1, in_groups=True) == problem.sizes(1), "each row for itself"
    later = problem_of_arrays("data", [{"x": x, "y": y, "time": -np.arange(60)}], Partition(), 1, 0)
    assert later.test.rows[0].tolist() == [*range(12)]
    for more, why in (
        ({"group": patient[:5]}, "peer 0: group must have a value for each of the 60 examples"),
        ({"group": patient, "x_test": x, "y_test": y}, "peer 0: group_test must have a value"),
        ({"group": patient, "x_test": x, "y_test": y, "group_test": 1.0 * patient}, "20 groups"),
        ({"group": [None, *patient[1:]]}, "group must have a value"),
        ({"group": x}, "group must have a value"),
        ({"time": ["yesterday"] * 60}, "time must be numbers or datetime64"),
    ):
        with pytest.raises(DataError, match=why):
            problem_of_arrays("data", [{"x": x, "y": y, **more}], Partition(), 1, 0)
