"""A progress bar for long work in programs.

Not for library functions: a function that measures must not draw. The bar is redrawn only between two items, by the
thread that asks for the next one; the usual background thread would wake up in the middle of a measurement.
"""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

T = TypeVar("T")


def track(items: Sequence[T], description: str) -> Iterator[T]:
    """Yield the items one by one with a bar on standard error; silent where that is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[item]}"))
    watched = console.is_terminal or console.is_jupyter
    with Progress(*columns, console=console, auto_refresh=False, transient=True, disable=not watched) as progress:
        task = progress.add_task(description, total=len(items), item="")
        for item in items:
            progress.update(task, item=str(item), refresh=True)
            yield item
            progress.advance(task)
        progress.refresh()
