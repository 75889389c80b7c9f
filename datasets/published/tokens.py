"""Text as rows of tokens for language models, which predict the token after each one.

Tokens are UTF-8 bytes (256), or byte pairs (50,257), which need the two files of GPT-2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from coterie.datasets.files.folders import folder_with
from coterie.datasets.problem import DataError, Ints
from coterie.datasets.source import Source, Tokens, examples_of

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
    # The vocabulary files are for byte pairs (int32); without files, tokens are bytes (uint8).
    # DataError: a file is damaged.
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
    inputs: list[Tokens] = []
    targets: list[Tokens] = []
    groups: list[int] = []
    is_test: list[bool] = []
    for group, pair in enumerate(streams):
        for test, tokens in zip((False, True), pair, strict=True):
            part = f"the {'test' if test else 'training'} part of language {languages[group]}"
            rows, following = examples_of(tokens, context, f"{name}.context = {context}: {part}")
            inputs.append(rows)
            targets.append(following)
            groups += [group] * len(rows)
            is_test += [test] * len(rows)
    test_n = np.array(is_test)
    groups_n: Ints = np.array(groups, dtype=np.int64)
    return Source(
        name=name,
        inputs=np.concatenate(inputs),
        targets=np.concatenate(targets),
        train=np.flatnonzero(~test_n),
        test=np.flatnonzero(test_n),
        outputs=SIZES[vocabulary],
        task="language",
        groups=groups_n,
        group_names=tuple(languages),
    )


def languages_of(codes: str) -> tuple[str, ...]:
    """Split "ca-es-de-nl" into language codes; ValueError: one is missing, duplicate or invalid."""
    languages = tuple(codes.split("-"))
    is_valid = all(code.replace("_", "").isalpha() for code in languages)
    if len(set(languages)) < len(languages) or not is_valid:
        raise ValueError(f'codes must be different languages like "ca-es-de-nl", not "{codes}"')
    return languages
