"""Location and download of the files of published data sets."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from coterie.datasets.files.fingerprint import exists
from coterie.datasets.problem import DataError

SYSTEM = Path("/usr/share/datasets")  # folder of Debian's dataset-* packages
TIMEOUT = 20.0  # seconds without an answer from a server


_may_download = ContextVar("may_download", default=True)


@contextmanager
def without_downloads() -> Iterator[None]:
    """Let data sets come from the disk only, while this lasts."""
    before = _may_download.set(False)
    try:
        yield
    finally:
        _may_download.reset(before)


@dataclass(frozen=True)
class Published:
    """Files of a data set that torchvision can download."""

    name: str  # name of the data set, and of a folder with the files in data-dir or `SYSTEM`
    torchvision: str  # name of the class in `torchvision.datasets`
    folder: str  # folder in data-dir to which torchvision downloads the files
    files: tuple[str, ...]  # names, each plain or with .gz
    package: str = ""  # Debian package that installs them in `SYSTEM`; may be empty

    def locate(self, data_dir: Path) -> list[Path]:
        """Return the paths of the files in the first folder that has all, else download them."""
        # DataError: they are missing and the download failed; the message names the expected files.
        folders = [data_dir / self.name, data_dir / self.folder]
        for folder in (*folders, SYSTEM / self.name):
            if paths := self._in(folder):
                return paths
        try:
            if not _may_download.get():
                raise RuntimeError("a deployed node downloads nothing")
            self._download(data_dir)
            downloaded = self._in(data_dir / self.folder)
            if not downloaded:
                raise RuntimeError("files are missing after the download")
        except (OSError, RuntimeError) as error:
            package = f"`apt-get install {self.package}`, or " if self.package else ""
            raise DataError(
                f"dataset {self.name} is missing: {package}put {', '.join(self.files)} "
                f"(plain or .gz) in {folders[0]} or {folders[1]} "
                f"(the download failed: {' '.join(str(error).split())})"
            ) from None
        return downloaded

    def _in(self, folder: Path) -> list[Path]:
        paths = [
            path
            for file in self.files
            for path in (folder / file, folder / f"{file}.gz")
            if exists(path)
        ]
        by_name = {path.name.removesuffix(".gz"): path for path in reversed(paths)}
        return [by_name[file] for file in self.files] if len(by_name) == len(self.files) else []

    def _download(self, data_dir: Path) -> None:
        """Download to a temporary folder first, since several processes may do so at once."""
        from torchvision import datasets as torchvision_datasets  # slow import, of torch too

        target = data_dir / self.folder
        data_dir.mkdir(parents=True, exist_ok=True)
        before = socket.getdefaulttimeout()
        socket.setdefaulttimeout(TIMEOUT)
        try:
            with tempfile.TemporaryDirectory(dir=data_dir) as folder:
                getattr(torchvision_datasets, self.torchvision)(folder, download=True)
                target.mkdir(parents=True, exist_ok=True)
                for path in (Path(folder) / self.folder).iterdir():
                    os.replace(path, target / path.name)
        finally:
            socket.setdefaulttimeout(before)
