"""Names of runs and peers, which become folders, arguments and cells: letters, digits, ".-_"."""

from __future__ import annotations

import re

_MODULE = re.compile(r"(?!(timm|torchvision|transformers):)[\w.]+:(?=\w)")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")

RULE = 'letters, digits, ".", "-" and "_", at most 64, no "." or "-" in front'


def is_name(text: str) -> bool:
    """Return whether a text is a name."""
    return _NAME.fullmatch(text) is not None


def shortened(name: str, end: str) -> str:
    """Join a name and a suffix; shorten the name if the result is too long."""
    cleaned = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).lstrip(".-") or "run"
    return cleaned[: 64 - len(end)] + end


def display(part: str) -> str:
    """Return the display name of a part: of a plugin "package.module:attribute" the attribute."""
    module = _MODULE.match(part)
    return part[module.end() :] if module else part
