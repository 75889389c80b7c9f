"""Comparison and the tables of its measures: on the page, in a terminal, CSV and LaTeX."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table as Rich
from rich.text import Text

from coterie.app.config.registry import YARDSTICKS
from coterie.app.experiments import choice
from coterie.app.experiments.choice import Choice
from coterie.app.experiments.measures import COLUMNS, COST, Column
from coterie.app.experiments.table import LOSSES, Entry, Row, Table
from coterie.app.report import verdict, words
from coterie.app.report.panel import Cell, Heading, Panel
from coterie.app.runs import atomic, plan, units
from coterie.app.runs.files import ResultsError
from coterie.app.runs.progress import finite
from coterie.app.runs.rundir import Run

_WITH_DEVIATION = ("auroc", "auprc", "accuracy", "c_index", "gain", "loss_gain", "rmse")
_IN_TERMINAL = (
    *(*_WITH_DEVIATION, "newcomers", "fine_tuned", "improved"),
    *("loss", "diverged", "letter_auc", "bytes"),
)
_COSTS_IN_TERMINAL = ("bytes", "bytes_received", "gradients", "seconds")
_TERMINAL, _LONG_NAME = 80, 36
"""Columns of a terminal, and of the longest name that is not folded."""
_IN_PAPER = (
    *("accuracy", "auroc", "auprc", "worst", "worst_decile"),
    *("loss", "rmse", "gain", "loss_gain", "bytes"),
)
_IN_LATEX = str.maketrans({
    **{each: f"\\{each}" for each in "%_&#${}"}, "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "†": r"$^\dagger$",
})  # fmt: skip


@dataclass(frozen=True)
class Comparison:
    """Compared runs; the table has at least one row."""

    table: Table
    title: str = ""  # the preset or directory
    failed: Mapping[str, str] = field(default_factory=dict)  # run -> error; in no row

    @classmethod
    def of(cls, directory: Path, runs: Mapping[str, Run], failed: Mapping[str, str]) -> Comparison:
        """Return the comparison in a directory: its runs, and errors of others, by their name."""
        rows, swept = dict[str, list[Run]](), dict[str, plan.Values]()
        values = plan.read(directory).values
        for name, run in runs.items():
            own = values.get(name, {})
            label = plan.label(run.label, own)
            rows.setdefault(label, []).append(run)
            swept[label] = own
        table = Table.of_runs(rows, choice.read(directory), swept)
        return cls(table, directory.name, failed)

    @classmethod
    def read(cls, directory: Path) -> Comparison:
        """Read the comparison in a directory; ResultsError if there is none, or it has no runs."""
        runs, failed = dict[str, Run](), dict[str, str]()
        for name in plan.read(directory).runs:
            try:
                runs[name] = Run.read(directory / name)
                if not len(runs[name].rounds):
                    failed[name] = runs.pop(name).progress.get("error") or "no evaluated round"
            except ResultsError as error:
                failed[name] = str(error)
        if not runs:
            raise ResultsError(
                f"{directory}: neither a run (config.toml) nor a comparison (sweep.json) with an "
                "evaluated round"
            )
        return cls.of(directory, runs, failed)

    @property
    def runs(self) -> list[Run]:
        return [run for row in self.table.rows for run in row.runs]

    @cached_property
    def outcome(self) -> list[str]:
        """Verdict in sentences."""
        return verdict.outcome(self.table)

    @property
    def seeds(self) -> list[Any]:
        """Seeds, sorted; a method may lack a seed whose run failed."""
        return sorted({run.settings.seed for run in self.runs})

    @property
    def has_several(self) -> bool:
        """True if a row has several runs."""
        return any(len(row.runs) > 1 for row in self.table.rows)


def heading(rows: Sequence[Row]) -> str:
    """Return the key `title`, else "local, cobo on digits", "23 methods on digits" and so on."""
    first = rows[0].settings
    if first.title:
        return first.title
    names = list(dict.fromkeys(key for row in rows for key in row.swept))
    names = names or [row.name for row in methods(rows)]
    subject = ", ".join(names) if len(names) <= 4 else units.plural(len(names), "method")
    return f"{subject} on {words.data_name(first)}"


def methods(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that are no baselines by scikit-learn; all rows if each is one."""
    return [row for row in rows if row.settings.method not in YARDSTICKS] or list(rows)


def results(compared: Comparison) -> Panel:
    """Return the table of all measures but costs."""
    table = compared.table
    seeds = max(len(row.runs) for row in table.rows)
    about = [
        "Mean ± standard deviation over seeds." if compared.has_several else "",
        "Bold: the best mean of a column, and means that are not significantly worse (paired test "
        "over seeds and peers)."
        if any(map(table.bold, table.shown()))
        else "",
        f"Click a heading to sort. Click a {table.noun} to highlight it in all figures.",
    ]
    notes = [*filter(None, [words.rare_class(compared.runs[0])]), *verdict.notes(table)]
    terminal = in_terminal(table, f"{compared.title}, {units.plural(seeds, 'seed')}")
    return _panel(
        table, "Results", [" ".join(compared.outcome), " ".join(filter(None, about))], notes,
        [column for column in table.shown() if column.group != COST],
        lists={"Failed runs": [f"{run}: {why}" for run, why in compared.failed.items()]},
        printed=[terminal, " ".join(compared.outcome), *notes],
        written={
            "comparison.csv": as_csv(table), "comparison.tex": as_latex(compared),
            "comparison.json": as_json(compared),
        },
    )  # fmt: skip


def costs(compared: Comparison) -> Panel:
    """Return the table of costs, beside the main measure."""
    table, notes = compared.table, verdict.cost_notes(compared.table)
    main = [table.main] if table.main else []
    of_cost = [column for column in table.shown() if column.group == COST]
    seeds = ", mean over seeds" if compared.has_several else ""
    about = f"Whole runs{seeds}. Bytes: payload between peers; gradients: of single examples."
    terminal = as_rich(table, "Costs of a run", _columns(table, _COSTS_IN_TERMINAL))
    return _panel(table, "Costs", [about], notes, [*main, *of_cost], printed=[terminal, *notes])


def _panel(
    table: Table, heading: str, about: Sequence[str], notes: Sequence[str],
    columns: Sequence[Column], **more: Any,
) -> Panel:  # fmt: skip
    """Return the section of some columns; the first one of a group has the class "start"."""
    headings, groups = [Heading(table.noun, "")], [("", 1)]
    cells: dict[str, list[Cell]] = {row.method: [] for row in table.rows}
    for group, members in groupby(columns, key=lambda column: column.group):
        for k, column in enumerate(of_group := list(members)):
            start = "start" if k == 0 else ""
            headings.append(Heading(column.title, column.better, column.about, start or None))
            for method, entry in table.entries(column).items():
                mark = f"{start} {'best' if entry.leads else ''}".strip() or None
                mean = units.NONE if entry.text == table.dash else entry.mean
                deviation = f"± {entry.deviation}" if entry.deviation else ""
                cells[method].append(Cell(mean, deviation, entry.value, mark))
        groups.append((group, len(of_group)))
    rows = [(row.label, cells[row.method]) for row in table.rows]
    return Panel(
        heading.lower(), heading, about, headings, rows, groups, "measures",
        [f"{note}." for note in notes], **more,
    )  # fmt: skip


def _columns(table: Table, keys: Collection[str], *unless_accuracy: str) -> list[Column]:
    """Return the shown columns of these keys, some only if there is no accuracy."""
    columns = [column for column in table.shown() if column.key in keys]
    has_accuracy = any(column.key == "accuracy" for column in columns)
    return [c for c in columns if not (has_accuracy and c.key in unless_accuracy)]


def in_paper(table: Table) -> list[Column]:
    """Return the columns of a paper's table."""
    return _columns(table, _IN_PAPER, *LOSSES)


def in_terminal(table: Table, title: str) -> Group:
    """Return the main columns as a table for a terminal of 80 columns."""
    return as_rich(table, title, _columns(table, _IN_TERMINAL, "loss"), _WITH_DEVIATION)


def as_rich(
    table: Table, title: str, columns: Sequence[Column], with_deviation: Collection[str] = ()
) -> Group:
    """Return a table for a terminal of 80 columns, or two if needed; the leaders are bold."""
    texts = [
        [Text(each.text if column.key in with_deviation else each.mean,
              "bold" if each.leads else "") for each in table.entries(column).values()]
        for column in columns
    ]  # fmt: skip
    widths = [2 + max(len(c.title), *map(len, of)) for c, of in zip(columns, texts, strict=True)]
    names = [row.label for row in table.rows]
    is_short = table.noun == "method" and max(map(len, names)) <= _LONG_NAME
    left = _TERMINAL - 4 - (max(map(len, [table.noun, *names])) if is_short else _LONG_NAME)
    parts: list[list[int]] = [[]]
    for k, width in enumerate(widths):
        if parts[-1] and sum(widths[each] for each in parts[-1]) + width > left:
            parts.append([])
        parts[-1].append(k)
    tables: list[Rich] = []
    for part in parts:
        made = Rich(
            title="" if tables else title, title_justify="left", box=SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
        )  # fmt: skip
        made.add_column(table.noun, no_wrap=is_short, overflow="fold")
        for k in part:
            made.add_column(columns[k].title, justify="right", no_wrap=True)
        for name, *of_row in zip(names, *(texts[k] for k in part), strict=True):
            made.add_row(Text(name), *of_row)
        tables.append(made)
    return Group(*tables)


def as_csv(table: Table) -> str:
    """Write a line per row and trial in full precision, empty where a number is missing."""
    import pandas as pd

    keys = list(dict.fromkeys(k for row in table.rows for k in row.swept if k != "method"))
    lines = [
        {
            "method": row.method, "seed": trial.seed,
            **{column.key: table.number(cell, trial, column) for column in COLUMNS},
            "settings": json.dumps(dict(row.choice.settings)),
            "edges": json.dumps(dict(row.choice.edges)),
            "run": table.results[cell][trial].directory.name,
            **{key: row.swept.get(key) for key in keys},
        }
        for row in table.rows
        for cell, trial in row.trials
    ]  # fmt: skip
    return atomic.csv_of(pd.DataFrame(lines, dtype=object))


def as_json(compared: Comparison) -> str:
    """Write means and deviations of each row, the columns that it leads, and its trials.

    A measure that does not exist or is not finite is null.
    """
    table, rows = compared.table, list[dict[str, Any]]()
    leads = {column.key: table.entries(column) for column in table.shown()}
    for row in table.rows:
        summaries = {column.key: row.summary(column) or (None, None) for column in COLUMNS}
        rows.append({
            "method": row.method,
            "settings": {**row.choice.settings, **row.swept},
            "mean": finite({key: mean for key, (mean, _) in summaries.items()}),
            "deviation": finite({key: spread for key, (_, spread) in summaries.items()}),
            "leads": [key for key, entries in leads.items() if entries[row.method].leads],
            "trials": [
                {"seed": trial.seed, "run": table.results[cell][trial].directory.name}
                | finite({c.key: table.number(cell, trial, c) for c in COLUMNS})
                for cell, trial in row.trials
            ],
        })  # fmt: skip
    content = {"title": compared.title, "outcome": " ".join(compared.outcome), "rows": rows}
    return json.dumps(content | {"failed": dict(compared.failed)}, indent=1, allow_nan=False) + "\n"


def as_latex(compared: Comparison) -> str:
    """Return a LaTeX table of the main columns, leaders in bold, tuned settings last."""
    table, seeds = compared.table, ", ".join(map(str, compared.seeds))
    columns, run = in_paper(table), compared.runs[0]
    entries = [table.entries(column) for column in columns]
    is_tuned = any(row.choice.settings for row in table.rows)
    rounds = units.plural(run.settings.num_server_rounds, "round")
    notes = {
        f"{heading(table.rows)}, {words.peers(run)}, {rounds}": True,
        f"In each round {run.settings.schedule_fraction:.0%} of the peers take part":
            run.settings.schedule_kind == "sample",
        f"Mean ± standard deviation over seeds {seeds}": compared.has_several,
        f"Seed {seeds}": not compared.has_several,
        "Bold: best mean, and means not significantly worse (paired test over seeds and peers)":
            any(entry.leads for of in entries for entry in of.values()),
        "*: a reference, which is not ranked": any(row.reference for row in table.rows),
        "†: the lowest or highest value that was tried":
            any(row.choice.edges for row in table.rows),
    }  # fmt: skip
    texts = {table.noun: [escaped(row.label) for row in table.rows]}
    for column, of in zip(columns, entries, strict=True):
        texts[escaped(column.title)] = [_latex(entry) for entry in of.values()]
    if is_tuned:
        texts["tuned"] = [_latex_choice(row.choice) for row in table.rows]
    layout = f"l{'r' * len(columns)}{'l' * is_tuned}"
    caption = "".join(f"{note}. " for note, applies in notes.items() if applies)
    about = [f"{column.title}: {column.about}" for column in columns]
    return latex(texts, layout, caption, compared.title, about)


def latex(
    texts: Mapping[str, Sequence[str]], layout: str, caption: str, title: str,
    comments: Sequence[str] = (),
) -> str:  # fmt: skip
    """Return a floating table in LaTeX (booktabs), with a label of the title, below comments."""
    import pandas as pd

    body = pd.DataFrame(texts).style.hide(axis="index").to_latex(
        column_format=layout, hrules=True, caption=escaped(caption).strip(),
        label=f"tab:{slug(title)}", position_float="centering",
    )  # fmt: skip
    return "".join(f"% {line}\n" for line in (r"\usepackage{booktabs}", *comments)) + str(body)


def slug(text: str) -> str:
    """Write a text in letters, digits and hyphens, as in names of files and labels."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "unnamed"


def _latex(entry: Entry) -> str:
    text = escaped(entry.text)
    return rf"\textbf{{{text}}}" if entry.leads else text


def _latex_choice(choice: Choice) -> str:
    """Write tuned settings by the last part of their keys, with a dagger at an edge."""
    return ", ".join(
        escaped(f"{key.rpartition('.')[2]} {value}{'†' * (key in choice.edges)}")
        for key, value in choice.settings.items()
    )


def escaped(text: str) -> str:
    """Escape a text for LaTeX."""
    return text.translate(_IN_LATEX)
