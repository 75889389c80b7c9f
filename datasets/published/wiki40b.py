"""Wiki-40B: Wikipedia in over 40 languages (Guo et al. 2020), as used by CoBo (section 4.3).

A plain text file per language and part, with the articles of the data set's `text` field, with or
without its marks _START_ARTICLE_, _START_SECTION_, _START_PARAGRAPH_ and _NEWLINE_.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from coterie.datasets.files.cache import Arrays, cached
from coterie.datasets.files.folders import folder_with
from coterie.datasets.problem import DataError
from coterie.datasets.published.tokens import (
    Vocabulary,
    language_source,
    languages_of,
    tokeniser,
    vocabulary_files,
)
from coterie.datasets.source import Source, Tokens
from coterie.ranges import option

_MARKS = re.compile(r"\s*_(?:START_(?:ARTICLE|SECTION|PARAGRAPH)|NEWLINE)_\s*")
BYTES_PER_TOKEN = 8  # bytes to read per token, an upper bound
TESTED = 10  # training tokens per test token
REMEDY = (
    'write the `text` of tfds.load("wiki40b/<language>", split="train" and "test") to them, '
    "an article per line"
)


@dataclass(frozen=True)
class Wiki40bOptions:
    """Options of Wiki-40B."""

    codes: str = option(
        "ca-es-de-nl", 'Languages, "ca-es-de-nl"; a peer each with partition.kind = "natural".'
    )
    context: int = option(512, "Tokens per example.", low=1)
    tokens: int = option(
        800_000,
        "Training tokens per language, from the start of its file; the test set has a tenth of it.",
        low=1,
    )
    vocabulary: Vocabulary = option(
        "gpt2", 'Tokens; "gpt2" needs vocab.json and merges.txt in data-dir/gpt2.'
    )

    def __post_init__(self) -> None:
        languages_of(self.codes)


def read_wiki40b(data_dir: Path, options: Wiki40bOptions) -> Source:
    """Read Wiki-40B: rows of tokens; the groups are the languages."""
    codes = languages_of(options.codes)
    names = [f"{code}/{part}.txt" for code in codes for part in ("train", "test")]
    folder = folder_with("wiki40b", data_dir, ("wiki40b",), names, REMEDY)
    vocabulary = vocabulary_files(options.vocabulary, data_dir)
    limits = {"train": options.tokens, "test": max(options.tokens // TESTED, options.context + 1)}

    def read() -> Arrays:
        encode = tokeniser(vocabulary)
        return {
            file: encode(_text(folder / file, limits[Path(file).stem]))[: limits[Path(file).stem]]
            for file in names
        }

    files = [*(folder / file for file in names), *vocabulary]
    settings = f"1 {options.vocabulary} {limits}"
    arrays = cached(data_dir, "wiki40b", files, settings, read)
    streams: list[tuple[Tokens, Tokens]] = [
        (arrays[f"{code}/train.txt"], arrays[f"{code}/test.txt"]) for code in codes
    ]
    return language_source("wiki40b", codes, streams, options.context, options.vocabulary)


def _text(path: Path, tokens: int) -> str:
    """Read the beginning of a text, with at least `tokens` tokens, without marks."""
    with path.open("rb") as file:
        raw = file.read(BYTES_PER_TOKEN * tokens)
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        if error.end < len(raw) - 3:  # not just a character cut at the end
            raise DataError(f"{path}: not a text in UTF-8 ({error}); write it again") from None
        text = raw[: error.start].decode()
    return _MARKS.sub("\n", text).strip()
