"""Advice in words for a terminal: which task, why, where, where it is taught, how to test just this, and hints."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path

from gradebox.common.configuration import own_subcommand
from gradebox.course.course import Course
from gradebox.course.hints import STEP_NAMES, Hint
from gradebox.report.document import points
from gradebox.report.next_step.advice import Advice, Kind, Step
from gradebox.report.next_step.latest_outcomes import Known
from gradebox.report.next_step.tasks import line_of

_WIDTH = 110


def lines(
    advice: Advice, hints: Mapping[str, Hint], course: Course, *, steps: int, options: str = "", chosen: str = ""
) -> Iterator[str]:
    """The advice, line by line.

    Args:
        advice: what to do.
        hints: of all checks.
        course: says where its lessons are.
        steps: how many steps of the hint to show, 0 to 3.
        options: that every command shown needs, with a space in front: " --report out".
        chosen: which labs were asked about, likewise: " --lab sharding"; empty: all of the course.
    """
    if advice.remark:
        yield f"note: {advice.remark}"
        yield ""
    step = advice.step
    match step.kind:
        case Kind.DONE if advice.undecided:
            count = len(advice.undecided)
            yield f"Nothing fails; of {count} check{'' if count == 1 else 's'} a person has to look at the result."
            yield from _help(course)
            return
        case Kind.DONE:
            yield "Everything that was graded passes. Well done."
            if chosen:
                yield f"Of the other labs: {_typed(course, 'next')}{options}"
            others = [exercise.labs[0] for exercise in course.exercises if exercise.labs[0].id not in chosen]
            if course.guide is not None and course.guide.beyond and others:
                yield f"Beyond the points, {course.guide.beyond}:"
                for lab in others:
                    yield f"  {_typed(course, 'grade')} --lab {lab.id:12} {lab.title}"
            return
        case Kind.GRADE:
            yield "Nothing is open in the code. Next: a grade, to see what it does."
            yield f"  grade   {_typed(course, 'grade')}{options}{chosen}"
            return
        case Kind.REPAIR_FILE:
            broken = step.broken
            assert broken is not None
            yield "Next: fix a file that Python cannot read; until then nothing that needs it can earn a point."
            yield f"  where   {shown(broken.path)}:{broken.line}: {broken.message}"
            yield f"  test    python -m py_compile {shown(broken.path)}"
            return
        case Kind.FIX:
            written = " although its code is written" if step.path is not None and step.path.suffix == ".py" else ""
            yield f"Next: {_named(step.check, course)}, a check that fails{written}."
        case Kind.WRITE:
            yield f"Next: {_title(step)}"
    yield from _body(step, hints, course, options)
    yield from hint_lines(step.check, hints, course, steps=steps, options=options)
    yield from _help(course)
    yield from _instead(advice, course)


def _body(step: Step, hints: Mapping[str, Hint], course: Course, options: str) -> Iterator[str]:
    yield from _folded("  why     ", _why(step))
    if step.known is not None:
        yield from _seen(step.known)
    if step.open:
        first, *others = step.open
        yield f"  where   {shown(first.path)}:{first.line}  {first.name}{_about(first.lines)}"
        for function in others:
            yield f"          {shown(function.path)}:{function.line}  {function.name}{_about(function.lines)}"
    elif step.path is not None:
        yield f"  where   {_place(step.path, hints.get(step.check))}"
    if step.task is not None and step.task.readme is not None:
        yield f"  task    {shown(step.task.readme)}:{step.task.line}"
    if places := _lesson(step, course):
        yield f"  lesson  {places}"
    criterion = step.check.rpartition(".")[0]
    if step.lab is not None:
        chosen = f"--criterion {criterion}" if criterion else f"--lab {step.lab.option}"
        yield f"  test    {_typed(course, 'watch')}{options.partition(' --report ')[0]} {chosen}"
        yield f"          {_typed(course, 'grade')}{options} {chosen}"
        yield f"          {_typed(course, 'next')} --grade{options} --lab {step.lab.option}"


def _help(course: Course) -> Iterator[str]:
    """Where to ask a person; nothing if the course names nobody."""
    if course.contact:
        yield from _folded("  ask     ", course.contact.line())


def _title(step: Step) -> str:
    assert step.task is not None
    if step.task.title:
        return f"Task {step.task.number}, {step.task.title}"
    return f"Task {step.task.number}" + (f", {step.open[0].name}" if step.open else "")


def _named(check: str, course: Course) -> str:
    return f"'{course.title_of(check)}' ({check})"


def _why(step: Step) -> str:
    worth = _in_words(step.points)
    if step.kind is Kind.FIX and step.path is not None and step.path.suffix != ".py":  # nobody knows what is written
        return f"{worth}; it is the first that fails."
    if step.kind is Kind.FIX:
        return f"{worth} for one mistake: nothing is closer to being earned."
    if not step.points:
        return "it is open."
    if step.known is not None:
        return f"up to {worth}; it is the first that is not done."
    about = f" for about {step.lines} line{'' if step.lines == 1 else 's'}" if step.lines else ""
    return f"up to {worth}{about}; it is the first that is open."


def _seen(known: Known) -> Iterator[str]:
    for number, line in enumerate(known.message.splitlines()):
        yield from _folded("  seen    " if number == 0 else "          ", line)
    if known.hint:
        yield from _folded("          → ", known.hint)


def hint_lines(
    check: str, hints: Mapping[str, Hint], course: Course, *, steps: int, options: str = ""
) -> Iterator[str]:
    """The first `steps` steps of a check's hint, and how to see one more."""
    hint = hints.get(check)
    if hint is None:
        return
    if steps:
        yield ""
        yield f"Hints for {_named(check, course)}:"
        for number, text in enumerate(hint.steps[:steps]):
            yield from _folded(f"  {number + 1}. ", f"{STEP_NAMES[number]}: {text}")
    if steps < len(hint.steps):
        command = f"{_typed(course, 'next')}{options} --check {check} --hints {steps + 1}"
        yield f"  {'hint' if not steps else 'more'}    {command}"


def _instead(advice: Advice, course: Course) -> Iterator[str]:
    rows = []
    if advice.quick is not None:
        function, worth = advice.quick
        rows.append(
            f"{function.name} ({shown(function.path)}:{function.line}): {_in_words(worth)} by itself for about "
            f"{function.lines} line{'' if function.lines == 1 else 's'}"
        )
    for step in advice.instead:
        name = _named(step.check, course) if step.kind is Kind.FIX else _title(step)
        for_it = f": {'' if step.kind is Kind.FIX else 'up to '}{_in_words(step.points)}" if step.points else ""
        rows.append(f"{name}{for_it}")
    if rows:
        yield ""
        yield "Or instead:"
        yield from (f"  {row}" for row in rows)


def _place(path: Path, hint: Hint | None) -> str:
    """The file, the line and the functions of it that the check runs."""
    names = [place.partition(" ")[2] for place in hint.write if place.startswith(f"{path.name} ")] if hint else []
    line = line_of(path, names[0]) if names else None
    return shown(path) + (f":{line}" if line else "") + (f"  {', '.join(names)}" if names else "")


def _about(count: int) -> str:
    return f" (about {count} line{'' if count == 1 else 's'})" if count else ""


def _lesson(step: Step, course: Course) -> str:
    """The notebook and the lesson page of a lab, those that are there."""
    if step.lab is None or course.guide is None:
        return ""
    places = [course.folder.parent / place.format(lab=step.lab.id) for place in course.guide.lessons]
    there = [path for path in places if path.is_file()]
    names = [shown(path) for path in there]
    if names and step.task is not None and _has_section(there[0], step.task.number):
        names[0] += f" (the part on Task {step.task.number})"
    return ", ".join(names)


def _has_section(page: Path, task: str) -> bool:
    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return re.search(rf"[Tt]ask {re.escape(task)}\b", text) is not None


def _folded(start: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    ) or [start]


def shown(path: Path) -> str:
    """A path as one would type it here."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _in_words(value: Decimal) -> str:
    return f"{points(value)} point{'' if value == 1 else 's'}"


def _typed(course: Course, subcommand: str) -> str:
    return own_subcommand(course.command, course.folder, subcommand)
