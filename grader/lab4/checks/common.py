"""What the criteria of Lab 4 ask in the same way: nonsense, plots, and programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gradebox.run.assertions import require, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.pictures import Picture, bars
from gradebox.run.submission import Submission
from grader.lab4.truth.pictures import made_up, require_shown
from grader.shared.programs import picture_and_json, require_provenance, require_simulated_pictures

_MEBIBYTE = 2**20


def memory_bars(what: str, rows: Sequence[tuple[str, Any, Any]]) -> Picture | None:
    """Bytes by name, those told or held beside those expected; rows in which one is no number are left out."""
    whole = [row for row in rows if all(isinstance(one, (int, float)) and math.isfinite(one) for one in row[1:])]
    if not whole:
        return None
    return bars(
        what,
        "MiB",
        [(name, seen / _MEBIBYTE) for name, seen, _ in whole],
        [(name, expected / _MEBIBYTE) for name, _, expected in whole],
    )


def judge_refusals(submission: Submission, criterion: str) -> None:
    """Fail unless each call of the criterion that makes no sense raises a ValueError, and none that makes sense."""
    seen = submission.numeric_probe("lab4.refusals.ask")
    for call, error in seen.calls[criterion].items():
        written = "is not written yet" if error == "NotImplementedError" else f"raised {error or 'nothing'}"
        require(error == "ValueError", f"{call} {written}, expected a ValueError", "see Raises in its docstring")
    for call, error in seen.sensible[criterion].items():
        require(
            error != "ValueError",
            f"{call} raised a ValueError although it makes sense",
            "refuse what its docstring names under Raises, and nothing else",
        )


def judge_program(submission: Submission, module: str, arguments: list[str], *, on_cpu: bool = False) -> list[Any]:
    """The rows that a program saved; fails unless it ends well, writes its files and prints where they are.

    With `on_cpu` there are no peaks, and so there is nothing to draw.
    """
    simulated = submission.device.simulated and not on_cpu
    if simulated:  # by the program itself: when its block ends that GPU is gone, and with it the word in the picture
        arguments = [*arguments, "--device", submission.device.name]
    what = f"python -m labs.lab4_memory.{module} {' '.join(arguments)}".strip()
    if on_cpu:
        seen = submission.probe(
            "lab4.pictures.program", device="cpu", module=f"lab4_memory.{module}", arguments=arguments
        )
        require(seen.exit_code in (0, None), f"{what} ended with exit code {seen.exit_code!r}, expected 0")
        require(bool(seen.json), f"{what} wrote no .json file into the folder given by --out")
        require(
            not seen.pictures,
            f"{what} wrote {', '.join(seen.pictures)}, but PyTorch counts no memory of a CPU: there are no peaks",
            "draw where there are peaks, and only there",
        )
        rows: list[Any] = []
    else:
        seen = submission.probe(
            "lab4.pictures.program",
            device="cpu" if simulated else None,
            values=False,
            module=f"lab4_memory.{module}",
            arguments=arguments,
        )
        rows = picture_and_json(seen, what)
        if simulated:
            require_simulated_pictures(seen, what)
    require_provenance(seen, what, simulated=simulated)
    printed = "".join(seen.printed.split())  # however long lines are folded
    for name in (*seen.json, *seen.pictures):
        require(name in printed, f"{what} does not print where it wrote {name}", "program.print_written(all, paths)")
    return rows


def judge_plot(submission: Submission, kind: str, generator: InputGenerator) -> None:
    """Fail unless the plot function draws made-up results, returns its path, and says so where it cannot write."""
    rows = made_up(kind, generator.shared(f"lab4.plots.{kind}"))
    seen = submission.probe("lab4.pictures.plots", kind=kind, rows=rows, device="cpu")
    what = f"plot_{kind}()"
    require(
        seen.is_picture, f"{what} wrote no PNG file to the path it was given", "labkit.plotting.save_png(figure, path)"
    )
    require(seen.is_its_path, f"{what} did not return the path it was given")
    require(bool(seen.shown["axes"]), f"{what} drew no data", "draw on the figure that you save")
    require_shown(kind, seen.shown, rows)
    require_equal(seen.refused, "OSError", what=f"error of {what} with a path that cannot be written")
