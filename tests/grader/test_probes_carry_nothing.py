"""What probes hand to a submission carries no notes: no list or table in an attribute, a class or a default argument.

A submission can read and write such a thing. Notes belong into `grader.shared.probes.kept`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TypeGuard

import pytest

ROOT = Path(__file__).parents[2]
PROBES = sorted(
    path
    for path in (ROOT / "grader").rglob("*.py")
    if path.name == "probes.py" or "probes" in path.relative_to(ROOT).parts
)
_BORDER = frozenset({"checks", "probes", "reference"})
_MAKERS = frozenset({"list", "dict", "set", "deque", "defaultdict", "Counter", "OrderedDict", "bytearray"})
_INSIDE = frozenset({
    "lab5/monitoring/probes/fake_nvml.py FakeNvml.calls",
    "lab5/monitoring/probes/fake_nvml.py FakeNvml.held",
    "lab5/monitoring/probes/fake_nvml.py FakeNvml._exempt",
    "lab5/monitoring/probes/fake_nvml.py FakeNvml._begun",
    "shared/probes/interpreters.py Interpreters._waiting",
    "shared/probes/record.py _Dispatched.products",
    "shared/probes/record.py _DispatchedNames.names",
})  # fmt: skip
"""Attributes, by file and name, of objects that a probe keeps to itself: what it hands out does not lead to them."""


def _is_mutable(value: ast.expr | None) -> bool:
    if isinstance(value, (ast.List, ast.Dict)):
        return not (value.elts if isinstance(value, ast.List) else value.keys)
    name = value.func if isinstance(value, ast.Call) else None
    return isinstance(name, ast.Name) and name.id in _MAKERS and not value.args  # type: ignore[union-attr]


def carried(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of each default argument, and of each public attribute, that begins as an empty collection."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            for default in (*node.args.defaults, *node.args.kw_defaults):
                if _is_mutable(default):
                    yield node.lineno, f"a default argument of {getattr(node, 'name', 'a lambda')}"
        if isinstance(node, ast.ClassDef):
            for statement in ast.walk(node):
                if not isinstance(statement, (ast.Assign, ast.AnnAssign)):
                    continue
                for target in statement.targets if isinstance(statement, ast.Assign) else [statement.target]:
                    if isinstance(target, ast.Attribute) and _is_mutable(statement.value):
                        yield statement.lineno, f"{node.name}.{target.attr}"


_NOTING_ONLY = frozenset({"lab3/shared/probes/versions.py hook", "lab5/monitoring/probes/running.py on_alert"})
"""Functions that hold nothing but what notes, to which nobody can add anything useful; or that Python gives nobody."""
_HIDING = frozenset({"function", "method", "started", "loader", "sized_loader", "reporting"})
"""What is handed to these is out of reach: of `kept` and `loaders`, and of Lab 2's comparison."""


def open_notes(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of each function that is made in another one, notes something, and shows what it holds: in place of
    it `function` or `method` of `grader.shared.probes.kept` is handed out."""
    noting = {"note"} | {
        target.elts[0].id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _is_named(node.value.func, {"notes"})
        for target in node.targets
        if isinstance(target, ast.Tuple) and isinstance(target.elts[0], ast.Name)
    }
    hidden = {
        part.id if isinstance(part, ast.Name) else id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _is_named(node.func, _HIDING)
        for argument in node.args
        for part in ast.walk(argument)
    }

    def visit(node: ast.AST, made: ast.FunctionDef | ast.Lambda | None, depth: int) -> Iterator[tuple[int, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.Lambda)):
                name = child.name if isinstance(child, ast.FunctionDef) else id(child)
                decorated = isinstance(child, ast.FunctionDef) and any(
                    _is_named(each, _HIDING) for each in child.decorator_list
                )
                yield from visit(child, None if decorated or name in hidden or not depth else child, depth + 1)
                continue
            if made is not None and isinstance(child, ast.Call) and _is_named(child.func, noting):
                yield made.lineno, getattr(made, "name", "a lambda")
            yield from visit(child, made, depth)

    return visit(tree, None, 0)


def _is_named(node: ast.expr, names: Collection[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in names


_HOOKS = re.compile(r"register_\w*hook")
_HARMLESS = frozenset({
    "lab2/shared/probes.py clear",
    "lab5/monitoring/probes/running.py exec()",
    "lab5/pipeline/probes/trainers.py Sink._note",
    "lab5/pipeline/probes/trainers.py Watched._note",
    "lab5/pipeline/probes/trainers.py Watched._noted",
    "lab5/profiling/probes/recording.py a lambda",
    "shared/probes/handed_out.py work",
    "shared/probes/interpreters.py exec()",
})  # fmt: skip
"""By file and name, what notes nothing, what anybody may call, and what is not handed out."""


def shown_parts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and name of what a submission reads or writes on an object that it is handed: the batches of a loader that
    is a class of its own, a hook that is a plain function, what notes as an attribute, and code of a text's."""
    hidden = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and _is_hiding(node)}
    assigned = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from ((each.lineno, f"{node.name}.__iter__") for each in node.body if _is_function(each, "__iter__"))
        if isinstance(node, ast.ClassDef) and not _is_of_modes(node):
            yield from ((each.lineno, f"{node.name}.{each.attr}") for each in ast.walk(node) if _keeps_a_note(each))
        if not isinstance(node, ast.Call):
            continue
        if _is_named(node.func, {"exec", "eval"}):
            yield node.lineno, f"{ast.unparse(node.func)}()"
        if isinstance(node.func, (ast.Attribute, ast.Name)) and node.args:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            hook = node.args[0]
            hook = assigned.get(hook.id, hook) if isinstance(hook, ast.Name) else hook
            if _HOOKS.search(name) and not isinstance(hook, ast.Call) and ast.unparse(hook) not in hidden:
                yield node.lineno, "a lambda" if isinstance(hook, ast.Lambda) else ast.unparse(hook)


def _is_hiding(node: ast.FunctionDef) -> bool:
    return any(_is_named(each, _HIDING) for each in node.decorator_list)


def _is_function(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name == name


def _is_of_modes(node: ast.ClassDef) -> bool:
    """Modes of PyTorch see what has no other watcher: on real GPUs alone, and there nothing else does."""
    return any(ast.unparse(base).endswith("Mode") for base in node.bases)


def _keeps_a_note(node: ast.AST) -> TypeGuard[ast.Attribute]:
    is_stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    return is_stored and node.attr.lstrip("_") in {"note", "noted", "passed", "seen"}  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", PROBES, ids=lambda path: str(path.relative_to(ROOT / "grader")))
def test_what_is_handed_out_carries_no_notes(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    place = path.relative_to(ROOT / "grader").as_posix()
    found = [f"{place}:{line}: {name}" for line, name in carried(tree) if f"{place} {name}" not in _INSIDE]
    assert not found, "keep notes in grader.shared.probes.kept"
    shown = [f"{place}:{line}: {name}" for line, name in open_notes(tree) if f"{place} {name}" not in _NOTING_ONLY]
    assert not shown, "hand out a function or method of grader.shared.probes.kept: a closure shows what it holds"
    parts = [f"{place}:{line}: {name}" for line, name in shown_parts(tree) if f"{place} {name}" not in _HARMLESS]
    assert not parts, "use `function`, `method` and `notes` of grader.shared.probes.kept, and `loaders`"


def test_the_lint_finds_what_it_is_for() -> None:
    text = """
class Model:
    def __init__(self):
        self.calls = []
        self._seen: dict[str, int] = {}
        self.sizes = [1, 2]

def probe(student, notes=[], *, more={}):
    pass
"""
    assert [name for _, name in carried(ast.parse(text))] == [
        "Model.calls", "Model._seen", "a default argument of probe", "a default argument of probe",
    ]  # fmt: skip


def test_the_lint_finds_functions_that_show_what_they_hold() -> None:
    text = """
def probe(student):
    begin, seen = notes()

    @function
    def hidden(x):
        begin(x)

    def wrapped(x):
        begin(x)

    def shown(x):
        begin(x)

    hand_out(hidden, function(wrapped), shown, lambda: begin(1), function(lambda: begin(2)))
    begin(3)
"""
    assert [name for _, name in open_notes(ast.parse(text))] == ["shown", "a lambda"]


def test_the_lint_finds_parts_that_a_submission_can_take() -> None:
    text = """
class Loader:
    def __init__(self, note):
        self._note = note

    def __iter__(self):
        return iter(())

class Hidden:
    __iter__ = method(batches)

class Spy(TorchDispatchMode):
    def __init__(self, note):
        self._note = note

def probe(student):
    def plain(module, arguments):
        pass

    @function
    def safe(module, arguments):
        pass

    hidden = function(plain)
    model.register_forward_hook(plain)
    register_module_forward_pre_hook(safe)
    model.register_forward_hook(hidden)
    model.register_forward_hook(lambda *_: None)
    exec(text)
"""
    assert sorted(name for _, name in shown_parts(ast.parse(text))) == [
        "Loader.__iter__", "Loader._note", "a lambda", "exec()", "plain",
    ]  # fmt: skip


def test_any_stays_rare_on_the_border() -> None:
    """What a probe is given and returns has a declared type; `Any` is for what a submission made."""
    files = [path for path in (ROOT / "grader").rglob("*.py") if _BORDER & {path.stem, *path.relative_to(ROOT).parts}]
    counts = {
        str(path.relative_to(ROOT)): sum(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(tree))
        for path in files
        for tree in [ast.parse(path.read_text(encoding="utf-8"))]
    }
    most = sorted(counts, key=counts.__getitem__)[-3:]
    assert len(files) > 150
    assert sum(counts.values()) < 150, f"declare types instead of `Any`, which is most frequent in {', '.join(most)}"


_HELD = frozenset({"parameters", "named_parameters", "buffers", "named_buffers"})
_SAID = frozenset({"dtype", "device", "shape", "numel", "nbytes", "is_cuda", "untyped_storage", "data_ptr", "detach"})
"""What a tensor of the submission's class can say of itself as it likes."""
_OWN = frozenset({
    "lab4/checkpointing/probes.py:_filled",
    "lab4/oom/probes.py:_step_flops",
    "lab5/profiling/probes/jobs.py:fingerprint",
    "sharding/fsdp/probes/one_gpu.py:train",
})  # fmt: skip
"""Functions that see models of the probe's alone, or that make what the submission gets."""


def believed(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and function in which a probe reads what the parameters of a model say of themselves, and not of `exact`."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in ast.walk(function):
            loops: Sequence[ast.For | ast.comprehension]
            body: Sequence[ast.AST]
            if isinstance(node, ast.For):
                loops, body = [node], node.body
            elif isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp)):
                loops, body = node.generators, [node.elt]
            else:
                continue
            for loop in loops:
                called = loop.iter.func if isinstance(loop.iter, ast.Call) else None
                if isinstance(called, ast.Attribute) and called.attr in _HELD:
                    names = {part.id for part in ast.walk(loop.target) if isinstance(part, ast.Name)}
                    for part in [part for statement in body for part in ast.walk(statement)]:
                        if isinstance(part, ast.Attribute) and part.attr in _SAID and _is_named(part.value, names):
                            yield part.lineno, function.name


def test_probes_do_not_ask_parameters_what_they_are() -> None:
    found = {
        f"{path.relative_to(ROOT / 'grader')}:{name} (line {line})"
        for path in PROBES
        for line, name in believed(ast.parse(path.read_text()))
        if f"{path.relative_to(ROOT / 'grader')}:{name}" not in _OWN
    }
    assert not found, "read them of `exact(parameter, ...)`"


def test_the_search_for_believed_parameters_finds_one() -> None:
    tree = ast.parse("def f(model):\n    return [each.dtype for each in model.parameters()]\n")
    assert list(believed(tree)) == [(2, "f")]
