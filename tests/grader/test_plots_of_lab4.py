"""Lab 4's plots are judged by what they show: any way to draw it will do, and what shows something else will not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from gradebox.run.assertions import CheckFailed
from gradebox.run.input_generator import InputGenerator
from grader.lab4.probes.pictures import _shown
from grader.lab4.truth.pictures import made_up, require_shown
from grader.shared.probes.figures import watch_png

Rows = list[dict[str, Any]]
MIB = 2**20
PARTS = ("parameter_bytes", "gradient_bytes", "optimizer_state_bytes", "activation_bytes")
NAMES = ("parameters", "gradients", "optimizer state", "activations")


def judge(kind: str, draw: Callable[[Figure, Rows], None], folder: Path) -> None:
    """Fail as the check does unless `draw` shows the rows that it gets."""
    rows = made_up(kind, InputGenerator(7, "plots"))
    figure = Figure()
    draw(figure, rows)
    with watch_png(_shown) as seen:
        figure.savefig(folder / "plot.png")
    require_shown(kind, seen[-1], rows)


def total(row: dict[str, Any]) -> float:
    return float(sum(row["measured"].values())) / MIB


def lying(figure: Figure, rows: Rows) -> None:
    axes = figure.subplots()
    for place, row in enumerate(rows):
        left = 0.0
        for part in PARTS:
            axes.barh(place, row["predicted"][part] / MIB, left=left, color=f"C{PARTS.index(part)}")
            left += row["predicted"][part] / MIB
        axes.scatter(total(row), place, marker="x")
    axes.legend(axes.patches[:4], NAMES)


def standing(figure: Figure, rows: Rows, unit: float = MIB, *, stacked: bool = True) -> None:
    axes = figure.subplots()
    bottom = [0.0] * len(rows)
    for part, name in zip(PARTS, NAMES, strict=True):
        heights = [row["predicted"][part] / unit for row in rows]
        axes.bar(range(len(rows)), heights, bottom=bottom if stacked else 0.0, label=name)
        bottom = [low + high for low, high in zip(bottom, heights, strict=True)]
    axes.hlines([total(row) * MIB / unit for row in rows], [-0.4, 0.6, 1.6], [0.4, 1.4, 2.4])
    axes.legend()


def written_beside(figure: Figure, rows: Rows) -> None:
    lying(figure, rows)
    axes = figure.axes[0]
    axes.get_legend().remove()  # type: ignore[union-attr]
    for place, name in enumerate(NAMES):
        axes.text(10 * place, -1, name)


def nameless(figure: Figure, rows: Rows) -> None:
    lying(figure, rows)
    figure.axes[0].get_legend().remove()  # type: ignore[union-attr]


@pytest.mark.parametrize("draw", [lying, standing, written_beside])
def test_a_memory_plot_may_lie_or_stand(draw: Callable[[Figure, Rows], None], tmp_path: Path) -> None:
    judge("memory", draw, tmp_path)


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        (lambda figure, rows: standing(figure, rows, unit=2**30), "no bar is"),
        (lambda figure, rows: standing(figure, rows, stacked=False), "its parts begin at"),
        (nameless, "does not say which part"),
        (lambda figure, rows: lying(figure, rows[1:]), "no bar is"),
    ],
    ids=["GiB", "side by side", "nameless", "a setup left out"],
)
def test_a_memory_plot_of_something_else_fails(draw: Callable[[Figure, Rows], None], said: str, tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match=said):
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


@pytest.mark.parametrize(("how", "said"), [({"log": False}, "scales"), ({"milli": 1.0}, "milliseconds")])
def test_an_attention_plot_of_something_else_fails(how: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match=said):
        judge("attention", lambda figure, rows: attention(figure, rows, **how), tmp_path)


def checkpointing(figure: Figure, rows: Rows, *, unit: float = MIB, named: bool = True) -> None:
    axes = figure.subplots()
    for row in rows:
        label = f"every {row['checkpoint_every']}" if named else None
        axes.scatter(row["step_seconds"] * 1e3, row["peak_bytes"] / unit, label=label)
    if named:
        axes.legend()


def test_intervals_may_stand_in_a_legend(tmp_path: Path) -> None:
    judge("checkpointing", checkpointing, tmp_path)


@pytest.mark.parametrize(("how", "said"), [({"unit": 1e6}, "no point at"), ({"named": False}, "which point")])
def test_a_checkpointing_plot_of_something_else_fails(how: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match=said):
        judge("checkpointing", lambda figure, rows: checkpointing(figure, rows, **how), tmp_path)
