"""The words that people read are those of the guide: pages, hints, titles, messages, notebooks and lab docstrings.

Only what a pattern can find: words with a plainer one in their place, and clauses as subjects ("Who hands in late,
loses..."). Whether a page reads well, people say.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from docs import recorded_tables
from tests.docs.markdown import ROOT
from tests.docs.test_pages import PAGES

PLAINER = {
    r"whoever": "the person or program: the student, the caller",
    r"anew": "again",
    r"mend(?:s|ed|ing)?": "fix",
    r"held against": "compared with, tested against",
    r"in(?: the)? place of": "instead of",
    r"but for": "except",
    r"beside": "next to, compared with, in addition to",
    r"such are|of which no|the latter": "repeat the noun",
    r"tell|tells|told": "report, show, say, pass",
    r"(?:stands?|stood|lies|lay) (?:in|at|on|there|beside|behind|below|above|before)": "is in, is at",
}
"""Words, and what to write instead."""
_WORDS = re.compile(rf"\b(?:{'|'.join(PLAINER)})\b", re.IGNORECASE)
_QUESTION = r"(?:is|are|was|were|do|does|did|has|have|can|could|should|would|will|else)\b"
_SUBJECT = re.compile(
    rf"(?:^|(?<=[.!?:] ))(?:What|Who|Whose) (?!{_QUESTION})[^.?!:;|]{{3,300}}[.;](?=\s|$)", re.MULTILINE
)
"""A sentence that begins with a clause and is no question."""
_NOT_PROSE = re.compile(
    r"```.*?```|~~~.*?~~~|`[^`\n]*`|<!--.*?-->|^#.*?$|\]\([^)]*\)|https?://\S+", re.DOTALL | re.MULTILINE
)

ALLOWED: Mapping[str, str] = {}
"""Texts that may stay, each with the reason."""

MESSAGES = ("cluster", "gradebook", "gradebox", "grader", "labkit", "solutions", "vgpu")
"""Packages whose programs say something to people."""


def of_pages() -> Iterator[tuple[str, str]]:
    """Those that people wrote: others are made from results, with the site."""
    for page in (page for page in PAGES if page not in (f"docs/{made}" for made in recorded_tables.PAGES)):
        yield page, (ROOT / page).read_text(encoding="utf-8")


def of_tables() -> Iterator[tuple[str, str]]:
    """Titles, hints and reasons in the course's files, levels of reports, and what tables say of bugs and tricks."""
    scenarios = (
        *ROOT.glob("tests/scenarios/*/bugs/*/scenario.toml"),
        *ROOT.glob("tests/scenarios/exploits/*/scenario.toml"),
    )
    files = [*ROOT.glob("grader/**/*.toml"), *scenarios]
    for file in files:
        if file.name != "requirements.toml":
            shown = ("title", "trap") if file.name == "scenario.toml" else ()
            yield from ((str(file.relative_to(ROOT)), text) for text in _texts(tomllib.loads(file.read_text()), shown))


def _texts(value: Any, shown: tuple[str, ...]) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        yield from (text for item in value for text in _texts(item, shown))
    elif isinstance(value, dict):
        yield from (text for key, item in value.items() if not shown or key in shown for text in _texts(item, ()))


def of_messages() -> Iterator[tuple[str, str]]:
    """Texts in code that are no docstrings: messages, help, labels."""
    for file in (file for package in MESSAGES for file in ROOT.glob(f"{package}/**/*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        documentation = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            match node:
                case ast.Constant(value=str(text)) if " " in text.strip() and id(node) not in documentation:
                    yield f"{file.relative_to(ROOT)}:{node.lineno}", text


def of_docstrings() -> Iterator[tuple[str, str]]:
    """What a student reads in the code of a lab, and of its results."""
    for file in (*ROOT.glob("solutions/**/*.py"), *ROOT.glob("labkit/results/*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            match node:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    # The first line names a thing, and may begin with "What".
                    yield f"{file.relative_to(ROOT)}:{node.lineno}", re.sub(r"^(What|Whose|Who)\b", "That", text)


def of_notebooks() -> Iterator[tuple[str, str]]:
    for file in ROOT.glob("notebooks/src/*.py"):
        lines = file.read_text(encoding="utf-8").splitlines()
        yield str(file.relative_to(ROOT)), "\n".join(line[2:] for line in lines if re.match("# [^%#]|#$", line))


def of_templates() -> Iterator[tuple[str, str]]:
    """The text of pages that programs make."""
    code = re.compile(r"<(style|script)\b.*?</\1>|{%.*?%}|{{.*?}}|{#.*?#}|<[^>]*>", re.DOTALL)
    for file in (file for package in MESSAGES for file in ROOT.glob(f"{package}/**/*")):
        if file.suffix in (".jinja", ".html") and "results" not in file.parts:
            yield str(file.relative_to(ROOT)), code.sub(" ", file.read_text(encoding="utf-8"))


def findings(texts: Iterator[tuple[str, str]]) -> list[str]:
    """Each place with a word or sentence that the guide advises against."""
    found = []
    for place, text in texts:
        plain = _NOT_PROSE.sub("`", text)
        for match in [*_WORDS.finditer(plain), *_SUBJECT.finditer(plain)]:
            around = " ".join(plain[max(0, match.start() - 60) : match.end() + 40].split())
            if not any(allowed in around for allowed in ALLOWED):
                found.append(f"{place}: {match[0]!r} in: {around}")
    return found


SOURCES = {
    "pages": of_pages, "tables": of_tables, "messages": of_messages, "docstrings": of_docstrings,
    "notebooks": of_notebooks, "templates": of_templates,
}  # fmt: skip


@pytest.mark.parametrize("source", SOURCES)
def test_people_read_plain_words_and_persons_as_subjects(source: str) -> None:
    assert findings(SOURCES[source]()) == [], f"plainer: {PLAINER}"


def test_pages_call_a_state_by_one_word() -> None:
    blocked = re.compile(r"\bblocked\b", re.IGNORECASE)
    assert [
        place for place, text in [*of_templates(), *of_pages()] if blocked.search(_NOT_PROSE.sub("`", text))
    ] == [], "a check that another one has to pass before is waiting"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("Whoever is told anew must mend it.", 4),
        ("Who hands in late loses points. Who is it? What follows is fine: what follows.", 1),
        ("It is so. What lies in a `told` file counts.", 2),
        ("What counts?", 0),
        ("Besides, this stands for that, and `told` is code.", 0),
    ],
)
def test_what_is_found(text: str, count: int) -> None:
    assert len(findings(iter([("a page", text)]))) == count
