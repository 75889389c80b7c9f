"""Figure of a comparison with `--clearance`: what a method gains against what its letters tell."""

from __future__ import annotations

from dataclasses import dataclass

from markupsafe import Markup

from coterie.app.experiments.measures import MEASURES
from coterie.app.report import html
from coterie.app.report.comparison import Comparison
from coterie.app.report.section import Section

_TICKS = 4


@dataclass(frozen=True)
class Risks(Section):
    """Picture with a point for each method whose letters were measured."""

    picture: Markup
    template = "risks.html.j2"

    def files(self) -> dict[str, str]:
        return {"clearance.svg": self.picture}


def risks(compared: Comparison) -> Risks | None:
    """Return the gain over Local, without it the accuracy or loss, against the letters' AUC."""
    rows, risk = compared.table.rows, MEASURES["letter_auc"]
    measured = [row for row in rows if row.summary(risk)]
    of = [MEASURES[key] for key in ("gain", "loss_gain", "accuracy", "loss")]
    value = next((each for each in of if any(row.summary(each) for row in measured)), None)
    if value is None:
        return None
    axes = []
    for column, at_least in ((risk, [0.5]), (value, [])):
        means = [(row.summary(column) or (at_least or [0.0]))[0] for row in measured]
        low, high = min(means + at_least), max(means)
        room = 0.05 * (high - low) or 0.01
        low, high = low - room, high + room
        ticks = [column.show(low + k / _TICKS * (high - low)) for k in range(_TICKS + 1)]
        axes.append(([(mean - low) / (high - low) for mean in means], ticks, column.title))
    names = [row.name for row in measured]
    return Risks(Markup(html.render("risks.svg.j2", names=names, across=axes[0], up=axes[1])))
