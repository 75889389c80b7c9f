"""Tables are read as they were written, and mean the same in every format."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from coterie.datasets import grammar
from coterie.datasets.own.cells import encoded, named, open_table, require
from coterie.datasets.own.institutions import RefusedError
from coterie.datasets.own.schema import drafted
from coterie.datasets.own.tabular import TableOptions, read_table
from coterie.datasets.preprocessing import Column
from coterie.datasets.problem import DataError

TEXTS = st.text(st.sampled_from("ab1,;\"'\n\r é\u00a0_.-"), max_size=6)
FUNCTION = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@FUNCTION
@given(
    rows=st.lists(st.tuples(TEXTS, TEXTS), max_size=6),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    start=st.sampled_from(["", "\ufeff"]),
)
def test_a_csv_is_read_as_python_wrote_it(
    rows: list[tuple[str, str]], end: str, start: str, tmp_path: Path
) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=end, quoting=csv.QUOTE_ALL).writerows([("x", "t"), *rows])
    (tmp_path / "data.csv").write_bytes((start + text.getvalue()).encode())
    table = open_table(tmp_path / "data.csv")
    assert list(zip(*(table[name].to_pylist() for name in ("x", "t")), strict=True)) == rows


def test_line_breaks_in_cells_make_no_rows(tmp_path: Path) -> None:
    """Above 1 MiB pyarrow divides a file; the line of an error counts all breaks."""
    path = tmp_path / "data.csv"
    rows = "".join(f'{k % 50 / 10},"1,0\n7.7,0"\n' for k in range(60_000))
    path.write_text(f"x,t\n{rows}\n\n1_4,end\n")
    table = open_table(path)
    values, errors = encoded(table, [Column("x")])
    assert (table.num_rows, np.nanmax(values)) == (60_001, 4.9)
    assert named(errors, path) == ["data.csv, line 120004: x '1_4' is not a number"]


def test_a_cell_may_be_longer_than_a_block(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text(f'x,t\n1,"{"a" * 2**21}\n"\n2,b\n')
    assert open_table(tmp_path / "data.csv")["x"].to_pylist() == ["1", "2"]


CELLS = ["1", "2.5", "", "TRUE", "1e3", " 7 ", "NA", "-4", "0", "5"]


@pytest.mark.parametrize("kind", ["number", "category"])
def test_a_cell_means_the_same_in_every_format(kind: str, tmp_path: Path) -> None:
    column = Column("x") if kind == "number" else Column("x", "category", ("1", "NA", "f"))
    cells = CELLS if kind == "number" else ["1", "1.0", "NA", "f", ""]
    (tmp_path / "data.csv").write_text("x,y\n" + "".join(f'"{cell}",0\n' for cell in cells))
    table = pa.table({"x": [cell or None for cell in cells]})
    parquet.write_table(table, tmp_path / "data.parquet")
    coded = table.set_column(0, "x", table["x"].dictionary_encode())
    frame = pa.Table.from_pandas(pd.DataFrame({"x": cells}))
    tables = open_table(tmp_path / "data.csv"), open_table(tmp_path / "data.parquet"), coded, frame
    right = [1, 2.5, np.nan, 1, 1000, 7, np.nan, -4, 0, 5]
    for each in tables:
        values, errors = encoded(each, [column])
        assert not errors
        expected = right if kind == "number" else [0, 0, 1, 2, np.nan]
        np.testing.assert_array_equal(values[:, 0], expected)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([86_400, 43_200], pa.duration("s")), [1, 0.5]),
        (pa.array([86_400 * 10**9, None], pa.duration("ns")), [1, np.nan]),
        (pa.array([True, None]), [1, np.nan]),
        (pa.array([2**53 + 1, 2**64 - 1], pa.uint64()), [2.0**53, 2.0**64]),
        (pa.array(["1.50", "2"]).cast(pa.decimal128(5, 2)), [1.5, 2]),
        (pa.array([1, 2]).dictionary_encode(), [1, 2]),
        (pa.array([None, None]), [np.nan, np.nan]),
    ],
)
def test_typed_cells_have_their_value(values: pa.Array, expected: list[float]) -> None:
    result, errors = encoded(pa.table({"x": values}), [Column("x")])
    assert not errors
    np.testing.assert_array_equal(result[:, 0], expected)


@pytest.mark.parametrize("kind", [pa.list_(pa.int64()), pa.binary(), pa.struct({"a": pa.int64()})])
def test_cells_with_parts_are_left_out_of_a_draft_and_refused_in_a_run(kind: pa.DataType) -> None:
    table = pa.table({"e": pa.nulls(30, kind), "x": list(range(30))})
    draft = drafted({"a": table}, 1)
    assert [*draft.schema] == ["x"]
    assert "its cells are of type" in draft.left_out["e"]
    with pytest.raises(RefusedError, match="column e cannot be used: its cells are of type"):
        encoded(table, [Column("e")])


def test_infinity_is_an_error_unless_it_is_named() -> None:
    for values in ([1.0, np.inf], ["1", "-Infinity"]):
        table = pa.table({"x": values})
        assert "is infinite" in named(encoded(table, [Column("x")])[1], Path("t"))[0]
        left = encoded(table, [Column("x", na_values=("inf", "-inf"))])
        assert np.isnan(left[0][1, 0])
        assert not left[1]


def test_names_of_columns_are_normalised(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text(" gro\u0308ße ,y\n1,2\n")
    table = open_table(tmp_path / "data.csv")
    require(table, ["größe", "gro\u0308ße"], tmp_path / "data.csv")
    assert encoded(table, [Column("gro\u0308ße")])[0].tolist() == [[1.0]]


COLUMNS = st.lists(
    st.sampled_from([*CELLS, "?", "f", "m", "Male", "2024-01-15", "false", "1.0", "01", "1 000"]),
    min_size=24, max_size=24,
)  # fmt: skip


@FUNCTION
@given(cells=COLUMNS, rows=st.sampled_from([1, 3]))
def test_a_draft_accepts_its_own_table(cells: list[str], rows: int, tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("x,y\n" + "".join(f"{cell},0\n" for cell in cells))
    draft = drafted({str(path): open_table(path)}, rows)
    assume("x" in draft.schema)
    rare = {*draft.rare.get("x", ())}
    errors = encoded(open_table(path), [draft.schema["x"]])[1]
    assert {grammar.plain(str(w.cell)) for wrong in errors.values() for w in wrong} <= rare


@pytest.mark.parametrize("label", ["NA", "None", "null"])
def test_a_class_may_have_the_name_of_a_missing_value(label: str, tmp_path: Path) -> None:
    rows = "".join(f"{k},{('a', label, '')[k % 3]}\n" for k in range(30))
    (tmp_path / "data.csv").write_text(f"x,y\n{rows}")
    options = TableOptions(columns="x", label="y", classes=f"a, {label}")
    with pytest.raises(RefusedError, match=r"10 of 30 rows .*y is missing \(10 rows\)") as refused:
        read_table(tmp_path, options, 0, 0)
    assert refused.value.entries[0] == "data.csv, line 4: y is missing"
    _, held = read_table(tmp_path, replace(options, bad_rows="leave-out"), 0, 0)
    assert held.targets.tolist() == [0, 1] * 10


def test_a_quote_that_is_not_closed_swallows_no_rows(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text('x,y\n0,c\n1,"a\n2,b\n')
    with pytest.raises(DataError, match=r"data.csv, line 3 cannot be read: .*close each quote"):
        open_table(tmp_path / "data.csv")
