"""Images of institutions: one folder per class, named like the class.

    data-dir/train/<class>/...    data-dir/test/<class>/...    data-dir/validation/<class>/...

or just data-dir/<class>/..., of which a share is held out for the test. With `masks`, images and
masks have the same name:

    data-dir/images/...    data-dir/masks/...    (or both in train/, test/, validation/)

All images have the shape of the run, or are resized to it.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from coterie.datasets import grammar
from coterie.datasets.account import Account
from coterie.datasets.files.folders import IMAGES, files_below, read_bytes
from coterie.datasets.files.pixels import (
    BadImageError,
    Choices,
    Decoded,
    NoImageError,
    decode,
    resized,
)
from coterie.datasets.own import cells
from coterie.datasets.own.institutions import (  # fmt: skip
    PARTS,
    Expected,
    HeldOptions,
    Holding,
    RefusedError,
    make_holding,
    words,
)
from coterie.datasets.own.schema import FILE, Schema, agreed
from coterie.datasets.problem import DataError, Floats, Task
from coterie.ranges import option

if TYPE_CHECKING:
    import pyarrow as pa

_STARTS = {"train": "train", "val": "validation", "dev": "validation", "test": "test"}
"""Start of a folder's name, in lower case -> part that it probably is."""
Part = tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]
"""Images, classes or masks, and numbers of groups."""
_VALUES = 50
"""Maximum number of values of a property that are counted apart."""
_SIDES = ("height", "width", "slices")
T = TypeVar("T")
_NAME = re.compile(r"(_(image|img|mask|label|seg|segmentation))?((\.nii)?\.\w{1,5})?$", re.I)
"""End of a file's name that image and mask need not share."""


@dataclass(frozen=True)
class ImageFolderOptions(HeldOptions):
    """Options of the data set "image-folder"."""

    classes: str = option(
        "",
        'Names of the classes in the order of the model\'s outputs, "normal, pneumonia"; with '
        "`masks` those of the pixels, the background first.",
    )
    shape: str = option(
        "1x28x28",
        'Channels, height and width of every image, "1x28x28"; 1 channel is grey, 3 are colour. '
        'NIfTI volumes have three sides, "1x48x60x48".',
    )
    fit: Literal["exact", "resize", "crop"] = option(
        "exact",
        '"exact" rejects images of another size, "resize" scales both sides, "crop" scales the '
        "shorter side and crops the centre.",
    )
    _: KW_ONLY
    mean: str = option(
        "", "Mean of the pixels (0 to 255), a number per channel; empty for each peer's own."
    )
    std: str = option(
        "", "Standard deviation of the pixels, a number per channel; empty for each peer's own."
    )
    masks: str = option(
        "",
        'Segmentation: name of the folder with a mask for each image of the folder "images", of '
        "the same name; a mask has the number of each pixel's class, or two values for two "
        "classes. Empty for images in a folder per class.",
    )
    depth: Literal["same", "scale", "as-stored"] = option(
        "same",
        '"same" rejects images of different depth at one peer, because a value of 8 bits and one '
        'of 16 bits do not mean the same; "scale" maps the range of each depth to 0 to 255; '
        '"as-stored" keeps all values, which is right if they have a unit.',
    )
    window: str = option(
        "none",
        'Window of grey DICOM images: "none", because a window is a choice for the display of one '
        'image, and the same tissue would get different values; "file" applies that of the file; '
        '"CENTRE/WIDTH" as in "40/400" clips all images alike.',
    )
    padding: Literal["nearest", "keep"] = option(
        "nearest",
        'Pixels of a DICOM image outside the scanned area (PixelPaddingValue): "nearest" gives '
        'them the nearest value of the image, because values such as -3024 distort its mean; "keep"'
        " keeps them.",
    )
    group: Literal["auto", "folder", "none"] = option(
        "auto",
        'Images that stay together in every division: "auto" those of a patient (DICOM\'s '
        'PatientID, which is never written), "folder" those of a folder below the class, "none" '
        "each for itself.",
    )
    schema: str = option(
        "",
        "Digest of schema.toml, which describes depth, modality and other properties of the "
        "images and must be the same for all peers (coterie schema FOLDER); in a simulation also "
        '"file". Empty: properties that differ are findings.',
    )

    def __post_init__(self) -> None:
        sides = self.shape.split("x")
        is_sound = all(side.isdecimal() and int(side) > 0 for side in sides)
        if len(sides) not in (3, 4) or not is_sound:
            raise ValueError(
                f'shape must be channels, height and width like "1x28x28", not "{self.shape}"'
            )
        if int(sides[0]) not in (1, 3) or (len(sides) == 4 and int(sides[0]) != 1):
            raise ValueError(
                f"shape: images have 1 channel (grey) or 3 (colour), volumes 1, not {sides[0]}"
            )
        if len(sides) == 4 and self.fit == "crop":
            raise ValueError('fit = "crop" is for images, not for volumes: choose "resize"')
        if not re.fullmatch(r"none|file|-?\d+(\.\d+)?/(?!0+(\.0*)?$)\d+(\.\d+)?", self.window):
            raise ValueError(f'window must be "none", "file" or like "40/400", not "{self.window}"')
        if "/" in self.masks or "\\" in self.masks or self.masks in (".", "..", "images"):
            raise ValueError(f'masks must be the name of a folder, not "{self.masks}"')
        super().__post_init__()
        self.normalisation()

    def check_peers(self, peers: int) -> None:
        if len(set(words(self.classes))) != len(words(self.classes)) or not words(self.classes):
            raise ValueError('classes must name each class once, like "normal, pneumonia"')
        if self.masks and len(words(self.classes)) < 2:
            raise ValueError('classes of masks begin with the background: "background, tumour"')

    @property
    def sides(self) -> tuple[int, ...]:
        """Channels, height and width, or channels and the three sides of a volume."""
        return tuple(map(int, self.shape.split("x")))

    def normalisation(self) -> Floats | None:
        """Return `mean` and `std`, (2, channels, 1, ...), None: each peer's own; ValueError."""
        channels, *sides = self.sides
        try:
            mean, std = (list(map(grammar.number, words(each))) for each in (self.mean, self.std))
        except ValueError:
            mean, std = [], [0.0]
        if not mean and not std:
            return None
        is_sound = len(mean) == len(std) == channels and np.isfinite([mean, std]).all()
        if not is_sound or min(std) <= 0:
            raise ValueError(f"mean and std must be empty, or {channels} numbers each, std above 0")
        return np.reshape([mean, std], (2, channels, *[1] * len(sides)))


@dataclass
class _Reading:
    """Account of one peer's folder while it is read."""

    options: ImageFolderOptions
    base: Path
    schema: Schema
    left_out: Counter[str] = field(default_factory=Counter)
    groups: dict[str, int] = field(default_factory=dict)
    seen: list[Mapping[str, str]] = field(default_factory=list)  # properties of the images
    read: int = 0  # images and masks
    images: int = 0
    nameless: int = 0  # images in folders below a class that are not grouped

    def examples(self, paths: Sequence[Path]) -> list[tuple[Path, Decoded]]:
        """Read files, and count their properties and what is left out."""
        examples, left_out = read_examples(paths, self.options)
        _check_schema(examples, self.schema)
        self.left_out += left_out
        self.seen += [example.properties for _, example in examples]
        self.read += len(examples)
        return examples

    def below(self, folder: Path) -> list[Path]:
        """Return the files of a folder, and count those that are left out by their names."""
        files, left_out = files_below(folder, self.base)
        self.left_out += left_out
        return files

    def group_of(self, path: Path, folder: Path, example: Decoded) -> int:
        """Number the group of an image: names of patients end here."""
        own = f"file {len(self.groups)}"
        self.images += 1
        inside = path.relative_to(folder).parts
        if self.options.group == "folder" and len(inside) > 1:
            own = f"folder {inside[0]}"
        elif self.options.group == "auto" and example.patient:
            own = f"patient {example.patient}"
        else:
            self.nameless += len(inside) > 1 or example.properties["format"] == "DICOM"
        return self.groups.setdefault(own, len(self.groups))

    def _notes(self, missing: Sequence[str]) -> str:
        """Return the number of groups, of images that may have others, and empty classes."""
        n_groups, group = len(self.groups), self.options.group
        notes = []
        if n_groups < self.images:
            notes.append(f"of {n_groups} {'folders' if group == 'folder' else 'patients'}")
        if self.nameless and group == "auto":
            notes.append(
                f'{self.nameless} without PatientID (image-folder.group = "folder" keeps the '
                "images of a folder in one part)"
            )
        return ", ".join([*notes, *(f"none of {name}" for name in missing)])

    def account(self, missing: Sequence[str]) -> Account:
        """Return the counts; RefusedError: values of different depth do not mean the same."""
        properties = _counted(self.seen)
        depths = properties["depth"]
        if len(depths) > 1 and self.options.depth == "same":
            raise RefusedError(
                f"image-folder: the {self.read} images of this peer have {len(depths)} depths, so "
                'their values do not mean the same; image-folder.depth = "scale" maps the range '
                'of each to 0 to 255, "as-stored" keeps the values',
                [f"{count} have {depth}" for depth, count in depths.items()],
            )
        n_files = self.read + self.left_out.total()
        return Account(n_files, dict(self.left_out), self._notes(missing), properties)


def read_image_folder(
    folder: Path, options: ImageFolderOptions, seed: int, peer: int
) -> tuple[Expected, Holding]:
    """Read one institution's images."""
    # DataError: there are no images, or a class or an image does not fit the run.
    classes = words(options.classes)
    task: Task = "segmentation" if options.masks else "classification"
    scale = options.normalisation()
    mean, std = (None, None) if scale is None else scale
    expected = Expected("image-folder", task, len(classes), mean, std, tuple(classes))
    reading = _Reading(options, folder, agreed(folder, "image-folder", options.schema))
    folders = {"train": folder}
    if (folder / "train").is_dir():
        names = _folders(folder, PARTS, "parts train, validation, test", reading)
        folders = {name: folder / name for name in PARTS if name in names}
    read = _masked_part if options.masks else _part
    contents = {name: read(path, reading, classes) for name, path in folders.items()}
    parts = {name: (inputs, targets) for name, (inputs, targets, _) in contents.items()}
    groups = {name: of_part for name, (*_, of_part) in contents.items()}
    has_groups = len(reading.groups) < reading.images
    if has_groups and len(reading.groups) == 1 and len(parts) == 1:
        raise DataError(
            f"image-folder: all {reading.images} images of this peer are of one patient or "
            'folder, so none can be held out: set image-folder.group = "none" if they are of '
            "several patients"
        )
    holding = make_holding(
        expected, parts, options, seed, peer, groups=groups if has_groups else None
    )
    present = {each for _, targets in parts.values() for each in np.unique(targets).tolist()}
    account = reading.account([name for k, name in enumerate(classes) if k not in present])
    depths = [*account.properties["depth"]]
    fitted = replace(holding.preprocessing, depth=depths[0] if len(depths) == 1 else "")
    return expected, replace(holding, preprocessing=fitted, account=account)


def _folders(
    folder: Path, names: Sequence[str], meaning: str, reading: _Reading
) -> dict[str, list[Path]]:
    """Return the folders by their expected names, and count the files beside them."""
    # RefusedError: a folder has none of these names.
    found: dict[str, list[Path]] = defaultdict(list)
    plain = {unicodedata.normalize("NFC", name): name for name in names}
    unknown = []
    for path in sorted(path for path in folder.glob("*") if path.is_dir()):
        name = plain.get(unicodedata.normalize("NFC", path.name))
        if name is not None:
            found[name].append(path)
        elif path.name.startswith((".", "__MACOSX")):
            reading.below(path)
        else:
            unknown.append(path.name)
    if unknown:
        raise RefusedError(
            f"image-folder: {len(unknown)} of {len(unknown) + sum(map(len, found.values()))} "
            f"folders are not named like the run's {meaning}",
            [each + _meant(each, names) for each in unknown],
        )
    files, left_out = files_below(folder, reading.base, deep=False)
    reading.left_out += left_out
    for path in files:
        if path.name != FILE:
            reading.left_out[_kind("beside the folders", path)] += 1
    return found


def _meant(name: str, names: Sequence[str]) -> str:
    part = next((x for start, x in _STARTS.items() if name.casefold().startswith(start)), "")
    if part == name:
        return " (a part, but there is no folder train)"
    meant = cells.similar(name, names) or part
    return f' (did you mean "{meant}"? rename it)' if meant else ""


def _part(folder: Path, reading: _Reading, classes: list[str]) -> Part:
    """Return images, classes and groups of a folder with a folder per class."""
    class_folders = _folders(folder, classes, f"classes {', '.join(classes)}", reading)
    in_class = {
        path: (classes.index(name), class_folder)
        for name, of_class in class_folders.items()
        for class_folder in of_class
        for path in reading.below(class_folder)
    }
    examples = reading.examples(sorted(in_class))
    if not examples:
        raise DataError(
            f"image-folder: no images in this peer's data-dir, expected folders "
            f"{', '.join(classes)} with {', '.join(IMAGES)}, or DICOM files without suffix"
        )
    groups = [reading.group_of(path, in_class[path][1], each) for path, each in examples]
    labels = np.array([in_class[path][0] for path, _ in examples], dtype=np.int64)
    return np.stack([each.values for _, each in examples]), labels, np.array(groups)


def _masked_part(folder: Path, reading: _Reading, classes: list[str]) -> Part:
    options = reading.options
    pair = _folders(folder, ("images", options.masks), f"images, {options.masks}", reading)
    if [*map(len, pair.values())] != [1, 1]:
        raise DataError(f"image-folder: expected one folder images and one {options.masks}")
    (image_folder,), (mask_folder,) = pair["images"], pair[options.masks]
    examples = reading.examples(reading.below(image_folder))
    grey = "x".join(map(str, (1, *options.sides[1:])))
    plain = replace(options, shape=grey, window="none", padding="keep", depth="as-stored")
    masks, left_out = read_examples(reading.below(mask_folder), plain, is_mask=True)
    reading.left_out += left_out
    image_of = {_stem(path, image_folder): (path, each) for path, each in examples}
    mask_of = {_stem(path, mask_folder): (path, each) for path, each in masks}
    alone = image_of.keys() ^ mask_of.keys()
    twice = [path for path, _ in examples if image_of[_stem(path, image_folder)][0] != path]
    twice += [path for path, _ in masks if mask_of[_stem(path, mask_folder)][0] != path]
    if not examples or alone or twice:
        raise RefusedError(
            f"image-folder: {len(examples)} images and {len(masks)} masks in {options.masks} are "
            f"no pairs of the same name: {len(alone)} have no partner, {len(twice)} have the name "
            "of another",
            [*(str((image_of | mask_of)[stem][0]) for stem in sorted(alone)), *map(str, twice)],
        )
    targets = [mask_of[stem] for stem in image_of]
    if apart := [
        f"{path} differs in {name} from its image: {mask.properties.get(name)}, {value}"
        for (_, image), (path, mask) in zip(examples, targets, strict=True)
        for name, value in image.properties.items()
        if name in ("size", "spacing")
        if mask.properties.get(name, "") not in ("", value)
    ]:
        raise RefusedError(f"image-folder: {len(apart)} masks do not lie on their images", apart)
    groups = [reading.group_of(path, image_folder, each) for path, each in examples]
    labels = np.stack([each.values[0] for _, each in targets])
    values = np.unique(labels).tolist()
    if len(classes) == 2 and len({*values} - {0}) == 1:
        labels = labels != 0
    elif not {*values} <= {*range(len(classes))}:
        raise RefusedError(
            f"image-folder: the masks have values other than 0 to {len(classes) - 1}, the numbers "
            f"of the classes {', '.join(classes)}",
            [", ".join(f"{value:g}" for value in values[:20])],
        )
    reading.read += len(targets)
    images = np.stack([each.values for _, each in examples])
    return images, labels.astype(np.uint8), np.array(groups)


def _stem(path: Path, folder: Path) -> str:
    inside = path.relative_to(folder)
    return str(inside.with_name(_NAME.sub("", inside.name)))


def read_examples(
    paths: Sequence[Path], options: ImageFolderOptions, *, is_mask: bool = False
) -> tuple[list[tuple[Path, Decoded]], Counter[str]]:
    """Read the images among files, and count the others by their kind."""
    # RefusedError: an image cannot be used, or a file named like one holds none.
    what = f"{'masks' if is_mask else 'images'} do not fit the run (shape {options.shape}, fit = "
    return _each(
        paths, lambda path: read_example(path, options, is_mask=is_mask), f"{what}{options.fit})"
    )


def _each(
    paths: Sequence[Path], read: Callable[[Path], T], wrong: str
) -> tuple[list[tuple[Path, T]], Counter[str]]:
    images, left_out, bad = [], Counter[str](), []
    for path in paths:
        try:
            images.append((path, read(path)))
        except NoImageError as error:
            if path.suffix.lower() in IMAGES and not str(error).startswith("DICOM"):
                bad.append(f"{path} cannot be read: it is damaged, or {error} in spite of its name")
            else:
                left_out[_kind(str(error), path)] += 1
        except BadImageError as error:
            bad.append(f"{path} {error}")
    if bad:
        raise RefusedError(f"image-folder: {len(bad)} of {len(paths)} {wrong}", bad)
    return images, left_out


def _kind(kind: str, path: Path) -> str:
    """Return the kind of a file with its suffix, unless this may be part of a name."""
    suffix = path.suffix.lower()
    return f"{kind} ({suffix if re.fullmatch(r'[.][a-z]{1,5}[0-9]?', suffix) else 'no suffix'})"


def read_pixels(path: Path, options: ImageFolderOptions) -> npt.NDArray[Any] | str:
    """Read an image as (channels, height, width), or return the reason why it does not fit."""
    # Images of 8 bits are uint8, others float32.
    try:
        return read_example(path, options).values
    except (BadImageError, NoImageError) as error:
        return str(error)


def read_example(path: Path, options: ImageFolderOptions, *, is_mask: bool = False) -> Decoded:
    """Read an image in the shape of the run, channels first."""
    # NoImageError: there is none, BadImageError: it does not fit.
    channels, *sides = options.sides
    image = _decoded(path, Choices(options.window, options.padding, is_mask))
    values, limits, properties, _ = image
    is_volume = properties["format"] == "NIfTI"
    if values.ndim == 3 and channels == 1 and not is_volume and (np.ptp(values, axis=2) == 0).all():
        values = values[..., 0]  # grey, stored as RGB
    bands = 1 if is_volume or values.ndim == 2 else values.shape[2]
    size = values.shape[: 3 if is_volume else 2]
    if (
        bands != channels
        or len(size) != len(sides)
        or (options.fit == "exact" and size != tuple(sides))
    ):
        raise BadImageError(f"is {bands}x{properties['size']}")
    if options.depth == "scale" and values.dtype != np.uint8:
        if limits is None:
            raise BadImageError(f"has values without a range to scale ({properties['depth']})")
        low, high = limits
        values = ((values - low) * 255 / (high - low)).astype(np.float32)
    values = _fitted(values, sides, options.fit, is_mask=is_mask)
    return image._replace(values=values[None] if bands == 1 else values.transpose(2, 0, 1))


def _decoded(path: Path, choices: Choices) -> Decoded:
    """Decode a file, whose properties then include its size."""
    try:
        image = decode(read_bytes(path), choices)
    except OSError as error:
        raise BadImageError(f"cannot be read ({error.strerror or error})") from None
    size = image.values.shape[: 3 if image.properties["format"] == "NIfTI" else 2]
    return image._replace(properties={**image.properties, "size": "x".join(map(str, size))})


def surveyed(folder: Path) -> tuple[pa.Table, Account]:
    """Return a row of properties of each image in a folder, and its account, or a RefusedError."""
    files, left_out = files_below(folder, folder)
    images, others = _each(
        files, lambda path: _decoded(path, Choices()).properties, "images cannot be read"
    )
    rows = [properties for _, properties in images]
    n_files = len(files) + left_out.total()
    return _table(rows), Account(n_files, dict(left_out + others), "", _counted(rows))


def _counted(rows: Iterable[Mapping[str, str]]) -> dict[str, dict[str, int]]:
    """Count the values of each property that some image has, the most common ones first."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        for name, value in row.items():
            counts[name][value] += 1
    result = {name: dict(each.most_common(_VALUES)) for name, each in counts.items() if any(each)}
    for name, kept in result.items():
        if more := counts[name].total() - sum(kept.values()):
            kept["others"] = more
    return result


def _fitted(
    values: npt.NDArray[Any], sides: Sequence[int], fit: str, *, is_mask: bool
) -> npt.NDArray[Any]:
    """Scale an image to (H, W), or a volume; a mask by nearest neighbours."""
    from PIL import Image, ImageOps  # slow to import

    if values.shape[: len(sides)] == tuple(sides):
        return values
    if len(sides) == 3:
        return resized(values, sides, 0 if is_mask else 1).astype(values.dtype)
    if values.ndim == 3 and values.dtype != np.uint8:  # Pillow has no such colours
        bands = [_fitted(band, sides, fit, is_mask=is_mask) for band in values.transpose(2, 0, 1)]
        return np.stack(bands, axis=2)
    method = Image.Resampling.NEAREST if is_mask else Image.Resampling.BILINEAR
    image, size = Image.fromarray(values), (sides[1], sides[0])
    # "crop" keeps the centre, after the shorter side fits
    scaled = image.resize(size, method) if fit == "resize" else ImageOps.fit(image, size, method)
    return np.asarray(scaled)


def _check_schema(examples: Sequence[tuple[Path, Decoded]], schema: Schema) -> None:
    table = _table(each.properties for _, each in examples)
    columns = [column for name, column in schema.items() if name in table.column_names]
    if examples and (missing := schema.keys() - {*table.column_names}):
        raise DataError(
            f"image-folder: no image has {', '.join(sorted(missing))}, which schema.toml describes"
        )
    _, errors = cells.encoded(table.select([column.name for column in columns]), columns)
    if errors:
        raise RefusedError(
            f"image-folder: {len(errors)} of {len(examples)} images violate schema.toml",
            [
                f"{examples[row][0]}: {'; '.join(map(cells.shown, errors[row]))}"
                for row in sorted(errors)
            ],
        )


def _table(rows: Iterable[Mapping[str, str]]) -> pa.Table:
    """Return a table of the properties of images, a row per image; a missing one is null."""
    import pyarrow as pa

    cells_n = []
    for row in rows:
        sides = dict(zip(_SIDES, map(int, row["size"].split("x")), strict=False))
        cells_n.append({**{name: value or None for name, value in row.items()}, **sides})
        del cells_n[-1]["size"]
    names = sorted({name for row in cells_n for name, value in row.items() if value is not None})
    return pa.table({name: [row.get(name) for row in cells_n] for name in names})
