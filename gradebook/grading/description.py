"""What a class was asked, and its settings: of this request, or of the last run with what this request changes.

The gradebook keeps both as plain data, so that a later run finds them again. Not for reading `class.toml`
(`gradebook/settings.py`).
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from gradebook import settings
from gradebook.command_name import command
from gradebook.grading import class_summary, unknown_names
from gradebook.results import GradebookError
from gradebook.settings import Settings
from gradebook.store import Gradebook
from gradebox.course.course import Course
from gradebox.course.rubric import RubricError
from gradebox.sandbox.devices import DeviceError


@dataclass(frozen=True, kw_only=True)
class ClassRequest:
    """What `gpulabs class` was asked."""

    course: Course
    submissions: Path | None
    """None: those that the last run took in."""
    out: Path
    configuration: Path | None = None
    roster: Path | None = None
    overrides: Path | None = None
    labs: tuple[int, ...] | None = None
    device: str | None = None
    seed: int | None = None
    deadline: datetime | None = None
    commit: str | None = None
    jobs: int | None = None
    """Gradings at the same time; None: as many as this machine takes."""
    loads: Callable[[Path, Sequence[int]], None] | None = None
    """Raises where checks of the course's folder do not load; None: what grades says it of each submission."""
    elsewhere: bool = False  # other machines grade, which may have GPUs where this one has none
    regrade: tuple[str, ...] = ()
    """Criteria and students to be graded again."""


@contextlib.contextmanager
def of_file(description: Mapping[str, Any], is_there: bool = True) -> Iterator[None]:
    """Let a mistake that is found in here name the file of settings, if it `is_there`.

    Raises:
        GradebookError: there is one.
    """
    try:
        yield
    except (ValueError, RubricError, DeviceError) as error:
        raise GradebookError(f"{description['file']}: {error}" if is_there else str(error)) from None


def described(
    request: ClassRequest, gradebook: Gradebook, say: Callable[[str], None]
) -> tuple[Settings, dict[str, Any]]:
    """The class's settings and how to find them again; what the request says goes before what the file says.

    Raises:
        GradebookError: it asks for what decides how submissions are taken in, and names none.
        SettingsError: the file cannot be used.
    """
    if request.submissions is None:
        if request.configuration is None and (changed := class_summary.changed_file(gradebook.plan(), request.out)):
            say(f"note: {changed}")
        return _described_anew(request, gradebook)
    file = request.configuration or Path("class.toml")
    text = _text(file) if request.configuration else ""
    if not text and gradebook.seed is not None and (before := gradebook.plan().settings)["text"]:
        say(
            f"note: the last run was described by {before['file']}, this one by no file: its deadline, late rules "
            "and roster no longer count. Name it with --config, if they should"
        )
    described = settings.parse(text, file.resolve())
    described = replace(
        described,
        deadline=request.deadline or described.deadline,
        roster=request.roster or described.roster,
        overrides=request.overrides or described.overrides,
    )
    description = {
        "text": text,
        "file": str(file.resolve()),
        "deadline": request.deadline.isoformat() if request.deadline else "",
        "overrides": str(described.overrides.resolve()) if described.overrides else "",
        "roster": str(described.roster.resolve()) if described.roster else "",
        "submissions": str(request.submissions.resolve()),
        "contact": request.course.contact.stored(),
    }
    return described, description


def _described_anew(request: ClassRequest, gradebook: Gradebook) -> tuple[Settings, dict[str, Any]]:
    """The settings of the last run, with what this request changes of them: what does not need the submissions.

    Raises:
        GradebookError: it asks for what decides how submissions are taken in.
    """
    stored = gradebook.plan()
    before, description = class_summary.stored_settings(stored), dict(stored.settings)
    description["contact"] = request.course.contact.stored()
    place = description["submissions"]
    again = f"name the submissions too: {command()} class {shlex.quote(place)} --out ..."
    if not Path(place).exists():
        again = f"name the submissions too: {command()} class SUBMISSIONS --out ... ({place} is no longer there)"
    for option, value in (("--roster", request.roster), ("--commit", request.commit)):
        if value is not None:
            raise GradebookError(f"{option} decides how submissions are taken in, and none are: {again}")
    if (file := request.configuration) is not None:
        of_file = settings.parse(description["text"], Path(description["file"])).overrides
        now = settings.parse(_text(file), file.resolve())
        description |= {"text": _text(file), "file": str(file.resolve())}
        if now.deadline is not None:
            description["deadline"] = ""
        if now.overrides is not None:
            description["overrides"] = str(now.overrides.resolve())
        elif of_file is not None and description["overrides"] == str(of_file.resolve()):
            description["overrides"] = ""
    if request.deadline is not None:
        description["deadline"] = request.deadline.isoformat()
    if request.overrides is not None:
        description["overrides"] = str(request.overrides.resolve())
    after = class_summary.stored_settings(replace(stored, settings=description))
    if why := _needs_submissions(gradebook, before, after):
        raise GradebookError(f"{why} decides how submissions are taken in, and none are: {again}")
    return after, description


def _needs_submissions(gradebook: Gradebook, before: Settings, after: Settings) -> str:
    """Which change makes it necessary to take the submissions in once more; empty where none does."""
    known = gradebook.plan().settings.get("roster") or (before.roster and str(before.roster.resolve()))
    if after.roster is not None and str(after.roster.resolve()) != known:
        return f"roster = {str(after.roster)!r}"
    if after.teams != before.teams:
        return "teams"
    if (after.times_of_files, after.times) != (before.times_of_files, before.times):
        return "submitted"
    if after.git != before.git:
        return "[git]"
    if (after.limits.files, after.limits.bytes) != (before.limits.files, before.limits.bytes):
        return "files or mebibytes of [limits]"
    directory = class_summary.directory(gradebook)
    before, after = (unknown_names.with_extensions(each, directory, strict=False) for each in (before, after))
    for student in gradebook.students():
        moved = before.in_time_until(student.student) != after.in_time_until(student.student)
        if moved and student.commit and after.git.only_in_time:
            return f"another deadline for the repository of {student.student}"
    return ""


def _text(file: Path) -> str:
    """A file of settings as text. Raises `SettingsError`."""
    settings.load(file)
    return file.read_text(encoding="utf-8-sig")
