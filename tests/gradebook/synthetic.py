"""A class of made-up submissions: correct variants, planted bugs, exploits and stubs, handed in in different forms."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.scenarios.build import ROOT, Scenario, scenarios

_FORMS = ("folder", "zip", "folder", "gztar")


@dataclass(frozen=True)
class Made:
    """One submission that was made."""

    student: str
    what: str
    """`lab1/bugs/no_warm_up`."""
    handed_in: Path
    """A folder or an archive."""
    folder: Path
    """The same as a folder, to be graded alone."""


def make_class(target: Path, count: int, labs: Sequence[int] = (1,), *, distinct: bool = False) -> list[Made]:
    """Write `count` submissions into `target/submissions`, and each once more as a folder into `target/alone`.

    Each is the solutions with one scenario of one of `labs`. When all scenarios are used up they come again, with
    another note in them; and the second submission is the first one once more, by another student. Where they are
    `distinct` no two others have a lab in common: each lab has the student's name in it.
    """
    made: list[Made] = []
    (target / "submissions").mkdir(parents=True)
    for number, (what, scenario) in enumerate(itertools.islice(_endless(labs), count), start=1):
        student = f"student-{number:03}"
        folder = target / "alone" / student
        if number == 2:
            shutil.copytree(made[0].folder, folder)
            what = made[0].what
        else:
            if scenario is None:
                shutil.copytree(ROOT / "labs", folder, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                scenario.build(folder)
            (folder / "NOTES.md").write_text(f"Handed in as number {number}.\n")
            for package in folder.glob("lab*_*") if distinct else ():
                (package / "author.py").write_text(f"# {student}\n")
        made.append(Made(student, what, _hand_in(folder, target / "submissions", number), folder))
    return made


def _endless(labs: Sequence[int]) -> Iterator[tuple[str, Scenario | None]]:
    """The kinds in turn, so that a small class has some of each."""
    names = [*(f"lab{lab}/bugs" for lab in labs), "exploits", *(f"lab{lab}/variants" for lab in labs)]
    groups = {name: scenarios(name) for name in names}
    kinds: list[list[tuple[str, Scenario | None]]] = [[("stubs", None)]]
    for place, (name, group) in enumerate(groups.items()):
        kinds.insert(place, [(f"{name}/{scenario.name}", scenario) for scenario in group])
    rounds = max(len(kind) for kind in kinds)
    order = [kind[number] for number in range(rounds) for kind in kinds if number < len(kind)]
    return itertools.cycle(order)


def _hand_in(folder: Path, target: Path, number: int) -> Path:
    form = _FORMS[number % len(_FORMS)]
    if form == "folder" or _has_links(folder):  # which no archive may hold
        return Path(shutil.copytree(folder, target / folder.name, symlinks=True))
    return Path(shutil.make_archive(str(target / folder.name), form, folder))


def _has_links(folder: Path) -> bool:
    return any(path.is_symlink() or (path.is_file() and path.stat().st_nlink > 1) for path in folder.rglob("*"))
