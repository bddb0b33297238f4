"""What a module draws at random, or reads off a clock, in a way that lets another run behave differently.

Reads the syntax of a file and never runs it. Like `source_scan.py` it misses what is written another way; so it takes
no points, and says only which checks are worth another run, and what an instructor should read.
"""

from __future__ import annotations

import ast
import time
from collections.abc import Iterator, Set
from dataclasses import dataclass, replace

from gradebox.run.grade import CheckReport, Outcome

_DRAWS = frozenset(("random", "randint", "randrange", "randbelow", "rand", "randn", "randperm", "uniform", "choice",
                    "choices", "shuffle", "sample", "random_sample", "permutation", "integers", "normal", "bernoulli",
                    "getrandbits", "randbits", "default_rng", "Random", "SystemRandom", "RandomState", "secrets",
                    "token_hex", "token_bytes", "uuid", "uuid1", "uuid4", "urandom", "getpid", "time", "time_ns",
                    "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time",
                    "process_time_ns", "now", "today", "utcnow", "hash", "id"))  # fmt: skip
"""What another run answers in another way, by the parts of its name."""
_GENERATORS = frozenset(("default_rng", "Random", "RandomState"))
_SEEDS = frozenset(("seed", "manual_seed"))
_RUNS, _SECONDS = 8, 5.0
"""A coin falls eight more times on the same side once in 256 times. Slow checks are run once more in any case."""
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass
class Draw:
    """Where a lab draws so that runs may differ, and how often its failed checks may be run again for that."""

    place: str
    """Empty if nowhere."""
    at_import: bool = True
    """Otherwise a function decides by it which code runs."""
    runs_left: int = _RUNS
    """Of all checks of the lab together: each run of each check imports it again, and so draws again."""

    def runs(self) -> Iterator[int]:
        """The further runs of one check."""
        ends_at = time.monotonic() + _SECONDS
        for number in range(max(1, self.runs_left)):
            if number and time.monotonic() > ends_at:
                return
            self.runs_left -= 1
            yield number

    def reported(self, failed: CheckReport, again: CheckReport) -> CheckReport:
        """The report of a check that failed, and was run again until its result was another one, or often enough."""
        if (again.outcome, again.answered) == (failed.outcome, failed.answered):
            return failed
        second = "it passed" if again.outcome is Outcome.PASSED else f"the result was another one: {again.message}"
        hint = (
            "draws at random, or looks at the clock, while the module is imported: do it in a function, with the "
            "generator or seed that it is given"
            if self.at_import
            else "lets a draw of its own, or the clock, decide which code runs: draw from the generator or seed that "
            "is given, or do without"
        )
        return replace(
            failed,
            message=f"{failed.message}. Run again with the same inputs, {second}; so your code behaves differently "
            "from run to run",
            hint=f"{self.place} {hint}",
        )


def draw(tree: ast.Module) -> int | None:
    """The line of a call that draws at random or looks at a clock while the module is imported; None for none."""
    functions = _drawing_functions(tree, frozenset())
    for call in _calls(_at_import(tree)):
        if _DRAWS & set(_dotted(call.func).split(".")) or _dotted(call.func) in functions:
            return call.lineno
    return None


def toss(tree: ast.Module) -> int | None:
    """The line where a function decides by a draw of its own which code runs; None for none.

    What it draws from something that it was given is none: whoever calls it chooses the seed.
    """
    steady = frozenset(_steady(tree))
    functions = _drawing_functions(tree, steady)
    lines: list[int | None] = []
    for function in ast.walk(tree):
        if isinstance(function, _FUNCTIONS):
            known = steady | {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)}
            lines += [_line_of_decision(node, functions, frozenset(), known) for node in ast.walk(function)]
    return min(filter(None, lines), default=None)


def decision(tree: ast.Module) -> int | None:
    """The line where a draw of an import decides which code runs or is defined; None for none.

    The decision may be in a function that looks at a variable of the module. What a function draws by itself is no such
    draw, because dropout and shuffling do that, nor is one whose seed is a constant.
    """
    steady = frozenset(_steady(tree))
    functions = _drawing_functions(tree, steady)
    drawn: set[str] = set()
    for node in _at_import(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if _is_drawn(node.value, functions, drawn, steady):
                drawn |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    lines = [_line_of_decision(node, functions, drawn, steady) for node in _at_import(tree)]
    for function in ast.walk(tree) if drawn else ():
        if isinstance(function, _FUNCTIONS) and (names := drawn - _own_names(function)):
            lines += [_line_of_decision(node, frozenset(), names, steady, calls=False) for node in ast.walk(function)]
    return min(filter(None, lines), default=None)


def _line_of_decision(
    node: ast.AST, functions: Set[str], drawn: Set[str], steady: Set[str], *, calls: bool = True
) -> int | None:
    """The line of a node that chooses between pieces of code by what was drawn; None of another."""
    match node:
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test) | ast.Assert(test=test):
            chosen = test
        case ast.Match(subject=subject):
            chosen = subject
        case ast.Subscript(slice=index):
            chosen = index
        case ast.BoolOp(values=values):
            chosen = values[0]
        case _:
            return None
    return chosen.lineno if _is_drawn(chosen, functions, drawn, steady, calls=calls) else None


def _is_drawn(
    expression: ast.expr, functions: Set[str], drawn: Set[str], steady: Set[str], *, calls: bool = True
) -> bool:
    """Whether a value was drawn, or computed from what was."""
    for node in ast.walk(expression):
        if isinstance(node, ast.Name) and node.id in drawn:
            return True
        if calls and isinstance(node, ast.Call):
            name = _dotted(node.func)
            if name in functions or (name.rpartition(".")[2] in _DRAWS and not _is_steady(node, steady)):
                return True
    return False


def _is_steady(call: ast.Call, steady: Set[str]) -> bool:
    """Whether a call answers the same in each run, because its generator has a constant seed."""
    first, _, last = _dotted(call.func).partition(".")
    seeded = last.rpartition(".")[2] in _GENERATORS or first in _GENERATORS
    inner = call.func.value if isinstance(call.func, ast.Attribute) else None
    return (
        (seeded and _is_constant(call))
        or first in steady
        or any(keyword.arg == "generator" for keyword in call.keywords)
        or (isinstance(inner, ast.Call) and _is_steady(inner, steady))
    )


def _steady(tree: ast.Module) -> Iterator[str]:
    """Names of the module's generators with a constant seed, and of libraries that it has given one."""
    for node in _at_import(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            if _dotted(node.value.func).rpartition(".")[2] in _GENERATORS and _is_constant(node.value):
                yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.Call) and _dotted(node.func).rpartition(".")[2] in _SEEDS and _is_constant(node):
            yield _dotted(node.func).partition(".")[0]


def _is_constant(call: ast.Call) -> bool:
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return bool(given) and all(isinstance(value, ast.Constant) and value.value is not None for value in given)


def _drawing_functions(tree: ast.Module, steady: Set[str]) -> frozenset[str]:
    """Functions of the module that draw, themselves or by others of the module."""
    defined = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    calls = {name: list(_calls(ast.walk(node))) for name, node in defined.items()}
    drawing: frozenset[str] = frozenset()
    while True:
        more = frozenset(
            name
            for name, inside in calls.items()
            if any(
                _dotted(call.func) in drawing
                or (_DRAWS & set(_dotted(call.func).split(".")) and not _is_steady(call, steady))
                for call in inside
            )
        )
        if more == drawing:
            return drawing
        drawing = more


def _own_names(function: ast.AST) -> set[str]:
    """What a function calls something else than the module does."""
    return {node.arg for node in ast.walk(function) if isinstance(node, ast.arg)} | {
        node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _at_import(node: ast.AST) -> Iterator[ast.AST]:
    """What an import carries out: of functions only their decorators and defaults."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = [*child.decorator_list, *child.args.defaults, *filter(None, child.args.kw_defaults)]
            for expression in inner:
                yield from ast.walk(expression)
        elif isinstance(child, ast.If) and "__main__" in ast.dump(child.test):
            continue  # not while it is imported
        elif not isinstance(child, ast.Lambda):
            yield child
            yield from _at_import(child)


def _calls(nodes: Iterator[ast.AST]) -> Iterator[ast.Call]:
    return (node for node in nodes if isinstance(node, ast.Call))


def _dotted(node: ast.expr) -> str:
    """`numpy.random.rand`; empty for what is no name."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            return f"{_dotted(value)}.{name}"
    return ""
