"""Pages of the papers: docs/papers, made from the results of `coterie reproduce`.

`python -m studies.papers [RUNS]` copies the results of all figures in RUNS (runs/reproduce; of size
paper the numbers only) into docs/papers/<paper>/<figure>, and writes docs/papers/<paper>.md and
docs/papers/index.md from the results there: claims are judged from seeds.csv, without runs. Without
RUNS it only rewrites the pages.
"""

from __future__ import annotations

import csv
import html
import json
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from coterie.app.experiments.measures import reached
from coterie.app.lab.reproduction import claims, figures
from coterie.app.lab.reproduction.claims import UNDEFINED, WORDS, Verdict
from coterie.app.lab.reproduction.figures import (
    Claim,
    Figure,
    Panel,
    Paper,
    Row,
    Size,
    data_of,
    ours_of,
)
from coterie.app.lab.reproduction.page import heading, heading_of, shown
from coterie.app.lab.reproduction.results import Numbers, Place, better_of
from coterie.app.runs import units

PLACE = Path(__file__).resolve().parents[1] / "docs" / "papers"
METHODS = PLACE.parent / "methods"
SIZE: Size = "small"
FILES = ("results.csv", "seeds.csv", "made.json", "figure.svg")
AT_PAPER = "paper.csv"
"""Results of a figure at size paper."""
FRONT = "---\nhide: [toc]\n---"
NOTE = "<!-- Written by python -m studies.papers; do not edit. -->"
EMPTY = ""
NUMBERS = re.compile(r"(Table|Corollary) \d")
"""A quote that begins like this is of numbers of a table, not a sentence."""
HEADS = ("figure", "sentence", "paper", "ours", "p", "verdict", "why")
COLOURS = ("#3f7fb5", "#c44e52", "#3c8a4e", "#b96a12", "#8064a2", "#5f6b7a", "#8a7a1f", "#1f8f84",
           "#a0527f", "#7a5f3f")  # fmt: skip
SHORT = 70
"""Maximum length of a reason in a table; longer ones are folded."""
LONG = 160
"""Maximum length of numbers that are shown beside a claim; longer ones are folded."""
HOW = (
    "Each claim is one number per seed, and its verdict a test over seeds: a paired t-test for an "
    "order, with the paper's margin where it states one; two one-sided tests (TOST) for equality "
    "within a tolerance and for slopes, ratios and ranges with two limits; a t-test for those with "
    "one. Fewer than three seeds judge nothing. A sentence is counted once, whatever the number of "
    "its claims and figures: it holds if all of its comparisons hold, and does not if one of them "
    "fails. The p-values of those that speak against it are therefore corrected for the number of "
    "its comparisons (Holm); a claim, below a figure, is corrected for its own comparisons only. "
    "“Ours” is the weakest comparison, with its 95 % interval. Accuracies and their differences "
    "are in points. A sentence that does not hold here, on smaller problems and mostly on other "
    "data, may well hold on the paper's.\n\n"
    "The number of seeds is fixed in the paper's file before a figure is made, by what its runs "
    "cost and not by what they show: ten where all runs of a seed take about six seconds or less, "
    "otherwise three to six (20 for one figure that takes up a question from another one). A "
    "figure is not repeated with more seeds because a claim is open."
)


@dataclass(frozen=True)
class Kept:
    """Results of a figure in docs/papers."""

    lines: Mapping[Place, Mapping[str, str]]  # lines of results.csv
    numbers: Numbers
    made: Mapping[str, Any]  # content of made.json
    drawing: bool  # True if there is a figure.svg

    @classmethod
    def read(cls, directory: Path) -> Kept | None:
        """Read the results of a figure; None where it was not made."""
        if not (directory / "made.json").exists():
            return None
        lines = lines_of(directory / "results.csv")
        made = json.loads((directory / "made.json").read_text(encoding="utf-8"))
        numbers = Numbers.read((directory / "seeds.csv").read_text(encoding="utf-8"))
        return cls(lines, numbers, made, (directory / "figure.svg").exists())

    def verdicts(self, figure: Figure) -> list[Verdict]:
        """Return the verdicts on a figure's claims."""
        return claims.judge(figure, SIZE, self.numbers)


class Judged(NamedTuple):
    """The verdict on a sentence of a paper, or on a claim of ours, and the figures it is about."""

    figures: tuple[Figure, ...]
    verdict: Verdict

    @property
    def is_sentence(self) -> bool:
        """True for a sentence of the paper, False for numbers of its tables and for our claims."""
        return bool(self.verdict.quote) and not NUMBERS.match(self.verdict.quote)


def lines_of(path: Path) -> dict[Place, Mapping[str, str]]:
    """Return the lines of a results.csv."""
    with path.open(encoding="utf-8", newline="") as file:
        return {Place(*(line[key] for key in Place._fields)): line for line in csv.DictReader(file)}


def copy(runs: Path) -> None:
    """Copy the results of every figure that was made in `runs`."""
    for paper in figures.names():
        for name in figures.read(paper).figures:
            made, kept = runs / SIZE / paper / name, PLACE / paper / name
            whole = runs / "paper" / paper / name / "results.csv"
            if (made / "made.json").exists():
                kept.mkdir(parents=True, exist_ok=True)
                for file in FILES:
                    (kept / file).unlink(missing_ok=True)
                    if (made / file).exists():
                        shutil.copyfile(made / file, kept / file)
            if whole.exists() and kept.exists():  # it stands below the numbers of size small
                shutil.copyfile(whole, kept / AT_PAPER)


def results(paper: Paper) -> dict[str, Kept | None]:
    """Return the results of each figure of a paper, None where there are none."""
    return {name: Kept.read(PLACE / paper.name / name) for name in paper.figures}


def page(paper: Paper) -> str:
    """Return the page of a paper in Markdown."""
    of = results(paper)
    parts = [FRONT, NOTE, f"# {title(paper)}", f"*{authors(paper)}.*", idea(paper.method)]
    parts += [summary(paper, of), *sentences(paper, of, ""), *ranks(paper, of)]
    seen: set[tuple[str, ...]] = set()
    for name, figure in paper.figures.items():
        parts += section(paper, figure, of[name], seen)
    if paper.contradictions:
        parts += ["## Contradictions and errata", bullets(paper.contradictions)]
    return "\n\n".join(parts) + "\n"


def sentences(paper: Paper, of: Mapping[str, Kept | None], page: str) -> Iterator[str]:
    """Yield the tables of the paper's sentences, of its numbers, and of our own questions."""
    all_ = judged(paper, of)
    for before, part in (
        ("", [each for each in all_ if each.is_sentence]),
        ("Numbers of its tables and theorems:",
         [each for each in all_ if each.verdict.quote and not each.is_sentence]),
        ("Questions of ours, and our closed forms:",
         [each for each in all_ if not each.verdict.quote]),
    ):  # fmt: skip
        if part:
            table = markdown(HEADS, [line_of(paper, each, page) for each in part])
            if before:
                yield before
            yield f'<div class="sentences" markdown>\n\n{table}\n\n</div>'


def line_of(paper: Paper, each: Judged, page: str) -> list[str]:
    """Return the line of a sentence in a table."""
    verdict, names = each.verdict, [heading_of(figure) for figure in each.figures]
    where = ", ".join(f"[{name.partition(':')[0]}]({page}#{anchor(name)})" for name in names)
    sentence = f"“{verdict.quote}”" if each.is_sentence else verdict.quote or verdict.claim
    why = linked(paper, cell(verdict.why), page)
    if len(verdict.why) > SHORT:
        why = f"<details><summary>why</summary>{why}</details>"
    return [where, cell(sentence), cell(verdict.paper), cell(verdict.ours), cell(verdict.p),
            verdict.verdict, why]  # fmt: skip


def cell(text: str) -> str:
    """Return text for a cell of a table in Markdown."""
    return html.escape(text, quote=False).replace("|", "&#124;")


def linked(paper: Paper, text: str, page: str) -> str:
    """Return text with links to the figures of the paper that it names."""
    names = sorted((name for name in paper.figures if name in text), key=len, reverse=True)
    if not names:
        return text

    def link(match: re.Match[str]) -> str:
        to = heading_of(paper.figures[match[0]])
        return f"[{to.partition(':')[0]}]({page}#{anchor(to)})"

    return re.sub(rf"(?<![\w-])({'|'.join(names)})(?![\w-])", link, text)


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
    """Return the number of figures and of sentences by verdict."""
    made = sum(kept is not None for kept in published(paper, of).values())
    words = Counter(each.verdict.verdict for each in judged(paper, of) if each.is_sentence)
    listed = ", ".join(f"{words[word]} {_short(word)}" for word in (*WORDS.values(), UNDEFINED)
                       if words[word])  # fmt: skip
    quoted = units.plural(sum(words.values()), "sentence")
    return (
        f"We repeated {made} of {len(published(paper, of))} tables and figures on smaller problems "
        f"that run offline (size small). Of {quoted} of the paper: {listed or 'none judged'}. "
        "[How claims are judged](index.md#how-claims-are-judged)"
    )


def _short(word: str) -> str:
    return {"holds here": "hold here", "does not hold here": "do not hold here"}.get(word, word)


def published(paper: Paper, of: Mapping[str, Kept | None]) -> dict[str, Kept | None]:
    """Return the results of a paper's own figures, without our attempts to explain them."""
    return {
        name: kept for name, kept in of.items() if not paper.figures[name].where.startswith("ours")
    }


def judged(paper: Paper, of: Mapping[str, Kept | None]) -> list[Judged]:
    """Return the verdict on each sentence of the paper and on each claim of ours."""
    groups: dict[tuple[str, ...], list[tuple[Figure, Claim, Numbers]]] = {}
    for name, kept in of.items():
        for claim in paper.figures[name].claims if kept else ():
            assert kept is not None
            key = (claim.quote,) if claim.quote else ("", name, claim.text)
            groups.setdefault(key, []).append((paper.figures[name], claim, kept.numbers))
    return [together(group) for group in groups.values()]


def together(group: Sequence[tuple[Figure, Claim, Numbers]]) -> Judged:
    """Judge a sentence by the comparisons of all of its claims."""
    of = tuple({figure.name: figure for figure, _, _ in group}.values())
    comparisons = []
    for figure, claim, numbers in group:
        where = f"{heading_of(figure).partition(':')[0]}, " if len(of) > 1 else ""
        made = claims.comparisons(claim, figure, SIZE, numbers)
        comparisons += [each._replace(name=f"{where}{each.name}") for each in made]
    first = group[0][1]
    notes = dict.fromkeys(claim.note.rstrip(".") for _, claim, _ in group if claim.note)
    note = ". ".join(notes) + "." if notes else ""
    return Judged(of, claims.judged(replace(first, note=note), comparisons))


class Lead(NamedTuple):
    """Lead of a method over Local, positive if the method is better."""

    method: str
    paper: float
    ours: float


def leads(
    figure: Figure, panel: Panel, lines: Mapping[Place, Mapping[str, str]]
) -> tuple[str, list[Lead]]:
    """Return the first column with a better end that the paper prints, and the leads in it."""
    for column in figure.columns:
        if figure.form != "table" or not better_of(column):
            continue
        both = {}
        for row in figure.rows:
            line = lines.get(Place(panel.label, row.label, "", column))
            printed = row.printed(panel.label, column)
            if line is not None and line["mean"] and printed is not None:
                both[row.label] = (printed, float(line["mean"]))
        local = next((row.label for row in figure.rows if row.keys.get("method") == "local"), "")
        if local in both and len(both) > 3:
            sign = -1 if better_of(column) == "low" else 1
            base = both.pop(local)
            return column, [
                Lead(row, sign * (a - base[0]), sign * (b - base[1]))
                for row, (a, b) in both.items()
            ]
    return "", []


def rank_correlation(of: Sequence[Lead]) -> float:
    """Return Spearman's rank correlation of the paper's leads with ours, Local's 0 among them."""
    from scipy.stats import spearmanr

    both = np.array([(0.0, 0.0), *((lead.paper, lead.ours) for lead in of)])
    return float(spearmanr(both[:, 0], both[:, 1]).statistic)


def charts(paper: Paper, of: Mapping[str, Kept | None]) -> Iterator[tuple[str, str, str]]:
    """Yield the file, the caption and the drawing of each slope chart."""
    for name, kept in of.items():
        figure = paper.figures[name]
        for k, panel in enumerate(figure.panels if kept else ()):
            assert kept is not None
            column, of_methods = leads(figure, panel, kept.lines)
            if of_methods:
                heads = (paper_of(panel), f"{data_of(panel, SIZE)} (ours)")
                kind = heading_of(figure).partition(":")[0]
                where = f"{kind}, {panel.label}" if panel.label else kind
                caption = (
                    f"{where}, {heading(column).removesuffix(' %')}. "
                    f"Spearman's rank correlation {rank_correlation(of_methods):.2f}"
                )
                drawing = slopes(heads, of_methods, column)
                yield f"{paper.name}/{name}/leads-{k}.svg", caption, drawing


def ranks(paper: Paper, of: Mapping[str, Kept | None]) -> Iterator[str]:
    """Yield the slope charts."""
    drawn = list(charts(paper, of))
    if drawn:
        yield "## Leads over Local"
        yield (
            "A line is a method, from its lead over Local in the paper to its lead here, in the "
            "same order as its rank. Zero is Local; each side has a scale of its own."
        )
        figures_ = "\n".join(
            f"<figure markdown>\n![Leads over Local: {caption}]({file})\n"
            f"<figcaption>{caption}</figcaption>\n</figure>"
            for file, caption, _ in drawn
        )
        yield f'<div class="slopes" markdown>\n{figures_}\n</div>'


def within(heights: Sequence[float], height: float) -> list[float]:
    """Return the places of labels at sorted heights: 15 apart, between head and foot."""
    from scipy.optimize import isotonic_regression

    offsets = 15 * np.arange(len(heights))  # moved apart by the least squares
    places: list[float] = (isotonic_regression(heights - offsets).x + offsets).tolist()
    lowest = 32.0
    for k, place in enumerate(places):
        places[k] = lowest = max(place, lowest)
        lowest += 15
    highest = height - 8
    for k in reversed(range(len(places))):
        places[k] = highest = min(places[k], highest)
        highest -= 15
    return places


def slopes(heads: tuple[str, str], of: Sequence[Lead], column: str) -> str:
    """Draw a slope chart as SVG: leads of the paper on the left, ours on the right."""
    unit = 100 if shown(1.0, column) == "100.00" else 1
    sides = [[unit * lead.paper for lead in of], [unit * lead.ours for lead in of]]
    scaled = [[value / max(map(abs, side)) for value in side] for side in sides]
    top = max(0.0, *scaled[0], *scaled[1])
    low = min(0.0, *scaled[0], *scaled[1])
    height = max(190, 17 * len(of) + 50)
    left, right = 168, 292

    def y(value: float) -> float:
        return 38 + (height - 58) * (top - value) / (top - low)

    def text(x: float, y: float, side: str, words: str, colour: str) -> str:
        at = f'x="{x}" y="{y:.1f}" text-anchor="{side}" fill="{colour}"'
        return f"<text {at}>{html.escape(words)}</text>"

    def line(start: float, end: float, colour: str, more: str) -> str:
        at = f'x1="{left}" x2="{right}" y1="{y(start):.1f}" y2="{y(end):.1f}"'
        return f'<line {at} stroke="{colour}" stroke-width="1.6" {more}/>'

    lines = [
        text(left, 13, "end", heads[0], "#333"),
        text(right, 13, "start", heads[1], "#333"),
        line(0, 0, "#999", "stroke-dasharray='3 3'"),
    ]
    lines += [
        line(scaled[0][k], scaled[1][k], COLOURS[k % len(COLOURS)], "") for k in range(len(of))
    ]
    for x, out, values, heights in (
        (left, -14, sides[0], scaled[0]),
        (right, 14, sides[1], scaled[1]),
    ):
        anchor_ = "end" if out < 0 else "start"
        order = sorted(range(len(of)), key=lambda k: y(heights[k]))
        for k, place in zip(order, within([y(heights[k]) for k in order], height), strict=True):
            colour = COLOURS[k % len(COLOURS)]
            both = of[k].method, f"{values[k]:+.3g}"
            label = " ".join(both if out < 0 else both[::-1])
            lines.append(text(x + out * 1.2, place + 4, anchor_, label, colour))
            lines.append(
                f'<path d="M{x} {y(heights[k]):.1f}L{x + out} {place:.1f}" '
                f'stroke="{colour}" stroke-width="0.7"/>'
            )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 460 {height}" width="460" '
        f'height="{height}" font-family="sans-serif" font-size="12" fill="#333">\n'
        '<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(lines) + "\n</svg>\n"
    )


def section(
    paper: Paper, figure: Figure, kept: Kept | None, seen: set[tuple[str, ...]]
) -> Iterator[str]:
    """Yield the parts of a figure's section; `seen` are the numbers of sections before it."""
    yield f"## {heading_of(figure)}"
    where = figure.where[0].upper() + figure.where[1:]
    if figure.missing:
        yield f"{where}. Not reproduced: {figure.missing}."
        return
    whole = PLACE / paper.name / figure.name / AT_PAPER
    yield f"{where}. {needs(figure, is_run=whole.exists())}".strip()
    if kept is None:
        yield "Not made at size small."
        yield from tables(figure, {}, seen)
        return
    yield f"```text\ncoterie reproduce {paper.name}/{figure.name}\n```"
    runs = units.plural(kept.made["runs"], "run")
    yield f"{str(kept.made['seeds']).capitalize()}; {runs}." if kept.made["runs"] else "Calculated."
    if kept.drawing:
        yield f"![{figure.title}]({paper.name}/{figure.name}/figure.svg)"
    yield from tables(figure, kept.lines, seen)
    if whole.exists():
        seeds = ", ".join(map(str, figure.seeds_at("paper")))
        yield f"`coterie reproduce {paper.name}/{figure.name} --size paper`, seed {seeds}:"
        yield from tables(figure, lines_of(whole), set())
    if figure.claims:
        yield bullets(comparisons(paper, each) for each in kept.verdicts(figure))
    if figure.differs:
        yield "What differs from the paper:"
        yield bullets(figure.differs)


def comparisons(paper: Paper, verdict: Verdict) -> str:
    """Return a claim in our words, its verdict, and all of its comparisons."""
    claim = verdict.claim[0].upper() + verdict.claim[1:]
    head = f"{claim}: {verdict.verdict}."
    evidence = [part.replace("<", "&lt;") for part in verdict.evidence.split("; ") if part]
    if len(verdict.evidence) <= LONG:
        return f"{head} {'; '.join(evidence)}{'.' if evidence else ''}".rstrip()
    folded = "<br>".join(evidence)
    return f"{head} <details><summary>comparisons</summary>{folded}</details>"


def needs(figure: Figure, *, is_run: bool) -> str:
    """Return what size paper needs, and whether it was run."""
    if not figure.exists("paper") or figure.form == "drawn":
        return ""
    time = [f"{figure.hours:g} hours"] if figure.hours else []
    listed = ", ".join((*figure.required, *time))
    same = [
        panel.label for panel in figure.panels
        if panel.label and panel.preset("paper")
        and panel.preset("paper") == panel.preset(SIZE)
        and panel.overrides("paper") == panel.overrides(SIZE)
        and all(row.overrides("paper") == row.overrides(SIZE) for row in figure.rows)
    ]  # fmt: skip
    but = f", except {', '.join(same)}: this panel has the paper's size below" if same else ""
    was = "its numbers stand below" if is_run else f"it was not run{but}"
    return f"Size paper needs {listed}; {was}." if listed else ""


def tables(
    figure: Figure, lines: Mapping[Place, Mapping[str, str]], seen: set[tuple[str, ...]]
) -> Iterator[str]:
    """Yield a table for each panel that has numbers of ours or of the paper.

    Columns whose numbers stand in a table before are left out.
    """
    points = [str(point.x) for point in figure.sweep(SIZE)] or [""]
    for panel in figure.panels:
        columns = [figure.y] if figure.form == "sweep" else [
            column for column in figure.columns
            if not _is_repeated(figure, panel, column, lines, seen)
        ]  # fmt: skip
        rows = [
            (row, [lines.get(Place(panel.label, row.label, x, column)) for x in points
                   for column in columns])
            for row in figure.rows
        ]  # fmt: skip
        printed = any(
            row.printed(panel.label, c) is not None for row in figure.rows for c in columns
        )
        if not printed and not any(any(cells) for _, cells in rows):
            continue
        if panel.preset(SIZE):
            preset = "" if panel.small == figures.DEFAULTS else f" (preset `{panel.small}`)"
            yield f"**{ours_of(panel, SIZE)}**{preset}"
        elif panel.label:
            yield f"**{panel.label}**"
        if figure.form == "sweep":
            yield swept(figure, columns[0], points, rows)
        else:
            yield listed(figure, columns, panel, rows, lines)


def _is_repeated(
    figure: Figure,
    panel: Panel,
    column: str,
    lines: Mapping[Place, Mapping[str, str]],
    seen: set[tuple[str, ...]],
) -> bool:
    """Return whether all numbers of a column stand in a table before; remember them."""
    if any(row.printed(panel.label, column) is not None for row in figure.rows):
        seen |= {(*place, line["mean"]) for place, line in lines.items()}
        return False
    at = [Place(panel.label, row.label, "", column) for row in figure.rows]
    numbers = {(*place, lines[place]["mean"]) for place in at if place in lines}
    is_repeated = bool(numbers) and numbers <= seen
    seen |= numbers
    return is_repeated


def swept(
    figure: Figure, column: str, points: Sequence[str], rows: Sequence[tuple[Row, Sequence[Any]]]
) -> str:
    """Return a table with a column for each swept value."""
    head = [f"{heading(column)}; {figure.x}", *points]
    return markdown(head, [[row.label, *(ours(cell, column) for cell in cells)]
                           for row, cells in rows])  # fmt: skip


def listed(
    figure: Figure,
    columns: Sequence[str],
    panel: Panel,
    rows: Sequence[tuple[Row, Sequence[Any]]],
    lines: Mapping[Place, Mapping[str, str]],
) -> str:
    """Return a table with our number and, where it prints any, the paper's for each column.

    The last two columns are the leads over Local, ours and the paper's.
    """
    printed = {
        column: any(row.printed(panel.label, column) is not None for row, _ in rows)
        for column in columns
    }
    data = ours_of(panel, SIZE) if panel.preset(SIZE) else ""
    head = [""]
    for column in columns:
        name = f"{heading(column)}, {data}" if data and printed[column] else heading(column)
        head += [name, paper_of(panel)] if printed[column] else [name]
    column, of_methods = leads(figure, panel, lines)
    beside = {lead.method: lead for lead in of_methods if column in columns}
    head += ["lead over Local (ours)", "lead (paper)"] if beside else []
    body = []
    for row, cells in rows:
        line = [row.label]
        for each, cell_ in zip(columns, cells, strict=True):
            line.append(ours(cell_, each))
            if printed[each]:
                value = row.printed(panel.label, each)
                line.append(EMPTY if value is None else shown(value, each))
        if beside:
            lead = beside.get(row.label)
            line += [signed(lead.ours, column), signed(lead.paper, column)] if lead else ["", ""]
        body.append(line)
    return markdown(head, body)


def paper_of(panel: Panel) -> str:
    """Return the name of the paper's data; "paper" if its preset is not known."""
    data = data_of(panel, "paper")
    return f"{data} (paper)" if data else "paper"


def signed(value: float, column: str) -> str:
    """Write a difference."""
    return f"{'+' if value >= 0 else ''}{shown(value, column)}"


def ours(line: Mapping[str, str] | None, column: str) -> str:
    """Return "mean ± deviation" of a line of results.csv."""
    if line is None or not line["mean"]:
        return EMPTY
    if never := int(line.get("never") or 0):
        return reached([float("inf")] * never + [0.0] * (int(line["seeds"]) - never))
    mean = shown(float(line["mean"]), column)
    return f"{mean} ± {shown(float(line['std']), column)}" if line["std"] else mean


def index() -> str:
    """Return the front page: counts of all papers, and a table of sentences for each."""
    papers = [figures.read(name) for name in figures.names()]
    of = {paper.name: results(paper) for paper in papers}
    parts = [
        FRONT,
        NOTE,
        "# The papers, figure by figure",
        "`coterie reproduce PAPER/FIGURE` makes a table or figure of one of these papers and "
        "judges the paper's sentences about it. At size small it runs offline on stand-in data: "
        "digits, Fashion-MNIST, synthetic problems; `coterie reproduce all` makes all figures, in "
        "92 minutes on two cores.",
    ]
    table, totals = [], Counter[str]()
    for paper in papers:
        own = published(paper, of[paper.name])
        made = sum(kept is not None for kept in own.values())
        name = f"[{title(paper)}]({paper.name}.md)" if made else title(paper)
        every = judged(paper, of[paper.name])
        words = Counter(each.verdict.verdict for each in every if each.is_sentence)
        counts = [words[word] for word in (*WORDS.values(), UNDEFINED)]
        totals.update(words)
        beside = (
            Counter(each.verdict.holds for each in every if not each.is_sentence and quoted is
                    bool(each.verdict.quote)) for quoted in (True, False)
        )  # fmt: skip
        held = [f"{part[True]} of {part.total()}" if part else "" for part in beside]
        table.append([name, f"{made} of {len(own)}", *map(str, counts), *held])
    totalled = [str(totals[word]) for word in (*WORDS.values(), UNDEFINED)]
    table.append(["all", "", *totalled, "", ""])
    parts.append("Sentences of the papers by verdict, and the numbers of tables and claims of "
                 "ours that hold:")  # fmt: skip
    parts.append(markdown(
        ["paper", "figures made", *WORDS.values(), UNDEFINED, "numbers that hold",
         "ours that hold"], table
    ))  # fmt: skip
    parts += [
        "## How claims are judged",
        HOW,
        "The same command gives the same digits on the same kind of processor; on another one, 3 "
        "of 182 numbers of nine figures differed, by at most 0.1 points, and losses by at most "
        "3e-6 of their value. Losses below 1e-10 are rounding errors.",
    ]
    for paper in papers:
        tables_ = list(sentences(paper, of[paper.name], f"{paper.name}.md"))
        if tables_:
            parts += [f"## {paper.short}", *tables_]
    return "\n\n".join(parts) + "\n"


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
            for file, _, drawing in charts(paper, results(paper)):
                (PLACE / file).write_text(drawing, encoding="utf-8")
    (PLACE / "index.md").write_text(index(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
