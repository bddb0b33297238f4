"""A Dockerfile as a list of stages, with continued lines joined and ARGs filled in. Reads text, runs nothing.

Not a whole parser: of variables only ARG and ENV with literal values.
https://docs.docker.com/reference/dockerfile/
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

_HEREDOC = re.compile(r"(?:^|(?<=\s))\d*<<(?P<dash>-?)(?P<quote>[\"']?)(?P<end>[^\s<\"']+)(?P=quote)(?=\s|$)")
_WITH_HEREDOCS = {"RUN", "COPY", "ADD"}
_ESCAPE = re.compile(r"#\s*escape\s*=\s*(?P<escape>[\\`])\s*", re.IGNORECASE)
_SH = ["/bin/sh", "-c"]
_SHELL = re.compile(r"(?:\S*[ /])?(?:ba|da|a)?sh(?: -[aehiluvx]+| -[ehuvx]*o \w+| --login)*(?: -[aehiluvx]*c)?")
"""A shell that runs what it is given; with `-n` it would only read it."""
_FROM_STAGE = re.compile(r"(?:--from=|[,=]from=)([^\s,]+)")
_RUN_OPTIONS = re.compile(r"^(?:\s*--(?:mount|network|security)=\S+)+")
_VARIABLE = re.compile(r"\$(?:\{(?P<braced>\w+)(?::-(?P<default>[^}]*))?\}|(?P<plain>\w+))")


@dataclass(frozen=True)
class Instruction:
    """One instruction, its name in capitals, its variables filled in."""

    name: str
    arguments: str
    line: int
    text: str = ""
    """Of a heredoc that no shell runs: what a COPY writes, or another program reads."""

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

    def used(self, *names: str) -> Iterator[Instruction]:
        """These instructions of the stages that the image is made of, or from which these copy or mount something."""
        used: list[Stage] = []
        waiting = list(self.image)
        while waiting:
            stage = waiting.pop()
            if stage in used:
                continue
            used.append(stage)
            for instruction in stage.instructions:
                for name in _FROM_STAGE.findall(instruction.arguments):
                    number = int(name) if name.isdecimal() else len(self.stages)
                    other = self.stages[number] if number < len(self.stages) else self._named(name)
                    if other is not None:
                        waiting += [other, *self._below(other)]
        yield from (
            instruction
            for stage in self.stages
            if stage in used
            for instruction in stage.instructions
            if instruction.name in names
        )

    def _below(self, stage: Stage) -> list[Stage]:
        """The stages that this one is FROM."""
        chain: list[Stage] = []
        while (below := self._named(stage.base)) is not None and below not in chain:
            chain.append(below)
            stage = below
        return chain

    def environment(self) -> dict[str, str]:
        """What ENV sets in the image."""
        return {key: value for instruction in self.in_image("ENV") for key, value in assignments(instruction).items()}


def assignments(instruction: Instruction) -> dict[str, str]:
    """The names and values of an ENV or ARG; `ENV NAME value` is understood too."""
    words = instruction.words()
    if words and "=" not in words[0]:
        return {words[0]: " ".join(words[1:])}
    return dict(word.split("=", 1) for word in words if "=" in word)


@dataclass
class _Scope:
    """What a stage knows at a place."""

    environment: dict[str, str] = field(default_factory=dict)
    arguments: dict[str, str] = field(default_factory=dict)
    shell: list[str] = field(default_factory=lambda: list(_SH))

    def above(self) -> _Scope:
        """What a stage knows that is FROM this one."""
        return _Scope(dict(self.environment), {}, list(self.shell))

    def take(self, instruction: Instruction, of_file: Mapping[str, str]) -> Instruction:
        """The instruction with its variables filled in, which may change what is known."""
        filled = _filled(instruction, self.arguments | self.environment)
        if filled.name == "ENV":
            self.environment.update(assignments(filled))
        elif filled.name == "ARG":
            for word in filled.words():
                name, given, value = word.partition("=")
                if given or name in of_file:
                    self.arguments[name] = value if given else of_file[name]
        elif filled.name == "SHELL":
            self.shell = filled.exec_form() or self.shell
        elif filled.name == "RUN" and filled.exec_form() is None and not _SHELL.fullmatch(" ".join(self.shell)):
            return replace(filled, arguments=json.dumps([*self.shell, filled.arguments]))
        return filled


def parse(text: str) -> Dockerfile | None:
    """The stages of a Dockerfile; None when it has no FROM."""
    stages: list[Stage] = []
    of_file: dict[str, str] = {}
    """Of the ARGs before the first FROM: FROM sees these alone, and a stage those of them that it names."""
    scope, scopes = _Scope(), {"": _Scope()}
    for instruction in _instructions(text):
        if instruction.name == "FROM":
            words = _filled(instruction, of_file).words() or [""]
            name = words[2] if len(words) == 3 and words[1].lower() == "as" else None
            stages.append(Stage(words[0], name, ()))
            scope = scopes.get(words[0], scopes[""]).above()
            scopes |= {name: scope} if name else {}
        elif stages:
            last = stages[-1]
            filled = scope.take(instruction, of_file)
            stages[-1] = Stage(last.base, last.name, (*last.instructions, filled))
        elif instruction.name == "ARG":
            of_file.update(assignments(_filled(instruction, of_file)))
    return Dockerfile(tuple(stages)) if stages else None


def _filled(instruction: Instruction, variables: Mapping[str, str]) -> Instruction:
    return replace(instruction, arguments=_fill(instruction.arguments, variables))


def _fill(text: str, variables: Mapping[str, str]) -> str:
    def value(match: re.Match[str]) -> str:
        name = match["braced"] or match["plain"]
        return variables.get(name) or match["default"] or match[0]

    return _VARIABLE.sub(value, text)


def _instructions(text: str) -> Iterator[Instruction]:
    lines = text.splitlines()
    chosen = next((match for line in lines[:3] if (match := _ESCAPE.fullmatch(line.strip()))), None)
    escape = chosen["escape"] if chosen else "\\"
    numbered = enumerate(lines, start=1)
    joined, first = "", 0
    for number, line in numbered:
        if line.lstrip().startswith("#") or not line.strip():
            continue
        first = first if joined else number
        joined += line.strip()
        if joined.endswith(escape):
            joined = joined[:-1] + " "
            continue
        name, _, arguments = joined.partition(" ")
        instruction = Instruction(name.upper(), arguments.strip(), first)
        heredocs = list(_HEREDOC.finditer(arguments)) if instruction.name in _WITH_HEREDOCS else []
        yield _with_heredocs(instruction, ["\n".join(_heredoc(numbered, each)) for each in heredocs])
        joined = ""


def _heredoc(numbered: Iterator[tuple[int, str]], begin: re.Match[str]) -> Iterator[str]:
    """The lines of a heredoc, which this takes from those of the file."""
    for _, line in numbered:
        line = line.lstrip("\t") if begin["dash"] else line
        if line == begin["end"]:
            return
        yield line


def _with_heredocs(instruction: Instruction, contents: list[str]) -> Instruction:
    """A RUN of a heredoc runs its lines, unless another program reads them."""
    text = "\n".join(contents)
    reader = _RUN_OPTIONS.sub("", _HEREDOC.sub("", instruction.arguments)).strip()
    is_script = not text.startswith("#!") or _SHELL.fullmatch(text[2:].partition("\n")[0].strip())
    if instruction.name != "RUN" or not contents or not is_script or (reader and not _SHELL.fullmatch(reader)):
        return replace(instruction, text=text)
    options = _RUN_OPTIONS.match(instruction.arguments)
    script = re.sub(r"(?m)^\s*#.*$", "", text).replace("\\\n", " ")
    return replace(instruction, arguments=f"{options[0] if options else ''} {script.strip()}".strip())
