"""A run that is killed: nothing is lost but what was being graded, and nothing is graded twice."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gradebook.grading import class_summary
from tests.gradebook.conftest import SmallClass
from tests.gradebook.grading.kill import POINTS


@pytest.mark.night
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_gradebook(small_class: SmallClass) -> None:
    for number in range(6):
        small_class.hands_in(f"student {number}", text=f"{number % 5}")
    small_class.grade()
    undisturbed = class_summary.dump(small_class.out)
    killed = small_class.out.with_name("killed")
    for point in POINTS:
        command = [
            sys.executable,
            "-m",
            "tests.gradebook.grading.kill",
            str(small_class.submissions),
            str(killed),
            point,
        ]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        assert done.returncode == -9, f"{point}: {done.stderr}"
    small_class.grade(out=killed)
    assert class_summary.dump(killed) == undisturbed


def test_what_was_being_graded_is_all_that_a_kill_costs(small_class: SmallClass) -> None:
    small_class.hands_in("ada")
    small_class.hands_in("bob")
    command = [sys.executable, "-m", "tests.gradebook.grading.kill", str(small_class.submissions), str(small_class.out)]
    subprocess.run([*command, "while grading"], check=False)
    small_class.grade()
    assert [line.partition(":")[0] for line in small_class.graded] == ["ada", "bob"]


@pytest.mark.parametrize(
    "point", ["before the first table", pytest.param("before the class is stored", marks=pytest.mark.night)]
)
def test_a_gradebook_that_was_never_filled_says_so(small_class: SmallClass, point: str) -> None:
    small_class.hands_in("ada")
    command = [
        sys.executable,
        "-m",
        "tests.gradebook.grading.kill",
        str(small_class.submissions),
        str(small_class.out),
        point,
    ]
    subprocess.run(command, check=False)
    with pytest.raises(ValueError, match="the gradebook is empty: its first run was stopped"):
        class_summary.read(small_class.out)


@pytest.mark.parametrize("content", [b"", b"no database at all, but a text"])
def test_a_gradebook_that_was_lost_is_not_begun_again(small_class: SmallClass, content: bytes) -> None:
    # A new seed would change grades that students have seen.
    small_class.hands_in("ada")
    small_class.grade()
    database = small_class.out / "gradebook.sqlite"
    database.write_bytes(content)
    for suffix in ("-wal", "-shm"):
        database.with_name(database.name + suffix).unlink(missing_ok=True)
    with pytest.raises(ValueError, match=r"restore it from a copy\. Without a copy, grade into another folder"):
        class_summary.read(small_class.out)
    with pytest.raises(ValueError, match=r"restore it from a copy"):
        small_class.grade()
    assert database.read_bytes()[: len(content)] == content
