"""Study of packaged tables: archives in archives, and kinds of differences from pandas."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from studies.packaged_tables import compared, difference, judged, unpacked

ROWS = [f"{k},{k % 7},{'yes' if k % 2 else 'no'}" for k in range(40)]


def archive(files: dict[str, bytes]) -> bytes:
    result = io.BytesIO()
    with tarfile.open(fileobj=result, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return result.getvalue()


def test_tables_in_archives_in_archives_are_found() -> None:
    inner = archive({"csv/a.csv": b"x", "csv/._a.csv": b"junk", "readme.txt": b""})
    found = [*unpacked("p-1.tar.gz", archive({"p/data.tar.gz": inner, "p/b.csv": b"y"}))]
    assert found == [("csv/a.csv", b"x"), ("p/b.csv", b"y")]


@pytest.mark.parametrize(("separator", "outcome"), [(",", "read"), (";", "refused")])
def test_a_table_is_compared_with_pandas(separator: str, outcome: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["n,x,y", *ROWS]).replace(",", separator) + "\n")
    result, differences = compared(path)
    assert (result.split(":")[0], differences) == (outcome, [])


def test_readings_of_a_column_are_told_apart() -> None:
    values = pd.Series([1.0, 2.0, np.nan, 5.0])
    ours = values.to_numpy()
    assert difference(ours, values, []) == ""
    assert difference(np.where(np.isnan(ours), 0, ours), values, []) == "numbers of missing cells"
    assert difference(ours + 1e-3, values, []) == "values"
    assert difference(ours, values.astype(str), ["?"]).startswith("numbers with marks")


def test_findings_have_a_kind(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["n,x,y", *ROWS]) + "\n")
    assert [(name, kind) for name, kind, _ in judged(path) or ()] == [("n", "row number")]
