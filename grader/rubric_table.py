"""The rubric's points and hours for pages that state them, so that nobody writes them twice (`make generated`).

A page says where: `<!-- points: lab1 -->` (the checks of a lab) or `<!-- points: all -->` (the labs of the course), and
`<!-- end of points -->` below; `<!-- hours -->` and `<!-- end of hours -->` (the time that each lab takes);
`<!-- reports -->` and `<!-- end of reports -->` (how people grade the report of each lab); `<!-- evidence -->` and
`<!-- end of evidence -->` (what checks judge by); `<!-- forgeable: nobody -->` and `<!-- end of forgeable -->` (checks
whose evidence a submission could write, by who notices it). A hand-out in `solutions/` says `<!-- checks: 2.1 -->` (a
task) or `<!-- checks: container.run -->` (a criterion), and `<!-- end of checks -->`.
Not for grading: `rubric.py` reads the rubric, `grade.py` counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal

from gradebook.grading.manual_grading import ready
from gradebox.course import hints
from gradebox.course.course import Course
from gradebox.course.evidence import EVIDENCE
from gradebox.course.rubric import Check, Hours, Lab
from grader import course

PAGES = (
    "README.md", "docs/student.md", "docs/report-criteria.md", "docs/threat-model.md",
    "docs/threat-model-evidence.md", "grader/release/templates/README.md",
)  # fmt: skip
"""Those with marks, besides the lessons in `docs/labs/`."""
_MARKED = re.compile(r"(<!-- points: (\w+) -->\n).*?(<!-- end of points -->)", re.DOTALL)
_REPORTS = re.compile(r"(<!-- reports -->\n).*?(<!-- end of reports -->)", re.DOTALL)
_EVIDENCE = re.compile(r"(<!-- evidence -->\n).*?(<!-- end of evidence -->)", re.DOTALL)
_FORGEABLE = re.compile(r"(<!-- forgeable: (\w+) -->\n).*?(<!-- end of forgeable -->)", re.DOTALL)
_CHECKS = re.compile(r"(<!-- checks: ([\w.]+) -->\n).*?(<!-- end of checks -->)", re.DOTALL)
_HOURS = re.compile(r"(<!-- hours -->\n).*?(<!-- end of hours -->)", re.DOTALL)


def with_points(page: str) -> str:
    """The Markdown page with every marked place filled in.

    Raises:
        KeyError: for a mark that names neither a lab, nor an exercise, nor `all`.
    """
    page = _MARKED.sub(lambda match: f"{match[1]}\n{_table(match[2])}\n\n{match[3]}", page)
    page = _REPORTS.sub(lambda match: f"{match[1]}\n{_reports(course())}\n\n{match[2]}", page)
    page = _EVIDENCE.sub(lambda match: f"{match[1]}\n{evidence_table(course())}\n\n{match[2]}", page)
    page = _FORGEABLE.sub(lambda match: f"{match[1]}\n{forgeable_table(course(), match[2])}\n\n{match[3]}", page)
    return _HOURS.sub(lambda match: f"{match[1]}\n{hours_table(course())}\n\n{match[2]}", page)


def with_checks(page: str) -> str:
    """A hand-out with the checks of every marked task: their titles, which are requirements, and points.

    Raises:
        KeyError: for a mark that names neither a task with checks nor a criterion.
    """
    return _CHECKS.sub(lambda match: f"{match[1]}\n{_requirements(course(), match[2])}\n\n{match[3]}", page)


def _requirements(of: Course, name: str) -> str:
    """A list of what the grader checks for one task or criterion; checks of several criteria may share a title."""
    tasks, points = hints.load(of), dict[str, Decimal]()
    for lab in of.all_labs:
        titles = of.titles([lab])
        for criterion in lab.criteria:
            for check in criterion.checks:
                if name in (criterion.id, tasks[check.id].task):
                    points[titles[check.id]] = points.get(titles[check.id], Decimal(0)) + check.points
    if not points:
        raise KeyError(f"no check belongs to {name}")
    total = sum(points.values(), Decimal(0))
    rows = (f"- {title} ({_number(value)})" for title, value in points.items())
    return "\n".join(
        [f"Requirements that the grader checks ({_number(total)} {'point' if total == 1 else 'points'}):", "", *rows]
    )


def hours_table(of: Course) -> str:
    """The hours of each lab, their sum, and the total that the course's assignment states; empty without any."""
    known = [(lab, lab.hours) for lab in of.labs if lab.hours is not None]
    if not known:
        return ""
    rows = ["| lab | hours | points |", "|---|---:|---:|"]
    rows += [f"| {lab.number} {lab.title} | {hours.in_words} | {_number(lab.points)} |" for lab, hours in known]
    total = Hours(
        sum((hours.least for _, hours in known), Decimal(0)), sum((hours.most for _, hours in known), Decimal(0))
    )
    rows.append(f"| all {len(known)} | {total.in_words} | {_number(of.rubric.points)} |")
    return "\n".join([*rows, "", _in_all(total, of.hours)]).rstrip()


def evidence_table(of: Course) -> str:
    """How many checks of each lab judge by what."""
    rows = [
        f"| lab | checks | {' | '.join(EVIDENCE)} | points that rest on notes alone |",
        f"|---|---:|{'---:|' * len(EVIDENCE)}---:|",
    ]
    for lab in of.all_labs:
        checks = [check for criterion in lab.criteria for check in criterion.checks]
        counts = (sum(kind in check.evidence for check in checks) for kind in EVIDENCE)
        alone = sum((check.points for check in checks if check.evidence == ("notes",)), Decimal(0))
        rows.append(f"| {lab.id} | {len(checks)} | {' | '.join(map(str, counts))} | {_number(alone)} |")
    return "\n".join([*(f"- **{kind}**: {meaning}." for kind, meaning in EVIDENCE.items()), "", *rows])


def forgeable_table(of: Course, noticed_by: str) -> str:
    """The checks whose evidence a submission could write, by who notices it; those of one reason in one row."""
    by_reason: dict[str, list[Check]] = {}
    for check in (check for lab in of.all_labs for criterion in lab.criteria for check in criterion.checks):
        if check.forgery and check.noticed_by == noticed_by:
            by_reason.setdefault(check.forgery, []).append(check)
    total = sum((check.points for checks in by_reason.values() for check in checks), Decimal(0))
    rows = []
    for reason, checks in by_reason.items():
        names = "<br>".join(f"`{check.id}` ({_number(check.points)})" for check in checks)
        rows.append(f"| {names} | {reason} |")
    head = f"| checks (points, together {_number(total)}) | what a submission can do, and what notices it |"
    return "\n".join([head, "|---|---|", *rows])


def _reports(of: Course) -> str:
    """Each lab's criteria for its report, with the levels of each."""
    return "\n\n".join(block for lab in of.labs for block in _report(of, lab))


def _report(of: Course, lab: Lab) -> Iterator[str]:
    yield f"## Lab {lab.number}: {lab.title}"
    for part in ready.load(of, lab).part:
        rows = [f"| {_number(level.points)} | {level.text} |" for level in part.level]
        yield f"**{part.title}** ({_number(part.points)} points). {part.about}"
        yield "\n".join(["| points | the report |", "|---:|---|", *rows])


def _in_all(total: Hours, stated: Hours | None) -> str:
    """What to plan for where the assignment's total is not the sum of its labs."""
    text = "The hours are estimates from the assignment on which the labs are based."
    if stated is None or stated == total:
        return text
    text += f" The assignment states {stated.in_words} hours for all labs, but its hours for single labs add up to"
    text += f" {total.in_words}."
    least, most = max(total.least, stated.least), min(total.most, stated.most)
    return f"{text} Plan for {Hours(least, most).in_words} hours in all." if least <= most else text


def _table(name: str) -> str:
    if name == "all":
        return "\n".join(_labs(course().labs))
    return "\n".join(_checks({lab.id: lab for lab in course().all_labs}[name]))


def _labs(labs: tuple[Lab, ...]) -> Iterator[str]:
    yield "| lab | points | hours | criteria and points |"
    yield "|---|---:|---:|---|"
    for lab in labs:
        criteria = ", ".join(f"{_in_a_list(criterion.title)} {_number(criterion.points)}" for criterion in lab.criteria)
        hours = lab.hours.in_words if lab.hours else ""
        yield f"| [{lab.number} {lab.title}](docs/labs/{lab.id}.md) | {_number(lab.points)} | {hours} | {criteria} |"


def _checks(lab: Lab) -> Iterator[str]:
    titles = course().titles([lab])
    yield "| criterion | points | checks (points) |"
    yield "|---|---:|---|"
    for criterion in lab.criteria:
        checks = "<br>".join(f"• {titles[check.id]} ({_number(check.points)})" for check in criterion.checks)
        yield f"| **{criterion.title}** `{criterion.id}` | {_number(criterion.points)} | {checks} |"


def _in_a_list(title: str) -> str:
    """`Memory profiling` with a small letter; `AMP implementation` as it is."""
    return title if title[:2].isupper() else title[0].lower() + title[1:]


def _number(points: Decimal) -> str:
    return f"{points.normalize():f}"
