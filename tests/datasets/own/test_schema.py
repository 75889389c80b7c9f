"""Tables with missing values, categories, dates and invalid cells."""

from __future__ import annotations

import logging
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from coterie.datasets.own.cells import open_table
from coterie.datasets.own.institutions import RefusedError
from coterie.datasets.own.schema import digest, drafted, read_schema
from coterie.datasets.own.tabular import TableOptions, read_table
from coterie.datasets.preprocessing import Preprocessing
from coterie.datasets.problem import DataError

SCHEMA = """
[columns.age]
unit = "years"
low = 0
high = 120
[columns.sex]
kind = "category"
categories = ["f", "m", "x"]
[columns.since]
kind = "date"
[columns.ill]
kind = "category"
categories = ["no", "yes"]
"""
ROWS = [
    "age,sex,since,ill", "61,f,2020-01-31,no", ",m,2021-05-01,yes", "45,,2019-12-24,no",
    "70,m,,yes", "52,f,2022-02-02,no", "33,x,2020-06-15,yes",
]  # fmt: skip
OPTIONS = TableOptions(columns="age, sex, since", label="ill", schema="file", missing="mean")


def write(folder: Path, rows: list[str], schema: str = SCHEMA) -> Path:
    (folder / "train.csv").write_text("\n".join(rows) + "\n")
    (folder / "test.csv").write_text("\n".join(ROWS) + "\n")
    (folder / "schema.toml").write_text(schema)
    return folder


def test_it_is_what_scikit_learn_makes_of_it(tmp_path: Path) -> None:
    expected, held = read_table(write(tmp_path, ROWS), OPTIONS, 0, 0)
    assert expected.classes == ("no", "yes")
    assert held.targets[held.rows["train"]].tolist() == [0, 1, 0, 1, 0, 1]
    raw = np.array(
        [[61, "f", "2020-01-31"], [np.nan, "m", "2021-05-01"], [45, None, "2019-12-24"],
         [70, "m", None], [52, "f", "2022-02-02"], [33, "x", "2020-06-15"]], dtype=object,
    )  # fmt: skip
    raw[:, 2] = [np.nan if d is None else date.fromisoformat(d).toordinal() for d in raw[:, 2]]
    numbers = make_pipeline(SimpleImputer(), StandardScaler())
    codes = make_pipeline(
        OneHotEncoder(categories=[["f", "m", "x"]], handle_unknown="ignore", sparse_output=False),
        StandardScaler(),
    )
    parts = [("age", numbers, [0]), ("sex", codes, [1]), ("since", numbers, [2])]
    learnt = ColumnTransformer(parts).fit_transform(raw)
    assert np.allclose(held.inputs[held.rows["train"]], learnt, atol=1e-6)


def test_preprocessing_survives_as_text(tmp_path: Path) -> None:
    import json

    _, held = read_table(write(tmp_path, ROWS), OPTIONS, 0, 0)
    again = Preprocessing.of_json(json.loads(json.dumps(held.preprocessing.as_json())))
    raw = np.array([[50.0, 1, 18000], [np.nan, np.nan, np.nan]])
    assert np.array_equal(again.apply(raw), held.preprocessing.apply(raw))
    assert again.columns == held.preprocessing.columns


def test_bad_rows_are_named_by_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bad = [*ROWS, "151,f,2020-01-01,no", "x1,q,20-1,yes", "40,f,2020-01-01,"]
    write(tmp_path, bad)
    with pytest.raises(RefusedError, match=r"3 of 9 rows of train\.csv") as refusal:
        read_table(tmp_path, OPTIONS, 0, 0)
    assert "151" not in str(refusal.value)
    assert refusal.value.entries == [
        "train.csv, line 8: age 151 is not 0 to 120",
        "train.csv, line 9: age 'x1' is not a number; sex 'q' is not a category; "
        "since '20-1' is not a date",
        "train.csv, line 10: has missing values",
    ]
    options = TableOptions(**{**vars(OPTIONS), "bad_rows": "leave-out"})
    with caplog.at_level(logging.WARNING, "coterie.data"):
        _, held = read_table(tmp_path, options, 0, 0)
    assert len(held.rows["train"]) == 6
    assert "left out: train.csv, line 8: age 151 is not 0 to 120" in caplog.text


def test_gaps_are_bad_unless_they_are_filled(tmp_path: Path) -> None:
    options = TableOptions(**{**vars(OPTIONS), "missing": "refuse"})
    with pytest.raises(RefusedError, match="3 of 6 rows"):
        read_table(write(tmp_path, ROWS), options, 0, 0)


def test_institutions_compare_digests(tmp_path: Path) -> None:
    agreed = digest(read_schema(write(tmp_path, ROWS)))
    options = TableOptions(**{**vars(OPTIONS), "schema": agreed})
    read_table(tmp_path, options, 0, 0)
    write(tmp_path, ROWS, SCHEMA.replace('"years"', '"months"'))
    with pytest.raises(DataError, match=r"does not have the digest table\.schema"):
        read_table(tmp_path, options, 0, 0)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("low = 0", "least = 0", "unknown key least"),
        ('kind = "date"', 'kind = "time"', "kind must be one of"),
        ('["f", "m", "x"]', '["f", "f"]', "without duplicates"),
        ("[columns.since]", "[columns.until]", "does not describe since"),
        ("[columns.age]", "[columns", "not a schema"),
    ],
)
def test_a_wrong_schema_is_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_table(write(tmp_path, ROWS, SCHEMA.replace(old, new)), OPTIONS, 0, 0)


def test_a_draft_fits_its_table(tmp_path: Path) -> None:
    rows = [f"{row},{name}" for row, name in zip(ROWS, ["note", *"abcdef"], strict=True)]
    rows += [f"{k},f,2020-01-01,no,text {k}" for k in range(40)]
    (tmp_path / "train.csv").write_text("\n".join(rows) + "\n")
    schema, left_out = drafted(open_table(tmp_path / "train.csv"))
    assert {name: column.kind for name, column in schema.items()} == {
        "age": "number", "sex": "category", "since": "date", "ill": "category",
    }  # fmt: skip
    assert schema["sex"].categories == ("f", "m", "x")
    assert left_out == ["note"]
