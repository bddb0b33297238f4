"""A course on disk is read exactly, and every mistake in its files is one line that names file, line and cause."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

import grader
from gradebox.common.reading import ReadingError
from gradebox.course import course as courses
from gradebox.course import hints, rubric
from gradebox.course.course import CourseError
from gradebox.sandbox import devices
from gradebox.sandbox.devices import Device, DeviceError
from tests.gradebox.small_course import write, write_course

pytestmark = pytest.mark.usefixtures("_courses_are_forgotten")

Refused = Callable[[str, str, str], str]


@pytest.fixture
def refused(tmp_path: Path) -> Refused:
    """What is said of the small course after one change in one of its files, with paths relative to its folder."""

    def load(file: str, old: str, new: str) -> str:
        folder = write_course(tmp_path, (file, old, new))
        with pytest.raises(courses.ReadingError) as caught:
            courses.load(folder)
        said = str(caught.value)
        assert "\n" not in said
        return said.replace(f"{folder}/", "")

    return load


def test_a_small_course_is_read_exactly(tmp_path: Path) -> None:
    folder = write_course(tmp_path)
    course = courses.load(folder)
    assert (course.title, course.package, course.rubric.version) == ("Small", folder.name, "1")
    assert (course.rubric.points, course.rubric.pass_percent) == (10, 50)
    assert [(lab.id, lab.number, lab.package, lab.points) for lab in course.labs] == [
        ("basics", 1, "basics_week1", 6),
        ("further", 2, "further_week2", 4),
    ]
    assert [(check.id, check.points) for check in course.rubric.checks()] == [
        ("basics.numbers.product", Decimal("2.5")),
        ("basics.numbers.power", Decimal("1.5")),
        ("basics.notes.noted", 2),
        ("further.sums.total", 3),
        ("further.sums.noted_too", 1),
    ]
    assert course.exercises == ()
    assert course.environment.labs == ("basics", "further")
    assert course.environment.preload == (
        "numpy",
        f"{folder.name}.basics.numbers.probes",
        f"{folder.name}.further.sums.probes",
    )


def test_what_course_toml_may_say_besides(tmp_path: Path) -> None:
    more = """\
exercises = ["further"]
command = "small"
[submission]
packages = ["labkit"]
preload = []
[guide]
lessons = ["notes/{lab}.md"]
"""
    course = courses.load(
        write_course(
            tmp_path,
            (
                "course.toml",
                'points = 10\npass_percent = 50\nlabs = ["basics", "further"]\n',
                f'points = 6\npass_percent = 50\nlabs = ["basics"]\n{more}',
            ),
        )
    )
    assert [exercise.labs[0].id for exercise in course.exercises] == ["further"]
    assert [(exercise.points, exercise.pass_percent) for exercise in course.exercises] == [(4, 50)]
    assert [lab.id for lab in course.all_labs] == ["basics", "further"]
    assert course.command == "small"
    assert course.environment.importable == ("labkit",)
    assert course.guide is not None
    assert course.guide.lessons == ("notes/{lab}.md",)
    assert course.environment.preload[:1] == (f"{course.package}.basics.numbers.probes",)


LABS = 'labs = ["basics", "further"]'
TOTAL = 'title = "Add the numbers of a list"'
ALONE = 'points = 6\npass_percent = 50\nlabs = ["basics"]\nexercises = ["further"]'
CRITERIA = 'criteria = ["numbers", "notes"]'


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('version = "1"', 'version = "1', "course.toml:2: not valid TOML: "),
        ('version = "1"', "version = 1", "course.toml:2: version = 1 is not a text"),
        ('title = "Small"\n', "", "course.toml:1: the file lacks the key 'title'"),
        (LABS, "", "course.toml:1: the file lacks the key 'labs'"),
        ("pass_percent", "pass_precent", "course.toml:4: unknown key 'pass_precent'; did you mean 'pass_percent'?"),
        (LABS, f"{LABS}\nxyz = 1", "course.toml:6: unknown key 'xyz'; known are title, version, pass_percent, "),
        (LABS, f"{LABS}\n[xyz]\na = 1", "course.toml:6: unknown key 'xyz'; known are title, "),
        (LABS, f"{LABS}\n[devices]\nmodul = 'x'", "course.toml:7: unknown key 'modul'; did you mean 'module'?"),
        (LABS, f"{LABS}\n\n[submission]\nfound = 'x'", "course.toml:8: found must be a list, not 'x'"),
        (LABS, f"{LABS}\ndevices = 'x'", "course.toml:6: devices must be a table, not 'x'"),
        (LABS, "labs = 'basics'", "course.toml:5: labs must be a list, not 'basics'"),
        (LABS, 'labs = ["basics", 2]', "course.toml:5: labs = 2 is not a text"),
        (LABS, 'labs = [\n  "basics",\n  2,\n]', "course.toml:5: labs = 2 is not a text"),
        ("points = 10", "points = true", "course.toml:3: points = true is not a number"),
        ("points = 10", 'points = "10"', "course.toml:3: points = '10' is not a number"),
        ("points = 10", "points = 11", "course.toml:3: it states 11 points, but the labs add up to 10"),
        ("points = 10", "points = 10\ncriteria = 4", "course.toml:4: criteria = 4, but 3 criteria follow"),
        ("points = 10", "points = 10\ncriteria = 3.0", "course.toml:4: criteria = 3.0 is not a whole number"),
        ("pass_percent = 50", "pass_percent = 0", "course.toml:4: pass_percent must be above 0 and at most 100"),
        ("pass_percent = 50", "pass_percent = 100.5", "course.toml:4: pass_percent must be above 0 and at most 100"),
        (LABS, 'labs = ["basics", "farther"]', "course.toml:5: there is no farther/lab.toml"),
        (LABS, f'{LABS}\nexercises = ["extra"]', "course.toml:6: there is no extra/lab.toml"),
        (LABS, 'labs = ["basics", "basics"]', "course.toml:5: basics is named twice"),
        (LABS, f'{LABS}\nexercises = ["basics"]', "course.toml:6: basics is named twice"),
        (
            LABS,
            'labs = ["basics", "../further"]',
            "course.toml:5: a lab's name is lower_case_with_underscores, not '../",
        ),
        (LABS, 'labs = ["basics", "shared"]', "course.toml:5: shared/ is for what several labs have in common"),
        (LABS, "labs = []\n", "course.toml:5: there are no labs"),
    ],
)
def test_a_mistake_in_course_toml_is_named_with_its_line(old: str, new: str, said: str, refused: Refused) -> None:
    assert refused("course.toml", old, new).startswith(said)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('title = "Basics"', 'title = = "Basics"', "lab.toml:1: not valid TOML: "),
        ('title = "Basics"\n', "", "lab.toml:1: the file lacks the key 'title'"),
        ('package = "basics_week1"\n', "", "lab.toml:1: the file lacks the key 'package'"),
        ('package = "basics_week1"', "package = 1", "lab.toml:2: package = 1 is not a text"),
        ("points = 6", "points = 7", "lab.toml:3: it states 7 points, but the criteria add up to 6"),
        ("points = 6", "points = -6", "lab.toml:3: points must be a positive number of points, not -6"),
        ("points = 6", "points = 6\npackages = 'x'", "lab.toml:4: unknown key 'packages'; did you mean 'package'?"),
        ("points = 6", "points = 6\nnumber = 3", "lab.toml:4: unknown key 'number'"),
        ("points = 6", "points = 6\nmore = 3", "lab.toml:4: unknown key 'more'; known are title, package, points"),
        (CRITERIA, "", "lab.toml:1: criteria lacks 'notes', but there is basics/notes"),
        (CRITERIA, 'criteria = "numbers"', "lab.toml:4: criteria must be a list, not 'numbers'"),
        (
            CRITERIA,
            'criteria = ["numbers"]',
            "lab.toml:4: criteria lacks 'notes', but there is basics/notes/criterion.toml",
        ),
        (CRITERIA, 'criteria = ["numbers", "note"]', "lab.toml:4: there is no basics/note/criterion.toml"),
        (CRITERIA, 'criteria = ["numbers", "notes", "notes"]', "lab.toml:4: notes is named twice"),
        (CRITERIA, 'criteria = ["Numbers", "notes"]', "lab.toml:4: a criterion's name is lower_case_with_underscores"),
        (
            CRITERIA,
            'criteria = ["numbers", "shared"]',
            "lab.toml:4: shared/ is for what several criteria have in common",
        ),
    ],
)
def test_a_mistake_in_lab_toml_is_named_with_its_line(old: str, new: str, said: str, refused: Refused) -> None:
    assert refused("basics/lab.toml", old, new).startswith(f"basics/{said}")


def test_a_lab_that_people_alone_grade_has_no_points_of_its_own(tmp_path: Path) -> None:
    folder = write_course(tmp_path, ("basics/lab.toml", CRITERIA, "criteria = []"))
    for name in ("numbers", "notes"):
        shutil.rmtree(folder / "basics" / name)
    with pytest.raises(courses.ReadingError, match="points, but the criteria add up to 0"):
        courses.load(folder)
    lab = folder / "basics" / "lab.toml"
    lab.write_text("\n".join(line for line in lab.read_text().splitlines() if not line.startswith(("points", "crit"))))
    lab = rubric.load_folder(folder / "basics", "basics", 1)
    assert (lab.points, lab.criteria) == (0, ())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("points = 4", "points = = 4", "2: not valid TOML: "),
        ("points = 4", "points = 4\npoints = 4", "3: not valid TOML: "),
        ('title = "Numbers"', 'titel = "Numbers"', "1: unknown key 'titel'; did you mean 'title'?"),
        ('title = "Numbers"\n', "", "1: the file lacks the key 'title'"),
        ("points = 4\n", "", "1: the file lacks the key 'points'"),
        ("points = 4", "points = 0", "2: points must be a positive number of points, not 0; what people grade is no"),
        ("points = 4", "points = true", "2: points = true is not a number"),
        ("points = 4", "points = nan", "2: points = nan is not a number"),
        ("points = 4", "points = inf", "2: points = infinity is not a number"),
        ("points = 2.5", "points = 2", "2: it states 4 points, but its checks add up to 3.5"),
        ("points = 2.5", 'points = "2.5"', "5: points = '2.5' is not a number"),
        ("points = 2.5", "points = 0", "5: points must be a positive number of points, not 0"),
        ("points = 2.5\n", "", "4: [checks.product] lacks the key 'points'"),
        ('title = "Multiply two numbers"\n', "", "4: [checks.product] lacks the key 'title'"),
        ('title = "Multiply two numbers"', 'title = " "', "6: a check's title says what it asks, in one line"),
        ("points = 2.5", "points = 2.5\nstep = 'x'", "6: unknown key 'step'; known are points, title, task, "),
        ("points = 2.5", 'points = 2.5\nevidence = ["luck"]', "6: evidence is some of values, device, system, files, "),
        ("points = 2.5", 'points = 2.5\nevidence = ["notes"]', "4: forgery says how notes could be written by a "),
        (
            "points = 2.5", 'points = 2.5\nevidence = ["notes"]\nforgery = "By luck."\nnoticed_by = "luck"',
            "4: noticed_by says who notices forged notes: nobody, person, check, not 'luck'",
        ),
        ("points = 2.5", 'points = 2.5\nnoticed_by = "person"', "6: noticed_by belongs to a forgery"),
        ("[checks.product]", "[checks.Product]", "4: a check's name is lower_case_with_underscores, not 'Product'"),
        ("[checks.product]", '[checks."pro-duct"]', "4: a check's name is lower_case_with_underscores"),
        ("points = 4", "points = 4\n[check.sum]", "3: unknown key 'check'; did you mean 'checks'?"),
    ],
)  # fmt: skip
def test_a_mistake_in_criterion_toml_is_named_with_its_line(old: str, new: str, said: str, refused: Refused) -> None:
    assert refused("basics/numbers/criterion.toml", old, new).startswith(f"basics/numbers/criterion.toml:{said}")


@pytest.mark.parametrize(
    ("checks", "said"),
    [
        ("[checks]", "checks must be tables like [checks.returns_result]"),
        ("checks = 4", "checks must be a table, not 4"),
        ("[checks]\nnoted = 2", "noted must be a table, not 2"),
    ],
)
def test_checks_that_are_no_tables_are_refused(checks: str, said: str, tmp_path: Path) -> None:
    folder = write_course(tmp_path)
    write(folder, {"basics/notes/criterion.toml": f'title = "Notes"\npoints = 2\n{checks}\n'})
    with pytest.raises(ReadingError) as refused:
        courses.load(folder)
    assert str(refused.value) == f"{folder}/basics/notes/criterion.toml:{len(checks.splitlines()) + 2}: {said}"


def test_a_criterion_whose_checks_are_not_written_yet_is_not_available(tmp_path: Path) -> None:
    folder = write_course(tmp_path)
    write(folder, {"basics/notes/criterion.toml": 'title = "Notes"\npoints = 2\n'})
    (folder / "basics/notes/checks.py").unlink()
    course = courses.load(folder)
    course.prepare()
    assert [criterion.available for criterion in course.labs[0].criteria] == [True, False]
    assert list(course.checks(course.labs[0])) == ["basics.numbers.product", "basics.numbers.power"]


def test_a_package_must_be_found_in_what_students_hand_in(refused: Refused) -> None:
    """A folder belongs to a lab by the beginning of its name, and is imported under it."""
    said = refused("basics/lab.toml", "basics_week1", "week1")
    assert said == "basics/lab.toml:2: package = 'week1': expected a name that begins with basics_"


def test_a_course_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(courses.ReadingError, match=r"^[^\n]*/course\.toml cannot be read: No such file or directory$"):
        courses.load(tmp_path)


def test_what_is_no_text_is_one_line(tmp_path: Path) -> None:
    folder = write_course(tmp_path)
    (folder / "course.toml").write_bytes(b'title = "\xff"\n')
    with pytest.raises(courses.ReadingError, match=r"/course\.toml:1: it is not UTF-8"):
        courses.load(folder)


@pytest.mark.parametrize("place", ["", "basics/", "basics/numbers/", "further/sums/"])
def test_folders_that_python_could_not_import_are_named(place: str, tmp_path: Path) -> None:
    folder = write_course(tmp_path)
    (folder / place / "__init__.py").unlink()
    with pytest.raises(courses.ReadingError, match=rf"{folder}/?{place.rstrip('/')} lacks an __init__\.py"):
        courses.load(folder)


def test_a_folder_whose_name_python_knows_already_is_refused(tmp_path: Path) -> None:
    folder = write_course(tmp_path).rename(tmp_path / "numpy")
    with pytest.raises(CourseError, match=r"/numpy: Python has another numpy in .*; rename the folder$"):
        courses.load(folder).prepare()
    with pytest.raises(ReadingError, match=r"/json needs another name: Python itself has a module json$"):
        courses.load(folder.rename(tmp_path / "json"))


def test_a_folder_whose_name_no_import_can_have_is_refused(tmp_path: Path) -> None:
    folder = write_course(tmp_path).rename(tmp_path / "2026walks")
    with pytest.raises(ReadingError, match=r"/2026walks needs another name: a letter, then letters, digits and _$"):
        courses.load(folder)


def test_a_lab_without_checks_is_refused(tmp_path: Path) -> None:
    folder = write_course(tmp_path)
    (folder / "further/sums/checks.py").unlink()
    course = courses.load(folder)
    course.prepare()
    said = r"/criterion\.toml:4: further\.sums\.total has points, but \w+/further/sums/checks\.py has no such check$"
    with pytest.raises(CourseError, match=said):
        course.checks(course.labs[1])


def test_a_device_module_that_is_not_there_is_one_line() -> None:
    with pytest.raises(DeviceError, match=r"^the course's module of devices, nowhere\.devices, cannot be imported: "):
        devices.parse("auto", "nowhere.devices")


def test_without_a_device_module_there_is_the_cpu() -> None:
    assert devices.parse("auto") == devices.parse("cpu") == Device("cpu", "CPU")
    with pytest.raises(DeviceError, match="expected auto or cpu"):
        devices.parse("cuda")


def test_hints_go_by_the_lab_whatever_it_is_called(tmp_path: Path) -> None:
    file, hint = "further/sums/criterion.toml", 'task = "2.1"\nfunctions = ["sums.py total"]\nhints = ["Add."]'
    course = courses.load(write_course(tmp_path, (file, TOTAL, f"{TOTAL}\n{hint}")))
    assert "further.sums.total" in hints.known(course)
    assert "further.sums.noted_too" not in hints.known(course)
    for old, new, said in (
        ("2.1", "1.1", r":7: '1\.1' is no task of its lab$"),
        ("2.1", "one", r":7: 'one' is no task of its lab$"),
        ('hints = ["Add."]', "", r":4: a check with hints needs the keys task, functions and hints: add hints$"),
        ('hints = ["Add."]', "hints = []", r":4: .* add hints$"),
        ('task = "2.1"\nfunctions = ["sums.py total"]', "", r":4: .* add task and functions$"),
        ('"sums.py total"', '"sums total"', r":8: functions names files and functions: \['sums total'\]$"),
        ('functions = ["sums.py total"]', "", r":4: .* add functions$"),
        ('"Add."', '"Add.", " "', ":9: one to 3 hints, each of them a text$"),
    ):
        other = write_course(tmp_path, (file, TOTAL, f"{TOTAL}\n{hint.replace(old, new)}"))
        with pytest.raises(hints.HintError, match=rf"/further/sums/criterion\.toml{said}"):
            hints.load(courses.load(other))


@pytest.mark.parametrize(("number", "taken"), [("6.1", True), ("9.9", True), ("", True), ("6", False), ("0.1", False)])
def test_tasks_of_an_exercise_have_a_number_of_their_own_or_none(number: str, taken: bool, tmp_path: Path) -> None:
    alone = ("course.toml", f"points = 10\npass_percent = 50\n{LABS}", ALONE)
    hint = f'task = "{number}"\nfunctions = ["sums.py total"]\nhints = ["Add."]'
    course = courses.load(write_course(tmp_path, alone, ("further/sums/criterion.toml", TOTAL, f"{TOTAL}\n{hint}")))
    if taken:
        assert hints.load(course)["further.sums.total"].task == number
        return
    with pytest.raises(hints.HintError, match=r"/further/sums/criterion\.toml:7: .* is no task of its lab"):
        hints.load(course)


# --- what is selected ------------------------------------------------------------------------------------------------


def test_labs_are_selected_by_number_and_by_name_in_the_rubrics_order(tmp_path: Path) -> None:
    course = courses.load(write_course(tmp_path))
    for option in ("2,1", "further,basics", " 1 , further"):
        assert [lab.id for lab in course.select(option)[1]] == ["basics", "further"]
    assert [lab.id for lab in course.select("further")[1]] == ["further"]
    assert course.select()[1] == course.labs


def test_an_exercise_is_selected_by_its_name_and_graded_by_its_own_points() -> None:
    course = grader.course()
    chosen, labs = course.select("container")
    assert [lab.id for lab in labs] == ["container"]
    assert chosen.points == labs[0].points
    assert course.select(criteria=labs[0].criteria[0].id)[0] is chosen


@pytest.mark.parametrize(
    ("labs", "criteria", "said"),
    [
        ("9", None, "there is no lab 9; the labs are 1, 2, 3, 4, 5; or container"),
        ("one", None, "--lab one: expected numbers separated by commas, for example --lab 1,3; or container"),
        ("", None, "--lab : expected numbers"),
        (None, "lab1.memry", "there is no criterion lab1.memry; the criteria are lab1.benchmark, "),
        (
            None,
            "lab1.memory.peak_equals_reference",
            "lab1.memory.peak_equals_reference is one check; ask for its criterion, lab1.memory",
        ),
        ("1", "lab1.memory", "--lab and --criterion exclude each other"),
    ],
)
def test_what_is_not_there_cannot_be_selected(labs: str | None, criteria: str | None, said: str) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]*$") as refused:
        grader.course().select(labs, criteria)
    assert str(refused.value).startswith(said)


def test_a_selected_criterion_has_its_own_points() -> None:
    _, (lab,) = grader.course().select(criteria="lab3.accumulation,lab3.setup")
    assert [criterion.id for criterion in lab.criteria] == ["lab3.setup", "lab3.accumulation"]
    assert lab.points == sum(criterion.points for criterion in lab.criteria)


def test_a_rubric_is_read_back_from_its_text() -> None:
    course = grader.course().rubric
    assert rubric.from_text(course.to_text()) == course


def test_caches_of_folders_that_are_gone_are_nobodys(tmp_path: Path) -> None:
    folder = write_course(tmp_path)
    for place in ("checks", "further/reference"):  # as a checkout has them after the folder was moved
        (folder / place / "__pycache__").mkdir(parents=True)
    assert courses.load(folder).labs


def test_checks_that_do_not_load_are_named(tmp_path: Path) -> None:
    folder = write_course(
        tmp_path,
        (
            "basics/numbers/checks.py",
            "from gradebox.course.criterion",
            "import no_such_module\nfrom gradebox.course.criterion",
        ),
    )
    course = courses.load(folder)
    course.prepare()
    with pytest.raises(
        courses.CourseError, match=r"numbers/checks\.py:2: the checks in \S+ do not load: ModuleNotFoundE"
    ):
        course.checks(course.labs[0])


def test_a_rubric_of_one_file_which_older_gradebooks_hold_is_still_read() -> None:
    text = """\
[rubric]
version = "1"
points = 10
criteria = 2
pass_percent = 70

[lab1]
title = "One"
package = "lab1_one"
points = 10

[lab1.first]
title = "First"
points = 4
[lab1.first.checks]
works = 2.5
is_quick = 1.5

[lab1.second]
title = "Second"
points = 6
"""
    parsed = rubric.from_text(text)
    assert (parsed.version, parsed.points, parsed.pass_percent) == ("1", 10, 70)
    assert [(lab.id, lab.number, lab.points) for lab in parsed.labs] == [("lab1", 1, 10)]
    assert [(check.id, check.points) for check in parsed.checks()] == [
        ("lab1.first.works", Decimal("2.5")),
        ("lab1.first.is_quick", Decimal("1.5")),
    ]
    assert rubric.from_text(parsed.to_text()) == parsed
