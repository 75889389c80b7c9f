"""A log line can be taken apart again."""

from __future__ import annotations

import logging
import shlex

from app.runs.logs import KeyValue


def line(message: str, level: int = logging.WARNING, **extra: object) -> str:
    record = logging.makeLogRecord(
        {"name": "coterie.relay", "levelno": level, "levelname": logging.getLevelName(level)}
        | {"msg": message, **extra}
    )
    return KeyValue().format(record)


def test_every_field_is_there_in_one_line() -> None:
    text = line('peers 2 said "no"\nand left', round=3, stage="update", peers="1, 2")
    assert "\n" not in text
    fields = dict(part.split("=", 1) for part in shlex.split(text))
    assert fields.pop("time").endswith("Z")
    assert fields == {
        "level": "WARNING", "logger": "relay", "round": "3", "stage": "update", "peers": "1, 2",
        "msg": "peers 2 said \"no\"\\nand left",
    }  # fmt: skip


def test_a_foreign_value_cannot_forge_another_line() -> None:
    text = line("x\ntime=now level=ERROR", node="a b=c")
    assert len(text.splitlines()) == 1
    assert 'node="a b=c"' in text
