"""The code in the page for graders, and comments on its lines, as a person uses them; in a headless Chromium."""

from __future__ import annotations

import pytest

pytest.importorskip("nh3", reason="nh3, of the extra manual, is not installed")
api = pytest.importorskip("playwright.sync_api", reason="playwright, of the extra browser-tests, is not installed")

from gradebook.grading.manual_grading import line_comments  # noqa: E402
from tests.browser import NARROW, overflow, violations  # noqa: E402
from tests.gradebook.manual_grading.conftest import ManualClass  # noqa: E402
from tests.gradebook.plugins.grading_ui.test_in_a_browser import (  # noqa: E402, F401
    Grader,
    ana,
    browser,
    opened,
    shown,
)

FILE = "lab1_gpu_basics/benchmark.py"
CODE = ["def f(x):", "    total = 0", "    for v in x:", "        total += v", "    return total"]
SAID = "`sum` does <b>this</b><script>document.title='owned'</script>"


def hand_in(manual: ManualClass, lines: list[str]) -> None:
    lab = manual.small.submissions / "ada" / "lab1_gpu_basics"
    (lab / "benchmark.py").write_text("\n".join(lines))
    manual.small.grade(roster=manual.small.submissions.parent / "roster.csv")


@pytest.mark.night
def test_lines_are_commented_on_and_comments_stay_with_them(
    browser: api.Browser,  # noqa: F811
    ana: Grader,  # noqa: F811
    shown: ManualClass,  # noqa: F811
) -> None:
    hand_in(shown, CODE)
    page = opened(browser.new_context(viewport={"width": NARROW, "height": 900}), ana)
    file = page.locator("#code details", has_text=FILE)
    file.locator("summary").click()
    rows = file.locator("ol.lines > li")
    api.expect(rows).to_have_count(len(CODE))
    assert rows.nth(0).locator("code").inner_text() == CODE[0]
    api.expect(rows.nth(0).locator(".is-keyword")).to_have_text("def")

    # Written, and found again after the page was closed; markup in it is text.
    rows.nth(3).locator("button.number").click()
    api.expect(rows.nth(3).locator("textarea")).to_be_focused()
    page.keyboard.type(SAID)
    rows.nth(3).get_by_text("Save").click()
    api.expect(page.locator("#status")).to_contain_text("the comment is saved")
    (kept,) = line_comments.load(shown.folder, "student ada")
    assert (kept.file, kept.line, kept.text, kept.by) == (FILE, 4, SAID, "Ana")
    page.reload()
    api.expect(rows.nth(3).locator(".said p").first).to_have_text(SAID)
    assert page.title() != "owned"
    assert violations(page) == []
    assert overflow(page) <= 0

    # A form that is left has no effect, a change is kept, and the line is found where it is now.
    rows.nth(1).locator("button.number").click()
    rows.nth(1).get_by_text("Cancel").click()
    api.expect(rows.nth(1).locator("textarea")).to_have_count(0)
    rows.nth(3).get_by_text("Change").click()
    rows.nth(3).locator("textarea").fill("use sum()")
    rows.nth(3).get_by_text("Save").click()
    api.expect(rows.nth(3).locator(".said p").first).to_have_text("use sum()")
    hand_in(shown, ["# new", "", *CODE])
    page.reload()
    api.expect(rows.nth(5).locator(".said p").first).to_have_text("use sum()")

    # Without its line it is in a list; whoever wrote it removes it.
    hand_in(shown, ["def f(x):", "    return sum(x)"])
    page.reload()
    lost = page.locator("#code .notice")
    api.expect(lost).to_contain_text("Said about lines that are gone:")
    api.expect(lost).to_contain_text("total += v")
    lost.get_by_text("Remove").click()
    api.expect(lost).to_have_count(0)
    assert line_comments.load(shown.folder, "student ada") == ()
