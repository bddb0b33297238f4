"""Which of a student's code can take part in the answer to a request, as a digest.

A probe's answer depends on the question and on those functions, classes and constants of the student's modules that
the probe uses, directly or through others, and on what these modules do when they are imported. Two submissions in
which all of this is the same get the same answer, so one may have the other's. Which code it is, is read from the
source of probes and of the submission: every name that occurs counts as used. Where reading leaves a doubt there is no
digest, and only a submission that is the same in every file gets the same answer. No grade depends on this: it spares
a student who watches (`watching/`) and our own tests what cannot have changed.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gradebox.common import layout
from gradebox.course.course import Course
from gradebox.sandbox import Request

_WORD = re.compile(r"\w+")
_WRITTEN = re.compile(r"\w+/(REPORT\.md|README\.md|results/.*)")
"""Read by the judge itself, and by no probe."""
_IMPORT = "<the import>"
"""What a module does when it is imported, besides defining functions and constants."""
_PROGRAM = "<the program>"
"""What runs only where the module is the program."""
_HARMLESS = frozenset((
    *("cache", "lru_cache", "contextmanager", "no_grad", "inference_mode", "property", "wraps"),
    "measures",  # of `gradebox.hardware`, on probes
))  # fmt: skip
"""Decorators that do nothing to any other code."""
_DOUBTFUL = frozenset((
    *("globals", "exec", "eval", "__import__", "import_module", "modules", "_getframe", "currentframe", "getframeinfo"),
    *("__globals__", "__code__", "__closure__", "__builtins__", "builtins", "ctypes", "settrace", "setprofile"),
    *("get_objects", "get_referrers", "get_referents", "getmembers", "getsource", "f_back", "f_globals", "f_locals"),
))  # fmt: skip
"""Who mentions one of these may reach code that it does not name."""
_MEANT_WELL = frozenset(("modules", "eval", "builtins", "import_module"))
"""Those that honest code of a network has, too: `model.modules()`, `model.eval()`, an import by its name."""

Symbol = tuple[str, str]
"""A module and a name that it defines at its top level."""


@dataclass
class _Definition:
    """What a function, class or constant mentions, and what it is."""

    names: set[str] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)
    dump: str = ""
    places: list[int] = field(default_factory=list)
    """Lines on which its parts begin."""

    def add(self, node: ast.AST, names: bool = True) -> None:
        """Count a piece of code as part of it, and the names in it as used."""
        self.dump += ast.dump(node)
        self.places += [part.lineno for part in ast.walk(node) if isinstance(part, ast.stmt)]
        for part in ast.walk(node) if names else ():
            if isinstance(part, ast.Name):
                self.names.add(part.id)
            elif isinstance(part, ast.Attribute):
                self.names.add(part.attr)
            elif isinstance(part, ast.alias):
                self.names.update(part.name.split("."))
                self.names.add(part.asname or part.name)
            elif isinstance(part, ast.Constant) and isinstance(part.value, str):
                self.texts.add(part.value)


_NOTHING = _Definition()


@dataclass
class _Source:
    """A parsed module: what it defines, and what it imports from neighbours (a name, or "" for the whole module)."""

    definitions: dict[str, _Definition]
    imported: dict[str, Symbol]

    @property
    def offered(self) -> set[str]:
        return set(self.definitions) | set(self.imported)


class DependencyGraph:
    """Reads submissions of one course: knows its probes, and by what names its modules are called."""

    def __init__(self, course: Course, reference: Mapping[str, bytes] | None = None) -> None:
        """`reference`: the files of a submission whose code is known to reach only what it names; None: there is none,
        and a submission counts as written by somebody who does not want to deceive himself."""
        self._folder = course.folder
        self._course = f"{course.package}."
        packages = "|".join(re.escape(lab.package) for lab in course.all_labs)
        self._module = re.compile(rf"(?:{packages})\.\w+")
        self._reference = reference
        known = {name: self._as_module(name) for name in reference or ()}
        self._known = {module: self._parse(reference[name], module) for name, module in known.items() if module}  # type: ignore[index]
        self._mentioned = functools.cache(self._all_mentioned)
        self._probe_source = functools.cache(self._source_of_probe)

    def read(self, files: Mapping[str, bytes]) -> Code:
        """Parse a submission, given as its files by their paths; what is as in the reference is known."""
        modules: dict[str, _Source] = {}
        doubtful, others = False, hashlib.sha256()
        doubts: set[Symbol] = set()
        for name, content in sorted(files.items()):
            same = self._reference is not None and self._reference.get(name) == content
            if not (module := self._as_module(name)):
                if not same and not _WRITTEN.fullmatch(name):
                    doubtful = doubtful or self._reference is not None
                    others.update(repr((name, hashlib.sha256(content).digest())).encode())
                continue
            try:
                modules[module] = self._parse(content, module)
            except (SyntaxError, ValueError, RecursionError):
                return Code(self, {}, doubtful=True)
            new_doubts = () if same else self._doubts(modules[module], module)
            # An honest author is in doubt only if that code takes part.
            doubtful = doubtful or (self._reference is not None and bool(new_doubts))
            doubts.update((module, name) for name in new_doubts)
        missing = any(name not in files and not _WRITTEN.fullmatch(name) for name in self._reference or ())
        return Code(self, modules, doubtful or missing, frozenset(doubts), others.hexdigest())

    def entries(self, request: Request, code: Code) -> set[Symbol]:
        """The student's code that a request's probe names."""
        probe, _, function = request.probe.rpartition(".")
        words = self._mentioned(probe, function) | set(_strings(request.params))
        known = self._known or code.modules
        modules = {module for word in words for module in self._module.findall(word) if module in known}
        if "module" in request.params or "program" in request.params:
            # A program runs from its top to its bottom.
            symbols = {(module, name) for module in modules for name in code.offered(module)}
        else:
            plain = {part for word in words for part in _WORD.findall(word)}
            symbols = {(module, name) for module in modules for name in code.offered(module) & plain}
        return symbols | {(module, _IMPORT) for module in modules}

    def probe_file(self, module: str) -> Path:
        """Where the functions of `lab1.basics` are."""
        return layout.probe_file(self._folder, module)

    def _doubts(self, source: _Source, module: str) -> list[str]:
        """What of the code that the reference does not have may reach more than it names."""
        known = self._known.get(module)
        doubtful = _DOUBTFUL if self._reference is not None else _DOUBTFUL - _MEANT_WELL
        return [
            name
            for name, definition in source.definitions.items()
            if definition.names & doubtful
            and (known is None or known.definitions.get(name, _NOTHING).dump != definition.dump)
        ]

    def _as_module(self, name: str) -> str:
        """The module in a file of a submission; empty where it is none that probes import."""
        module = name.removesuffix(".py").replace("/", ".")
        is_module = name.endswith(".py") and self._module.fullmatch(module) and not module.endswith("__init__")
        return module if is_module else ""

    def _parse(self, content: bytes, module: str) -> _Source:
        """Raises SyntaxError."""
        return _parse(content, module, self._module.pattern, self._course)

    def _all_mentioned(self, probe: str, function: str) -> frozenset[str]:
        """Every name and text that a probe function, or anything it uses among probes and cases, mentions."""
        visited: set[Symbol] = set()
        words: set[str] = set()
        file = self.probe_file(probe)
        module = ".".join(file.relative_to(self._folder).with_suffix("").parts).removesuffix(".__init__")
        open_ = [(module, function), (module, _IMPORT)]
        while open_:
            symbol = open_.pop()
            if symbol in visited or not layout.file_of(self._folder, symbol[0]).is_file():
                continue
            visited.add(symbol)
            source = self._probe_source(symbol[0])
            if symbol[1] in source.imported:
                open_.append(source.imported[symbol[1]])
            if symbol[1] in source.definitions:
                definition = source.definitions[symbol[1]]
                words |= definition.texts | definition.names
                open_ += [(symbol[0], name) for name in definition.names]
        return frozenset(words)

    def _source_of_probe(self, module: str) -> _Source:
        """A module of probes or cases, by its name below the course's package, as are those that it imports."""
        content = layout.file_of(self._folder, module).read_bytes()
        tree = ast.parse(content)
        definitions = self._parse(content, "probes.none").definitions
        imported: dict[str, Symbol] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(self._course):
                base = str(node.module).removeprefix(self._course)
                for alias in node.names:
                    whole = f"{base}.{alias.name}"
                    is_module = layout.file_of(self._folder, whole).is_file()
                    if {layout.PROBES, layout.CASES} & set((whole if is_module else base).split(".")):
                        imported[alias.asname or alias.name] = (whole, "") if is_module else (base, alias.name)
        return _Source(definitions, imported)


@dataclass(frozen=True)
class Code:
    """A submission's modules, parsed."""

    reach: DependencyGraph
    modules: dict[str, _Source]
    doubtful: bool = False
    """Whether there is something in it that a reader does not understand."""
    doubts: frozenset[Symbol] = frozenset()
    """Code that may reach more than it names."""
    others: str = ""
    """Of the files that are no modules."""

    def digest(self, request: Request, *, lines: bool = False) -> str | None:
        """Changes when anything does that may take part in the answer to a request; None: that is not known.

        With `lines` also when something moves in its file: an answer may name the line.
        """
        if not request.student:
            return "nobody's"
        if self.doubtful or not (symbols := self.symbols(request)) or symbols & self.doubts:
            return None
        digest = hashlib.sha256(self.others.encode())
        for module, name in sorted(symbols):
            source = self.modules.get(module)
            definition = source.definitions.get(name) if source else None
            at = source.imported.get(name) if source else None
            places = definition.places if definition and lines else []
            digest.update(repr((module, name, definition.dump if definition else None, at, places)).encode())
        return digest.hexdigest()

    def symbols(self, request: Request) -> set[Symbol]:
        """All of the student's code that may take part in the answer to a request; empty where that is not known."""
        return self._closure(self.reach.entries(request, self))

    def offered(self, module: str) -> set[str]:
        """The names that another module can have from one."""
        return self.modules[module].offered if module in self.modules else set()

    def _closure(self, entries: Iterable[Symbol]) -> set[Symbol]:
        """What code uses, through any number of steps."""
        visited: set[Symbol] = set()
        open_ = list(entries)
        while open_:
            module, name = symbol = open_.pop()
            if symbol in visited:
                continue
            visited.add(symbol)
            source = self.modules.get(module)
            if source is None:
                continue
            open_.append((module, _IMPORT))
            if name == _IMPORT:  # what it imports is imported, whether it is used or not
                open_ += [(where, _IMPORT) for where, _ in source.imported.values()]
            if name in source.imported:
                open_.append(source.imported[name])
            definition = source.definitions.get(name, _Definition())
            open_ += [(module, word) for word in definition.names & source.offered]
            for word in definition.names & set(source.imported):
                where, what = source.imported[word]
                if not what:  # the module itself: whatever of it is mentioned
                    open_ += [(where, inner) for inner in definition.names & self.offered(where)]
            for text in definition.texts:
                if text.removeprefix("labs.") in self.modules:  # for import_module, or another interpreter's -m
                    inner = text.removeprefix("labs.")
                    open_ += [(inner, other) for other in self.offered(inner)]
        return visited


@functools.lru_cache(maxsize=500)
def _parse(content: bytes, module: str, modules: str, course: str) -> _Source:
    """Raises SyntaxError."""
    tree = ast.parse(content)
    package = module.partition(".")[0]
    definitions: dict[str, _Definition] = {_IMPORT: _Definition()}
    imported: dict[str, Symbol] = {}
    for node in ast.walk(tree):  # also inside of functions
        for base, name, known_as in _neighbours(node, package, modules, course):
            imported[known_as] = (base, name)
    for statement in tree.body:
        for name in _defined(statement):
            definitions.setdefault(name, _Definition()).add(statement)
        for part in _runs_at_import(statement):
            definitions[_IMPORT].add(part, names=not isinstance(part, (ast.Import, ast.ImportFrom)))
    return _Source(definitions, imported)


def _neighbours(node: ast.AST, package: str, modules: str, course: str) -> Iterator[tuple[str, str, str]]:
    """The modules of ours that an import names: module, name in it ("" for all of it), and what it is called here."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            name = alias.name.removeprefix("labs.").removeprefix(course)
            if name.partition(".")[0] == package or re.fullmatch(modules, name):
                yield name, "", alias.asname or alias.name.partition(".")[0]
    elif isinstance(node, ast.ImportFrom):
        if node.level:
            base = f"{package}.{node.module}" if node.module else package
        else:
            base = (node.module or "").removeprefix("labs.").removeprefix(course)
            if base.partition(".")[0] != package and not re.match(modules, f"{base}._"):
                return
        for alias in node.names:
            whole = "." not in base
            yield (f"{base}.{alias.name}" if whole else base), ("" if whole else alias.name), alias.asname or alias.name


def _defined(node: ast.stmt) -> list[str]:
    if _is_program(node):
        return [_PROGRAM]
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [part.id for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]


def _is_program(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and not node.orelse and ast.unparse(node.test) == "__name__ == '__main__'"


def _runs_at_import(node: ast.stmt) -> list[ast.AST]:
    """What of a statement does something, and not only to what it defines, when its module is imported."""
    if _is_program(node):
        return []
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        defaults = [
            default
            for default in (*node.args.defaults, *node.args.kw_defaults)
            if default is not None and _calls(default)
        ]
        return [*node.decorator_list, *defaults, *([] if _is_harmless(node.decorator_list) else [node])]
    if isinstance(node, ast.ClassDef):
        inner = [part for statement in node.body for part in _runs_at_import(statement)]
        return [*node.decorator_list, *node.bases, *node.keywords, *inner]
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        return [node] if node.value is not None and _calls(node.value) else []
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return []
    return [node]


def _calls(node: ast.AST) -> bool:
    """Whether evaluating this may do something."""
    return any(not isinstance(part, _PLAIN) for part in ast.walk(node))


_PLAIN = (
    *(ast.Constant, ast.Name, ast.Load, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.Attribute),
    *(ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator, ast.Starred),
)


def _is_harmless(decorators: Iterable[ast.expr]) -> bool:
    plain = (decorator.func if isinstance(decorator, ast.Call) else decorator for decorator in decorators)
    names = (target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "") for target in plain)
    return all(name in _HARMLESS for name in names)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from _each(value.values())
    elif isinstance(value, (list, tuple)):
        yield from _each(value)


def _each(values: Iterable[object]) -> Iterator[str]:
    for value in values:
        yield from _strings(value)
