"""Accuracy of stacking with and without limits on others' scores: `python -m studies.limits`.

Reads the models of `studies.any_model`, which runs first. Prints a table of sets and models: mean
accuracy with the limits, without them, and how many test rows of how many change sides.
"""

from __future__ import annotations

import numpy as np
import torch

from coterie.app.config.config import Config
from coterie.app.config.keys import flatten
from coterie.app.config.preflight import problem_of
from coterie.app.runs.rundir import Run
from coterie.app.trained.personal import personal_model
from studies.any_model import MODELS, OUT
from studies.institutions import CLASSIFIED


def predicted(run: Run, *, limits: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return predicted and true classes of the test rows of each peer."""
    problem, result = problem_of(Config.from_flat(flatten(run.config))), []
    assert problem.table is not None
    for peer in range(run.peers):
        model = personal_model(run.directory, peer)
        if not limits:
            model.low = None
        rows, targets = problem.test.rows[peer], problem.test.targets[peer]
        with torch.inference_mode():
            scores = model(torch.tensor(problem.table.cells[rows]))
        result.append((scores.argmax(dim=1).numpy(), targets))
    return result


def line(name: str, model: str) -> str:
    """Return the row of the table of a set and a model."""
    pairs = []
    for path in sorted((OUT / name / model).glob("stacking-*/summary.json")):
        run = Run.read(path.parent)
        pairs.append([predicted(run, limits=limits) for limits in (True, False)])
    accuracy = [
        np.mean([[np.mean(is_ == of) for is_, of in pair[side]] for pair in pairs])
        for side in range(2)
    ]
    changed = [
        a != b for with_, without in pairs for (a, _), (b, _) in zip(with_, without, strict=True)
    ]
    rows = np.concatenate(changed)
    cells = [f"{100 * each:.2f}" for each in accuracy]
    return f"| {model} | {name} | {' | '.join(cells)} | {rows.sum()} of {len(rows):,} |"


def main() -> None:
    """Print the table."""
    print("| model | set | with limits | without | rows that change |")
    print("|---|---|---|---|---|")
    for name in CLASSIFIED:
        for model in MODELS:
            if (OUT / name / model).is_dir():
                print(line(name, model), flush=True)


if __name__ == "__main__":
    main()
