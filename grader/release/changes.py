"""CHANGES.md: what changed between two releases, told to students lab by lab and task by task.

Compares the files that students got with those they get now; knows nothing of git.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Mapping
from pathlib import PurePosixPath

FILE = "CHANGES.md"
_HEAD = """# Changes

The labs have changed since you got them; the newest change comes first. To take a change over without losing your work:

1. Save your work first: `git add -A && git commit -m "my work"`.
2. `git pull` (or, in a fork: `git fetch upstream && git merge upstream/main`). Git keeps what you wrote and adds what
   is new. Where both changed the same lines it stops and marks them: keep your lines, add the new ones, then
   `git add -A && git commit`. `git merge --abort` takes you back to where you were.
3. `make grade LAB=N` for the labs named below.

Without git: copy the files named below from the new release, except files that you have written in. In those, take over
only the functions that are named.
"""
_TASK = re.compile(r"Task (\d+\.\d+) is open|TODO\(task (\d+\.\d+)\)")
_FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
_ELSEWHERE = {
    "grader": "The grader",
    "gradebox": "The grader",
    "gradebook": "The grader",
    "labkit": "labkit, what every lab is given",
    "vgpu": "The virtual GPU",
    "docs": "Documents",
    "examples": "Examples",
    "notebooks": "Notebooks",
}


def render(previous: str, before: Mapping[str, bytes], now: Mapping[str, bytes], *, title: str) -> str:
    """The change log with one more release.

    Args:
        previous: the log so far; empty for the first release.
        before: what students got last time, by path.
        now: what they get.
        title: of this release, "Release 2, 2026-11-21".
    """
    older = previous.removeprefix(_HEAD).strip("\n")
    lines = list(_entry(before, now)) if before else ["The first release."]
    section = "\n".join([f"## {title}", "", *lines])
    return "\n".join([_HEAD, section, *(["", older] if older else [])]).rstrip("\n") + "\n"


def _entry(before: Mapping[str, bytes], now: Mapping[str, bytes]) -> list[str]:
    changed = sorted(name for name in {*before, *now} if before.get(name) != now.get(name) and name != FILE)
    labs: dict[str, list[str]] = {}
    elsewhere: dict[str, int] = {}
    for name in changed:
        parts = PurePosixPath(name).parts
        if parts[0] == "labs" and len(parts) > 2:
            labs.setdefault(parts[1], []).append(name)
        else:
            title = _ELSEWHERE.get(parts[0], "Setting up") if len(parts) > 1 else "Setting up"
            elsewhere[title] = elsewhere.get(title, 0) + 1
    lines = []
    for lab, names in labs.items():
        lines += [f"### {lab}", ""]
        lines += [f"- `{PurePosixPath(name).name}`: {_what(before.get(name), now.get(name), name)}" for name in names]
        lines.append("")
    if elsewhere:
        lines += ["### Next to the labs", ""]
        lines += [f"- {title}: {count} file{'s' * (count != 1)}" for title, count in sorted(elsewhere.items())]
        lines += ["", "You have nothing to do for these but to take them over."]
    return lines


def _what(before: bytes | None, now: bytes | None, name: str) -> str:
    if before is None:
        return "new"
    if now is None:
        return "no longer needed; remove it"
    if not name.endswith(".py"):
        return "changed; read it again"
    old, new = _parts(before.decode("utf-8", "replace")), _parts(now.decode("utf-8", "replace"))
    touched = sorted(part for part in {*old, *new} if old.get(part) != new.get(part))
    tasks = sorted({task for part in touched for task in _tasks(old.get(part, "") + new.get(part, ""))})
    functions = [f"`{part}`{_kind(old.get(part), new.get(part))}" for part in touched if part]
    where = ", ".join(functions) if functions else "outside of the functions"
    if functions and "" in touched:
        where += " and outside of the functions"
    return f"{where} (task {', '.join(tasks)})" if tasks else where


def _kind(before: str | None, now: str | None) -> str:
    """What of a function changed: what it takes and returns, or what is said of it, which may be a requirement, too."""
    if before is None:
        return ", new"
    if now is None:
        return ", no longer needed"
    old, new = (ast.parse(textwrap.dedent(source)).body[0] for source in (before, now))
    assert isinstance(old, _FUNCTION)
    assert isinstance(new, _FUNCTION)
    if _signature(old) != _signature(new):
        return ", its parameters or result"
    if ast.dump(_body(old)) == ast.dump(_body(new)):
        return ", its description or steps; read them again"
    return ""


def _signature(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    return f"{ast.unparse(function.args)} -> {ast.unparse(function.returns) if function.returns else ''}"


def _body(function: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.Module:
    """Its statements without the docstring; comments are none."""
    return ast.Module(function.body[1:] if ast.get_docstring(function) else function.body, [])


def _parts(source: str) -> dict[str, str]:
    """Source by function and method (`Trainer.step`); the rest of the file under an empty name."""
    lines = source.splitlines()
    parts: dict[str, str] = {}
    taken: set[int] = set()

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                span = range(first - 1, node.end_lineno or first)
                parts[f"{prefix}{node.name}"] = "\n".join(lines[index] for index in span)
                taken.update(span)

    try:
        visit(ast.parse(source).body, "")
    except SyntaxError:
        return {"": source}
    parts[""] = "\n".join(line for index, line in enumerate(lines) if index not in taken and line.strip())
    return parts


def _tasks(source: str) -> list[str]:
    return [first or second for first, second in _TASK.findall(source)]
