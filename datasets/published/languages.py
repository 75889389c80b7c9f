"""Texts in many languages as rows of tokens, for language models that predict the next token.

Tokens are UTF-8 bytes (256), or byte pairs (50,257), which need the two files of GPT-2.

"languages" is Debian's installation guide, real text that replaces Wiki-40B in CoBo's experiment
(section 4.3) without a download: about 450 kB per language. A fifth, in spread blocks, is for
testing. "wiki40b" is Wikipedia in over 40 languages (Guo et al. 2020): a plain text file per
language and part, with the articles of the data set's `text` field, with or without its marks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from coterie.datasets.files.fingerprint import Arrays, cached, exists
from coterie.datasets.files.folders import folder_with, unpacked
from coterie.datasets.problem import DataError
from coterie.datasets.source import Source, Tokens, divided, examples_of
from coterie.ranges import option

MANUALS = Path("/usr/share/doc/installation-guide-amd64")
BLOCK = 4096  # bytes
EVERY = 5  # every fifth block is in the test set
_RULES = re.compile(
    "[\N{BOX DRAWINGS LIGHT HORIZONTAL}-\N{BOX DRAWINGS LIGHT ARC UP AND RIGHT}]+|[-=_*.]{4,}"
)


@dataclass(frozen=True)
class _Options:
    """Options of both data sets."""

    codes: str = option(
        "ca-es-de-nl", 'Languages, "ca-es-de-nl"; a peer each with partition.kind = "natural".'
    )

    def __post_init__(self) -> None:
        languages_of(self.codes)


@dataclass(frozen=True)
class LanguagesOptions(_Options):
    """Options of the data set "languages"."""

    context: int = option(128, "Tokens per example.", low=1)
    test_examples: int = option(
        0, "Maximum number of test examples per language; 0 for all.", low=0
    )


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


Vocabulary = Literal["bytes", "gpt2"]
SIZES: dict[Vocabulary, int] = {"bytes": 256, "gpt2": 50_257}
GPT2_FILES = ("vocab.json", "merges.txt")
GPT2_REMEDY = "download both from https://huggingface.co/openai-community/gpt2"


def vocabulary_files(vocabulary: Vocabulary, data_dir: Path) -> list[Path]:
    """Return the files of a vocabulary, in data-dir/gpt2; DataError if one is missing."""
    if vocabulary == "bytes":
        return []
    folder = folder_with("gpt2 (vocabulary)", data_dir, ("gpt2",), GPT2_FILES, GPT2_REMEDY)
    return [folder / file for file in GPT2_FILES]


def tokeniser(files: Sequence[Path] = ()) -> Callable[[str], Tokens]:
    """Make the function from a text to its tokens, (n,)."""
    # The vocabulary is for byte pairs (int32); without, tokens are bytes (uint8).
    if not files:
        return lambda text: np.frombuffer(text.encode(), dtype=np.uint8)
    from tokenizers import ByteLevelBPETokenizer  # slow to import

    try:
        encoder = ByteLevelBPETokenizer.from_file(*map(str, files))
    except Exception as error:  # the library raises bare Exception
        names = ", ".join(map(str, files))
        raise DataError(f"{names}: not GPT-2's vocabulary ({error}); {GPT2_REMEDY}") from None
    return lambda text: np.array(encoder.encode(text).ids, dtype=np.int32)


def language_source(
    name: str,
    languages: Sequence[str],
    streams: Sequence[tuple[Tokens, Tokens]],
    context: int,
    vocabulary: Vocabulary,
) -> Source:
    """Cut each language's tokens, (training, test), into examples; groups are the languages."""
    # The remainders after examples of `context` tokens are not used. DataError: too few tokens.
    of = f"{name}.context = {context}: the"
    parts = [
        examples_of(tokens, context, f"{of} {part} part of language {language}")
        for language, pair in zip(languages, streams, strict=True)
        for part, tokens in zip(("training", "test"), pair, strict=True)
    ]
    inputs, targets = (np.concatenate(each) for each in zip(*parts, strict=True))
    number_n = np.repeat(np.arange(len(parts)), [len(rows) for rows, _ in parts])
    return divided(
        name=name,
        inputs=inputs,
        targets=targets,
        test=np.flatnonzero(number_n % 2),
        outputs=SIZES[vocabulary],
        task="language",
        groups=number_n // 2,
        group_names=tuple(languages),
    )


def languages_of(codes: str) -> tuple[str, ...]:
    """Split "ca-es-de-nl" into language codes; ValueError: one is missing, duplicate or invalid."""
    languages = tuple(codes.split("-"))
    is_valid = all(code.replace("_", "").isalpha() for code in languages)
    if len(set(languages)) < len(languages) or not is_valid:
        raise ValueError(f'codes must be different languages like "ca-es-de-nl", not "{codes}"')
    return languages


_MARKS = re.compile(r"\s*_(?:START_(?:ARTICLE|SECTION|PARAGRAPH)|NEWLINE)_\s*")
BYTES_PER_TOKEN = 8  # bytes to read per token, an upper bound
TESTED = 10  # training tokens per test token
WIKI40B_REMEDY = (
    'write the `text` of tfds.load("wiki40b/<language>", split="train" and "test") to them, '
    "an article per line"
)


@dataclass(frozen=True)
class Wiki40bOptions(_Options):
    """Options of Wiki-40B."""

    context: int = option(512, "Tokens per example.", low=1)
    tokens: int = option(
        800_000,
        "Training tokens per language, from the start of its file; the test set has a tenth of it.",
        low=1,
    )
    vocabulary: Vocabulary = option(
        "gpt2", 'Tokens; "gpt2" needs vocab.json and merges.txt in data-dir/gpt2.'
    )


def read_wiki40b(data_dir: Path, options: Wiki40bOptions) -> Source:
    """Read Wiki-40B: rows of tokens; the groups are the languages."""
    codes = languages_of(options.codes)
    names = [f"{code}/{part}.txt" for code in codes for part in ("train", "test")]
    folder = folder_with("wiki40b", data_dir, ("wiki40b",), names, WIKI40B_REMEDY)
    vocabulary = vocabulary_files(options.vocabulary, data_dir)
    limits = {"train": options.tokens, "test": max(options.tokens // TESTED, options.context + 1)}

    def read() -> Arrays:
        encode = tokeniser(vocabulary)
        most = {file: limits[Path(file).stem] for file in names}
        return {file: encode(_beginning(folder / file, n))[:n] for file, n in most.items()}

    files = [*(folder / file for file in names), *vocabulary]
    settings = f"1 {options.vocabulary} {limits}"
    arrays = cached(data_dir, "wiki40b", files, settings, read)
    streams = [(arrays[f"{code}/train.txt"], arrays[f"{code}/test.txt"]) for code in codes]
    return language_source("wiki40b", codes, streams, options.context, options.vocabulary)


def _beginning(path: Path, tokens: int) -> str:
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
