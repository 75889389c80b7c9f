"""Data of institutions: reading, and one-line errors for data that do not fit the run."""

from __future__ import annotations

import csv
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from PIL import Image

import coterie
from coterie.app.config.items import read_items
from coterie.app.runners.local import config_of
from coterie.datasets.own import cells
from coterie.datasets.own.image_folder import ImageFolderOptions
from coterie.datasets.own.tabular import TableOptions, read_table
from coterie.datasets.partition.options import Partition
from coterie.datasets.per_peer import ArraysOptions
from coterie.datasets.problem import DataError, Problem
from coterie.datasets.table import DATASETS

IMAGES = ImageFolderOptions(classes="normal, ill", shape="1x4x5")
ROWS = TableOptions(columns="age,bmi", label="ill", classes="no,yes")


def load(dataset: str, data_dir: Path, options: object, peers: int = 2, seed: int = 0) -> Problem:
    return DATASETS[dataset].load(Partition(), peers, seed, data_dir, options)


def alone(dataset: str, data_dir: Path, options: object, peer: int, peers: int = 2) -> Problem:
    deployed = DATASETS[dataset].deployed
    assert deployed is not None
    return deployed(peer, peers, 0, data_dir, options)


def write_image(path: Path, seed: int, shape: tuple[int, ...] = (4, 5)) -> np.ndarray[Any, Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(256, size=shape, dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


def hospital(folder: Path, seed: int, counts: Mapping[str, int] = {"normal": 6, "ill": 4}) -> None:
    for label, count in counts.items():
        for k in range(count):
            write_image(folder / label / f"{k}.png", 100 * seed + k)


def write_csv(path: Path, rows: Sequence[Sequence[object]], header: Sequence[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def ward(folder: Path, seed: int, count: int = 10) -> None:
    g = np.random.default_rng(seed)
    rows = [(k, g.normal(), g.normal(), ("no", "yes")[k % 2]) for k in range(count)]
    write_csv(folder / "data.csv", rows, ("id", "bmi", "age", "ill"))


def held_by(problem: Problem, peer: int, part: str) -> tuple[Any, Any]:
    split = getattr(problem, part)
    inputs = (problem.inputs[split.rows[peer]] - problem.mean) / problem.std
    return inputs, split.targets[peer]


@pytest.mark.parametrize(
    ("dataset", "fill", "options"),
    [
        ("image-folder", hospital, IMAGES),
        ("image-folder", hospital, replace(IMAGES, mean="0.5", std="2")),
        ("table", ward, ROWS),
    ],
)
def test_a_node_sees_of_the_run_what_the_simulation_gives_its_peer(
    dataset: str, fill: Callable[..., None], options: Any, tmp_path: Path
) -> None:
    for peer, name in enumerate(("2", "10", "b")):  # in this order
        fill(tmp_path / name, peer)
    whole = load(dataset, tmp_path, options, peers=3)
    assert (whole.samples == [8, 8, 8]).all()
    for peer, name in enumerate(("2", "10", "b")):
        local = alone(dataset, tmp_path / name, options, peer, peers=3)
        assert local.samples.tolist() == [8 * (p == peer) for p in range(3)]
        assert (local.outputs, local.task) == (whole.outputs, whole.task)
        for part in ("train", "validation", "test"):
            for mine, theirs in zip(
                held_by(local, peer, part), held_by(whole, peer, part), strict=True
            ):
                np.testing.assert_array_equal(mine, theirs)
            assert not any(len(getattr(local, part).rows[p]) for p in range(3) if p != peer)
    assert len(whole.inputs) == 30


def test_images_are_read_as_they_are(tmp_path: Path) -> None:
    first = write_image(tmp_path / "a" / "train" / "ill" / "x.png", 1)
    second = write_image(tmp_path / "a" / "test" / "normal" / "y.png", 2)
    options = ImageFolderOptions("normal,ill", "1x4x5", mean="10", std="5")
    problem = alone("image-folder", tmp_path / "a", options, 0)
    inputs, targets = held_by(problem, 0, "train")
    np.testing.assert_allclose(inputs, (first[None, None] - 10.0) / 5)
    assert targets.tolist() == [1]
    inputs, targets = held_by(problem, 0, "test")
    np.testing.assert_allclose(inputs, (second[None, None] - 10.0) / 5)
    assert targets.tolist() == [0]


def test_each_peer_is_normalised_by_its_own_training_examples(tmp_path: Path) -> None:
    for peer in range(2):
        ward(tmp_path / str(peer), peer, 50)
    problem = load("table", tmp_path, ROWS)
    for peer in range(2):
        inputs, _ = held_by(problem, peer, "train")
        np.testing.assert_allclose(inputs.mean(axis=0), 0, atol=1e-6)
        np.testing.assert_allclose(inputs.std(axis=0), 1, atol=1e-6)


def test_a_column_that_never_varies_is_only_centred(tmp_path: Path) -> None:
    rows = [(k, 7.0, k, ("no", "yes")[k % 2]) for k in range(10)]
    write_csv(tmp_path / "data.csv", rows, ("id", "bmi", "age", "ill"))
    problem = alone("table", tmp_path, ROWS, 0)
    age, bmi = held_by(problem, 0, "train")[0].T
    assert (bmi == 0).all()
    assert age.std() == pytest.approx(1, abs=1e-6)


def test_parquet_is_csv(tmp_path: Path) -> None:
    ward(tmp_path / "a", 3)
    from_csv = alone("table", tmp_path / "a", ROWS, 0)
    columns = np.genfromtxt(tmp_path / "a" / "data.csv", delimiter=",", names=True, dtype=None)
    made = pa.table({name: columns[name] for name in columns.dtype.names or ()})
    (tmp_path / "b").mkdir()
    pyarrow.parquet.write_table(made, tmp_path / "b" / "data.parquet")
    from_parquet = alone("table", tmp_path / "b", ROWS, 0)
    np.testing.assert_allclose(from_parquet.inputs, from_csv.inputs, rtol=1e-6)
    assert from_parquet.train.targets[0].tolist() == from_csv.train.targets[0].tolist()


def test_a_label_without_classes_is_a_number(tmp_path: Path) -> None:
    write_csv(tmp_path / "train.csv", [(1, 2.5), (2, 3.5)], ("age", "glucose"))
    write_csv(tmp_path / "test.csv", [(3, 4.5)], ("age", "glucose"))
    options = TableOptions("age", "glucose")
    problem = alone("table", tmp_path, options, 1)
    assert (problem.task, problem.outputs) == ("regression", 1)
    assert problem.train.targets[1].tolist() == [[2.5], [3.5]]
    assert problem.test.targets[1].tolist() == [[4.5]]
    fixed = [each["test"].get("fixed", False) for each in problem.describe()]
    assert fixed[1], "no seed divides a file of test rows"
    assert not fixed[0]


def colour(folder: Path) -> None:
    write_image(folder / "ill" / "Jane Doe.png", 0, (4, 5, 3))


def large(folder: Path) -> None:
    write_image(folder / "ill" / "Jane Doe.png", 0, (8, 8))


def bomb(folder: Path) -> None:
    """Write an image of a few kB that would decompress to 400 MB."""
    Image.new("1", (20_000, 20_000)).save(folder / "ill" / "Jane Doe.png")


def damaged(folder: Path) -> None:
    (folder / "ill" / "Jane Doe.png").write_bytes(b"\x89PNG\r\n\x1a\n...")


def strange(folder: Path) -> None:
    write_image(folder / "Jane Doe" / "1.png", 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (colour, "1 of 11 images do not fit the run .shape 1x4x5, fit = exact."),
        (large, "1 of 11 images do not fit the run .shape 1x4x5, fit = exact."),
        (damaged, "1 of 11 images do not fit the run .shape 1x4x5, fit = exact."),
        (bomb, "1 of 11 images do not fit the run .shape 1x4x5, fit = exact."),
        (strange, "1 of 3 folders are not named like the run's classes normal, ill"),
    ],
)
def test_images_that_do_not_fit_are_refused(
    spoil: Callable[[Path], None], why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The line is sent to the relay, so only the log may show the institution's entries."""
    hospital(tmp_path, 0)
    spoil(tmp_path)
    with caplog.at_level(logging.ERROR), pytest.raises(DataError, match=why) as refused:
        alone("image-folder", tmp_path, IMAGES, 0)
    assert "Jane Doe" not in str(refused.value)
    assert "Jane Doe" in caplog.text
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("header", "row", "why"),
    [
        (("age", "ill"), (1, "no"), r"data.csv has no column bmi"),
        (
            ("age", "bmi", "ill"),
            (1, "", "no"),
            r"1 of 3 rows of data.csv .*: bmi is missing \(1 row\)",
        ),
        (("age", "bmi", "ill"), (1, "nan", "no"), r"bmi is missing .*table.missing = \"mean\""),
        (("age", "bmi", "ill"), (1, "Jane Doe", "no"), r"bmi is not a number \(1 row\)"),
        (
            ("age", "bmi", "ill"),
            (1, 2, "Jane Doe"),
            r"1 of 3 rows .*ill is not one of the classes no, yes",
        ),
        (("age", "bmi", "ill"), (1, 2, ""), r"1 of 3 rows .*ill is missing .*bad-rows"),
        (
            ("age", "bmi", "ill"),
            (1, 2),
            r"data.csv cannot be read: line 4 has 2 cells, and the header 3",
        ),
        (("age", "bmi", "ill", "age"), (1, 2, "no", 1), r"data.csv has duplicate columns .1."),
    ],
)
def test_tables_that_do_not_fit_are_refused(
    header: Sequence[str], row: Sequence[object], why: str, tmp_path: Path
) -> None:
    good = [[{"age": 4, "bmi": 5, "ill": "yes"}[name] for name in header]] * 2
    write_csv(tmp_path / "data.csv", [*good, row], header)
    with pytest.raises(DataError, match=why) as refused:
        alone("table", tmp_path, ROWS, 0)
    assert "Jane Doe" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_simulation_says_whose_data_does_not_fit_in_one_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        hospital(tmp_path / name, 0)
    for k in range(6):
        write_image(tmp_path / "b" / "ill" / f"wide-{k}.png", k, (8, 8))
    why = r"^b: image-folder: 6 of 16 images do not fit .*1x4x5.*/wide-0.png is 1x8x8, .* and 2 o"
    with pytest.raises(DataError, match=why):
        load("image-folder", tmp_path, IMAGES)
    assert not caplog.text, "an error that is raised is not logged too"


def test_a_node_takes_marks_of_missing_cells_from_its_schema_only(tmp_path: Path) -> None:
    options = TableOptions(columns="age", label="ill", classes="no,yes", na_values="?")
    with pytest.raises(DataError, match=r"na-values is for simulations: list na-values in schema"):
        alone("table", tmp_path, options, 0)


def test_all_columns_are_those_that_every_peer_has(tmp_path: Path) -> None:
    for peer in ("a", "b"):
        write_csv(
            tmp_path / peer / "data.csv", [(1, "no", 2), (3, "yes", 4)] * 3, ("y", "ill", "x")
        )
    options = TableOptions(columns="all", label="ill", classes="no,yes")
    options.check_peers(2)
    problem = load("table", tmp_path, options)
    named = load("table", tmp_path, TableOptions(columns="x,y", label="ill", classes="no,yes"))
    np.testing.assert_array_equal(problem.inputs, named.inputs, "by name, whatever their order")
    with pytest.raises(DataError, match=r'columns = "all" is for simulations: name the columns'):
        alone("table", tmp_path / "a", options, 0)
    write_csv(tmp_path / "c" / "data.csv", [(1, "no", 2)] * 5, ("z", "ill", "x"))
    with pytest.raises(DataError, match=r"a and c have different columns \(y and z\): rename"):
        load("table", tmp_path, options, peers=3)


def test_missing_numbers_become_the_mean(tmp_path: Path) -> None:
    """The mean of the training rows, (1 + 3) / 2."""
    write_csv(tmp_path / "train.csv", [(1, "no"), ("", "yes"), (3, "no")], ("x", "ill"))
    write_csv(tmp_path / "test.csv", [("nan", "no")], ("x", "ill"))
    options = TableOptions("x", "ill", "no,yes", "mean")
    problem = alone("table", tmp_path, options, 0)
    normalised = (problem.inputs - problem.mean) / problem.std
    expected = [-np.sqrt(1.5), 0.0, np.sqrt(1.5), 0.0]
    np.testing.assert_allclose(normalised[:, 0], expected, rtol=1e-6)


def test_a_missing_label_is_refused_whatever_fills_the_columns(tmp_path: Path) -> None:
    write_csv(tmp_path / "data.csv", [(1, 2), (3, ""), (5, 6)], ("x", "y"))
    with pytest.raises(DataError, match=r"y is missing \(1 row\); .*; the log"):
        alone("table", tmp_path, TableOptions("x", "y", missing="mean"), 0)


def test_peers_are_called_as_their_folders_in_a_simulation_only(tmp_path: Path) -> None:
    for name in ("10-south", "2-north"):
        ward(tmp_path / name, 0)
    problem = load("table", tmp_path, ROWS)
    assert problem.names == ("2-north", "10-south")
    assert problem.classes == ("no", "yes")
    assert [row["name"] for row in problem.describe()] == ["2-north", "10-south"]
    local = alone("table", tmp_path / "2-north", ROWS, 0)
    assert local.names == (), "what an institution calls its folder stays there"
    assert local.describe()[0]["name"] == "peer 0"


def test_nothing_there_is_a_clear_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no images in this peer's data-dir, expected folders"):
        alone("image-folder", tmp_path / "nowhere", IMAGES, 0)
    with pytest.raises(DataError, match=r"expected train or data \(.csv or .parquet\)"):
        alone("table", tmp_path, ROWS, 0)
    with pytest.raises(DataError, match="has 0 folders, but peers = 2"):
        load("table", tmp_path, ROWS)
    with pytest.raises(DataError, match=r"data-dir .*nowhere does not exist"):
        load("table", tmp_path / "nowhere", ROWS)


def test_a_peer_without_test_data_is_refused(tmp_path: Path) -> None:
    hospital(tmp_path, 0, {"ill": 2})
    with pytest.raises(DataError, match="no test examples"):
        alone("image-folder", tmp_path, IMAGES, 0)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: ImageFolderOptions(shape="28x28"), "shape must be"),
        (lambda: ImageFolderOptions(shape="2x28x28"), "1 channel"),
        (lambda: ImageFolderOptions(mean="0.5"), "mean and std must be"),
        (lambda: ImageFolderOptions(mean="1,2", std="1"), "mean and std must be"),
        (lambda: ImageFolderOptions(mean="x", std="1"), "mean and std must be"),
        (lambda: ImageFolderOptions(mean="1", std="0"), "mean and std must be"),
        (lambda: ImageFolderOptions(test=0.7, validation=0.3), "together be below 1"),
        (lambda: ImageFolderOptions().check_peers(2), "classes must name"),
        (lambda: TableOptions().check_peers(2), "columns must be"),
        (lambda: TableOptions(columns="a,label").check_peers(2), "columns must be"),
        (lambda: TableOptions(columns="a", classes="x,x").check_peers(2), "each class once"),
    ],
)
def test_a_run_that_expects_nonsense_is_refused(make: Callable[[], object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make()


ROWS_OF_TEXT = "age,bmi,ill\n31,22.5,no\n64,37.9,yes\n"


@pytest.mark.parametrize(
    ("text", "encoding", "cause"),
    [
        (ROWS_OF_TEXT.replace(",", ";"), "utf-8", "separates columns by semicolons"),
        (ROWS_OF_TEXT.replace(",", "\t"), "utf-8", "separates columns by tabs"),
        (ROWS_OF_TEXT, "utf-16", "is UTF-16, or no text: save it as CSV in UTF-8"),
        (
            ROWS_OF_TEXT.replace("age", "âge"),
            "latin-1",
            "is not UTF-8 in line 1: save it as CSV in UTF-8",
        ),
        ("28,1,?,130\n29,1,2,120\n", "utf-8", "is its header missing?"),
        ("28,22.5,no\n29,37.9,yes\n", "utf-8", "no column age, bmi, ill; is its header missing?"),
        ("63,m,2021-03-01,no\n29,m,2020-01-01,no\n", "utf-8", "is its header missing?"),
        ("63,x,63\n29,y,1\n", "utf-8", "duplicate columns (1); is its header missing?"),
        (ROWS_OF_TEXT.replace("ill", "sick"), "utf-8", "it has age, bmi, sick"),
        (ROWS_OF_TEXT.replace("bmi", "BMI_"), "utf-8", 'bmi: did you mean "BMI_"?'),
        (ROWS_OF_TEXT.replace("37.9", "37.9 kg/m2"), "utf-8", "commas or units"),
        (ROWS_OF_TEXT.replace("37.9", "37.9 kg/m2"), "utf-8", "data.csv, line 3: bmi '37.9 kg/m2'"),
        ("PK\x03\x04", "utf-8", "is a spreadsheet"),
        ("", "utf-8", "data.csv is empty"),
        (f"# a ward\n{ROWS_OF_TEXT}", "utf-8", "the first line must be the header"),
        (f"# a, of, b\n{ROWS_OF_TEXT}", "utf-8", "it has # a, of, b"),
        (f"{ROWS_OF_TEXT}1,2,3,4\n", "utf-8", "line 4 has 4 cells, and the header 3"),
        (
            ROWS_OF_TEXT + "1,2,no\n" * 9997 + "á",
            "latin-1",
            "data.csv is not UTF-8 in line 10001: save",
        ),
        (ROWS_OF_TEXT.replace("37.9", '"1,007"'), "utf-8", "thousands separators"),
        (ROWS_OF_TEXT.replace("37.9", "1_007"), "utf-8", "bmi '1_007' is not a number"),
        (ROWS_OF_TEXT.replace("37.9", "1e400"), "utf-8", "bmi inf is infinite"),
        (ROWS_OF_TEXT.replace("37.9", "2024-01-15"), "utf-8", "describe dates"),
        (ROWS_OF_TEXT.replace("yes", "NA"), "utf-8", "ill 'NA' is missing"),
        (ROWS_OF_TEXT.replace("age", "\u200bbmi"), "utf-8", "duplicate columns (1)"),
        (ROWS_OF_TEXT.replace("37.9", '"37,9"'), "utf-8", "commas or units"),
        (ROWS_OF_TEXT.replace("31", ""), "utf-8", "data.csv, line 2: age is missing"),
    ],
)
def test_a_table_that_is_no_csv_is_refused_with_its_cause(
    tmp_path: Path, text: str, encoding: str, cause: str
) -> None:
    (tmp_path / "data.csv").write_bytes(text.encode(encoding))
    with pytest.raises(DataError) as refused:
        read_table(tmp_path, TableOptions(columns="age, bmi", label="ill", classes="no, yes"), 0, 0)
    assert cause in " ".join([str(refused.value), *getattr(refused.value, "entries", [])])


def test_a_byte_order_mark_and_long_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("\ufeff" + ROWS_OF_TEXT, encoding="utf-8")
    assert cells.open_table(tmp_path / "data.csv").column_names == ["age", "bmi", "ill"]
    for shift in range(4):  # the check may end within a character
        text = f"{'x' * shift}age,place\n" + "1,éé\n" * 20_000
        (tmp_path / "data.csv").write_text(text, encoding="utf-8")
        assert cells.open_table(tmp_path / "data.csv").num_rows == 20_000


def test_columns_that_pandas_numbers_are_a_header(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("0,1,2\n4,5,6\n")
    assert cells.open_table(tmp_path / "data.csv").column_names == ["0", "1", "2"]


def divided(folder: Path, seed: int, split: Literal["random", "plain"] = "random") -> Problem:
    options = replace(ROWS, test=0.25, validation=0.25, split=split)
    return load("table", folder, options, 1, seed)


def test_every_part_of_a_small_table_has_the_classes_in_proportion(tmp_path: Path) -> None:
    rows = [(k, k, "yes" if k < 4 else "no") for k in range(12)]
    write_csv(tmp_path / "a" / "data.csv", rows, ("age", "bmi", "ill"))
    tests = set()
    for seed in range(5):
        (counts,) = divided(tmp_path, seed).describe()
        parts = [counts[part]["labels"] for part in ("train", "validation", "test")]
        assert parts == [[4, 2], [2, 1], [2, 1]]
        tests.add(tuple(divided(tmp_path, seed).test.rows[0].tolist()))
    assert len(tests) == 5, "each seed draws other rows"
    plain = [divided(tmp_path, seed, split="plain").describe()[0]["test"] for seed in range(5)]
    assert {tuple(part["labels"]) for part in plain} != {(2, 1)}


def test_a_recorded_run_without_the_key_keeps_its_plain_split(tmp_path: Path) -> None:
    ward(tmp_path / "data" / "a", 0)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "split.json").write_text("[]")
    config = tmp_path / "run" / "config.toml"
    text = f'peers = 1\nmethod = "local"\ndataset = "table"\ndata-dir = "{tmp_path}/data"\n'
    text += '[table]\ncolumns = "age"\nlabel = "bmi"\n'
    for added, split in (("", "plain"), ('split = "by-class"\n', "random")):
        config.write_text(text + added)
        assert config_of(tmp_path / "run").flat()["table.split"] == split
        assert read_items([str(config)])[1]["table.split"] == split
    config.rename(tmp_path / "preset.toml").write_text(text)
    assert read_items([str(tmp_path / "preset.toml")])[1]["table.split"] == "random"


BESIDE = {
    "data (1).csv": "table", "val.csv": "table", "data.parquet": "table", "2023/data.csv": "table",
    "x.npy": "arrays", "old/x.npz": "arrays",
}  # fmt: skip


@pytest.mark.parametrize("name", BESIDE)
def test_files_that_are_not_read_are_named(name: str, tmp_path: Path) -> None:
    """A peer's node names them, too; notes, schemas and hidden files are not named."""
    own, common = tmp_path / "own", tmp_path / "common"
    for home in (own, common):
        home.mkdir()
        (home / "README.md").write_text("notes")
        (home / ".hidden").write_text("")
    options: Any = ROWS
    beside = [own / name, common / "b" / name]
    if BESIDE[name] == "table":
        for folder in (own, common / "a", common / "b"):
            ward(folder, 0)
    else:
        options, beside[1] = ArraysOptions("0, 1"), common / name
        for path in (own / "a", common / "a", common / "b"):
            np.savez(path, x=np.eye(8), y=np.arange(8) % 2)

    def both() -> list[tuple[str, ...]]:
        problems = alone(BESIDE[name], own, options, 0), load(BESIDE[name], common, options)
        return [problem.left_out for problem in problems]

    assert both() == [(), ()]
    for path in beside:
        path.parent.mkdir(exist_ok=True)
        path.write_text("x,y")
    for (line,), path, home in zip(both(), beside, (own, common), strict=True):
        assert line.startswith(f"unread in data-dir: 1 ({path.relative_to(home).as_posix()});")


def test_folders_of_peers_may_be_links(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Other links are neither read nor searched."""
    (tmp_path / "data").mkdir()
    for name in "ab":
        ward(tmp_path / "disk" / name, 0)
        (tmp_path / "data" / name).symlink_to(tmp_path / "disk" / name)
    assert load("table", tmp_path / "data", ROWS).left_out == ()
    (tmp_path / "disk" / "b" / "later.csv").touch()
    (tmp_path / "disk" / "b" / "old").symlink_to(tmp_path)
    (line,) = load("table", tmp_path / "data", ROWS).left_out
    assert line.startswith("unread in data-dir: 2 (b/later.csv and b/old);")
    assert not caplog.text


def test_a_comparison_names_what_it_leaves_out_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for k in "ab":
        ward(tmp_path / "data" / k, 0)
    with (tmp_path / "data/b/data.csv").open("a") as file:
        file.write("11,tall,2.5,no\n")
    (tmp_path / "data/a/later.csv").write_text("bmi,age,ill\n1,2,no\n")
    keys = {
        "dataset": "table", "data-dir": str(tmp_path / "data"), "peers": 2, "model": "linear",
        "num-server-rounds": 1, "table.columns": "age,bmi", "table.label": "ill",
        "table.classes": "no,yes", "table.bad-rows": "leave-out",
    }  # fmt: skip
    coterie.compare(["local", "fedavg"], None, keys, seeds=2, out=tmp_path)
    printed = "".join(capsys.readouterr())
    assert (
        printed.count("b: 1 of 11 rows left out: data.csv, line 12: bmi 'tall' is not a num") == 1
    )
    assert printed.count("unread in data-dir: 1 (a/later.csv); rename or merge") == 1
