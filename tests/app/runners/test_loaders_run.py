"""A run from end to end on tiny files of every data set that has files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.app.config.config import Config, ConfigError
from coterie.app.config.preflight import check
from coterie.datasets.files import locate
from coterie.datasets.published import languages
from tests import published_files as published
from tests import tiny_files as tiny
from tests.inline import run

NATURAL = {
    "partition.kind": "natural", "partition.samples-per-peer": 0, "partition.min-samples": 2,
}  # fmt: skip
IID = {"partition.kind": "iid", "partition.samples-per-peer": 0}
SMALL_IMAGES = {"model": "linear", "learning-rate": 0.01, "peers": 2, **IID}
TRANSFORMER = {
    "model": "transformer", "transformer.width": 8, "transformer.heads": 2,
    "transformer.layers": 1,
}  # fmt: skip
Write = Callable[[Path], object]
ROWS: dict[str, tuple[Write, dict[str, Any]]] = {
    "fashion-mnist": (lambda d: published.write_idx(d / "fashion-mnist"), SMALL_IMAGES),
    "mnist": (lambda d: published.write_idx(d / "mnist"), SMALL_IMAGES),
    "cifar10": (lambda d: published.write_cifar10(d / "cifar10"), SMALL_IMAGES),
    "cifar100": (lambda d: published.write_cifar100(d / "cifar100"), SMALL_IMAGES),
    "cinic10": (
        tiny.write_cinic10,
        SMALL_IMAGES | {"augment": "crop-flip", "partition.validation": 0.2},
    ),
    "femnist": (
        tiny.write_femnist,
        NATURAL | {"peers": 3, "partition.missing-classes": 5, "femnist.classes": "digits"},
    ),
    "office-home": (
        lambda d: tiny.write_office_home(d, each=3),
        {
            "peers": 2, "partition.kind": "label-groups-dirichlet", "partition.clusters": 2,
            "partition.alpha": 0.4, "partition.min-samples": 2, "partition.samples-per-peer": 0,
        },
    ),
    "heart-disease": (tiny.write_heart_disease, NATURAL | {"peers": 4}),
    "ixi": (
        lambda d: tiny.write_ixi(d, tiny.SUBJECTS),
        NATURAL | {"peers": 3, "ixi.size": "8-8-8", "learning-rate": 0.5},
    ),
    "languages": (
        tiny.write_languages,
        NATURAL | TRANSFORMER | {"peers": 2, "languages.codes": "ca-es", "languages.context": 16},
    ),
    "wiki40b": (
        tiny.write_wiki40b,
        NATURAL | TRANSFORMER | {
            "peers": 2, "wiki40b.codes": "ca-es", "wiki40b.context": 16,
            "wiki40b.tokens": 700, "wiki40b.vocabulary": "bytes",
        },
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _nothing_from_the_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(locate, "SYSTEM", tmp_path / "system")
    monkeypatch.setattr(languages, "MANUALS", tmp_path / "system")


@pytest.mark.some(4)
@pytest.mark.slow
@pytest.mark.parametrize("dataset", ROWS)
def test_a_run_on_tiny_files(tmp_path: Path, dataset: str) -> None:
    write, flat = ROWS[dataset]
    write(tmp_path / "data")
    flat = {
        "method": "fedavg", "dataset": dataset, "num-server-rounds": 3, "evaluate-every": 3,
        "batch-size": 4, "local-steps": 3, "learning-rate": 0.05, "device": "cpu",
        "data-dir": str(tmp_path / "data"), **flat,
    }  # fmt: skip
    problem = check(Config.from_flat(flat))
    result = run(flat, tmp_path)
    assert result.rounds == [0, 3]
    for t in result.rounds:
        accuracy = result.metric("test_accuracy", t)
        assert ((accuracy >= 0) & (accuracy <= 1)).all()
        assert np.isfinite(result.metric("test_loss", t)).all()
    if "augment" not in flat:  # noise that moves is not learnt in nine steps
        assert result.metric("train_loss").mean() < result.metric("train_loss", 0).mean()
    assert len(result.models()) == problem.peers == flat["peers"]
    assert not any(array.flags.writeable for array in (problem.inputs, problem.mean))


def test_what_a_run_saved_is_the_base_of_another(tmp_path: Path) -> None:
    tiny.write_languages(tmp_path)
    flat: dict[str, Any] = {
        "method": "local", "dataset": "languages", "num-server-rounds": 1, "batch-size": 4,
        "optimizer": "adam", "learning-rate": 0.01, "device": "cpu", "data-dir": str(tmp_path),
        "languages.codes": "ca-es", "languages.context": 16,
    }  # fmt: skip
    of_base: dict[str, Any] = {
        "peers": 1, **IID, "local-steps": 10, "model": "transformer",
        "transformer.layers": 1, "transformer.width": 64, "transformer.heads": 1,
    }  # fmt: skip
    file = tmp_path / "models" / "peer-0000.safetensors"
    adapted: dict[str, Any] = {
        "peers": 2, **NATURAL, "model": "gpt2",
        "gpt2.weights-file": str(file), "method": "cobo", "cobo.simplex": True,
    }  # fmt: skip
    with pytest.raises(ConfigError, match=r"^gpt2: no weights in .*transformer"):
        check(Config.from_flat(flat | adapted))
    base = run(flat | of_base, tmp_path)
    assert file.is_file()
    result = run(flat | adapted, tmp_path / "adapted")
    learnt = base.metric("test_loss").mean()
    assert result.metric("test_loss", 0).mean() == pytest.approx(learnt, abs=0.05)
    assert result.metric("train_loss").mean() < learnt < base.metric("test_loss", 0).mean() - 0.5
    assert all(name.endswith((".A", ".B")) for model in result.models() for name in model)


@pytest.mark.parametrize("dataset", ["heart-disease", "languages", "ixi"])
def test_what_is_no_image_is_not_augmented(tmp_path: Path, dataset: str) -> None:
    write, flat = ROWS[dataset]
    write(tmp_path)
    flat = flat | {"dataset": dataset, "data-dir": str(tmp_path), "augment": "crop-flip"}
    with pytest.raises(ConfigError, match=r'augment = "crop-flip" requires images, .*"none"'):
        check(Config.from_flat(flat))
