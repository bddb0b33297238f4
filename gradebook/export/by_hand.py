"""What people gave, and what students asked and were answered, as parts of a student's feedback.

Only what is released is shown. Not for the page in which people grade, which is a plug-in.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

from markupsafe import Markup

from gradebook.export.markdown import code_block, escaped
from gradebook.export.view import Line
from gradebook.results import ManualCriterion, ManualResult, RegradeRequest, Remark, ReportResult
from gradebox.common.texts import printable
from gradebox.report import html
from gradebox.report.document import points


def shown(line: Line) -> ManualResult | None:
    """What people gave, if the student may see it and there was something to read."""
    manual = line.result.manual
    return manual if manual is not None and manual.released and manual.criteria and line.grade is not None else None


def reports(line: Line) -> tuple[ReportResult, ...]:
    """The reports whose points people gave, and that the student may see."""
    return tuple(report for report in line.result.reports if report.counts)


def total(line: Line) -> str:
    """The score of work that people alone grade, in words."""
    score = line.result.score
    return "not graded yet" if score is None else f"{points(score)} of {points(line.most)} points"


def remarks(line: Line) -> tuple[str, ...]:
    """How points of people and what is excused enter what counts, a sentence each."""
    result, manual = line.result, shown(line)
    sentences = [
        f"You are excused from lab {excuse.lab} ({excuse.reason}): it does not count, and the rest counts for the whole"
        for excuse in result.excused
        if excuse.lab is not None and line.grade is not None
    ]
    sentences = [f"{text}." for text in sentences]
    if line.by_hand_alone:
        if manual is None or not manual.complete:
            sentences.append("People grade this, and that is not finished, so there is no score yet.")
    elif manual is not None and not manual.complete:
        sentences.append(
            f"These are the points of checks alone: {manual.title} is graded by people, and that is not finished, so "
            "there is no score yet."
        )
    elif manual is not None and result.score is not None:
        sentences.append(
            f"{manual.title}, graded by people: {points(manual.points)} of {points(manual.max_points)} points. "
            f"Together {points(result.score)} of {points(line.most)}. Whether you pass, the points of checks decide."
        )
    elif sentences and result.score is not None and line.grade is not None and line.checks_score is not None:
        own = f"{points(line.checks_score)} of {points(line.grade.max_score)} points"
        sentences.append(f"Your {own} count as {points(result.score)} of {points(line.most)}.")
    return (*sentences, *_of_reports(line))


def _of_reports(line: Line) -> Iterator[str]:
    """Whose the points of reports are, and which of them are missing."""
    waiting = [report for report in line.result.reports if not report.counts]
    if waiting:
        labs = ", ".join(str(report.lab) for report in waiting)
        which = f"report of lab {labs} is" if len(waiting) == 1 else f"reports of labs {labs} are"
        yield f"The {which} graded by people, and that is not finished."
        worth = points(sum((report.worth for report in waiting), Decimal(0)))
        verdict = "" if line.passed else ", and whether you pass is open"
        is_missing = "is" if worth == "1" else "are"
        yield f"{worth} of the points {is_missing} missing, so there is no score yet{verdict}."
    for report in reports(line):
        yield (
            f"The report of lab {report.lab} was graded by people: {points(report.given)} of {points(report.most)} "
            f"count as {points(report.points)} of {points(report.worth)} points of the lab, and are in the score."
        )


def section(line: Line) -> Markup:
    """The part of the student's page."""
    template = html.environment(Path(__file__).parent).get_template("manual_grading.html.jinja")
    regrade_requests = line.result.requests
    names = _names(line, regrade_requests)
    return Markup(
        template.render(
            manual=shown(line),
            reports=line.result.reports,
            notes=line.result.line_notes,
            requests=regrade_requests,
            names=names,
        )
    )


def markdown(line: Line) -> Iterator[str]:
    """The same as blocks of Markdown."""
    if (manual := shown(line)) is not None:
        total = f"{points(manual.points)} of {points(manual.max_points)}" if manual.complete else "not finished"
        yield f"## {escaped(manual.title)}, graded by people: {total}"
        for criterion in manual.criteria:
            most = points(criterion.max_points)
            score = _open(criterion) if criterion.points is None else f"{points(criterion.points)} of {most}"
            yield f"- {escaped(criterion.title)}: **{score}**"
            for remark in criterion.remarks:
                yield "\n".join(_quoted(_said(remark)))
    for report in line.result.reports:
        yield from _report(report)
    if line.result.line_notes:
        yield "## Comments on your code"
    for note in line.result.line_notes:
        where = f"line {note.line}" if note.line is not None else "a line that is not there any more"
        yield "\n".join([f"- `{_plain_name(note.file)}`, {where}:", *_quoted(note.code), *_quoted(note.text)])
    names = _names(line, line.result.requests)
    for request in line.result.requests:
        about = f": {escaped(names[request.about])}" if names[request.about] else ""
        yield f"## You asked to look again{about}"
        yield "\n".join(_quoted(request.text))
        if request.answered_at is None:
            yield "**Not answered yet.**"
        else:
            yield "Answer:"
            yield "\n".join(_quoted(request.answer))


def _plain_name(file: str) -> str:
    """A path that ends no code span."""
    return printable(file, lines=False).replace("`", "'")


def _open(criterion: ManualCriterion) -> str:
    """What to say of a criterion without points."""
    if criterion.former is None:
        return "not graded yet"
    return f"not graded again yet; what you handed in before had {points(criterion.former)}"


def _report(report: ReportResult) -> Iterator[str]:
    """A report that people grade, as blocks of Markdown; without points, what they look at."""
    counts = report.counts
    total = f"{points(report.given)} of {points(report.most)}" if counts else "not finished"
    yield f"## {escaped(report.title)}, graded by people: {total}"
    for criterion in report.criteria:
        score = f"{points(criterion.points)} of" if counts and criterion.points is not None else "up to"
        before = f" ({_open(criterion)})" if report.released and criterion.former is not None else ""
        title = f"- {escaped(criterion.title)}: **{score} {points(criterion.max_points)}**{before}"
        yield f"{title}\n  {escaped(criterion.about)}".rstrip()
        for remark in criterion.remarks if counts or before else ():
            yield "\n".join(_quoted(_said(remark)))


def summary(line: Line) -> tuple[str, ...]:
    """A line of plain text for each criterion, and for each answer."""
    texts = []
    if (manual := shown(line)) is not None:
        for criterion in manual.criteria:
            score = _open(criterion) if criterion.points is None else points(criterion.points)
            said = " ".join(" ".join(_said(remark).split()) for remark in criterion.remarks)
            texts.append(f"{criterion.title}: {score} / {points(criterion.max_points)}. {said}".rstrip(" ."))
    for report in reports(line):
        for criterion in report.criteria:
            said = " ".join(" ".join(_said(remark).split()) for remark in criterion.remarks)
            score = points(criterion.points or Decimal(0))
            texts.append(f"{criterion.title}: {score} / {points(criterion.max_points)}. {said}".rstrip(" ."))
    texts += [
        f"You asked: {' '.join(request.text.split())} Answer: {' '.join(request.answer.split())}"
        for request in line.result.requests
        if request.answered_at is not None
    ]
    return tuple(texts)


def tests(line: Line) -> Iterator[dict[str, object]]:
    """A test of Gradescope's format for each criterion that has points."""
    manual = shown(line)
    for number, criterion in enumerate(manual.criteria if manual else (), start=1):
        if criterion.points is not None:
            yield {
                "name": f"{manual.title if manual else ''}: {criterion.title}",
                "number": f"H.{number}",
                "score": float(criterion.points),
                "max_score": float(criterion.max_points),
                "status": "passed" if criterion.points == criterion.max_points else "failed",
                "output": "\n".join(map(_said, criterion.remarks)),
                "tags": ["by hand"],
                "visibility": "visible",
            }

    for report in reports(line):
        # Their points are in the test of the check that they replace; a test without points adds none.
        for number, criterion in enumerate(report.criteria, start=1):
            score = f"{points(criterion.points or Decimal(0))} of {points(criterion.max_points)}"
            yield {
                "name": f"{report.title}: {criterion.title}",
                "number": f"R.{report.lab}.{number}",
                "output": "\n".join([f"{score} in the rubric of this report", *map(_said, criterion.remarks)]),
                "tags": ["by hand"],
                "visibility": "visible",
            }


def _said(remark: Remark) -> str:
    if not remark.points:
        return remark.text
    sign = "+" if remark.points > 0 else "-"
    return f"{sign}{points(abs(remark.points))} {remark.text}".rstrip()


def _quoted(text: str) -> list[str]:
    return code_block(printable(text))


def _names(line: Line, requests: tuple[RegradeRequest, ...]) -> dict[str, str]:
    """Titles of what requests are about, by id."""
    titles = (
        {criterion.id: criterion.title for lab in line.grade.labs for criterion in lab.criteria} if line.grade else {}
    )
    titles |= {f"manual.{criterion.id}": criterion.title for criterion in line.result.by_hand}
    return {request.about: titles.get(request.about, request.about) for request in requests}
