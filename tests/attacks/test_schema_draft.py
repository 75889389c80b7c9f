"""`coterie schema`: the file for the other institutions names no single patient."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coterie.app.cli.main import main
from coterie.datasets.own.schema import read_schema
from coterie.datasets.preprocessing import Column


def test_a_draft_holds_no_value_of_a_single_patient(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names, a blood group of one patient, and the income of the richest are in the table only."""
    g = np.random.default_rng(0)
    rows = ["surname,group,income,age,visits"]
    for k in range(60):
        name = f"Person{k % 20}"
        group = "Rh-null" if k == 7 else "AB"[k % 2]
        income = 987654321 if k == 13 else round(g.normal(50_000, 9_000))
        rows.append(f"{name},{group},{income},{g.integers(30, 90)},{'few' if k == 3 else 'many'}")
    (tmp_path / "data.csv").write_text("\n".join(rows) + "\n")
    assert main(["schema", str(tmp_path / "data.csv")]) == 0
    text, printed = (tmp_path / "schema.toml").read_text(), capsys.readouterr().out
    for secret in ("Person", "surname", "Rh-null", "987", "few"):
        assert secret not in text
    schema = read_schema(tmp_path)
    assert schema["group"].categories == ("A", "B")
    assert schema["income"].high is None
    assert (schema["income"].mean, schema["income"].scale) == (51_000, 8100)
    assert schema["age"].high
    assert "group: these values become public: A, B" in printed
    assert "group: left out, in fewer than 20 rows: Rh-null (1)" in printed
    assert "left out: surname: no value in 20 rows" in printed
    assert "income: no range, because 1 of its values lie far from the others" in printed


def test_one_patient_more_changes_no_number_of_a_draft(tmp_path: Path) -> None:
    """Neither the range nor the rounded mean and scale tell whether the oldest is among them."""
    ages = [str(40 + k % 41) for k in range(400)]
    drafts = []
    for name, oldest in (("with", ["97"]), ("without", [])):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data.csv").write_text("\n".join(["age", *ages, *oldest]) + "\n")
        assert main(["schema", str(tmp_path / name / "data.csv")]) == 0
        drafts.append((tmp_path / name / "schema.toml").read_text())
    assert drafts[0] == drafts[1]


def test_a_draft_tells_no_value_that_few_patients_have(tmp_path: Path) -> None:
    """Mean and variance give the one value of a column that is 0 otherwise: v / m + m."""
    days = {
        "one": [0] * 199 + [37], "few": [0] * 182 + [1] * 17 + [37],
        "far": [*range(60, 81)] * 9 + [2500] * 11, "many": [0] * 171 + [*range(1, 30)],
    }  # fmt: skip
    lines = [",".join(days), *(",".join(map(str, row)) for row in zip(*days.values(), strict=True))]
    (tmp_path / "data.csv").write_text("\n".join(lines) + "\n")
    assert main(["schema", str(tmp_path / "data.csv")]) == 0
    schema = read_schema(tmp_path)
    for name in ("one", "few"):
        assert vars(schema[name]) == vars(Column(name))
    far = schema["far"]
    assert (far.mean, far.scale, far.high) == (70, 6.1, None)
    assert schema["many"].mean == 2.2
