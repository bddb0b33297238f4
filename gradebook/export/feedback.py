"""One student's feedback: the page of `gradebox/report` with penalty and overrides, and the same in Markdown.

Notes of the sandbox are for the instructor and left out. Texts of a submission, such as messages of its
exceptions, are in code blocks, where Markdown and HTML mean nothing.
"""

from __future__ import annotations

import html as html_escape
from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import datetime
from decimal import Decimal
from pathlib import Path

from gradebook.export import by_hand
from gradebook.export.markdown import code_block, escaped
from gradebook.export.view import Line
from gradebook.lateness import deduction
from gradebox.common.texts import printable, sentence
from gradebox.course.contact import NOBODY, Contact
from gradebox.report import failing, html
from gradebox.report.document import duration, points
from gradebox.run.grade import CheckResult, CriterionResult, Grade, Outcome

_STATUS = {
    "waiting": "Your submission has not been graded yet.",
    "missing": "No submission of yours was found.",
    "refused": "Your submission could not be accepted.",
    "could_not_grade": "Your submission could not be graded yet; the course staff knows.",
    "could_not_fetch": "Your repository could not be fetched; the course staff knows, and this costs no points.",
    "no_repository": "The course found no repository of yours at the place that it expects. Send its address to the "
    "course staff.",
    "excused": "You are excused: nothing of this counts, neither for you nor against you.",
}
_WITHHELD = (
    "No submission has been found under your name. Some submissions match nobody in the class, and the course staff is "
    "looking for their owners. Send them the name that you submitted under."
)
_WAITS = "There is no score yet: the course staff has to decide whether this is all of your work."
_NO_SCORE = "no score yet"
_HELD_BACK = "Your result is not released yet. The course staff will contact you; you need not do anything."
_ZERO = "So far this counts 0 points."
_INSTEAD = "An instructor gave points in its place."


def page(line: Line, title: str, *, notes: bool = False, contact: Contact = NOBODY) -> str:
    """One student's page as self-contained HTML."""
    line = line.as_exported()
    if line.grade is None or line.given_instead or line.by_hand_alone:
        return _short_page(line, title, contact)
    return html.render(
        replace(line.grade, seconds=0.0),  # else each regrade would be other feedback, and be sent again
        title=title,
        student=line.label,
        remarks=remarks(line),
        more=by_hand.section(line),
        late=line.result.late,
        reviewed=_reviewed(line, line.grade),
        notes=notes,
        verdict=_NO_SCORE if line.waits else "",
        contact=contact,
    )


def markdown(line: Line, title: str, *, contact: Contact = NOBODY) -> str:
    """One student's feedback as Markdown."""
    line = line.as_exported()
    if line.grade is None or line.given_instead or line.by_hand_alone:
        total = f": {_given_in_all(line, line.grade)}" if line.grade else ""
        blocks = [
            f"# {escaped(title)}{total}",
            *map(escaped, _short_texts(line)),
            *by_hand.markdown(line),
            *help_blocks(contact),
        ]
        return printable("\n\n".join(blocks) + "\n")
    late = line.result.late
    score = line.grade.score if line.checks_score is None else line.checks_score
    head = [f"Student: {escaped(line.label)}"] if line.label else []
    head += map(escaped, remarks(line))
    if late is not None:
        rule = f" ({escaped(late.rule)})" if late.rule else ""
        head.append(
            f"Handed in {duration(late.seconds_late)} late: {points(late.points)} of the {points(line.grade.score)} "
            f"points that were earned {'is' if late.points == 1 else 'are'} deducted{rule}."
        )
    text = grade_markdown(
        line.grade, title, score=score, passed=line.passed, head=head, reviewed=_reviewed(line, line.grade),
        verdict=_NO_SCORE if line.waits else "",
    )  # fmt: skip
    return printable("\n\n".join([text.rstrip("\n"), *by_hand.markdown(line), *help_blocks(contact)]) + "\n")


def help_blocks(contact: Contact) -> Iterator[str]:
    """Where to get help, as blocks of Markdown."""
    if contact:
        yield "## Getting help"
        yield "\n".join(f"- {label}: {escaped(text)}" for label, text in contact.entries())


def remarks(line: Line) -> tuple[str, ...]:
    """What a student should know of what was graded: which commit, what came too late to count, what people gave."""
    if line.given_instead:
        return (*_why_not_graded(line), _INSTEAD, *_together(line), *by_hand.remarks(line))
    commit, time = line.result.commit, line.result.submitted_at
    at = f" of {_moment(time)}" if time else ""
    graded = (*((f"Graded: commit {commit[:10]}{at}.",) if commit else ()), *_when(line))
    noted = (f"Note: {line.result.reason}.",) if line.result.reason else ()
    waits = (_WAITS,) if line.waits else ()
    return graded + _together(line) + noted + waits + by_hand.remarks(line)


def _moment(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M %Z}"


def _when(line: Line) -> tuple[str, ...]:
    """When it was handed in and until when it could be, as far as the class knows."""
    time, deadline = line.result.submitted_at, line.result.deadline
    due = f"Deadline: {_moment(deadline)}." if deadline else ""
    handed_in = f"Handed in: {_moment(time)}." if time and not line.result.commit else ""
    return tuple(filter(None, [" ".join(filter(None, [handed_in, due]))]))


def _together(line: Line) -> tuple[str, ...]:
    """Whose work it is as well, where several handed it in together."""
    if not line.mates:
        return ()
    team = f" of the team {line.result.team}" if line.result.team else ""
    return (f"The work{team or ' of several'}: it is graded once, and counts for {', '.join(line.mates)} as well.",)


def grade_markdown(
    grade: Grade,
    title: str,
    *,
    score: Decimal | None = None,
    passed: bool | None = None,
    head: Collection[str] = (),
    reviewed: Collection[str] = (),
    verdict: str = "",
) -> str:
    """A grade as Markdown: the result, what to fix, a table of criteria, and every check that did not pass.

    Args:
        grade: the grade.
        title: the heading.
        score: instead of the grade's own, where something was deducted.
        passed: with that score.
        head: paragraphs above the table.
        reviewed: checks that needed review, and that an instructor has accepted as they are.
        verdict: what is said instead of whether it is passed.
    """
    verdict = verdict or ("passed" if (grade.passed if passed is None else passed) else "not passed")
    score = grade.score if score is None else score
    blocks = [
        f"# {escaped(title)}: {points(score)} of {points(grade.max_score)} points, {verdict}",
        *head,
        f"Pass at {points(grade.pass_score)} points.",
        *_to_fix(grade),
        "\n".join(_table(grade)),
    ]
    if undecided := [check for check in grade.needs_review if check.id not in reviewed]:
        count = len(undecided)
        blocks.append(
            f"**Provisional:** {count} check{'' if count == 1 else 's'} could not be decided and "
            f"score{'s' if count == 1 else ''} 0 until an instructor has looked."
        )
    for lab in grade.labs:
        for criterion in lab.criteria:
            blocks += _problems(grade, criterion, reviewed)
    blocks.append(f"Graded on {escaped(grade.device)} with seed {grade.seed}.")
    return printable("\n\n".join(blocks) + "\n")


def summary(line: Line) -> tuple[str, ...]:
    """A grade in a few lines of plain text, for the comment column of a gradebook."""
    if line.grade is None:
        return _without_grade(line)
    if line.given_instead:
        return (*_why_not_graded(line), _INSTEAD, *_given(line.grade), *by_hand.summary(line))
    texts = []
    if line.result.late is not None:
        late = line.result.late
        texts.append(f"{duration(late.seconds_late)} late: {deduction(late.points)}.")
    if line.open:
        texts.append("Provisional: some of it is still to be looked at.")
    if line.result.reason:
        texts.append(f"Note: {line.result.reason}.")
    for lab in line.grade.labs:
        for criterion in lab.criteria:
            if criterion.available:
                texts.append(_one_line(criterion))
    return (*texts, *by_hand.summary(line))


def summary_html(line: Line) -> str:
    """`summary` as one line of HTML, because Moodle takes comments for HTML."""
    return "<br>".join(html_escape.escape(text, quote=False) for text in summary(line))


def _reviewed(line: Line, grade: Grade) -> frozenset[str]:
    """Checks that needed review and that nobody has to look at any more."""
    still_open = {item.key for item in line.open}
    return frozenset(check.id for check in grade.needs_review if check.id not in still_open)


def _without_grade(line: Line) -> tuple[str, ...]:
    what, *reason = _why_not_graded(line)
    return (f"{line.label}: {what}", *reason)


def _why_not_graded(line: Line) -> tuple[str, ...]:
    """What became of what was handed in, and why where that is the student's to know."""
    status, result = line.result.status, line.result
    if line.is_held_back:
        return (_HELD_BACK,)
    if status == "missing" and result.withheld and not line.decided:
        return (_WITHHELD,)
    reason = (f"Reason: {result.reason}.",) if status in ("refused", "excused") and result.reason else ()
    zero = (_ZERO,) if status in ("missing", "refused") and line.decided and not result.score else ()
    return (_STATUS[status], *reason, *zero)


def _given(grade: Grade) -> tuple[str, ...]:
    """What an instructor gave where nothing could be graded, a line for each criterion."""
    return tuple(
        f"Lab {lab.id.removeprefix('lab')}: {_one_line(criterion)}"
        for lab in grade.labs
        for criterion in lab.criteria
        if criterion.override is not None
    )


def _given_in_all(line: Line, grade: Grade) -> str:
    if line.by_hand_alone:
        return by_hand.total(line)
    verdict = "passed" if line.passed else "not passed"
    return f"{points(grade.score)} of {points(grade.max_score)} points, {verdict}"


def _short_texts(line: Line) -> tuple[str, ...]:
    """All that there is to say where nothing ran, a paragraph each."""
    if line.grade is None:
        return _without_grade(line)
    if line.by_hand_alone:
        return (f"Student: {line.label}", *remarks(line))
    what, *more = remarks(line)
    rest = f"Everything else has 0 points. Pass at {points(line.grade.pass_score)} points."
    return (f"{line.label}: {what}", *more, *_given(line.grade), rest)


def _short_page(line: Line, title: str, contact: Contact) -> str:
    template = html.environment(Path(__file__).parent).get_template("feedback.html.jinja")
    head = _given_in_all(line, line.grade) if line.grade else "no grade"
    return template.render(
        title=title,
        head=head,
        texts=_short_texts(line),
        more=by_hand.section(line),
        contact=html.contact_section(contact),
    )


def _to_fix(grade: Grade) -> Iterator[str]:
    """The mistakes, those that cost most first, and the tasks to begin with."""
    mistakes, tasks = failing.mistakes(grade), failing.open_tasks(grade)
    if not mistakes and not tasks:
        return
    yield "## What to fix"
    rows = [
        f"- **{escaped(mistake.title)}**: {points(mistake.points)} point{'' if mistake.points == 1 else 's'}"
        + (f", seen in {mistake.count} checks" if mistake.count > 1 else "")
        for mistake in mistakes
    ]
    rows += [f"- Lab {task.lab.id.removeprefix('lab')}: {escaped(task.begin)}" for task in tasks]
    yield "\n".join(rows)


def _table(grade: Grade) -> Iterator[str]:
    yield "| Criterion | Points | Checks passed |"
    yield "|---|---:|---:|"
    for lab in grade.labs:
        for criterion in lab.criteria:
            if criterion.available:
                passed = sum(check.outcome is Outcome.PASSED for check in criterion.checks)
                name = f"Lab {lab.id.removeprefix('lab')}: {escaped(criterion.title)}"
                score = f"{points(criterion.points)} / {points(criterion.max_points)}"
                yield f"| {name} | {score} | {passed} / {len(criterion.checks)} |"


def _problems(grade: Grade, criterion: CriterionResult, reviewed: Collection[str]) -> Iterator[str]:
    failed = [check for check in criterion.checks if check.outcome is not Outcome.PASSED]
    if not failed and criterion.override is None:
        return
    yield f"## {escaped(criterion.title)}: {points(criterion.points)} of {points(criterion.max_points)}"
    if criterion.override is not None:
        automatic = points(criterion.override.automatic_points)
        yield f"Given by the instructor instead of {automatic}: {escaped(criterion.override.reason)}"
    known = {check.id: check for check in grade.checks}
    for check in failed:
        if check.outcome is Outcome.BLOCKED and (cause := known.get(check.blocked_by)) is not None:
            # The reason is at the check that it waits for, once for all that wait.
            waits = f"waits for {escaped(cause.name)} (`{cause.id}`)"
            score = f"{points(check.points)} of {points(check.max_points)}"
            yield f"- {escaped(check.name)} (`{check.id}`): **{waits}**, {score}"
        else:
            yield _problem(check, grade.follows(check), accepted=check.id in reviewed)
            if held := [other for other in grade.checks if other.blocked_by == check.id]:
                names = ", ".join(f"{escaped(other.name)} (`{other.id}`)" for other in held)
                yield f"  Waiting for this check: {names}"


def _problem(check: CheckResult, follows: str, *, accepted: bool) -> str:
    state = check.outcome.value.replace("_", " ")
    name = f"{escaped(check.title)} (`{check.id}`)" if check.title else f"`{check.id}`"
    lines = [f"- {name}: **{state}**, {points(check.points)} of {points(check.max_points)}"]
    if follows:
        lines.append(f"  {escaped(sentence(follows))}")
    if accepted:
        lines.append("  An instructor has looked at this; the points stand.")
    if check.message:
        lines += ["", *code_block(check.message)]
    if check.hint:
        lines += ["", f"  Where to look: {escaped(check.hint)}"]
    return "\n".join(lines)


def _one_line(criterion: CriterionResult) -> str:
    text = f"{criterion.title}: {points(criterion.points)} / {points(criterion.max_points)}"
    if criterion.override is not None:
        return f"{text}. By the instructor: {criterion.override.reason}"
    problem = criterion.first_problem
    return text if problem is None else f"{text}. {problem.name}: {' '.join(problem.message.split())}"
