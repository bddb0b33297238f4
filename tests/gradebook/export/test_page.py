"""The page about a class: what it shows, and that nothing in it is anybody's markup."""

import re
from dataclasses import replace
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gradebook.cli import classroom
from gradebook.export import item_chart, overview, page, statistics, view
from gradebook.results import ClassResult, LatePenalty, ManualCriterion, ManualResult
from gradebox.report import html
from gradebox.run.grade import CheckReport, CriterionResult, IntegrityNote, Outcome
from tests.gradebook.export.classes import HOSTILE, a_class, graded, large_class, student

VOID = {"meta", "link", "br", "hr", "img", "input", "rect", "line", "circle", "wbr"}


class Reader(HTMLParser):
    """Collects links, identifiers and text, and notices tags that do not match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.tags: set[str] = set()
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.add(tag)
        self.links += [value for name in ("href", "src") if (value := values.get(name))]
        self.ids |= {values["id"] or ""} if "id" in values else set()
        assert not [name for name in values if name.startswith("on")]
        if tag not in VOID or tag in ("rect", "circle"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def rendered(result: ClassResult) -> str:
    class_view = view.of(result)
    return page.render(class_view, statistics.of(class_view), command="gpulabs review DIR", feedback="feedback")


@pytest.fixture(scope="module")
def large() -> str:
    return rendered(large_class(60, labs=(1, 2)))


def test_the_page_is_well_formed_and_needs_nothing_from_outside(large: str) -> None:
    reader = Reader(large)
    assert "script" not in reader.tags
    assert all(link.startswith(("#", "feedback/")) for link in reader.links)
    assert {link[1:] for link in reader.links if link.startswith("#")} <= reader.ids


def test_the_page_has_all_its_parts(large: str) -> None:
    parts = {"distribution", "students", "failed", "checks", "review", "late", "without"}
    assert parts <= Reader(large).ids


def test_every_student_leads_to_their_feedback(large: str) -> None:
    links = Reader(large).links
    assert {f"feedback/student-{number:03d}.html" for number in range(1, 64)} <= set(links)


def test_bad_checks_are_shown_with_advice(large: str) -> None:
    assert "nobody passes" in large
    assert "negative discrimination" in large
    assert "Grade the reference solution with this device and seed." in large


def test_names_and_messages_are_escaped_everywhere() -> None:
    reports = {
        "lab1.benchmark.warmed_up": CheckReport(Outcome.FAILED, HOSTILE),
        "lab1.memory.peak_equals_reference": CheckReport(Outcome.NEEDS_REVIEW, HOSTILE),
    }
    notes = [IntegrityNote(HOSTILE, HOSTILE, HOSTILE, "lab1.analysis.bound_named")]
    late = LatePenalty(seconds_late=60, points=Decimal(1), rule=HOSTILE)
    rows = [
        student(HOSTILE, graded(reports, notes=notes), name=HOSTILE, late=late),
        student("bob", None, status="refused", reason=HOSTILE, score=Decimal(0)),
    ]
    text = rendered(a_class(rows, title=HOSTILE))
    reader = Reader(text)
    assert "script" not in reader.tags
    assert "{{ 7 * 7 }}" in text
    assert sum(data.count(HOSTILE) for data in reader.text) >= 8


def test_commands_quote_the_students_key() -> None:
    notes = [IntegrityNote("open", "/x", "", "lab1.analysis.bound_named")]
    class_view = view.of(a_class([student("ada; rm -rf ~", graded({}, notes=notes))]))
    (group,) = page.review_groups(class_view, "gpulabs review DIR")
    assert group.accept == "gpulabs review DIR --accept 'ada; rm -rf ~' lab1.analysis"


def test_a_histogram_counts_every_graded_submission() -> None:
    failing = CheckReport(Outcome.FAILED, "no")
    everything = {check: failing for row in graded({}).labs[0].criteria for check in _ids(row)}
    rows = [
        student("full", graded({})),
        student("none", graded(everything)),
        student("gone", None, status="missing"),
    ]
    chart = page.distribution(view.of(a_class(rows)))
    assert chart is not None
    assert [bar.count for bar in chart.bars] == [1, 0, 0, 0, 0, 0, 0, 0, 0, 1]
    assert (chart.mean, chart.median, chart.passed, chart.count, chart.pass_score) == (10, 10, 1, 2, 14)


def _ids(criterion: CriterionResult) -> list[str]:
    return [check.id for check in criterion.checks]


@pytest.mark.parametrize(("part", "colour"), [(0, 0), (0.01, 1), (0.5, 3), (0.99, 4), (1, 5)])
def test_only_nothing_and_everything_have_the_outer_colours(part: float, colour: int) -> None:
    assert page.level(part) == colour


def test_a_class_without_a_grade_has_a_page() -> None:
    text = rendered(a_class([student("ada", None, status="waiting", score=None)]))
    Reader(text)
    assert "Nothing is open." in text
    assert "not graded yet: the run was stopped" in text


def test_an_empty_class_has_a_page() -> None:
    Reader(rendered(a_class([])))


def test_who_has_no_grade_is_grouped_by_reason_and_stands_first() -> None:
    asleep = "https://git.example.org/{}.git could not be fetched: the server does not answer after {} s"
    rows = [
        *(student(f"s{n}", None, status="missing", score=Decimal(0)) for n in range(3)),
        *(student(n, None, status="could_not_fetch", reason=asleep.format(n, len(n))) for n in ("ada", "robin")),
        student("eve", None, status="refused", reason="a .7z cannot be unpacked", score=Decimal(0)),
        student("ill", None, status="excused", reason="ill"),
        student("bob", graded({})),
    ]
    class_view = view.of(a_class(rows))
    groups = overview.without_grade(class_view)
    assert [[line.student for line in group.lines] for group in groups] == [
        ["ada", "robin"], ["eve"], ["s0", "s1", "s2"], ["ill"]
    ]  # fmt: skip
    assert groups[0].varies
    text = rendered(a_class(rows))
    assert text.index('id="without"') < text.index('id="distribution"')
    assert re.search(r'href="#without">7</a></b><span>without a grade', text)
    section = text[text.index('id="without"') : text.index('id="distribution"')]
    assert section.count("the server does not answer") == 1
    assert "handed in nothing: 0 points, in no average" in section
    assert "Mean and median are of these only." in text[text.index('id="distribution"') :]


def test_a_remark_about_many_is_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shallow = "no commit in time is here, but the clone is shallow"
    result = a_class([student(f"s{n}", graded({}), reason=shallow if n else "other") for n in range(4)])
    section = rendered(result).partition('id="cut-off"')[2]
    assert section.count(shallow) == 1
    assert all(f"feedback/s{n}.html" in section for n in range(4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classroom.class_summary, "exports_table", lambda out: {})
        classroom._show(result, tmp_path)
    assert f"  s1, s2, s3: {shallow}\n" in capsys.readouterr().out


@pytest.mark.parametrize(("count", "lines"), [(20, 20), (21, 1)])
def test_of_very_many_remarks_those_that_are_alike_are_one(
    count: int, lines: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "lab1 had {} points in an earlier submission, commit {:010x}, and has 0 now"
    rows = [student(f"s{n:02}", graded({}), reason=text.format(n + 1, 64**n % 2**40)) for n in range(count)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(classroom.class_summary, "exports_table", lambda out: {})
        classroom._show(a_class(rows), tmp_path)
    said = [line for line in capsys.readouterr().out.splitlines() if line.endswith("and has 0 now")]
    assert len(said) == lines
    assert ("s04 and 16 more: for example, lab1 had 1 points" in said[0]) == (lines == 1)


def test_many_who_are_missing_do_not_hide_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for count, lines in ((20, 20), (21, 1)):
        rows = [student(f"s{n:02}", None, status="missing", score=Decimal(0)) for n in range(count)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(classroom.class_summary, "exports_table", lambda out: {})
            classroom._show(a_class([student("ada", graded({})), *rows]), tmp_path)
        said = [line for line in capsys.readouterr().out.splitlines() if line.endswith(": handed in nothing")]
        assert len(said) == lines
        assert all("s19 and 1 more" in line for line in said) == (lines == 1)


def test_what_lateness_cost_stands_in_the_header() -> None:
    late = [LatePenalty(seconds_late=60, points=Decimal(value), rule="2 per day") for value in ("2", "1.5")]
    text = rendered(a_class([student(f"s{n}", graded({}), late=penalty) for n, penalty in enumerate(late)]))
    assert '<a href="#late">2</a></b><span>late, 3.5 points deducted</span>' in text


def test_titles_stand_where_ids_did() -> None:
    reports = {"lab1.memory.peak_equals_reference": CheckReport(Outcome.NEEDS_REVIEW, "cannot tell")}
    text = rendered(a_class([student("ada", graded(reports), name="Ada")]))
    review = text[text.index('id="review"') :]
    assert "Memory profiling <code" in review[: review.index("</summary>")]


def test_an_identifier_breaks_after_its_dots_and_nowhere_within_a_word() -> None:
    assert html.breaks("lab1.memory.peak_a<b>") == "lab1.<wbr>memory.<wbr>peak_<wbr>a&lt;b&gt;"


def test_every_check_with_a_figure_is_a_dot_in_its_place(large: str) -> None:
    rows = statistics.of(view.of(large_class(60, labs=(1, 2))))
    dots = item_chart.dots(rows)
    drawn = [row for dot in dots for row in dot.checks]
    assert sorted(row.check for row in drawn) == sorted(row.check for row in rows if row.item_rest is not None)
    assert {dot.kind for dot in dots for row in dot.checks if row.flag == "negative discrimination"} == {"negative"}
    assert all(0 <= place <= 1 for dot in dots for place in (dot.across, dot.up))
    assert item_chart.height(0.3) == pytest.approx(0.5)
    assert item_chart.height(-1) == 0
    assert large.count('<circle class="dot') == len(dots)
    assert len(drawn) + item_chart.undrawn(rows) == len(rows)


def test_few_submissions_have_no_chart() -> None:
    assert "<circle" not in rendered(large_class(6, labs=(1,)))


def test_the_work_of_people_is_shown_and_a_team_counts_once() -> None:
    criterion = ManualCriterion(id="d", title="Discussion", points=Decimal(3), max_points=Decimal(6), by="Ana")
    team = ManualResult(title="Report", criteria=(criterion,), released=False)
    left = replace(team, criteria=(replace(criterion, points=None, by=""),), anew=True)
    rows = [
        student("ada", graded({}), manual=left),
        student("bob", graded({}), manual=team, team="blue", teammates=("cleo",)),
        student("cleo", graded({}), manual=team, team="blue", teammates=("bob",)),
    ]
    made = replace(a_class(rows), manual_title="Report", manual_max=Decimal(6))
    summary = overview.by_hand(view.of(made))
    assert summary is not None
    assert (summary.count, summary.complete, summary.anew, summary.graders) == (2, 1, 1, (("Ana", 1),))
    assert summary.criteria == (("Discussion", 6, 1, 0.5),)
    text = rendered(made)
    assert "1 of 2 submissions are graded to the end" in text
    assert "1 handed in again" in text


def with_manual(*points_by_hand: int | None, released: bool) -> ClassResult:
    """A student for each, with all points of checks less their number, and what people gave of 6; None: not yet."""
    rows = []
    for number, points in enumerate(points_by_hand):
        checks = Decimal(20 - number)
        criterion = ManualCriterion(
            id="d", title="Discussion", max_points=Decimal(6), points=None if points is None else Decimal(points)
        )
        total = checks + (points or 0) if released else checks
        rows.append(
            student(
                f"s{number}",
                graded({}),
                manual=ManualResult(title="Report", criteria=(criterion,), released=released),
                score=None if released and points is None else total,
                checks_score=checks,
            )
        )
    most = Decimal(26 if released else 20)
    return replace(
        a_class(rows), max_score=most, manual_title="Report", manual_max=Decimal(6), manual_released=released
    )


def tiles(text: str) -> list[str]:
    """What stands in the boxes at the top, as text."""
    boxes = re.findall(
        r"<div[^>]*>(<b>.*?</span>)</div>", text[text.index('<div class="key">') : text.index("<section")]
    )
    return [" ".join(re.sub(r"<[^>]+>", " ", box).replace("\u2013", "-").split()) for box in boxes]


def test_tiles_show_what_counts_and_beside_it_what_checks_gave() -> None:
    result = with_manual(6, 4, None, released=True)
    text = rendered(result)
    assert tiles(text)[:4] == [
        "24.5 mean of 26; checks gave 19.5 of 20",
        "24.5 median; checks gave 19.5",
        "100 % passed (3 of 3), by checks alone",
        "23-26 lowest and highest; checks gave 19-20",
    ]
    chart = page.distribution(view.of(result))
    assert chart is not None
    assert (chart.count, chart.graded, chart.pass_score) == (2, 3, None)
    assert "The 2 graded submissions that people have graded to the end, with what they gave and with penalties" in text
    assert ">pass " not in text
    assert f"{100 * 24.5 / 26:.0f}\N{NO-BREAK SPACE}%" in text[text.index('id="students"') :]


@pytest.mark.parametrize(
    ("points", "released", "words"),
    [
        ((6, 4), False, "19.5 mean of 20, without points by hand: they are not released"),
        ((None, None), True, "19.5 mean of 20, without points by hand: nobody is graded to the end"),
    ],
)
def test_tiles_say_why_points_by_hand_are_not_in_them(
    points: tuple[int | None, ...], released: bool, words: str
) -> None:
    text = rendered(with_manual(*points, released=released))
    assert tiles(text)[0] == words
    assert ">pass 14<" in text


def test_tiles_of_a_class_that_nobody_grades_by_hand_speak_of_no_hands() -> None:
    text = rendered(a_class([student("ada", graded({}))]))
    assert tiles(text)[:3] == [
        "20 mean of 20",
        "20 median",
        "100 % passed (1 of 1)",
    ]
