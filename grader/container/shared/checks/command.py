"""The command of an image: ENTRYPOINT and CMD, as they stand in a Dockerfile."""

from __future__ import annotations

from grader.container.shared.checks.dockerfile import Dockerfile, Instruction


def start_words(dockerfile: Dockerfile) -> list[str]:
    """ENTRYPOINT and CMD as the image's configuration lists them; empty if the Dockerfile has neither."""
    words: list[str] = []
    for instruction in start_instructions(dockerfile):
        words += instruction.exec_form() or ["/bin/sh", "-c", instruction.arguments]
    return words


def start_instructions(dockerfile: Dockerfile) -> list[Instruction]:
    """The ENTRYPOINT and the CMD that count, in this order."""
    said: dict[str, Instruction] = {}
    for stage in dockerfile.image:
        own = {
            instruction.name: instruction
            for instruction in stage.instructions
            if instruction.name in ("ENTRYPOINT", "CMD")
        }
        if "ENTRYPOINT" in own:  # resets the command of the stage below
            said.pop("CMD", None)
        said |= own
    return [said[name] for name in ("ENTRYPOINT", "CMD") if name in said]
