"""What the probes of several labs are given and return, and how rows of values are drawn for cases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from gradebox.sandbox.probe_types import ProbeInputs

if TYPE_CHECKING:
    from gradebox.run.input_generator import InputGenerator

Row: TypeAlias = dict[str, Any]
"""A value of each dimension by its name; what they are, only who named the dimensions knows."""
Allowed: TypeAlias = Callable[[Mapping[str, Any]], bool]
"""Whether the values of a row can be together."""
Dimensions: TypeAlias = Mapping[str, Sequence[object]]
"""The values of each dimension, by its name."""


class Picture(TypedDict):
    """Size and number of colours of a picture, and the share of its commonest: a blank one has one, noise has none."""

    width: int
    height: int
    colours: int
    ground: float


@dataclass(frozen=True, kw_only=True)
class ProgramReply:
    """What a program did, and what it wrote, by the files' names: texts of those with JSON, and pictures."""

    exit_code: object
    json: dict[str, str]
    pictures: dict[str, Picture]
    drawn: list[int]
    """For each figure that it wrote as PNG, how many points of data it shows."""


@dataclass(frozen=True, kw_only=True)
class RunProgram(ProbeInputs[ProgramReply], probe="shared.programs.run"):
    """A program of a lab ("lab1_gpu_basics.benchmark"), and the words of its command line, without `--out`."""

    module: str
    words: list[str]


@dataclass(frozen=True, kw_only=True)
class CardReply:
    """What a real card does."""

    flops: dict[str, float]
    """Floating-point operations per second of a square product, by dtype."""
    free_bytes: int
    memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class MeasureCard(ProbeInputs[CardReply], probe="shared.card.measured"):
    """Nothing: it is the card of this grading."""


_ATTEMPTS = 20
"""Draws, until one has every value."""


def every_value(
    generator: InputGenerator,
    dimensions: Dimensions,
    count: int,
    allowed: Allowed = lambda row: True,
) -> list[Row]:
    """`InputGenerator.cases`, and more rows until each value of each dimension has occurred.

    Args:
        dimensions: the values of each, by name.
        count: rows at least.
        allowed: whether the values of a row can be together; each value must be in one that is.
    """
    rows = generator.cases(dimensions, count, allowed)
    for name, values in dimensions.items():
        for value in values:
            if all(row[name] != value for row in rows):
                rows += generator.cases({**dimensions, name: [value]}, 1, allowed)
    return rows


def full_rows(
    generator: InputGenerator,
    dimensions: Dimensions,
    count: int,
    allowed: Allowed = lambda row: True,
) -> list[Row]:
    """As `every_value`, but `count` rows and no more: values that no row has take the place of some that several have.

    Where so few rows cannot have every value, those that have most.
    """
    best: list[Row] = []
    least = sum(len(values) for values in dimensions.values()) + 1
    for attempt in range(_ATTEMPTS):
        source = generator if attempt == 0 else generator.shared(f"rows, attempt {attempt}")
        rows = source.cases(dimensions, count, allowed)
        missing = sum(
            not _put_in(rows, name, value, allowed) for name, values in dimensions.items() for value in values
        )
        if missing < least:
            best, least = rows, missing
        if not missing or any(len(values) > count for values in dimensions.values()):
            break
    return best


def _put_in(rows: Sequence[Row], name: str, value: object, allowed: Allowed) -> bool:
    """Let one of the rows have this value, where none has, instead of one that another has, too; whether one could."""
    column = [row[name] for row in rows]
    if value in column:
        return True
    for row in rows:
        if column.count(row[name]) > 1 and allowed({**row, name: value}):
            row[name] = value
            return True
    return False


def one_and_its_opposite(generator: InputGenerator, dimensions: Dimensions) -> list[Row]:
    """Two rows that have each of two values once, for what is too dear to be asked more than twice; in any order."""
    (row,) = generator.cases(dimensions, 1)
    opposite = {name: values[row[name] == values[0]] for name, values in dimensions.items()}
    return generator.shuffled([row, opposite])
