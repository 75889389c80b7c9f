"""One manual in many languages: Debian's installation guide, real text that a package ships.

It stands for CoBo's Wiki-40B experiment (section 4.3) where nothing can be downloaded: Catalan,
Spanish, German and Dutch have about 450 kB each. Tokens are bytes. A fifth of each text, in
stretches spread over it, is for testing.
"""

from __future__ import annotations

import gzip
import re
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coterie.datasets.problem import DataError
from coterie.datasets.published.tokens import Tokens, language_source, languages_of, tokeniser
from coterie.datasets.source import Source

MANUALS = Path("/usr/share/doc/installation-guide-amd64")
STRETCH = 4096  # bytes; of five successive stretches the last is for testing
PART = 5
_RULES = re.compile(
    "[\N{BOX DRAWINGS LIGHT HORIZONTAL}-\N{BOX DRAWINGS LIGHT ARC UP AND RIGHT}]+|[-=_*.]{4,}"
)


@dataclass(frozen=True)
class LanguagesOptions:
    """The [languages] table.

    Attributes
    ----------
    codes : the languages, one peer each under partition.kind = "natural".
    context : tokens of an example.
    test_examples : of each language, the first of its test part; 0: all.
    """

    codes: str = "ca-es-de-nl"
    context: int = 128
    test_examples: int = 0

    def __post_init__(self) -> None:
        languages_of(self.codes)
        if self.context < 1:
            raise ValueError("context must be at least 1")
        if self.test_examples < 0:
            raise ValueError("test-examples must not be negative")


def read_languages(data_dir: Path, options: object) -> Source:
    """The manuals: rows of bytes; the groups are the languages."""
    assert isinstance(options, LanguagesOptions)
    tokens = tokeniser()
    languages = languages_of(options.codes)
    texts = [_text(data_dir, code) for code in languages]
    end = options.test_examples * options.context + 1 if options.test_examples else None
    streams = [(train, test[:end]) for train, test in (_divided(tokens(t)) for t in texts)]
    return language_source("languages", languages, streams, options.context, "bytes")


def _divided(tokens: Tokens) -> tuple[Tokens, Tokens]:
    """(training, test) stretches; a text of less than five gives its last fifth."""
    stretch = min(STRETCH, max(1, len(tokens) // PART))
    test = np.arange(len(tokens)) // stretch % PART == PART - 1
    return tokens[~test], tokens[test]


def _text(data_dir: Path, code: str) -> str:
    """The manual in one language: its paragraphs, one a line."""
    file = f"install.{code}.txt"
    folders = (data_dir / "languages", MANUALS / code)
    found = [f for folder in folders for f in (folder / file, folder / f"{file}.gz") if f.is_file()]
    if not found:
        raise DataError(
            f"dataset languages is not here: expected {file}.gz or {file} in {folders[0]} or "
            f"{folders[1]}; `apt-get install installation-guide-amd64`"
        )
    raw = found[0].read_bytes()
    try:
        raw = gzip.decompress(raw) if found[0].suffix == ".gz" else raw
        text = raw.decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise DataError(f"{found[0]}: not a text in UTF-8 ({error}); fetch it again") from None
    paragraphs = (" ".join(_RULES.sub(" ", part).split()) for part in re.split(r"\n\s*\n", text))
    return "\n".join(filter(None, paragraphs))
