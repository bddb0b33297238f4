"""Pages as they lie in the repository, and as GitHub shows them: no dead link, no figure that says something else."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

import pytest

import grader
from gradebox.course import hints
from gradebox.course.rubric import Lab
from grader.release.contents import for_students
from tests.docs.markdown import ROOT, Link, anchors, links

PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "labs/*/*.md", "notebooks/*.md", "examples/*.md", "deploy/**/*.md")
    for path in ROOT.glob(pattern)
)


@pytest.fixture(scope="module")
def released() -> Mapping[str, bytes]:
    return for_students(ROOT)


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_somewhere(page: str) -> None:
    assert _dead(links(page, (ROOT / page).read_text())) == []


def test_what_students_get_links_to_nothing_that_they_do_not_get(released: Mapping[str, bytes]) -> None:
    folders = {str(folder) for name in released for folder in PurePosixPath(name).parents}
    # The change log is written by the release itself.
    there = {*released, *folders, "CHANGES.md"}
    pages = {name: content.decode() for name, content in released.items() if name.endswith(".md")}
    del pages["grader/release/templates/README.md"]  # a template: its links hold where its copy lies
    assert {"README.md", "docs/student.md", "docs/chapter.md", "docs/labs/lab1.md"} <= pages.keys()
    page_links = [link for name, text in pages.items() for link in links(name, text)]
    assert [str(link) for link in page_links if link.path and _target(link) not in there] == []


def test_students_get_no_page_for_instructors(released: Mapping[str, bytes]) -> None:
    documents = {name for name in released if name.startswith("docs/") and name.endswith(".md")}
    labs = ("lab1", "lab2", "lab3", "lab4", "lab5", "container", "kernels", "sharding")
    lessons = {f"docs/labs/{name}{part}.md" for name in labs for part in ("", "-traps")}
    assert documents == {
        "docs/student.md",
        "docs/student-grade.md",
        "docs/student-programs.md",
        "docs/student-machines.md",
        "docs/report-criteria.md",
        "docs/chapter.md",
        "docs/virtual-gpu.md",
        "docs/virtual-gpu-reference.md",
        "docs/virtual-gpu-compiled.md",
        "docs/virtual-gpu-distributed.md",
        "docs/virtual-gpu-recordings.md",
        "docs/virtual-gpu-unsupported.md",
        "docs/virtual-gpu-cost-model.md",
        "docs/virtual-gpu-kernels.md",
        "docs/virtual-gpu-convolutions.md",
        "docs/vgpu-uses.md",
        "docs/how-we-know.md",
        "docs/how-we-know-figures.md",
        "docs/how-we-know-published.md",
        "docs/how-we-know-labs.md",
        "docs/how-we-know-checked.md",
        "docs/how-we-know-differs.md",
        *lessons,
    }


@pytest.mark.parametrize("page", ["docs/student.md", "grader/release/templates/README.md"])
def test_students_read_the_hours_of_each_lab_their_sum_and_the_assignments_total(page: str) -> None:
    course = grader.course()
    text = (ROOT / page).read_text()
    assert [f"| {lab.number} {lab.title} | {lab.hours.in_words} |" in text for lab in course.labs if lab.hours] == [
        True
    ] * len(course.labs)
    least = sum(lab.hours.least for lab in course.labs if lab.hours)
    most = sum(lab.hours.most for lab in course.labs if lab.hours)
    assert f"| all {len(course.labs)} | {least} to {most} |" in text
    assert course.hours is not None
    assert f"The assignment states {course.hours.in_words} hours for all labs" in text


def test_the_hours_are_those_of_the_assignment() -> None:
    """Of each lab, and of all of them; its ranges add up to 17 to 22."""
    course = grader.course()
    assert [str(lab.hours) for lab in course.labs] == ["3-4", "3-4", "4-5", "3-4", "4-5"]
    assert str(course.hours) == "15-20"


IN_WORDS = {3: "three", 4: "four", 5: "five"}


@pytest.mark.parametrize("lab", grader.course().labs, ids=lambda lab: lab.id)
def test_a_hand_out_says_how_many_hours_its_lab_takes(lab: Lab) -> None:
    assert lab.hours is not None
    hand_out = (ROOT / "labs" / lab.package / "README.md").read_text().partition("##")[0]
    least, most = IN_WORDS[int(lab.hours.least)], IN_WORDS[int(lab.hours.most)]
    assert f"Allow {least} to {most} hours." in " ".join(hand_out.split())


@pytest.mark.parametrize("lab", grader.course().labs, ids=lambda lab: lab.id)
def test_a_hand_out_says_how_many_points_its_lab_has(lab: Lab) -> None:
    hand_out = (ROOT / "labs" / lab.package / "README.md").read_text()
    assert f" {lab.points} points." in hand_out.partition("##")[0]


@pytest.mark.parametrize("lab", grader.course().all_labs, ids=lambda lab: lab.id)
def test_a_hand_out_lists_each_check_once_under_its_task(lab: Lab) -> None:
    hand_out = (ROOT / "labs" / lab.package / "README.md").read_text()
    marks = re.findall(r"<!-- checks: (\S+) -->", hand_out)
    tasks = hints.load(grader.course())
    for criterion in lab.criteria:
        for check in criterion.checks:
            places = [mark for mark in marks if mark in (criterion.id, tasks[check.id].task)]
            assert len(places) == 1, check.id
    for task in (mark for mark in marks if mark[0].isdigit()):
        section = hand_out.partition(f"## Task {task}: ")[2].partition("\n## ")[0]
        assert f"<!-- checks: {task} -->" in section


def _dead(page_links: Iterable[Link]) -> list[str]:
    dead = []
    for link in page_links:
        target = ROOT / _target(link)
        if not target.exists() or (
            link.anchor and target.suffix == ".md" and link.anchor not in anchors(target.read_text())
        ):
            dead.append(str(link))
    return dead


def _target(link: Link) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(link.page), link.path)) if link.path else link.page
