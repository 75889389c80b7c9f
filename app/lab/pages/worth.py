"""Worth of letters: tables of `coterie contribution` in a terminal.

Shapes: n peers, [recipient, sender].
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.table import Table

from coterie.app.report.worth import FILE, Worth
from coterie.app.runs import units

SHOWN = 40
"""Number of peers that the terminal lists; the file has all."""
_SENDERS = 3
"""Number of senders that it lists for a recipient."""


def by_recipient(
    worth: Worth, names: Sequence[str], unjudged: Mapping[int, str] = MappingProxyType({})
) -> Table:
    """Return a table of the first senders of each recipient; `unjudged` ones have a reason."""
    table = Table(title=f"Worth of letters: {_what(worth)}", box=SIMPLE_HEAD, title_justify="left")
    for heading in ("recipient", "alone", "together"):
        table.add_column(heading, justify="left" if heading == "recipient" else "right")
    table.add_column("senders with the largest effect")
    for i, name in list(enumerate(names))[:SHOWN]:
        effect = np.nan_to_num(np.abs(worth.main[i]))
        chosen = np.argsort(-effect, kind="stable")[:_SENDERS]
        chosen = chosen[np.argsort(-worth.main[i][chosen], kind="stable")]
        senders = ", ".join(
            f"{'itself' if j == i else names[j]} {_with_error(worth, i, int(j))}"
            for j in chosen
            if effect[j] > 0
        )
        levels = _level(worth, worth.alone[i]), _level(worth, worth.together[i])
        table.add_row(
            name, *levels, unjudged.get(i) or senders or units.NONE,
            style="dim" if i in unjudged else None,
        )  # fmt: skip
    return table


def by_sender(worth: Worth, names: Sequence[str]) -> Table:
    """Return a table of the mean worth of each sender for the others, the largest first."""
    cut = f"{SHOWN} of {len(names):,} peers, as above; {FILE} has all" * (len(names) > SHOWN)
    table = Table(box=SIMPLE_HEAD, caption=cut or None, caption_justify="left")
    table.add_column("sender")
    for heading in ("mean for others", "min", "max"):
        table.add_column(heading, justify="right")
    means = worth.to_others
    for j in np.argsort(-np.nan_to_num(means, nan=-np.inf), kind="stable")[:SHOWN]:
        of_sender = worth.for_others[:, j]
        known = of_sender[np.isfinite(of_sender)]
        ends = (known.min(), known.max()) if len(known) else (np.nan, np.nan)
        table.add_row(names[j], *(_shown(worth, value) for value in (means[j], *ends)))
    return table


def _what(worth: Worth) -> str:
    """Return the name of the main values and of the measure in words."""
    if worth.shapley is None:
        name = "leave-one-out values"
    elif not worth.orders:
        name = "Shapley values, exact"
    else:
        name = f"Shapley values ± standard error, {worth.orders} orders"
    points = " in points" if worth.is_accuracy else ""
    return f"{worth.measure.replace('_', ' ')}{points} ({name})"


def _shown(worth: Worth, value: float) -> str:
    """Write a worth with its sign: points of accuracy, or loss."""
    if not math.isfinite(value):
        return units.NONE
    return units.signed(*((100 * value, ".1f") if worth.is_accuracy else (value, ".3g")))


def _level(worth: Worth, value: float) -> str:
    if not math.isfinite(value):
        return units.NONE
    return units.percent(value) if worth.is_accuracy else units.number(value)


def _with_error(worth: Worth, i: int, j: int) -> str:
    text, error = _shown(worth, worth.main[i, j]), worth.errors[i, j]
    if worth.shapley is None or not worth.orders or not math.isfinite(error):
        return text
    return f"{text} ± {_shown(worth, error).removeprefix('+')}"
