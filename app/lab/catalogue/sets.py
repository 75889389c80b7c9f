"""Catalogue of public data sets with natural institutions, for `coterie data`; see sets.toml."""

from __future__ import annotations

import csv
import io
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from coterie.datasets.preprocessing import Column
from coterie.datasets.published import heart_disease

Row = Mapping[str, str]
_ANSWERS = {"": "", "0": "no", "N": "no", "No": "no", "1": "yes", "Y": "yes", "Yes": "yes"}
_DERIVED = ("region", "days", "died", "died-within-3-years")
"""Columns of TCGA-BRCA that `_brca` adds to the features."""


@dataclass(frozen=True)
class File:
    """File at a public source."""

    url: str  # https
    sha256: str  # of the content, hexadecimal
    size: int  # bytes

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class Tables:
    """Tables of several institutions with the same columns."""

    columns: tuple[Column, ...]  # the label last; of survival, time and event
    rows: Mapping[str, list[tuple[str, ...]]]
    """By institution, cells in the order of `columns`; "" is a missing value."""


@dataclass(frozen=True)
class PublicSet:
    """Data set of the catalogue; the fields are explained in sets.toml."""

    task: str
    institutions: int
    members: str
    examples: int
    licence: str  # licence of the data, or what the source states about it
    source: str  # origin, with the paper or page to cite
    files: tuple[File, ...]  # to download; empty if the data are included
    read: Callable[[Sequence[str]], Tables]  # texts of the files -> tables


def _csv(texts: Sequence[str]) -> Iterator[Row]:
    return csv.DictReader(io.StringIO(texts[0]), strict=True)


def _heart(_: Sequence[str]) -> Iterator[Row]:
    """Yield the included patients, as FLamby does: without slope, ca and thal."""
    names = (*(column.name for column in heart_disease.RAW), "slope", "ca", "thal", "num")
    for hospital, patients in heart_disease.included().items():
        for patient in patients.tolist():
            cells = zip(names, map("{:g}".format, patient), strict=True)
            yield {"hospital": hospital, **dict(cells)}


def _brca(texts: Sequence[str]) -> Iterator[Row]:
    """Yield patients with their region; a survival of three years is unknown if censored before."""
    region = {row["TSS Code"]: row["Region"] for row in _csv(texts[1:])}
    for row in _csv(texts):
        features = {name: cell for name, cell in row.items() if name not in ("pid", "E", "T")}
        is_late, is_dead = float(row["T"]) > 3 * 365, float(row["E"]) > 0
        early = "01"[not is_late] if is_late or is_dead else ""
        known = region[row["pid"].split("-")[1]], row["T"], "01"[is_dead], early
        yield {**features, **dict(zip(_DERIVED, known, strict=True))}


_ROWS: Mapping[str, Callable[[Sequence[str]], Iterator[Row]]] = {
    "heart-disease": _heart,
    "tcga-brca": _brca,
    "tcga-brca-survival": _brca,
}
"""Name -> rows of the source; otherwise those of a CSV file."""


def _read(name: str, entry: Mapping[str, Any], texts: Sequence[str]) -> Tables:
    """Read the rows of a set's files into tables of at least `min-rows` rows each."""
    tables: dict[str, list[tuple[str, ...]]] = {}
    columns: list[dict[str, Any]] = []
    for row in _ROWS.get(name, _csv)(texts):
        if not columns:
            others = [{"name": each} for each in row if each not in _DERIVED]
            for column in entry["columns"]:
                columns += others if column["name"] == "*" else [column]
        cells = tuple(_cell(column, row) for column in columns)
        institution = row[entry["by"]]
        if "decimals" in entry:
            institution = f"{float(institution):.{entry['decimals']}f}"
        if cells[-1]:
            tables.setdefault(entry.get("prefix", "") + institution, []).append(cells)
    kept = {at: of for at, of in tables.items() if len(of) >= entry.get("min-rows", 1)}
    return Tables(tuple(map(_column, columns)), kept)


def _cell(column: Mapping[str, Any], row: Row) -> str:
    cell = row[column.get("from", column["name"])].strip()
    if "above" in column:
        return ("no", "yes")[float(cell) > column["above"]]
    codes = _ANSWERS if "yes-no" in column else column.get("codes")
    return cell if codes is None else str(codes[cell])


def _column(column: Mapping[str, Any]) -> Column:
    is_answer = "yes-no" in column or "above" in column
    categories = ("no", "yes") if is_answer else tuple(column.get("categories", ()))
    categories = categories or tuple(dict.fromkeys(column.get("codes", {}).values()))
    return Column(
        column["name"], "category" if categories else "number", categories,
        column.get("unit", ""), cuts=tuple(column.get("cuts", ())),
    )  # fmt: skip


def _sets() -> Iterator[tuple[str, PublicSet]]:
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    for name, entry in tomllib.loads(text).items():
        keys = ("task", "institutions", "members", "examples", "licence", "source")
        files = tuple(File(*each) for each in entry.get("files", ()))
        facts = {key: entry[key] for key in keys}
        yield name, PublicSet(**facts, files=files, read=partial(_read, name, entry))


SETS = dict(_sets())
"""Data sets by name; presets/institutions has a preset of each."""
