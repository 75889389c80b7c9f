"""IXI Tiny: brain scans of three London hospitals, with masks of the brain.

T1-weighted volumes and masks in NIfTI files (TorchIO's reduction of IXI; Perez-Garcia et al. 2021),
prepared as in FLamby: each volume is standardised separately and resized to 48 x 60 x 48 voxels; a
fifth of each hospital's subjects is in the test set, which leaves 453 of 566 for training.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coterie.datasets.files.fingerprint import Arrays, cached, record
from coterie.datasets.files.pixels import resized
from coterie.datasets.problem import DataError
from coterie.datasets.source import Source, divided, spread
from coterie.ranges import option

HOSPITALS = ("Guys", "HH", "IOP")
SUBJECT = re.compile(r"(IXI\d+-(Guys|HH|IOP)-\d+)_image\.nii(\.gz)?$")
SCANS = ("T1", "image")  # folder of a volume in FLamby and in TorchIO
FOLDERS = ("ixi", "ixi_tiny", "IXI_sample")
TESTED = 0.2


@dataclass(frozen=True)
class IxiOptions:
    """Options of IXI Tiny."""

    size: str = option("48-60-48", 'Voxels of the resized volumes, "48-60-48" as in FLamby.')

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[1-9]\d*(-[1-9]\d*){2}", self.size):
            raise ValueError(f'size must be three sides like "48-60-48", not "{self.size}"')

    @property
    def sides(self) -> tuple[int, ...]:
        return tuple(int(side) for side in self.size.split("-"))


def read_ixi(data_dir: Path, options: IxiOptions) -> Source:
    """Read IXI Tiny: (1, 48, 60, 48), 2 classes of voxels, 453 + 113; the groups are hospitals."""
    pairs = next(filter(None, (_pairs(data_dir / folder) for folder in FOLDERS)), [])
    if not pairs:
        raise DataError(
            "dataset ixi is missing: expected image/IXI002-Guys-0828_image.nii.gz and "
            "label/IXI002-Guys-0828_label.nii.gz, and so on, in "
            f"{' or '.join(str(data_dir / folder) for folder in FOLDERS)}; download them with "
            "TorchIO (torchio.datasets.IXITiny) or FLamby (fed_ixi)"
        )

    def make() -> Arrays:
        read = [_read(volume, mask, options.sides) for _, volume, mask in pairs]
        volumes, masks = zip(*read, strict=True)
        return {"volumes": np.stack(volumes)[:, None], "masks": np.stack(masks)}

    files = [path for _, *both in pairs for path in both]
    arrays = cached(data_dir, "ixi", files, f"1 {options.size}", make)
    hospital = np.array([HOSPITALS.index(name) for name, *_ in pairs], dtype=np.int64)
    rows_h = [np.flatnonzero(hospital == number) for number in range(len(HOSPITALS))]
    return divided(
        name="ixi",
        inputs=arrays["volumes"],
        targets=arrays["masks"],
        test=np.concatenate([spread(rows, round(TESTED * len(rows))) for rows in rows_h]),
        outputs=2,
        task="segmentation",
        groups=hospital,
        group_names=HOSPITALS,
    )


def _pairs(folder: Path) -> list[tuple[str, Path, Path]]:
    """Return hospital, volume and mask of each subject, sorted by name."""
    record(folder)
    volumes = {
        match[1]: (match[2], path)
        for path in sorted(folder.rglob("*_image.nii*"))
        if (match := SUBJECT.search(path.name)) and path.parent.name in SCANS
    }
    masks = {
        path.name.partition("_label")[0]: path for path in sorted(folder.rglob("*_label.nii*"))
    }
    for subject, (_, path) in volumes.items():
        if subject not in masks:
            raise DataError(f"dataset ixi: {path} has no {subject}_label.nii.gz in {folder}")
    return [(volumes[s][0], volumes[s][1], masks[s]) for s in sorted(volumes)]


def _read(
    volume: Path, mask: Path, sides: tuple[int, ...]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    scan, brain = _voxels(volume), _voxels(mask)
    if scan.shape != brain.shape:
        raise DataError(f"{mask}: {brain.shape} voxels, but {volume} has {scan.shape}")
    deviation = scan.std()
    scan = (scan - scan.mean()) / (deviation if deviation > 0 else 1)
    return resized(scan, sides, 1).astype(np.float32), resized(brain > 0, sides, 0)


def _voxels(path: Path) -> npt.NDArray[np.float64]:
    import nibabel  # slow to import
    from nibabel.filebasedimages import ImageFileError

    try:
        voxels = np.asarray(nibabel.load(path).dataobj, dtype=np.float64)  # type: ignore[attr-defined]
    except (OSError, EOFError, ValueError, ImageFileError) as error:
        raise DataError(f"{path}: not a readable NIfTI file ({error})") from None
    if voxels.ndim == 4 and voxels.shape[3] == 1:
        voxels = voxels[..., 0]
    if voxels.ndim != 3 or not np.isfinite(voxels).all():
        raise DataError(f"{path}: not a volume of finite numbers; its shape is {voxels.shape}")
    return voxels
