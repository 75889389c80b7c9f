"""Perplexity and bytes of a language model's adapters: `python -m studies.language_letters`.

Four institutions with a language each adapt the network of `studies.language_model` (problem
presets/language-model.toml): alone, by one average, by one average of half the adapters (the
recipes fedsa-lora and ffa-lora), and by trust's weights. Each method has the learning rate of
`RATES` with the lowest validation loss of seed 0, chosen with full letters.
Finished runs are kept in `runs/language-letters`, so an interrupted command continues; `table.csv`
there has perplexity and bytes after each evaluation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from coterie.app.config.config import Config
from coterie.app.config.items import read_items
from coterie.app.runs import atomic
from coterie.app.runs.rundir import Floats, Run
from studies.kept import kept

OUT = Path("runs/language-letters")
SEEDS = 2
LETTERS: Mapping[str, Sequence[str]] = {
    "full": [],
    "int8": ["payload=int8"],
    "sign": ["letters.scheme=increments", "letters.operator=sign", "payload=int8"],
}
RATES = (0.0003, 0.001, 0.003, 0.01, 0.03)
METHODS = ("local", "fedavg", "trust", "fedsa-lora", "ffa-lora")
COMPARED = [
    *((method, "full") for method in METHODS),
    *((method, letters) for letters in ("sign", "int8") for method in ("fedavg", "trust")),
]
"""Methods with the letters that each is compared with."""


def configuration(method: str, rate: float, letters: str, seed: int) -> Config:
    """Return the configuration of a run."""
    items = ["presets/language-model.toml", *LETTERS[letters], f"method={method}"]
    items += [f"learning-rate={rate}", f"seed={seed}", "device=cpu"]
    return Config.from_flat(read_items(items, {})[1])


def run(method: str, rate: float, letters: str, seed: int) -> Run:
    """Return a finished run; carry it out if it is missing."""
    return kept(configuration(method, rate, letters, seed), OUT)


def perplexity(run: Run, split: str) -> Floats:
    """Return the perplexity per byte after each evaluation, e to the mean loss of the peers."""
    result: Floats = np.exp(run.metric(f"{split}_loss").mean(axis=1))
    return result


def chosen(method: str) -> float:
    """Return the learning rate with the lowest validation loss of seed 0; print all."""
    tried = {rate: perplexity(run(method, rate, "full", 0), "validation")[-1] for rate in RATES}
    print(method, ", ".join(f"{rate}: {value:.3f}" for rate, value in tried.items()), flush=True)
    return min(tried, key=lambda rate: tried[rate])


def main() -> None:
    """Run the study."""
    rates = {method: chosen(method) for method in METHODS}
    lines: list[list[object]] = [
        ["method", "letters", "learning-rate", "round", "megabytes", "perplexity", "deviation"]
    ]
    for method, letters in COMPARED:
        runs = [run(method, rates[method], letters, seed) for seed in range(SEEDS)]
        tested_sr = np.array([perplexity(of_seed, "test") for of_seed in runs])
        sent_sr = np.array([of_seed.metric("bytes_sent").mean(axis=1) for of_seed in runs])
        columns = (
            sent_sr.mean(axis=0) / 1e6,
            tested_sr.mean(axis=0),
            tested_sr.std(axis=0, ddof=1),
        )
        for t, *values in zip(runs[0].rounds, *columns, strict=True):
            lines.append([method, letters, rates[method], t, *map(float, values)])
        print(method, letters, f"{sent_sr[:, -1].mean():.0f} B", tested_sr[:, -1], flush=True)
        if method == "trust":
            print(np.mean([of_seed.weights[-1] for of_seed in runs], axis=0).round(2), flush=True)
    atomic.write(OUT / "table.csv", atomic.as_csv(lines))


if __name__ == "__main__":
    main()
