"""Text files of institutions as rows of tokens: a model learns the token after each one of a row.

    data-dir/train/*.txt    data-dir/test/*.txt    data-dir/validation/...

or just data-dir/*.txt, of which a share is held out for the test. A .txt file is a document; a
.jsonl file has a document in each line, {"text": "..."}. A tokenizer.json (of the tokenizers
library) beside the peers' folders, or in a peer's own, makes them tokens; where it adds marks of
beginning and end, they stand between documents.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from coterie.datasets.own.institutions import (
    PARTS,
    Expected,
    HeldOptions,
    Holding,
    RefusedError,
    held,
)
from coterie.datasets.problem import DataError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FORMATS = (".txt", ".jsonl")
TOKENIZER = "tokenizer.json"
_log = logging.getLogger("coterie.data")


@dataclass(frozen=True)
class TextOptions(HeldOptions):
    """What the run expects of every institution's texts.

    Attributes
    ----------
    context : tokens of an example.
    tokenizer : SHA-256 of the tokenizer.json that every peer must have (sha256sum tokenizer.json);
        empty, in a simulation: the one in data-dir.
    bad_lines : of lines that are not UTF-8, or of a .jsonl no JSON object with a text: "refuse" the
        files, or "leave-out" those lines. The node's log names them.
    """

    context: int = 128
    tokenizer: str = ""
    bad_lines: Literal["refuse", "leave-out"] = "refuse"

    def __post_init__(self) -> None:
        self.check_held()
        if self.context < 1:
            raise ValueError("context must be at least 1")

    def check_node(self) -> None:
        """A node cannot see which tokenizer the others have."""
        if not self.tokenizer:
            raise DataError(
                "text.tokenizer must be the SHA-256 of the tokenizer.json that all institutions "
                "have: sha256sum tokenizer.json"
            )


def read_text(folder: Path, options: TextOptions, seed: int, peer: int) -> tuple[Expected, Holding]:
    """Read one institution's texts.

    Raises
    ------
    DataError
        A line cannot be read, the tokenizer is not the run's, or nothing is there.
    """
    tokenizer = _tokenizer(_tokenizer_file(folder, options))
    outputs = max(tokenizer.get_vocab().values()) + 1
    split = (folder / "train").is_dir()
    texts = {
        name: _Texts(folder / name if split else folder)
        for name in PARTS
        if name == "train" or (split and (folder / name).is_dir())
    }
    _check_lines(texts.values(), options)
    parts = {}
    for name, found in texts.items():
        ids = [token for document in found.documents for token in tokenizer.encode(document).ids]
        parts[name] = _examples(np.array(ids, dtype=np.int32), name, options.context)
    expected = Expected("text", "language", outputs, np.zeros(1), np.ones(1))
    return expected, held(expected, parts, options, seed, peer)


class _Texts:
    """The documents in a folder.

    Attributes
    ----------
    documents : in the order of files and lines.
    lines : how many there are.
    bad : file, line and reason of each line that cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.documents: list[str] = []
        self.lines = 0
        self.bad: list[str] = []
        files = [path for path in sorted(folder.glob("*")) if path.suffix in FORMATS]
        if not files:
            raise DataError("text: expected .txt or .jsonl files in this peer's data-dir")
        for path in files:
            read = _document if path.suffix == ".jsonl" else _decoded
            good = []
            for number, line in enumerate(path.read_bytes().splitlines(), start=1):
                self.lines += 1
                try:
                    good.append(read(line))
                except (ValueError, RecursionError) as error:  # of deeply nested JSON
                    self.bad.append(f"{path.name}, line {number}: {error}")
            self.documents += filter(None, good) if path.suffix == ".jsonl" else ["\n".join(good)]


def _decoded(line: bytes) -> str:
    return line.decode("utf-8-sig")  # a mark of byte order begins many files


def _document(line: bytes) -> str:
    """The text in a line of a .jsonl file; empty where the line is."""
    decoded = _decoded(line)
    if not decoded.strip():
        return ""
    found = json.loads(decoded)
    if not isinstance(found, dict) or not isinstance(found.get("text"), str):
        raise ValueError('no object with a "text"')
    text: str = found["text"]
    text.encode()  # JSON can spell characters that Unicode has not
    return text


def _check_lines(texts: Iterable[_Texts], options: TextOptions) -> None:
    bad = [entry for found in texts for entry in found.bad]
    if not bad:
        return
    what = f"text: {len(bad)} of {sum(found.lines for found in texts)} lines cannot be read"
    if options.bad_lines == "refuse":
        raise RefusedError(f'{what}; text.bad-lines = "leave-out" goes on', bad)
    _log.warning(what)
    for entry in bad:
        _log.warning("left out: %s", entry)


def _examples(
    tokens: npt.NDArray[np.int32], part: str, context: int
) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Rows (N, context) of tokens, and of the tokens that follow; what is left at the end goes."""
    count = (len(tokens) - 1) // context
    if count < 1:
        raise DataError(
            f"text.context = {context}: this peer has fewer than {context + 1} tokens to {part} "
            "with, which an example needs"
        )
    inputs = tokens[: count * context].reshape(count, context)
    return inputs, tokens[1 : count * context + 1].reshape(count, context)


def _tokenizer_file(folder: Path, options: TextOptions) -> bytes:
    """The tokenizer that the run wants.

    Raises
    ------
    DataError : it is not there, or another one.
    """
    beside = folder.parent / TOKENIZER
    # Without a digest only the one that all peers share, so that all have the same.
    paths = [folder / TOKENIZER, beside] if options.tokenizer else [beside]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise DataError(f"text: there is no {TOKENIZER} in data-dir")
    content = path.read_bytes()
    if options.tokenizer not in ("", hashlib.sha256(content).hexdigest()):
        raise DataError(
            f"text: {TOKENIZER} is not the one that the run wants ({options.tokenizer}): take that "
            "of the other institutions"
        )
    return content


@lru_cache(maxsize=1)
def _tokenizer(content: bytes) -> Tokenizer:
    from tokenizers import Tokenizer  # slow to import

    try:
        found = Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises bare Exception
        raise DataError(f"text: {TOKENIZER} is no tokenizer: {error}") from None
    found.no_truncation()  # a document is as long as it is
    found.no_padding()
    return found
