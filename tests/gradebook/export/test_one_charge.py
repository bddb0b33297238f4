"""What students hear of a check that follows from another one, wherever they read it."""

from __future__ import annotations

from gradebook.export import feedback, gradescope, view
from gradebox.run.grade import CheckReport, Outcome
from tests.gradebook.export.classes import a_class, graded, student

WHERE, FOLLOWER = "lab1.measurements.seconds_equal_reference", "lab1.measurements.tflops_counted"
FAILED = CheckReport(Outcome.FAILED, "saw 1 s", cause="late", belongs_to=WHERE)
TOLD = "The same mistake as in 'lab1.measurements.seconds_equal_reference', charged there"


def test_feedback_and_gradescope_say_what_it_follows_from_and_keep_its_points() -> None:
    grade = graded({WHERE: FAILED, FOLLOWER: FAILED})
    (line,) = view.of(a_class([student("ada", grade)]), ()).lines
    markdown = feedback.markdown(line, "GPU labs")
    assert TOLD.replace("_", "\\_") in markdown or TOLD in markdown
    assert f"`{FOLLOWER}`: **failed**, 0.5 of 0.5" in markdown
    tests = {test["extra_data"]["check"]: test for test in gradescope.results(grade)["tests"]}
    assert f"{TOLD}." in tests[FOLLOWER]["output"]
    assert (tests[FOLLOWER]["score"], tests[WHERE]["score"]) == (0.5, 0.0)


def test_titles_keep_their_capital_letters() -> None:
    from gradebox.common.texts import sentence

    assert sentence("the same mistake as in 'Counts TFLOPS'") == "The same mistake as in 'Counts TFLOPS'."
    assert sentence("") == ""
