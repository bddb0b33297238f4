"""The page as a grader uses it: by keyboard, through crashes, next to another grader; in a headless Chromium."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

pytest.importorskip("nh3", reason="nh3, of the extra manual, is not installed")
api = pytest.importorskip("playwright.sync_api", reason="playwright, of the extra browser-tests, is not installed")

from gradebook.grading.manual_grading import comments, marks, requests  # noqa: E402
from gradebook.grading.manual_grading.requests import NewRequest  # noqa: E402
from tests.browser import WIDE, launched, on_screens, overflow, violations  # noqa: E402
from tests.gradebook.manual_grading.conftest import RUBRIC, ManualClass  # noqa: E402

ROOT = Path(__file__).parents[4]
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360f8cfc0f01f0005000201b5e5d6ba0000000049454e44ae426082"
)
HOSTILE = """# Report of Ada
<script>document.title = "owned"</script><img src=x onerror="document.title='owned'">
<img src="https://evil.example/x.png"> ![out](https://evil.example/y.png) ![in](results/plot.png)
<a href="javascript:document.title='owned'">click me</a>
"""


class Grader:
    """A process that serves the page, as the command starts it."""

    def __init__(self, folder: Path, name: str) -> None:
        command = [
            sys.executable,
            "-c",
            "from grader.cli import app; app()",
            "manual",
            "grade",
            str(folder),
            "--as",
            name,
        ]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if match := re.search(r"http://\S+", line):
                self.address = match[0]
                break

    def end(self, how: signal.Signals = signal.SIGINT) -> None:
        if self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(60)


@pytest.fixture(scope="module")
def browser() -> Iterator[api.Browser]:
    with launched() as made:
        yield made


@pytest.fixture
def shown(manual: ManualClass) -> ManualClass:
    """With a report that means harm, a plot, and two comments."""
    lab = manual.small.submissions / "ada" / "lab1_gpu_basics"
    (lab / "results").mkdir()
    (lab / "results" / "plot.png").write_bytes(PNG)
    (lab / "REPORT.md").write_text(HOSTILE)
    manual.small.grade(roster=manual.small.submissions.parent / "roster.csv")
    manual.comments([("late_axis", "discussion", "-1.5"), ("why", "discussion", "-1"), ("best", "figures", "4")])
    return manual


@pytest.fixture
def ana(shown: ManualClass) -> Iterator[Grader]:
    made = Grader(shown.folder, "Ana")
    yield made
    made.end()


def opened(context: api.BrowserContext, grader: Grader) -> api.Page:
    page = context.new_page()
    page.set_default_timeout(30_000)
    page.goto(grader.address)
    page.wait_for_selector(".criterion")
    return page


def saved(page: api.Page) -> None:
    api.expect(page.locator("#status")).to_have_text("saved", timeout=30_000)


@pytest.mark.night
def test_a_class_is_graded_by_keyboard(browser: api.Browser, ana: Grader, shown: ManualClass) -> None:
    page = opened(browser.new_context(), ana)
    api.expect(page.locator("#label")).to_have_text("Ada Lovelace")
    page.keyboard.press("1")
    page.keyboard.press("t")
    page.keyboard.type("Say why.")
    page.keyboard.press("Escape")
    page.keyboard.press("c")
    page.keyboard.press("p")
    page.keyboard.type("2.5")
    page.keyboard.press("Enter")
    page.keyboard.press("Escape")
    saved(page)
    stored = marks.load(shown.folder, "student ada")
    assert (stored["discussion"].comments, stored["discussion"].text, stored["discussion"].done) == (
        ("late_axis",), "Say why.", True
    )  # fmt: skip
    line = shown.line("ada").manual
    assert line is not None
    assert [criterion.points for criterion in line.criteria] == [Decimal("4.5"), Decimal("2.5")]
    page.keyboard.press("n")
    api.expect(page.locator("#label")).to_have_text("blue: Bob, Cleo")
    page.keyboard.press("f")
    page.keyboard.press("c")
    page.keyboard.press("1")
    saved(page)
    page.keyboard.press("n")
    api.expect(page.locator("#status")).to_have_text("everything is graded")
    page.keyboard.press("u")
    api.expect(page.locator("#status")).to_have_text("taken back: Figures")
    assert not marks.load(shown.folder, "team blue")["figures"].done
    page.keyboard.press("l")
    api.expect(page.locator("#tally")).to_have_text("Criteria graded: Ana 3.")


def test_a_level_gives_its_points_with_one_click_and_the_student_reads_its_text(
    browser: api.Browser, ana: Grader, shown: ManualClass
) -> None:
    level = "[[criterion.level]]\npoints = {0}\ntext = '{1}'\n"
    levels = level.format("4", "Axes have units.") + level.format("1.5", "Some have.")
    shown.write_rubric(text=RUBRIC + levels)
    page = opened(browser.new_context(), ana)
    buttons = page.locator("#criterion-figures .levels button")
    api.expect(buttons).to_have_text(["4", "1.5"])
    assert page.locator("#criterion-discussion .levels").count() == 0
    buttons.nth(1).click()
    saved(page)
    mark = marks.load(shown.folder, "student ada")["figures"]
    assert (mark.done, mark.adjust) == (True, Decimal("1.5"))
    buttons.nth(0).click()  # another click replaces the level
    buttons.nth(1).click()
    saved(page)
    line = shown.line("ada").manual
    assert line is not None
    (figures,) = [criterion for criterion in line.criteria if criterion.id == "figures"]
    assert (figures.points, [remark.text for remark in figures.remarks]) == (Decimal("1.5"), ["Some have."])


@pytest.mark.night
def test_a_report_that_people_grade_has_what_the_check_found_above_it(
    browser: api.Browser, shown: ManualClass, tmp_path: Path
) -> None:
    (tmp_path / "class.toml").write_text("[by_hand]\nreports = true\n")
    shown.small.grade(roster=tmp_path / "roster.csv", configuration=tmp_path / "class.toml")
    (shown.folder / "manual_grading" / "rubric.toml").unlink()
    grader = Grader(shown.folder, "Ana")
    try:
        page = opened(browser.new_context(), grader)
        outcome = shown.line("ada").reports[0].automatic.value.replace("_", " ")
        api.expect(page.locator(".automatic li b")).to_have_text(f"Lab 1: {outcome}")
        api.expect(page.locator(".criterion h2")).to_have_text(
            ["Lab 1: CPU against GPU", "Lab 1: Memory", "Lab 1: Where the time goes, and what next"]
        )
        page.keyboard.press("1")  # the first reusable comment of the course
        saved(page)
        assert marks.load(shown.folder, "student ada")["lab1_cpu_gpu"].comments == ("lab1_cpu_gpu-1",)
        assert violations(page) == []
        for width in (390, 1400):
            page.set_viewport_size({"width": width, "height": 800})
            page.wait_for_timeout(200)
            assert overflow(page) <= 0
    finally:
        grader.end()


@pytest.mark.night
def test_points_that_cannot_be_given_are_refused_and_change_nothing(
    browser: api.Browser, ana: Grader, shown: ManualClass
) -> None:
    page = opened(browser.new_context(), ana)
    for typed in ("45", "-1", "7 or so"):
        page.fill("#points-discussion", typed)
        page.keyboard.press("Enter")
        api.expect(page.locator("#status")).to_contain_text(typed)
        api.expect(page.locator("#points-discussion")).to_have_value("")
        assert "discussion" not in marks.load(shown.folder, "student ada")
    page.fill("#points-discussion", "4,5")
    page.keyboard.press("Enter")
    saved(page)
    for typed in ("45", "-1", "7 or so"):
        page.fill("#points-discussion", typed)
        page.keyboard.press("Enter")
        api.expect(page.locator("#points-discussion")).to_have_value("4.5")


@pytest.mark.night
def test_points_are_kept_while_they_are_typed(browser: api.Browser, ana: Grader, shown: ManualClass) -> None:
    page = opened(browser.new_context(), ana)
    page.click("#points-discussion")
    page.keyboard.type("3.5")
    saved(page)
    mark = marks.load(shown.folder, "student ada")["discussion"]
    assert (mark.adjust, mark.done) == (Decimal("-2.5"), False), "of 6, and somebody is still typing"
    page.reload()
    api.expect(page.locator("#points-discussion")).to_have_value("3.5")
    # A digit too many changes nothing, although what comes before it could be given.
    page.click("#points-discussion")
    page.keyboard.type("49")
    page.keyboard.press("Tab")
    api.expect(page.locator("#points-discussion")).to_have_value("3.5")
    assert not page.is_checked("#done-discussion")


@pytest.mark.night
def test_who_types_points_and_then_says_that_it_is_finished_has_finished_it(
    browser: api.Browser, ana: Grader, shown: ManualClass
) -> None:
    page = opened(browser.new_context(), ana)
    page.click("#points-discussion")
    page.keyboard.type("2")
    page.click("text=finished >> nth=0")
    api.expect(page.locator("#done-discussion")).to_be_checked()
    page.wait_for_timeout(1200)
    page.click("#done-discussion")
    api.expect(page.locator("#done-discussion")).not_to_be_checked()
    for key in ("p", "3", "Enter", "Escape", "f"):
        page.keyboard.press(key)
    api.expect(page.locator("#done-discussion")).to_be_checked()
    saved(page)
    assert marks.load(shown.folder, "student ada")["discussion"].done


@pytest.mark.night
def test_a_report_that_means_harm_does_none(browser: api.Browser, ana: Grader) -> None:
    context = browser.new_context()
    urls: list[str] = []
    context.on("request", lambda request: urls.append(request.url))
    page = opened(context, ana)
    page.wait_for_function("document.querySelector('.report img[src]')?.complete")
    assert page.evaluate("document.querySelector('.report img[src]').naturalWidth") == 1  # the plot
    page.get_by_text("click me").click()
    page.wait_for_timeout(300)
    assert page.title() == "Report: grading by hand"
    assert page.locator(".report script").count() == 0
    assert (
        "[not in the submission, or no picture of at most 10 MiB: out https://evil.example/y.png]"
        in page.inner_text(".report")
    )
    assert {url for url in urls if not url.startswith(ana.address)} == set()


@pytest.mark.night
def test_what_was_typed_outlives_a_server_that_is_killed(browser: api.Browser, ana: Grader, shown: ManualClass) -> None:
    context = browser.new_context()
    page = opened(context, ana)
    ana.end(signal.SIGKILL)
    page.fill("#text-discussion", "typed while nobody listened")
    api.expect(page.locator("#status")).to_contain_text("kept in this browser", timeout=30_000)
    assert marks.load(shown.folder, "student ada") == {}
    page.close()  # the browser goes down, too
    again = Grader(shown.folder, "Ana")
    try:
        page = opened(context, again)
        api.expect(page.locator("#text-discussion")).to_have_value("typed while nobody listened")
        saved(page)
        assert marks.load(shown.folder, "student ada")["discussion"].text == "typed while nobody listened"
    finally:
        again.end()


@pytest.mark.night
def test_an_old_page_says_that_the_server_was_started_anew(
    browser: api.Browser, ana: Grader, shown: ManualClass
) -> None:
    page = opened(browser.new_context(), ana)
    ana.end(signal.SIGKILL)
    again = Grader(shown.folder, "Ana")
    try:
        page.fill("#text-discussion", "x")
        api.expect(page.locator("#status")).to_contain_text("kept in this browser: open the link", timeout=30_000)
    finally:
        again.end()


def _in_conflict(*pages: api.Page) -> api.Page:
    """The page of who was slower."""
    for _ in range(300):
        for page in pages:
            if page.locator(".conflict").count():
                return page
        pages[0].wait_for_timeout(100)
    raise AssertionError("nobody was told of a conflict")


@pytest.mark.night
def test_two_graders_see_each_other_and_settle_a_conflict(
    browser: api.Browser, ana: Grader, shown: ManualClass
) -> None:
    ben = Grader(shown.folder, "Ben")
    try:
        ana_page, ben_page = opened(browser.new_context(), ana), opened(browser.new_context(), ben)
        api.expect(ana_page.locator("#label")).to_have_text("Ada Lovelace")
        if ben_page.inner_text("#label") != "Ada Lovelace":  # Ana had it open already
            ben_page.keyboard.press("k")
        api.expect(ben_page.locator("#label")).to_have_text("Ada Lovelace")
        api.expect(ana_page.locator("#about")).to_contain_text("Ben has it open, too", timeout=30_000)
        ben_page.fill("#text-discussion", "Ben's")
        ana_page.fill("#text-discussion", "Ana's")
        page = _in_conflict(ana_page, ben_page)
        mine = page.input_value("#text-discussion")
        page.get_by_text("Keep mine").click()
        saved(page)
        assert marks.load(shown.folder, "student ada")["discussion"].text == mine
        winner = ben_page if page is ana_page else ana_page
        api.expect(winner.locator("#text-discussion")).to_have_value(mine, timeout=30_000)  # seen without a reload
    finally:
        ben.end()


@pytest.mark.night
def test_what_is_handed_in_anew_is_shown_and_stands_once_somebody_has_looked(
    browser: api.Browser, ana: Grader, shown: ManualClass
) -> None:
    shown.give("student ada", "discussion", comments=("why",))
    report = shown.small.submissions / "ada" / "lab1_gpu_basics" / "REPORT.md"
    report.write_text("# Report of Ada\n\nThe launch takes longer than the product.\n")
    shown.small.grade(roster=shown.small.submissions.parent / "roster.csv")
    page = opened(browser.new_context(), ana)
    api.expect(page.locator(".notice h2")).to_have_text("Handed in again after it was graded")
    assert "+The launch takes longer than the product." in page.inner_text(".changes")
    assert not page.is_checked("#done-discussion")
    page.get_by_text("I have looked: the marks stand").click()
    api.expect(page.locator("#done-discussion")).to_be_checked()
    content = shown.units()["student ada"].content
    assert marks.load(shown.folder, "student ada")["discussion"].content == content


@pytest.mark.night
def test_a_comment_is_made_changed_and_a_request_answered(
    browser: api.Browser, ana: Grader, shown: ManualClass
) -> None:
    (name,) = requests.add(
        shown.folder, [NewRequest("ada", "The axis has a unit!", "manual.figures")], ["ada"], ["manual.figures"]
    )
    shown.give("team blue", "discussion", comments=("why",))
    page = opened(browser.new_context(), ana)
    page.fill("[aria-label=Answer]", "You are right.")
    page.get_by_text("Save the answer").click()
    api.expect(page.locator("#status")).to_contain_text("the answer is saved")
    assert requests.load(shown.folder)[0].id == name
    assert requests.load(shown.folder)[0].answer == "You are right."
    page.locator("#comments-discussion [title^=Change]").nth(1).click()
    api.expect(page.locator(".edit")).to_contain_text("a change reaches 1 submission")
    page.fill("#edit-points-discussion", "-2")
    page.keyboard.press("Enter")
    api.expect(page.locator("#comments-discussion .worth").nth(1)).to_have_text("\N{MINUS SIGN}2")
    assert comments.load(shown.folder)["why"].points == -2
    line = shown.line("bob").manual
    assert line is not None
    assert line.criteria[0].points == 4
    page.locator("#add-figures").click()
    page.fill("#edit-text-figures", "a caption <b>")
    page.fill("#edit-points-figures", "1")
    page.keyboard.press("Enter")
    api.expect(page.locator("#comments-figures .on .said")).to_have_text("a caption <b>")
    saved(page)


@pytest.mark.night
def test_nothing_is_cut_off_on_any_screen(browser: api.Browser, ana: Grader) -> None:
    page = opened(browser.new_context(), ana)
    for width in (390, 800, 1400):
        page.set_viewport_size({"width": width, "height": 800})
        page.wait_for_timeout(200)
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.night
@pytest.mark.parametrize(("width", "theme"), on_screens((WIDE, "light")))
def test_axe_finds_nothing_wrong_with_the_page_its_list_and_its_help(
    browser: api.Browser, ana: Grader, width: int, theme: str
) -> None:
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
    page = opened(context, ana)
    assert violations(page) == []
    page.keyboard.press("1")
    page.locator("#add-figures").click()
    saved(page)
    assert violations(page) == []
    page.keyboard.press("Escape")
    for key, dialog in (("l", "#list"), ("?", "#help")):
        page.keyboard.press(key)
        api.expect(page.locator(dialog)).to_be_visible()
        assert violations(page) == [], dialog
        assert overflow(page) <= 0, dialog
        page.keyboard.press("Escape")
