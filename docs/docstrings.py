"""A griffe extension: reads "name : what it is" in a docstring's sections as a description.

numpydoc has a type in that place; the types of this code stand in its signatures.
"""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_ENTRY = re.compile(r"^(?P<names>\*{0,2}\w[\w., ]*?) : (?P<said>.+(?:\n    .*)*)", re.MULTILINE)
_SECTION = re.compile(r"^(?:Parameters|Attributes|Raises)\n-+\n(?:(?!\w[^\n]*\n-+\n).*\n?)*", re.M)


def described(docstring: str) -> str:
    """The docstring with what is said of a name on lines of its own."""
    return _SECTION.sub(lambda section: _ENTRY.sub(_moved, section[0]), docstring)


def _moved(entry: re.Match[str]) -> str:
    return f"{entry['names']}\n    {' '.join(entry['said'].split())}"


class Described(Extension):
    """Applies `described` to every docstring."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Rewrite the docstring of an object that was just collected."""
        if obj.docstring is not None:
            obj.docstring.value = described(obj.docstring.value)
