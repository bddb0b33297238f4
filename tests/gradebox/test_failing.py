"""What to fix: each mistake once, with what follows from it and what waits for it, and no task that is still open."""

from __future__ import annotations

from decimal import Decimal

import grader
from gradebox.course import hints
from gradebox.course.hints import Hint
from gradebox.report import html
from gradebox.report.failing import mistakes, open_tasks
from gradebox.run.grade import CheckReport, Circumstances, Grade, Outcome, grade

RETURNS, WARMED, ONLY, SECONDS, NONSENSE = (
    f"lab1.benchmark.{name}"
    for name in ("returns_result", "warmed_up", "only_the_product_timed", "seconds_per_product", "nonsense_refused")
)
HOSTILE = "<script>alert(1)</script>"


def graded(reports: dict[str, CheckReport]) -> Grade:
    course = grader.course()
    every = {check.id: CheckReport(Outcome.PASSED) for check in course.rubric.checks()} | reports
    here = Circumstances("labs", "ab" * 32, "virtual T4 (simulated)", True, "namespaces", 42, 3.21)
    return grade(course.rubric, course.rubric.select((1,)), every, here, course.titles(course.labs))


def failed(message: str, **how: str) -> CheckReport:
    return CheckReport(Outcome.FAILED, message, **how)  # type: ignore[arg-type]


def two_mistakes() -> Grade:
    return graded(
        {
            WARMED: failed("saw 3", cause="cold", belongs_to=WARMED),
            ONLY: failed("saw 4", cause="cold", belongs_to=WARMED),
            SECONDS: CheckReport(Outcome.BLOCKED, "blocked", blocked_by=NONSENSE),
            NONSENSE: failed("saw 5", hint=f"{hints.POINTER}gpulabs next"),
            "lab1.memory.precisions_compared": failed("Task 1.3 is open: write compare_precisions"),
        }
    )


def test_a_mistake_counts_with_what_follows_from_it_and_waits_for_it() -> None:
    first, second = mistakes(two_mistakes())
    assert (first.check.id, [check.id for check in first.following], first.waiting) == (WARMED, [ONLY], ())
    assert (second.check.id, second.following, [check.id for check in second.waiting]) == (NONSENSE, (), [SECONDS])
    assert (first.points, second.points) == (Decimal(1), Decimal(1))  # what follows is not charged, what waits is
    assert (first.count, second.count) == (2, 1)
    assert first.criterion.id == "lab1.benchmark"


def test_the_mistake_that_costs_most_comes_first_with_its_place_and_its_own_words() -> None:
    cold = {"cause": "cold", "mistake": "Nothing warms up"}
    grade = graded({NONSENSE: failed("saw 5"), WARMED: failed("saw 3", **cold), ONLY: failed("saw 4", **cold)})
    known = {WARMED: Hint(WARMED, "1.2", ("benchmark.py benchmark_matmul", "benchmark.py other"), ("one",))}
    first, second = mistakes(grade, known)
    assert (first.title, first.place) == ("Nothing warms up", "benchmark.py, benchmark_matmul")
    assert (second.title, second.place) == (grader.course().titles(grader.course().labs)[NONSENSE], "")


def test_a_mistake_that_ends_the_code_is_named_by_its_line() -> None:
    ended = {"evidence": "ValueError is raised at benchmark.py:3"}
    (mistake,) = mistakes(graded({WARMED: failed("your code raised ValueError: no, at benchmark.py:3 in f", **ended)}))
    assert mistake.title == "ValueError is raised at benchmark.py:3"
    said = "benchmark_matmul() must return a MatmulResult, but it returned None"
    (mistake,) = mistakes(graded({WARMED: failed(said, evidence=said)}))
    assert mistake.title == mistake.check.name  # the message below says it


def test_the_hint_that_says_most_is_shown_whichever_check_has_it() -> None:
    pointer, specific = f"{hints.POINTER}gpulabs next", "Take the median."
    both = {
        WARMED: failed("saw 3", cause="cold", belongs_to=WARMED, hint=pointer),
        ONLY: failed("saw 4", cause="cold", belongs_to=WARMED, hint=specific),
    }
    assert [mistake.hint for mistake in mistakes(graded(both))] == [specific]
    assert mistakes(graded({WARMED: failed("saw 3", hint=pointer)}))[0].hint == pointer


def test_open_tasks_name_the_one_to_begin_with() -> None:
    reports = {
        RETURNS: failed("Task 1.2 is open: write benchmark_matmul"),
        WARMED: CheckReport(Outcome.BLOCKED, "blocked", blocked_by=RETURNS),
        "lab1.memory.precisions_compared": failed("Task 1.3 is open: write compare_precisions"),
        NONSENSE: failed("saw 5"),
    }
    (tasks,) = open_tasks(graded(reports))
    assert (tasks.begin, tasks.count) == ("Begin with task 1.2: write benchmark_matmul", 2)
    worth = {check.id: check.max_points for check in graded(reports).checks}
    assert tasks.points == worth[RETURNS] + worth[WARMED] + worth["lab1.memory.precisions_compared"]
    assert open_tasks(graded({NONSENSE: failed("saw 5")})) == ()


def test_the_page_begins_with_the_mistakes_and_the_task_to_begin_with() -> None:
    page = html.render(two_mistakes())
    assert "What to fix <span>2 mistakes, 2 points</span>" in page
    assert "seen in 2 checks" in page
    assert "1 more waits for it" in page
    assert "Begin with task 1.3: write compare_precisions" in page
    order = [page.index(text) for text in ("What to fix", "Lab 1: GPU basics", "About this run", "seed <b>")]
    assert order == sorted(order)
    for check in (WARMED, ONLY, NONSENSE):
        assert page.count(f'id="{check}"') == 1


def test_nothing_is_listed_if_nothing_is_wrong() -> None:
    assert "What to fix" not in html.render(graded({}))


def test_hints_stand_one_within_the_other_and_only_where_something_is_to_be_mended() -> None:
    known = {check: Hint(check, "1.2", ("REPORT.md",), ("one", HOSTILE)) for check in (WARMED, ONLY, NONSENSE, RETURNS)}
    page = html.render(two_mistakes(), hints=known)
    assert page.count("Hint 1 of 2: the idea") == 2  # not of what follows from another, nor of what passed
    assert HOSTILE not in page
    first, second = page.index("Hint 1 of 2"), page.index("Hint 2 of 2")
    assert "</details>" not in page[first:second]
    assert hints.POINTER not in page
    assert hints.POINTER in html.render(two_mistakes())  # without the steps, how to get them


def test_a_grade_with_every_task_open_has_a_page_below_a_megabyte() -> None:
    course = grader.course()
    reports = {check.id: failed("Task 1.2 is open: write it " + "x" * 500) for check in course.rubric.checks()}
    here = Circumstances("labs", "ab" * 32, "virtual T4 (simulated)", True, "namespaces", 42, 3.21)
    every = grade(course.rubric, course.labs, reports, here, course.titles(course.labs))
    page = html.render(every, hints=hints.load(course))
    assert page.count("Hint 3 of 3") == len(every.checks)
    assert len(page.encode()) < 1_000_000


def test_the_place_is_the_function_that_the_report_names() -> None:
    known = {
        WARMED: Hint(WARMED, "1.2", ("benchmark.py benchmark_matmul", "benchmark.py Timer.stop"), ("one",)),
        ONLY: Hint(ONLY, "1.3", ("plots.py plot_times", "benchmark.py train"), ("one",)),
    }
    for message, hint, place in (
        ("saw 3", "", "benchmark.py, benchmark_matmul"),
        ("plot_times() draws 3 lines", "", "plots.py, plot_times"),
        ("it does not train long enough", "", "benchmark.py, benchmark_matmul"),
        ("train() ends early", "", "benchmark.py, train"),
        ("saw 3", "Let `stop` wait for the device.", "benchmark.py, Timer.stop"),
        ("benchmark_matmul() calls plot_times()", "", "benchmark.py, benchmark_matmul"),
        ("your code raised TypeError at plots.py:7 in draw, in the call benchmark_matmul()", "", "plots.py, draw"),
    ):
        (mistake,) = mistakes(graded({WARMED: failed(message, hint=hint)}), known)
        assert mistake.place == place, message
