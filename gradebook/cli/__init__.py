"""Commands of a class, for any course: `gradebook --course DIR`, and a course's own command (`gpulabs`).

Only reads arguments, does no work. Not for which course (`host.py`).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import typer
from typer.core import TyperGroup

from gradebox.common.command_line import CommandApp

COMMANDS = {
    "class": "gradebook.cli.classroom:grade_submissions",
    "review": "gradebook.cli.exporting:review_class",
    "similarity": "gradebook.cli.integrity:report_similarity",
    "export": "gradebook.cli.exporting:export_app",
    "manual": "gradebook.cli.manual:manual_app",
}
"""Module and name in it, of a function or of an app of its own: the order is that of the help."""
CLASSES = {"class": "gradebook.cli.plugins:EngineCommand"}
"""Of the commands that are more than their function."""


def group_of(commands: Mapping[str, str]) -> type[TyperGroup]:
    """A group that imports a command when it is asked for: who grades does not wait for what a class needs."""

    class Commands(TyperGroup):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.commands = dict.fromkeys(commands)  # type: ignore[assignment]  # names, for "Did you mean ...?"

        def list_commands(self, ctx: Any) -> list[str]:
            return list(commands)

        def get_command(self, ctx: Any, cmd_name: str) -> Any:
            if cmd_name not in commands:
                return None
            target = _named(commands[cmd_name])
            if isinstance(target, typer.Typer):
                command: Any = typer.main.get_group(target)
            else:
                alone = CommandApp(add_completion=False)
                alone.command(cmd_name, cls=_named(CLASSES[cmd_name]) if cmd_name in CLASSES else None)(target)
                command = typer.main.get_command(alone)
            command.name = cmd_name
            return command

    return Commands


def _named(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
