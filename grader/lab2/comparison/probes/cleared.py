"""A probe of a control experiment: the student's accuracies with gradients that are cleared after each step."""

from __future__ import annotations

from gradebox.sandbox.probe_loader import Student
from grader.lab2.comparison.cases.cleared import ClearedAccuracies
from grader.lab2.comparison.cases.measuring import Accuracies, AccuraciesReply
from grader.lab2.comparison.probes import accuracies as of_digits
from grader.lab2.shared.probes import gradients_cleared


def accuracies(student: Student, inputs: ClearedAccuracies) -> AccuraciesReply:
    """`measure_accuracies` on digits."""
    with gradients_cleared():
        return of_digits.accuracies(student, Accuracies(**inputs.fields_by_name()))
