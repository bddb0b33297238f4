"""A lab that is the same in several submissions is graded once; what makes it another lab, and what is not shared."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from rich.console import Console

from gradebook.grading import class_summary, deduplicate
from gradebox.run.grade import CheckReport, IntegrityNote, Outcome
from tests.gradebook import fakes
from tests.gradebook.conftest import SmallClass

LABS = ("lab1_gpu_basics", "lab2_mixed_precision", "lab3_distributed")
FIRST, SECOND, THIRD = LABS


def submission(folder: Path, **files: str) -> Path:
    """Files by name; two underscores stand for a slash, and `.py` is added."""
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_a_lab_is_the_same_whatever_the_others_are(tmp_path: Path) -> None:
    one = submission(tmp_path / "one", lab1_gpu_basics__a="x = 1", lab2_mixed_precision__a="y = 1")
    two = submission(tmp_path / "two", lab1_gpu_basics__a="x = 1", lab2_mixed_precision__a="y = 2")
    first, second = deduplicate.parts(one, LABS), deduplicate.parts(two, LABS)
    assert set(first) == {FIRST, SECOND}
    assert first[FIRST] == second[FIRST]
    assert first[SECOND].digest != second[SECOND].digest


@pytest.mark.parametrize(
    ("mention", "same"),
    [
        ("from labs.lab2_mixed_precision import a", False),
        ("from .. import lab2_mixed_precision as other", False),
        ("from labs.lab3_distributed import a", False),  # which imports Lab 2
        ("import importlib; importlib.import_module('labs.lab' + '2_mixed' + '_precision')", False),
        ("exec(open('../lab' + '2' + '_mixed_precision/a.py').read())", False),
        ("import sys; sys.modules", False),
        ("import sys; sys.path[:0] = [str(place)]; from timing import *", False),
        ("from sys import path", False),
        ("from pathlib import Path; [p for p in Path(__file__).resolve().parent.parent.iterdir()]", False),
        ("from pathlib import Path; open(Path(__file__).parents[1] / f'lab{2}_mixed' / 'a.py')", False),
        ("open(f'../lab{2}_mixed_precision/a.py')", False),
        ("import os; os.listdir(os.path.dirname(os.path.dirname(__file__)))", False),
        ("import labs; labs", False),
        ("x = '" + "a" * 2**18 + "'", False),  # longer than anybody reads
        ("from pathlib import Path; RESULTS = Path(__file__).parent / 'results'; RESULTS.glob('*.json')", True),
        ("path.parent.glob('*.pt'); path.mkdir(parents=True)", True),
        ("model.eval(); re.compile('x'); torch.compile(model)", True),
        ("from labs.lab1_gpu_basics import other", True),
    ],
)
def test_a_lab_that_can_reach_another_is_the_same_only_if_that_is(tmp_path: Path, mention: str, same: bool) -> None:
    rest = {"lab3_distributed__a": "from labs.lab2_mixed_precision import a"}
    one = submission(tmp_path / "one", lab1_gpu_basics__a=mention, lab2_mixed_precision__a="y = 1", **rest)
    two = submission(tmp_path / "two", lab1_gpu_basics__a=mention, lab2_mixed_precision__a="y = 2", **rest)
    assert (deduplicate.parts(one, LABS)[FIRST].digest == deduplicate.parts(two, LABS)[FIRST].digest) is same


def test_what_lies_beside_the_labs_is_part_of_each(tmp_path: Path) -> None:
    one = submission(tmp_path / "one", lab1_gpu_basics__a="x = 1", helpers="a = 1")
    two = submission(tmp_path / "two", lab1_gpu_basics__a="x = 1", helpers="a = 2")
    assert deduplicate.parts(one, LABS)[FIRST].digest != deduplicate.parts(two, LABS)[FIRST].digest


def test_a_lab_that_is_named_in_its_data_is_reached(tmp_path: Path) -> None:
    for name, text in (("one", "y = 1"), ("two", "y = 2")):
        submission(tmp_path / name, lab1_gpu_basics__a="x = 1", lab2_mixed_precision__a=text)
        (tmp_path / name / FIRST / "config.json").write_text('{"module": "labs.lab2_mixed_precision.a"}')
    first, second = (deduplicate.parts(tmp_path / name, LABS)[FIRST] for name in ("one", "two"))
    assert first.digest != second.digest


@pytest.mark.parametrize(("code", "same"), [("x = 1", True), ("open('../NOTES.md')", False)])
def test_texts_for_people_are_not_unless_code_names_them(tmp_path: Path, code: str, same: bool) -> None:
    for name in ("one", "two"):
        submission(tmp_path / name, lab1_gpu_basics__a=code)
        (tmp_path / name / "NOTES.md").write_text(f"Handed in by {name}.\n")
    first, second = (deduplicate.parts(tmp_path / name, LABS)[FIRST].digest for name in ("one", "two"))
    assert (first == second) is same


def hands_in_two(small: SmallClass, student: str, first: str, second: str) -> None:
    small.hands_in(student, first)
    submission(small.submissions / student, lab2_mixed_precision__training=second)


def graded_labs(small: SmallClass) -> list[tuple[str, str]]:
    """Who was graded in which labs, in order."""
    lines = [line.partition(": ") for line in small.graded]
    return [
        (student, " ".join(dict.fromkeys(name.partition(".")[0] for name in rest.split(", "))))
        for student, _, rest in lines
    ]


@pytest.fixture
def without_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fakes, "NOTES", ())


@pytest.mark.usefixtures("without_notes")
def test_the_same_lab_is_graded_once_and_counts_for_all(small_class: SmallClass) -> None:
    hands_in_two(small_class, "ada", "same", "one")
    hands_in_two(small_class, "bob", "same", "two")
    hands_in_two(small_class, "cleo", "other", "one")
    ada, bob, cleo = small_class.grade(labs=(1, 2)).students
    assert graded_labs(small_class) == [("ada", "lab1 lab2"), ("bob", "lab2"), ("cleo", "lab1")]
    assert {row.status for row in (ada, bob, cleo)} == {"graded"}
    of_ada, of_bob, of_cleo = (row.grade for row in (ada, bob, cleo) if row.grade is not None)
    assert of_ada.labs[0] == of_bob.labs[0]
    assert of_ada.labs[1] == of_cleo.labs[1]
    assert [grade.submission for grade in (of_ada, of_bob, of_cleo)] == ["ada", "bob", "cleo"]
    assert of_ada.submission_sha256 != of_bob.submission_sha256


@pytest.mark.usefixtures("without_notes")
def test_who_has_nothing_of_his_own_waits_for_the_others(small_class: SmallClass) -> None:
    hands_in_two(small_class, "ada", "same", "one")
    hands_in_two(small_class, "bob", "other", "same")
    hands_in_two(small_class, "cleo", "same", "same")
    students = small_class.grade(labs=(1, 2)).students
    assert [line for line in graded_labs(small_class) if line[0] == "cleo"] == []
    assert [row.status for row in students] == ["graded"] * 3


@pytest.mark.usefixtures("without_notes")
def test_who_comes_later_gets_what_was_graded_before(small_class: SmallClass) -> None:
    hands_in_two(small_class, "bob", "same", "one")
    small_class.grade(labs=(1, 2))
    hands_in_two(small_class, "ada", "same", "two")
    hands_in_two(small_class, "bob", "same", "three")  # hands in again, with one lab changed
    small_class.grade(labs=(1, 2))
    assert graded_labs(small_class) == [("bob", "lab1 lab2"), ("ada", "lab2"), ("bob", "lab2")]


def test_a_lab_with_a_note_is_graded_for_each(small_class: SmallClass) -> None:
    hands_in_two(small_class, "ada", "same", "one")
    hands_in_two(small_class, "bob", "same", "two")
    small_class.grade(labs=(1, 2))
    assert graded_labs(small_class) == [("ada", "lab1 lab2"), ("bob", "lab2"), ("bob", "lab1")]


@pytest.mark.usefixtures("without_notes")
def test_what_a_busy_machine_left_open_is_graded_for_each(small_class: SmallClass) -> None:
    for student in ("ada", "bob"):
        hands_in_two(small_class, student, "same", student)
        (small_class.submissions / student / "lab1_gpu_basics" / "behaviour.txt").write_text("busy")
    students = small_class.grade(labs=(1, 2)).students
    assert [row.status for row in students] == ["graded"] * 2
    assert not any(row.grade.needs_review for row in students if row.grade)
    # The other criteria of that lab were certain.
    assert [line for line in small_class.graded if line.startswith("bob")] == [
        next(line for line in small_class.graded if line.startswith("bob: lab2")),
        "bob: lab1.memory",
        "bob: lab1.memory",
    ]


@pytest.mark.usefixtures("without_notes")
def test_who_is_to_be_graded_again_is_graded(small_class: SmallClass) -> None:
    hands_in_two(small_class, "ada", "same", "one")
    hands_in_two(small_class, "bob", "same", "two")
    small_class.grade(labs=(1, 2))
    small_class.log.unlink()
    small_class.grade(labs=(1, 2), regrade=("bob",))
    assert graded_labs(small_class) == [("bob", "lab1 lab2")]


class Interrupted(Exception):
    pass


def interrupted_engine(jobs: int, room: Path, device: str) -> fakes.InThisProcess:
    raise Interrupted


@pytest.mark.usefixtures("without_notes")
def test_who_is_to_be_graded_again_is_graded_when_an_interrupted_run_goes_on(small_class: SmallClass) -> None:
    hands_in_two(small_class, "ada", "same", "one")
    hands_in_two(small_class, "bob", "same", "two")
    small_class.grade(labs=(1, 2))
    small_class.log.unlink()
    with pytest.raises(Interrupted):
        small_class.grade(interrupted_engine, labs=(1, 2), regrade=("bob",))
    small_class.grade(labs=(1, 2))
    assert graded_labs(small_class) == [("bob", "lab1 lab2")]


@pytest.mark.usefixtures("without_notes")
def test_who_keeps_a_grading_of_somebody_that_is_graded_again_is_named(
    small_class: SmallClass, capsys: pytest.CaptureFixture[str]
) -> None:
    hands_in_two(small_class, "ada", "same", "one")
    hands_in_two(small_class, "bob", "same", "two")
    small_class.grade(labs=(1, 2))
    small_class.grade(labs=(1, 2), regrade=("ada",), console=Console(width=300))
    assert "note: bob had the same lab graded with what is graded again" in capsys.readouterr().out


@pytest.mark.usefixtures("without_notes")
def test_a_run_that_goes_on_asks_for_the_same_tasks(small_class: SmallClass) -> None:
    for student, first, second in (("ada", "same", "one"), ("bob", "same", "two"), ("cleo", "three", "two")):
        hands_in_two(small_class, student, first, second)
    runs: list[list[tuple[str, tuple[str, ...]]]] = []

    class Stopping(fakes.InThisProcess):
        def run(self, tasks, started):  # type: ignore[no-untyped-def]
            runs.append([(task.students[0], task.criteria) for task in tasks])
            for count, done in enumerate(super().run(tasks, started)):
                if count == 1:
                    raise Interrupted
                yield done

    for _ in range(2):
        with contextlib.suppress(Interrupted):
            small_class.grade(lambda jobs, room, device: Stopping(room), labs=(1, 2))
    assert runs[1] == runs[0][1:]


@pytest.mark.usefixtures("without_notes")
def test_a_lab_whose_report_tells_of_files_that_others_lack_is_graded_for_each(
    small_class: SmallClass, monkeypatch: pytest.MonkeyPatch
) -> None:
    for student in ("ada", "bob"):
        hands_in_two(small_class, student, "same", student)
    submission(small_class.submissions / "ada", lab2_mixed_precision__ada_meier_4711="x = 1")
    report = CheckReport(Outcome.FAILED, "no module", "this one has lab2_mixed_precision/ada_meier_4711.py")
    monkeypatch.setattr(fakes, "_report", lambda task, check, *, busy: report)
    small_class.grade(labs=(1, 2))
    assert ("bob", "lab1") in graded_labs(small_class)


def test_notes_on_a_lab_stay_with_whose_lab_it_is(small_class: SmallClass, monkeypatch: pytest.MonkeyPatch) -> None:
    hands_in_two(small_class, "ada", "same", "one")
    hands_in_two(small_class, "bob", "same", "two")
    note = IntegrityNote("source", "training.py names import ctypes", "training.py:3", "lab2")

    class OfAda(fakes.InThisProcess):
        def run(self, tasks, started):  # type: ignore[no-untyped-def]
            for task in tasks:
                monkeypatch.setattr(fakes, "NOTES", (note,) if task.students == ("ada",) else ())
                yield from super().run([task], started)

    monkeypatch.setattr(fakes, "_report", lambda task, check, *, busy: CheckReport(Outcome.PASSED))
    ada, bob = small_class.grade(lambda jobs, room, device: OfAda(room), labs=(1, 2)).students
    assert graded_labs(small_class) == [("ada", "lab1 lab2"), ("bob", "lab2")]
    assert ada.grade is not None
    assert bob.grade is not None
    assert (ada.grade.integrity, bob.grade.integrity) == ((note,), ())


@pytest.mark.usefixtures("without_notes")
def test_a_part_says_so_where_it_is_told(small_class: SmallClass, capsys: pytest.CaptureFixture[str]) -> None:
    hands_in_two(small_class, "ada", "same", "one")
    hands_in_two(small_class, "bob", "same", "two")
    small_class.grade(labs=(1, 2), console=Console())
    output = capsys.readouterr().out
    assert "/20 in lab2" in output
    assert class_summary.read(small_class.out).students[1].status == "graded"
