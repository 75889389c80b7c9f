"""CoBo's figure 7, small: weights between languages, and agreement of gradients.

`python -m studies.languages DIRECTORY SVG`, after comparisons of
presets/cobo/table2-languages-mini.toml left their runs in DIRECTORY. Prints each method's
perplexities and the weights that the first language gives over the steps, mean over seeds, which it
also draws; then, of the first seed, how the others' gradients agree with its own (see `agreement`).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from coterie.app.config.config import Config
from coterie.app.config.keys import flatten
from coterie.app.config.preflight import check
from coterie.app.runs.rundir import Floats, Run
from coterie.clients.engine.engine import Engine
from coterie.clients.engine.streams import Purpose
from studies.svg import save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NAMES = {"ca": "Catalan", "es": "Spanish", "de": "German", "nl": "Dutch"}
COLOURS = ("#d9822b", "#3f7fb5", "#4a9a5b")
INK, SOFT = "#22252a", "#5c636d"
LINE = 0.08  # between two names, in weight
DRAWS = 32  # minibatches of a pair, to see the noise of one


def given(runs: Sequence[Run]) -> Floats:
    """Return the weights of peer 0 for the others per seed, (seeds, R, n - 1)."""
    return np.stack([run.weights[:, 0, 1:] for run in runs])


def agreement(run: Run, every: int) -> Iterator[tuple[int, Floats, Floats, Floats]]:
    """Measure how gradients at the midpoint agree with peer 0's under local training.

    Yields (step, cosine, mean, deviation), each (n - 1,): the cosine of the two gradients on all
    training data, and mean and deviation of the inner product of two minibatch gradients, which is
    what CoBo adds to a weight, times gamma.
    """
    config = Config.from_flat(flatten({**run.config, "local-steps": every}))
    engine = Engine(
        check(config), config.network, config.model_options, range(config.peers), config.training,
        seed=config.seed, device=config.compute.device,
    )  # fmt: skip
    x_pd, buffers = engine.initial()
    opt_state = engine.opt_state(x_pd)
    others = np.arange(1, config.peers)
    ends = np.concatenate([np.zeros_like(others), others])  # peer 0 of each pair, then the other
    for t in range(config.num_server_rounds // every + 1):
        z_ed = ((x_pd[0] + x_pd[1:]) / 2).repeat(2, 1)
        whole = engine.gradients(z_ed, {}, engine.data.everything(ends)).values
        mine, theirs = whole.chunk(2)
        norms = engine.inner(mine, mine).sqrt() * engine.inner(theirs, theirs).sqrt()
        cosine = (engine.inner(mine, theirs) / norms).numpy()
        drawn = []
        for k in range(DRAWS):
            apart = np.arange(len(ends)) + k * len(ends)
            batch = engine.batches(t, Purpose.ANSWER, peers=ends, partners=apart, steps=1)[0]
            mine, theirs = engine.gradients(z_ed, {}, batch).values.chunk(2)
            drawn.append(engine.inner(mine, theirs).numpy())
        yield t * every, cosine, np.mean(drawn, axis=0), np.std(drawn, axis=0, ddof=1)
        x_pd, buffers, opt_state = engine.fit(x_pd, buffers, opt_state, engine.batches(t + 1))


def draw(rounds: Sequence[int], weights_srk: Floats, names: Sequence[str], path: Path) -> None:
    """Draw the weights over the steps as SVG: mean over seeds, with thin lines per seed."""
    figure = Figure(figsize=(7.2, 3.4), layout="constrained")
    axes: Axes = figure.subplots()
    for k, colour in enumerate(COLOURS):
        for weights_r in weights_srk[:, :, k]:
            axes.plot(rounds, weights_r, color=colour, lw=0.8, alpha=0.4)
        axes.plot(rounds, weights_srk[:, :, k].mean(axis=0), color=colour, lw=2.4)
    ends = weights_srk[:, -1].mean(axis=0)
    height = -np.inf
    for k in np.argsort(ends):
        height = max(height + LINE, ends[k])
        axes.annotate(
            names[1 + k], (rounds[-1], height), (6, 0), textcoords="offset points", va="center",
            color=COLOURS[k], weight="bold",
        )  # fmt: skip
    axes.set_title(
        f"Weight that {names[0]} gives (thick: mean of {len(weights_srk)} seeds)",
        loc="left", fontsize=11, color=INK,
    )  # fmt: skip
    axes.set_xlabel("step", color=SOFT)
    axes.set_ylim(-0.02, 1.02)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", lw=0.4, alpha=0.5)
    save(figure, path)


def perplexities(runs: Sequence[Run]) -> Floats:
    """Return the final perplexity per byte of each language, and of all, (seeds, n + 1).

    That of all is e to the mean loss.
    """
    losses_sn = np.stack([run.at("test_loss", run.last_row()) for run in runs])
    result: Floats = np.exp(np.column_stack([losses_sn, losses_sn.mean(axis=1)]))
    return result


def main(directory: Path, picture: Path) -> None:
    """Print tables to standard output, and write the figure."""
    methods: dict[str, list[Run]] = {}
    for path in sorted(directory.glob("*-seed*")):
        methods.setdefault(path.name.split("-seed")[0], []).append(Run.read(path))
    runs = methods["cobo"]
    codes = runs[0].config["languages"]["codes"].split("-")
    names = [NAMES.get(code, code) for code in codes]
    rounds, weights_srk = runs[0].weight_rounds.tolist(), given(runs)
    _print_head("perplexity of a byte", *names, "all")
    for method, of_method in methods.items():
        _print_row(method, *_spread(perplexities(of_method)))
    _print_head("step", *names[1:])
    for t, weights_sk in zip(rounds, weights_srk.swapaxes(0, 1), strict=True):
        _print_row(t, *_spread(weights_sk))
    draw(rounds, weights_srk, names, picture)
    _print_head("step", *names[1:])
    for step, *columns in agreement(runs[0], 2 * int(runs[0].config["evaluate-every"])):
        cells = zip(*columns, strict=True)
        _print_row(step, *(f"{cos:.2f}; {mean:.2g} ± {std:.2g}" for cos, mean, std in cells))


def _spread(values_sk: Floats) -> list[str]:
    """Return mean and deviation over seeds of each column."""
    deviation = values_sk.std(axis=0, ddof=1) if len(values_sk) > 1 else 0 * values_sk[0]
    pairs = zip(values_sk.mean(axis=0), deviation, strict=True)
    return [f"{mean:.2f} ± {std:.2f}" for mean, std in pairs]


def _print_head(*titles: str) -> None:
    print()
    _print_row(*titles)
    print("|" + "---|" * len(titles))


def _print_row(*cells: object) -> None:
    print("|", " | ".join(map(str, cells)), "|", flush=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
