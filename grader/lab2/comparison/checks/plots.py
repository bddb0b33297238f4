"""What Lab 2's plots must show: the numbers that they were given, each at its place, and what the programs write."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from gradebox.run.assertions import Cause, CheckFailed, recognising, require, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.lab2.comparison.cases.plots import Figure, Program, Series, plots
from grader.lab2.comparison.checks.conclusions import SPEEDUPS_INVERTED
from grader.shared.programs import is_simulated, picture_and_json

_CLOSE = 0.001
"""Relative: a number in a figure is the one that it was given, except for a rounding of the student's."""
_FORMS: tuple[Callable[[float], float], ...] = (lambda x: x, lambda x: 100 * x, math.log10, math.log, math.log2)
"""How a number may be drawn: as it is, in percent, or as its logarithm."""
_PRECISION = re.compile(r"\b(float32|float16|bfloat16)\b")

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Losses:
    """What is drawn of a training."""

    dtype: object
    losses: list[float | None]


@dataclass(frozen=True)
class Costs:
    """What is drawn of a precision."""

    dtype: object
    step_seconds: float
    peak_bytes: float | None
    accuracy: float


def _losses_of(row: Mapping[str, object]) -> Losses:
    losses = row["losses"]
    if not isinstance(losses, list):
        raise TypeError("losses are a list")
    return Losses(row["dtype"], [None if loss is None else _number(loss) for loss in losses])


def _costs_of(row: Mapping[str, object]) -> Costs:
    peak = None if row["peak_bytes"] is None else _number(row["peak_bytes"])
    return Costs(row["dtype"], _number(row["step_seconds"]), peak, _number(row["accuracy"]))


def _number(value: object) -> float:
    if not isinstance(value, (int, float)):
        raise TypeError("this is no number")
    return value


def _read(rows: Iterable[object], read: Callable[[Mapping[str, object]], Kind]) -> list[Kind]:
    """Results as what is drawn of them.

    Raises:
        KeyError: one lacks a field.
        TypeError: one is no result, or has something else in a field.
    """
    values = []
    for row in rows:
        if not isinstance(row, dict):
            raise TypeError("a result is an object")
        values.append(read(row))
    return values


def require_plots(submission: Submission, generator: InputGenerator) -> None:
    """Fail unless each plot shows the numbers of made-up results, and is where it should be."""
    inputs = plots(generator)
    reply = submission.numeric_probe(inputs)
    for name, plot in reply.plots.items():
        require(plot.written and plot.path_returned, f"{name}(results, path) did not write `path`, or returned another")
        require(plot.refused, f"{name}(results, path) raised no OSError for a file that cannot be written")
        shown = f"{name}()" if " " not in name else f"{name}, whose peaks are None,"
        of_precisions = name.startswith("plot_precisions")
        with recognising(lambda: _cause_of_shares(plot.figure, inputs.rows[name]) if of_precisions else None):  # noqa: B023
            _require_drawn(plot.figure, inputs.rows[name], shown, of_precisions=of_precisions)
    _require_run_without_steps(reply.plots["plot_runs"].figure, len(inputs.rows["plot_runs"]))


def _cause_of_shares(figure: Figure, rows: Iterable[object]) -> Cause | None:
    """Whether a plot that is wrong would be right if speedups were turned over, as `conclude` may give them."""
    costs = _read(rows, _costs_of)
    turned = [replace(row, step_seconds=1 / row.step_seconds) for row in costs]
    try:
        _require_shares(figure, turned, "")
    except CheckFailed:
        return None
    return SPEEDUPS_INVERTED


def require_written(submission: Submission, name: str, stem: str, arguments: Sequence[str]) -> list[object]:
    """The rows that a program wrote; fails unless they and a plot of them are in the files that it names."""
    # A virtual GPU that the program attaches itself is gone when its block ends, and with it the word in the plot.
    own = submission.device.simulated and stem == "precisions"
    inputs = Program(
        module=f"lab2_mixed_precision.{name}", command_line=[*arguments, *(["--device=vgpu"] if own else [])]
    )
    reply = submission.probe(inputs, device="cpu" if own else None)
    what = f"python -m labs.lab2_mixed_precision.{name}"
    rows: list[object] = picture_and_json(reply, what)
    for file, files in ((f"{stem}.json", [*reply.json]), (f"{stem}.png", [*reply.pictures])):
        require(file in files, f"{what} wrote {', '.join(files)} into --out, and no {file}")
    require(
        is_simulated(reply.json[f"{stem}.json"]) is submission.device.simulated,
        f"{what}: {stem}.json does not say whether its times are simulated",
        "Pass device.provenance() to labkit.results.save_json.",
    )
    if stem == "precisions":
        says_simulated = any("simulated" in text.lower() for text in reply.figure.get("texts", []))
        require(
            says_simulated or not submission.device.simulated,
            f"{what}: {stem}.png shows simulated times and does not say so",
            'Draw the plot inside the `with open_device(...)` block: there save_png writes "simulated".',
        )
    try:
        _require_drawn(reply.figure, rows, f"{stem}.png of {what}", of_precisions=stem == "precisions")
    except (KeyError, TypeError, ZeroDivisionError):
        require(
            False,
            f"{what}: {stem}.json does not hold results that can be drawn",
            "Save the results as the functions returned them.",
        )
    return rows


def _require_drawn(figure: Figure, rows: Iterable[object], what: str, *, of_precisions: bool) -> None:
    if of_precisions:
        _require_shares(figure, _read(rows, _costs_of), what)
    else:
        _require_losses(figure, _read(rows, _losses_of), what)


def _require_losses(figure: Figure, rows: Sequence[Losses], what: str) -> None:
    """Fail unless each row's losses are a series over the epochs, none where there was none, under no other's name."""
    for below, beside in figure.get("axes", []):
        require(
            not ("loss" in below.lower() and "epoch" in beside.lower()),
            f"{what} draws losses over epochs, and says {below!r} below the axis and {beside!r} next to it",
        )
    series = figure.get("series", [])
    for row in rows:
        expected = {epoch: loss for epoch, loss in enumerate(row.losses, 1) if loss is not None}
        _require_shown(_all_numbers(series), list(expected.values()), what)
        fits = [(drawn, line) for drawn in series for line in _lines(drawn["points"], expected)]
        shown = ", ".join(f"{epoch}: {loss:.4g}" for epoch, loss in expected.items())
        require(
            bool(fits) or not expected,
            f"{what} draws no line with these losses at these epochs: {shown}",
            ("Leave the place of an epoch without a loss empty, so that the epochs after it do not move."),
        )
        gaps = [epoch for epoch, loss in enumerate(row.losses, 1) if loss is None]
        clean = [
            drawn
            for drawn, (step, zero) in fits
            if not any(_has([*drawn["points"], *drawn["cut_off"]], zero + step * gap) for gap in gaps)
        ]
        require(
            bool(clean) or not expected,
            f"{what} draws a number for epochs {gaps}, which had none, next to {shown}",
            "Draw nothing where the loss is None, for example by math.nan. It is not 0.",
        )
        names = {name for drawn in clean for name in [_named(drawn["label"])] if name}
        require(
            not names or row.dtype in names,
            f"{what}: the line of {row.dtype} is labelled {', '.join(sorted(names))}",
            "Give each line its own name in the legend.",
        )


def _lines(points: Sequence[Sequence[float]], expected: Mapping[int, float]) -> list[tuple[float, float]]:
    """Steps per epoch and places of epoch 0 with which a series shows the expected losses over their epochs."""
    lines = []
    for form in _FORMS:
        at = {
            epoch: [x for x, y in points if _near(y, form(loss))] if loss > 0 or form is _FORMS[0] else []
            for epoch, loss in expected.items()
        }
        if not at or not all(at.values()):
            continue
        first, last = min(at), max(at)
        for start in at[first]:
            for end in at[last]:
                step = (end - start) / (last - first) if last > first else 1.0
                zero = start - step * first
                if step and all(any(_near(x, zero + step * epoch) for x in xs) for epoch, xs in at.items()):
                    lines.append((step, zero))
    return lines


def _require_run_without_steps(figure: Figure, count: int) -> None:
    """Fail unless all runs are in the legend, and no line shows losses of 0."""
    require(
        len(figure.get("legend", [])) >= count,
        f"plot_runs() of {count} runs, one of them without any step: the legend has {len(figure.get('legend', []))} "
        "entries",
        "Give a run without any step an entry in the legend, too, although it has no line.",
    )
    flat = [drawn for drawn in figure["series"] if len(drawn["points"]) > 1 and all(y == 0 for _, y in drawn["points"])]
    require(
        not flat, "plot_runs() draws a line of zeros, and no run has losses of 0", "None: nothing to draw (math.nan)"
    )


def _require_shares(figure: Figure, rows: Sequence[Costs], what: str) -> None:
    """Fail unless each precision's speed, memory and accuracy are drawn, as shares of float32's, under its name."""
    base = next((row for row in rows if row.dtype == "float32"), None)
    if base is None:
        raise KeyError("float32")
    series = figure.get("series", [])
    for row in rows:
        if row is base:
            continue
        shares = [base.step_seconds / row.step_seconds, row.accuracy / base.accuracy]
        if base.peak_bytes is not None and row.peak_bytes is not None:
            shares.append(row.peak_bytes / base.peak_bytes)
        _require_shown(_all_numbers(series), shares, what)
        named = [value for drawn in series for name, value in _values(drawn) if name in (row.dtype, None)]
        missing = [value for value in shares if not _is_shown(value, named)]
        require(
            not missing,
            f"{what}: {', '.join(f'{value:.4g}' for value in missing)} of {row.dtype} is at another precision",
            "Draw each bar at the name of its own precision, whatever the order of the results.",
        )


def _values(series: Series) -> list[tuple[str | None, float]]:
    """Numbers of a series with the precision that its label names, or the nearest tick; None if none is named."""
    label = _named(series["label"])
    ticks = [
        [(place, name) for place, text in texts if (name := _named(text))]
        for texts in (series["x_ticks"], series["y_ticks"])
    ]
    values: list[tuple[str | None, float]] = []
    for side in [side for side in (0, 1) if ticks[side]] or [0, 1]:
        for point in series["points"]:
            at = point[side]
            nearest = min(ticks[side], key=lambda tick: abs(tick[0] - at))[1] if ticks[side] else None
            values.append((label or nearest, point[1 - side]))
    return values


def _named(text: str) -> str | None:
    """The one precision that is named in a text."""
    names = set(_PRECISION.findall(text.lower()))
    return names.pop() if len(names) == 1 else None


def _all_numbers(series: Iterable[Series]) -> list[float]:
    return [number for drawn in series for point in drawn["points"] for number in point]


def _require_shown(drawn: Sequence[float], expected: Sequence[float], what: str) -> None:
    missing = [value for value in expected if not _is_shown(value, drawn)]
    require_equal(
        [round(value, 4) for value in missing],
        [],
        what=f"numbers that {what} was to show and does not, as they are, in percent or as logarithms",
        hint="Draw each number, and leave space for it: numbers outside the limits of the axes are not visible.",
    )


def _is_shown(value: float, drawn: Sequence[float]) -> bool:
    """Whether a number is drawn, in any form."""
    forms = [form for form in _FORMS if value > 0 or form is _FORMS[0]]
    return any(_near(number, form(value)) for form in forms for number in drawn)


def _has(points: Sequence[Sequence[float]], place: float) -> bool:
    return any(_near(x, place) for x, _ in points)


def _near(number: float, other: float) -> bool:
    return abs(number - other) <= _CLOSE * max(abs(other), 0.01)
