"""Text as rows of tokens for language models: each example predicts the token after each of its.

Tokens are UTF-8 bytes (256 of them), or GPT-2's byte pairs (50,257), which need the two files that
are published with GPT-2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coterie.datasets.files.folders import folder_with
from coterie.datasets.problem import DataError, Ints
from coterie.datasets.source import Source

Tokens = npt.NDArray[Any]
Vocabulary = Literal["bytes", "gpt2"]
SIZES: dict[Vocabulary, int] = {"bytes": 256, "gpt2": 50_257}
GPT2_FILES = ("vocab.json", "merges.txt")
GPT2_REMEDY = "download both from https://huggingface.co/openai-community/gpt2"


def vocabulary_files(vocabulary: Vocabulary, data_dir: Path) -> list[Path]:
    """The files that a vocabulary needs, in data-dir/gpt2.

    Raises
    ------
    DataError
        One is missing.
    """
    if vocabulary == "bytes":
        return []
    folder = folder_with("gpt2 (its tokens)", data_dir, ("gpt2",), GPT2_FILES, GPT2_REMEDY)
    return [folder / file for file in GPT2_FILES]


def tokeniser(files: Sequence[Path] = ()) -> Callable[[str], Tokens]:
    """Text -> its tokens, (n,): byte pairs (int32) of these vocabulary files, else bytes (uint8).

    Raises
    ------
    DataError
        A file is damaged.
    """
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
    """Each language's (training, test) tokens, cut into examples of `context` tokens.

    What is left at an end is not used. The groups are the languages.

    Raises
    ------
    DataError
        A language has not enough tokens for an example of each.
    """
    inputs: list[Tokens] = []
    targets: list[Tokens] = []
    groups: list[int] = []
    tested: list[bool] = []
    for group, pair in enumerate(streams):
        for test, tokens in zip((False, True), pair, strict=True):
            count = (len(tokens) - 1) // context
            if count < 1:
                raise DataError(
                    f"{name}.context = {context}: language {group} has {len(tokens)} "
                    f"{'test' if test else 'training'} tokens, one more than `context` at least"
                )
            inputs.append(tokens[: count * context].reshape(count, context))
            targets.append(tokens[1 : count * context + 1].reshape(count, context))
            groups += [group] * count
            tested += [test] * count
    test_n = np.array(tested)
    owners: Ints = np.array(groups, dtype=np.int64)
    return Source(
        name=name,
        inputs=np.concatenate(inputs),
        targets=np.concatenate(targets),
        train=np.flatnonzero(~test_n),
        test=np.flatnonzero(test_n),
        outputs=SIZES[vocabulary],
        task="language",
        groups=owners,
        group_names=tuple(languages),
    )


def languages_of(codes: str) -> tuple[str, ...]:
    """Language codes in "ca-es-de-nl".

    Raises
    ------
    ValueError
        None, one twice, or something that is no code.
    """
    found = tuple(codes.split("-"))
    if len(set(found)) < len(found) or not all(c.replace("_", "").isalpha() for c in found):
        raise ValueError(f'codes wants different languages like "ca-es-de-nl", not "{codes}"')
    return found
