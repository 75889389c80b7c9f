"""Pages of the papers: docs/papers, made from the results of `coterie reproduce`.

`python -m studies.papers [RUNS]` copies the results of all figures in RUNS (runs/reproduce, size
small) into docs/papers/<paper>/<figure>, and writes docs/papers/<paper>.md and docs/papers/index.md
from the results there. Without RUNS it only rewrites the pages from the results in docs/papers.
"""

from __future__ import annotations

import csv
import html
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.app.experiments.measures import reached
from coterie.app.reproduction import figures
from coterie.app.reproduction.figures import Figure, Paper, Row, Size
from coterie.app.reproduction.page import HOLDS, heading, heading_of, shown
from coterie.app.runs import units

PLACE = Path(__file__).resolve().parents[1] / "docs" / "papers"
METHODS = PLACE.parent / "methods"
SIZE: Size = "small"
FILES = ("results.csv", "claims.json", "made.json", "figure.svg")
NOTE = "<!-- Written by python -m studies.papers; do not edit. -->"
EMPTY = ""
KEYS: tuple[bool | str | None, ...] = (*HOLDS, "law")
THAT: Mapping[bool | str | None, str] = {
    True: "Claims that hold",
    False: "Claims that do not hold",
    None: "Claims that cannot be judged at this size",
    "law": "Runs that agree with our closed forms",
}
COLOURS: Mapping[bool | None, str] = {True: "#2f855a", False: "#c44e52", None: "#b5b9c0"}
"""Verdict -> colour of its dots."""
LONG = 160
"""Maximum length of numbers that are shown beside a claim; longer ones are folded."""
SEEDS = (
    "Behind a claim: the number of seeds that would judge it with a power of 80 %, if mean and "
    "standard deviation of the difference stay as measured; no number: more than 100."
)
Key = tuple[str, str, str, str]
"""Panel, row, swept value ("" without), column."""


@dataclass(frozen=True)
class Kept:
    """Results of a figure in docs/papers.

    Attributes
    ----------
    lines : Mapping of tuple to Mapping of str to str
        Lines of results.csv by panel, row, swept value and column.
    claims : Sequence of Mapping of str to Any
        Content of claims.json.
    made : Mapping of str to Any
        Content of made.json.
    drawing : bool
        True if there is a figure.svg.
    """

    lines: Mapping[Key, Mapping[str, str]]
    claims: Sequence[Mapping[str, Any]]
    made: Mapping[str, Any]
    drawing: bool

    @classmethod
    def read(cls, directory: Path) -> Kept | None:
        """Read the results of a figure; None where it was not made."""
        if not (directory / "made.json").exists():
            return None
        with (directory / "results.csv").open(encoding="utf-8", newline="") as file:
            lines = {
                (line["panel"], line["row"], line["x"], line["column"]): line
                for line in csv.DictReader(file)
            }
        claims = json.loads((directory / "claims.json").read_text(encoding="utf-8"))
        made = json.loads((directory / "made.json").read_text(encoding="utf-8"))
        return cls(lines, claims, made, (directory / "figure.svg").exists())


def copy(runs: Path) -> None:
    """Copy the results of every figure that was made in `runs`."""
    for paper in figures.names():
        for name in figures.read(paper).figures:
            made, kept = runs / SIZE / paper / name, PLACE / paper / name
            if not (made / "made.json").exists():
                continue
            shutil.rmtree(kept, ignore_errors=True)
            kept.mkdir(parents=True)
            for file in FILES:
                if (made / file).exists():
                    shutil.copyfile(made / file, kept / file)


def results(paper: Paper) -> dict[str, Kept | None]:
    """Return the results of each figure of a paper, None where there are none."""
    return {name: Kept.read(PLACE / paper.name / name) for name in paper.figures}


def page(paper: Paper) -> str:
    """Return the page of a paper in Markdown."""
    of = results(paper)
    parts = [NOTE, f"# {title(paper)}", f"*{authors(paper)}.*", idea(paper.method)]
    parts += [f"![Verdicts on the paper's claims]({paper.name}/claims.svg)", summary(paper, of)]
    for name, figure in paper.figures.items():
        parts += section(paper, figure, of[name])
    if paper.contradictions:
        parts += ["## Contradictions and errata", bullets(paper.contradictions)]
    return "\n\n".join(parts) + "\n"


def title(paper: Paper) -> str:
    """Return the title of a paper after its short name."""
    known = paper.title.startswith(paper.short)
    return paper.title if known else f"{paper.short}: {paper.title}"


def authors(paper: Paper) -> str:
    """Return a paper's reference without its title."""
    return paper.reference.replace(f": {paper.title}", "").replace(f", {paper.title}", "")


def idea(method: str) -> str:
    """Return the idea of a method, as its page has it."""
    text = (METHODS / f"{method}.md").read_text(encoding="utf-8")
    first = text.partition("## Idea\n\n")[2].partition("\n\n")[0]
    return f"{first} [{text.partition(chr(10))[0].removeprefix('# ')}](../methods/{method}.md)"


def summary(paper: Paper, of: Mapping[str, Kept | None]) -> str:
    """Return the number of figures and of claims that hold."""
    of = published(paper, of)
    held, against, open_, laws = (len(list(judged(paper, of, key))) for key in KEYS)
    made = sum(kept is not None for kept in of.values())
    claims = held + against + open_
    checks = f" Comparisons of runs with closed forms that agree: {laws}." if laws else ""
    return (
        f"We repeated {made} of {len(of)} tables and figures on smaller problems that run offline "
        f"(size small). There, {held} of {units.plural(claims, 'claim')} of the paper hold, "
        f"{against} do not, and {open_} cannot be judged.{checks} "
        "[Measures](../reference/measures.md) defines the columns."
    )


def claims_figure(paper: Paper, of: Mapping[str, Kept | None]) -> str:
    """Draw a line of dots for each table or figure, one dot for each claim, by verdict, as SVG."""
    of = published(paper, of)
    dots: dict[str, list[tuple[str, str, str]]] = {}
    for key, colour in COLOURS.items():
        for name, claim in judged(paper, of, key):
            dots.setdefault(name, []).append((colour, HOLDS[key], claim["claim"]))
    lines = [
        f'<circle cx="{x}" cy="12" r="6" fill="{colour}"/>'
        f'<text x="{x + 12}" y="16">{HOLDS[key]}</text>'
        for x, (key, colour) in zip((8, 80, 190), COLOURS.items(), strict=True)
    ]
    for k, name in enumerate(name for name in of if name in dots):
        y = 40 + 21 * k
        label = heading_of(paper.figures[name]).partition(": ")[0]
        lines.append(f'<text x="2" y="{y + 4}">{html.escape(label)}</text>')
        lines += [
            f'<circle cx="{172 + 17 * j}" cy="{y}" r="6" fill="{colour}">'
            f"<title>{html.escape(claim)}: {verdict}</title></circle>"
            for j, (colour, verdict, claim) in enumerate(dots[name])
        ]
    height = 36 + 21 * len(dots)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 370 {height}" width="370" '
        f'height="{height}" font-family="sans-serif" font-size="13" fill="#333">\n'
        '<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(lines) + "\n</svg>\n"
    )


def published(paper: Paper, of: Mapping[str, Kept | None]) -> dict[str, Kept | None]:
    """Return the results of a paper's own figures, without our attempts to explain them."""
    return {
        name: kept for name, kept in of.items() if not paper.figures[name].where.startswith("ours")
    }


def judged(
    paper: Paper, of: Mapping[str, Kept | None], key: bool | str | None
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield figure and claim of one verdict; "law": runs that agree with our closed form."""
    for name, kept in of.items():
        kinds = {claim.text: claim.kind for claim in paper.figures[name].claims}
        for claim in () if kept is None else kept.claims:
            is_law = kinds.get(claim["claim"]) == "formula" and claim["holds"]
            if ("law" if is_law else claim["holds"]) == key:
                yield name, claim


def section(paper: Paper, figure: Figure, kept: Kept | None) -> Iterator[str]:
    """Yield the parts of a figure's section."""
    yield f"## {heading_of(figure)}"
    where = figure.where[0].upper() + figure.where[1:]
    if figure.missing:
        yield f"{where}. Not reproduced: {figure.missing}."
        return
    yield f"{where}. {needs(figure)}".strip()
    if kept is None:
        yield "Not made at size small."
        yield from tables(figure, {})
        return
    yield f"```text\ncoterie reproduce {paper.name}/{figure.name}\n```"
    yield effort(kept.made)
    if kept.drawing:
        yield f"![{figure.title}]({paper.name}/{figure.name}/figure.svg)"
    yield from tables(figure, kept.lines)
    if kept.claims:
        notes = {claim.text: claim.note for claim in figure.claims}
        yield bullets(verdict(claim, notes.get(claim["claim"], "")) for claim in kept.claims)
    if figure.differs:
        yield "What differs from the paper:"
        yield bullets(figure.differs)


def effort(made: Mapping[str, Any]) -> str:
    """Return seeds, runs and minutes of a figure; runs that figures share count for each."""
    if not made["runs"]:
        return "Calculated in seconds, without runs."
    seeds = str(made["seeds"]).capitalize()
    minutes = f"{made['minutes']:.1f} minutes of one core of a busy machine"
    return f"{seeds}; {units.plural(made['runs'], 'run')}, {minutes}."


def needs(figure: Figure) -> str:
    """Return what size paper needs."""
    if not figure.exists("paper") or figure.form == "drawn":
        return ""
    time = [f"{figure.hours:g} hours"] if figure.hours else []
    listed = ", ".join((*figure.required, *time))
    return f"Size paper needs {listed}; it was not run." if listed else ""


def tables(figure: Figure, lines: Mapping[Key, Mapping[str, str]]) -> Iterator[str]:
    """Yield a table for each panel that has numbers of ours or of the paper."""
    points = [str(point.x) for point in figure.sweep(SIZE)] or [""]
    columns = (figure.y,) if figure.form == "sweep" else figure.columns
    for panel in figure.panels:
        rows = [
            (row, [lines.get((panel.label, row.label, x, column)) for x in points
                   for column in columns])
            for row in figure.rows
        ]  # fmt: skip
        printed = any(
            row.printed(panel.label, c) is not None for row in figure.rows for c in columns
        )
        if not printed and not any(any(cells) for _, cells in rows):
            continue
        if panel.label:
            preset = f" (our numbers: preset `{panel.small}`)" if panel.small else ""
            yield f"**{panel.label}**{preset}"
        if figure.form == "sweep":
            yield swept(figure, columns[0], points, rows)
        else:
            yield listed(columns, panel.label, rows, printed=printed)


def swept(
    figure: Figure, column: str, points: Sequence[str], rows: Sequence[tuple[Row, Sequence[Any]]]
) -> str:
    """Return a table with a column for each swept value."""
    head = [f"{heading(column)}; {figure.x}", *points]
    return markdown(head, [[row.label, *(ours(cell, column) for cell in cells)]
                           for row, cells in rows])  # fmt: skip


def listed(
    columns: Sequence[str],
    panel: str,
    rows: Sequence[tuple[Row, Sequence[Any]]],
    *,
    printed: bool,
) -> str:
    """Return a table with our number and, where it prints any, the paper's for each column."""
    head = [""]
    for column in columns:
        of_paper = printed and any(row.printed(panel, column) is not None for row, _ in rows)
        head += [heading(column), "paper"] if of_paper else [heading(column)]
    body = []
    for row, cells in rows:
        line = [row.label]
        for column, cell in zip(columns, cells, strict=True):
            line.append(ours(cell, column))
            if printed and any(each.printed(panel, column) is not None for each, _ in rows):
                value = row.printed(panel, column)
                line.append(EMPTY if value is None else shown(value, column))
        body.append(line)
    return markdown(head, body)


def ours(line: Mapping[str, str] | None, column: str) -> str:
    """Return "mean ± deviation" of a line of results.csv."""
    if line is None or not line["mean"]:
        return EMPTY
    if never := int(line.get("never") or 0):
        return reached([float("inf")] * never + [0.0] * (int(line["seeds"]) - never))
    mean = shown(float(line["mean"]), column)
    return f"{mean} ± {shown(float(line['std']), column)}" if line["std"] else mean


def verdict(claim: Mapping[str, Any], note: str) -> str:
    """Return a claim, whether it holds, the numbers, and the note of the paper's file."""
    seeds = f" About {claim['seeds']} seeds would judge it." if claim.get("seeds") else ""
    evidence, holds = f"{claim['evidence']}.", HOLDS[claim["holds"]].capitalize()
    head = f"**{holds}**: {claim['claim']}."
    if len(evidence) <= LONG:
        return f"{head} {evidence}{seeds} {note}".rstrip()
    folded = evidence.replace("<", "&lt;").replace("; ", "<br>")
    numbers = f"<details><summary>numbers</summary>{folded}</details>"
    return " ".join(filter(None, (f"{head}{seeds}", note, numbers)))


def index() -> str:
    """Return the front page: every paper with its counts, and every claim by verdict."""
    papers = [figures.read(name) for name in figures.names()]
    of = {paper.name: published(paper, results(paper)) for paper in papers}
    parts = [
        NOTE,
        "# The papers, figure by figure",
        "`coterie reproduce PAPER/FIGURE` makes a table or figure of one of these papers and "
        "judges the paper's claims about it. At size small it runs offline on stand-in data: "
        "digits, Fashion-MNIST, synthetic problems; `coterie reproduce all` makes all figures "
        "(1,503 runs) in 95 minutes of one core. A claim is judged by a paired test over seeds, "
        "or by a closed form; it cannot be judged if a difference is not significant. A claim that "
        "does not hold on stand-in data may hold on the paper's. The same command gives the same "
        "digits on the same kind of processor; on another one, 3 of 182 numbers of nine figures "
        "differed, by at most 0.1 points, and losses below 1e-10 in their rounding.",
    ]
    table = []
    for paper in papers:
        made = sum(kept is not None for kept in of[paper.name].values())
        name = f"[{title(paper)}]({paper.name}.md)" if made else title(paper)
        counts = [str(len(list(judged(paper, of[paper.name], key)))) for key in KEYS]
        table.append([name, f"{made} of {len(of[paper.name])}", *counts])
    parts.append(markdown(["paper", "figures made", *HOLDS.values(), "closed forms"], table))
    for key in KEYS:
        sentences = [
            f"{claim['claim']}{seeds_of(claim)} ([{paper.name}, {figure.replace('-', ' ')}]"
            f"({paper.name}.md#{anchor(heading_of(paper.figures[figure]))}))"
            for paper in papers
            for figure, claim in judged(paper, of[paper.name], key)
        ]
        if sentences:
            parts += [f"## {THAT[key]}", *([SEEDS] if key is None else []), bullets(sentences)]
    return "\n\n".join(parts) + "\n"


def seeds_of(claim: Mapping[str, Any]) -> str:
    """Return the number of seeds that would judge a claim, if it is known."""
    return f"; about {claim['seeds']} seeds" if claim.get("seeds") else ""


def anchor(text: str) -> str:
    """Return the anchor that MkDocs gives a heading."""
    kept = "".join(sign for sign in text.lower() if sign.isalnum() or sign in " -_")
    return "-".join(kept.split())


def bullets(sentences: Iterator[str] | Sequence[str]) -> str:
    """Return a list in Markdown."""
    return "\n".join(f"- {sentence}" for sentence in sentences)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(arguments: Sequence[str]) -> None:
    """Copy results, if asked, and write the pages."""
    if arguments:
        copy(Path(arguments[0]))
    for name in figures.names():
        paper = figures.read(name)
        if any(results(paper).values()):
            (PLACE / f"{name}.md").write_text(page(paper), encoding="utf-8")
            drawing = claims_figure(paper, results(paper))
            (PLACE / name / "claims.svg").write_text(drawing, encoding="utf-8")
    (PLACE / "index.md").write_text(index(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
