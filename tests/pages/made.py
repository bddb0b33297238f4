"""The pages that the course makes for people, each with everything on it that can stand there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import numpy as np

import grader
from cluster.acceptance import page as acceptance
from cluster.acceptance.records import Record
from gradebook.export import feedback, page, statistics, view
from gradebook.export.similarity import report as similarity
from gradebook.export.similarity.similarity import Pair, Passage
from gradebook.results import (
    ClassResult,
    LatePenalty,
    ManualCriterion,
    ManualResult,
    RegradeRequest,
    Remark,
    StudentResult,
)
from gradebox.course import hints
from gradebox.report import html
from gradebox.report.progress import Earlier, since
from gradebox.run.grade import CheckReport, Circumstances, Grade, IntegrityNote, Outcome, grade
from gradebox.run.overrides import Override
from gradebox.run.pictures import Picture, bars, curve, timeline
from tests.cluster import sound
from tests.gradebook.export import classes

ROWS = [
    ["host", 0.0, 5e-6, "aten::mm"],
    ["stream 0", 6e-6, 1e-3, "aten::mm"],
    ["stream 1", 2e-3, 1e-3, "nccl:all_reduce"],
]
AT = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)


def pictures() -> list[Picture]:
    """One of each kind."""
    candidates = [
        timeline([("yours", ROWS * 13), ("expected", ROWS)]),
        bars("peak_bytes of each stage", "MiB", [("forward", 356.0), ("zero_grad", 0.0)], [("forward", 2.0)]),
        curve("the losses", np.linspace(1, 2, 50), np.linspace(1, 2.5, 50)),
    ]
    return [picture for picture in candidates if picture is not None]


def a_grade(*, passed: bool = False, labs: str = "1,2,3,4,5") -> Grade:
    """All that a check can be, each in turn; or all of them passed."""
    course = grader.course()
    rubric, chosen = course.select(labs)
    drawn = itertools.cycle(pictures())
    reports: dict[str, CheckReport] = {}
    for lab in chosen:
        for criterion in lab.criteria:
            ids = [check.id for check in criterion.checks]
            for number, check in enumerate(ids):
                long = f"saw {'x' * 90} at benchmark.py:3, expected between 20.06 ms and 20.92 ms"
                kinds = (
                    CheckReport(Outcome.FAILED, long, "look at torch.cuda.max_memory_allocated()", cause="one",
                                belongs_to=check, picture=next(drawn)),
                    CheckReport(Outcome.FAILED, "saw 3, expected 4", cause="one", belongs_to=ids[0]),
                    CheckReport(Outcome.BLOCKED, "blocked", blocked_by=ids[0]),
                    CheckReport(Outcome.FAILED, "Task 1.2 is open: write it"),
                    CheckReport(Outcome.NEEDS_REVIEW, "no answer in time, and the machine was busy"),
                    CheckReport(Outcome.FAILED, "saw 5,\nexpected 6", f"{hints.POINTER}gpulabs next --check {check}"),
                )  # fmt: skip
                reports[check] = (
                    CheckReport(Outcome.PASSED)
                    if passed
                    else (*kinds, CheckReport(Outcome.PASSED))[number % (len(kinds) + 1)]
                )
    notes = (IntegrityNote("open", "/etc/passwd", "lab1_gpu_basics/benchmark.py:12", "lab1.benchmark.warmed_up"),)
    here = Circumstances(
        "labs", "ab" * 32, "virtual T4 (simulated)", True, "namespaces", 42, 3.21, () if passed else notes,
        () if passed else (Override("ada", "lab1.analysis", Decimal("4.5"), "right, in other units"),),
    )  # fmt: skip
    return grade(rubric, chosen, reports, here, course.titles(chosen))


def grade_page() -> str:
    now = a_grade()
    before = Earlier(
        {check.id: Outcome.FAILED if number % 7 else Outcome.PASSED for number, check in enumerate(now.checks)},
        {criterion.id: Decimal(1) for lab in now.labs for criterion in lab.criteria},
    )
    return html.render(
        now,
        progress=since(before, now),
        then="make next",
        hints=hints.load(grader.course()),
        late=LatePenalty(seconds_late=90_000.0, points=Decimal(2), rule="10 % per day"),
        reviewed=[now.needs_review[0].id],
    )


def by_hand() -> ManualResult:
    remarks = (Remark(text="no unit on the axis", points=Decimal("-1.5")), Remark(text="Say why.\nBriefly."))
    criteria = (
        ManualCriterion(
            id="discussion", title="Discussion", points=Decimal("4.5"), max_points=Decimal(6), remarks=remarks
        ),
        ManualCriterion(id="figures", title="Figures", points=None, max_points=Decimal(4)),
    )
    return ManualResult(title="Report", criteria=criteria, released=True)


def feedback_page(*, graded: bool) -> str:
    requests = (
        RegradeRequest(id="1", student="ada", text="I did warm up.", asked_at=AT, about="lab1.benchmark"),
        RegradeRequest(id="2", student="ada", text="And here?", asked_at=AT, answer="You are right.", answered_at=AT),
    )
    made = (
        classes.student("ada", a_grade(), name="Ada Lovelace", manual=by_hand(), requests=requests,
                        late=LatePenalty(seconds_late=9000.0, points=Decimal(2), rule="10 % per day"))
        if graded
        else StudentResult(student="ada", status="refused", score=Decimal(0), reason="the archive holds ../../etc")
    )  # fmt: skip
    (line,) = view.of(classes.a_class([made], labs=(1, 2, 3, 4, 5))).lines
    return feedback.page(line, "GPU labs")


def given_page() -> str:
    """Points instead of a submission."""
    made = StudentResult(student="ada", status="missing", score=Decimal("4.5"), grade=a_grade(), name="Ada Lovelace")
    (line,) = view.of(classes.a_class([made], labs=(1, 2, 3, 4, 5))).lines
    return feedback.page(line, "GPU labs")


def class_page(result: ClassResult) -> str:
    class_view = view.of(result)
    return page.render(class_view, statistics.of(class_view), command="gpulabs review DIR", feedback="feedback")


def similarity_page(folder: Path, *, pairs: bool) -> str:
    lines = tuple(f"    total = total + values[{number}] * weights[{number}]  # {'x' * 60}" for number in range(20))
    passages = (
        Passage("ada", 12, lines, frozenset(range(14, 24))),
        Passage("bob", 40, lines, frozenset(range(42, 52))),
    )
    similar = [
        Pair(module, ("ada", "bob"), (0.9, 0.8), 0.3, identical, passages, archive)
        for module, identical, archive in (
            ("lab1_gpu_basics/benchmark.py", False, ""),
            ("lab2_mixed_precision/amp_training.py", True, ""),
            ("lab1_gpu_basics/profiler.py", False, "2025"),
        )
    ]
    similarity.write(similar if pairs else [], folder, compared=60, threshold=0.6, now=AT, earlier=30,
                     names={"ada": "Ada Lovelace"})  # fmt: skip
    return (folder / "similarity.html").read_text(encoding="utf-8")


def acceptance_page(*, sound_machine: bool) -> str:
    ranks = sound.records()
    if not sound_machine:
        ranks[0].ending, ranks[0].log = "died", "Traceback (most recent call last):\n" + "x" * 300
        ranks.append(Record(rank=2, ending="lost", detail="its node is gone"))
    return acceptance.page(sound.report(ranks))


PAGES: Mapping[str, Callable[[Path], str]] = {
    "grade": lambda _: grade_page(),
    "grade-passed": lambda _: html.render(a_grade(passed=True)),
    "grade-incomplete": lambda _: html.render(replace(a_grade(labs="1"), incomplete="it was interrupted")),
    "feedback": lambda _: feedback_page(graded=True),
    "feedback-without-a-grade": lambda _: feedback_page(graded=False),
    "feedback-of-points-given": lambda _: given_page(),
    "class": lambda _: class_page(classes.large_class(60, labs=(1, 2))),
    "class-empty": lambda _: class_page(classes.a_class([])),
    "similarity": lambda folder: similarity_page(folder, pairs=True),
    "similarity-none": lambda folder: similarity_page(folder, pairs=False),
    "acceptance": lambda _: acceptance_page(sound_machine=True),
    "acceptance-failed": lambda _: acceptance_page(sound_machine=False),
}
"""Their text by name; some are written into a folder first. Those that a program serves are not among them."""
