"""The terminal as every part of the grader draws on it: no text reaches it that is not printable.

Not for deciding what is shown (`terminal.py`, `gradebook/grading/progress.py`, `grader/cli/`).
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from gradebox.common.texts import printable


class Console(RichConsole):
    """Rich's console; whatever is printed with it, in a table, a bar or a line, is made printable on the way out."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))
