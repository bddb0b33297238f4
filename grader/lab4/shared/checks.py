"""What the criteria of Lab 4 judge in the same way: nonsense, programs and plots."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypeGuard, TypeVar

from gradebox.run.assertions import Cause, recognising, require, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.pictures import Picture, bars
from gradebox.run.submission import Submission
from grader.lab4.shared.cases import (
    Criterion,
    Fields,
    PlotKind,
    Plots,
    Program,
    ProgramReply,
    Refusals,
    Shown,
    ShownAxes,
)
from grader.shared.programs import picture_and_json, require_provenance, require_simulated_pictures

Row = TypeVar("Row", bound=Fields)
"""The fields of a made-up result."""

MEBIBYTE = 2**20
NEAR = 2e-3
"""Relative distance of two numbers that are the same in a picture."""


def memory_bars(what: str, rows: Sequence[tuple[str, object, object]]) -> Picture | None:
    """Bytes by name, actual and expected ones side by side; rows in which one is no number are left out."""
    whole = [
        (name, actual / MEBIBYTE, expected / MEBIBYTE)
        for name, actual, expected in rows
        if _is_finite(actual) and _is_finite(expected)
    ]
    if not whole:
        return None
    return bars(
        what, "MiB", [(name, actual) for name, actual, _ in whole], [(name, expected) for name, _, expected in whole]
    )


def _is_finite(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and math.isfinite(value)


def judge_refusals(submission: Submission, generator: InputGenerator, criterion: Criterion) -> None:
    """Fail unless each call of the criterion that makes no sense raises a ValueError, and none that makes sense."""
    draw = generator.shared("lab4.refusals")
    word = "".join(draw.shuffled("bdfghklmnprstvw")[:5])
    case = Refusals(below=-draw.integer(1, 99), word=word, interval=draw.integer(1, 9))
    reply = submission.numeric_probe(case)
    for call, error in reply.calls[criterion].items():
        ending = "is not written yet" if error == "NotImplementedError" else f"raised {error or 'nothing'}"
        require(
            error == "ValueError",
            f"{call} {ending}, expected a ValueError",
            "Raise ValueError before anything else is done: see Raises in the docstring.",
        )
    for call, error in reply.sensible[criterion].items():
        require(
            error != "ValueError",
            f"{call} raised a ValueError although it makes sense",
            "Refuse what its docstring names under Raises, and nothing else.",
        )


def judge_program(submission: Submission, module: str, arguments: list[str]) -> list[object]:
    """The rows that a program saved; fails unless it ends well, writes its files and prints where they are."""
    simulated = submission.device.simulated
    if simulated:  # by the program itself: when its block ends that GPU is gone, and with it the word in the picture
        arguments = [*arguments, "--device", submission.device.name]
    what = _command(module, arguments)
    reply = submission.probe(
        Program(module=f"lab4_memory.{module}", command_line=arguments),
        device="cpu" if simulated else None,
        values=False,
    )
    rows: list[object] = picture_and_json(reply, what)
    if simulated:
        require_simulated_pictures(reply, what)
    require_provenance(reply, what, simulated=simulated)
    _require_printed(reply, what)
    return rows


def judge_program_on_cpu(submission: Submission, module: str, arguments: list[str]) -> None:
    """Fail unless a program on the CPU saves its results; there are no peaks, and so there is nothing to draw."""
    what = _command(module, arguments)
    reply = submission.probe(Program(module=f"lab4_memory.{module}", command_line=arguments), device="cpu")
    require(reply.exit_code in (0, None), f"{what} ended with exit code {reply.exit_code!r}, expected 0")
    require(bool(reply.json), f"{what} wrote no .json file into the folder given by --out")
    require(
        not reply.pictures,
        f"{what} wrote {', '.join(reply.pictures)}, but PyTorch counts no memory of a CPU: there are no peaks",
        "Draw only where there are peaks.",
    )
    require_provenance(reply, what, simulated=False)
    _require_printed(reply, what)


def _command(module: str, arguments: Sequence[str]) -> str:
    return f"python -m labs.lab4_memory.{module} {' '.join(arguments)}".strip()


def _require_printed(reply: ProgramReply, what: str) -> None:
    printed = "".join(reply.printed.split())  # however long lines are folded
    for name in (*reply.json, *reply.pictures):
        require(
            name in printed,
            f"{what} does not print where it wrote {name}",
            "Call program.print_written() with all paths that were written.",
        )


def judge_plot(
    submission: Submission, kind: PlotKind, rows: list[Row], require_shown: Callable[[Shown, list[Row]], None]
) -> None:
    """Fail unless the plot function draws these results, returns its path, and raises if it cannot write there.

    Not for looks: colours, sizes, order and words are free.
    """
    reply = submission.probe(Plots(kind=kind, rows=rows), device="cpu")
    what = f"plot_{kind}()"
    require(
        reply.is_picture,
        f"{what} wrote no PNG file to the path it was given",
        "Save it with labkit.plotting.save_png(figure, path).",
    )
    require(reply.is_its_path, f"{what} did not return the path it was given")
    require(bool(reply.shown.axes), f"{what} drew no data", "Draw on the figure that you save.")
    require_shown(reply.drawn, rows)
    with recognising(lambda: _unseen(kind)):
        require_shown(reply.shown, rows)
    require_equal(reply.refused, "OSError", what=f"error of {what} with a path that cannot be written")


def _unseen(kind: PlotKind) -> Cause:
    """The mistake in a plot in which all is drawn, and not all is seen."""
    return Cause(
        f"cut off in the {kind} plot",
        "Choose axis limits that contain all of the data. Draw nothing over a bar or a mark, and no data in the colour "
        "of the ground.",
        mistake=f"plot_{kind}() cuts data off by the axes' limits, covers it, or draws it in no colour",
    )


def require_named(shown: Shown, words: Sequence[str], message: str) -> None:
    """Fail unless a legend has as many entries, in whatever words, or each of `words` is in the picture."""
    texts = " ".join([*shown.legend, *shown.texts]).casefold()
    named = len(shown.legend) >= len(words) or all(word in texts for word in words)
    require(named, message, "Add a legend, or write the names next to them.")


def all_points(axes: ShownAxes) -> list[Sequence[float]]:
    """Marks, and the points of lines."""
    return [*axes.marks, *(point for line in axes.lines for point in line)]


def among(points: Iterable[Sequence[float]], expected: Sequence[float]) -> bool:
    """Whether one of the points is where it is expected."""
    return any(near(x, expected[0]) and near(y, expected[1]) for x, y in points)


def near(actual: float, expected: float) -> bool:
    """Whether two numbers are the same in a picture."""
    return math.isclose(actual, expected, rel_tol=NEAR)
