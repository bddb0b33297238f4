"""Where the parts of a lab are in a course's folder, and in which module a probe is.

A criterion is a folder. Each of its four parts is a module, or a package of modules when one would be long:

    LAB/lab.toml                     title, package, points, criteria in order
    LAB/CRITERION/criterion.toml     points, title, task and hints of each check
    LAB/CRITERION/checks.py          judges; imports no probe
    LAB/CRITERION/probes.py          runs next to the submission; knows no expected value
    LAB/CRITERION/reference.py       computes expected values; asserts nothing
    LAB/CRITERION/cases.py           the inputs, for checks and probes
    LAB/shared/                      the same parts, for what several criteria of the lab use
    shared/probes/*.py               what the probes of several labs have in common

A probe is called LAB.CRITERION.FUNCTION, or LAB.CRITERION.MODULE.FUNCTION if its part is a package; of those of the
course, `shared.trial.product` is in `shared/probes/trial.py`. Only names and places: `rubric.py` reads the files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

LAB_FILE = "lab.toml"
CRITERION_FILE = "criterion.toml"
SHARED = "shared"
"""The folder for what several labs of a course, or several criteria of a lab, have in common."""
CHECKS, PROBES, REFERENCE, CASES = PARTS = ("checks", "probes", "reference", "cases")


def probe_module(place: str) -> str:
    """The module below the course's package that holds the probes `lab1.basics`.

    Raises:
        LookupError: no probe can have this name.
    """
    lab, dot, rest = place.partition(".")
    if not dot:
        raise LookupError(f"{place} is no place of a probe, whose name is LAB.CRITERION.FUNCTION")
    if lab == SHARED:
        return f"{lab}.{PROBES}.{rest}"
    criterion, dot, module = rest.partition(".")
    return f"{lab}.{criterion}.{PROBES}{dot}{module}"


def file_of(course: Path, module: str) -> Path:
    """Where a module below the package of a course is, or would be."""
    path = course.joinpath(*module.split("."))
    package = path / "__init__.py"
    return package if package.is_file() else path.with_suffix(".py")


def probe_file(course: Path, place: str) -> Path:
    """Where the probes `lab1.basics` are, or would be. Raises as `probe_module`."""
    return file_of(course, probe_module(place))


def places(lab: Path, part: str) -> Iterator[Path]:
    """The modules and packages of one part in a lab: `checks.py` of a criterion, or its folder `checks`."""
    inner = sorted(path for path in lab.iterdir() if path.is_dir() and path.name not in PARTS)
    for folder in [lab] if lab.name == SHARED else inner:
        if (folder / part).is_dir():
            yield folder / part
        elif (folder / f"{part}.py").is_file():
            yield folder / f"{part}.py"


def files(lab: Path, part: str) -> Iterator[Path]:
    """The source files of one part of a lab."""
    for place in places(lab, part):
        yield from sorted(place.glob("*.py")) if place.is_dir() else (place,)


def labs(course: Path) -> list[Path]:
    """The folders of a course that may be a lab's, with the one for several labs."""
    return sorted(path for path in course.iterdir() if path.is_dir() and path.name.isidentifier())


def beside_submissions(course: str) -> tuple[str, ...]:
    """Files and folders of a course that a process with a submission may see: its probes, and the cases of these."""
    paths: list[str] = []
    for lab in labs(Path(course)):
        paths += (os.fspath(place) for place in places(lab, PROBES))
        paths += (os.fspath(place) for place in places(lab, CASES))
    return tuple(paths)
