"""Texts of institutions: rows of tokens, and errors that are listed on the node only."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from coterie.datasets.own.text import TextOptions
from coterie.datasets.partition.options import Partition
from coterie.datasets.problem import DataError, Problem
from coterie.datasets.table import DATASETS

ROW = DATASETS["text"]
WORDS = ["<end>", *"abcdefghij"]
OPTIONS = TextOptions(context=4)


def write_tokenizer(folder: Path, words: list[str] = WORDS) -> str:
    """Write a tokenizer of words that appends <end> to documents; return its SHA-256."""
    result = Tokenizer(models.WordLevel({word: k for k, word in enumerate(words)}, words[0]))
    result.pre_tokenizer = pre_tokenizers.Whitespace()
    result.decoder = decoders.Fuse()
    result.post_processor = processors.TemplateProcessing(
        single="$A <end>", special_tokens=[("<end>", 0)]
    )
    result.enable_truncation(3)  # common in published files, for other uses
    result.enable_padding(length=7)
    folder.mkdir(parents=True, exist_ok=True)
    result.save(str(folder / "tokenizer.json"))
    return hashlib.sha256((folder / "tokenizer.json").read_bytes()).hexdigest()


def write_part(folder: Path, text: str, name: str = "1.txt") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def load(data_dir: Path, options: TextOptions = OPTIONS, peers: int = 1) -> Problem:
    return ROW.load(Partition(), peers, 0, data_dir, options)


def alone(data_dir: Path, options: TextOptions, peer: int = 0, peers: int = 2) -> Problem:
    assert ROW.deployed is not None
    return ROW.deployed(peer, peers, 0, data_dir, options)


def test_documents_become_rows_of_tokens(tmp_path: Path) -> None:
    """By hand: a b | c <end> d <end> e <end>, in rows of four; the last token only ends a row."""
    write_tokenizer(tmp_path)
    write_part(tmp_path / "peer" / "train", "a b\nc\n")
    lines = [json.dumps({"text": "d", "id": 7}), "", json.dumps({"text": "e a"})]
    write_part(tmp_path / "peer" / "train", "\ufeff" + "\n".join(lines), "2.jsonl")
    write_part(tmp_path / "peer" / "test", "j j j j")
    problem = load(tmp_path)
    assert (problem.task, problem.outputs, problem.names) == ("language", len(WORDS), ("peer",))
    assert problem.inputs[problem.train.rows[0]].tolist() == [[1, 2, 3, 0], [4, 0, 5, 1]]
    assert problem.train.targets[0].tolist() == [[2, 3, 0, 4], [0, 5, 1, 0]]
    assert problem.inputs[problem.test.rows[0]].tolist() == [[10] * 4]
    assert problem.test.targets[0].tolist() == [[10, 10, 10, 0]]


def test_a_node_sees_of_the_run_what_the_simulation_gives_its_peer(tmp_path: Path) -> None:
    digest = write_tokenizer(tmp_path / "all")
    for peer, name in enumerate(("2", "10")):
        write_part(tmp_path / "all" / name, "a b c d e f g h i j " * (5 + peer))
    whole = load(tmp_path / "all", peers=2)
    options = TextOptions(context=4, tokenizer=digest)
    for peer, name in enumerate(("2", "10")):
        write_tokenizer(tmp_path / "all" / name)  # a node has its own copy
        local = alone(tmp_path / "all" / name, options, peer)
        assert local.outputs == whole.outputs
        for part in ("train", "test"):
            mine, theirs = getattr(local, part), getattr(whole, part)
            for split, problem in ((mine, local), (theirs, whole)):
                assert len(split.rows[peer]), "both have some"
                assert (problem.mean == 0).all(), "tokens are not normalised"
            np.testing.assert_array_equal(mine.targets[peer], theirs.targets[peer])
            np.testing.assert_array_equal(
                local.inputs[mine.rows[peer]], whole.inputs[theirs.rows[peer]]
            )
        assert not len(local.train.rows[1 - peer])


BAD = [
    b'{"text": "a b c d e f"}',
    b'{"text": "Jane \xff"}',
    b"Jane Doe",
    b'{"note": "Jane"}',
    b'{"text": 3}',
    b'{"text": "\\ud800"}',
    b"[" * 100_000,
    b'{"text": "g h i j a b"}',
]


def test_bad_lines_are_counted_and_named_on_the_node_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    digest = write_tokenizer(tmp_path)
    (tmp_path / "notes.jsonl").write_bytes(b"\n".join(BAD))
    (tmp_path / "ward.txt").write_bytes(b"a b c d\nJane \xff\ne f g h\n")
    with pytest.raises(DataError, match=r"7 lines cannot be read: correct") as refused:
        alone(tmp_path, TextOptions(context=4, tokenizer=digest))
    assert "ward" not in str(refused.value)
    assert "Jane" not in str(refused.value)
    lines = [f"notes.jsonl, line {number}: " for number in range(2, 8)] + ["ward.txt, line 2: "]
    for line, record in zip(lines, caplog.records, strict=True):
        assert line in record.getMessage()


def test_what_does_not_fit_is_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match=r"^a: text: there is no tokenizer.json in data-dir$"):
        load(tmp_path)
    digest = write_tokenizer(tmp_path)
    with pytest.raises(DataError, match=r"^a: text: expected \.txt or \.jsonl files"):
        load(tmp_path)
    write_part(tmp_path / "a", "a b c")
    with pytest.raises(DataError, match=r"context = 4: .* train part has fewer than 5 tokens"):
        load(tmp_path)
    with pytest.raises(DataError, match=r"text.tokenizer must be the SHA-256"):
        alone(tmp_path / "a", OPTIONS)
    write_tokenizer(tmp_path / "a", WORDS[:-1])
    with pytest.raises(DataError, match=r"tokenizer.json does not have the digest text.tokenizer"):
        alone(tmp_path / "a", TextOptions(tokenizer=digest))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"^a: text: tokenizer.json is not a tokenizer: "):
        load(tmp_path, TextOptions(context=2))
    with pytest.raises(ValueError, match="must together be below 1"):
        TextOptions(test=0.5, validation=0.5)
