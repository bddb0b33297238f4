"""Pictures for Lab 5's schedule, resume and monitor, and the monitor's own page with what it has seen.

Not for serving that page: labkit.monitoring.web.
"""

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

import labkit.monitoring
from labkit.monitoring import Snapshot, plain
from labkit.notebook.notes import publish
from labkit.notebook.pictures import COLORS, new_figure

BLUE, ORANGE, GREEN, PINK, _, GREY = COLORS
_PAGE = Path(labkit.monitoring.__file__).with_name("page.html")
_ASKS = 'await (await fetch("history?after=" + latest)).json()'
_POLLS = "setTimeout(poll, 1000);"
# Once more when the frame has its width; the points that are known already are not to be there twice.
_DRAWS_AGAIN = "if (!window.drawn) { window.drawn = true; points = []; setTimeout(poll, 300); }"
_POINTS = 60


def plot_schedules(factors: Mapping[str, Sequence[float]]) -> Figure:
    """The learning rate of each step as a factor of the highest, one line per schedule."""
    figure, (axis,) = new_figure(
        "The learning rate over a run", height=3.0, x_label="optimizer step", y_label="share of the highest rate"
    )
    for (name, values), color in zip(factors.items(), (BLUE, ORANGE, GREEN, PINK), strict=False):
        axis.plot(values, color=color, label=name)
    axis.set_ylim(0, 1.05)
    axis.legend(frameon=False)
    return figure


def plot_runs(losses: Mapping[str, Sequence[float]], *, killed_after: int) -> Figure:
    """The training loss of each epoch of runs that should be one and the same; the first is drawn as a broad line."""
    figure, (axis,) = new_figure(
        "Killed and resumed, or left alone", height=3.2, x_label="epoch", y_label="training loss"
    )
    styles = (("-", 7, GREY), ("o-", 2, BLUE), ("s--", 2, ORANGE))
    for (name, values), (style, width, color) in zip(losses.items(), styles, strict=False):
        axis.plot(range(len(values)), values, style, linewidth=width, color=color, label=name)
    axis.axvline(killed_after - 0.5, color=PINK, linestyle=":")
    axis.text(killed_after - 0.45, axis.get_ylim()[1], "killed", color=PINK, fontsize=9, va="top")
    axis.set_xticks(range(max(map(len, losses.values()))))
    axis.legend(frameon=False)
    return figure


def draw_alert(held: Sequence[tuple[float, float]], for_seconds: float, until: float) -> Figure:
    """When a condition holds, and what Prometheus makes of it: inactive, pending, firing."""
    figure, (axis,) = new_figure("An alert waits before it fires", height=2.3, x_label="seconds")
    for begin, end in held:
        axis.broken_barh([(begin, end - begin)], (1.1, 0.7), facecolor=BLUE)
        axis.broken_barh([(begin, min(end - begin, for_seconds))], (0.1, 0.7), facecolor=ORANGE)
        if end - begin >= for_seconds:
            axis.broken_barh([(begin + for_seconds, end - begin - for_seconds)], (0.1, 0.7), facecolor=PINK)
            axis.text(
                (begin + for_seconds + end) / 2, 0.45, "firing", ha="center", va="center", color="white", fontsize=9
            )
        axis.text(
            begin + min(end - begin, for_seconds) / 2,
            0.45,
            "pending",
            ha="center",
            va="center",
            color="white",
            fontsize=9,
        )
    axis.set_yticks([1.45, 0.45], ["condition holds", f"alert, for: {for_seconds:g} s"])
    axis.tick_params(axis="y", length=0)
    axis.set_xlim(0, until)
    axis.set_ylim(0, 2)
    return figure


def plot_alerts(
    snapshots: Sequence[Snapshot], firing: Sequence[bool], *, threshold: float, for_seconds: float
) -> Figure:
    """GPU 0's temperature over seconds, the threshold, and below it when the alert fired."""
    figure, (axis,) = new_figure(
        "When your engine raises GpuHot", height=3.2, x_label="seconds", y_label="degrees Celsius"
    )
    start = snapshots[0].time
    times = [snapshot.time - start for snapshot in snapshots]
    heat = [snapshot.gpus[0].temperature_celsius or 0.0 for snapshot in snapshots]
    axis.plot(times, heat, ".-", color=BLUE)
    axis.axhline(threshold, color=ORANGE, linestyle="--")
    axis.text(times[-1], threshold, "threshold", color=ORANGE, ha="right", va="bottom", fontsize=9)
    low = min(heat) - 6
    for index, fires in enumerate(firing[:-1]):
        width = times[index + 1] - times[index]
        color = PINK if fires else "none"
        axis.broken_barh([(times[index], width)], (low, 3), facecolor=color, edgecolor=GREY, linewidth=0.3)
    axis.text(times[0], low + 3.4, f"firing (for: {for_seconds:g} s)", color=PINK, fontsize=9)
    axis.set_ylim(low - 1, max(heat) + 3)
    return figure


def show_page(history: Sequence[Snapshot], now: Snapshot, *, height: int = 640) -> None:
    """Show the monitor's page as it was at `now`, in a frame: the page itself, with the answers that it waits for.

    Args:
        history: snapshots, oldest first; not all of them are shown.
        now: the latest.
        height: of the frame in pixels.

    Raises:
        ValueError: labkit/monitoring/page.html asks for its data in another way than it did.
    """
    kept = list(history)[:: -(-len(history) // _POINTS) or 1]
    known = json.dumps(plain({"history": kept, "now": now}), allow_nan=False)
    page = _PAGE.read_text(encoding="utf-8")
    if _ASKS not in page or _POLLS not in page:
        raise ValueError("labkit/monitoring/page.html asks for its data in another way now: adapt show_page")
    page = page.replace(_ASKS, known.replace("</", "<\\/")).replace(_POLLS, _DRAWS_AGAIN)
    page = page.replace('"live"', '"as it was"')
    frame = (
        f'<iframe title="The monitor\'s page as it was" sandbox="allow-scripts" srcdoc="{html.escape(page)}" '
        f'style="width:100%;height:{height}px;border:1px solid #9a9a9a;border-radius:6px"></iframe>'
    )
    publish(frame, f"[the monitor's page at step {now.step}]", "figure")
