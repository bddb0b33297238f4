"""Classroom 50 (https://classroom50.org): the autograder that its runner calls, and the `result.json` that it wants.

From https://github.com/foundation50/classroom50, read in November 2026: `wiki/Advanced-Autograding.md`,
`schemas/result-v1.schema.json`, the skeleton's `autograde-runner.yaml` and `runner.py`. What matters here:

- `CLASSROOM/autograders/ASSIGNMENT/` of the organization's repository `classroom50` holds `autograder.py` and what lies
  next to it, together at most 10 MiB. The runner starts it in the student's checkout; it leaves `result.json` there and
  ends with 0, else the runner reports an error, which is no score.
- Scores are whole numbers, so ours are counted in parts of a point (`parts`), the largest that all checks' points have.
- The runner itself states `owner`, `assignment_type` and the times; what it hands over in variables is repeated here,
  so that the file is valid by itself.

Not established: whether scores can be shown divided again. Classroom 50's pages show the whole numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from gradebook.export import github, gradescope_autograder
from gradebook.export.feedback import grade_markdown
from gradebook.export.gradescope_autograder import AutograderError
from gradebox.common.texts import printable_document
from gradebox.course.course import Course
from gradebox.course.rubric import Lab
from gradebox.report.document import points
from gradebox.run.grade import CriterionResult, Grade

SCHEMA = "classroom50/result/v1"
_SCRIPT = Path(__file__).parent / "scripts" / "autograder.py"
_MOST_LABELS = 10
_MOST_BYTES = 10 * 2**20
_PYTHON = "3.13"
_SECONDS = 540
"""For the checks; a job of GitHub's may take six hours, and every minute is paid for."""


class Classroom50Error(ValueError):
    """It cannot be made; the message is one line that says what to do."""


def autograder(
    course: Course,
    *,
    lab: str | None = None,
    device: str = "auto",
    seed: int | None = None,
    runs_on: str | None = None,
    root: Path | None = None,
) -> dict[str, bytes]:
    """The files of an assignment's folder, by name, and `runtime.json` for `gh teacher assignment add --runtime`.

    Args:
        course: what is graded.
        lab: only these labs, for example `1,3`.
        device: auto, cuda, vgpu or vgpu:MODEL.
        seed: the same inputs for everybody; without it each run draws new ones.
        runs_on: labels of a runner of one's own, such as `self-hosted,gpu`; without it one of GitHub's.
        root: the checkout of the course; the folder that holds it without this.

    Raises:
        Classroom50Error: `root` is no checkout, or there is no such lab or device, or no such label can be.
    """
    try:
        packed = gradescope_autograder.build(course, lab=lab, device=device, seed=seed, root=root)
        labels = github.labels(runs_on)
        numbers = [str(entry.number) for entry in course.rubric.named(lab)] if lab else []
    except (AutograderError, github.WorkflowError) as error:
        raise Classroom50Error(str(error)) from None
    if len(packed) > _MOST_BYTES:
        raise Classroom50Error(
            f"the course is {len(packed) / 2**20:.1f} MiB packed, and Classroom 50 takes 10: leave large files out"
        )
    if len(labels) > _MOST_LABELS:
        raise Classroom50Error(f"{len(labels)} labels are too many; Classroom 50 takes {_MOST_LABELS}")
    own = course.package if root is None and gradescope_autograder.is_alone(course) else ""
    settings = {"lab": ",".join(numbers), "device": device, "seed": seed, "seconds": _SECONDS, "course": own}
    runtime: dict[str, Any] = {"runs-on": labels} if labels else {"runs-on": "ubuntu-latest", "python": _PYTHON}
    return {
        "autograder.py": _SCRIPT.read_bytes(),
        "course.zip": packed,
        "settings.json": (json.dumps(settings, indent=2) + "\n").encode(),
        "runtime.json": (json.dumps(runtime, indent=2) + "\n").encode(),
    }


def parts(grade: Grade) -> int:
    """Of how many parts of a point a score is counted in, so that all points of checks are whole numbers."""
    criteria = [criterion for lab in grade.labs for criterion in lab.criteria if criterion.available]
    return _parts(
        [
            *(criterion.max_points for criterion in criteria),
            *(check.max_points for criterion in criteria for check in criterion.checks),
        ]
    )


def result(grade: Grade, variables: Mapping[str, str], now: datetime | None = None) -> dict[str, Any]:
    """A grade as `result.json`: a test for each criterion.

    Points that are no whole number of parts (an instructor can give such) are rounded down.

    Args:
        grade: the grade.
        variables: the environment that Classroom 50's runner gives.
        now: the time of grading.
    """
    many = parts(grade)
    tests = [
        _test(f"Lab {lab.id.removeprefix('lab')}: {criterion.title}", criterion, many)
        for lab in grade.labs
        for criterion in lab.criteria
        if criterion.available
    ]
    return _document(tests, variables, now)


def not_graded(
    reason: str, labs: Iterable[Lab], variables: Mapping[str, str], now: datetime | None = None
) -> dict[str, Any]:
    """The result of a submission that holds nothing to grade: no points of those of these labs, and why."""
    criteria = [criterion for lab in labs for criterion in lab.criteria if criterion.available]
    many = _parts(
        [
            *(criterion.points for criterion in criteria),
            *(check.points for criterion in criteria for check in criterion.checks),
        ]
    )
    most = sum(_whole(criterion.points, many) for criterion in criteria)
    test = {"test-name": "handing in", "passed": False, "score": 0, "max-score": most, "output": reason}
    return _document([test], variables, now)


def release_body(grade: Grade) -> str:
    """What the release says: the grade in points, and how Classroom 50 counts them."""
    many = parts(grade)
    text = grade_markdown(grade, "Grade")
    if many == 1:
        return text
    return (
        f"{text}\nClassroom 50 counts in whole numbers, here in 1/{many} of a point: {_whole(grade.score, many)} of "
        f"{_whole(grade.max_score, many)} are {points(grade.score)} of {points(grade.max_score)} points.\n"
    )


def to_json(document: dict[str, Any]) -> str:
    return json.dumps(printable_document(document), indent=2, ensure_ascii=False) + "\n"


def _test(name: str, criterion: CriterionResult, many: int) -> dict[str, Any]:
    problem = criterion.first_problem
    test = {
        "test-name": name,
        "passed": criterion.points == criterion.max_points,
        "score": _whole(criterion.points, many),
        "max-score": _whole(criterion.max_points, many),
    }
    return test if problem is None else {**test, "output": f"{problem.name}: {problem.message}"}


def _parts(values: Iterable[Decimal]) -> int:
    return math.lcm(*(value.as_integer_ratio()[1] for value in values))


def _whole(value: Decimal, many: int) -> int:
    return int(value * many)


def _document(tests: list[dict[str, Any]], variables: Mapping[str, str], now: datetime | None) -> dict[str, Any]:
    moment = f"{now or datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    commit = variables.get("COMMIT_URL", "")
    return {
        "schema": SCHEMA,
        "classroom": variables.get("CLASSROOM", ""),
        "assignment": variables.get("ASSIGNMENT", ""),
        "assignment_type": variables.get("ASSIGNMENT_TYPE") or "individual",
        "owner": variables.get("OWNER") or variables.get("USERNAME", ""),
        "submission": variables.get("SUBMISSION_TAG", ""),
        "commit": commit,
        "release": variables.get("RELEASE_URL", ""),
        "review": variables.get("REVIEW_URL") or commit,
        "datetime": moment,
        "graded_at": moment,
        "score": sum(test["score"] for test in tests),
        "max-score": sum(test["max-score"] for test in tests),
        "tests": tests,
    }
