"""Tables, figures and claims of `papers/<paper>.toml`, "small" (minutes) or of the paper's size."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, TypeAdapter, ValidationError

from coterie.app.config.items import read_items
from coterie.app.config.keys import ConfigError, flatten, nearest
from coterie.app.config.root import ROOT
from coterie.app.config.schema import Scalar
from coterie.app.experiments.grid import Point
from coterie.app.runs.files import first_of

FOLDER = ROOT / "papers"
DEFAULTS = "default"
"""Instead of a preset: the default configuration."""
_DATA = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "cinic10": "CINIC-10",
    "fashion-mnist": "Fashion-MNIST",
    "mnist-5000": "5,000 images of MNIST",
    "femnist": "FEMNIST",
    "heart-disease": "Heart Disease",
    "ixi": "IXI",
    "languages": "four manuals",
    "least-squares": "least squares",
    "miniimagenet": "MiniImageNet",
    "mnist": "MNIST",
    "noisy-quadratic": "quadratics",
    "office-home": "Office-Home",
    "phantoms": "phantoms",
    "wiki40b": "Wiki-40B",
}
"""Data set -> its name for people, if it differs."""
Form = Literal["table", "curves", "sweep", "maps", "weights", "scatter", "drawn"]
Size = Literal["small", "paper"]
Kind = Literal[
    "order", "beats", "only", "near", "ratio", "slope", "formula", "bound", "range", "undefined"
]
Keys = Annotated[Mapping[str, Scalar], BeforeValidator(flatten)]


@dataclass(frozen=True)
class _Read:
    """Part of a paper's file: unknown keys are refused, keys have "-" for "_"."""

    __pydantic_config__ = ConfigDict(
        extra="forbid", alias_generator=lambda name: name.replace("_", "-")
    )


@dataclass(frozen=True)
class _Part(_Read):
    """Part of a figure: its label in the paper, and overrides of the configuration."""

    label: str
    keys: Keys = field(default_factory=dict)  # at both sizes
    small_keys: Keys = field(default_factory=dict)  # at size "small" only
    paper_keys: Keys = field(default_factory=dict)  # at size "paper" only

    def overrides(self, size: Size) -> dict[str, Scalar]:
        return {**self.keys, **(self.small_keys if size == "small" else self.paper_keys)}


@dataclass(frozen=True)
class Panel(_Part):
    """One group of columns or one plot of a figure: a preset with overrides."""

    label: str = ""  # "" for the only panel of a figure
    small: str = ""  # preset of size "small"; "": no such panel at this size
    paper: str = ""  # preset of size "paper"; likewise
    base: str = ""  # preset that is run first at size "small"
    base_key: str = ""  # key of each run of the panel that names the model of `base`'s peer 0
    needs: tuple[str, ...] = ()  # what size "paper" of this panel needs besides the figure's

    def preset(self, size: Size) -> str:
        """Return the preset's name at a size; "" if there is none."""
        return self.small if size == "small" else self.paper


@dataclass(frozen=True)
class Row(_Part):
    """One row of a table, or one line or map of a figure."""

    published: Mapping[str, Any] = field(default_factory=dict)
    """Numbers of the paper by column, or by panel and column; facts, as printed there."""
    formula: str = ""  # name of a closed form of `formulas.py` that predicts the row

    def printed(self, panel: str, column: str) -> float | None:
        """Return the paper's number for a column of a panel; None if it prints none."""
        value = self.published.get(panel, {}) if panel else self.published
        number = value.get(column) if isinstance(value, Mapping) else None
        return None if number is None else float(number)


@dataclass(frozen=True)
class Claim(_Read):
    """A sentence of the paper, or a question of ours, that numbers can support or contradict."""

    text: str  # in our words
    kind: Kind  # kind of check, see `coterie.app.lab.reproduction.claims`
    quote: str = ""
    """The paper's words, or the numbers of its table ("Table 2: ..."); empty: the claim is ours."""
    paper: str = ""  # the paper's value, where its tables do not print it
    rows: tuple[str, ...] = ()
    """Labels. "order": from best to worst; "beats": the winner, then the others; "near": the row
    that the others are near to comes last; "only": the row that no other beats in every panel."""
    column: str = "accuracy"  # key of the measure
    panels: tuple[str, ...] = ()  # labels of the panels that the claim is about; empty: every panel
    low: float = float("-inf")  # lower bound of "ratio", "slope" and "range"
    high: float = float("inf")
    """Upper bound of the same; the upper bound of "bound" is the closed form."""
    within: float = 0.0  # tolerance of "near" (absolute) and "formula" (relative)
    margin: float = 0.0  # "order" and "beats": minimum difference
    note: str = ""  # reason of the verdict, if known


@dataclass(frozen=True)
class Figure(_Read):
    """A table or figure."""

    name: str  # such as "table-1"
    title: str  # description
    where: str  # table or figure and page of the paper
    form: Form = "table"  # kind of drawing
    columns: tuple[str, ...] = ("accuracy",)  # keys of measures, see `results`
    x: str = ""  # "sweep": a key, or the name of the axis
    y: str = "test_accuracy"
    """With "curves" a field of metrics.jsonl or a measure of the graph, see
    `results.course`; "sweep": a measure. A "scatter" has the first two of
    `columns` on its axes."""
    values: tuple[Any, ...] = ()
    """With "sweep" values of the key `x`, or tables of keys with the value drawn as `x`."""
    small_values: tuple[Any, ...] = ()  # values at size "small", if they differ
    log: str = ""  # logarithmic axes: "x", "y" or "xy"
    rounds: tuple[int, ...] = ()  # "maps": rounds to show; empty: the last one
    small_rounds: tuple[int, ...] = ()  # "maps": rounds to show at size "small"
    initial: int = 0
    """With "maps" the round whose links get a second colour if the shown round does not use them,
    all others the first; 0: show weights."""
    clients: tuple[int, ...] = ()  # "weights": peers to show; empty: every peer
    drawn: str = ""  # with "drawn" the name of a function of `formulas.py`; nothing runs
    seeds: int = 3  # number of seeds
    paper_seeds: tuple[int, ...] = ()  # seeds of size "paper"; empty: as many as `seeds`, from 0
    splits: int = 1
    """Size "paper": number of divisions of the data, each with every seed; 1: one per seed."""
    minutes: float = 0.0  # duration of size "small" on two cores
    hours: float = 0.0  # duration of size "paper", stated in the paper or measured; 0: unknown
    needs: tuple[str, ...] = ()
    """Requirements of size "paper" of every panel, for people ("CIFAR-100", "a GPU")."""
    differs: tuple[str, ...] = ()  # differences from the paper, one sentence each
    missing: str = ""  # reason why the figure is not reproduced; then nothing runs
    panels: tuple[Panel, ...] = (Panel(),)
    rows: tuple[Row, ...] = ()
    claims: tuple[Claim, ...] = ()

    @property
    def required(self) -> tuple[str, ...]:
        """Requirements of size "paper": those of the figure and of its panels, GPUs last."""
        of_panels = (need for panel in self.panels for need in panel.needs)
        needs = dict.fromkeys((*self.needs, *of_panels))
        return tuple(sorted(needs, key=lambda need: need.startswith("a GPU")))

    @property
    def shown(self) -> tuple[str, ...]:
        """Measures that the figure shows."""
        return (self.y,) if self.form == "sweep" else self.columns

    def only(self, labels: Collection[str]) -> Figure:
        """Return the figure with these panels only; without labels, the figure itself."""
        if not labels:
            return self
        _known(labels, {panel.label for panel in self.panels}, f"figures.{self.name}: no panel")
        return replace(self, panels=tuple(p for p in self.panels if p.label in labels))

    def seeds_at(self, size: Size) -> Sequence[int]:
        return (size == "paper" and self.paper_seeds) or range(self.seeds)

    def sweep(self, size: Size) -> list[Point]:
        """Return the points of a sweep at a size; empty without a sweep."""
        small = size == "small" and self.small_values
        return [self._point(value) for value in (self.small_values if small else self.values)]

    def shown_rounds(self, size: Size) -> tuple[int, ...]:
        """Return the rounds of maps at a size; empty: the last one."""
        return self.small_rounds if size == "small" and self.small_rounds else self.rounds

    def _point(self, value: Any) -> Point:
        if isinstance(value, Mapping):
            return Point(value["x"], flatten({k: v for k, v in value.items() if k != "x"}))
        return Point(value, {self.x: value})

    def exists(self, size: Size) -> bool:
        """Return whether the figure can be made at a size at all."""
        if self.missing:
            return False
        return bool(self.drawn) or any(panel.preset(size) for panel in self.panels)


@dataclass(frozen=True)
class Paper(_Read):
    """One paper."""

    name: str  # of the file, such as "cobo"
    short: str  # for people, such as "CoBo"
    method: str  # the paper's own method
    title: str
    reference: str
    figures: Mapping[str, Figure]
    contradictions: tuple[str, ...] = ()  # errata, in Markdown, one sentence each


def names(folder: Path = FOLDER) -> list[str]:
    """Return the names of the papers."""
    return sorted(path.stem for path in folder.glob("*.toml"))


def read(name: str, folder: Path = FOLDER) -> Paper:
    """Read the file of a paper."""
    file = folder / f"{name}.toml"
    if name not in names(folder):
        known = names(folder)
        hint = nearest(name, known) or f"; papers: {', '.join(known)}"
        raise ConfigError(f'no paper "{name}"{hint}')
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
        tables = content.pop("figures", {}).items()
        figures = {key: {"name": key, **table} for key, table in tables}
        paper = TypeAdapter(Paper).validate_python({"name": name, **content, "figures": figures})
        for figure in paper.figures.values():
            labels, panels = ({part.label for part in of} for of in (figure.rows, figure.panels))
            for claim in figure.claims:
                _known(claim.rows, labels, f"figures.{figure.name}: no row")
                _known(claim.panels, panels, f"figures.{figure.name}: no panel")
    except ValidationError as error:
        raise ConfigError(f"{file}: {first_of(error)}") from None
    except (ValueError, RecursionError, ConfigError) as error:
        raise ConfigError(f"{file}: {error}") from None
    return paper


def find(name: str, folder: Path = FOLDER) -> tuple[Paper, Figure]:
    """Return the figure "paper/figure" and its paper."""
    of, _, which = name.partition("/")
    paper = read(of, folder)
    if which not in paper.figures:
        known = [f"{of}/{figure}" for figure in paper.figures]
        hint = nearest(name, known) or f"; coterie reproduce --list {of} shows every one"
        raise ConfigError(f'no figure "{name}"{hint}')
    return paper, paper.figures[which]


def data_of(panel: Panel, size: Size) -> str:
    """Return the name of a panel's data at a size; "" if there is no such panel."""
    preset = panel.preset(size)
    if not preset:
        return ""
    _, keys = read_items([] if preset == DEFAULTS else [preset])
    name = str({**keys, **panel.overrides(size)}.get("dataset", "digits"))
    return _DATA.get(name, name)


def data_name(word: str) -> str:
    """Write a data set as people do; another word stays as it is."""
    return next((name for name in _DATA.values() if _same(name, word)), word)


def ours_of(panel: Panel, size: Size) -> str:
    """Return the title of a panel with the name of our data in place of the paper's."""
    data, papers = data_of(panel, size), data_of(panel, "paper")
    parts = [data if _same(part, papers) else part for part in panel.label.split(", ") if part]
    if data not in parts and (data != papers or not parts):
        parts = [data, *parts]
    return f"{', '.join(parts)} (ours)" if data != papers else ", ".join(parts)


def _same(a: str, b: str) -> bool:
    return a.casefold().replace("-", "") == b.casefold().replace("-", "")


def _known(wanted: Iterable[str], known: set[str], complaint: str) -> None:
    for label in wanted:
        if label not in known:
            raise ConfigError(f'{complaint} "{label}"{nearest(label, sorted(known))}')
