"""Quantities in words, for people: shares, bytes, counts, durations."""

from __future__ import annotations

import numpy as np

NONE = "–"


def percent(value: float | None, unit: str = " %") -> str:
    """Write a share in percent, "88.6 %"."""
    return NONE if value is None else f"{100 * value:.1f}{unit}"


def number(value: float | None) -> str:
    """Write a loss or the like with four significant digits."""
    return NONE if value is None else f"{value:.4g}"


def signed(value: float, form: str) -> str:
    """Write a number with its sign; one that rounds to zero has a plus."""
    text = f"{value:+{form}}"
    return text if float(text) else text.replace("-", "+")


def scaled(value: float | None, units: tuple[str, ...]) -> str:
    """Write a count in the largest unit that leaves at least 1, three significant digits."""
    if value is None or not np.isfinite(value):
        return NONE
    power = 0
    while abs(value) >= 1000 and power < len(units) - 1:
        value, power = value / 1000, power + 1
    digits = 0 if power == 0 or abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f}{units[power]}"


def size(value: float | None) -> str:
    """Write a number of bytes, "6.21 MB"."""
    return scaled(value, (" B", " kB", " MB", " GB", " TB"))


def count(value: float | None) -> str:
    """Write a count, "57.6 k"."""
    return scaled(value, ("", " k", " M", " G", " T"))


def duration(seconds: float | None) -> str:
    """Write a duration, "1 h 02 min"."""
    if seconds is None:
        return NONE
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def plural(amount: int, noun: str) -> str:
    """Write "1 peer" or "8 peers"."""
    return f"{amount:,} {noun}{'' if amount == 1 else 's'}"
