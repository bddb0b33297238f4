"""Inputs of the plots of Lab 2: made-up results, and what is in the figures that are drawn of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

from gradebox.run.input_generator import InputGenerator
from gradebox.sandbox import Request
from gradebox.sandbox.probe_types import ProbeInputs
from grader.shared.dimensions import Case, Dimension, Space

Row = dict[str, object]
"""A result, by the fields of its dataclass."""


class Series(TypedDict):
    """A line, bars or points of a figure."""

    label: str
    points: list[list[float]]
    """Those that are finite and within the limits of the axes."""
    cut_off: list[list[float]]
    """Of a line, those that are finite and beyond the limits: the line runs there all the same."""
    x_ticks: list[tuple[float, str]]
    """Places with what is written there."""
    y_ticks: list[tuple[float, str]]


class Figure(TypedDict, total=False):
    """What is in a figure; empty if none was written."""

    series: list[Series]
    axes: list[tuple[str, str]]
    """The words below and next to each."""
    legend: list[str]
    texts: list[str]


@dataclass(frozen=True, kw_only=True)
class Plot:
    """What became of one plot."""

    figure: Figure
    path_returned: bool
    written: bool
    refused: bool
    """Whether a file that cannot be written was an OSError."""


@dataclass(frozen=True)
class PlotsReply:
    """What became of each plot, by name."""

    plots: dict[str, Plot]


@dataclass(frozen=True)
class Plots(ProbeInputs[PlotsReply], probe="lab2.comparison.plots.plots"):
    """Plots of made-up results."""

    rows: dict[str, list[Row]]
    """By the plot's name, after which there may be words that tell several of one function apart."""


class Picture(TypedDict):
    """What a PNG file looks like."""

    width: int
    height: int
    colours: int
    ground: float
    """The share of its commonest colour."""


@dataclass(frozen=True, kw_only=True)
class ProgramReply:
    """What a program left behind."""

    exit_code: object
    json: dict[str, str]
    """The texts of its JSON files, by name."""
    pictures: dict[str, Picture]
    drawn: list[int]
    """Of each figure, the points of data that it shows."""
    figure: Figure
    """The last one."""


@dataclass(frozen=True, kw_only=True)
class Program(ProbeInputs[ProgramReply], probe="lab2.comparison.plots.program"):
    """A program that is run with its command line."""

    module: str
    """ "lab2_mixed_precision.amp_training" """
    command_line: list[str]


def plots(generator: InputGenerator) -> Plots:
    """Made-up results: epochs without a loss, runs without any, and precisions in an order of this grading."""
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
    rows: dict[str, list[Row]] = {
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
        row | {"device": "cpu", "peak_bytes": None, "step_seconds": generator.log_uniform(0.1, 1.0)}
        for row in generator.shuffled(rows["plot_precisions"])
    ]
    return Plots(rows)


def _training(dtype: str, losses: Sequence[float | None]) -> Row:
    """What both kinds of training report, of one batch per epoch: if it was skipped there is no loss."""
    skipped = losses.count(None)
    row: Row = {"device": "cuda", "dtype": dtype, "losses": list(losses)}
    return row | {"optimizer_steps": len(losses) - skipped, "skipped_steps": skipped}


def _drawn(request: Request) -> Iterator[Case]:
    plotted: Mapping[str, list[Row]] = request.params["rows"]
    for name, rows in plotted.items():
        if name.startswith("plot_precisions"):
            yield {"rows": rows}


PLOTTED = Space(
    probes=(Plots.probe,),
    cases=_drawn,
    dimensions=(
        Dimension("device", ("cuda", "cpu"), lambda case: str(case["rows"][0]["device"])),
        Dimension(
            "peaks", ("known", "none"), lambda case: "none" if case["rows"][0]["peak_bytes"] is None else "known"
        ),
    ),
    apart={
        ("device=cuda", "peaks=none"): "a GPU's are known",
        ("device=cpu", "peaks=known"): "a CPU's are not",
    },
)
SPACES = (PLOTTED,)
WITHOUT = {Program.probe: "a program, run with its command line only"}
