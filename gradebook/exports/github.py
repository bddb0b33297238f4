"""GitHub Classroom: the workflow that grades every push, and the two things that it reports.

The workflow lies in the student's repository, as everything else there it can be changed by the student: it tells them
where they stand, and the course's grade comes from `gpulabs class`. Points reach Classroom through its own reporter
(https://github.com/classroom-resources/autograding-grading-reporter), which takes results as base64 of JSON.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

from gradebook.exports.feedback import grade_markdown
from gradebox.course import Course
from gradebox.grade import Grade
from gradebox.texts import printable_document

WORKFLOW = Path(".github/workflows/classroom.yml")
"""Where GitHub Classroom looks for it."""

_TEMPLATE = Path(__file__).parent / "scripts" / "classroom.yml"


class WorkflowError(ValueError):
    """The workflow cannot be made; the message is one line."""


def workflow(course: Course, *, lab: str | None = None) -> str:
    """The workflow file.

    Args:
        course: what is graded.
        lab: only these labs, for example `1,3`.

    Raises:
        WorkflowError: `lab` names no labs.
    """
    if lab is not None:
        try:
            labs = course.rubric.named(lab)
        except ValueError as error:
            raise WorkflowError(str(error)) from None
        lab = ",".join(str(one.number) for one in labs)
    text = _TEMPLATE.read_text(encoding="utf-8")
    return text.replace("make grade", "make grade" if lab is None else f"make grade LAB={lab}")


def summary(grade: Grade) -> str:
    """The grade for the summary of a job, in Markdown."""
    return grade_markdown(grade, "Grade")


def reporter_result(grade: Grade) -> str:
    """The grade as Classroom's reporter takes it: a test for each criterion, with its points."""
    tests = []
    for lab in grade.labs:
        for criterion in lab.criteria:
            if criterion.available:
                problem = criterion.first_problem
                test = {
                    "name": f"Lab {lab.id.removeprefix('lab')}: {criterion.title}",
                    "status": "pass" if criterion.points == criterion.max_points else "fail",
                    "score": float(criterion.points),
                    "message": "" if problem is None else f"{problem.name}: {problem.message}",
                }
                tests.append(test)
    document = {
        "version": 1,
        "status": "pass" if grade.passed else "fail",
        "max_score": float(grade.max_score),
        "tests": tests,
    }
    return base64.b64encode(json.dumps(printable_document(document)).encode()).decode("ascii")
