"""Tables with missing values, categories, dates and invalid cells."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import tomli_w
from pyarrow import parquet
from sklearn.compose import ColumnTransformer
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

import coterie
from coterie.app.cli.main import main
from coterie.datasets.own.cells import open_table
from coterie.datasets.own.institutions import RefusedError, listed
from coterie.datasets.own.schema import described, digest, drafted, read_schema
from coterie.datasets.own.tabular import TableOptions, read_table
from coterie.datasets.preprocessing import Column, Preprocessing, numbers
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


@pytest.mark.parametrize("age", [0, 120])
def test_the_ends_of_a_range_are_in_it(age: int, tmp_path: Path) -> None:
    _, held = read_table(write(tmp_path, [*ROWS, f"{age},f,2020-01-01,no"]), OPTIONS, 0, 0)
    assert len(held.rows["train"]) == 7


def test_bad_rows_are_named_by_line(tmp_path: Path) -> None:
    bad = [*ROWS, "151,f,2020-01-01,no", "x1,q,20-1,yes", "40,f,2020-01-01,"]
    write(tmp_path, bad)
    with pytest.raises(RefusedError, match=r"3 of 9 rows of train\.csv") as refusal:
        read_table(tmp_path, OPTIONS, 0, 0)
    assert "151" not in str(refusal.value)
    assert refusal.value.entries == [
        "train.csv, line 8: age 151 is not 0 to 120",
        "train.csv, line 9: age 'x1' is not a number; sex 'q' is not a category; "
        "since '20-1' is not a date",
        "train.csv, line 10: ill is missing",
    ]
    options = TableOptions(**{**vars(OPTIONS), "bad_rows": "leave-out"})
    _, held = read_table(tmp_path, options, 0, 0)
    assert len(held.rows["train"]) == 6
    assert held.left_out == f"3 of 9 rows left out: {listed(refusal.value.entries)}"


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
        ("low = 0", "least = 0", "least: Unexpected keyword"),
        ('kind = "date"', 'kind = "time"', "kind: Input should be"),
        ('["f", "m", "x"]', '["f", "f"]', "without duplicates"),
        ("[columns.since]", "[columns.until]", "does not describe since"),
        ("[columns.age]", "[columns", "not a schema"),
        ("[columns.age]", f"deep = {'[' * 5000}", "not a schema"),
        ("low = 0", 'low = "abc"', r"schema.toml: column age: low: Input should be a valid number"),
        ("low = 0", "low = true", r"schema.toml: column age: low: Input should be a valid number"),
        ("low = 0", "low = nan", r"schema.toml: column age: low: Input should be a finite number"),
        ('unit = "years"', "unit = {a = 1}", r"schema.toml: column age: unit: Input should be"),
    ],
)
def test_a_wrong_schema_is_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_table(write(tmp_path, ROWS, SCHEMA.replace(old, new)), OPTIONS, 0, 0)


def test_a_draft_fits_its_table(tmp_path: Path) -> None:
    rows = [f"{row},{name}" for row, name in zip(ROWS, ["note", *"abcdef"], strict=True)]
    rows += [f"{k},f,2020-01-01,no,text {k}" for k in range(40)]
    (tmp_path / "train.csv").write_text("\n".join(rows) + "\n")
    path = tmp_path / "train.csv"
    draft = drafted({str(path): open_table(path)}, 1)
    schema, left_out = draft.schema, draft.left_out
    assert {name: column.kind for name, column in schema.items()} == {
        "age": "number", "sex": "category", "since": "date", "ill": "category",
    }  # fmt: skip
    assert schema["sex"].categories == ("f", "m", "x")
    assert list(left_out) == ["note"]


NA_ROWS = ["age,chol,sex,ill", "61,0,f,no", "?,233,-9,yes", "45,0.0,?,no", "70,250,m,yes"]
NA_SCHEMA = """
[columns.age]
[columns.chol]
na-values = ["0"]
[columns.sex]
kind = "category"
categories = ["f", "m"]
[columns.ill]
kind = "category"
categories = ["no", "yes"]
"""


def tables(folder: Path, rows: list[str]) -> Path:
    folder.mkdir(exist_ok=True)
    for part in ("train", "test"):
        (folder / f"{part}.csv").write_text("\n".join(rows) + "\n")
    return folder


def cells_of(folder: Path, **options: Any) -> list[list[float | None]]:
    """Cells of the training rows; None where one is missing."""
    _, held = read_table(folder, TableOptions(label="ill", classes="no, yes", **options), 0, 0)
    assert held.cells is not None
    rows = held.cells[held.rows["train"]]
    return [[None if np.isnan(cell) else cell for cell in row] for row in rows]


def test_cells_that_mean_missing(tmp_path: Path) -> None:
    """Texts and numbers, in all columns and in one; "0" also matches 0.0."""
    folder = tables(tmp_path, NA_ROWS)
    (folder / "schema.toml").write_text(NA_SCHEMA)
    expected: list[list[float | None]] = [
        [61, None, 0],
        [None, 233, None],
        [45, None, None],
        [70, 250, 1],
    ]
    options = {"columns": "age, chol, sex", "schema": "file", "missing": "mean"}
    assert cells_of(folder, **options, na_values="?, -9") == expected
    with pytest.raises(RefusedError, match="2 of 4 rows"):
        cells_of(folder, **options, na_values="age=?")
    numeric = {"columns": "age, chol", "missing": "mean"}
    assert cells_of(folder, **numeric, na_values="?, chol=0") == [row[:2] for row in expected]
    assert cells_of(folder, **numeric, na_values="age = ?")[0] == [61, 0], "a zero stays one"


def test_the_label_has_no_cells_that_mean_missing(tmp_path: Path) -> None:
    folder = tables(tmp_path, ["age,ill", "61,0", "0,1", "45,0", "70,1"])
    options = TableOptions(
        columns="age", label="ill", classes="0, 1", missing="mean", na_values="0"
    )
    _, held = read_table(folder, options, 0, 0)
    assert held.targets[held.rows["train"]].tolist() == [0, 1, 0, 1]
    assert np.isnan(held.cells[1, 0])  # type: ignore[index]


def test_cells_that_mean_missing_name_a_column_of_the_run(tmp_path: Path) -> None:
    folder = tables(tmp_path, NA_ROWS)
    with pytest.raises(DataError, match=r'na-values: "chl=0": chl is not a feature column'):
        cells_of(folder, columns="age, chol", missing="mean", na_values="?, chl=0")


def test_a_column_without_numbers_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(
        RefusedError, match=r"train\.csv .*: age is not a number .*table\.na-values"
    ):
        cells_of(tables(tmp_path, NA_ROWS), columns="age, chol", missing="mean")


def test_median_and_indicator_are_those_of_scikit_learn(tmp_path: Path) -> None:
    rows = ["a,b,ill", "1,,no", "2,5,yes", ",6,no", "9,70,yes", "4,7,no"]
    raw = np.array([[1, np.nan], [2, 5], [np.nan, 6], [9, 70], [4, 7]])
    folder = tables(tmp_path, rows)

    def inputs(missing: Literal["mean", "median", "indicator"]) -> npt.NDArray[Any]:
        options = TableOptions(columns="a, b", label="ill", classes="no, yes", missing=missing)
        _, held = read_table(folder, options, 0, 0)
        assert np.allclose(held.preprocessing.apply(raw), held.inputs[held.rows["train"]])
        return held.inputs[held.rows["train"]]

    median = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    assert np.allclose(inputs("median"), median.fit_transform(raw), atol=1e-6)
    filled = SimpleImputer().fit_transform(raw)
    missing = MissingIndicator(features="all").fit_transform(raw)
    both = np.stack([filled, missing], axis=2).reshape(len(raw), -1)  # a, a missing, b, b missing
    assert np.allclose(inputs("indicator"), StandardScaler().fit_transform(both), atol=1e-6)


def test_an_empty_column_is_filled_with_a_constant(tmp_path: Path) -> None:
    folder = tables(tmp_path, ["a,b,ill", "1,,no", "2,,yes", "3,,no"])
    for missing in ("mean", "median", "indicator"):
        options = TableOptions(columns="a, b", label="ill", classes="no, yes", missing=missing)
        _, held = read_table(folder, options, 0, 0)
        assert np.isfinite(held.inputs).all()
        assert not held.inputs[:, held.inputs.shape[1] // 2 :].any(), "nothing is known of b"


def test_a_schema_without_such_cells_keeps_its_digest() -> None:
    """The digest of version 0.1.0: institutions have it in their configurations."""
    assert digest({"age": Column("age", unit="years", low=0, high=120)}) == "523ecbc8aaa4ad1a"
    other = Column("age", unit="years", low=0, high=120, na_values=("?",))
    assert digest({"age": other}) != "523ecbc8aaa4ad1a"


def test_a_schema_lists_its_cells_that_mean_missing(tmp_path: Path) -> None:
    (tmp_path / "schema.toml").write_text('[columns.age]\nna-values = "?"\n')
    with pytest.raises(DataError, match="column age: na-values: Input should be a valid array"):
        read_schema(tmp_path)
    (tmp_path / "schema.toml").write_text('\ufeff[columns.age]\nna-values = ["?"]\n')
    assert read_schema(tmp_path) == {"age": Column("age", na_values=("?",))}


def test_a_draft_of_several_tables_fits_all_of_them(tmp_path: Path) -> None:
    """Union of the categories, range over all, "?" a missing value and not a category."""
    one = tables(tmp_path / "one", ["age,sex,chol,score,ward", "29,f,?,0,a", "77,m,85,1,b"])
    two = tables(tmp_path / "two", ["sex,age,chol,score", "x,40,603,1", "?,41,-9,0"])
    paths = {folder.name: folder / "train.csv" for folder in (one, two)}
    draft = drafted({name: open_table(path) for name, path in paths.items()}, 1, ["-9"])
    schema = draft.schema
    assert draft.left_out == {"ward": "not in two"}
    assert schema == {
        # The middle 90 %, 31 to 72, and as much again on both sides, in tens; not below 0.
        "age": Column("age", low=0, high=120, mean=47, scale=18),
        "sex": Column("sex", "category", ("f", "m", "x"), na_values=("?",)),
        "chol": Column("chol", low=0, high=1100, na_values=("-9", "?"), mean=340, scale=260),
        "score": Column("score", low=0, high=1, mean=0.5, scale=0.5),
    }
    (tmp_path / "schema.toml").write_text(tomli_w.dumps(described(schema)))
    assert read_schema(tmp_path) == schema
    for folder in (one, two):
        options = TableOptions(
            columns="age, sex, chol", label="score", classes="0, 1", schema="file", missing="mean"
        )
        read_table(folder, options, 0, 0)


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        ([-2.6, 6.2], -11, 14),
        ([-20.0, -10.0], -29, 0),
        ([0.001, 0.004], 0, 0.007),
        ([-0.004, -0.001], -0.007, 0),
        ([5.0, 5.0], None, None),
    ],
)
def test_a_drafted_range_is_wide_and_round(
    values: list[float], low: float | None, high: float | None, tmp_path: Path
) -> None:
    folder = tables(tmp_path, ["x", *map(str, values)])
    column = drafted({"x": open_table(folder / "train.csv")}, 1).schema["x"]
    assert (column.low, column.high) == (low, high)


def test_the_command_drafts_from_several_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ages = [
        f"{age},{chol}"
        for age, chol in zip(range(40, 60), [0] * 5 + [*range(190, 205)], strict=True)
    ]
    one, two = (
        tables(tmp_path / name, ["age,chol", *rows]) / "train.csv"
        for name, rows in (("one", ages), ("two", [*ages[5:], "61,"]))
    )
    out = tmp_path / "schema.toml"
    assert main(["schema", str(one), str(two), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert f"{one}: chol is 0 in 25 % of the rows; 0 may mean 'not measured'" in printed
    assert f"mean and scale come from the 36 rows of {one}, {two}" in printed
    assert f'table.schema = "{digest(read_schema(tmp_path))}"' in printed
    assert main(["schema", str(one), "--out", str(out)]) == 2


@pytest.mark.parametrize("label", ["state", "days", "doctor", ""])
def test_the_command_names_leaks(
    label: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A class, a number, and a text with too many values for a category, as labels."""
    g, files = np.random.default_rng(0), []
    for k, sexes in enumerate([("Male", "Female"), ("male", "F")]):
        dead, days = g.integers(0, 2, 120), g.permutation(120) + 200
        rows = [
            f"{2 * i + k},P{i // 4},{sexes[i % 2]},{['', '2024-01-31'][dead[i]]},{days[i]},"
            f"{days[i] / 7:.3f},D{days[i] % 25},{days[i] % 25},{['home', 'died'][dead[i]]}"
            for i in range(120)
        ]
        head = "n,patient,sex,death,days,weeks,doctor,doctor_no,state"
        files.append(tables(tmp_path / f"{k}", [head, *rows]) / "train.csv")
    out = str(tmp_path / "schema.toml")
    given = ["--label", label] if label else []
    assert main(["schema", *map(str, files), "--out", out, *given]) == 0
    printed = capsys.readouterr().out
    both = ", ".join(map(str, files))
    assert "left out: patient: " in printed
    assert 'table.group = "patient" keeps the rows of a patient together' in printed
    assert f"{both}: n numbers the rows: leave it out of table.columns" in printed
    assert f"{both}: sex: did you mean one value by F, Female; Male, male?" in printed
    found = {line.split()[2] for line in printed.splitlines() if "alone predicts" in line}
    assert (
        found == {"state": {"death"}, "days": {"weeks"}, "doctor": {"doctor_no"}, "": set()}[label]
    )
    assert main(["schema", str(files[0]), "--out", f"{out}2", "--label", "stat"]) == 2
    assert 'did you mean "state"?' in capsys.readouterr().err
    assert main(["schema", out, "--label", "state"]) == 2


def test_a_draft_names_file_line_and_value_and_renamed_columns(tmp_path: Path) -> None:
    tables = {}
    for name, head, unit in (
        ("a", "age,rest_bp,chol,ill", ""),
        ("b", "age,RestBP,fat,ill", " mmHg"),
    ):
        path = tmp_path / name / "data.csv"
        path.parent.mkdir()
        rows = [f"{k}{unit if k == 5 else ''},{k},{k},no" for k in range(12)]
        path.write_text("\n".join([head, *rows]) + "\n")
        tables[str(path)] = open_table(path)
    draft = drafted(tables, 5)
    left_out = draft.left_out
    assert [*draft.schema] == ["ill"]
    assert left_out["age"].startswith(
        f"{tmp_path}/b/data.csv, line 7: age '5 mmHg' is not a number"
    )
    assert left_out["rest_bp"].endswith('b/data.csv (did you mean "RestBP"? rename it)')
    assert left_out["chol"].endswith("b/data.csv")


def test_a_coded_value_keeps_its_column_in_the_draft(tmp_path: Path) -> None:
    """The range is that of the other values; a run refuses -999 until na-values names it."""
    folder = tables(
        tmp_path / "a", ["x,y", *(f"{(k % 40, -999)[k % 10 == 9]},no" for k in range(90))]
    )
    draft = drafted({"a": open_table(folder / "train.csv")}, 5)
    assert (draft.schema["x"].low, draft.left_out, draft.coded) == (0, {}, {"x": {-999.0}})


def test_a_column_without_a_name_is_no_group(tmp_path: Path) -> None:
    folder = tables(tmp_path / "a", [",x", *(f"{k % 7},{k % 5}" for k in range(40))])
    schema = drafted({"a": open_table(folder / "train.csv")}, 5).schema
    assert (schema[""].role, schema[""].low) == ("", 0)


def test_a_draft_counts_patients(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """30 patients with 4 rows each; "z" has 8 rows of 2 patients."""
    sexes = ["z"] * 2 + ["f", "m"] * 14
    rows = [f"p{k // 4},{sexes[k // 4]},{k // 4}" for k in range(120)]
    path = tables(tmp_path / "a", ["who,sex,age", *rows]) / "train.csv"
    files = {"a": open_table(path)}
    assert drafted(files, 5).schema["sex"].categories == ("f", "m", "z")
    draft = drafted(files, 5, group="who")
    assert draft.schema["who"] == Column("who", role="group")
    assert draft.schema["sex"].categories == ("f", "m")
    assert draft.rare == {"sex": {"z": 2}}
    assert draft.schema["age"].mean is not None
    assert drafted(files, 31, group="who").schema["age"].mean is None, "30 patients are too few"
    assert drafted(files, 31).schema["age"].mean is not None
    out = tmp_path / "schema.toml"
    command = ["schema", str(path), "--group", "who", "--min-examples", "10", "--out", str(out)]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "sex: left out, in fewer than 10 patients: z (2)" in printed
    assert "the 120 rows (of 30 patients)" in printed
    assert read_schema(tmp_path)["who"].role == "group"
    assert main(["schema", str(path), "--group", "whose", "--out", f"{out}2"]) == 2


@pytest.mark.parametrize("index", ["int8", "uint8", "uint32"])
def test_categories_of_a_parquet_dictionary_are_counted(index: str, tmp_path: Path) -> None:
    codes = pa.array([0, 1, None, 0, 1, 0], type=index)
    column = pa.DictionaryArray.from_arrays(codes, pa.array(["f", "m"]))
    parquet.write_table(pa.table({"sex": column}), tmp_path / "a.parquet")
    draft = drafted({"a": open_table(tmp_path / "a.parquet")}, 2)
    assert draft.schema["sex"].categories == ("f", "m")


@pytest.mark.parametrize("data", [5, None, [1], {"name": 5}, {"name": "x", "kind": "rune"}])
def test_what_is_no_column_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match=":"):
        Column.of_json(data)


def test_numbers_of_a_model_file_are_numbers() -> None:
    assert numbers([[1, 2.5]], "mean").tolist() == [[1, 2.5]]
    for value in ([1.5, True], [True], ["1"], [[1], [1, 2]], [float("nan")], None):
        with pytest.raises(ValueError, match="mean"):
            numbers(value, "mean")


@pytest.mark.parametrize(
    ("labels", "finding"),
    [
        (["no", "No"], "did you mean one value by No, no? Write it alike everywhere"),
        (["no", "yes"], ""),
        ([0.0, 1.0], "0 to 1 are regression targets; if they are classes, set table.classes"),
        ([1.0, 2.0], "1 to 2 are regression targets; if they are classes, set table.classes"),
        ([2.0, 1.0, 0.0], "0 to 2 are regression targets; if they are classes"),
        ([1.0, 2.0, 4.0], ""),
        ([3.0, 3.0], ""),
    ],
)
def test_labels_that_may_mean_something_else_are_named(
    labels: list[Any], finding: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the draft, and by a run of the table, of peers' arrays, or of arrays to be divided."""
    y = np.resize(labels, 60)
    (tmp_path / "data").mkdir()
    rows = [f"{i % 7},{label}" for i, label in enumerate(y)]
    files = [tables(tmp_path / f"data/{k}", ["x,ill", *rows]) / "train.csv" for k in range(2)]
    out = str(tmp_path / "data" / "schema.toml")
    assert main(["schema", *map(str, files), "--out", out, "--label", "ill"]) == 0
    keys = {
        "dataset": "table", "data-dir": str(tmp_path / "data"), "peers": 2, "table.columns": "x",
        "table.label": "ill", "table.schema": "file", "table.test": 0.4,
    }  # fmt: skip
    own = [{"x": np.arange(60.0)[:, None] % 7, "y": y}] * 2
    short: dict[str, Any] = {"method": "local", "num_server_rounds": 1, "out": tmp_path}
    coterie.run(None, keys, model="linear", **short)
    coterie.run(peers_data=own, model="linear", **short)
    coterie.run(dataset=own[0], peers=2, partition__kind="iid", model="linear", **short)
    printed = "".join(capsys.readouterr())
    assert printed.count(finding or "regression targets") == (4 if finding else 0)
    assert printed.count("did you mean") == (4 if "No" in labels else 0)
    if finding:
        assert f"{', '.join(map(str, files))}: ill: {finding}" in printed
