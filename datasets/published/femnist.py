"""FEMNIST: handwritten characters by 3,550 writers, from LEAF's JSON files (Caldas et al. 2018).

A file is {"users": [name], "user_data": {name: {"x": [[784 numbers from 0, ink, to 1, paper]],
"y": [0 to 61]}}}; the folders train and test share each writer's examples.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase, digits
from typing import Any, Literal

import numpy as np

from coterie.datasets.files.fingerprint import Arrays, cached, record
from coterie.datasets.files.folders import folder_with
from coterie.datasets.problem import DataError
from coterie.datasets.source import Source, divided
from coterie.ranges import option

CLASSES = {"all": (0, 62), "digits": (0, 10), "a-to-j": (36, 46)}  # of 0-9, A-Z, a-z
REMEDY = (
    "make them with LEAF (https://github.com/TalwalkarLab/leaf): "
    "data/femnist/preprocess.sh -s niid --sf 1.0 -k 0 -t sample"
)


@dataclass(frozen=True)
class FemnistOptions:
    """Options of FEMNIST."""

    classes: Literal["all", "digits", "a-to-j"] = option(
        "all", "Characters: all 62, the 10 digits, or the 10 letters of FedProx and Ditto."
    )


def read_femnist(data_dir: Path, options: FemnistOptions) -> Source:
    """Read FEMNIST: (1, 28, 28), up to 62 classes, about 800,000; the groups are the writers."""
    folder = folder_with(
        "femnist", data_dir, ("femnist", "femnist/data"), ("train", "test"), REMEDY
    )
    record(folder)
    parts = {part: sorted((folder / part).glob("*.json")) for part in ("train", "test")}
    for part, files in parts.items():
        if not files:
            raise DataError(f"dataset femnist: no *.json in {folder / part}; {REMEDY}")
    files = [*parts["train"], *parts["test"]]
    arrays = cached(data_dir, "femnist", files, "1", lambda: _read(parts))
    first, last = CLASSES[options.classes]
    rows = (arrays["labels"] >= first) & (arrays["labels"] < last)
    return divided(
        name="femnist",
        inputs=arrays["images"][rows],
        targets=arrays["labels"][rows] - first,
        test=np.flatnonzero(arrays["test"][rows]),
        outputs=last - first,
        groups=arrays["writers"][rows],
        classes=tuple(digits + ascii_uppercase + ascii_lowercase)[first:last],
    )


def _read(parts: dict[str, list[Path]]) -> Arrays:
    """Read all files: images, labels, a mask of the test set, and writers, numbered by name."""
    shares = [
        (name, part == "test", *_checked(path, user))
        for part, files in parts.items()
        for path in files
        for name, user in _users(path)
    ]
    number = {name: i for i, name in enumerate(sorted({name for name, *_ in shares}))}
    sizes = [len(labels) for *_, labels in shares]
    return {
        "images": np.concatenate([images for _, _, images, _ in shares]),
        "labels": np.concatenate([labels for *_, labels in shares]),
        "test": np.repeat([test for _, test, _, _ in shares], sizes),
        "writers": np.repeat([number[name] for name, *_ in shares], sizes).astype(np.int64),
    }


def _users(path: Path) -> Sequence[tuple[str, Any]]:
    try:
        data = json.loads(path.read_bytes())
        return [(str(name), data["user_data"][name]) for name in data["users"]]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not a LEAF file ({type(error).__name__}: {error})") from None


def _checked(path: Path, user: Any) -> tuple[Any, Any]:
    try:
        images = np.array(user["x"], dtype=np.float32).reshape(-1, 1, 28, 28)
        labels = np.array(user["y"], dtype=np.int64).reshape(-1)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not FEMNIST's 28x28 images ({error})") from None
    if len(images) != len(labels):
        raise DataError(f"{path}: {len(labels)} labels for {len(images)} images")
    if len(labels) and not (images.min() >= 0 and images.max() <= 1):
        raise DataError(f"{path}: brightness outside 0 to 1")
    if len(labels) and not 0 <= labels.min() <= labels.max() < 62:
        raise DataError(f"{path}: labels outside 0 to 61")
    return np.rint(255 * images).astype(np.uint8), labels
