"""What Lab 2's plots must show: the numbers that they were given, each at its place, and what the programs write."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradebox.run.assertions import require, require_equal
from gradebox.run.input_generator import InputGenerator
from gradebox.run.submission import Submission
from grader.shared.programs import picture_and_json

_CLOSE = 0.001
"""Relative: a number in a figure is the one that it was given, but for a rounding of the student's."""
_FORMS: tuple[Callable[[float], float], ...] = (lambda x: x, lambda x: 100 * x, math.log10, math.log, math.log2)
"""How a number may be drawn: as it is, in percent, or as its logarithm."""
_PRECISION = re.compile(r"\b(float32|float16|bfloat16)\b")

Figure = Mapping[str, Any]


def require_plots(submission: Submission, generator: InputGenerator) -> None:
    """Fail unless each plot shows the numbers of made-up results, and is where it should be."""
    epochs = generator.integer(5, 7)

    def losses(*missing: int) -> list[float | None]:
        return [None if epoch in missing else generator.uniform(0.1, 3.0) for epoch in range(epochs)]

    # Not in the middle, so that an epoch that is left out moves those after it; more runs than there are colours.
    trained = {"bfloat16": losses(), "float16": losses(1), "float32": losses(0, epochs - 1)}
    unstable: list[list[float | None]] = [
        losses(),
        losses(1),
        losses(),
        [None] * epochs,
        losses(0),
        losses(2),
        losses(epochs - 1),
    ]
    rows: dict[str, list[dict[str, Any]]] = {
        "plot_losses": [
            _training(name, trained[name])
            | {"final_scale": 2.0**16 if name == "float16" else None, "seconds": 1.0, "peak_bytes": 10**6}
            for name in generator.shuffled(list(trained))
        ],
        "plot_runs": [
            _training("float16", value)
            | {"gain": 2.0**-index, "scales": [1.0] * epochs}
            | {"nonfinite_parameters": ["encoder.1.weight"] * (None in value)}
            | {"nonfinite_layer": None if any(value) else "shrink"}
            for index, value in enumerate(generator.shuffled(unstable))
        ],
        "plot_precisions": [
            {
                "device": "cuda",
                "dtype": name,
                "samples_per_second": 1.0,
                "step_seconds": generator.log_uniform(0.01, 0.1),
                "peak_bytes": generator.integer(10**8, 10**9),
                "accuracy": generator.uniform(0.5, 0.9),
            }
            for name in generator.shuffled(["float32", "float16", "bfloat16"])
        ],
    }
    if rows["plot_precisions"][0]["dtype"] == "float32":  # which is to be found, wherever it is
        rows["plot_precisions"].reverse()
    rows["plot_precisions of a CPU"] = [
        one | {"device": "cpu", "peak_bytes": None, "step_seconds": generator.log_uniform(0.1, 1.0)}
        for one in generator.shuffled(rows["plot_precisions"])
    ]
    seen = submission.numeric_probe("lab2.plots.plots", rows=rows)
    for name, plot in seen.plots.items():
        require(plot["written"] and plot["told"], f"{name}(results, path) did not write `path`, or returned another")
        require(plot["refused"], f"{name}(results, path) raised no OSError for a file that cannot be written")
        show = _require_shares if name.startswith("plot_precisions") else _require_losses
        show(plot["figure"], rows[name], f"{name}()" if " " not in name else f"{name}, whose peaks are None,")
    _require_run_without_steps(seen.plots["plot_runs"]["figure"], len(unstable))


def require_written(submission: Submission, name: str, stem: str, arguments: Sequence[str]) -> list[Any]:
    """The rows that a program wrote; fails unless they and a plot of them are in the files that it names."""
    # A virtual GPU that the program attaches itself is gone when its block ends, and with it the word in the plot.
    own = submission.device.simulated and stem == "precisions"
    seen = submission.probe(
        "lab2.plots.program",
        device="cpu" if own else None,
        module=f"lab2_mixed_precision.{name}",
        arguments=[*arguments, "--device=vgpu"] if own else arguments,
    )
    what = f"python -m labs.lab2_mixed_precision.{name}"
    rows = picture_and_json(seen, what)
    for file, files in ((f"{stem}.json", seen.json), (f"{stem}.png", seen.pictures)):
        require(file in files, f"{what} wrote {', '.join(files)} into --out, and no {file}")
    try:
        simulated = json.loads(seen.json[f"{stem}.json"])["provenance"]["simulated"]
    except (ValueError, KeyError, TypeError):
        simulated = None
    require(
        simulated is submission.device.simulated,
        f"{what}: {stem}.json does not say whether its times are simulated",
        "labkit.results.save_json writes the device's provenance beside the results",
    )
    if stem == "precisions":
        said = any("simulated" in text.lower() for text in seen.figure.get("texts", []))
        require(
            said or not submission.device.simulated,
            f"{what}: {stem}.png shows simulated times and does not say so",
            "labkit.plotting.save_png writes it, as long as the device is open: inside `with open_device(...)`",
        )
    try:
        (_require_shares if stem == "precisions" else _require_losses)(seen.figure, rows, f"{stem}.png of {what}")
    except (KeyError, TypeError, ZeroDivisionError):
        require(False, f"{what}: {stem}.json does not hold results that can be drawn", "save what was returned")
    return rows


def _training(dtype: str, losses: Sequence[float | None]) -> dict[str, Any]:
    """What both kinds of training tell, of one batch per epoch: where it was skipped there is no loss."""
    skipped = losses.count(None)
    told = {"device": "cuda", "dtype": dtype, "losses": losses}
    return told | {"optimizer_steps": len(losses) - skipped, "skipped_steps": skipped}


def _require_losses(figure: Figure, rows: Sequence[Mapping[str, Any]], what: str) -> None:
    """Fail unless each row's losses are a series over the epochs, none where there was none, under no other's name."""
    for below, beside in figure.get("axes", []):
        require(
            not ("loss" in below.lower() and "epoch" in beside.lower()),
            f"{what} draws losses over epochs, and says {below!r} below the axis and {beside!r} beside it",
        )
    series = figure.get("series", [])
    everything = [number for one in series for point in one["points"] for number in point]
    for row in rows:
        wanted = {epoch: loss for epoch, loss in enumerate(row["losses"], 1) if loss is not None}
        _require_shown(everything, list(wanted.values()), what)
        fits = [(one, line) for one in series for line in _lines(one["points"], wanted)]
        shown = ", ".join(f"{epoch}: {loss:.4g}" for epoch, loss in wanted.items())
        require(
            bool(fits) or not wanted,
            f"{what} draws no line with these losses at these epochs: {shown}",
            "an epoch without a loss keeps its place: what comes after it must not move",
        )
        gaps = [epoch for epoch, loss in enumerate(row["losses"], 1) if loss is None]
        clean = [one for one, (step, at) in fits if not any(_has(one["points"], at + step * gap) for gap in gaps)]
        require(
            bool(clean) or not wanted,
            f"{what} draws a number for epochs {gaps}, which had none, beside {shown}",
            "None is no loss, and not 0 either; math.nan is drawn as nothing",
        )
        names = {name for one in clean for name in [_named(one["label"])] if name}
        require(
            not names or row["dtype"] in names,
            f"{what}: the line of {row['dtype']} is labelled {', '.join(sorted(names))}",
            "each line under its own name",
        )


def _lines(points: Sequence[Sequence[float]], wanted: Mapping[int, float]) -> list[tuple[float, float]]:
    """Steps per epoch and places of epoch 0 with which a series shows the wanted losses over their epochs."""
    found = []
    for form in _FORMS:
        at = {
            epoch: [x for x, y in points if _near(y, form(loss))] if loss > 0 or form is _FORMS[0] else []
            for epoch, loss in wanted.items()
        }
        if not at or not all(at.values()):
            continue
        first, last = min(at), max(at)
        for start in at[first]:
            for end in at[last]:
                step = (end - start) / (last - first) if last > first else 1.0
                zero = start - step * first
                if step and all(any(_near(x, zero + step * epoch) for x in xs) for epoch, xs in at.items()):
                    found.append((step, zero))
    return found


def _require_run_without_steps(figure: Figure, count: int) -> None:
    """Fail unless all runs stand in the legend, and no line tells losses of 0."""
    require(
        len(figure.get("legend", [])) >= count,
        f"plot_runs() of {count} runs, one of them without any step: the legend has {len(figure.get('legend', []))} "
        "entries",
        "a run without any step has no line, but stands in the legend",
    )
    flat = [one for one in figure["series"] if len(one["points"]) > 1 and all(y == 0 for _, y in one["points"])]
    require(
        not flat, "plot_runs() draws a line of zeros, and no run has losses of 0", "None: nothing to draw (math.nan)"
    )


def _require_shares(figure: Figure, rows: Sequence[Mapping[str, Any]], what: str) -> None:
    """Fail unless each precision's speed, memory and accuracy are drawn, as shares of float32's, under its name."""
    base = next(row for row in rows if row["dtype"] == "float32")
    series = figure.get("series", [])
    for row in rows:
        if row is base:
            continue
        shares = [base["step_seconds"] / row["step_seconds"], row["accuracy"] / base["accuracy"]]
        if base["peak_bytes"] is not None and row["peak_bytes"] is not None:
            shares.append(row["peak_bytes"] / base["peak_bytes"])
        _require_shown([number for one in series for point in one["points"] for number in point], shares, what)
        named = [value for one in series for name, value in _values(one) if name in (row["dtype"], None)]
        missing = [value for value in shares if not _is_shown(value, named)]
        require(
            not missing,
            f"{what}: {', '.join(f'{value:.4g}' for value in missing)} of {row['dtype']} stands at another precision",
            "each bar at the name of its own precision, whatever the order of the results",
        )


def _values(series: Mapping[str, Any]) -> list[tuple[str | None, float]]:
    """Numbers of a series with the precision that its label names, or the nearest tick; None where none is named."""
    label = _named(series["label"])
    ticks = [
        [(place, name) for place, text in series[side] if (name := _named(text))] for side in ("x_ticks", "y_ticks")
    ]
    found: list[tuple[str | None, float]] = []
    for side in [side for side in (0, 1) if ticks[side]] or [0, 1]:
        for point in series["points"]:
            at = point[side]
            there = min(ticks[side], key=lambda tick: abs(tick[0] - at))[1] if ticks[side] else None
            found.append((label or there, point[1 - side]))
    return found


def _named(text: str) -> str | None:
    """The one precision that is named in a text."""
    names = set(_PRECISION.findall(text.lower()))
    return names.pop() if len(names) == 1 else None


def _require_shown(drawn: Sequence[float], wanted: Sequence[float], what: str) -> None:
    missing = [value for value in wanted if not _is_shown(value, drawn)]
    require_equal(
        [round(value, 4) for value in missing],
        [],
        what=f"numbers that {what} was to show and does not, as they are, in percent or as logarithms",
    )


def _is_shown(value: float, drawn: Sequence[float]) -> bool:
    """Whether a number is drawn, in any form."""
    return any(_near(one, form(value)) for form in _FORMS if value > 0 or form is _FORMS[0] for one in drawn)


def _has(points: Sequence[Sequence[float]], place: float) -> bool:
    return any(_near(x, place) for x, _ in points)


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= _CLOSE * max(abs(other), 0.01)
