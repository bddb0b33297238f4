"""Reports what does not fit together in a course, where no grading would notice it. For its author, before students.

Parses checks and probes, and imports checks only, as a grading does. Not for whether checks are right: grade a
solution, break it, and grade it again.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from gradebox.authoring.release.folder import handed_out_as
from gradebox.common import layout
from gradebox.common.layout import SHARED
from gradebox.course import hints
from gradebox.course.course import Course, CourseError
from gradebox.course.rubric import Check, Lab
from gradebox.report.next_step.tasks import line_of, survey, tasks
from gradebox.run.request import out_of_order
from gradebox.run.submission import Options

_ASKING = ("probe", "rank_probe", "numeric_probe")
"""Methods of a submission that ask a probe."""


def problems(course: Course, solution: Path | None = None) -> Iterator[str]:
    """One line for each thing to fix; `solution` is a folder with lab packages, a solution or the stubs.

    Raises:
        CourseError, HintError: something cannot even be read; the message is one line.
    """
    course.prepare()
    yield from _packages(course)
    yield from _unlisted(course)
    for lab in course.all_labs:
        yield from _checks(course, lab)
    known = hints.load(course)
    for lab in course.all_labs:
        lacking = [check.id for check in _paid(lab) if check.id not in known]
        if any(check.id in known for check in _paid(lab)):  # hints are for all checks of a lab, or for none
            yield from (f"{hints.place_of(course, check)} {check} has no hint" for check in lacking)
    if solution is not None:
        for lab in course.all_labs:
            yield from _handed_out(course, lab, solution, known.values())


def _paid(lab: Lab) -> Iterator[Check]:
    for criterion in lab.criteria:
        yield from criterion.checks


def _packages(course: Course) -> Iterator[str]:
    for name in course.environment.importable:
        if importlib.util.find_spec(name) is None:
            yield f"{course.folder / 'course.toml'}: packages names {name!r}, which Python does not find here"


def _unlisted(course: Course) -> Iterator[str]:
    """Labs in the course's folder that are graded nowhere: one may have been forgotten when its checks were written."""
    listed = {lab.id for lab in course.all_labs}
    for file in sorted(course.folder.glob(f"*/{layout.LAB_FILE}")):
        if file.parent.name not in listed:
            yield f"{file}: course.toml lists {file.parent.name!r} neither in labs nor in exercises: it is not graded"


def _checks(course: Course, lab: Lab) -> Iterator[str]:
    rubric = next(candidate for candidate in (course.rubric, *course.exercises) if lab in candidate.labs)
    known = [check.id for check in rubric.checks()]
    for check in course.checks(lab).values():
        yield from out_of_order(check, known)
        for name in itertools.chain.from_iterable(check.expected_timelines):
            if reason := _no_probe(course, name):
                yield f"{check.place}: {check.id} has a timeline of {name}, but there is no such probe: {reason}"
    for file in layout.files(course.folder / lab.id, layout.CHECKS):
        for line, name, sent in _asked(file):
            if reason := _no_probe(course, name):
                yield f"{file}:{line}: there is no probe {name}: {reason}"
            elif reason := _not_taken(course, name, sent):
                yield f"{file}:{line}: the probe {name} {reason}"
    for file in layout.files(course.folder / lab.id, layout.PROBES):
        for line, name in sorted(_modules_named(file, lab)):
            yield f"{file}:{line}: {name!r} is in another package than {lab.package!r}, which students hand in"
        for line, name in sorted(set(_modules_imported(file))):
            if reason := _no_module(course, lab, name):
                yield f"{file}:{line}: {name!r} is {reason}, like '{lab.package}.{_module_in(name)}'"


def _modules_named(file: Path, lab: Lab) -> Iterator[tuple[int, str]]:
    """Names of modules of this lab that lie in no package that students hand in."""
    for node in ast.walk(_parsed(file)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            package, dot, module = node.value.partition(".")
            named = (
                package.startswith(f"{lab.id}_")
                and package.isidentifier()
                and dot
                and module.replace(".", "_").isidentifier()
            )
            if named and package != lab.package:
                yield node.lineno, node.value


def _modules_imported(file: Path) -> Iterator[tuple[int, str]]:
    """Names by which a probe imports modules of the submission, as far as they are there to be read."""
    tree = _parsed(file)
    known = {
        target.id: node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="module"), args=[ast.Name(id=name)]) if isinstance(
                value := known.get(name), str
            ):
                yield node.lineno, value
            case ast.Call(func=ast.Attribute(attr="module"), args=[ast.Constant(value=str(value))]):
                yield node.lineno, value


def _no_module(course: Course, lab: Lab, name: str) -> str:
    """Why no submission has a module of this name; empty if one may have it."""
    parts = name.removeprefix("labs.").split(".")
    if not all(map(str.isidentifier, parts)):
        return "no name of a module"
    beside = [folder / "labs" / parts[0] for folder in (course.folder, course.folder.parent)]
    is_given = any(place.is_dir() or place.with_suffix(".py").is_file() for place in beside)
    in_lab = parts[0] in {known.package for known in course.all_labs} or parts[0].startswith(f"{lab.id}_")
    return "" if in_lab or is_given else "in no lab's package"


def _module_in(name: str) -> str:
    """The last part of what somebody took for a name of a module."""
    return name.removesuffix(".py").replace("/", ".").rpartition(".")[2]


def _parsed(file: Path) -> ast.Module:
    """Raises CourseError, with the line, for what is not Python."""
    try:
        return ast.parse(file.read_bytes())
    except SyntaxError as error:
        raise CourseError(f"{file}:{error.lineno}: SyntaxError: {error.msg}") from None


def _asked(file: Path) -> Iterator[tuple[int, str, list[str] | None]]:
    """The probes that a module runs by a name that is there, with the names of the inputs; None: not all are there."""
    for node in ast.walk(_parsed(file)):
        match node:
            case ast.Call(
                func=ast.Attribute(attr=method), args=[ast.Constant(value=str(name)), *_], keywords=given
            ) if method in _ASKING:
                sent = [keyword.arg for keyword in given if keyword.arg is not None]
                yield node.lineno, name, sent if len(sent) == len(given) else None


def _not_taken(course: Course, name: str, sent: Sequence[str] | None) -> str:
    """Why a probe cannot take these inputs; empty if it can, or if what it takes is not there to be read."""
    place, _, function = name.rpartition(".")
    body = _parsed(layout.probe_file(course.folder, place)).body
    defined = next((node for node in body if isinstance(node, ast.FunctionDef) and node.name == function), None)
    if defined is None or sent is None:
        return ""
    arguments = defined.args
    first, *others = [*arguments.posonlyargs, *arguments.args] or [ast.arg(arg="")]
    if first.arg in sent and not arguments.posonlyargs:
        return f"is sent {first.arg}, as its first parameter is called, which holds the submission: rename one of them"
    names = [argument.arg for argument in (*others, *arguments.kwonlyargs)]
    left_over = [name for name in sent if name not in names]
    if left_over and arguments.kwarg is None:
        option = f'; as an option it goes apart, behind the probe\'s name: {{"{left_over[0]}": ...}}'
        is_option = left_over[0] in Options.__annotations__
        return f"is sent {left_over[0]}, which it does not take{option if is_option else ''}"
    needed = [argument.arg for argument in others[: len(others) - len(arguments.defaults)]]
    needed += [a.arg for a, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value is None]
    lacking = [name for name in needed if name not in sent]
    return f"needs {lacking[0]}, which it is not sent" if lacking else ""


def _no_probe(course: Course, name: str) -> str:
    """Why a probe cannot be had; empty where it can."""
    place, _, function = name.rpartition(".")
    lab, _, module = place.partition(".")
    if not module or lab not in (SHARED, *(known.id for known in course.all_labs)):
        return "its name is LAB.CRITERION.FUNCTION"
    file = layout.probe_file(course.folder, place)
    if not file.is_file():
        return f"{file} does not exist"
    defined = list(_defined(file))
    if function in defined:
        return ""
    near = difflib.get_close_matches(function, defined, n=1)
    return f"{file} does not define {function}" + (f"; did you mean {near[0]}?" if near else "")


def _defined(file: Path) -> Iterator[str]:
    """Names that a module binds: functions, and what it imports or assigns."""
    for node in _parsed(file).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.ImportFrom | ast.Import):
            yield from (alias.asname or alias.name for alias in node.names)
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))


def _handed_out(course: Course, lab: Lab, solution: Path, known: Iterable[hints.Hint]) -> Iterator[str]:
    folder = solution / lab.package
    if not folder.is_dir():
        yield f"{course.file(lab, layout.LAB_FILE)}: package = {lab.package!r}, but {solution} has no such folder"
        return
    readme = folder / "README.md"
    numbers, where_from = [task.number for task in tasks(readme)], f"{readme} has no heading `## Task {{}}: ...`"
    if not readme.is_file():
        open_functions, _ = survey(folder)
        numbers, where_from = [stub.task for stub in open_functions], f"no stub in {folder} says `Task {{}} is open`"
    # A report may be a template only: a reference solution need not have measured.
    there = {handed_out_as(PurePosixPath(path.name)).name for path in folder.iterdir()}
    for hint in known:
        if not hint.check.startswith(f"{lab.id}."):
            continue
        where = hints.place_of(course, hint.check)
        if numbers and hint.task not in numbers:
            yield f"{where} task = {hint.task!r}, but {where_from.format(hint.task)}"
        for place in hint.write:
            name, _, function = place.partition(" ")
            if name not in there:
                yield f"{where} functions names {name}, but {folder} has no such file"
            elif function and line_of(folder / name, function) is None:
                yield f"{where} functions names {function}, which {folder / name} does not define"
