"""Measure what a letter tells about patients: `python -m studies.membership`.

Models of the four hospitals of heart disease, each trained alone, as its letter has them, with the
defaults and within the default policy: at least 32 patients in a leaf, thresholds in steps of 0.05
standard deviations (networks and logistic regression are the same). Three attacks of somebody who
has the letter and a person's data, means over hospitals and seeds:

- membership: the person's data with diagnosis; a patient has a smaller loss than others (Yeom et
  al. 2018): area under the ROC curve, 50 % for a coin; and how many patients are found when 5 % of
  the others are taken for patients (5 % for a coin).
- label: a known patient's data without the diagnosis; the guess is the model's prediction.
  Percent right for patients, and for others of whom the model knows nothing.
- values: percent of the thresholds that are a patient's value, or the mean of two neighbouring
  ones.

A second table is about statistics of a column (`scale.py`): two runs, before and after one
patient more; the difference of count times mean is the patient's value, if the means are exact.
Percent of the patients whose cholesterol is found within 5 %, as statistics left before, with three
digits in each run, as they leave now, and by who guesses the mean.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
from sklearn.metrics import roc_auc_score, roc_curve

from coterie.app.config.config import Config
from coterie.app.config.preflight import problem_of
from coterie.app.config.schema import Scalar
from coterie.app.institution.scale import Memory, disclosed
from coterie.app.institution.security.policy import AnswerPolicy
from coterie.app.node.assembly import cohort_of, engine_of
from coterie.clients.engine.data import SplitName
from coterie.clients.leakage import TREE, thresholds
from coterie.datasets.preprocessing import Column

Array = npt.NDArray[np.float64]
TREES = ("forest", "boosted-trees", "xgboost", "lightgbm")
MODELS = ("logistic", "mlp", *TREES)
SEEDS, FALSE_ALARMS = 5, 0.05


def keys(model: str, *, protected: bool) -> dict[str, Scalar]:
    """Return the keys of a run: defaults, or those that the default policy asks for."""
    flat: dict[str, Scalar] = {
        "dataset": "heart-disease", "peers": 4, "method": "local", "model": model, "device": "cpu",
    }  # fmt: skip
    if model in TREES:
        flat["num-server-rounds"] = 1
        if protected:
            flat[f"{model}.min-samples-leaf"] = AnswerPolicy().min_examples
            flat[f"{model}.threshold-step"] = AnswerPolicy().threshold_step
    return flat


def attacked(model: str, seed: int, *, protected: bool) -> list[list[float]]:
    """Return the percentages of the attacks on each hospital's model."""
    config = Config.from_flat(keys(model, protected=protected) | {"seed": seed})
    engine = engine_of(config, problem_of(config), range(4))
    strategy, rule = config.strategy(), config.options.bind(engine, config.num_server_rounds)
    cohort = cohort_of(config, engine, rule, strategy.schedule)
    cohort.begin(1)
    for this in strategy.each_round(1, config.num_server_rounds, cohort.wants):
        cohort.exchange(this)
        cohort.update(this.t, {})
        cohort.begin(this.t + 1)
    rows, peers = list[list[float]](), np.arange(4)
    losses, right = list[list[Array]](), list[list[float]]()
    splits: tuple[SplitName, ...] = "train", "test"
    for split in splits:
        x, buffers = cohort.state.x, cohort.state.buffers
        outputs = engine.example_outputs(x, buffers, split, peers).double()
        lengths = engine.data.shards[split].lengths_p
        targets = [engine.data.shards[split].targets_pn[p, :n] for p, n in enumerate(lengths)]
        of = [(outputs[p, :n], targets[p]) for p, n in enumerate(lengths)]
        losses.append([np.asarray(engine.task.losses(z[None], y[None])[0]) for z, y in of])
        right.append([float((z.argmax(dim=1) == y).double().mean()) for z, y in of])
    named = engine.network.named(cohort.state.x)
    for p in range(4):
        inside, outside = losses[0][p], losses[1][p]
        scores = -np.concatenate([inside, outside])
        member = np.repeat([1, 0], [len(inside), len(outside)])
        alarms, found, _ = roc_curve(member, scores)
        values = np.nan
        if model in TREES:
            tree = {k: named[k][p].double().numpy() for k in TREE}
            values = 100 * thresholds(tree, engine.training_rows(p)[0])
        at = 100 * float(np.interp(FALSE_ALARMS, alarms, found))
        rows.append(
            [100 * roc_auc_score(member, scores), at, 100 * right[0][p], 100 * right[1][p], values]
        )
    return rows


def lines() -> list[str]:
    """Return the table as Markdown."""
    head = ["model", "", "membership", "found at 5 %", "label, patients", "label, others", "values"]
    table = [head, ["---"] * len(head)]
    for model in MODELS:
        for protected in (False, True) if model in TREES else (False,):
            of_seeds = [attacked(model, seed, protected=protected) for seed in range(SEEDS)]
            rows = np.concatenate(of_seeds)
            cells = [f"{each:.0f}" if np.isfinite(each) else "-" for each in np.mean(rows, axis=0)]
            table.append([model, "policy" if protected else "defaults", *cells])
    return [f"| {' | '.join(row)} |" for row in table]


def found(n: int, patients: int = 400) -> list[float]:
    """Return the percentages of the second table for n patients: before, now, guessed."""
    g, right = np.random.default_rng(n), [0, 0, 0]
    columns = [Column("chol")]
    for _ in range(patients):
        chol = g.normal(246, 52, n + 1).round()[:, None]
        exact = [np.array([len(c), c.mean()]) for c in (chol[:-1], chol)]
        before = [[float(f"{each:.2e}") for each in pair] for pair in exact]
        with TemporaryDirectory() as folder:
            memory = Memory(Path(folder))
            now = [
                memory.held(disclosed(c, columns, 20), c, columns, 20) for c in (chol[:-1], chol)
            ]
        for k, pairs in enumerate((before, [each[:2, 0].tolist() for each in now])):
            (n_0, mean_0), (n_1, mean_1) = pairs
            guess = (n_1 * mean_1 - n_0 * mean_0) / (n_1 - n_0) if n_1 > n_0 else mean_0
            right[k] += abs(guess / chol[-1, 0] - 1) <= 0.05
        right[2] += abs(chol[:-1].mean() / chol[-1, 0] - 1) <= 0.05
    return [100 * each / patients for each in right]


if __name__ == "__main__":
    print("\n".join(lines()))
    print("\n| patients | before | now | guessed |\n|---|---|---|---|")
    for count in (20, 50, 200):
        print(f"| {count} | {' | '.join(f'{each:.0f}' for each in found(count))} |")
