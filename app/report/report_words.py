"""Numbers and configuration in words: the parts of the report page that need no script."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from html import escape
from typing import Any

import numpy as np

from app.report.report_data import weights_between
from app.runs.rundir import Floats, Run
from app.runs.units import NONE, count, duration, number, percent, plural, size


def tiles(run: Run, summary: Mapping[str, Any]) -> str:
    """Render the headline numbers as the items of a definition list."""
    found = summary["recovery"] if weights_between(run).any() else None
    quality = _accuracy_tiles if summary["mean_test_accuracy"] is not None else _loss_tiles
    sent, gradients = summary["total_bytes"], summary["gradient_evaluations"]
    cells = [
        *quality(run, summary),
        _recovery_tile(found, run),
        ("Sent per peer", size(_per_peer(sent, run)), f"{size(sent)} in all"),
        (
            "Gradients per peer",
            count(_per_peer(gradients, run)),
            f"{count(gradients)} sample gradients in all",
        ),
        (
            "Wall time",
            duration(summary["wall_seconds"]),
            NONE if summary["messages"] is None else plural(summary["messages"], "message"),
        ),
    ]
    return "".join(
        f'<div class="tile"><dt>{escape(name)}</dt><dd class="value">{_small_units(value)}</dd>'
        f'<dd class="note">{escape(note)}</dd></div>'
        for name, value, note in cells
    )


def lede(run: Run, summary: Mapping[str, Any]) -> str:
    """Say in a sentence or two how the run came out."""
    if not len(run.rounds):
        return "No round has been evaluated yet."
    after = f"After {plural(summary['rounds'], 'round')}" if summary["rounds"] else "At the start"
    accuracy, loss = summary["mean_test_accuracy"], summary["mean_test_loss"]
    if accuracy is not None:
        told = f"{after}, the personal models reach {percent(accuracy)} test accuracy"
        told += " on average" if run.peers > 1 else ""
        if run.peers > 1:
            worst = "peer reaches" if run.peers < 20 else "tenth of the peers reach"
            told += f"; the worst-off {worst} "
            told += percent(summary["worst_decile_test_accuracy"])
    elif loss is not None:
        told = f"{after}, the personal models reach a mean test loss of {number(loss)}"
    else:
        told = f"{after}, there is no mean test loss to tell"
    if weights_between(run).any():
        told += _told_recovery(summary["recovery"])
    told += "."
    return told.replace(" %", "\u00a0%")


def date(runs: Iterable[Run]) -> str:
    """Say when the latest of the runs was last written to."""
    written = []
    for run in runs:
        files = [run.directory / name for name in ("metrics.jsonl", "config.toml")]
        written.append(next(path.stat().st_mtime for path in files if path.exists()))
    moment = datetime.fromtimestamp(max(written)).astimezone()
    return f"{moment.day} {moment:%B %Y, %H:%M}"


def cost_rows(run: Run) -> str:
    """Render the cost of the run per peer and in all as table rows."""
    last_n = run.last_row()
    rounds = int(run.rounds[-1]) if len(run.rounds) else 0
    rows = []
    for field, name, write in (
        ("bytes_sent", "Bytes sent", size),
        ("bytes_received", "Bytes received", size),
        ("gradient_evaluations", "Sample gradients", count),
    ):
        values = run.at(field, last_n)
        values = values[np.isfinite(values)]
        if len(values):
            rows.append([name, *map(write, _cost(values, rounds))])
    return "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )


def configuration(config: Mapping[str, Any]) -> str:
    """Render the resolved configuration, the flat keys first and then each table."""
    tables = {key: value for key, value in config.items() if isinstance(value, dict)}
    flat = {key: value for key, value in config.items() if key not in tables}
    groups = "".join(
        f"<div><h3><code>[{escape(name)}]</code></h3><dl>{_rows(values)}</dl></div>"
        for name, values in tables.items()
        if values
    )
    return f'<dl class="flat">{_rows(flat)}</dl><div class="config">{groups}</div>'


def _rows(values: Mapping[str, Any]) -> str:
    return "".join(
        f'<div class="row"><dt><code>{escape(key)}</code></dt>'
        f"<dd><code>{escape(_literal(value))}</code></dd></div>"
        for key, value in values.items()
    )


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value or '""' if isinstance(value, str) else str(value)


def _accuracy_tiles(run: Run, summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    last = run.at("test_accuracy", run.last_row())
    last = last[~np.isnan(last)]
    lowest = max(1, len(last) // 10)
    weighted, best = summary["weighted_mean_test_accuracy"], summary["best_mean_test_accuracy"]
    return [
        (
            "Mean test accuracy",
            percent(summary["mean_test_accuracy"]),
            f"{percent(weighted)} weighted by samples" if weighted is not None else "last round",
        ),
        (
            "Spread over peers",
            f"± {percent(summary['std_test_accuracy'], ' points')}",
            f"from {percent(float(last.min()))} to {percent(float(last.max()))}",
        ),
        (
            "Worst decile",
            percent(summary["worst_decile_test_accuracy"]),
            f"{'' if lowest == 1 else 'mean of '}the lowest {'' if lowest == 1 else lowest}"
            f" of {plural(len(last), 'peer')}".replace("  ", " "),
        ),
        (
            "Best on validation",
            percent(best),
            "no validation data" if best is None else "mean at each peer’s own best round",
        ),
    ]


def _loss_tiles(run: Run, summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    loss = run.metric("test_loss")
    last = run.at("test_loss", run.last_row())
    finite = last[np.isfinite(last)]
    start = loss[0][np.isfinite(loss[0])] if len(loss) else np.empty(0)
    best_row = run.best_row()
    best = np.full(run.peers, np.nan) if best_row is None else run.at("test_loss", best_row)
    diverged = summary["diverged_peers"]
    return [
        (
            "Mean test loss",
            number(summary["mean_test_loss"]),
            f"{plural(diverged, 'peer')} diverged" if diverged else "last round",
        ),
        ("Mean at the start", number(_mean(start)), "before any training"),
        (
            "Worst peer",
            number(float(finite.max())) if len(finite) else NONE,
            f"best peer {number(float(finite.min()))}" if len(finite) else "no test loss",
        ),
        (
            "Best on validation",
            number(_mean(best[np.isfinite(best)])),
            "no validation data"
            if best_row is None
            else "mean test loss at each peer’s own best round",
        ),
    ]


def _recovery_tile(recovery: Mapping[str, Any] | None, run: Run) -> tuple[str, str, str]:
    name = "Graph recovery"
    if recovery is None:
        return (
            name,
            NONE,
            f"no {'true clusters to find' if run.clusters_to_recover is None else 'graph'}",
        )
    first, best = recovery["rounds_to_recovery"], recovery["best"]
    value = "exact" if recovery["exact"] else f"F1 {_two(recovery['f1'])}"
    if first is not None:
        return name, value, f"first exact in round {first:,}"
    return name, value, f"best F1 {_two(best['f1'])} in round {best['round']:,}"


def _told_recovery(recovery: Mapping[str, Any] | None) -> str:
    if recovery is None:
        return ""
    first = recovery["rounds_to_recovery"]
    if recovery["exact"]:
        return f". The learnt graph is exactly the true clusters, first in round {first:,}"
    if first is not None:
        return (
            f". The learnt graph was exactly the true clusters in round {first:,}; "
            f"at the end its F1 is {_two(recovery['f1'])}"
        )
    return f". The learnt graph finds the true clusters with an F1 of {_two(recovery['f1'])}"


def _cost(values: Floats, rounds: int) -> tuple[float, float, float, float, float | None]:
    mean = float(values.mean())
    per_round = mean / rounds if rounds else None
    return float(values.sum()), mean, float(values.min()), float(values.max()), per_round


def _per_peer(total: float | None, run: Run) -> float | None:
    return None if total is None else total / run.peers


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None


def _two(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _small_units(value: str) -> str:
    return re.sub(r"(?<=\d) ([^\W\d]+|%)", r"<small>&nbsp;\1</small>", escape(value))
