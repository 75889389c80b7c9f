"""Tiny data sets in the formats the real ones were published in."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from coterie.datasets.published.images import PHOTOGRAPHED
from coterie.datasets.published.office_home import DOMAINS, WEIGHTS

Bytes = npt.NDArray[np.uint8]


def write_cinic10(data_dir: Path, each: int = 2) -> list[Bytes]:
    """`each` images of every class and part; the images, in the order of part, class, name."""
    g = np.random.default_rng(0)
    images = []
    for part in ("train", "valid", "test"):
        for name in PHOTOGRAPHED:
            folder = data_dir / "cinic10" / part / name
            folder.mkdir(parents=True)
            for number in range(each):
                images.append(g.integers(256, size=(32, 32, 3), dtype=np.uint8))
                Image.fromarray(images[-1]).save(folder / f"cifar10-{part}-{number}.png")
    return images


def leaf(path: Path, users: Mapping[str, tuple[Sequence[Sequence[float]], Sequence[int]]]) -> None:
    """A LEAF file of these writers' (images, labels)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {name: {"x": [list(x) for x in xs], "y": list(y)} for name, (xs, y) in users.items()}
    sizes = [len(y) for _, y in users.values()]
    text = json.dumps({"users": list(users), "num_samples": sizes, "user_data": data})
    path.write_text(text)


def write_femnist(data_dir: Path, writers: int = 4, each: int = 2) -> None:
    """Writers in two files a part, each with `each` training digits of a class and one test."""
    g = np.random.default_rng(1)
    for part, count in (("train", each), ("test", 1)):
        labels = np.repeat(np.arange(10), count).tolist()
        names = [f"f{number:04d}_{number:02d}" for number in range(writers)]
        for half, some in enumerate(np.array_split(names, 2)):
            users = {str(name): (g.random((len(labels), 784)).tolist(), labels) for name in some}
            leaf(
                data_dir / "femnist" / part / f"all_data_{half}_niid_0_keep_0_{part}_9.json", users
            )


def write_office_home(data_dir: Path, each: int = 5) -> None:
    """Two classes in four domains, JPEG images of several sizes, and an untrained extractor."""
    import torch
    from torchvision.models import resnet18

    g = np.random.default_rng(2)
    for domain in DOMAINS:
        for kind in ("Alarm_Clock", "Backpack"):
            folder = data_dir / "office-home" / domain / kind
            folder.mkdir(parents=True)
            for number in range(each):
                pixels = g.integers(256, size=(20 + number, 30, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number:05d}.jpg")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        torch.save(resnet18().state_dict(), data_dir / WEIGHTS)


def patient(age: float, pain: int, ecg: int, diagnosis: int, missing: Sequence[int] = ()) -> str:
    """A line of a processed.*.data file; `missing` columns are unknown."""
    known = [age, 1.0, pain, 130.0 + age, 200.0, 0.0, ecg, 150.0 - age, 0.0, 1.5, 2.0, 0.0, 3.0]
    fields = [str(float(value)) for value in known] + [str(diagnosis)]
    return ",".join("?" if column in missing else f for column, f in enumerate(fields))


def write_heart_disease(data_dir: Path, each: int = 12) -> None:
    """Four hospitals whose patients differ in age; the ill ones are older."""
    folder = data_dir / "heart-disease"
    folder.mkdir(parents=True)
    for hospital, name in enumerate(("cleveland", "hungarian", "switzerland", "va")):
        lines = [
            patient(
                30 + 10 * hospital + k + 20 * (k % 3), 1 + k % 4, k % 3, k % 3, missing=(11, 12)
            )
            for k in range(each)
        ]
        (folder / f"processed.{name}.data").write_text("\n".join(lines) + "\n")


def write_ixi(
    data_dir: Path, subjects: Sequence[str], shape: tuple[int, int, int] = (8, 6, 7)
) -> None:
    """A scan of noise and a brain in the middle of it for each of "IXI002-Guys-0828" and so on."""
    import nibabel

    g = np.random.default_rng(3)
    for part in ("image", "label"):
        (data_dir / "ixi" / part).mkdir(parents=True)
    for subject in subjects:
        mask = np.zeros(shape, dtype=np.uint8)
        mask[tuple(slice(side // 4, -(side // 4)) for side in shape)] = 1
        scan = g.normal(100, 10, shape).astype(np.float32) + 50 * mask
        for part, voxels in (("image", scan), ("label", mask)):
            file = data_dir / "ixi" / part / f"{subject}_{part}.nii.gz"
            nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), file)  # type: ignore[no-untyped-call]


SUBJECTS = [
    f"IXI{number:03d}-{hospital}-{1000 + number}"
    for number, hospital in enumerate(["Guys"] * 5 + ["HH"] * 5 + ["IOP"] * 5)
]


def write_languages(data_dir: Path, codes: Sequence[str] = ("ca", "es"), words: int = 400) -> None:
    """Manuals of words of each language's own letters, in paragraphs."""
    folder = data_dir / "languages"
    folder.mkdir(parents=True)
    g = np.random.default_rng(4)
    for number, code in enumerate(codes):
        letters = "abcdefghijklmnopqrstuvwx"[4 * number : 4 * number + 4]
        text = ["".join(g.choice(list(letters), 5)) for _ in range(words)]
        paragraphs = ["\n".join(text[first : first + 20]) for first in range(0, words, 20)]
        (folder / f"install.{code}.txt.gz").write_bytes(
            gzip.compress("\n\n".join(paragraphs).encode())
        )


def write_wiki40b(data_dir: Path, codes: Sequence[str] = ("ca", "es"), articles: int = 30) -> None:
    """Articles as Wiki-40B's `text` has them."""
    for number, code in enumerate(codes):
        folder = data_dir / "wiki40b" / code
        folder.mkdir(parents=True)
        for part in ("train", "test"):
            text = [
                f"_START_ARTICLE_\nTitle {code} {k}\n_START_PARAGRAPH_\n"
                f"{'xy'[number % 2] * 20}_NEWLINE_més {k}"
                for k in range(articles)
            ]
            (folder / f"{part}.txt").write_text("\n".join(text), encoding="utf-8")


def write_gpt2_vocabulary(data_dir: Path) -> None:
    """GPT-2's two files with its 256 byte tokens and a single merge, "x" and "x"."""
    from tokenizers.pre_tokenizers import ByteLevel

    folder = data_dir / "gpt2"
    folder.mkdir(parents=True)
    tokens = [*sorted(ByteLevel.alphabet()), "xx"]
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\nx x\n")
