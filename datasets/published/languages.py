"""Debian's installation guide in many languages: real text from a Debian package.

It replaces Wiki-40B in CoBo's experiment (section 4.3) without a download: Catalan, Spanish, German
and Dutch have about 450 kB each. Tokens are bytes. A fifth, in spread blocks, is for testing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coterie.datasets.files.fingerprint import exists
from coterie.datasets.files.folders import unpacked
from coterie.datasets.problem import DataError
from coterie.datasets.published.tokens import language_source, languages_of, tokeniser
from coterie.datasets.source import Source, Tokens
from coterie.ranges import option

MANUALS = Path("/usr/share/doc/installation-guide-amd64")
BLOCK = 4096  # bytes
EVERY = 5  # every fifth block is in the test set
_RULES = re.compile(
    "[\N{BOX DRAWINGS LIGHT HORIZONTAL}-\N{BOX DRAWINGS LIGHT ARC UP AND RIGHT}]+|[-=_*.]{4,}"
)


@dataclass(frozen=True)
class LanguagesOptions:
    """Options of the data set "languages"."""

    codes: str = option(
        "ca-es-de-nl", 'Languages, "ca-es-de-nl"; a peer each with partition.kind = "natural".'
    )
    context: int = option(128, "Tokens per example.", low=1)
    test_examples: int = option(
        0, "Maximum number of test examples per language; 0 for all.", low=0
    )

    def __post_init__(self) -> None:
        languages_of(self.codes)


def read_languages(data_dir: Path, options: LanguagesOptions) -> Source:
    """Read the manuals: rows of bytes; the groups are the languages."""
    tokens = tokeniser()
    languages = languages_of(options.codes)
    texts = [_text(data_dir, code) for code in languages]
    end = options.test_examples * options.context + 1 if options.test_examples else None
    streams = [(train, test[:end]) for train, test in (_divided(tokens(t)) for t in texts)]
    return language_source("languages", languages, streams, options.context, "bytes")


def _divided(tokens: Tokens) -> tuple[Tokens, Tokens]:
    """Return (training, test) tokens; the test part of a short text is its last fifth."""
    block = min(BLOCK, max(1, len(tokens) // EVERY))
    test = np.arange(len(tokens)) // block % EVERY == EVERY - 1
    return tokens[~test], tokens[test]


def _text(data_dir: Path, code: str) -> str:
    """Read the manual in one language, with a paragraph per line."""
    file = f"install.{code}.txt"
    folders = (data_dir / "languages", MANUALS / code)
    paths = (path for folder in folders for path in (folder / file, folder / f"{file}.gz"))
    path = next((path for path in paths if exists(path)), None)
    if path is None:
        raise DataError(
            f"dataset languages is missing: expected {file}.gz or {file} in {folders[0]} or "
            f"{folders[1]}; `apt-get install installation-guide-amd64`"
        )
    try:
        text = unpacked(path).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not a text in UTF-8 ({error}); install it again") from None
    paragraphs = (" ".join(_RULES.sub(" ", part).split()) for part in re.split(r"\n\s*\n", text))
    return "\n".join(filter(None, paragraphs))
