"""A student's report as HTML that cannot do anything, and the pictures of the submission next to it.

Both come from somebody who may mean harm. markdown-it-py renders, nh3 lets through what is on its list; a picture is
one of the submission's own files, named by its number, and nothing is loaded from anywhere else.
"""

from __future__ import annotations

import difflib
import functools
import html
import os
import posixpath
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradebook.grading.manual_grading import ManualGradingError
from gradebox.common import files
from gradebox.common.texts import printable

NAME = "REPORT.md"
MAX_CHARACTERS = 40_000
"""Six thousand words. Brackets nested against us take seconds to be rendered, and twice as many four times that."""
MAX_PICTURES, MAX_PICTURE_BYTES = 60, 10 * 2**20
_MAX_DIFF_LINES = 3000
_LONGEST_SOURCE = 100
_TYPES = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".svg": "image/svg+xml",
}
_TAGS = {
    *("a", "abbr", "b", "blockquote", "br", "code", "dd", "del", "details", "div", "dl", "dt", "em"),
    *("h1", "h2", "h3", "h4", "h5", "h6", "hr", "i", "img", "kbd", "li", "mark", "ol", "p", "pre", "q", "s", "samp"),
    *("small", "span", "strong", "sub", "summary", "sup", "table", "tbody", "td", "tfoot", "th", "thead", "tr", "ul"),
}
_ATTRIBUTES = {
    "a": {"href", "title"},
    "img": {"src", "alt", "title"},
    "td": {"align"},
    "th": {"align"},
    "ol": {"start"},
}


@dataclass(frozen=True)
class Picture:
    """One picture of a submission."""

    name: str
    """Its path below the labs, with `/`."""
    path: Path
    kind: str
    """Its media type."""


@dataclass(frozen=True)
class Report:
    """One report of a submission."""

    name: str
    text: str


def check_libraries() -> None:
    """Raise `ManualGradingError` where what renders reports is not installed."""
    try:
        import markdown_it
        import nh3
        import werkzeug  # noqa: F401
    except ImportError as error:
        raise ManualGradingError(
            f"the page needs {error.name}, which is not installed: pip install 'gpu-computing-labs[grading-ui]'"
        ) from None
    del markdown_it, nh3


def reports(labs: Path) -> tuple[Report, ...]:
    """Every report of a submission, by its path; what is too long is cut, and says so."""
    texts = []
    for name, path in _walk(labs):
        if path.name.casefold() == NAME.casefold():
            try:
                text = files.read_text(path)
            except OSError:
                continue
            if len(text) > MAX_CHARACTERS:
                text = f"{text[:MAX_CHARACTERS]}\n\n**(cut here: {len(text):,} characters)**\n"
            texts.append(Report(printable(name, lines=False), text))
    return tuple(texts)


def pictures(labs: Path) -> tuple[Picture, ...]:
    """The pictures of a submission, by their path."""
    shown = []
    for name, path in _walk(labs):
        kind = _TYPES.get(path.suffix.lower())
        if kind is not None and path.stat().st_size <= MAX_PICTURE_BYTES:
            shown.append(Picture(name, path, kind))
    return tuple(shown[:MAX_PICTURES])


@functools.lru_cache(maxsize=256)
def to_html(report: Report, shown: tuple[Picture, ...], address: str) -> str:
    """The report as a fragment of HTML without scripts, styles, forms or anything that is loaded from elsewhere.

    Args:
        report: as the student wrote it.
        shown: the pictures of the submission.
        address: the text before the number of a picture.
    """
    import nh3
    from markdown_it import MarkdownIt

    numbers = {picture.name: number for number, picture in enumerate(shown)}
    base = posixpath.dirname(report.name)

    def attribute(tag: str, name: str, value: str) -> str | None:
        if (tag, name) == ("img", "src"):
            path = _below(base, value)
            return f"{address}{numbers[path]}" if path in numbers else None
        if name == "href":
            return value if value.lower().startswith(("https://", "http://")) else None
        return value

    renderer = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    renderer.add_render_rule("image", _image(base, numbers))
    cleaned: str = nh3.clean(
        renderer.render(printable(_plain(report.text))),
        tags=_TAGS,
        attributes=_ATTRIBUTES,
        attribute_filter=attribute,
        url_schemes={"http", "https"},
        link_rel="noopener noreferrer nofollow",
        set_tag_attribute_values={"a": {"target": "_blank"}},
    )
    return cleaned


def _below(base: str, source: str) -> str:
    """The path of a picture that a report in the folder `base` names, with the separators of Windows, too."""
    return posixpath.normpath(posixpath.join(base, urllib.parse.unquote(source).replace("\\", "/")))


def _plain(text: str) -> str:
    """A text with one kind of line ends and no mark of byte order, whichever system wrote it."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def difference(before: Sequence[Report], after: Sequence[Report]) -> list[str]:
    """What changed between the reports of two versions, as lines of a unified diff; empty where nothing did."""
    old, new = ({report.name: _plain(report.text).splitlines() for report in those} for those in (before, after))
    lines: list[str] = []
    for name in sorted(old.keys() | new.keys()):
        earlier, other = old.get(name, []), new.get(name, [])
        if earlier == other:
            continue
        if len(earlier) + len(other) > _MAX_DIFF_LINES:
            lines.append(f"{name}: changed, and too long to be compared here")
            continue
        lines += difflib.unified_diff(earlier, other, f"before/{name}", f"now/{name}", n=1, lineterm="")
    return [printable(line, lines=False) for line in lines]


def _image(base: str, numbers: dict[str, int]) -> Any:
    """What the renderer makes of a picture that a report names: words if none of those that are shown is it."""

    def rule(self: Any, tokens: Any, index: int, options: Any, env: Any) -> str:
        token = tokens[index]
        source = str(token.attrGet("src") or "")
        if _below(base, source) in numbers:
            return str(self.image(tokens, index, options, env))
        what = f"not in the submission, or no picture of at most {MAX_PICTURE_BYTES // 2**20} MiB"
        alt = self.renderInlineAsText(token.children, options, env) if token.children else ""
        return f"<mark>[{what}: {html.escape(f'{alt} {source[:_LONGEST_SOURCE]}'.strip())}]</mark>"

    return rule


def _walk(labs: Path) -> list[tuple[str, Path]]:
    """The regular files below a folder, by their paths; links are left out, folders of ours that are none, too."""
    files_below = []
    for folder, folders, names in os.walk(labs):
        folders[:] = [name for name in folders if not os.path.islink(os.path.join(folder, name))]
        for name in names:
            path = Path(folder) / name
            if path.is_file() and not path.is_symlink():
                files_below.append((path.relative_to(labs).as_posix(), path))
    return sorted(files_below)
