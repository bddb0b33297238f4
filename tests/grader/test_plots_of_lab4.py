"""Lab 4's plots are judged by what they show: any way to draw it will do, and what shows something else will not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from gradebox.run.assertions import CheckFailed
from gradebox.run.input_generator import InputGenerator
from grader.lab4.analysis import cases as analysis_cases
from grader.lab4.analysis.checks import plot
from grader.lab4.attention.cases import draws as attention_cases
from grader.lab4.attention.checks import benchmark
from grader.lab4.checkpointing.cases import draws as checkpointing_cases
from grader.lab4.checkpointing.checks import criterion as checkpointing_checks
from grader.lab4.shared.probes import _shown
from grader.shared.probes.figures import watch_png

Rows = list[dict[str, Any]]
MIB = 2**20
PARTS = ("parameter_bytes", "gradient_bytes", "optimizer_state_bytes", "activation_bytes")
PLOTS: dict[str, tuple[Callable[[InputGenerator], Any], Callable[[Any, Any], None]]] = {
    "checkpointing": (checkpointing_cases.made_up_results, checkpointing_checks.require_shown),
    "attention": (attention_cases.made_up_results, benchmark.require_shown),
    "memory": (analysis_cases.made_up_results, plot.require_shown),
}
"""By kind, how results are made up, and how the check judges a plot of them."""
NAMES = ("parameters", "gradients", "optimizer state", "activations")


def judge(kind: str, draw: Callable[[Figure, Rows], None], folder: Path) -> None:
    """Fail as the check does unless `draw` shows the rows that it gets."""
    made_up, require_shown = PLOTS[kind]
    rows = made_up(InputGenerator(7, "plots"))
    figure = Figure()
    draw(figure, rows)
    with watch_png(lambda figure: (_shown(figure, cut=False), _shown(figure))) as figures:
        figure.savefig(folder / "plot.png")
    for shown in figures[-1]:
        require_shown(shown, rows)


def total(row: dict[str, Any]) -> float:
    return float(sum(row["measured"].values())) / MIB


def flat(figure: Figure, rows: Rows) -> None:
    axes = figure.subplots()
    for place, row in enumerate(rows):
        left = 0.0
        for part in PARTS:
            axes.barh(place, row["predicted"][part] / MIB, left=left, color=f"C{PARTS.index(part)}")
            left += row["predicted"][part] / MIB
        axes.scatter(total(row), place, marker="x")
    axes.legend(axes.patches[:4], NAMES)


def upright(figure: Figure, rows: Rows, unit: float = MIB, *, stacked: bool = True) -> None:
    axes = figure.subplots()
    bottom = [0.0] * len(rows)
    for part, name in zip(PARTS, NAMES, strict=True):
        heights = [row["predicted"][part] / unit for row in rows]
        axes.bar(range(len(rows)), heights, bottom=bottom if stacked else 0.0, label=name)
        bottom = [low + high for low, high in zip(bottom, heights, strict=True)]
    axes.hlines([total(row) * MIB / unit for row in rows], [-0.4, 0.6, 1.6], [0.4, 1.4, 2.4])
    axes.legend()


def written_beside(figure: Figure, rows: Rows) -> None:
    flat(figure, rows)
    axes = figure.axes[0]
    axes.get_legend().remove()  # type: ignore[union-attr]
    for place, name in enumerate(NAMES):
        axes.text(10 * place, -1, name)


def under_its_bars(figure: Figure, rows: Rows) -> None:
    flat(figure, rows)
    for marks in figure.axes[0].collections:
        marks.set_zorder(0)


def nameless(figure: Figure, rows: Rows) -> None:
    flat(figure, rows)
    figure.axes[0].get_legend().remove()  # type: ignore[union-attr]


@pytest.mark.parametrize("draw", [flat, upright, written_beside])
def test_a_memory_plot_may_be_flat_or_upright(draw: Callable[[Figure, Rows], None], tmp_path: Path) -> None:
    judge("memory", draw, tmp_path)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda figure, rows: upright(figure, rows, unit=2**30), "no bar is"),
        (lambda figure, rows: upright(figure, rows, stacked=False), "its parts begin at"),
        (nameless, "does not say which part"),
        (under_its_bars, "no mark on its bar"),
        (lambda figure, rows: flat(figure, rows[1:]), "no bar is"),
    ],
    ids=["GiB", "side by side", "nameless", "marks under the bars", "a setup left out"],
)
def test_a_memory_plot_of_something_else_fails(
    draw: Callable[[Figure, Rows], None], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckFailed, match=message):
        judge("memory", draw, tmp_path)


def attention(figure: Figure, rows: Rows, *, legend: bool = True, log: bool = True, milli: float = 1e3) -> None:
    for axes, name, factor in zip(figure.subplots(1, 2), ("peak_bytes", "seconds"), (1 / MIB, milli), strict=True):
        for method in ("standard", "flash"):
            own = [row for row in rows if row["method"] == method and row["seconds"]]
            values = [row[name] * factor for row in own]
            axes.plot([row["length"] for row in own], values, label=method)
            if not legend:
                axes.annotate(method, (own[0]["length"], values[0]))
        if log:
            axes.loglog()
        axes.set_ylabel(name)
        if legend:
            axes.legend()


def test_methods_may_be_named_beside_their_lines(tmp_path: Path) -> None:
    judge("attention", attention, tmp_path)
    judge("attention", lambda figure, rows: attention(figure, rows, legend=False), tmp_path)


@pytest.mark.parametrize(("how", "message"), [({"log": False}, "scales"), ({"milli": 1.0}, "milliseconds")])
def test_an_attention_plot_of_something_else_fails(how: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match=message):
        judge("attention", lambda figure, rows: attention(figure, rows, **how), tmp_path)


def test_every_line_that_could_be_meant_is_none(tmp_path: Path) -> None:
    def many(figure: Figure, rows: Rows) -> None:
        attention(figure, rows)
        for axes in figure.axes:
            for line in [*axes.get_lines()]:
                for factor in (1e-3, MIB):
                    axes.plot(line.get_xdata(), np.asarray(line.get_ydata()) * factor)

    with pytest.raises(CheckFailed, match="which line is which"):
        judge("attention", many, tmp_path)


def checkpointing(figure: Figure, rows: Rows, *, unit: float = MIB, named: bool = True) -> None:
    axes = figure.subplots()
    for row in rows:
        label = f"every {row['checkpoint_every']}" if named else None
        axes.scatter(row["step_seconds"] * 1e3, row["peak_bytes"] / unit, label=label)
    if named:
        axes.legend()


def test_intervals_may_stand_in_a_legend(tmp_path: Path) -> None:
    judge("checkpointing", checkpointing, tmp_path)


def test_every_point_that_could_be_meant_is_none(tmp_path: Path) -> None:
    def many(figure: Figure, rows: Rows) -> None:
        for unit in (1.0, 1e6, MIB):
            checkpointing(figure, rows, unit=unit)

    with pytest.raises(CheckFailed, match="of no interval"):
        judge("checkpointing", many, tmp_path)


@pytest.mark.parametrize(("how", "message"), [({"unit": 1e6}, "no point at"), ({"named": False}, "which point")])
def test_a_checkpointing_plot_of_something_else_fails(how: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match=message):
        judge("checkpointing", lambda figure, rows: checkpointing(figure, rows, **how), tmp_path)


@pytest.mark.parametrize(
    ("kind", "draw", "message"),
    [
        ("memory", flat, "no bar is"),
        ("attention", attention, "no line through"),
        ("checkpointing", checkpointing, "no point at"),
    ],
)
def test_what_lies_outside_of_the_limits_of_its_axes_is_not_shown(
    kind: str, draw: Callable[[Figure, Rows], None], message: str, tmp_path: Path
) -> None:
    def cut(figure: Figure, rows: Rows) -> None:
        draw(figure, rows)
        axes = figure.axes[0]
        left, right = axes.get_xlim()
        axes.set_xlim(left, left + (right - left) / 2)

    with pytest.raises(CheckFailed, match=message):
        judge(kind, cut, tmp_path)
