"""Text files of institutions as rows of tokens, for next-token prediction.

    data-dir/train/*.txt    data-dir/test/*.txt    data-dir/validation/...

or just data-dir/*.txt, of which a share is held out for the test. A .txt file is a document; a
.jsonl file has one per line, {"text": "..."}. The special tokens of a tokenizer.json, next to the
peers' folders or in a peer's folder, separate documents.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from coterie.datasets.files import fingerprint
from coterie.datasets.own.institutions import (
    PARTS,
    Expected,
    HeldOptions,
    Holding,
    RefusedError,
    make_holding,
)
from coterie.datasets.problem import DataError
from coterie.datasets.source import examples_of
from coterie.ranges import option

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FORMATS = (".txt", ".jsonl")
TOKENIZER = "tokenizer.json"


@dataclass(frozen=True)
class TextOptions(HeldOptions):
    """Options of the data set "text"."""

    context: int = option(128, "Tokens per example.", low=1)
    tokenizer: str = option(
        "",
        "SHA-256 of the tokenizer.json that every peer must have (sha256sum tokenizer.json); "
        "empty, in a simulation, for the one in data-dir.",
    )

    def check_node(self) -> None:
        """Check that the tokenizer is set, since a node cannot see those of other peers."""
        if not self.tokenizer:
            raise DataError(
                "text.tokenizer must be the SHA-256 of the tokenizer.json that all institutions "
                "have: sha256sum tokenizer.json"
            )


def read_text(folder: Path, options: TextOptions, seed: int, peer: int) -> tuple[Expected, Holding]:
    """Read one institution's texts."""
    # DataError: a line cannot be read, the tokenizer is not the run's, or there are too few tokens.
    tokenizer = _tokenizer(_tokenizer_file(folder, options))
    outputs = max(tokenizer.get_vocab().values()) + 1
    split = (folder / "train").is_dir()
    folders = {"train": folder}
    if split:
        folders = {name: folder / name for name in PARTS if (folder / name).is_dir()}
    bad: list[str] = []
    texts = {name: _documents(path, bad) for name, path in folders.items()}
    if bad:
        raise RefusedError(f"text: {len(bad)} lines cannot be read: correct or delete them", bad)
    parts = {}
    for name, documents in texts.items():
        ids = [token for document in documents for token in tokenizer.encode(document).ids]
        of_part = f"text.context = {options.context}: this peer's {name} part"
        parts[name] = examples_of(np.array(ids, dtype=np.int32), options.context, of_part)
    expected = Expected("text", "language", outputs, np.zeros(1), np.ones(1))
    return expected, make_holding(expected, parts, options, seed, peer)


def _documents(folder: Path, bad: list[str]) -> list[str]:
    """Read the documents of a folder; add file, line and error of unreadable lines to `bad`."""
    documents: list[str] = []
    files = [path for path in sorted(folder.glob("*")) if path.suffix in FORMATS]
    if not files:
        raise DataError("text: expected .txt or .jsonl files in this peer's data-dir")
    for path in files:
        read = _document if path.suffix == ".jsonl" else _decoded
        good = []
        for number, line in enumerate(fingerprint.content(path).splitlines(), 1):
            try:
                good.append(read(line))
            except (ValueError, RecursionError) as error:  # RecursionError: nested JSON
                bad.append(f"{path.name}, line {number}: {error}")
        documents += filter(None, good) if path.suffix == ".jsonl" else ["\n".join(good)]
    return documents


def _decoded(line: bytes) -> str:
    return line.decode("utf-8-sig")  # files may start with a byte order mark


def _document(line: bytes) -> str:
    """Parse a line of a .jsonl file; an empty line is an empty document."""
    decoded = _decoded(line)
    if not decoded.strip():
        return ""
    content = json.loads(decoded)
    if not isinstance(content, dict) or not isinstance(content.get("text"), str):
        raise ValueError('not an object with a "text"')
    text: str = content["text"]
    text.encode()  # JSON may contain lone surrogates, which are not valid Unicode
    return text


def _tokenizer_file(folder: Path, options: TextOptions) -> bytes:
    """Read the run's tokenizer; DataError if it is missing, or has another digest."""
    shared = folder.parent / TOKENIZER
    # Without a digest, only the shared file guarantees that all peers use the same one.
    paths = [folder / TOKENIZER, shared] if options.tokenizer else [shared]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise DataError(f"text: there is no {TOKENIZER} in data-dir")
    content = fingerprint.content(path)
    if options.tokenizer not in ("", hashlib.sha256(content).hexdigest()):
        raise DataError(
            f"text: {TOKENIZER} does not have the digest text.tokenizer = {options.tokenizer}: use "
            "the file of the other institutions"
        )
    return content


@lru_cache(maxsize=1)
def _tokenizer(content: bytes) -> Tokenizer:
    from tokenizers import Tokenizer  # slow to import

    try:
        tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises bare Exception
        raise DataError(f"text: {TOKENIZER} is not a tokenizer: {error}") from None
    tokenizer.no_truncation()  # a document has any length
    tokenizer.no_padding()
    return tokenizer
