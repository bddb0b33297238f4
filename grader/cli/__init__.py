"""The command `gpulabs`: grading, and the tools for whoever runs the course. Only reads arguments, does no work."""

from gradebox.common import platforms

platforms.require()  # before what only such systems have is imported

import importlib
from typing import Any

import typer
from typer.core import TyperGroup

_COMMANDS = {
    "doctor": "doctor:examine_machine",
    "next": "next:show_next",
    "grade": "grading:grade_submission",
    "watch": "watching:watch_submission",
    "release": "releasing:release_labs",
    "class": "classroom:grade_submissions",
    "review": "exporting:review_class",
    "similarity": "integrity:report_similarity",
    "export": "exporting:export_app",
    "manual": "manual:manual_app",
    "notebook": "notebook:notebook_app",
    "data": "datasets:data_app",
}
"""Module of this package and name in it, of a function or of an app of its own: the order is that of the help."""
_CLASSES = {"class": "plugins:EngineCommand"}
"""Of the commands that are more than their function."""


class _Commands(TyperGroup):
    """Imports a command when it is asked for: who grades does not wait for what a class needs."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.commands = dict.fromkeys(_COMMANDS)  # type: ignore[assignment]  # names, for "Did you mean ...?"

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _COMMANDS:
            return None
        target = _named(_COMMANDS[cmd_name])
        if isinstance(target, typer.Typer):
            command: Any = typer.main.get_group(target)
        else:
            alone = typer.Typer(add_completion=False)
            alone.command(cmd_name, cls=_named(_CLASSES[cmd_name]) if cmd_name in _CLASSES else None)(target)
            command = typer.main.get_command(alone)
        command.name = cmd_name
        return command


def _named(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(f"grader.cli.{module}"), name)


app = typer.Typer(cls=_Commands, no_args_is_help=True, add_completion=False, help="Tools for running the course.")


@app.callback()
def _commands() -> None:
    """Tools for running the course."""
