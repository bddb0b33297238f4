"""A report's prose is counted in time that grows with its length, and results that nobody can compute with fail."""

from __future__ import annotations

import time
from typing import Any

import pytest

import grader
from gradebox.run.assertions import CheckFailed
from grader.shared import reports

TEXT = """# Title

Some prose <!-- a hint
of two lines --> and more.

```toml
[claims]
speedup = 2.0
```
The end.
"""


def test_prose_is_what_is_neither_fenced_nor_heading_nor_comment() -> None:
    assert reports._prose(TEXT).split() == ["Some", "prose", "and", "more.", "The", "end."]


def test_prose_is_what_a_page_shows() -> None:
    shown = "The first figure is [here][1], and [2]: follows.\n[3]: is no link.\n"
    hidden = (
        "[1]: results/a.json \"words that nobody sees\"\n[2]: <b.json>\n  'and\nmore of them'\n"
        "~~~text\na table, and\n```\nits numbers\n~~~\n````\ncode\n```\nand more\n`````\n"
    )
    assert reports._prose(shown + hidden).split() == shown.split()
    assert reports._prose(hidden + shown).split() == shown.split()


PIECES = ["<!-- ", "<!--", "```\n", "# \n", "--> ", "<!-- x --> ", "~~~\n", "[", '[a]: b "\n', "[a]: b '", "[a]:\n\n"]


@pytest.mark.parametrize("piece", PIECES)
def test_a_megabyte_of_openings_costs_no_more_than_any_other(piece: str) -> None:
    started = time.process_time()
    reports._prose(piece * (2**20 // len(piece)))
    assert time.process_time() - started < 5.0  # the pattern of before took minutes for a tenth of it


@pytest.mark.parametrize("error", [ZeroDivisionError, RecursionError, OverflowError])
def test_results_that_cannot_be_computed_with_fail_the_check(error: type[Exception]) -> None:
    @reports.explained
    def judge(submission: object) -> None:
        raise error

    with pytest.raises(CheckFailed, match=f"cannot be computed with \\({error.__name__}\\)"):
        judge(None)  # type: ignore[arg-type]


class _Submission:
    """One REPORT.md, and nothing except it."""

    def __init__(self, text: str) -> None:
        self._text = text

    def read_text(self, name: str) -> str | None:
        return self._text if name.endswith("REPORT.md") else None


def _claims_beside(prose: str) -> reports.Claims:
    text = f"# Title\n\n```toml\n[claims]\nspeedup = 2.0\n```\n<!-- a comment -->\n{prose}\n"
    submission: Any = _Submission(text)
    return reports.claims(submission, "lab1", {"speedup": (float,)}, task="1.5", write="why")


def _prose(words: int, different: int) -> str:
    return " ".join(f"word{number % different}" for number in range(words))


def test_a_report_has_sixty_words_and_the_message_says_that_they_are_only_counted() -> None:
    assert _claims_beside(_prose(60, 30)) == {"speedup": 2.0}
    with pytest.raises(CheckFailed) as caught:
        _claims_beside(_prose(59, 59))
    assert caught.value.message == (
        "REPORT.md has 59 words of text outside headings, comments and code, expected at least 60"
    )
    assert caught.value.hint == "Write why. This check counts the words, and does not judge what they say."


@pytest.mark.parametrize("prose", ["word " * 70, _prose(600, 29), " ".join(["The gpu the GPU is Faster faster."] * 20)])
def test_the_same_words_again_and_again_are_no_report(prose: str) -> None:
    with pytest.raises(CheckFailed, match="are different, expected at least 30"):
        _claims_beside(prose)


@pytest.mark.parametrize("ink", ["\u200b\u2060", "\u3164\uffa0", "*_", "·—"])
def test_what_has_neither_letter_nor_digit_is_no_word(ink: str) -> None:
    signs = [format(number, "b").translate({48: ink[0], 49: ink[1]}) for number in range(64)]
    with pytest.raises(CheckFailed, match=r"REPORT\.md has 20 words"):
        _claims_beside(f"{' '.join(signs)} {_prose(20, 20)}")


@pytest.mark.parametrize("lab", ["lab1", "lab2", "lab3", "lab4", "kernels", "sharding"])
def test_the_title_says_what_is_judged(lab: str) -> None:
    course = grader.course()
    titles = course.titles(candidate for candidate in course.all_labs if candidate.id == lab)
    (title,) = [text for check, text in titles.items() if check.endswith(".report_agrees_with_results")]
    assert title == f"Report what results/ says, in {reports.MINIMUM_PROSE_WORDS} words"
