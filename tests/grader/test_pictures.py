"""What the picture checks take for a plot: any way to draw data with matplotlib, and no axes without them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gradebox.run.assertions import CheckFailed
from grader.shared.probes.support import describe_files, watch_figures
from grader.shared.programs import picture_and_json

plt = pytest.importorskip("matplotlib.pyplot")
from matplotlib.lines import Line2D  # noqa: E402

X, Y = [128, 512, 1024], [0.5, 3.0, 9.0]

PLOTS: dict[str, Callable[[Any], object]] = {
    "plot": lambda axes: axes.plot(X, Y),
    "loglog": lambda axes: axes.loglog(X, Y, "o"),
    "large hollow markers": lambda axes: axes.plot(X, Y, "o", fillstyle="none", markersize=30),
    "names": lambda axes: axes.plot([str(size) for size in X], Y),
    "step": lambda axes: axes.step(X, Y),
    "scatter": lambda axes: axes.scatter(X, Y),
    "bar": lambda axes: axes.bar(["a", "b", "c"], Y),
    "barh": lambda axes: axes.barh(["a", "b", "c"], Y),
    "hist": lambda axes: axes.hist([*X, *Y], bins=4),
    "errorbar": lambda axes: axes.errorbar(X, Y, yerr=0.1),
    "stackplot": lambda axes: axes.stackplot(X, Y, Y),
    "fill_between": lambda axes: axes.fill_between(X, Y),
    "stairs": lambda axes: (axes.stairs(Y), axes.stairs(X)),
    "vlines": lambda axes: axes.vlines(X, 0, Y),
    "stem": lambda axes: axes.stem(X, Y),
    "boxplot": lambda axes: axes.boxplot([X, Y]),
    "pie": lambda axes: axes.pie(Y),
    "imshow": lambda axes: axes.imshow(np.outer(X, Y)),
    "pcolormesh": lambda axes: axes.pcolormesh(np.outer(X, Y)),
    "contourf": lambda axes: axes.contourf(np.outer(X, Y)),
}
NO_PLOTS: dict[str, Callable[[Any], object]] = {
    "nothing": lambda axes: axes.grid(visible=True),
    "a line across": lambda axes: (axes.axhline(1, label="equally fast"), axes.legend()),
    "a text": lambda axes: axes.text(0.5, 0.5, "speedup"),
    "what is no number": lambda axes: axes.plot(X, [float("nan")] * 3),
    "what nobody sees": lambda axes: axes.plot(X, Y, visible=False),
    "a transparent line": lambda axes: axes.plot(X, Y, "o-", alpha=0),
    "a line in the colour of the ground": lambda axes: axes.plot(X, Y, "o-", color="white"),
    "neither line nor marker": lambda axes: axes.plot(X, Y, linestyle="none"),
    "markers of no size": lambda axes: axes.plot(X, Y, "o", markersize=0),
    "points of no size": lambda axes: axes.scatter(X, Y, s=0),
    "transparent bars": lambda axes: axes.bar(["a", "b", "c"], Y, alpha=0),
    "a line whose class draws nothing": lambda axes: (axes.add_line(_Undrawn(X, Y)), axes.autoscale_view()),
    "a line whose method draws nothing": lambda axes: _left_undrawn(axes.plot(X, Y, "o-")[0]),
    "points whose method draws nothing": lambda axes: _left_undrawn(axes.scatter(X, Y)),
}


class _Undrawn(Line2D):
    def draw(self, renderer: Any) -> None:
        pass


def _left_undrawn(artist: Any) -> None:
    artist.draw = lambda renderer: None


def drawing(folder: Path, draw: Callable[[Any], object], **subplot: Any) -> SimpleNamespace:
    with watch_figures() as drawn:
        figure = plt.figure()
        draw(figure.add_subplot(**subplot))
        figure.suptitle("a title")
        figure.savefig(folder / "plot.png", dpi=100)
        plt.close(figure)
    (folder / "results.json").write_text('{"results": [1, 2]}')
    return SimpleNamespace(exit_code=0, drawn=drawn, **describe_files(folder))


@pytest.mark.parametrize("way", PLOTS)
def test_every_way_to_draw_data_is_a_plot(way: str, tmp_path: Path) -> None:
    assert picture_and_json(drawing(tmp_path, PLOTS[way]), "it") == [1, 2]


def test_other_projections_are_plots(tmp_path: Path) -> None:
    assert picture_and_json(drawing(tmp_path, PLOTS["plot"], projection="polar"), "it") == [1, 2]
    assert picture_and_json(drawing(tmp_path, lambda axes: axes.plot(X, Y, X), projection="3d"), "it") == [1, 2]


@pytest.mark.parametrize("way", NO_PLOTS)
def test_axes_without_results_are_none(way: str, tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match="axes without results"):
        picture_and_json(drawing(tmp_path, NO_PLOTS[way]), "it")


TALLER = [2 * y for y in Y]
BARS: dict[str, tuple[Callable[[Any], object], int]] = {
    "under taller ones": (lambda axes: (axes.bar(X, Y), axes.bar(X, TALLER)), 3),
    "in front of taller ones": (lambda axes: (axes.bar(X, TALLER), axes.bar(X, Y)), 6),
    "raised in front of taller ones": (lambda axes: (axes.bar(X, Y, zorder=2), axes.bar(X, TALLER)), 6),
    "under taller ones that let them show": (lambda axes: (axes.bar(X, Y), axes.bar(X, TALLER, alpha=0.5)), 6),
    "under outlines": (lambda axes: (axes.bar(X, Y), axes.bar(X, TALLER, fill=False, edgecolor="k")), 6),
    "under equal ones": (lambda axes: (axes.bar(X, Y), axes.bar(X, Y)), 6),
    "along longer ones": (lambda axes: (axes.barh(X, Y), axes.barh(X, TALLER)), 3),
    "stacked": (lambda axes: (axes.bar(X, Y), axes.bar(X, Y, bottom=Y)), 6),
    "on a coloured ground": (lambda axes: (axes.bar(X, Y), axes.axhspan(0, 20, color="#eeeeee")), 3),
}


@pytest.mark.parametrize("place", BARS)
def test_bars_count_where_they_are_seen(place: str, tmp_path: Path) -> None:
    draw, seen = BARS[place]
    assert drawing(tmp_path, draw).drawn == [seen]


def test_noise_is_none(tmp_path: Path) -> None:
    plt.imsave(tmp_path / "noise.png", np.random.default_rng(0).random((300, 400, 3)))
    (tmp_path / "results.json").write_text('{"results": [1, 2]}')
    run = SimpleNamespace(exit_code=0, drawn=[], **describe_files(tmp_path))
    with pytest.raises(CheckFailed, match="no plot"):
        picture_and_json(run, "it")


def test_matplotlib_is_as_it_was_afterwards() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    before = FigureCanvasAgg.print_png
    with watch_figures():
        assert FigureCanvasAgg.print_png is not before
    assert FigureCanvasAgg.print_png is before
