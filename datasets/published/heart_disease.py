"""Heart disease in four hospitals (UCI; Janosi, Steinbrunn, Pfisterer, Detrano 1988).

Prepared as in FLamby (Ogier du Terrail et al. 2022): columns 11 to 13 (slope, ca, thal), which are
mostly missing, are dropped, then patients with a missing value; chest pain and resting ECG become
indicators, without the first of each, which gives 13 features; the diagnosis is healthy (0) or ill
(1). Of the remaining 740 patients, 34 % of each hospital's are in the test set, which leaves 486
for training. Each hospital standardises by its own training patients.

Deviation: the test set is fixed and stratified by the diagnosis. The data are included (CC BY 4.0,
see heart_disease.toml); UCI's processed.*.data in data-dir/heart-disease take precedence.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np

from coterie.datasets.files.fingerprint import content, exists
from coterie.datasets.preprocessing import Column, RawTable
from coterie.datasets.problem import DataError, Floats
from coterie.datasets.source import Source, divided, spread

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
INCLUDED = Path(__file__).with_suffix(".toml")
COLUMNS, KEPT, DIAGNOSIS = 14, 10, 13
CHEST_PAIN, RESTING_ECG = 2, 6  # categorical columns
TESTED = 0.34
_NAMES = "age sex cp trestbps chol fbs restecg thalach exang oldpeak"
_CATEGORIES = {"cp": ("1", "2", "3", "4"), "restecg": ("0", "1", "2")}
RAW = tuple(
    Column(name, "category" if name in _CATEGORIES else "number", _CATEGORIES.get(name, ()))
    for name in _NAMES.split()
)
"""The first `KEPT` columns of the files."""


def read_heart_disease(data_dir: Path) -> Source:
    """Read heart disease: 13 features, 2 classes, 486 + 254; the groups are the hospitals."""
    inputs, targets, tests, cells = [], [], [], []
    for name, text in _tables(data_dir).items():
        patients = _read(name, text)
        ill = (patients[:, DIAGNOSIS] > 0).astype(np.int64)
        test = np.zeros(len(ill), dtype=bool)
        test[spread(np.argsort(ill, kind="stable"), int(np.ceil(TESTED * len(ill))))] = True
        features = _features(patients)
        mean, std = features[~test].mean(axis=0), features[~test].std(axis=0)
        inputs.append((features - mean) / np.where(std > 0, std, 1.0))
        targets.append(ill)
        tests.append(test)
        cells.append(patients[:, :KEPT] - np.eye(KEPT)[CHEST_PAIN])  # codes start at 0
    return divided(
        name="heart-disease",
        inputs=np.concatenate(inputs),
        targets=np.concatenate(targets),
        test=np.flatnonzero(np.concatenate(tests)),
        outputs=2,
        groups=np.repeat(np.arange(len(targets)), list(map(len, targets))),
        group_names=HOSPITALS,
        classes=("healthy", "ill"),
        table=RawTable(RAW, np.concatenate(cells)),
    )


def _tables(data_dir: Path) -> dict[str, str]:
    """Return the hospitals' files, name -> content: those in data-dir, or the included ones."""
    for folder in (data_dir / "heart-disease", data_dir):
        files = [folder / f"processed.{hospital}.data" for hospital in HOSPITALS]
        if all(map(exists, files)):
            return {str(file): content(file).decode("ascii", "replace") for file in files}
    included = tomllib.loads(content(INCLUDED).decode())
    return {f"{INCLUDED}, {hospital}": included[hospital] for hospital in HOSPITALS}


def included() -> dict[str, Floats]:
    """Return the complete patients (n, 14) of the included files, by hospital."""
    tables = tomllib.loads(INCLUDED.read_text(encoding="ascii"))
    return {name: _read(f"{INCLUDED}, {name}", tables[name]) for name in HOSPITALS}


def _features(patients: Floats) -> Floats:
    """Return the features (n, 13): eight numbers, then the indicators."""
    categories = {CHEST_PAIN: (2, 3, 4), RESTING_ECG: (1, 2)}  # without the first, 1 and 0
    numbers = np.delete(patients[:, :KEPT], list(categories), axis=1)
    indicators = [
        patients[:, column] == value for column in categories for value in categories[column]
    ]
    return np.column_stack([numbers, *indicators])


def _read(name: str, text: str) -> Floats:
    """Read the patients whose first ten values and diagnosis are known, (n, 14); nan elsewhere."""
    rows = []
    for number, line in enumerate(text.splitlines()):
        if not line.strip():
            continue
        try:
            values = [np.nan if v.strip() == "?" else float(v) for v in line.split(",")]
        except ValueError as error:
            raise DataError(f"{name}, line {number + 1}: {error}; download it again") from None
        if len(values) != COLUMNS:
            raise DataError(
                f"{name}, line {number + 1}: {len(values)} values, expected {COLUMNS}; "
                "use the processed.* files"
            )
        rows.append(values)
    patients = np.array(rows).reshape(-1, COLUMNS)
    known = ~np.isnan(patients[:, [*range(KEPT), DIAGNOSIS]]).any(axis=1)
    if known.sum() < 2:
        raise DataError(f"{name}: fewer than two complete patients; download it again")
    complete: Floats = patients[known]
    return complete
