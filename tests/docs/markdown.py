"""Links and anchors of a Markdown page, as GitHub sees them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
_PARSER = MarkdownIt("commonmark").enable("table")
_NO_PATH = re.compile(r"[a-z]+:", re.IGNORECASE)


@dataclass(frozen=True)
class Link:
    """A relative link to a file, a folder, or a heading."""

    page: str
    path: str
    """As it is written, from the page's folder; empty for a heading of the page itself."""
    anchor: str

    def __str__(self) -> str:
        return f"{self.page}: {self.path}{'#' if self.anchor else ''}{self.anchor}"


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text with marks, and what is set in code."""

    content: str
    codes: tuple[str, ...]


def table_below(heading: str, text: str) -> list[tuple[Cell, ...]]:
    """The rows of the first table below a heading, without its own."""
    tokens = _PARSER.parse(text)
    start = next(at for at, token in enumerate(tokens) if token.type == "inline" and token.content == heading)
    opening = next(at for at in range(start, len(tokens)) if tokens[at].type == "tbody_open")
    closing = next(at for at in range(opening, len(tokens)) if tokens[at].type == "tbody_close")
    rows: list[list[Cell]] = []
    for before, token in pairwise(tokens[opening:closing]):
        if token.type == "tr_open":
            rows.append([])
        elif before.type == "td_open":
            codes = tuple(child.content for child in token.children or [] if child.type == "code_inline")
            rows[-1].append(Cell(token.content, codes))
    return [tuple(row) for row in rows]


def links(page: str, text: str) -> list[Link]:
    """The relative links and pictures of a page, which is named by its path in the repository."""
    result = []
    for token in _inline(text):
        target = token.attrGet("href") or token.attrGet("src")
        if target and not _NO_PATH.match(str(target)):
            path, _, anchor = str(target).partition("#")
            result.append(Link(page, path, anchor))
    return result


def anchors(text: str) -> set[str]:
    """What a link to one of the page's headings may name, as GitHub derives it from the heading's words."""
    tokens = _PARSER.parse(text)
    titles = [inline for opening, inline in pairwise(tokens) if opening.type == "heading_open"]
    return {_slug(title) for title in titles}


def _slug(title: Token) -> str:
    words = "".join(child.content for child in title.children or [])
    return re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")


def _inline(text: str) -> list[Token]:
    return [child for token in _PARSER.parse(text) for child in token.children or []]
