"""A progress bar for long work in programs.

Not for library functions: a function that measures must not draw. The bar is redrawn only between two items, by the
thread that asks for the next one; the usual background thread would wake up in the middle of a measurement.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

T = TypeVar("T")
_LINE_SECONDS = 10.0


def _elapsed_seconds() -> float:
    """Of the person who waits: `os.times` is never on virtual time."""
    return os.times().elapsed


def _words(item: object) -> str:
    """An item as a person reads it: the parts of a tuple one after the other, a dtype by its name."""
    if isinstance(item, tuple):
        return ", ".join(map(_words, item))
    return f"{item:.4g}" if isinstance(item, float) else str(item).removeprefix("torch.")


def track(items: Sequence[T], description: str, called: Callable[[T], str] | None = None) -> Iterator[T]:
    """Yield the items one by one with a bar on standard error; `called` says what an item is in words.

    Where that is no terminal, it gets a plain line before an item if ten seconds have passed since the last one.
    """
    console = Console(stderr=True)
    words = called or _words
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[item]}"))
    watched = console.is_terminal or console.is_jupyter
    with Progress(*columns, console=console, auto_refresh=False, transient=True, disable=not watched) as progress:
        task = progress.add_task(description, total=len(items), item="")
        printed_at = _elapsed_seconds()
        for done, item in enumerate(items):
            progress.update(task, item=words(item), refresh=True)
            if not watched and _elapsed_seconds() - printed_at >= _LINE_SECONDS:
                print(f"{description}: {done} of {len(items)} done, now {words(item)}", file=sys.stderr, flush=True)
                printed_at = _elapsed_seconds()
            yield item
            progress.advance(task)
        progress.refresh()
