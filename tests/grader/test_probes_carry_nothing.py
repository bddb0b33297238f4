"""What probes hand to a submission carries no notes: no list or table in an attribute, a class or a default argument.

A submission can read and write such a thing. Notes belong into `grader.shared.probes.kept`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROBES = sorted(
    path
    for path in (ROOT / "grader").rglob("*.py")
    if path.name == "probes.py" or "probes" in path.relative_to(ROOT).parts
)
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


@pytest.mark.parametrize("path", PROBES, ids=lambda path: str(path.relative_to(ROOT / "grader")))
def test_what_is_handed_out_carries_no_notes(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    place = path.relative_to(ROOT / "grader").as_posix()
    found = [f"{place}:{line}: {name}" for line, name in carried(tree) if f"{place} {name}" not in _INSIDE]
    assert not found, "keep notes in grader.shared.probes.kept"


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
