"""GitHub Actions: the workflow that grades every push, for courses that use no classroom on GitHub.

The workflow is in the student's repository, so the student can change it as everything else there: it shows them
where they stand, and the course's grade comes from `gpulabs class`. Not for Classroom 50, which is a plug-in.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from gradebox.course.course import Course

WORKFLOW = Path(".github/workflows/grade.yml")

_TEMPLATE = Path(__file__).parent / "scripts" / "actions.yml"
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Of a runner, as Classroom 50 accepts it, too."""


class WorkflowError(ValueError):
    """The workflow cannot be made; the message is one line."""


def workflow(course: Course, *, lab: str | None = None, runs_on: str | None = None) -> str:
    """The workflow file.

    Args:
        course: what is graded.
        lab: only these labs, for example `1,3`.
        runs_on: labels of a runner of one's own, such as `self-hosted,gpu`; without it one of GitHub's.

    Raises:
        WorkflowError: `lab` names no labs, or there can be no such label.
    """
    if lab is not None:
        try:
            labs = course.rubric.named(lab)
        except ValueError as error:
            raise WorkflowError(str(error)) from None
        lab = ",".join(str(entry.number) for entry in labs)
    if not (course.folder.parent / "install.sh").is_file():
        raise WorkflowError(
            f"the workflow is for repositories that hold the grader and `make grade`, and {course.title!r} is in none: "
            "use export classroom50 or export gradescope-autograder, or grade the repositories with the command class"
        )
    text = _TEMPLATE.read_text(encoding="utf-8")
    if own := labels(runs_on):
        text = text.replace("runs-on: ubuntu-latest", f"runs-on: {json.dumps(own)}")
    return text.replace("make grade", "make grade" if lab is None else f"make grade LAB={lab}")


def labels(runs_on: str | None) -> list[str]:
    """The labels of a runner, from one text with commas.

    Raises:
        WorkflowError: there can be no such label.
    """
    names = [label.strip() for label in (runs_on or "").split(",") if label.strip()]
    if wrong := next((label for label in names if not _LABEL.fullmatch(label)), None):
        raise WorkflowError(f"{wrong!r} is no label of a runner; write them like self-hosted,gpu")
    return names
