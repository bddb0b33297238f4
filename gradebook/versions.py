"""Which code decides a criterion's outcome, as a digest: when it changes, that criterion must be graded again.

A criterion depends on the file of its checks, on the probes that those ask, on all that these import, however far away,
and on what every grading runs: plugin, sandbox, virtual GPU and labkit, with their data. Found by reading source, never
by importing it. It does not depend on points, which are only counted, nor on how grades are shown or a class is graded;
and not on comments and docstrings. In doubt, a file counts as needed.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from gradebox.common import layout
from gradebox.course.course import Course

_EVERYWHERE = ("gradebox/run/grading.py", "gradebox/sandbox")
"""What every grading runs; the rest follows from what these import, and from what submissions may import."""
_DECIDES_NOTHING = (
    "gradebox.report", "gradebox.course.hints", "gradebox.course.course", "gradebox.run.overrides",
    "gradebox.common.reading", "gradebook", "vgpu.tools.calibrate",
)  # fmt: skip
"""What is imported although no outcome depends on it: how grades are shown and counted, how files are read, a tool."""
_ENGINE = "gradebox"
_MODULE = re.compile(r"\w+(?:\.\w+)+")
_DATA = (".toml", ".json", ".npz", ".gz", ".csv")
"""Files that a module next to them may read."""
_TOLD = ("course.toml", layout.LAB_FILE, layout.CRITERION_FILE)
"""Files that the engine reads: points and words. The parts of a rubric that decide are counted by their names."""
_ASKS = (layout.CHECKS, layout.REFERENCE, layout.CASES)
"""Parts of a criterion, and folders of a lab, in which a text may be the name of a probe."""
_PROSE = 100
"""Characters from which on a text is no name of a probe."""
_READS_SOURCE = frozenset(("__doc__", "getdoc", "getsource", "getsourcelines", "getcomments"))
"""A file that names one of these may depend on comments and docstrings."""


def _decides_nothing(module: str) -> bool:
    return any(module == name or module.startswith(f"{name}.") for name in _DECIDES_NOTHING)


def grader_version(course: Course) -> str:
    """The installed version of the course."""
    try:
        return importlib.metadata.version(course.distribution or course.package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def digests(course: Course, root: Path | None = None) -> dict[str, str]:
    """By criterion: changes when its outcomes may; only of criteria whose checks are written.

    `root` is the folder that holds the course and its packages, if not the one that the course was loaded from.
    """
    tree = Tree(course, root or course.folder.parent)
    shared = tree.digest(tree.shared)
    by_criterion: dict[str, str] = {}
    for lab in course.labs:
        for criterion in lab.criteria:
            if criterion.available:
                names = sorted(check.id for check in criterion.checks)
                by_criterion[criterion.id] = _digest([shared, *names, tree.digest(tree.own_files(criterion.id))])
    return by_criterion


def grader_digest(digests: Mapping[str, str]) -> str:
    """One digest for all criteria."""
    return _digest(f"{name} {digest}" for name, digest in sorted(digests.items()))


class Tree:
    """The files of a checkout, and what they name of each other."""

    def __init__(self, course: Course, root: Path) -> None:
        self._root = root
        self._course = course.package
        self._packages = (_ENGINE, course.package, *course.environment.importable)
        self._named: dict[Path, frozenset[Path]] = {}
        self._digests: dict[Path, str] = {}
        self._modules = {
            _module_of(path.relative_to(root)): path
            for package in self._packages
            for path in (root / package).rglob("*.py")
        }
        self.shared: frozenset[Path] = frozenset()
        """The files that take part in every outcome."""
        self._folder = root / course.package
        self._places: dict[str, list[Path]] = {}
        for path in (file for lab in layout.labs(self._folder) for file in layout.files(lab, layout.CHECKS)):
            for criterion in read_file(path).criteria:
                self._places.setdefault(criterion, []).append(path)
        self._checks = {check.id for lab in course.labs for criterion in lab.criteria for check in criterion.checks}
        self.shared = self._all_from(
            path
            for name in (*_EVERYWHERE, *course.environment.importable, *_file_of(course.devices))
            for path in _below(root / name)
            if not _decides_nothing(_module_of(path.relative_to(root)))
        )

    def own_files(self, criterion: str) -> frozenset[Path]:
        """Every other file that takes part in a criterion's outcomes."""
        places = self._places.get(criterion) or [path for place in self._places.values() for path in place]
        around = {package for path in places for package in self._module(_module_of(path.relative_to(self._root)))}
        return self._all_from([*places, *around])

    def _all_from(self, files: Iterable[Path]) -> frozenset[Path]:
        """These files and all that they name, however far away, without the shared ones."""
        visited: set[Path] = set()
        open_ = list(files)
        while open_:
            path = open_.pop()
            if path not in visited and path not in self.shared:
                visited.add(path)
                if path not in self._named:
                    self._named[path] = frozenset(self._names(path))
                open_ += self._named[path]
        return frozenset(visited)

    def digest(self, files: Iterable[Path]) -> str:
        """Changes when the files do."""
        return _digest(self._named_digest(path) for path in sorted(files))

    def _named_digest(self, path: Path) -> str:
        """The file's place and what of its content counts."""
        if path not in self._digests:
            self._digests[path] = f"{path.relative_to(self._root).as_posix()} {read_file(path).meaning}"
        return self._digests[path]

    def _names(self, path: Path) -> Iterator[Path]:
        """The files that this one imports or names, and the data next to it."""
        read = read_file(path)
        if path.suffix == ".py" and path.parent.parent != self._root:
            yield from (
                sibling for sibling in path.parent.iterdir() if sibling.suffix in _DATA and sibling.name not in _TOLD
            )
        package = path.relative_to(self._root).parts
        for level, name in read.imports:
            above = ".".join(package[: len(package) - level]) if level else ""
            yield from self._module(f"{above}.{name}".strip("."))
        for text in read.texts:
            yield from self._module(text)  # for import_module, or another interpreter's -m
            if (
                (parts := {path.stem, path.parent.name} & set(_ASKS))
                and len(text) < _PROSE
                and text not in read.criteria
            ):
                # Cases name probes; elsewhere a text of that form may be the id of a check.
                is_probe = "." in text and (layout.CASES in parts or text not in self._checks)
                if is_probe:
                    yield from self._module(f"{self._course}.{layout.probe_module(text)}")
                needed = text.rpartition(".")[0]
                # A check that another one requires. Shared code may name the one that is charged.
                if read.criteria and text in self._checks and needed in self._places:
                    yield from self._places[needed]

    def _module(self, name: str) -> Iterator[Path]:
        """The file of a module of ours, or of the one that holds this name; and the packages around it."""
        if not _MODULE.fullmatch(name) or name.partition(".")[0] not in self._packages:
            return
        if _decides_nothing(name):
            return
        parts = name.split(".")
        for count in range(1, len(parts) + 1):
            if (path := self._modules.get(".".join(parts[:count]))) is not None:
                yield path


@dataclass(frozen=True)
class FileMeaning:
    """What one file says."""

    meaning: str
    """A digest of what can change an outcome: not comments, not the docstrings of code, not the layout."""
    imports: tuple[tuple[int, str], ...] = ()
    """How many packages up (0: an absolute name), and the name."""
    texts: tuple[str, ...] = ()
    criteria: tuple[str, ...] = ()
    """Those whose checks it holds."""


def read_file(path: Path) -> FileMeaning:
    """What a file says; one that cannot be parsed counts as it is, byte by byte."""
    content = path.read_bytes()
    try:
        if path.suffix == ".py":
            return _read_code(content)
        if path.suffix == ".toml":
            return FileMeaning(_digest([json.dumps(tomllib.loads(content.decode()), default=repr)]))
    except (SyntaxError, ValueError):
        pass
    return FileMeaning(_digest([content]))


@lru_cache(maxsize=2000)
def _read_code(content: bytes) -> FileMeaning:
    tree = ast.parse(content)
    imports: list[tuple[int, str]] = []
    texts: list[str] = []
    criteria: list[str] = []
    reads_source = False
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = f"{node.module}." if node.module else ""
            imports += [(node.level, f"{base}{alias.name}") for alias in node.names]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append(node.value)
        elif isinstance(node, (ast.Attribute, ast.Name)):
            reads_source = reads_source or (node.attr if isinstance(node, ast.Attribute) else node.id) in _READS_SOURCE
        elif isinstance(node, ast.ClassDef):
            criteria += _criteria(node)
    if reads_source:
        meaning = _digest([content])
    else:
        words: list[str] = []
        _dump(tree, words)
        meaning = _digest(["".join(words).encode("utf-8", "surrogatepass")])
    return FileMeaning(meaning, tuple(imports), tuple(texts), tuple(criteria))


def _criteria(node: ast.ClassDef) -> Iterator[str]:
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "criterion":
            yield str(ast.literal_eval(decorator.args[0]))


def _dump(node: object, into: list[str]) -> None:
    """Code as text, the same in every version of Python; `ast.dump` is not. Texts that stand alone do nothing."""
    if isinstance(node, ast.Constant):
        into.append(f"{type(node.value).__name__}:{node.value!r}")
    elif isinstance(node, ast.AST):
        into.append(f"{type(node).__name__}(")
        for name in node._fields:
            value = getattr(node, name, None)
            if value is not None and value != [] and name != "type_comment":
                into.append(f"{name}=")
                _dump(value, into)
        into.append(")")
    elif isinstance(node, list):
        into.append("[")
        for child in node:
            if not (
                isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant) and type(child.value.value) is str
            ):
                _dump(child, into)
                into.append(",")
        into.append("]")
    else:
        into.append(repr(node))


def _module_of(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _file_of(module: str) -> list[str]:
    """The place of a module that a course names; none for an empty name."""
    return [f"{module.replace('.', '/')}.py"] if module else []


def _below(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    return [path for path in place.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def _digest(parts: Iterable[str | bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()
