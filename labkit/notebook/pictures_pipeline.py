"""Pictures for Lab 5's trainer and profile: what idles and why, one optimizer step, a checkpoint file being written.

Not for the monitor (pictures_monitor.py), nor for what students plot themselves.
"""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from labkit.notebook.pictures import COLORS, INK, new_figure
from labkit.profiling import REGIONS, Interval, Timeline, intersect, union

BLUE, ORANGE, GREEN, PINK, _, GREY = COLORS
_REGION_COLORS = dict(zip(REGIONS, (ORANGE, PINK, BLUE, GREEN, GREY), strict=True))
_MOST_SPANS = 400
"""More rectangles than this in one lane are merged: nobody could tell them apart."""

# What a step looks like where one thing is wrong, in tenths of a millisecond: (lane, begin, end, colour or None, text).
_Span = tuple[str, float, float, str, str]
_FAULTS: dict[str, tuple[_Span, ...]] = {
    "a slow loader": (
        ("host", 0, 6, ORANGE, "load the batch"), ("host", 6, 8, BLUE, "launch"),
        ("host", 8, 14, ORANGE, "load the batch"), ("host", 14, 16, BLUE, "launch"),
        ("device", 6.5, 9, GREEN, "work"), ("device", 14.5, 17, GREEN, "work"),
    ),
    "a needless wait": (
        ("host", 0, 2, BLUE, "launch"), ("host", 2, 5, PINK, "wait for a value"), ("host", 5, 7, BLUE, "launch"),
        ("host", 7, 10, PINK, "wait for a value"), ("host", 10, 12, BLUE, "launch"), ("host", 12, 15, PINK, "wait"),
        ("device", 1.5, 5, GREEN, "work"), ("device", 6.5, 10, GREEN, "work"), ("device", 11.5, 15, GREEN, "work"),
    ),
    "too little work per kernel": (
        ("host", 0, 16.5, BLUE, "launch, launch, launch, ..."),
        *(("device", 0.5 + 1.6 * index, 0.9 + 1.6 * index, GREEN, "") for index in range(10)),
    ),
    "healthy": (
        ("host", 0, 2, BLUE, "launch"), ("host", 3.5, 5.5, BLUE, "launch"), ("host", 9.5, 11.5, BLUE, "launch"),
        ("device", 0.7, 6, GREEN, "work"), ("device", 6, 11.5, GREEN, "work"), ("device", 11.5, 17, GREEN, "work"),
    ),
}  # fmt: skip


def draw_faults() -> Figure:
    """Four training loops on the same scale, host above and device below; the device's idle moments are hatched."""
    figure, axes = new_figure("Four loops: the device is busy or idle, and each time for another reason",
                               columns=1, height=5.6)  # fmt: skip
    axis = axes[0]
    for row, (name, spans) in enumerate(_FAULTS.items()):
        base = 2.6 * (len(_FAULTS) - 1 - row)
        busy = [(begin, end) for lane, begin, end, _, _ in spans if lane == "device"]
        axis.broken_barh([(0, 17)], (base, 0.8), facecolor="none", edgecolor=GREY, hatch="////", linewidth=0)
        for lane, begin, end, color, text in spans:
            y = base + (1.0 if lane == "host" else 0.0)
            axis.broken_barh([(begin, end - begin)], (y, 0.8), facecolor=color, edgecolor="white", linewidth=0.5)
            if text:
                axis.text((begin + end) / 2, y + 0.4, text, ha="center", va="center", fontsize=7.5, color="white")
        share = sum(end - begin for begin, end in busy) / 17
        axis.text(-0.3, base + 1.4, "host", ha="right", va="center", fontsize=8, color=INK)
        axis.text(-0.3, base + 0.4, "device", ha="right", va="center", fontsize=8, color=INK)
        axis.text(17.3, base + 0.9, f"{name}:\nbusy {share:.0%}", va="center", fontsize=9.5, color=INK)
    axis.set_xlim(-1.8, 22.5)
    axis.set_ylim(-0.6, 2.6 * len(_FAULTS))
    axis.text(8.5, -0.45, "time (hatched: the device idles)", ha="center", fontsize=9, color=INK)
    axis.axis("off")
    return figure


def plot_timelines(timelines: Mapping[str, Timeline], *, seconds: float | None = None) -> Figure:
    """Recorded loops one below the other, on the same scale: host regions, waits, copies and kernels.

    Args:
        timelines: by what they are of.
        seconds: how much of each to show, from its start; None: as much as the longest step takes on average.
    """
    shown = seconds or max((each.stop - each.start) / each.steps for each in timelines.values())
    figure, (axis,) = new_figure("What the profiler recorded", height=0.9 + 1.75 * len(timelines),
                                  x_label="milliseconds since the first recorded step began")  # fmt: skip
    ticks: list[tuple[float, str]] = []
    for row, (name, timeline) in enumerate(timelines.items()):
        base = 5.6 * (len(timelines) - 1 - row)
        start, stop = timeline.start, min(timeline.start + shown, timeline.stop)
        lanes = (
            ("kernels", timeline.kernels, GREEN), ("copies", (*timeline.copies_in, *timeline.copies_out), BLUE),
            ("waits", timeline.waits, PINK),
        )  # fmt: skip
        for level, (label, spans, color) in enumerate(lanes):
            _lane(axis, spans, (start, stop), base + level, color)
            ticks.append((base + level + 0.4, label))
        for region, spans in timeline.regions.items():
            _lane(axis, spans, (start, stop), base + 3, _REGION_COLORS.get(region, GREY))
        ticks.append((base + 3.4, "host"))
        axis.text(0, base + 4.1, name, fontsize=10, color=INK)
    axis.set_yticks([y for y, _ in ticks], [label for _, label in ticks], fontsize=8)
    axis.tick_params(axis="y", length=0)
    axis.set_xlim(0, shown * 1e3)
    axis.set_ylim(-0.3, 5.6 * len(timelines))
    legend = [Patch(facecolor=color, label=name) for name, color in _REGION_COLORS.items()]
    axis.legend(
        handles=legend, title="host is in", loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8
    )
    return figure


def _lane(axis: Axes, spans: Sequence[Interval], window: Interval, y: float, color: str) -> None:
    inside = intersect([window], spans)
    if len(inside) > _MOST_SPANS:  # close what is narrower than a hair
        hair = (window[1] - window[0]) / 1500
        inside = union((begin, end + hair) for begin, end in inside)
    bars = [((begin - window[0]) * 1e3, (end - begin) * 1e3) for begin, end in inside]
    if bars:
        axis.broken_barh(bars, (y, 0.8), facecolor=color, linewidth=0)


def draw_intervals(rows: Mapping[str, Sequence[Interval]]) -> Figure:
    """Sets of moments below each other, as bars over seconds."""
    figure, (axis,) = new_figure("Moments as sets", height=0.42 * len(rows) + 1.1, x_label="seconds")
    for row, spans in enumerate(rows.values()):
        y = len(rows) - 1 - row
        axis.broken_barh([(begin, end - begin) for begin, end in spans], (y + 0.1, 0.7),
                         facecolor=BLUE if row < 2 else ORANGE, linewidth=0)  # fmt: skip
    axis.set_yticks([len(rows) - 0.55 - row for row in range(len(rows))], list(rows))
    axis.tick_params(axis="y", length=0)
    axis.set_ylim(0, len(rows))
    return figure


def draw_window(batches: int = 4) -> Figure:
    """One optimizer step of several batches on two ranks: what happens per batch, what once per window."""
    figure, (axis,) = new_figure("One window: many batches, one step", height=2.9)
    for rank in range(2):
        y, x = 1.5 * (1 - rank), 0.0
        for batch in range(batches):
            for label, color, width in (("forward", BLUE, 1.0), ("backward", GREEN, 1.6)):
                axis.broken_barh([(x, width)], (y, 1.0), facecolor=color, edgecolor="white")
                axis.text(
                    x + width / 2,
                    y + 0.5,
                    f"{label}\n{batch + 1}",
                    ha="center",
                    va="center",
                    fontsize=7.5,
                    color="white",
                )
                x += width
        axis.text(-0.2, y + 0.5, f"rank {rank}", ha="right", va="center", fontsize=9, color=INK)
        for label, color, width in (("unscale\nclip", GREY, 1.1), ("step", GREY, 0.8), ("rate\nmoves", GREY, 0.9)):
            x += 0.1
            axis.broken_barh([(x, width)], (y, 1.0), facecolor=color, edgecolor="white")
            axis.text(x + width / 2, y + 0.5, label, ha="center", va="center", fontsize=7.5, color="white")
            x += width
    end = 2.6 * batches
    axis.annotate("", (end - 0.5, 1.5), (end - 0.5, 1.0), arrowprops={"arrowstyle": "<->", "color": ORANGE, "lw": 2})
    axis.text(
        end - 0.7,
        1.25,
        "gradients exchanged once, with the last backward",
        ha="right",
        va="center",
        color=ORANGE,
        fontsize=9,
    )
    axis.text(end / 2, 2.7, "per batch: gradients add up", ha="center", color=INK, fontsize=9)
    axis.text(end + 1.6, 2.7, "once per window", ha="center", color=INK, fontsize=9)
    axis.set_xlim(-1.4, end + 3.6)
    axis.set_ylim(-0.2, 3.1)
    axis.axis("off")
    return figure


_SAVING = (
    ("write the\ntemporary file", "old", "an unfinished\ntemporary file"),
    ("force it\nto the disk", "old", "a finished\ntemporary file"),
    ("give it\nits name", "old or new", "nothing"),
    ("force the\nfolder to disk", "new", "nothing"),
    ("remove the\noldest", "new", "one checkpoint\ntoo many"),
)
"""What a save does, what the checkpoint is if the power fails meanwhile, and what is left over."""


def draw_saving() -> Figure:
    """The steps of a save from left to right, and below each what is found after a power failure in it."""
    figure, (axis,) = new_figure("Whenever the power fails, a whole checkpoint is there", height=2.7)
    for index, (text, checkpoint, left) in enumerate(_SAVING):
        axis.broken_barh([(2 * index, 1.9)], (1.5, 0.9), facecolor=BLUE)
        axis.text(2 * index + 0.95, 1.95, text, ha="center", va="center", fontsize=8.5, color="white")
        color = GREEN if checkpoint == "new" else ORANGE
        axis.text(
            2 * index + 0.95, 1.05, checkpoint, ha="center", va="center", fontsize=11, color=color, fontweight="bold"
        )
        axis.text(2 * index + 0.95, 0.45, left, ha="center", va="center", fontsize=8, color=INK)
    for y, text in ((1.95, "doing"), (1.05, "found"), (0.45, "left over")):
        axis.text(-0.15, y, text, ha="right", va="center", fontsize=9, color=INK)
    axis.set_xlim(-1.3, 2 * len(_SAVING))
    axis.set_ylim(0.1, 2.5)
    axis.axis("off")
    return figure
