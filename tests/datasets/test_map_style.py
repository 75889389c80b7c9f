"""Map-style data sets of PyTorch, torchvision and Hugging Face: the arrays read from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
)
from torchvision import transforms
from torchvision.datasets import FakeData

from coterie.datasets.map_style import with_arrays
from coterie.datasets.partition.options import Partition
from coterie.datasets.problem import DataError
from coterie.datasets.source import Source
from coterie.datasets.table import dataset_of

X = torch.arange(120.0).reshape(40, 3)
Y = torch.arange(40) % 3
TENSORS = TensorDataset(X, Y)


class Frame(Dataset[Any]):
    """Rows of a DataFrame: numbers and a text as label."""

    def __init__(self) -> None:
        self.frame = pd.DataFrame({"a": np.arange(20.0), "b": 1.0, "sick": ["no", "yes"] * 10})

    def __len__(self) -> int:
        return len(self.frame)

    def __getitem__(self, i: int) -> Any:
        row = self.frame.iloc[i]
        return torch.tensor([row.a, row.b]), row.sick


class Columns(Frame):
    """Examples with columns, as those of Hugging Face."""

    column_names = ("inputs", "label")
    shape = (20, 2)

    def __getitem__(self, i: int) -> Any:
        return {"inputs": [float(i), 1.0], "label": i % 2}


def peer(data: Any) -> dict[str, Any]:
    (arrays,) = with_arrays("d", [data])
    assert isinstance(arrays, dict)
    return arrays


def test_tensors_subsets_and_concatenations_are_read_in_order() -> None:
    whole = peer(TENSORS)
    assert np.array_equal(whole["x"], X.numpy())
    assert np.array_equal(whole["y"], Y.numpy())
    rows = [7, 3, 30]
    assert np.array_equal(peer(Subset(TENSORS, rows))["x"], X.numpy()[rows])
    both: Dataset[Any] = ConcatDataset([Subset(TENSORS, rows), TENSORS])
    assert np.array_equal(peer(both)["x"], np.concatenate([X.numpy()[rows], X.numpy()]))


def test_images_have_their_channels_first_with_and_without_a_transform() -> None:
    """A transform to tensors divides by 255; Pillow's images keep their bytes."""
    plain = peer(FakeData(6, (3, 9, 8), 4))
    made = peer(FakeData(6, (3, 9, 8), 4, transform=transforms.ToTensor()))
    assert plain["x"].shape == made["x"].shape == (6, 3, 9, 8)
    assert np.allclose(plain["x"] / 255, made["x"])


def test_labels_that_are_texts_or_numbers() -> None:
    assert set(peer(Frame())["y"]) == {"no", "yes"}
    source = with_arrays("d", TensorDataset(X, X[:, 0]))
    assert source.task == "regression"
    assert source.outputs == 1


def test_names_of_classes() -> None:
    """They count if the labels are their numbers: a target transform can make others."""
    data = FakeData(12, (1, 8, 8), 3, transform=transforms.ToTensor())
    data.classes = ["cat", "cow", "dog"]
    assert peer(data)["classes"] == ["cat", "cow", "dog"]
    data.target_transform = lambda label: label + 5
    assert "classes" not in peer(data)


def test_train_and_test_of_a_peer_and_of_a_set_to_be_partitioned() -> None:
    pair = (TENSORS, Subset(TENSORS, [0, 1]))
    assert len(peer(pair)["x_test"]) == 2
    named = peer({"train": TENSORS, "test": pair[1], "name": "north"})
    assert named["name"] == "north"
    assert len(named["x_test"]) == 2
    source = with_arrays("d", pair)
    assert isinstance(source, Source)
    assert source.train.tolist() == [*range(40)]
    assert source.test.tolist() == [40, 41]


def test_a_fifth_of_each_class_is_for_testing_if_there_is_no_test_set() -> None:
    source = with_arrays("d", TENSORS)
    assert len(source.test) == 8
    assert np.bincount(source.targets[source.test]).tolist() == [3, 2, 3]
    assert not {*source.train} & {*source.test}


def test_a_name_of_a_set_is_enough(tmp_path: Path) -> None:
    name = f"{__name__}:TENSORS"
    problem = dataset_of(name).load(Partition(kind="iid"), 4, 0, tmp_path, None)
    assert problem.samples.tolist() == [8] * 4


def test_columns_as_those_of_hugging_face() -> None:
    assert peer(Columns())["x"].tolist() == [[float(i), 1.0] for i in range(20)]
    more = Columns()
    more.column_names = ("inputs", "id", "label")  # type: ignore[assignment]
    with pytest.raises(DataError, match=r'dataset.select_columns\(\["image", "label"\]\)'):
        peer(more)


def test_a_tuple_of_arrays_is_no_pair_of_train_and_test() -> None:
    with pytest.raises(DataError, match=r'name arrays, \{"x": ..., "y": ...\}'):
        with_arrays("d", (X.numpy(), Y.numpy()))


def test_a_random_transform_causes_a_warning() -> None:
    random = transforms.Compose([transforms.RandomCrop(8), transforms.ToTensor()])
    with pytest.warns(UserWarning, match='augment = "crop-flip"'):
        peer(FakeData(8, (1, 16, 16), 2, transform=random))


class _Items(Dataset[Any]):
    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i: int) -> Any:
        return self.items[i]


class _Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(TENSORS)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (_Items({"image": 1, "label": 2}), r"return example\['image'\], example\['label'\]"),
        (_Items({}), "an example is a dict"),
        (_Items((X, Y, Y)), r"a tuple: .* return example\[0\], example\[1\]"),
        (_Items(X[0]), "an example is a Tensor"),
        (_Items((X[0], 1), (X[0, :2], 1)), r"shapes, \(2,\) and \(3,\): add a transform"),
        (_Items(("text", 1)), "inputs are a str, not numbers: add a transform"),
        (_Items(), "_Items is no data set with examples"),
        (DataLoader(TENSORS), "DataLoader has no numbered examples: pass loader.dataset"),
        (_Stream(), r"IterableDataset has no numbered examples: pass a data set with"),
        ((TENSORS, X), "test: Tensor is no data set"),
    ],
)
def test_errors_show_what_to_write(data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        peer(data)
