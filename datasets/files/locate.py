"""Where the files of a published data set are, and getting them where there is a network."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from coterie.datasets.problem import DataError

SYSTEM = Path("/usr/share/datasets")  # where Debian's dataset-* packages put their files
PATIENCE = 20.0  # seconds without an answer from a server


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
    """The files of a data set that torchvision can download.

    Attributes
    ----------
    name : our name; also a folder that may hold the files, in data-dir or in `SYSTEM`.
    torchvision : the class in `torchvision.datasets`.
    folder : where torchvision puts the files, in data-dir.
    files : names of the files, each plain or with .gz.
    package : Debian package that has them in `SYSTEM`, if there is one.
    """

    name: str
    torchvision: str
    folder: str
    files: tuple[str, ...]
    package: str = ""

    def locate(self, data_dir: Path) -> list[Path]:
        """Paths of the files, from the first folder that has them all, else downloaded.

        Raises
        ------
        DataError
            They are nowhere and cannot be downloaded: says what is expected where.
        """
        folders = [data_dir / self.name, data_dir / self.folder]
        for folder in (*folders, SYSTEM / self.name):
            if found := self._in(folder):
                return found
        try:
            if not _may_download.get():
                raise RuntimeError("a deployed node downloads nothing")
            self._download(data_dir)
            downloaded = self._in(data_dir / self.folder)
            if not downloaded:
                raise RuntimeError("files are missing after it")
        except (OSError, RuntimeError) as error:
            package = f"`apt-get install {self.package}`, or " if self.package else ""
            raise DataError(
                f"dataset {self.name} is not here: {package}put {', '.join(self.files)} "
                f"(plain or .gz) in {folders[0]} or {folders[1]} "
                f"(the download failed: {' '.join(str(error).split())})"
            ) from None
        return downloaded

    def _in(self, folder: Path) -> list[Path]:
        found = [
            path
            for file in self.files
            for path in (folder / file, folder / f"{file}.gz")
            if path.is_file()
        ]
        names = {path.name.removesuffix(".gz"): path for path in reversed(found)}
        return [names[file] for file in self.files] if len(names) == len(self.files) else []

    def _download(self, data_dir: Path) -> None:
        """Into a folder of its own first: several processes may be at it at once."""
        from torchvision import datasets as torchvision_datasets  # slow, and brings torch

        target = data_dir / self.folder
        data_dir.mkdir(parents=True, exist_ok=True)
        before = socket.getdefaulttimeout()
        socket.setdefaulttimeout(PATIENCE)
        try:
            with tempfile.TemporaryDirectory(dir=data_dir) as folder:
                getattr(torchvision_datasets, self.torchvision)(folder, download=True)
                target.mkdir(parents=True, exist_ok=True)
                for path in (Path(folder) / self.folder).iterdir():
                    os.replace(path, target / path.name)
        finally:
            socket.setdefaulttimeout(before)
