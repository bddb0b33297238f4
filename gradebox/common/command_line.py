"""Commands that refuse an option given twice if only the last value would count, as `--regrade ada --regrade bob`.

They also say that they were stopped, if nobody else does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand

INTERRUPTED = 130
"""Exit code of a command that was stopped, as a shell gives it."""
_Function = TypeVar("_Function", bound=Callable[..., Any])


class Command(TyperCommand):
    """A command that takes each option once, except those that are lists and switches, and says if it was stopped."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given = {} if ctx.resilient_parsing else _given(self, ctx, args)
        rest: list[str] = super().parse_args(ctx, args)
        for name, value in ctx.params.items():
            if isinstance(value, Path) and given.get(name) == "":
                ctx.fail(
                    f"{name.upper()} is empty; perhaps a variable of the shell is not set. A lone . is this folder"
                )
            ctx.params[name] = _at_home(value)
        return rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            sys.stderr.write("stopped before the end: give the same command again\n")
            raise typer.Exit(INTERRUPTED) from None


class CommandApp(typer.Typer):
    """An application whose commands are such."""

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = None, **options: Any
    ) -> Callable[[_Function], _Function]:
        return super().command(name, cls=cls or Command, **options)


def _given(command: TyperCommand, ctx: Any, args: list[str]) -> Mapping[str, Any]:
    """What was typed, by parameter; ends with a line if an option is given twice of which only the last counts."""
    values, _, given = command.make_parser(ctx).parse_args(args=list(args))
    options: list[Any] = [param for param in given if param.param_type_name == "option"]
    for number, option in enumerate(options):
        if option in options[:number] and not option.multiple and not option.is_flag:
            name = max(option.opts, key=len)
            ctx.fail(f"{name} is given more than once, and only the last one would count. Give it once in a command")
    return values


def _at_home(value: Any) -> Any:
    """A path without `~`, which shells leave as it is in `--out=~/spring` and in quotes."""
    if isinstance(value, list):
        return [_at_home(element) for element in value]
    try:
        return value.expanduser() if isinstance(value, Path) else value
    except RuntimeError:  # nobody has such a home
        return value
