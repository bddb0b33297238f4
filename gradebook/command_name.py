"""What an instructor types for the commands of classes: `gpulabs` here, `gradebook` with any other course."""

from __future__ import annotations

_name = "gpulabs"


def use(name: str) -> None:
    """Let messages name this command."""
    global _name
    _name = name


def command() -> str:
    """The command that messages name."""
    return _name
