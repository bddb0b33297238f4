"""What a submission's source reaches for that no lab needs: frames, the heap, code objects, the grader, `exec`, private
names of libraries; and files that are not plain Python.

Reads Python files in the judge as text and never runs them. A bell, not a wall: it misses code that is written
another way, and it may find innocent code. It covers what the audit hook (`sandbox/audit.py`) cannot see, because
Python raises no event when an attribute is read.
"""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from collections.abc import Iterator, Mapping

from gradebox.course.course import Course
from gradebox.course.rubric import Lab
from gradebox.run import chance, private_names
from gradebox.run.grade import IntegrityNote
from gradebox.sandbox import devices

_FRAMES = frozenset(("f_back", "f_locals", "f_globals", "tb_frame", "gi_frame", "cr_frame", "ag_frame", "tb_next"))
_INSIDES = frozenset(("__subclasses__", "__globals__", "__code__", "__closure__", "__builtins__", "__bases__",
                     "spec_from_file_location", "__array_interface__", "__array_struct__", "eval_frame",
                     "from_file", "ctypes", "_ctypes", "ctypeslib", "stride_tricks", "libtriton",
                     "memmap", "open_memmap"))  # fmt: skip
_OF_MEMORY = frozenset(("__array_interface__", "__array_struct__"))
"""What a class of the submission's may have, by which NumPy reads and writes at any address."""
_HEAP = frozenset(("gc.get_objects", "gc.get_referrers", "gc.get_referents"))
_MODULES = frozenset(("sys.modules", "sys.meta_path", "sys.path_hooks", "sys.addaudithook", "sys.monitoring"))
_NAMES = frozenset(("exec", "eval", "compile"))
_PACKAGES = frozenset(("gradebox", "gradebook", "solutions", "ctypes", "cffi", "builtins", "_ctypes"))
"""And the course's, and that of its simulator."""
_LOADERS = frozenset(("importlib.machinery", "importlib._bootstrap_external", "zipimport", "runpy",
                      "marshal", "mmap"))  # fmt: skip
"""Ways to run code that is not a Python file of the submission, and to write files without a write that is counted."""
_MAX_BYTES, _MAX_ALL_BYTES = 2**18, 2**20
"""Of one file, and of all: dense code takes 20 s a megabyte to parse, and no lab has a tenth of this."""
MAX_NOTES = 32


def notes(files: Mapping[str, bytes], labs: tuple[Lab, ...], course: Course) -> tuple[IntegrityNote, ...]:
    """One note for each place of the selected labs' source where something unusual is named.

    Args:
        files: Python files by their path in our layout (`lab1_gpu_basics/benchmark.py`).
        labs: those that are graded; files of other labs of the `course`, and next to the labs, count as part of each.
    """
    simulator = devices.load(course.devices).SIMULATOR
    ours = _PACKAGES | {course.package} | ({simulator.package} if simulator is not None else set())
    packages = {lab.package: lab.id for lab in labs}
    others = frozenset(lab.package for lab in course.labs) - frozenset(packages)
    by_place: dict[tuple[str, str], IntegrityNote] = {}
    left = _MAX_ALL_BYTES
    for path, content in sorted(files.items(), key=lambda file: (len(file[1]), file[0])):
        folder = path.partition("/")[0]
        if folder in others and "/" in path:
            continue
        check = packages.get(folder, labs[0].id)
        left -= len(content)
        if left < 0 or len(content) > _MAX_BYTES:
            detail = f"{path} was not looked at: it has {len(content)} bytes"
            by_place[path, ""] = IntegrityNote("source", detail, path, check)
            continue
        tree = _parsed(content)
        if isinstance(tree, str):
            detail = f"{path} is not plain UTF-8 Python: {tree}"
            by_place[path, ""] = IntegrityNote("source", detail, path, check)
            continue
        of_libraries = ((line, f"{name}, a private name") for line, name in private_names.named(tree))
        for line, what in (*_unusual(tree, ours), *of_libraries):
            note = IntegrityNote("source", f"{path} names {what}", f"{path}:{line}", check)
            by_place.setdefault((path, what), note)
        if (decision := chance.decision(tree)) is not None:
            detail = f"{path} lets chance or a clock decide which code runs, so another run may have another grade"
            by_place.setdefault((path, "chance"), IntegrityNote("chance", detail, f"{path}:{decision}", check))
    return tuple(by_place.values())[:MAX_NOTES]


def draw(files: Mapping[str, bytes], package: str) -> chance.Draw:
    """Where a lab's modules draw at random, or look at the clock, so that two runs may differ; first while imported.

    Args:
        files: as of `notes`.
        package: the folder of the lab.
    """
    own = [path for path in sorted(files) if path.startswith(f"{package}/") and len(files[path]) <= _MAX_BYTES]
    trees = {path: tree for path in own if not isinstance(tree := _parsed(files[path]), str)}
    for find, at_import in ((chance.draw, True), (chance.toss, False)):
        for path, tree in trees.items():
            if (line := find(tree)) is not None:
                return chance.Draw(f"{path}:{line}", at_import)
    return chance.Draw("")


def _parsed(content: bytes) -> ast.Module | str:
    """A file as Python reads it; or, in words, why its text does not show what Python runs.

    A declared encoding may be one that the submission brings along: then Python runs something that stands nowhere.
    """
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return f"byte {error.start} is not UTF-8"
    except SyntaxError as error:
        return str(error.msg)
    if encoding not in ("utf-8", "utf-8-sig"):
        return f"it declares the encoding {encoding}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an invalid escape in their text is no warning of ours
            return ast.parse(text)
    except SyntaxError:
        return ast.Module([], [])  # an honest mistake: Python does not run it either
    except (ValueError, RecursionError, MemoryError) as error:
        return f"{type(error).__name__} when it is parsed"


def _unusual(tree: ast.Module, packages: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Line and name of what no lab needs."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in _NAMES:
                yield node.lineno, f"{name}()"
            case ast.Attribute(attr=name) if name in _FRAMES | _INSIDES:
                yield node.lineno, name
            case ast.Constant(value=str(name)) if name in _FRAMES | _INSIDES:
                yield node.lineno, name
            case ast.BinOp(op=ast.Add()) | ast.JoinedStr() | ast.Call():
                name = private_names.put_together(node)
                if name in _FRAMES | _INSIDES | packages:
                    yield node.lineno, f"{name}, put together of parts"
            case ast.FunctionDef(name=name) | ast.Name(id=name, ctx=ast.Store()) if name in _OF_MEMORY:
                yield node.lineno, name
            case ast.MatchClass(kwd_attrs=attributes):
                for name in attributes:
                    if name in _FRAMES | _INSIDES:
                        yield node.lineno, name
            case ast.Attribute(value=ast.Name(id=module), attr=name) if f"{module}.{name}" in _HEAP | _MODULES:
                yield node.lineno, f"{module}.{name}"
            case ast.Import(names=names):
                for alias in names:
                    if alias.name.partition(".")[0] in packages or alias.name in _LOADERS:
                        yield node.lineno, f"import {alias.name}"
            case ast.ImportFrom(module=str(module), level=0, names=names):
                if module.partition(".")[0] in packages or module in _LOADERS or _INSIDES & set(module.split(".")):
                    yield node.lineno, f"import {module}"
                for alias in names:
                    if alias.name in _INSIDES:
                        yield node.lineno, alias.name
                    if f"{module}.{alias.name}" in _HEAP | _MODULES:
                        yield node.lineno, f"{module}.{alias.name}"
