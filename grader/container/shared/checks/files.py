"""The files of the exercise, as a submission has them."""

from __future__ import annotations

from gradebox.run.assertions import CheckFailed, require
from gradebox.run.submission import Submission
from grader.container.shared.checks.dockerfile import Dockerfile, parse

LAB = "container_exercise"
MOST_CHARACTERS = 20_000


def read(submission: Submission) -> Dockerfile:
    """The student's Dockerfile; fails the check while it is only TODOs."""
    text = submission.read_text(f"{LAB}/Dockerfile")
    if text is None:
        raise CheckFailed(f"{LAB}/Dockerfile is missing", "copy the template back from the course")
    # Nobody waits for a Dockerfile of megabytes.
    require(len(text) <= MOST_CHARACTERS, f"the Dockerfile has {len(text)} characters", f"{MOST_CHARACTERS} are plenty")
    dockerfile = parse(text)
    if dockerfile is None:
        raise CheckFailed("the Dockerfile has no FROM yet", f"complete the TODOs in labs/{LAB}/Dockerfile")
    return dockerfile


def requirements_of(submission: Submission) -> str:
    """The student's requirements.txt, or as much of it as anybody reads; empty if there is none."""
    return (submission.read_text(f"{LAB}/requirements.txt") or "")[:MOST_CHARACTERS]
