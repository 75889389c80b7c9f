"""Labels by chance per patient: nothing can be learnt, and nothing seems to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from coterie.app.config.config import Config
from coterie.app.config.preflight import problem_of
from coterie.app.node.assembly import engine_of
from coterie.app.runs.rundir import Run
from studies import patients

BY_PATIENT = {"table.group": "patient"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("coin")
    patients.write(folder, "coin", 0)
    return folder


def auroc(keys: dict[str, Any], data: Path, directory: Path) -> float:
    return float(np.mean(patients.carried_out(keys, data, directory).last("auroc")))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["local", "knn-per", "logistic", "forest", "stacking"])
def test_labels_by_chance_per_patient_give_chance(method: str, data: Path, tmp_path: Path) -> None:
    """40 test patients in all: AUROC 0.5 within 3 standard errors of about 0.09.

    Divided by rows, a forest finds each patient's other visits.
    """
    keys = {"method": method, "num-server-rounds": 10, "evaluate-every": 10}
    keys |= {"model": "forest", "forest.trees": 20} if method == "stacking" else {}
    assert abs(auroc(keys | BY_PATIENT, data, tmp_path / "patients") - 0.5) < 0.27
    if method in ("forest", "stacking"):
        assert auroc(keys, data, tmp_path / "rows") > 0.9


def test_predictions_out_of_fold_know_no_patient(data: Path) -> None:
    flat = patients.FLAT | {"method": "stacking", "model": "forest", "data-dir": str(data)}
    flat["table.validation"] = 0.0
    measured = {}
    for name, more in {"rows": {}, "patients": BY_PATIENT}.items():
        config = Config.from_flat(flat | more)
        problem = problem_of(config)
        engine = engine_of(config, problem, [0])
        assert engine.library is not None
        groups, folds = engine.data.groups("train", 0), engine.library.folds(engine.data, 0, 0)
        outputs = engine.library.out_of_fold(engine.data, 0, 0, torch.zeros(engine.d))
        measured[name] = roc_auc_score(engine.training_rows(0)[1], outputs[:, 1] - outputs[:, 0])
        if groups is not None:
            assert all(len({*folds[groups == each]}) == 1 for each in groups)
            assert np.ptp(np.bincount(folds)) <= 6, "folds differ by a patient at most"
    assert measured["rows"] > 0.9
    assert 0.2 < measured["patients"] < 0.8


def test_a_run_counts_patients_on_every_page(data: Path, tmp_path: Path) -> None:
    keys: dict[str, Any] = {"method": "local", "num-server-rounds": 2, "evaluate-every": 2}
    grouped = patients.carried_out(keys | BY_PATIENT, data, tmp_path / "patients")
    plain = patients.carried_out(keys, data, tmp_path / "rows")
    assert (grouped.is_grouped, plain.is_grouped) == (True, False)
    for part, (rows, of) in {"train": (180, 30), "validation": (60, 10), "test": (60, 10)}.items():
        assert (sizes(grouped, part, False), sizes(grouped, part, True)) == ({rows}, {of})
        assert sizes(plain, part, True) == {rows}, "each row counts"
    card = (grouped.directory / "models" / "peer-0000.md").read_text()
    assert "30 for train, 10 for test, 10 for validation" in card
    split = (plain.directory / "split.json").read_text()
    assert "group" not in split
    assert '"groups"' not in (plain.directory / "models" / "peer-0000.json").read_text()
    for file in grouped.directory.rglob("*"):
        assert not file.is_file() or b"P07" not in file.read_bytes(), "no file names a patient"


def sizes(run: Run, part: str, in_groups: bool) -> set[float]:
    sizes_n = run.sizes(part, in_groups=in_groups)
    assert sizes_n is not None
    return {*sizes_n.tolist()}
