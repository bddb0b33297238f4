"""A report's prose is counted in time that grows with its length, and results that nobody can compute with fail."""

from __future__ import annotations

import time

import pytest

from gradebox.assertions import CheckFailed
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


@pytest.mark.parametrize("piece", ["<!-- ", "<!--", "```\n", "# \n", "--> ", "<!-- x --> "])
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
