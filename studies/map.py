"""Collaboration map of a run as an animated SVG: `python -m studies.map RUN_DIR SVG`.

Left the peers with a line for each pair, as dark as the smaller of the two weights; right the map,
a row for each peer that gives weight. Peers of a true cluster share a colour. Where motion is not
wanted (`prefers-reduced-motion`) the picture stands at the last round. docs/images/map.svg is the
default run: `coterie run --name map`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from coterie.app.runs.rundir import Floats, Run

SECONDS = 12.0
_HOLD = 0.2  # share of the time that the last round stays
_COLOURS = ("#3f7fb5", "#d9822b", "#4a9a5b", "#8e5ea8", "#b5493f", "#5a8f9c", "#a3862b", "#6a6f77")
_WIDTH, _HEIGHT = 860, 400
_CENTRE, _RADIUS = (210.0, 205.0), 130.0
_LEFT, _TOP, _SIDE = 470.0, 75.0, 260.0
_STYLE = """
.page { fill: #fff; stroke: #d5d1c9 } .ink { fill: #1d2025 } .soft { fill: #5c636d }
.cell { fill: #1f5f8b } .grid { fill: #f1f5f8 } .bar { fill: #d9822b } .edge { stroke: #1f5f8b }
.moves { animation-duration: %gs; animation-iteration-count: infinite; }
.steps { animation-timing-function: step-end }
@media (prefers-color-scheme: dark) {
  .page { fill: #14161a; stroke: #3a3f47 } .ink { fill: #e9e7e2 } .soft { fill: #a5abb4 }
  .cell { fill: #7db8dd } .grid { fill: #1c2229 } .edge { stroke: #7db8dd }
}
@media (prefers-reduced-motion: reduce) { .moves { animation: none } }
"""


def animation(run: Run) -> str:
    """Return the SVG of a run with known or unknown clusters."""
    weights, rounds = run.weights, run.weight_rounds.tolist()
    evaluated = dict(zip(run.rounds.tolist(), run.metric("test_accuracy"), strict=True))
    accuracy = [float(np.nanmean(evaluated[t])) for t in rounds]
    n = weights.shape[1]
    clusters = run.clusters if run.clusters is not None else np.zeros(n, int)
    colours = [_COLOURS[int(c) % len(_COLOURS)] for c in clusters]
    keyframes: dict[str, str] = {}
    body = [*_edges(weights, keyframes), *_peers(colours), *_cells(weights, keyframes)]
    body += [*_labels(colours), *_clock(rounds, accuracy, keyframes)]
    style = _STYLE % SECONDS + "\n".join(
        f"@keyframes {name} {{ {frames} }}" for frames, name in keyframes.items()
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        "font-family=\"system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif\">"
    )
    title = f"<title>{n} peers find their collaborators in {rounds[-1]} rounds</title>"
    page = f'<rect class="page" x="1" y="1" width="{_WIDTH - 2}" height="{_HEIGHT - 2}" rx="14"/>'
    return "\n".join([head, title, f"<style>{style}</style>", page, *body, "</svg>", ""])


def _animated(values: Sequence[float], keyframes: dict[str, str]) -> str:
    """Return the attributes that animate an opacity through these values."""
    shown = [f"{value:.2f}".rstrip("0").rstrip(".") for value in values]
    if len(set(shown)) == 1:
        return f'opacity="{shown[0]}"'
    last = len(shown) - 1
    frames = []
    for at, value in enumerate(shown):
        inside = 0 < at < last and shown[at - 1] == value == shown[at + 1]
        if not inside:
            frames.append(f"{100 * (1 - _HOLD) * at / last:.4g}% {{ opacity: {value} }}")
    frames.append(f"100% {{ opacity: {shown[-1]} }}")
    name = keyframes.setdefault(" ".join(frames), f"k{len(keyframes)}")
    return f'class="moves" opacity="{shown[-1]}" style="animation-name: {name}"'


def _edges(weights_rnn: Floats, keyframes: dict[str, str]) -> Iterator[str]:
    n = weights_rnn.shape[1]
    yield '<g class="edge" stroke-width="3.5">'
    for i in range(n):
        for j in range(i):
            (x, y), (u, v) = _place(i, n), _place(j, n)
            values = np.minimum(weights_rnn[:, i, j], weights_rnn[:, j, i]).tolist()
            line = f'x1="{x:.1f}" y1="{y:.1f}" x2="{u:.1f}" y2="{v:.1f}"'
            yield f"<line {line} {_animated(values, keyframes)}/>"
    yield "</g>"


def _peers(colours: Sequence[str]) -> Iterator[str]:
    yield '<g font-size="15" font-weight="600" text-anchor="middle" fill="#fff">'
    for peer, colour in enumerate(colours):
        x, y = _place(peer, len(colours))
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="17" fill="{colour}"/>'
        yield f'<text x="{x:.1f}" y="{y + 5.3:.1f}">{peer}</text>'
    yield "</g>"


def _place(peer: int, n: int) -> tuple[float, float]:
    """Return the position of a peer on the circle; peer 0 is on top."""
    angle = 2 * math.pi * peer / n
    return _CENTRE[0] + _RADIUS * math.sin(angle), _CENTRE[1] - _RADIUS * math.cos(angle)


def _cells(weights_rnn: Floats, keyframes: dict[str, str]) -> Iterator[str]:
    n = weights_rnn.shape[1]
    side = _SIDE / n
    for i in range(n):
        for j in range(n):
            x, y = _LEFT + j * side, _TOP + i * side
            place = f'x="{x:.1f}" y="{y:.1f}" width="{side - 2:.1f}" height="{side - 2:.1f}" rx="3"'
            yield f'<rect class="grid" {place}/>'
            if i != j:
                values = weights_rnn[:, i, j].tolist()
                yield f'<g {_animated(values, keyframes)}><rect class="cell" {place}/></g>'


def _labels(colours: Sequence[str]) -> Iterator[str]:
    side = _SIDE / len(colours)
    yield '<g font-size="13" font-weight="600" text-anchor="middle">'
    for peer, colour in enumerate(colours):
        middle = (peer + 0.5) * side - 1
        yield f'<text x="{_LEFT + middle:.1f}" y="{_TOP - 8}" fill="{colour}">{peer}</text>'
        yield f'<text x="{_LEFT - 14}" y="{_TOP + middle + 4.5:.1f}" fill="{colour}">{peer}</text>'
    yield "</g>"
    yield '<g font-size="15" text-anchor="middle" class="soft">'
    yield f'<text x="{_CENTRE[0]}" y="38">collaboration graph</text>'
    yield f'<text x="{_LEFT + _SIDE / 2}" y="38">collaboration weights (row: gives)</text></g>'


def _clock(
    rounds: Sequence[int], accuracy: Sequence[float], keyframes: dict[str, str]
) -> Iterator[str]:
    """Return overlaid texts of round and accuracy, of which one is visible at a time."""
    x, last = _LEFT + _SIDE + 22, len(rounds) - 1
    for at, (t, value) in enumerate(zip(rounds, accuracy, strict=True)):
        shown = _animated([float(other == at) for other in range(last + 1)], keyframes)
        yield f"<g {shown.replace('moves', 'moves steps')}>"
        yield f'<text class="soft" font-size="14" x="{x}" y="100">round</text>'
        yield f'<text class="ink" font-size="28" font-weight="650" x="{x}" y="130">{t}</text>'
        if math.isfinite(value):
            yield f'<text class="soft" font-size="14" x="{x}" y="175">accuracy</text>'
            yield f'<text class="ink" font-size="28" font-weight="650" x="{x}" y="205">'
            yield f"{100 * value:.0f} %</text>"
        yield f'<rect class="bar" x="{_LEFT}" y="{_TOP + _SIDE + 14}" height="5" rx="2.5" '
        yield f'width="{max(5.0, _SIDE * at / last):.1f}"/></g>'


def main() -> None:
    """Draw the run of the first argument into the file of the second."""
    run_dir, target = map(Path, sys.argv[1:])
    target.write_text(animation(Run.read(run_dir)), encoding="utf-8")


if __name__ == "__main__":
    main()
