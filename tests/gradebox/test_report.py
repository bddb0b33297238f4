"""A grade reads the same in the terminal, as JSON and as a page."""

import json
from dataclasses import replace
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path

import jsonschema
import pytest

import grader
from gradebox import report
from gradebox.report import html, terminal
from gradebox.report.document import SCHEMA_FILE, from_document, points, to_document
from gradebox.report.html import breaks
from gradebox.report.terminal import _typed
from gradebox.run.grade import CheckReport, Circumstances, Grade, IntegrityNote, Outcome, grade

HOSTILE = '<script>alert("x")</script> [bold]& {{ 7 * 7 }}'


@pytest.fixture
def result() -> Grade:
    course = grader.course().rubric
    *written, last = course.labs
    unwritten = replace(last, criteria=tuple(replace(criterion, checks=()) for criterion in last.criteria))
    course = replace(course, labs=(*written, unwritten))
    reports = {check.id: CheckReport(Outcome.PASSED, seconds=0.1) for check in course.checks()}
    reports["lab1.benchmark.warmed_up"] = CheckReport(Outcome.FAILED, HOSTILE, "warm up first", 0.2)
    reports["lab1.memory.every_stage_present"] = CheckReport(
        Outcome.BLOCKED, "blocked by something", blocked_by="lab1.benchmark.warmed_up"
    )
    reports["lab1.analysis.bound_named"] = CheckReport(Outcome.NEEDS_REVIEW, "cannot tell")
    notes = (IntegrityNote("open", "/etc/passwd", "benchmark.py:3", "lab1.benchmark.warmed_up"),)
    here = Circumstances("labs", "ab" * 32, "virtual T4 (simulated)", True, "namespaces", 42, 3.21, notes)
    return grade(course, course.select((1, 5)), reports, here)


def test_json_follows_its_schema(result: Grade) -> None:
    schema = json.loads(SCHEMA_FILE.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(to_document(result), schema)


def test_the_schema_refuses_points_without_a_check(result: Grade) -> None:
    document = to_document(result)
    del document["labs"][0]["criteria"][0]["checks"][0]["id"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, json.loads(SCHEMA_FILE.read_text()))


def test_points_in_json_are_plain_numbers(result: Grade) -> None:
    document = to_document(result)
    assert document["score"] == 17.5
    assert document["max_score"] == 20
    assert document["exit_code"] == 3


def test_what_a_submission_says_cannot_become_markup(result: Grade) -> None:
    page = html.render(result)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "{{ 7 * 7 }}" in page


def test_a_blocked_check_names_the_one_it_waits_for_and_does_not_repeat_its_reason(result: Grade) -> None:
    course = grader.course().rubric
    reports = {check.id: CheckReport(Outcome.PASSED) for check in course.checks()}
    cause = "lab1.benchmark.returns_result"
    reports[cause] = CheckReport(Outcome.FAILED, "Task 1.2 is open")
    for name in ("lab1.benchmark.warmed_up", "lab1.memory.peak_equals_reference"):
        reports[name] = CheckReport(Outcome.BLOCKED, f"blocked by {cause}: Task 1.2 is open", blocked_by=cause)
    here = Circumstances("labs", "ab" * 32, "virtual T4 (simulated)", True, "namespaces", 42, 3.21)
    titles = grader.course().titles(course.labs)
    page = html.render(grade(course, course.select((1,)), reports, here, titles), then="make <next>")
    assert page.count("Task 1.2 is open") == 1
    waits = f'waits for “<a href="#{cause}">{titles[cause]}</a>”'
    assert page.count(waits) == 2
    assert page.count(f'{waits} <code class="id">{breaks(cause)}</code>') == 1  # from another criterion
    assert "make &lt;next&gt;" in page
    apart = html.render(grade(course, course.select_criteria(("lab1.memory",)), reports, here), student="Ada")
    assert f"blocked by {cause}: Task 1.2 is open" in apart  # whose reason stands nowhere else
    assert "to do next" not in apart


def test_every_check_that_fails_has_a_line_in_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    course = grader.course()
    reports = {check.id: CheckReport(Outcome.PASSED) for check in course.rubric.checks()}
    names = [check.id for check in course.rubric.labs[0].criteria[0].checks]
    reports[names[0]] = CheckReport(Outcome.FAILED, "saw 3, expected 4", "look", answered=True)
    reports[names[1]] = CheckReport(Outcome.FAILED, f"saw this\nand that {'x' * 200}")
    reports[names[2]] = CheckReport(Outcome.FAILED, "saw 3, expected 4", answered=True)
    reports[names[3]] = CheckReport(Outcome.BLOCKED, "blocked by", blocked_by=names[0])
    here = Circumstances("labs", "ab" * 32, "virtual T4 (simulated)", True, "namespaces", 42, 3.21)
    titles = course.titles(course.labs)
    report.show(grade(course.rubric, course.rubric.select((1,)), reports, here, titles), [], [])
    text = capsys.readouterr().out
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if titles[names[0]] in line)
    assert lines[start] == f"  ✗ {titles[names[0]]}: 0.5 points, seen in 2 checks; 1 more waits for it"
    assert lines[start + 1 : start + 4] == [f"    {names[0]}", "    saw 3, expected 4", "    → look"]
    assert "x" * 200 in text  # the value is never cut off
    assert text.index("What to fix") < text.index("Lab 1  GPU basics") < text.index("repeat with")


def test_the_mistakes_that_cost_least_are_left_to_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    course = grader.course()
    reports = {check.id: CheckReport(Outcome.FAILED, f"saw {check.id}") for check in course.rubric.checks()}
    here = Circumstances("labs", "ab" * 32, "virtual T4 (simulated)", True, "namespaces", 42, 3.21)
    result = grade(course.rubric, course.rubric.select((1,)), reports, here, course.titles(course.labs))
    report.show(result, [], [])
    text = capsys.readouterr().out
    assert text.count("  ✗ ") == terminal._MOST_SHOWN
    left = len(result.checks) - terminal._MOST_SHOWN
    assert f"  and {left} more, " in text
    terminal.show(result, [], [], paged=False)
    assert capsys.readouterr().out.count("  ✗ ") == len(result.checks)


def test_checks_that_need_review_for_one_reason_stand_together(capsys: pytest.CaptureFixture[str]) -> None:
    course = grader.course()
    reports = {check.id: CheckReport(Outcome.PASSED) for check in course.rubric.checks()}
    names = [check.id for check in course.rubric.labs[0].criteria[0].checks][:2]
    reports |= dict.fromkeys(names, CheckReport(Outcome.NEEDS_REVIEW, "Triton is not here", "pip install triton"))
    here = Circumstances("labs", "ab" * 32, "virtual T4 (simulated)", True, "namespaces", 42, 3.21)
    report.show(grade(course.rubric, course.rubric.select((1,)), reports, here, course.titles(course.labs)), [], [])
    text = capsys.readouterr().out
    assert text.count("Triton is not here") == 1
    assert all(name in text for name in names)


def test_what_follows_from_a_mistake_says_so_and_is_no_problem_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    course = grader.course()
    reports = {check.id: CheckReport(Outcome.PASSED) for check in course.rubric.checks()}
    names = [check.id for check in course.rubric.labs[0].criteria[0].checks][:3]
    reports[names[0]] = CheckReport(
        Outcome.FAILED, "saw 3, expected 4", "count", cause="late", belongs_to=names[1], answered=True
    )
    reports[names[1]] = CheckReport(
        Outcome.FAILED, "saw 5, expected 6", "count", cause="late", belongs_to=names[1], answered=True
    )
    here = Circumstances("labs", "ab" * 32, "virtual T4 (simulated)", True, "namespaces", 42, 3.21)
    titles = course.titles(course.labs)
    result = grade(course.rubric, course.rubric.select((1,)), reports, here, titles)
    report.show(result, [], [])
    lines = capsys.readouterr().out.splitlines()
    start = next(number for number, line in enumerate(lines) if f"✗ {titles[names[1]]}" in line)
    assert "seen in 2 checks" in lines[start]
    assert any(line.split()[-1:] and line.split()[-1].startswith("↳✗✓") for line in lines)
    page = html.render(result)
    assert page.count('<li class="follows"') == 1
    assert f'the same mistake as in &#39;<a href="#{names[1]}">{titles[names[1]]}</a>&#39;, charged there' in page
    assert "the same mistake as another check, which is charged" in page
    (followed,) = [check for check in result.checks if check.follows_from]
    assert followed.points == followed.max_points


def test_a_check_is_called_by_its_title_and_without_one_by_its_id(
    result: Grade, capsys: pytest.CaptureFixture[str]
) -> None:
    report.show(result, [], [])
    assert "✗ lab1.benchmark.warmed_up: " in capsys.readouterr().out
    assert f"</span>{breaks('lab1.benchmark.warmed_up')}</span>" in html.render(result)
    document = to_document(result)
    for check in document["labs"][0]["criteria"][0]["checks"]:
        check["title"] = "Warms up & measures" if check["id"] == "lab1.benchmark.warmed_up" else ""
    titled = from_document(document)
    report.show(titled, [], [])
    assert "✗ Warms up & measures: " in capsys.readouterr().out
    page = html.render(titled)
    assert (
        '</span>Warms up &amp; measures <code class="id">lab1.<wbr>benchmark.<wbr>warmed_<wbr>up</code></span>' in page
    )


def test_the_page_needs_nothing_from_outside(result: Grade) -> None:
    class Links(HTMLParser):
        outside: list[str] = []  # noqa: RUF012

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            links = [value for name, value in attrs if name in ("src", "href") and value]
            self.outside += [link for link in links if not link.startswith("#")]

    parser = Links()
    parser.feed(html.render(result))
    assert parser.outside == []


def test_the_terminal_shows_hostile_text_as_it_is(result: Grade, capsys: pytest.CaptureFixture[str]) -> None:
    report.show(result, [], [])
    shown = capsys.readouterr().out
    assert HOSTILE in " ".join(shown.split())
    assert "Lab 5  Production pipeline: not available yet (15 points)" in shown
    assert "Grade 17.5/20  passed" in shown
    assert "1 of the checks could not be decided" in shown
    assert "open: /etc/passwd at benchmark.py:3" in shown


def test_a_note_that_right_solutions_leave_reads_so(result: Grade, capsys: pytest.CaptureFixture[str]) -> None:
    frames = IntegrityNote("frames", "sys._getframe", "benchmark.py:3", "lab1.benchmark.warmed_up")
    noted = replace(result, integrity=(frames, frames, *result.integrity))
    report.show(noted, [], [])
    page = html.render(noted, notes=True)
    for text in (" ".join(capsys.readouterr().out.split()), page):
        assert text.count("Right solutions may do this: traceback.print_stack()") == 1
        assert text.count("Right solutions") == 1, "no such word about a file that was opened elsewhere"


def test_some_criteria_of_a_lab_are_neither_passed_nor_failed(
    result: Grade, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    few = replace(result, labs=(replace(result.labs[0], criteria=result.labs[0].criteria[:1]),))
    report.show(few, [], [], partial=True, then="gpulabs next --lab 1")
    shown = " ".join(capsys.readouterr().out.split())
    assert "Grade 17.5/20 of the criteria that were asked for" in shown
    assert "passed (pass at" not in shown
    assert shown.endswith("what to do next: gpulabs next --lab 1")
    report.show(few, [], [], partial=True)
    assert "what to do next" not in capsys.readouterr().out
    report.write(few, tmp_path, partial=True)
    page = (tmp_path / "grade.html").read_text()
    assert "part of a lab" in page
    assert "pass at" not in page


def test_reports_are_replaced_as_a_whole(result: Grade, tmp_path: Path) -> None:
    report.write(result, tmp_path / "out")
    report.write(replace(result, seed=43), tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("grade.html", "grade.json", "progress.json"),
    ]
    assert json.loads((tmp_path / "out" / "grade.json").read_text())["seed"] == 43


@pytest.mark.parametrize(("value", "text"), [("20", "20"), ("1.5", "1.5"), ("0", "0"), ("100", "100"), ("0.50", "0.5")])
def test_points_are_shown_without_noise(value: str, text: str) -> None:
    assert points(Decimal(value)) == text


def test_a_grade_is_read_back_from_its_document(result: Grade) -> None:
    assert from_document(json.loads(json.dumps(to_document(result)))) == result


@pytest.mark.parametrize("document", [{}, {"schema_version": "2.0"}, {"schema_version": "1.1", "labs": 3}])
def test_what_is_no_grade_is_refused_in_one_line(document: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"^this is no grade\.json[^\n]*$"):
        from_document(document)


@pytest.mark.parametrize(
    ("hint", "then", "shown"),
    [
        ("for a hint: quiz next --check q.a.b --hints 1", ".venv/bin/quiz next labs --lab 1",
         "for a hint: .venv/bin/quiz next --check q.a.b --hints 1"),
        ("for a hint: quiz next --check q.a.b --hints 1", "", "for a hint: quiz next --check q.a.b --hints 1"),
        ("look next door", ".venv/bin/quiz next", "look next door"),
    ],
)  # fmt: skip
def test_a_hint_can_be_typed_where_it_is_read(hint: str, then: str, shown: str) -> None:
    assert _typed(hint, then) == shown
