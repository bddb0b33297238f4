"""Does anything that students get hold a line of a solution? Compares text with text, word by word.

Secret is what stands in marked regions, what a fixed script has and its broken template lacks, the filled reports, and
the results. Words are compared without spaces, comments and the rest of the line's look. Two rules, because the
grader, labkit and the examples use PyTorch as the solutions do:

- in what students read and fill in (labs, notebooks, documents) one line of `_FEWEST_WORDS` words is a leak;
- in programs that are next to the labs one of `_MANY_WORDS` words is;
- everywhere two neighbouring ones of `_PAIR_WORDS` together are.

Lines that students see anyway (outside of the regions), and those in `allowed_lines.txt`, are none.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gradebox.authoring.release.stubs import regions

_FEWEST_WORDS = 8
_MANY_WORDS = 22
_NEIGHBOUR_WORDS = 2
_PAIR_WORDS = 14
_PROGRAMS = ("labkit", "vgpu", "gradebox", "gradebook", "grader", "examples")
_ALLOWED = Path(__file__).with_name("allowed_lines.txt")
_WORDS = re.compile(r"\"[^\"]*\"|'[^']*'|#.*|[^\W\d]\w*|\d[\w.]*|\S")
_TEXTS = (".py", ".md", ".ipynb", ".txt", ".toml", ".json", ".csv", ".html", ".yml", ".yaml", ".jinja", ".sh", "")
_NO_TEXTS = ("constraints.txt",)
"""Versions of packages, which a solution may pin as well."""
_MAX_BYTES = 4 * 2**20


@dataclass(frozen=True)
class Leak:
    """A line of a solution in something that students get."""

    file: str
    line: int
    text: str
    source: str
    """Where in the solutions it stands: `solutions/lab1_gpu_basics/benchmark.py:97`."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text.strip()[:100]!r} is a line of {self.source}"


@dataclass(frozen=True)
class _Place:
    """Where a secret line stands."""

    name: str
    """`solutions/lab1_gpu_basics/benchmark.py:97`."""
    order: int
    """Its number among the lines that say something."""

    def follows(self, other: _Place) -> bool:
        return self.order == other.order + 1 and self.name.partition(":")[0] == other.name.partition(":")[0]


class Secrets:
    """The lines of the solutions that students must not see."""

    def __init__(self, solutions: Path) -> None:
        self._places: dict[str, list[_Place]] = defaultdict(list)
        self._visible: set[str] = set()
        self._contents: dict[str, str] = {}
        for path in sorted(solutions.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                self._read(solutions, path)
        for line in _ALLOWED.read_text(encoding="utf-8").splitlines():
            self._visible.add(_words(line))
        for line in self._visible:
            self._places.pop(line, None)

    def _read(self, solutions: Path, path: Path) -> None:
        name = path.relative_to(solutions.parent).as_posix()
        if "results" in path.relative_to(solutions).parts[:-1]:
            self._contents[_digest(path.read_bytes())] = name
            return
        if path.stem.endswith(".template"):
            self._visible.update(map(_words, _text(path)))
            return
        template = path.with_name(f"{path.stem}.template{path.suffix}")
        secret: Iterable[int]
        if template.is_file():
            secret = range(len(_text(path)))
        elif path.suffix == ".py":
            secret = [line for region in regions(_text(path), path) for line in range(region.start + 1, region.stop)]
        else:
            secret = ()
        hidden, order = set(secret), 0
        for index, line in enumerate(_text(path)):
            words = _words(line)
            if not words:
                continue
            order += 1
            if index not in hidden:
                self._visible.add(words)
            elif len(words.split()) >= _NEIGHBOUR_WORDS:
                self._places[words].append(_Place(f"{name}:{index + 1}", order))

    def leaks(self, files: Iterable[tuple[str, bytes]]) -> Iterator[Leak]:
        """Lines of solutions, and whole results, among these files, given as path and content."""
        for name, content in files:
            if (result := self._contents.get(_digest(content))) and len(content) > 1:
                yield Leak(name, 1, "the whole file", result)
            elif name not in _NO_TEXTS and PurePosixPath(name).suffix in _TEXTS and len(content) <= _MAX_BYTES:
                yield from self._in_text(name, content)

    def _in_text(self, name: str, content: bytes) -> Iterator[Leak]:
        text = content.decode("utf-8", "replace")
        lines = _notebook_lines(text) if name.endswith(".ipynb") else text.splitlines()
        beside = name.partition("/")[0] in _PROGRAMS
        before: list[_Place] = []
        length = 0
        waiting: Leak | None = None
        for number, line in enumerate(lines, start=1):
            words = _words(line)
            if not words:
                continue
            places = self._places.get(words, [])
            leak = Leak(name, number, line, places[0].name) if places else None
            count = len(words.split())
            paired = count + length >= _PAIR_WORDS and any(a.follows(b) for a in places for b in before)
            if paired and waiting is not None:
                yield waiting
            if leak is not None and (paired or count >= (_MANY_WORDS if beside else _FEWEST_WORDS)):
                yield leak
                leak = None
            waiting, before, length = leak, places, count


def _text(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


def _words(line: str) -> str:
    """A line without spaces, prompts, quotation of Markdown and comments."""
    line = line.strip().removeprefix(">>> ").removeprefix("... ").strip("`|> ")
    return " ".join(word for word in _WORDS.findall(line) if not word.startswith("#"))


def _notebook_lines(text: str) -> list[str]:
    """Everything that a notebook shows: sources and outputs. Numbers of lines are those of the list."""
    try:
        cells = json.loads(text)["cells"]
        shown = [cell.get("source", "") for cell in cells]
        for output in (output for cell in cells for output in cell.get("outputs", [])):
            shown += [output.get("text", ""), *output.get("data", {}).values(), *output.get("traceback", [])]
    except (ValueError, KeyError, TypeError, AttributeError):
        return text.splitlines()
    return "\n".join(part if isinstance(part, str) else "".join(map(str, part)) for part in shown).splitlines()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
