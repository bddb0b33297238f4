"""What a decision says of whom it is about, for people who may have meant somebody else."""

from __future__ import annotations

from tests.gradebook.conftest import SmallClass
from tests.gradebook.export.test_decisions import run, scores


def test_a_student_whose_key_is_a_word_of_the_command_is_called_by_name(small_class: SmallClass) -> None:
    small_class.hands_in("all")
    small_class.hands_in("bob")
    roster = small_class.out.with_name("roster.csv")
    roster.write_text("student,name\nall,Llewelyn Jones\nbob,Bob Ross\n")
    small_class.grade(roster=roster)
    for choice, said in (
        (("--override", "all", "lab1.memory", "5", "asked"), "all (Llewelyn Jones) gets 5 points"),
        (("--hold-back", "all", "talk first"), "all (Llewelyn Jones) is held back"),
        (("--release", "all"), "all (Llewelyn Jones) is released"),
        (("--excuse", "all", "all", "ill"), "all (Llewelyn Jones) is excused from all"),
    ):
        assert said in run("review", str(small_class.out), *choice)[1]
    assert scores(small_class.out)["all"] == "" != scores(small_class.out)["bob"]
