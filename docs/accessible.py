"""Sphinx extension: what Sphinx and Furo leave out for those who use a keyboard or a screen reader.

Written into the finished pages: headings of the menu get their level, the two side bars a name, blocks of code and
tables that may have to be scrolled the focus that scrolls them, the empty corner of a table no header, the search its
heading.
`tests/docs/test_site.py` asks axe-core whether that is all.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

_FIXED = (
    (re.compile(r'role="heading">'), 'role="heading" aria-level="2">'),
    (re.compile(r'<aside class="sidebar-drawer">'), '<aside class="sidebar-drawer" aria-label="Pages">'),
    (re.compile(r'<aside class="toc-drawer'), '<aside aria-label="On this page" class="toc-drawer'),
    (re.compile(r"<pre>"), '<pre tabindex="0">'),
    (re.compile(r'<div class="table-wrapper'), '<div tabindex="0" class="table-wrapper'),
    (re.compile(r'<th class="head([^"]*)">\s*(?:<p>\s*</p>)?\s*</th>'), r'<td class="head\1"></td>'),
)
_SEARCH = re.compile(r'(<article role="main" id="furo-main-content">)(?!\s*<h1)')


def _fix(app: Sphinx, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    for page in Path(app.outdir).rglob("*.html"):
        if "_static" in page.parts or page.parent.name == "notebooks":
            continue
        text = page.read_text(encoding="utf-8")
        for pattern, fixed in _FIXED:
            text = pattern.sub(fixed, text)
        if page.name == "search.html":
            text = _SEARCH.sub(r"\1<h1>Search</h1>", text)
        page.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", _fix)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
