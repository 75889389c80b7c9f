"""Colours of the pages: text has the contrast that WCAG AA demands, in light and dark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from coterie.app.report import html

ROOT = Path(__file__).parents[3]
SITE = {"default": ("#ffffff", "#f5f5f5"), "slate": ("#1e2129", "#272a35")}
"""Backgrounds of text and of code in the site's theme (Material): hsl(225, 15%, 14%) and 18%."""
BACKGROUNDS = ("paper", "raised", "picked", "hover")
AA = 4.5


def colours(*, dark: bool) -> dict[str, str]:
    """Return the colours of the style sheet by name."""
    light, _, rest = html.style("style.css").partition("@media (prefers-color-scheme: dark)")
    text = rest.partition("\n}\n")[0] if dark else light
    return dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", text))


def luminance(colour: str) -> float:
    """Return the relative luminance of WCAG 2."""
    shares = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_contrast_by_hand() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("text", ["ink", "soft", "faint", "accent", "warn"])
def test_text_can_be_read(text: str, dark: bool) -> None:
    named = colours(dark=dark)
    for background in BACKGROUNDS:
        assert contrast(named[text], named[background]) >= AA, f"--{text} on --{background}"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_pressed_buttons_and_notices_can_be_read(dark: bool) -> None:
    named = colours(dark=dark)
    assert contrast(named["paper"], named["accent"]) >= AA
    assert contrast(named["warn"], named["warn-bg"]) >= AA


@pytest.mark.parametrize("scheme", SITE)
def test_links_and_comments_of_the_site_can_be_read(scheme: str) -> None:
    style = (ROOT / "docs" / "site.css").read_text("utf-8")
    block = style.partition(f'[data-md-color-scheme="{scheme}"] {{')[2].partition("}")[0]
    named = dict(re.findall(r"--md-([\w-]+): (#[0-9a-f]{6});", block))
    assert named.keys() == {"typeset-a-color", "accent-fg-color", "code-hl-comment-color"}
    for name, colour in named.items():
        for background in SITE[scheme]:
            assert contrast(colour, background) >= AA, f"{name} on {background}"


def test_texts_call_no_colour_dark_or_light() -> None:
    """Scales run from light to dark in one scheme and from dark to light in the other."""
    folder = ROOT / "app" / "report"
    for path in (*folder.glob("*.py"), *folder.glob("templates/*.j2")):
        assert not re.search(r"\b(darker|lighter|brighter)\b", path.read_text("utf-8")), path.name
