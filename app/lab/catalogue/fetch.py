"""Conversion of a public data set to a folder per institution, with the schema of its columns."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

import tomli_w

from coterie.app.lab.catalogue.download import download, read
from coterie.app.lab.catalogue.sets import PublicSet, Tables
from coterie.app.runs import atomic
from coterie.datasets.own.schema import FILE, described
from coterie.datasets.problem import DataError

ORIGIN = "ORIGIN.md"
_NAME = re.compile(r"\w[\w .-]*")


def fetch(name: str, entry: PublicSet, data_dir: Path, source: Path | None = None) -> bool:
    """Write the tables of a data set to `data_dir`/`name`; False if they are there already."""
    # The files come from the folder `source`, or are downloaded without one. Either everything is
    # written or nothing.
    target, origin = data_dir / name, origin_of(name, entry)
    if target.exists():
        note = target / ORIGIN
        if not note.is_file() or note.read_text(encoding="utf-8", errors="replace") != origin:
            raise DataError(f"{target} exists and has other content: move it, or choose --out")
        return False
    contents = [download(file) if source is None else read(source, file) for file in entry.files]
    tables = entry.read([content.decode("utf-8") for content in contents])
    _check(name, entry, tables)
    data_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=data_dir, prefix=f".{name}.") as place:
        draft = Path(place, name)
        draft.mkdir()
        _write(tables, draft)
        (draft / ORIGIN).write_text(origin, encoding="utf-8")
        os.replace(draft, target)
    return True


def origin_of(name: str, entry: PublicSet) -> str:
    """Return the note on origin, licence and digests that is written beside the tables."""
    files = [f"- {file.url}, {file.size} bytes, SHA-256 {file.sha256}" for file in entry.files]
    lines: Sequence[str] = (
        f"# {name}: {entry.task}", "", f"{entry.source}.", "", f"Licence: {entry.licence}.", "",
        *(files or ["Included in Coterie."]), "", f"Written by `coterie data fetch {name}`.", "",
    )  # fmt: skip
    return "\n".join(lines)


def _check(name: str, entry: PublicSet, tables: Tables) -> None:
    """Check names of institutions, which become folders, and the counts of the catalogue."""
    for institution in tables.rows:
        if not _NAME.fullmatch(institution):
            raise DataError(f"{name}: {institution!r} cannot be the name of an institution")
    counts = len(tables.rows), sum(map(len, tables.rows.values()))
    if counts != (entry.institutions, entry.examples):
        raise DataError(
            f"{name}: {counts[1]} rows of {counts[0]} {entry.members}, expected {entry.examples} "
            f"of {entry.institutions}"
        )


def _write(tables: Tables, folder: Path) -> None:
    schema = {column.name: column for column in tables.columns}
    (folder / FILE).write_text(tomli_w.dumps(described(schema)), encoding="utf-8")
    for institution, rows in tables.rows.items():
        (folder / institution).mkdir()
        text = atomic.as_csv([schema, *rows])
        (folder / institution / "data.csv").write_text(text, encoding="utf-8", newline="")
