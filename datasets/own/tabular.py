"""Tables of institutions: train.csv or train.parquet, test.* and validation.*, or one data.*.

Every file has the columns that the run names, in any order; others are ignored. With a schema
columns may be categories and dates too, and cells are checked.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from coterie.datasets.own import cells
from coterie.datasets.own.cells import Errors, Wrong
from coterie.datasets.own.institutions import (  # fmt: skip
    PARTS,
    Expected,
    HeldOptions,
    Holding,
    RefusedError,
    listed,
    make_holding,
    words,
)
from coterie.datasets.own.schema import Schema, agreed, digest
from coterie.datasets.preprocessing import Column
from coterie.datasets.problem import DataError, Task
from coterie.ranges import option

if TYPE_CHECKING:
    import pyarrow as pa

_SHOWN = 3
_NOT_NUMERIC = (
    "write numbers like 1007.5, without thousands separators, commas or units; name marks of "
    "missing values in table.na-values; describe dates and categories in schema.toml"
)


@dataclass(frozen=True)
class TableOptions(HeldOptions):
    """Options of the data set "table"."""

    columns: str = option(
        "",
        'Names of the feature columns, "age, bmi, glucose", in the model\'s order; "all", in a '
        "simulation, for every column except the label, sorted by name.",
    )
    label: str = option("label", "Name of the column to predict.")
    classes: str = option(
        "",
        'Values of the label in the order of the model\'s outputs, "no, yes"; empty for '
        "regression and survival.",
    )
    missing: Literal["refuse", "mean", "median", "indicator"] = option(
        "refuse",
        '"refuse" rejects missing cells, in `predict` too, "mean" fills missing numbers with the '
        'mean of the column (of the common scale, else of the peer\'s training rows), "median" '
        'with the median of the peer\'s training rows; "indicator" fills with the mean and adds a '
        "feature for each number that is 1 where it is missing. A missing category is none of its "
        "categories.",
    )
    na_values: str = option(
        "",
        'Cells that mean a missing value, besides empty ones and "NA", "NaN" or "NULL", '
        'in all feature columns, or in one column as "column=value": "?, -9, chol=0". In a '
        "simulation; those of schema.toml always count.",
    )
    schema: str = option(
        "",
        "Digest of schema.toml, which describes the columns and must be the same for all peers "
        '(coterie schema); in a simulation also "file". Empty if all columns are numbers.',
    )
    bad_rows: Literal["refuse", "leave-out"] = option(
        "refuse",
        '"refuse" rejects a table with rows that have no label or cells that do not fit, '
        '"leave-out" skips these rows. The node\'s log lists them by line.',
    )
    event: str = option(
        "",
        "Name of the column that is 1 where the event happened at the time that is the label, and "
        "0 where observation ended (censored); a category has these two values in this order. "
        "Needs a schema with `cuts` of the label. Empty for other tasks than survival.",
    )
    scale: Literal["common", "own", "schema"] = option(
        "common",
        'Mean and deviation of the numbers: "common" those of all peers\' training rows '
        'together, or of the schema under privacy; "own" those of each peer\'s training rows; '
        '"schema" the `mean` and `scale` of schema.toml. Categories are 0 or 1, except with "own".',
    )
    group: str = option(
        "",
        "Name of the column with the patient (customer, device) of a row, if it has several rows: "
        "parts, folds and intervals keep its rows together, and minimum numbers of rows count "
        'groups. Or a column of schema.toml with role = "group". It is no feature.',
    )
    split: Literal["random", "time", "plain"] = option(
        "random",
        '"random" draws the test and validation rows, of a classification class by class, so '
        'that each part has every class in proportion; "plain" draws from all rows. "time" takes '
        "the latest rows by the column `time`: those for testing, those before them for "
        "validation. A recorded run without this key was divided plainly.",
    )
    time: str = option(
        "",
        'Name of the column with the time of a row, for split = "time": numbers, or dates such as '
        '2024-01-31. Or a column of schema.toml with role = "time". It is no feature.',
    )

    def check_peers(self, peers: int) -> None:
        columns = words(self.columns)
        if (
            not columns
            or len(set(columns)) != len(columns)
            or not {self.label, self.event}.isdisjoint(columns)
        ):
            raise ValueError(
                'columns must be "all", or unique names without label and event, like "age, bmi"'
            )
        if self.event and (not self.schema or self.classes or self.event == self.label):
            raise ValueError(
                "event is for survival: label is the column of times, classes is empty, and schema "
                "is set, because schema.toml has the cuts of the times"
            )
        if self.time and self.split != "time":
            raise ValueError(f'time = "{self.time}" needs split = "time"')
        if self.split == "time" and not (self.time or self.schema):
            raise ValueError('split = "time": set time, the column with the time of a row')
        if self.scale == "schema" and not self.schema:
            raise ValueError('scale = "schema": set schema, whose columns have mean and scale')
        if len(set(words(self.classes))) != len(words(self.classes)):
            raise ValueError("classes must name each class once")

    def check_node(self) -> None:
        # A run that chooses the cells that mean a missing value could ask whether a row has one.
        if self.columns == "all":
            raise DataError('table.columns = "all" is for simulations: name the columns')
        if self.na_values:
            raise DataError(
                "table.na-values is for simulations: list na-values in schema.toml, whose digest "
                "the institutions compare"
            )


def read_table(
    folder: Path, options: TableOptions, seed: int, peer: int
) -> tuple[Expected, Holding]:
    """Read one institution's table."""
    # DataError: the table is missing, or its columns, values or labels do not fit the run.
    files = {name: _file(folder, name) for name in PARTS}
    files["train"] = files["train"] or _file(folder, "data")
    if files["train"] is None:
        raise DataError(
            "table: expected train or data (.csv or .parquet) in this peer's data-dir; save "
            "spreadsheets (.xlsx) as CSV in UTF-8"
        )
    described = _described(folder, options)
    task, classes, labels = _outcome(described, options)
    group, time = _roles(described, options)
    tables = {name: cells.open_table(path) for name, path in files.items() if path}
    names = words(options.columns)
    if options.columns == "all":
        others = {options.label, options.event, group, time}
        others |= {name for name, column in described.items() if column.role}
        names = sorted({*(described or tables["train"].column_names)} - others)
    columns = _with_na_values([described.get(name, Column(name)) for name in names], options)
    expected = Expected(
        "table",
        task,
        len(classes) or 1,
        classes=tuple(classes),
        columns=columns,
        fill="mean" if options.missing == "refuse" else options.missing,
        schema=digest(described) if described else "",
    )
    parts, groups, times = {}, dict[str, npt.NDArray[Any]](), dict[str, npt.NDArray[Any]]()
    left_out = list[str]()
    for name, table in tables.items():
        path, errors = files[name] or folder, Errors()
        group_n = cells.read_groups(table, group, path, errors)
        time_n = cells.read_times(table, time, path, errors)
        inputs, targets, kept = _read_part(table, path, expected, labels, options, errors, left_out)
        parts[name] = inputs, targets
        groups |= {} if group_n is None else {name: group_n[kept]}
        times |= {} if time_n is None else {name: time_n[kept]}
    for before, after in itertools.pairwise(times):
        if early := int((times[after] <= times[before].max(initial=-np.inf)).sum()):
            raise DataError(
                f'table.split = "time": {early} rows of {after} are not later than all of '
                f"{before}: move them, or leave table.split out"
            )
    return expected, make_holding(
        expected, parts, options, seed, peer, left_out=left_out,
        by_class=options.split != "plain", groups=groups or None, times=times.get("train"),
    )  # fmt: skip


def _outcome(schema: Schema, options: TableOptions) -> tuple[Task, Sequence[str], Sequence[Column]]:
    """Return the task, its classes or ends of intervals, and the columns of the label."""
    # DataError: the schema has no cuts of a time to an event.
    label = schema.get(options.label, Column(options.label))
    if options.event:
        if not label.cuts:
            raise DataError(
                f"table: schema.toml has no cuts of {options.label}, the time to {options.event}: "
                f"add the ends of its intervals below [columns.{options.label}], such as cuts = "
                "[365, 730, 1095], the same in every institution"
            )
        return "survival", [f"{cut:g}" for cut in label.cuts], [label, schema[options.event]]
    classes = tuple(words(options.classes)) or label.categories
    if not classes:
        return "regression", classes, [label]
    return "classification", classes, [replace(label, kind="category", categories=classes)]


def _roles(schema: Schema, options: TableOptions) -> tuple[str, str]:
    """Return the names of the columns of groups and of times; "" if they are not used."""
    # DataError: there is no column of times, or a column has another use too.
    of = {column.role: name for name, column in schema.items()}
    group, time = options.group or of.get("group", ""), options.time or of.get("time", "")
    if options.split == "time" and not time:
        raise DataError('table.split = "time": set table.time, or role = "time" in schema.toml')
    used = {options.label, options.event, *words(options.columns)} - {""}
    of.pop("", None)
    if both := sorted(used & {group, time, *of.values()}):
        raise DataError(
            f"table: {', '.join(both)} divides the rows by group or time, so it is neither feature "
            "nor label: leave it out of columns"
        )
    return group, time if options.split == "time" else ""


def _with_na_values(columns: Sequence[Column], options: TableOptions) -> tuple[Column, ...]:
    """Add the run's texts and numbers that mean a missing value to the columns."""
    # DataError: they name a column that the run does not use.
    of_column: dict[str, list[str]] = {column.name: [] for column in columns}
    for word in words(options.na_values):
        name, is_named, value = (part.strip() for part in word.rpartition("="))
        if is_named and name not in of_column:
            raise DataError(f'table.na-values: "{word}": {name} is not a feature column of the run')
        for values in [of_column[name]] if is_named else of_column.values():
            values.append(value)
    return tuple(
        replace(column, na_values=(*column.na_values, *of_column[column.name]))
        for column in columns
    )


def _file(folder: Path, name: str) -> Path | None:
    paths = (folder / f"{name}{suffix}" for suffix in cells.FORMATS)
    return next((path for path in paths if path.is_file()), None)


def _described(folder: Path, options: TableOptions) -> Schema:
    """Read the run's schema, empty if it has none; DataError: it has another digest or columns."""
    schema = agreed(folder, "table", options.schema)
    features = words(options.columns) if options.columns != "all" else ()
    required = [options.label, *words(options.event), *features] if options.schema else []
    if missing := [name for name in required if name not in schema]:
        raise DataError(f"table: schema.toml does not describe {', '.join(missing)}")
    return schema


def _read_part(
    table: pa.Table,
    path: Path,
    expected: Expected,
    labels: Sequence[Column],
    options: TableOptions,
    marked: Errors,
    left_out: list[str],
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    """Read inputs and targets of a table, and which rows they are; name the others."""
    # `marked` are rows with errors in other columns.
    columns, first = (*expected.columns, *labels), len(expected.columns)
    cells.require(table, [column.name for column in columns], path)
    values, errors = cells.encoded(table, columns)
    for each, why in marked.items():
        errors.setdefault(each, []).extend(why)
    if options.event:
        _check_times(values[:, first:], options, errors)
    needed = 0 if options.missing == "refuse" else first
    cells.add_missing(table, values[:, needed:], columns[needed:], errors)
    if errors:
        entries, what = cells.named(errors, path), f"{len(errors)} of {len(values)} rows"
        if options.bad_rows == "refuse":
            causes = "; ".join(_causes(errors, columns[:first], labels[0]))
            raise RefusedError(
                f"table: {what} of {path.name} cannot be used: {causes}; "
                'table.bad-rows = "leave-out" skips them',
                entries,
            )
        left_out.append(f"{what} left out: {listed(entries)}")
        values = np.delete(values, sorted(errors), axis=0)
    kept = np.delete(np.arange(table.num_rows), sorted(errors))
    inputs, targets = values[:, :first], values[:, first:]
    if expected.task == "survival":
        survived = np.searchsorted(labels[0].cuts, targets[:, 0], side="right")
        return inputs, np.column_stack([survived, targets[:, 1], targets[:, 0]]), kept
    return inputs, targets[:, 0].astype(np.int64) if expected.classes else targets, kept


def _causes(errors: Errors, features: Sequence[Column], label: Column) -> list[str]:
    """Return what is wrong in how many rows of each column, and the remedy, without cells."""
    by_cause = defaultdict(list)
    for wrong in itertools.chain.from_iterable(errors.values()):
        by_cause[wrong.column, wrong.why].append(wrong.cell)
    causes = defaultdict(list)  # by remedy
    for (name, why), found in by_cause.items():
        advice, is_label = "", name == label.name and label.kind == "category"
        if why == "is missing" and any(name == column.name for column in features):
            advice = 'table.missing = "mean", "median" or "indicator" fills missing cells'
        elif why == "is missing" and is_label and any(found):
            advice = "if the text in the cell is a class, name it in the classes"
        elif why == "is not a number":
            advice = _NOT_NUMERIC
        elif why == "is infinite":
            advice = 'leave it out, or name it in na-values, "inf"'
        elif is_label and why == "is not a category":
            why = f"is not one of the classes {', '.join(label.categories)}"
        causes[advice].append(f"{name} {why} ({len(found)} row{'s' * (len(found) > 1)})")
    return [
        ", ".join(each[:_SHOWN])
        + f" and {len(each) - _SHOWN} more" * (len(each) > _SHOWN)
        + f": {advice}" * bool(advice)
        for advice, each in causes.items()
    ]


def _check_times(values_n2: npt.NDArray[np.float64], options: TableOptions, errors: Errors) -> None:
    """Add the rows with a negative time, or an event other than 0 and 1, to the errors."""
    for name, values, is_wrong, why in (
        (options.label, values_n2[:, 0], values_n2[:, 0] < 0, "is negative"),
        (options.event, values_n2[:, 1], ~np.isin(values_n2[:, 1], (0, 1)), "is not 0 or 1"),
    ):
        for row in np.flatnonzero(is_wrong & ~np.isnan(values)):
            errors.setdefault(int(row), []).append(Wrong(name, why, values[row]))
