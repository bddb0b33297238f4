"""A course as data: `course.toml` and a folder per lab, each with a folder per criterion.

    my_course/
      course.toml            title, points, pass mark, labs in order, what submissions are run with
      lab1/
        lab.toml             title, package, points, criteria in order
        basics/              one criterion
          criterion.toml     title, points; points, title and hints of each check
          checks.py          a class of checks (`gradebox.course.criterion`), run in the judge
          probes.py          functions that drive the submission, run next to it in the sandbox

The folder is an importable package: `my_course.lab1.basics.checks` is a module. `layout.py` says where else things are.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from types import ModuleType

from gradebox.common import layout, reading
from gradebox.common.layout import SHARED
from gradebox.common.reading import Document, ReadingError
from gradebox.course import contact, lab_numbers, rubric
from gradebox.course.contact import NOBODY, Contact
from gradebox.course.criterion import GIVEN, CheckFunction, functions
from gradebox.course.rubric import Hours, Lab, Rubric
from gradebox.sandbox.types import Environment

FILE = "course.toml"


class CourseError(ValueError):
    """A course cannot be graded as it stands; the message is one line."""


@dataclass(frozen=True)
class _Submission:
    """What students hand in and what it is run with."""

    packages: tuple[str, ...] = ()
    preload: tuple[str, ...] = ("numpy",)
    found: tuple[str, ...] = ()
    begin_broken: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Devices:
    """What submissions run on."""

    module: str = ""
    trial: str = ""
    pace: str = ""


@dataclass(frozen=True)
class Guide:
    """What the command `next` points to, as paths in the checkout; `{lab}` stands for a lab's name."""

    lessons: tuple[str, ...] = ()
    beyond: str = ""
    """What to do when everything passes: a README."""
    typed: str = ""
    """How students type the command `next`, for pages, which may be read anywhere; the course's command without it."""
    typed_for: str = ""
    """The same for one lab or exercise, whose number or name replaces `{lab}`."""


@dataclass(frozen=True)
class _CourseTable:
    title: str
    version: str
    pass_percent: Decimal
    labs: tuple[str, ...]
    points: Decimal | None = None
    """The sum of the labs' points, and the number of their criteria, for who wants them refused when they differ."""
    criteria: int | None = None
    exercises: tuple[str, ...] = ()
    command: str = "gradebox"
    distribution: str = ""
    fix: str = ""
    submission: _Submission = field(default_factory=_Submission)
    devices: _Devices = field(default_factory=_Devices)
    guide: Guide | None = None
    hours: str = ""
    """How long the whole course takes, like "15-20"."""
    contact: Contact = NOBODY


@dataclass(frozen=True)
class Course:
    """A course that the engine can grade; see the top of this module for its files."""

    folder: Path
    title: str
    rubric: Rubric
    exercises: tuple[Rubric, ...]
    """Each of one lab that is graded alone, outside the points of the course."""
    begin_broken: frozenset[str]
    """Files that are handed out as something to fix or to fill in: if their checks fail, that says nothing yet."""
    command: str
    """What people type to grade: `gpulabs`."""
    distribution: str
    """The name under which the course is installed; empty where it is only a folder."""
    fix: str
    """What to do on a machine that cannot grade, for the end of a sentence; may be empty."""
    devices: str
    """Module that knows what submissions run on (see `gradebox.sandbox.devices`); empty: they run on the CPU."""
    trial: str
    """A probe that must work on each device before anything is graded; empty: there is none."""
    pace: str
    """A probe that measures how even a real device's pace is (`gradebox.run.device_steadiness`); empty: none."""
    guide: Guide | None
    """Where the command `next` points to; None: the course has no such command."""
    environment: Environment
    hours: Hours | None = None
    """How long all of it takes a student, as the course's assignment says; None: it does not say."""
    contact: Contact = NOBODY
    """Where students get help."""

    @property
    def package(self) -> str:
        """The name by which Python imports it."""
        return self.folder.name

    @property
    def labs(self) -> tuple[Lab, ...]:
        """Those that the course's points are made of, in order."""
        return self.rubric.labs

    @property
    def all_labs(self) -> tuple[Lab, ...]:
        """All of them, and the exercises that are graded alone."""
        return (*self.labs, *(lab for exercise in self.exercises for lab in exercise.labs))

    def rubric_of(self, option: str | None) -> Rubric:
        """The rubric that `--lab` asks for: that of an exercise by its name, else the course's."""
        return next((exercise for exercise in self.exercises if exercise.labs[0].id == option), self.rubric)

    def select(self, labs: str | None = None, criteria: str | None = None) -> tuple[Rubric, tuple[Lab, ...]]:
        """What `--lab` and `--criterion` name, and the rubric that it belongs to; all labs of the course without both.

        Args:
            labs: `1,3`, `lab1,lab3`, or the name of an exercise.
            criteria: `lab3.accumulation,lab3.setup`; the labs are then cut down to these.

        Raises:
            ValueError: both are given, or a name is not known; the message is one line.
        """
        if criteria is not None:
            if labs is not None:
                raise ValueError("--lab and --criterion exclude each other: a criterion's name begins with its lab's")
            names = [name.strip() for name in criteria.split(",")]
            chosen = self.rubric_of(names[0].partition(".")[0])
            return chosen, chosen.select_criteria(names)
        chosen = self.rubric_of(labs)
        if chosen is not self.rubric or labs is None:
            return chosen, chosen.labs
        try:
            return chosen, chosen.named(labs)
        except ValueError as error:
            if not self.exercises:
                raise
            names = [exercise.labs[0].id for exercise in self.exercises]
            raise ValueError(f"{error}; or {' or '.join(names)}") from None

    def checks(self, lab: Lab) -> Mapping[str, CheckFunction]:
        """The checks that are written for a lab, by id; imports its modules, once.

        Raises:
            CourseError: they do not match the rubric.
        """
        written = _checks(self.folder, lab.id)
        paid = {check.id: check for criterion in _whole(self, lab).criteria for check in criterion.checks}
        if missing := [name for name in paid if name not in written]:
            place, where = self._line_of(missing[0]), self._checks_of(missing[0])
            raise CourseError(
                f"{place} {missing[0]} has points, but {where} has no such check{_near(missing[0], written)}"
            )
        if unpaid := [name for name in written if name not in paid]:
            place, where = written[unpaid[0]].place, self._rubric_of(unpaid[0])
            raise CourseError(f"{place}: {where} gives {unpaid[0]} no points{_near(unpaid[0], paid)}")
        return {name: replace(check, title=paid[name].title) for name, check in written.items()}

    def _line_of(self, check: str) -> str:
        """Where a check gets its points, as a message begins."""
        lab, criterion, name = check.split(".")
        document = reading.toml(self.criterion_file(f"{lab}.{criterion}"))
        return str(document.error(("checks", name), "")).rstrip()

    def _checks_of(self, check: str) -> str:
        """The file or folder in which a check belongs."""
        lab, criterion, _ = check.split(".")
        place = self.folder / lab / criterion / layout.CHECKS
        return f"{self.package}/{lab}/{criterion}/" + (f"{layout.CHECKS}/" if place.is_dir() else f"{layout.CHECKS}.py")

    def _rubric_of(self, check: str) -> str:
        """The file that gives a check its points."""
        lab, criterion, _ = check.split(".")
        return f"{self.package}/{lab}/{criterion}/{layout.CRITERION_FILE}"

    def titles(self, labs: Iterable[Lab]) -> Mapping[str, str]:
        """What the checks of these labs ask, in words, by id; of those labs that are written. Raises as `checks`."""
        self.prepare()
        written = [lab for lab in labs if any(criterion.available for criterion in lab.criteria)]
        return {name: check.title for lab in written for name, check in self.checks(lab).items()}

    def title_of(self, check: str) -> str:
        """What one check asks, in words. Raises as `checks`."""
        return self.titles(lab for lab in self.all_labs if check.startswith(f"{lab.id}."))[check]

    def file(self, lab: Lab, name: str) -> Path:
        """A file of a lab's folder, which need not exist."""
        return self.folder / lab.id / name

    def criterion_file(self, criterion: str) -> Path:
        """The `criterion.toml` of `lab1.basics`."""
        return self.folder.joinpath(*criterion.split("."), layout.CRITERION_FILE)

    def prepare(self) -> None:
        """Let Python find the course's package.

        Raises:
            CourseError: Python knows another package of this name.
        """
        parent = str(self.folder.parent)
        spec = importlib.util.find_spec(self.package)
        if spec is None:
            sys.path.append(parent)
            importlib.invalidate_caches()
        elif spec.origin is None or Path(spec.origin).resolve().parent != self.folder:
            where = spec.origin or "another folder"
            raise CourseError(f"{self.folder}: Python has another {self.package} in {where}; rename the folder")


def _whole(course: Course, lab: Lab) -> Lab:
    """The lab with all its criteria: a selection may have been cut down."""
    return next(candidate for candidate in course.all_labs if candidate.id == lab.id)


@functools.cache
def _checks(folder: Path, lab: str) -> Mapping[str, CheckFunction]:
    by_id: dict[str, CheckFunction] = {}
    for file in layout.files(folder / lab, layout.CHECKS):
        module = ".".join(file.relative_to(folder.parent).with_suffix("").parts).removesuffix(".__init__")
        loaded = _imported(module)
        _require_no_shadow(file)
        place = module.removeprefix(f"{folder.name}.").partition(f".{layout.CHECKS}")[0]
        for check in functions(loaded):
            if not check.id.startswith(f"{place}."):
                raise CourseError(f"{check.place}: {check.id} belongs to another criterion's folder")
            if check.id in by_id:
                raise CourseError(f"{check.place}: {check.id} is already written at {by_id[check.id].place}")
            if unknown := [name for name in check.takes if name not in GIVEN]:
                raise CourseError(f"{check.place}: a check may take {', '.join(GIVEN)}, not {unknown[0]}")
            if check.builds_on and "without" not in check.takes:
                raise CourseError(
                    f"{check.place}: a check that builds on others takes `without`, and leaves out their subject"
                )
            by_id[check.id] = check
    return by_id


def _require_no_shadow(file: Path) -> None:
    """Raise where a class defines a method twice: Python keeps the last one, and a check would be gone unseen."""
    for node in ast.parse(file.read_bytes()).body:
        first: dict[str, int] = {}
        for method in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(method, ast.FunctionDef):
                if method.name in first:
                    line = f"{file}:{method.lineno}: {node.name}.{method.name}"  # type: ignore[attr-defined]
                    raise CourseError(f"{line} is already written at line {first[method.name]}, and replaces it")
                first[method.name] = method.lineno


def _near(name: str, known: Iterable[str]) -> str:
    """What may have been meant, as a message ends."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except SyntaxError as error:
        raise CourseError(f"{error.filename}:{error.lineno}: the checks do not load: {error.msg}") from error
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
        where = f"{frames[-1].filename}:{frames[-1].lineno}"
        raise CourseError(f"{where}: the checks in {name} do not load: {type(error).__name__}: {error}") from error


def load(folder: Path) -> Course:
    """The course in `folder`.

    Raises:
        ReadingError: `course.toml` or a rubric is not what it should be; the message names file and line.
    """
    return _load(folder.resolve())


@functools.cache
def _load(folder: Path) -> Course:
    document = reading.toml(folder / FILE)
    table = reading.into(_CourseTable, document)
    _require_names(document, table)
    people = contact.of(document)
    hours = rubric.hours_of(document, ("hours",), table.hours)
    labs = tuple(_lab(document, folder, name, number) for name, number in lab_numbers.of(table.labs))
    exercises = tuple(_lab(document, folder, name, 0) for name in table.exercises)
    if not 0 < table.pass_percent <= 100:
        raise document.error(("pass_percent",), "pass_percent must be above 0 and at most 100")
    _require_packages(document, folder, [SHARED, *table.labs, *table.exercises])
    points = sum((lab.points for lab in labs), Decimal(0))
    if table.points is not None:
        rubric.require_sum(document, (), "the labs", table.points, [points])
    count = sum(len(lab.criteria) for lab in labs)
    if table.criteria not in (None, count):
        raise document.error(("criteria",), f"criteria = {table.criteria}, but {count} criteria follow")
    # An exercise may need a package that nobody has to install for the labs: Triton is not on every system.
    optional = tuple(_probes(folder, table.exercises))
    return Course(
        folder=folder,
        title=table.title,
        rubric=Rubric(table.version, points, table.pass_percent, labs),
        exercises=tuple(Rubric(table.version, lab.points, table.pass_percent, (lab,)) for lab in exercises),
        begin_broken=frozenset(table.submission.begin_broken),
        command=table.command,
        distribution=table.distribution,
        fix=table.fix,
        devices=table.devices.module,
        trial=table.devices.trial,
        pace=table.devices.pace,
        guide=table.guide,
        environment=Environment(
            labs=tuple(lab.id for lab in (*labs, *exercises)),
            preload=(*table.submission.preload, *_probes(folder, [SHARED, *table.labs]), *optional),
            optional=optional,
            found=table.submission.found,
            importable=table.submission.packages,
            course=folder.name,
            course_parent=str(folder.parent),
            devices=table.devices.module,
        ),
        hours=hours,
        contact=people,
    )


def _lab(document: Document, folder: Path, name: str, number: int) -> Lab:
    if (folder / name / layout.LAB_FILE).is_file():
        return rubric.load_folder(folder / name, name, number)
    raise document.error(("labs" if number else "exercises",), f"there is no {folder / name / layout.LAB_FILE}")


def _require_names(document: Document, table: _CourseTable) -> None:
    """Raise unless the labs have names that folders and checks can have, each its own."""
    if not table.labs:
        raise document.error(("labs",), "there are no labs")
    taken: set[str] = set()
    for key, names in (("labs", table.labs), ("exercises", table.exercises)):
        for name in names:
            if not rubric.NAME.fullmatch(name):
                raise document.error((key,), f"a lab's name is lower_case_with_underscores, not {name!r}")
            if name == SHARED:
                raise document.error((key,), f"{SHARED}/ is for what several labs have in common")
            if name in taken:
                raise document.error((key,), f"{name} is named twice")
            taken.add(name)


def _require_packages(document: Document, folder: Path, labs: list[str]) -> None:
    """Raise unless Python can import the course's folders by their names."""
    inner = [folder / name for name in labs if (folder / name).is_dir()]
    parts = [place for lab in inner for part in layout.PARTS for place in layout.places(lab, part) if place.is_dir()]
    criteria = [place for lab in inner for place in lab.iterdir() if (place / layout.CRITERION_FILE).is_file()]
    shared = [lab / SHARED for lab in inner]
    for place in (folder, *inner, *criteria, *shared, *parts):
        # Folders in which Python has left nothing but its caches are nobody's.
        if place.is_dir() and not (place / "__init__.py").is_file() and _holds_something(place):
            raise document.error((), f"{place} lacks an __init__.py, which may be empty")
        if place == folder and folder.name in sys.stdlib_module_names:
            raise document.error((), f"the folder {place} needs another name: Python itself has a module {folder.name}")
        if not place.name.isidentifier():
            raise document.error((), f"the folder {place} needs another name: a letter, then letters, digits and _")


def _holds_something(folder: Path) -> bool:
    return any(path.name != "__pycache__" for path in folder.iterdir())


def _probes(folder: Path, labs: Iterable[str]) -> Iterator[str]:
    """The packages of probes of these labs, all of which the sandbox imports before it forks."""
    for lab in (folder / name for name in labs if (folder / name).is_dir()):
        for place in layout.places(lab, layout.PROBES):
            module = ".".join(place.relative_to(folder.parent).with_suffix("").parts)
            if place.is_file() or (place / "__init__.py").is_file():
                yield f"{module}.*" if place.is_dir() else module


__all__ = ["CheckFunction", "Course", "CourseError", "ReadingError", "load"]
