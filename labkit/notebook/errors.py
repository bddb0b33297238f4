"""What a notebook shows instead of a long error: an open task, a cell that builds on one, an error in student code.

For these the cell counts as done, so that "Run All" goes on with the next one; `nbconvert --execute`, too. All other
errors look as they always do, and end a run.
"""

from __future__ import annotations

import ast
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from labkit.notebook import notes
from labkit.notebook.modules import PACKAGE

_OPEN = re.compile(r"Task (?P<task>\d+\.\d+) is open: write (?P<name>\S+) in (?P<file>\S+)")
_MAX_FRAMES = 4


def install(labs: Path) -> None:
    """Take over IPython's errors in this kernel; does nothing outside of IPython."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is None:
        return
    handler = _Handler(labs)
    shell.set_custom_exc(
        (Exception,), lambda shell, kind, error, trace, tb_offset=None: handler(shell, kind, error, trace, tb_offset)
    )
    shell.events.register("pre_run_cell", handler.remember)
    shell.events.register("post_run_cell", handler.forgive)


class _Handler:
    """Knows which names are missing because the cell that makes them met an open task."""

    def __init__(self, labs: Path) -> None:
        self._labs = labs
        self._source = ""
        self._missing: dict[str, str] = {}
        self._shown = False

    def remember(self, info: Any) -> None:
        """Called before each cell."""
        self._source = info.raw_cell or ""
        self._shown = False

    def forgive(self, result: Any) -> None:
        """Called after each cell: what was shown in our way is no error to the kernel, which would drop later cells."""
        if self._shown:
            result.error_in_exec = None

    def __call__(
        self, shell: Any, kind: type[Exception], error: Exception, trace: TracebackType | None, offset: int | None
    ) -> None:
        self._shown = self._show(error)
        if not self._shown:
            shell.showtraceback((kind, error, trace), tb_offset=offset)

    def _show(self, error: Exception) -> bool:
        """Show a note where there is one to show."""
        for link in _chain(error):
            match = _OPEN.search(str(link)) if isinstance(link, NotImplementedError) else None
            if match:
                task = match["task"]
                self._missing.update(dict.fromkeys(_assigned(self._source), task))
                notes.card(
                    f"Task {task} is open: {match['file']}, function `{match['name']}`. "
                    "`make next` says how to begin. The notebook goes on.",
                    kind="open",
                )
                return True
        if isinstance(error, NameError) and error.name in self._missing:
            task = self._missing[error.name]
            self._missing.update(dict.fromkeys(_assigned(self._source), task))
            notes.card(f"This cell needs `{error.name}`, which waits for task {task}.", kind="builds-on-open")
            return True
        if lines := self._own_frames(error):
            notes.wrong("An error in your code; the notebook goes on.", "\n".join(lines))
            return True
        return False

    def _own_frames(self, error: BaseException) -> list[str]:
        """The frames in the student's files and the error itself; empty where none is theirs."""
        if frames := getattr(error, "student_frames", ()):  # of a rank, which was another process
            return list(frames)
        folder = self._labs.resolve()
        lines: list[str] = []
        frames = traceback.extract_tb(error.__traceback__)
        if isinstance(error, SyntaxError) and error.filename:
            frames.append(traceback.FrameSummary(error.filename, error.lineno or 0, "<module>", line=error.text or ""))
        for frame in frames:
            path = Path(frame.filename).resolve()
            if path.is_relative_to(folder):
                name = f"{PACKAGE}/{path.relative_to(folder).as_posix()}"
                lines.append(f"{name}, line {frame.lineno}, in {frame.name}\n    {(frame.line or '').strip()}")
        if not lines:
            return []
        return [*lines[-_MAX_FRAMES:], "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]]


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, what caused it, and what was handled when it came up."""
    visited: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        link = waiting.pop()
        if link is None or id(link) in visited:
            continue
        visited.add(id(link))
        yield link
        waiting += [link.__cause__, link.__context__]


def _assigned(source: str) -> set[str]:
    """The names that a cell gives a value to."""
    from IPython.core.inputtransformer2 import TransformerManager

    try:
        tree = ast.parse(TransformerManager().transform_cell(source))
    except SyntaxError:
        return set()
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    definitions = (ast.FunctionDef, ast.ClassDef)
    return names | {node.name for node in ast.walk(tree) if isinstance(node, definitions)}
