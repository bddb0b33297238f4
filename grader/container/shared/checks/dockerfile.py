"""A Dockerfile as a list of stages, with continued lines joined and ARGs filled in. Reads text, runs nothing.

Not a whole parser: no heredocs, and of variables only ARG and ENV with literal values.
https://docs.docker.com/reference/dockerfile/
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)(?::-(?P<default>[^}]*))?\}|(?P<plain>\w+))")


@dataclass(frozen=True)
class Instruction:
    """One instruction, its name in capitals, its variables filled in."""

    name: str
    arguments: str
    line: int

    def words(self) -> list[str]:
        """The arguments as a shell would split them, options (`--from=...`) left out; or those of the JSON form."""
        if (listed := self.exec_form()) is not None:
            return listed
        try:
            words = shlex.split(self.arguments)
        except ValueError:
            words = self.arguments.split()
        return [word for word in words if not word.startswith("--")]

    def exec_form(self) -> list[str] | None:
        """The words of `["python", "train.py"]`; None for the shell form."""
        try:
            value = json.loads(self.arguments)
        except ValueError:
            return None
        return [str(word) for word in value] if isinstance(value, list) else None


@dataclass(frozen=True)
class Stage:
    """What stands between one FROM and the next."""

    base: str
    name: str | None
    instructions: tuple[Instruction, ...]


@dataclass(frozen=True)
class Dockerfile:
    """All stages, the last of which becomes the image."""

    stages: tuple[Stage, ...]

    @property
    def image(self) -> tuple[Stage, ...]:
        """The stages that the image is made of: the last one, below it the one it is FROM, and so on; lowest first."""
        chain = [self.stages[-1]]
        while (below := self._named(chain[0].base)) is not None and below not in chain:
            chain.insert(0, below)
        return tuple(chain)

    @property
    def base_image(self) -> str:
        """The image of a registry that the whole is built on."""
        return self.image[0].base

    def _named(self, name: str) -> Stage | None:
        return next((stage for stage in self.stages if stage.name == name), None)

    def in_image(self, *names: str) -> Iterator[Instruction]:
        """These instructions, in the order in which they shape the image."""
        for stage in self.image:
            yield from (instruction for instruction in stage.instructions if instruction.name in names)

    def anywhere(self, *names: str) -> Iterator[Instruction]:
        """These instructions of all stages."""
        for stage in self.stages:
            yield from (instruction for instruction in stage.instructions if instruction.name in names)

    def environment(self) -> dict[str, str]:
        """What ENV sets in the image."""
        return {key: value for instruction in self.in_image("ENV") for key, value in assignments(instruction).items()}


def assignments(instruction: Instruction) -> dict[str, str]:
    """The names and values of an ENV or ARG; `ENV NAME value` is understood too."""
    words = instruction.words()
    if words and "=" not in words[0]:
        return {words[0]: " ".join(words[1:])}
    return dict(word.split("=", 1) for word in words if "=" in word)


def parse(text: str) -> Dockerfile | None:
    """The stages of a Dockerfile; None when it has no FROM."""
    stages: list[Stage] = []
    variables: dict[str, str] = {}
    for instruction in _instructions(text):
        filled = Instruction(instruction.name, _fill(instruction.arguments, variables), instruction.line)
        if filled.name in ("ARG", "ENV"):
            variables.update(assignments(filled))
        if filled.name == "FROM":
            words = filled.words() or [""]
            name = words[2] if len(words) == 3 and words[1].lower() == "as" else None
            stages.append(Stage(words[0], name, ()))
        elif stages:
            last = stages[-1]
            stages[-1] = Stage(last.base, last.name, (*last.instructions, filled))
    return Dockerfile(tuple(stages)) if stages else None


def _fill(text: str, variables: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match["braced"] or match["plain"]
        return variables.get(name) or match["default"] or match[0]

    return _VARIABLE.sub(value, text)


def _instructions(text: str) -> Iterator[Instruction]:
    joined, first = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        if line.lstrip().startswith("#") or (not line.strip() and not joined):
            continue
        first = first if joined else number
        joined += line.strip()
        if joined.endswith("\\"):
            joined = joined[:-1] + " "
            continue
        name, _, arguments = joined.partition(" ")
        yield Instruction(name.upper(), arguments.strip(), first)
        joined = ""
