"""Commands and engines that plug-ins bring (`gradebook/plugins`): none is imported before somebody asks for it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from gradebook import plugins
from gradebook.cli.echo import echo
from gradebook.cli.host import course
from gradebox.common.command_line import Command, CommandApp
from gradebox.common.exit_codes import ExitCode

_ENGINE = "plug-in engine"
"""In a context's `meta`: the engine that the command line names, with its options."""


def fail(error: object, code: int = 2) -> typer.Exit:
    """Print an error; the exception to raise."""
    if isinstance(error, OSError) and error.filename:  # Python names the draft as well, and a number
        from gradebook.text_files import cause

        error = f"{error.filename2 or error.filename}: {cause(error)}"
    echo(f"error: {error}", err=True)
    return typer.Exit(code)


def put(content: str | bytes, out: Path | None) -> None:
    """Write a file and say so, or write to the terminal."""
    from gradebook.text_files import write_file

    if out is None:
        sys.stdout.write(content if isinstance(content, str) else content.decode())
        return
    try:
        echo(f"wrote {write_file(out, content)}", err=True)
    except OSError as error:
        raise fail(f"{out} cannot be written: {error.strerror}") from None


HOST = plugins.Host(course=course, echo=echo, put=put, fail=fail)


def commands_of(group: str) -> type[TyperGroup]:
    """A group of commands, with those that plug-ins add to it."""

    class Commands(TyperGroup):
        def list_commands(self, ctx: Any) -> list[str]:
            return [*super().list_commands(ctx), *plugins.names(group)]

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            own = super().get_command(ctx, cmd_name)
            if own is not None or not plugins.is_known(group, cmd_name):
                return own
            try:
                function = plugins.command(group, cmd_name)(HOST)
            except plugins.PluginError as error:
                raise fail(error) from None
            return _made(function, cmd_name)

    return Commands


class EngineCommand(Command):
    """A command with the options of the engine that `--on` names."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        name = _named_engine(args)
        if name == "local":
            _check_options(self, args)
            return super().parse_args(ctx, args)
        try:
            engine = plugins.engine(name)
        except plugins.PluginError as error:
            raise _could_not_grade(error) from None
        own = {param.name for param in self.params}
        added = _made(engine, "engine").params
        self.params = [*self.params, *added]
        _check_options(self, args)
        rest: list[str] = super().parse_args(ctx, args)
        ctx.meta[_ENGINE] = engine(
            **{param.name: ctx.params.pop(param.name) for param in added if param.name not in own}
        )
        return rest

    def format_help(self, ctx: Any, formatter: Any) -> None:
        param: Any
        for param in self.params:
            if param.name == "engine":
                param.help = f"Where gradings run: {', '.join(['local', *plugins.names('engine')])}."
        super().format_help(ctx, formatter)


def engine_of(ctx: typer.Context) -> plugins.PluginEngine | None:
    """The engine that the command line names; None for this machine."""
    engine: plugins.PluginEngine | None = ctx.meta.get(_ENGINE)
    return engine


def _check_options(command: TyperCommand, args: list[str]) -> None:
    """Name the engine to which an option belongs that this command does not have."""
    known = {option for param in command.params for option in param.opts}
    strange = {arg.partition("=")[0] for arg in args if arg.startswith("--")} - known - {"--help"}
    for name in plugins.names("engine") if strange else ():
        for param in _made(plugins.engine(name), name).params:
            if strange & set(param.opts):
                raise _could_not_grade(f"{', '.join(sorted(strange & set(param.opts)))} is for --on {name}")


def _could_not_grade(error: object) -> typer.Exit:
    echo(f"could not grade: {error}", err=True)
    return typer.Exit(int(ExitCode.COULD_NOT_GRADE))


def _named_engine(args: list[str]) -> str:
    name = "local"
    for before, argument in zip(["", *args], [*args, ""], strict=True):
        option, equals, value = argument.partition("=")
        if before in ("--on", "--engine"):
            name = argument or name
        elif equals and option in ("--on", "--engine"):
            name = value
    return name


def _made(function: Any, name: str) -> Any:
    """A function as a command of Typer."""
    alone = CommandApp(add_completion=False)
    alone.command(name)(function)
    command = typer.main.get_command(alone)
    command.name = name
    return command
