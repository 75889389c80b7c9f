"""Test predictions for institutions' files on the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import coterie
from coterie.app.cli.main import main
from tests.hospitals import HEADER, TABLE, write_hospitals
from tests.inline import Run, run
from tests.output import csv_rows


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    folder = tmp_path_factory.mktemp("hospitals")
    write_hospitals(folder)
    out = tmp_path_factory.mktemp("run")
    return folder, run(TABLE | {"data-dir": str(folder)}, out)


def lines(path: Path) -> list[dict[str, str]]:
    return csv_rows(path)


def test_a_table_with_gaps_is_predicted_as_it_was_evaluated(
    hospitals: tuple[Path, Run], tmp_path: Path
) -> None:
    folder, result = hospitals
    for peer, name in enumerate(("north", "south", "west")):
        table, out = folder / name / "test.csv", tmp_path / f"{name}.csv"
        who = name if peer else "0"
        assert (
            main(["predict", str(result.directory), "--peer", who, str(table), "--out", str(out)])
            == 0
        )
        rows, truth = lines(out), [row["readmitted"] for row in lines(table)]
        assert list(rows[0]) == [*HEADER, "prediction", "probability_no", "probability_yes"]
        right = np.mean(
            [row["prediction"] == label for row, label in zip(rows, truth, strict=True)]
        )
        assert right == pytest.approx(result.metric("test_accuracy")[peer], abs=1e-9)
        p = [float(row[f"probability_{label}"]) for row, label in zip(rows, truth, strict=True)]
        assert -np.log(p).mean() == pytest.approx(result.metric("test_loss")[peer], abs=1e-6)


def test_the_last_report_measures_two_classes(hospitals: tuple[Path, Run]) -> None:
    _, result = hospitals
    both = result.metric("sensitivity") + result.metric("specificity")
    assert result.metric("balanced_accuracy") == pytest.approx(both / 2)
    first = result.reports[result.rounds[0], 0].metrics
    assert "auroc" not in first


def test_a_card_lies_beside_the_model(hospitals: tuple[Path, Run]) -> None:
    _, result = hospitals
    card = json.loads((result.directory / "models" / "peer-0002.json").read_text())
    assert (card["name"], card["examples"]) == ("west", {"train": 40, "test": 30, "validation": 0})
    assert {each["name"] for each in card["collaborators"]} <= {"north", "south"}
    assert card["metrics"]["test_loss"] == result.metric("test_loss")[2]
    assert np.sum(card["curves"]["confusion"]) == 30
    page = (result.directory / "models" / "peer-0002.md").read_text()
    assert page.startswith("# Model of west\n")
    assert "40 for train, 30 for test" in page
    assert "weight of each other peer's letters as of the last round" in page.lower()


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ("age,sex,glucose\n44,d,5.5\n", "line 2: sex 'd' is not a category"),
        ("age,sex,glucose\n144,f,5.5\n", "line 2: age 144 is not 0 to 120"),
        ("age,sex\n44,f\n", "has no column glucose"),
        ("", "new.csv is empty"),
    ],
)
def test_rows_that_the_model_cannot_take_are_named(
    hospitals: tuple[Path, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    cells: str, message: str,
) -> None:  # fmt: skip
    (tmp_path / "new.csv").write_text(cells)
    command = ["predict", str(hospitals[1].directory), "--peer", "north", str(tmp_path / "new.csv")]
    assert main([*command, "--out", str(tmp_path / "out.csv")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()


def test_a_peer_that_is_not_there(
    hospitals: tuple[Path, Run], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(hospitals[1].directory), "--peer", "east", "x.csv"]) == 2
    assert 'no model of "east", which peer? north, south, west' in capsys.readouterr().err


def test_predictions_do_not_replace_their_input(
    hospitals: tuple[Path, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "new.csv"
    table.write_text("age,sex,glucose\n44,f,5.5\n")
    command = ["predict", str(hospitals[1].directory), "--peer", "0", str(table), "--out"]
    assert main([*command, str(tmp_path / "." / "new.csv")]) == 2
    assert "is the input: name another file" in capsys.readouterr().err
    assert table.read_text().startswith("age")
    assert main([*command, str(tmp_path / "new" / "printed.csv")]) == 0
    assert len(lines(tmp_path / "new" / "printed.csv")) == 1


CELLS = {
    "age": ["44", "44.0", "+44"],
    "id": ["007", "1e5", "NA"],
    "note": ["a, b", "", "=1+1"],
    "sex": ["f", "f ", "f"],
    "glucose": ["5.50", "5.5", "05.5"],
}
"""One patient three times, in several spellings, with columns that the model does not know."""


def predicted_cells(hospitals: tuple[Path, Run], table: Path) -> list[dict[str, str]]:
    out = table.with_name("out.csv")
    command = ["predict", str(hospitals[1].directory), "--peer", "0", str(table)]
    assert main([*command, "--out", str(out)]) == 0
    return lines(out)


def test_cells_of_the_input_are_kept_as_they_are(
    hospitals: tuple[Path, Run], tmp_path: Path
) -> None:
    table = tmp_path / "new.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows([CELLS, *zip(*CELLS.values(), strict=True)])
    rows = predicted_cells(hospitals, table)
    kept = CELLS | {"note": ["a, b", "", "'=1+1"]}  # a spreadsheet would compute it
    assert list(rows[0]) == [*CELLS, "prediction", "probability_no", "probability_yes"]
    assert {name: [row[name] for row in rows] for name in CELLS} == kept
    assert len({row["probability_yes"] for row in rows}) == 1


def test_cells_of_a_parquet_file_are_kept(hospitals: tuple[Path, Run], tmp_path: Path) -> None:
    frame = pd.DataFrame({
        "id": [7, 8], "admitted": pd.to_datetime(["2024-01-31", None]), "age": [44.0, 61.5],
        "sex": ["f", None], "glucose": [5.5, None],
    })  # fmt: skip
    frame.to_parquet(tmp_path / "new.parquet")
    rows = predicted_cells(hospitals, tmp_path / "new.parquet")
    assert [row["id"] for row in rows] == ["7", "8"]
    assert [row["admitted"] for row in rows] == ["2024-01-31 00:00:00", ""]
    assert [row["glucose"] for row in rows] == ["5.5", ""]


def test_a_column_named_like_a_prediction_is_refused(
    hospitals: tuple[Path, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "new.csv").write_text("age,sex,glucose,probability_yes\n44,f,5.5,1\n")
    command = ["predict", str(hospitals[1].directory), "--peer", "0", str(tmp_path / "new.csv")]
    assert main([*command, "--out", str(tmp_path / "out.csv")]) == 2
    assert "the input has a column probability_yes" in capsys.readouterr().err
    assert not (tmp_path / "out.csv").exists()


def test_a_data_frame_is_predicted_by_the_names_of_its_columns(
    hospitals: tuple[Path, Run], tmp_path: Path
) -> None:
    table = hospitals[0] / "west" / "test.csv"
    there = coterie.run(None, TABLE | {"data-dir": str(hospitals[0]), "out": str(tmp_path)})
    frame = pd.read_csv(table)
    printed = there.predict("west", table)
    for columns in (["glucose", "sex", "age", "readmitted"], ["sex", "age", "glucose"]):
        assert np.array_equal(there.predict("west", frame[columns]), printed)
    with pytest.raises(coterie.Error, match="has no column glucose"):
        there.predict("west", frame[["age", "sex"]])
    with pytest.raises(coterie.Error, match="the data frame, row 2: sex 'd' is not a category"):
        there.predict("west", frame.assign(sex=["f", "d", *["m"] * 28]))
    with pytest.raises(coterie.Error, match="the data frame cannot be read"):
        there.predict("west", frame.assign(age=[object()] * 30))


@pytest.mark.parametrize("fit", ["resize", "crop"])
def test_images_of_any_size(tmp_path: Path, fit: str) -> None:
    """A folder of what was tested is predicted as it was evaluated, also of 16 bits."""
    g = np.random.default_rng(1)
    for peer in ("a", "b"):
        for part in ("train", "test"):
            for label in ("dark", "light"):
                folder = tmp_path / "data" / peer / part / label
                folder.mkdir(parents=True)
                for number in range(5):
                    sides = (int(g.integers(6, 12)), int(g.integers(6, 12)))
                    pixels = g.integers(0, 30000, sides) + 30000 * (label == "light")
                    image = Image.fromarray(pixels.astype(np.uint16))
                    image.save(folder / f"{number}.png")
    flat: dict[str, Any] = {
        "dataset": "image-folder", "image-folder.classes": "dark, light", "peers": 2,
        "image-folder.shape": "1x6x6", "image-folder.fit": fit, "model": "linear",
        "method": "fedavg", "num-server-rounds": 2, "data-dir": str(tmp_path / "data"),
        "device": "cpu",
    }  # fmt: skip
    result = run(flat, tmp_path / "run")
    command = [
        "predict",
        str(result.directory),
        "--peer",
        "b",
        str(tmp_path / "data" / "b" / "test"),
    ]
    assert main([*command, "--out", str(tmp_path / "out.csv")]) == 0
    message = lines(tmp_path / "out.csv")
    right = [row["file"].startswith(row["prediction"]) for row in message]
    assert len(message) == 10
    assert np.mean(right) == pytest.approx(result.metric("test_accuracy")[1])
