"""Options, settings and files of an instructor that a run does not use. Not for decisions (`unknown_names.py`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from gradebook.grading import class_summary, excused, held_back
from gradebook.grading.description import ClassRequest
from gradebook.grading.manual_grading import FOLDER as MANUAL
from gradebook.grading.manual_grading import reports
from gradebook.results import Student
from gradebook.settings import GitSettings, Settings
from gradebook.text_files import some
from gradebox.run import overrides


def notices(request: ClassRequest, settings: Settings, students: Sequence[Student]) -> tuple[str, ...]:
    """What an instructor should know, a line each."""
    return (
        *_of_repositories(request, settings, students),
        *_stray(request, settings),
        *_nothing_again(request, students),
    )


def _of_repositories(request: ClassRequest, settings: Settings, students: Sequence[Student]) -> Iterator[str]:
    # What was refused, or could not be fetched, may be a repository.
    unknown = ("refused", "undecided", "could_not_fetch", "no_repository")
    if request.submissions is None or any(student.commit or student.status in unknown for student in students):
        return
    if request.commit:
        yield f"--commit {request.commit} has no effect: none of these is a repository"
    if settings.git != GitSettings():
        yield "[git] has no effect: none of these is a repository"


def _stray(request: ClassRequest, settings: Settings) -> Iterator[str]:
    """Files of decisions in a folder where nothing reads them."""
    beside = (request.configuration or Path("class.toml")).resolve().parent
    read = class_summary.overrides_file(settings, request.out).resolve()
    for folder in dict.fromkeys((request.out.resolve(), beside)):
        path = folder / overrides.DEFAULT_FILE
        if path.is_file() and path != read:
            yield f'{path} is not read, but {read}: put the entries there, or write overrides = "{path}" in class.toml'
    of_reports = request.out / MANUAL / reports.FILE
    if of_reports.is_file() and not settings.by_hand.reports:
        yield f"{of_reports} does not count, because class.toml does not say reports = true in [by_hand]"
    for name in (excused.FILE, held_back.FILE):
        if beside != request.out.resolve() and (beside / name).is_file():
            yield f"{beside / name} is not read: its place is {request.out / name}"


def _nothing_again(request: ClassRequest, students: Sequence[Student]) -> Iterator[str]:
    """Who is to be graded again and has nothing that could be."""
    known = {name: student for student in students for name in (student.student, student.name)}
    names = [name for name in request.regrade if name in known and known[name].content is None]
    if names:
        yield f"--regrade has no effect for {some(names)}: there is no submission"
