"""What somebody meets who writes a first course, and the students of it: each message says what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gradebox import next_command
from gradebox.__main__ import app
from gradebox.authoring.lint import problems
from gradebox.common.configuration import ROOT
from gradebox.common.exit_codes import ExitCode
from gradebox.course import course as courses
from gradebox.course.course import CourseError
from gradebox.run import import_advice
from gradebox.run.grade import CheckResult, Outcome
from gradebox.run.grading import run
from gradebox.run.options import Options
from gradebox.run.request import GradingError, GradingRequest
from gradebox.sandbox.devices import CPU, Device
from tests.gradebox.small_course import NUMBERS, SUMS, write, write_course, write_submission

pytestmark = pytest.mark.usefixtures("_courses_are_forgotten")

Change = tuple[str, str, str]
Graded = Callable[..., dict[str, CheckResult]]
SUMS_TOML = "further/sums/criterion.toml"
CHECKS, PROBES = "basics/numbers/checks.py", "basics/numbers/probes.py"
CRITERION = "from gradebox.course.criterion"
ASSERT = "        assert not seen.result\n        require_equal(seen"
LABS = 'labs = ["basics", "further"]'
ALONE = 'points = 6\npass_percent = 50\nlabs = ["basics"]\nexercises = ["further"]'


@pytest.fixture
def graded(tmp_path: Path) -> Graded:
    """The checks of the lab `basics` by their last name, of a course with changes and a submission."""

    def of(*changes: Change, numbers: str = NUMBERS, files: dict[str, str] | None = None) -> dict[str, CheckResult]:
        course = courses.load(write_course(tmp_path, *changes))
        submission = write_submission(tmp_path, numbers=numbers)
        if files is not None:
            submission = tmp_path / "other"
            submission.mkdir()
            write(submission, files)
        rubric, labs = course.select("basics")
        grade = run(GradingRequest(course, submission, rubric, labs, Device(CPU, "CPU"), seed=1))
        return {check.id.rpartition(".")[2]: check for check in grade.checks}

    return of


# --- who writes it ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("course.toml", LABS, f'{LABS}\n[submission]\npreload = ["numpi"]'),
            r"the course cannot be graded with: \S+/course\.toml: preload names 'numpi', which cannot be imported",
        ),
        (
            (PROBES, "def product", "import numpi\n\n\ndef product"),
            r"the course cannot be graded with: \S+/basics/numbers/probes\.py:1: ModuleNotFoundError: No mod",
        ),
        (
            (PROBES, "def product(", "def product(:"),
            r"the course cannot be graded with: \S+/basics/numbers/probes\.py:1: SyntaxError: ",
        ),
    ],
    ids=["preload", "a probe's import", "a probe's syntax"],
)  # fmt: skip
def test_what_the_sandbox_cannot_import_is_the_courses_and_named(change: Change, said: str, graded: Graded) -> None:
    with pytest.raises(GradingError) as refused:
        graded(change)
    assert re.match(said, str(refused.value))
    assert "this machine" not in str(refused.value)


def test_a_module_may_be_called_as_students_call_it(graded: Graded) -> None:
    named = ('student.module("', 'student.module("labs.')
    assert {str(check.outcome) for check in graded((PROBES, *named)).values()} == {"passed"}


def test_what_is_no_name_of_a_module_is_the_courses_mistake(graded: Graded) -> None:
    check = graded((PROBES, 'module("basics_week1.numbers")', 'module("basics_week1/numbers.py")'))["product"]
    assert check.outcome == "needs_review"
    assert "itself failed: ValueError: 'basics_week1/numbers.py' is no name of a module, like 'lab1" in check.message


def test_labs_are_graded_without_a_package_that_only_an_exercise_needs(graded: Graded) -> None:
    exercise = ("course.toml", f"points = 10\npass_percent = 50\n{LABS}", ALONE)
    needs_more = ("further/sums/probes.py", "def ", "import numpi\n\n\ndef ")
    assert {str(check.outcome) for check in graded(exercise, needs_more).values()} == {"passed"}
    with pytest.raises(GradingError, match=r"further/sums/probes\.py:\d+: ModuleNotFoundError"):
        graded(needs_more)  # a lab needs it: nothing can be graded


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            (CHECKS, "numbers.product", "numbers.produkt"),
            r"the probe basics\.numbers\.produkt itself failed: LookupError: small\w+\.basics\.numbers\.probes has no "
            r"function produkt; it has product, power, noted",
        ),
        (
            (CHECKS, '"basics.numbers.product"', '"basics.numbres.product"'),
            r"the probe basics\.numbres\.product itself failed: LookupError: there is no file basics/numbres/pro",
        ),
        (
            (CHECKS, "        require_equal(seen", ASSERT),
            r"the check itself failed at basics/numbers/checks\.py:11: `assert not seen\.result` does not hold; ",
        ),
        (
            (CHECKS, "seen.result, left", "seen.rsult, left"),
            r"the check itself failed at basics/numbers/checks\.py:11: AttributeError: the probe did not report 'rs",
        ),
    ],
    ids=["no such probe", "no such file", "a plain assert", "what no probe reports"],
)  # fmt: skip
def test_a_mistake_in_a_check_has_its_place(change: Change, said: str, graded: Graded) -> None:
    check = graded(change)["product"]
    assert check.outcome == "needs_review"
    assert re.match(said, check.message), check.message


def _hint(task: str, *functions: str) -> Change:
    """A hint for `further.sums.total`."""
    title = 'title = "Add the numbers of a list"'
    return (
        "further/sums/criterion.toml",
        title,
        f'{title}\ntask = "{task}"\nfunctions = {list(functions)}\nhints = ["Look."]',
    )


def _lint(folder: Path, solution: Path | None = None) -> list[str]:
    return [line.replace(f"{folder}/", "") for line in problems(courses.load(folder), solution)]


def test_a_course_is_read_for_what_leads_nowhere(tmp_path: Path) -> None:
    folder = write_course(
        tmp_path,
        ("basics/lab.toml", "basics_week1", "basics_week2"),
        (CHECKS, '"basics.numbers.product"', '"basics.numbers.produkt"'),
        (CHECKS, '"basics.numbers.power"', '"basics.power"'),
        ("further/sums/checks.py", '"further.sums.total"', '"further.sum.total"'),
        ("course.toml", LABS, f'{LABS}\n[submission]\npackages = ["my_helpers"]'),
        _hint("2.1", "sums.py totals", "sum.py total", "REPORT.md"),
    )
    solution = write_submission(tmp_path)
    handed_out = {"README.md": "## Task 2.2: Sums (`sums.py`)\n", "REPORT.template.md": "What did you see?\n"}
    write(solution, {f"further_week2/{name}": text for name, text in handed_out.items()})
    assert _lint(folder, solution) == [
        "course.toml: packages names 'my_helpers', which Python does not find here",
        "basics/numbers/checks.py:10: there is no probe basics.numbers.produkt: basics/numbers/probes.py does not "
        "define produkt; did you mean product?",
        "basics/numbers/checks.py:16: there is no probe basics.power: its name is LAB.CRITERION.FUNCTION",
        *(
            f"basics/numbers/probes.py:{line}: 'basics_week1.numbers' is in another package than 'basics_week2', which "
            "students hand in"
            for line in (2, 6, 10)
        ),
        "further/sums/checks.py:11: there is no probe further.sum.total: further/sum/probes.py does not exist",
        "further/sums/criterion.toml: [checks.noted_too] further.sums.noted_too has no hint",
        f"basics/lab.toml: package = 'basics_week2', but {solution} has no such folder",
        f"{SUMS_TOML}: [checks.total] task = '2.1', but {solution}/further_week2/README.md has no heading "
        "`## Task 2.1: ...`",
        f"{SUMS_TOML}: [checks.total] functions names totals, which {solution}/further_week2/sums.py does not define",
        f"{SUMS_TOML}: [checks.total] functions names sum.py, but {solution}/further_week2 has no such file",
    ]


@pytest.mark.parametrize(
    ("name", "reason"), [("numbers", "in no lab's package"), ("basics_week1/numbers.py", "no name of a module")]
)
def test_a_module_that_no_submission_has_is_named(tmp_path: Path, name: str, reason: str) -> None:
    folder = write_course(tmp_path, (PROBES, '"basics_week1.numbers"', f'"{name}"'))
    said = f"'{name}' is {reason}, like 'basics_week1.numbers'"
    assert [line.partition(": ")[2] for line in _lint(folder)] == [said]
    (folder.parent / "labs").mkdir()
    (folder.parent / "labs" / "numbers.py").touch()
    assert len(_lint(folder)) == (0 if name == "numbers" else 1)


def test_a_timeline_of_a_probe_that_is_not_there_is_named(tmp_path: Path) -> None:
    named = '@criterion("basics.numbers", timeline={"basics.numbers.product": "basics.other.product"})'
    folder = write_course(tmp_path, (CHECKS, '@criterion("basics.numbers")', named))
    said = "has a timeline of basics.other.product, but there is no such probe: basics/other/probes.py does not exist"
    lines = [line for line in _lint(folder) if "timeline" in line]
    assert [line.partition(": ")[2] for line in lines] == [
        f"basics.numbers.product {said}",
        f"basics.numbers.power {said}",
    ]


def test_a_hint_names_a_task_that_stubs_name_where_there_is_no_readme(tmp_path: Path) -> None:
    folder = write_course(tmp_path, _hint("2.9", "sums.py total"))
    stubs = write_submission(tmp_path)
    open_task = 'raise NotImplementedError("Task 2.1 is open: write total in sums.py")'
    write(stubs, {"further_week2/sums.py": f"def total(x):\n    {open_task}\n"})
    lines = [line for line in _lint(folder, stubs) if "task =" in line]
    assert lines == [
        f"{SUMS_TOML}: [checks.total] task = '2.9', but no stub in {stubs}/further_week2 says `Task 2.9 is open`"
    ]


def test_a_course_is_read_as_a_grading_reads_it(tmp_path: Path) -> None:
    folder = write_course(tmp_path, (CHECKS, '@requires("product")', '@requires("produkt")'))
    assert any(
        line.startswith("basics/numbers/checks.py:13: basics.numbers.power requires basics.numbers.produkt")
        for line in _lint(folder)
    )
    folder = write_course(tmp_path, (PROBES, "def product(", "def product(:"))
    with pytest.raises(CourseError, match=r"basics/numbers/probes\.py:1: SyntaxError: "):
        _lint(folder)


def test_a_lab_that_no_list_names_is_named(tmp_path: Path) -> None:
    folder = write_course(tmp_path)
    (folder / "extra").mkdir()
    (folder / "extra" / "lab.toml").write_text('title = "Extra"\n', encoding="utf-8")
    assert _lint(folder) == [
        "extra/lab.toml: course.toml lists 'extra' neither in labs nor in exercises: it is not graded"
    ]


def test_a_course_may_have_been_saved_by_an_editor_of_windows(tmp_path: Path) -> None:
    folder, submission = write_course(tmp_path), write_submission(tmp_path)
    for file in [*folder.rglob("*.py"), *folder.rglob("*.toml")]:
        file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    assert _lint(folder) == []
    course = courses.load(folder)
    rubric, labs = course.select("basics")
    grade = run(GradingRequest(course, submission, rubric, labs, Device(CPU, "CPU"), seed=1))
    assert {check.outcome for check in grade.checks} == {Outcome.PASSED}


def test_a_check_that_another_one_would_replace_unseen_is_refused(graded: Graded) -> None:
    again = '    def test_product(self, submission):\n        pass\n\n    @requires("product")'
    with pytest.raises(
        GradingError, match=r"numbers/checks\.py:\d+: Numbers\.test_product is already written at line 7"
    ):
        graded((CHECKS, '    @requires("product")', again))


def test_a_probe_that_fails_names_its_line(graded: Graded) -> None:
    broken = (PROBES, '    return {"result": student', '    1 / 0\n    return {"result": student')
    assert "division by zero at basics/numbers/probes.py:2" in graded(broken)["product"].message


def test_a_file_that_is_missing_or_no_text_is_the_students(graded: Graded) -> None:
    read = (PROBES, '    return {"result": student', '    student.text("out.csv")\n    return {"result": student')
    check = graded(read)["product"]
    assert (check.outcome, check.message) == ("failed", "there is no file out.csv")


@pytest.mark.parametrize("solved", ["solutions", "labs"])
def test_our_own_courses_have_nothing_to_mend(solved: str) -> None:
    small = ROOT / "examples" / "courses" / "three_questions"
    for course, folder in ((small, small / solved), (ROOT / "grader", ROOT / solved)):
        assert _lint(course, folder) == []


def test_the_command_says_how_much_there_is_to_mend(tmp_path: Path) -> None:
    folder = write_course(tmp_path, (CHECKS, '"basics.numbers.power"', '"basics.power"'), _hint("2.1", "sums.py total"))
    done = CliRunner().invoke(app, ["lint", "--course", str(folder)])
    assert (done.exit_code, done.output.splitlines()[-1]) == (1, "2 to fix")
    folder = write_course(tmp_path, ("course.toml", 'title = "Small"', "title = 3"))
    done = CliRunner().invoke(app, ["lint", "--course", str(folder)])
    assert (done.exit_code, done.output) == (2, f"could not read: {folder}/course.toml:1: title = 3 is not a text\n")


# --- who is graded ----------------------------------------------------------------------------------------------------


def test_a_name_that_is_no_function_is_the_students(graded: Graded) -> None:
    check = graded(numbers="product = 3\n")["product"]
    assert check.outcome == "failed"
    assert check.message.startswith(
        "your code raised TypeError: labs/basics_week1/numbers.py: product must be a function, but it is of type int"
    )


def test_complex_numbers_in_place_of_others_are_the_students(graded: Graded) -> None:
    numbers = NUMBERS.replace("return left * right", "import numpy\n\n    return numpy.array([left * right + 0j])")
    check = graded(numbers=numbers)["product"]
    assert check.outcome == "failed"
    assert check.message.startswith("product(): saw array([")


def test_what_does_not_end_has_its_place(graded: Graded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradebox.run.endings.was_starved", lambda reply: False)
    numbers = NUMBERS.replace("return left * right", "while True:\n        pass")
    limit = (CHECKS, "left=left,", "{'limits': Limits(wall_seconds=1)}, left=left,")
    known = (
        CHECKS,
        "from gradebox.course.criterion",
        "from gradebox.sandbox import Limits\nfrom gradebox.course.criterion",
    )
    check = graded(limit, known, numbers=numbers)["product"]
    assert re.match(r"no answer in time: .* at numbers\.py:\d in product", check.message), check.message


def test_how_the_code_ended_can_be_printed_whatever_the_submission_calls_it(graded: Graded) -> None:
    raised = "raise type('Bad\\x1b[31m', (Exception,), {})('no')"
    check = graded(numbers=NUMBERS.replace("return left * right", raised))["product"]
    assert check.evidence.endswith(" is raised at numbers.py:2")
    assert "\x1b" not in check.evidence + check.message


def test_exit_has_a_hint_of_its_own(graded: Graded) -> None:
    check = graded(numbers="import sys\n\n\ndef product(left, right):\n    sys.exit(left)\n")["product"]
    assert check.message.startswith("your code raised SystemExit: ")
    assert check.hint.startswith("a function returns; sys.exit() belongs below")


@pytest.mark.parametrize("numbers", ["def product(left, right):\n    return input()\n", "WIDTH = int(input())\n"])
def test_input_has_a_hint_of_its_own(graded: Graded, numbers: str) -> None:
    assert graded(numbers=numbers)["product"].hint.startswith("nobody types anything while a submission is graded")


def test_arguments_that_are_refused_have_a_hint_of_their_own(graded: Graded) -> None:
    refused = "raise ValueError('left starts at 1')"
    check = graded(numbers=NUMBERS.replace("return left * right", refused))["product"]
    assert check.message.startswith("your code raised ValueError: left starts at 1")
    assert "correct the condition" in check.hint


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "the folder is empty: hand in, or name, the folder that holds basics_week1"),
        (
            {"numbers.py": NUMBERS},
            "numbers.py must be in a folder basics_week1: make that folder, and hand in, or name, the fold",
        ),
        (
            {"basics_week1/Numbers.py": NUMBERS},
            "basics_week1 holds Numbers.py; its name must be numbers.py, to the letter: rename it",
        ),
        ({"notes/a.txt": "x"}, "there is no folder basics_week1: add it next to what is there (notes)"),
    ],
    ids=["empty", "the lab itself", "another case", "something else"],
)
def test_a_file_that_is_not_there_is_looked_for(files: dict[str, str], said: str, graded: Graded) -> None:
    check = graded(files=files)["product"]
    assert check.message.startswith(
        "the module does not import: labs/basics_week1/numbers.py does not exist in the sub"
    )
    assert check.hint.startswith(said)


def test_a_file_beside_it_is_imported_with_a_dot(graded: Graded) -> None:
    files = {"basics_week1/numbers.py": f"from tools import K\n{NUMBERS}", "basics_week1/tools.py": "K = 1\n"}
    assert graded(files=files)["product"].hint == (
        "a file of yours that is next to it is imported with a dot: from .tools import ..."
    )
    assert (
        import_advice.hint("No module named 'tools'", ["tools.py"])
        == "it is next to the labs: from labs.tools import ..."
    )
    absent = "torchx is not installed where submissions are graded: do without it"
    assert import_advice.hint("No module named 'torchx'", ["lab1_a/b.py"]) == absent
    late = "def product(left, right):\n    import torchx\n"
    assert graded(numbers=f"{NUMBERS}\n\n{late}")["product"].hint == absent
    assert import_advice.lacking_package(absent) == "torchx"
    assert not import_advice.is_elsewhere("No module named 'torchx'", absent)
    assert import_advice.lacking_package("do without it") == ""


@pytest.mark.parametrize(
    ("files", "advice"),
    [
        (["lab1_a/b.py"], "lab1_a holds b.py: add steps.py"),
        (
            ["lab1_a/b.py", "lab1_a/Steps.py"],
            "lab1_a holds Steps.py; its name must be steps.py, to the letter: rename it",
        ),
        (["lab1_a/b.py", "lab1_a/old/steps.py"], "the submission has lab1_a/old/steps.py; move it to lab1_a/steps.py"),
    ],
)
def test_a_file_of_the_lab_that_another_one_imports_is_no_package_to_install(files: list[str], advice: str) -> None:
    assert import_advice.hint("No module named 'labs.lab1_a.steps'", files) == advice


# --- what comes next --------------------------------------------------------------------------------------------------

STUB = """\
def product(left, right):
    raise NotImplementedError("Task 1.2 is open: write product in numbers.py (about 1 line)")


def power(base, exponent):
    raise NotImplementedError("Task 1.10 is open: write power in numbers.py (about 1 line)")


def noted():
    pass
"""


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(
        course=str(write_course(tmp_path)),
        submission=str(write_submission(tmp_path, numbers=STUB)),
        report=str(tmp_path / "report"),
        seed=1,
    )


def _next(options: Options, capfd: pytest.CaptureFixture[str], *, first_grade: bool = False) -> str:
    assert next_command.show_next(options, hints=0, check=None, first_grade=first_grade) == ExitCode.PASSED
    return capfd.readouterr().out.rpartition("to do next:")[2]


def test_without_readme_and_hints_the_open_stubs_are_next(options: Options, capfd: pytest.CaptureFixture[str]) -> None:
    for first_grade in (False, True):
        said = _next(options, capfd, first_grade=first_grade)
        assert "Next: Task 1.2, product\n" in said
        assert re.search(r"where   \S+basics_week1/numbers\.py:2  product \(about 1 line\)\n", said)
        assert "--lab 1\n" in said
        assert "Well done" not in said


def test_without_hints_a_check_that_fails_is_next(options: Options, capfd: pytest.CaptureFixture[str]) -> None:
    write(Path(options.submission), {"basics_week1/numbers.py": NUMBERS.replace("left * right", "left + right")})
    said = _next(options, capfd, first_grade=True)
    assert "Next: 'Multiply two numbers' (basics.numbers.product), a check that fails.\n" in said
    assert "product(): saw" in said
    assert said.count("basics.numbers.product") == 1
    page = (Path(options.report) / "grade.html").read_text()  # which may be read on another machine
    assert f"<code>gradebox next --course {Path(options.course).name}</code>" in page
    assert options.course not in page


def test_nothing_is_next_where_a_person_has_to_look(options: Options, capfd: pytest.CaptureFixture[str]) -> None:
    folder = Path(options.course)
    checks = (folder / "further/sums/checks.py").read_text().replace("sum(values), what", "sum(None), what")
    write(folder, {"further/sums/checks.py": checks})
    write(Path(options.submission), {"basics_week1/numbers.py": NUMBERS, "further_week2/sums.py": SUMS})
    said = _next(replace(options), capfd, first_grade=True)
    assert "Nothing fails; of 1 check a person has to look at the result.\n" in said


def test_an_exception_says_nothing_of_where_the_course_lies(tmp_path: Path, graded: Graded) -> None:
    raising = (
        "def product(left, right):\n    import traceback\n    raise ValueError(''.join(traceback.format_stack()))\n"
    )
    check = graded(numbers=NUMBERS + "\n\n" + raising)["product"]
    assert re.search(r'File "small_course_\w+/basics/numbers/probes\.py", line', check.message)
    assert 'File "gradebox/sandbox/worker.py", line' in check.message
    assert str(tmp_path) not in check.message
    assert str(ROOT) not in check.message
    lacking = "from typing import no_such_name\n"
    message = graded(numbers=lacking + NUMBERS)["product"].message
    assert message.startswith(
        "the module does not import: cannot import name 'no_such_name' from 'typing' (typing.py) at numbers.py:1"
    )


def test_what_lies_next_to_a_course_is_taken_for_no_module_of_python(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Neither by checks nor by probes: a folder of courses may well have one that is called statistics."""
    write(tmp_path, {"colorsys/__init__.py": "", "statistics/__init__.py": ""})
    use = "import colorsys\nimport statistics\n\nassert colorsys.rgb_to_hsv and statistics.fmean\n\n\n"
    folder = write_course(tmp_path, (CHECKS, CRITERION, use + CRITERION), (PROBES, "def product", f"{use}def product"))
    submission = write_submission(tmp_path)
    done = CliRunner().invoke(
        app, ["grade", "--course", str(folder), "--report", str(tmp_path / "out"), str(submission)]
    )
    assert (done.exit_code, "Grade 10/10" in capfd.readouterr().out) == (0, True)
