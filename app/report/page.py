"""One HTML file that needs nothing else: what the pages for people have in common."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from html import escape
from string import Template
from typing import Any

from app.report.report_style import CSS

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""Content security policy: the browser itself refuses to fetch anything."""

_DOCUMENT = Template("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="$policy">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>$css</style>
</head>
<body>
<main>
<header>
<p class="over">$over</p>
<h1>$title</h1>
<p class="facts">$facts</p>
$head
</header>
$sections
<footer>$footer</footer>
</main>
<div id="tip" role="status"></div>
<script type="application/json" id="run">$data</script>
<script>$script</script>
</body>
</html>
""")


def document(
    over: str,
    title: str,
    facts: Iterable[str],
    head: str,
    sections: Iterable[str],
    footer: str,
    data: Mapping[str, Any],
    script: str,
) -> str:
    """Return a page's HTML.

    Parameters
    ----------
    over, title, facts : plain text: the kind of page, its heading, the line of facts below.
    head, sections, footer : HTML, escaped by whoever made it.
    data : what the script draws, for JSON. script : see `page_script`.
    """
    return _DOCUMENT.substitute(
        policy=POLICY,
        title=escape(title),
        css=CSS,
        over=escape(over),
        facts="".join(f"<span>{escape(fact)}</span>" for fact in facts),
        head=head,
        sections="\n".join(sections),
        footer=footer,
        data=embed(data),
        script=script,
    )


def embed(data: Mapping[str, Any]) -> str:
    """Write JSON that is safe inside a script element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
