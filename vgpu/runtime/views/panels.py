"""The lanes of a picture: what host threads and streams did, with names where they fit.

Not here: memory and utilisation (`vgpu.runtime.views.curves`), the layout (`vgpu.runtime.views.picture`), which events
there are (`vgpu.runtime.views.history`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vgpu.runtime.views import thinning
from vgpu.runtime.views.history import DeviceHistory, History, kernel_kind
from vgpu.runtime.views.palette import BLUE, GREEN, GREY, INK, ORANGE, PALE, PINK, SKY, YELLOW, legend
from vgpu.runtime.views.thinning import Bar

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HOST = {
    "launch": (BLUE, "launches kernels"), "operation": (GREEN, "CPU operation"),
    "metadata": (SKY, "view, allocation"), "module": (GREY, "calls a module"), "wait": (PALE, "waits for the GPU"),
    "load": (ORANGE, "waits for data"), "communication": (PINK, "waits for ranks"), "sleep": ("#F2F2F2", "sleeps"),
    "start": (YELLOW, "start-up"),
}  # fmt: skip
DEVICE = {
    "product": (BLUE, "product, convolution"), "other": (SKY, "other kernel"), "copy": (ORANGE, "copy"),
    "communication": (PINK, "communication"),
}  # fmt: skip
_DARK = {BLUE, GREEN}

# A letter of a bar's label is about this share of the panel's width.
LETTER_RATIO = 0.0068
_NARROW_RATIO = 0.002
# A region narrower than this share of the window is left out.
_NARROWEST = 0.002
# What a host that waits for a copy does.
_COPIES = {"Memcpy HtoD": "waits for copy to GPU", "Memcpy DtoH": "waits for copy to host"}
_BAR = 0.74
LANE_INCHES, REGION_INCHES = 0.42, 0.2
MOST_REGION_ROWS = 2


def short_name(name: str) -> str:
    """A kernel's name as a label."""
    if name.startswith("Memcpy "):
        return name.removeprefix("Memcpy ").replace(" -> Device", "").replace("Device -> ", "")
    return name.rpartition("::")[2].removeprefix("_foreach_").strip("_")


def host_rows(run: History, threads: Sequence[str]) -> tuple[float, dict[str, tuple[float, list[float]]]]:
    """Height of the host's panel in inches and, from the top, where each thread's lane and its regions' rows lie."""
    y, rows = 0.0, {}
    for thread in threads:
        regions = thinning.with_depth(_bars(run.regions.get(thread, ())))
        depth = min(MOST_REGION_ROWS, 1 + max((depth for depth, _ in regions), default=-1))
        above = [y + (number + 0.5) * REGION_INCHES for number in range(depth)]
        y += depth * REGION_INCHES
        rows[thread] = (y + LANE_INCHES / 2, above)
        y += LANE_INCHES
    return max(y, LANE_INCHES), rows


def host(axis: Axes, run: History, threads: Sequence[str], scale: float) -> None:
    """One lane per thread: what it launched, computed and waited for; above it the regions the program named."""
    height, rows = host_rows(run, threads)
    axis.set_ylim(height, 0)
    used: dict[str, None] = {}
    for thread in threads:
        y, above = rows[thread]
        bars = _bars(run.threads.get(thread, ()))
        _lane(axis, bars, HOST, y, LANE_INCHES * _BAR, run, scale)
        used |= dict.fromkeys(bar.kind for bar in bars)
        regions = thinning.with_depth(_bars(run.regions.get(thread, ())))
        for depth, row in enumerate(above):
            _regions(axis, [bar for at, bar in regions if at == depth], row, run, scale)
    labels = [_lane_label({"MainThread": "main thread"}.get(name, name), run.threads.get(name, ())) for name in threads]
    axis.set_yticks([rows[thread][0] for thread in threads], labels)
    legend(axis, {label: colour for kind, (colour, label) in HOST.items() if kind in used}, "host")


def _lane_label(name: str, events: Sequence[object]) -> str:
    name = name if len(name) <= 16 else f"{name[:15]}…"
    return f"{name}\n(share of time)" if len(events) > thinning.MOST_BARS else name


def streams(axis: Axes, run: History, device: DeviceHistory, scale: float, most: int) -> None:
    """One lane per stream; with few events the bars carry names and gaps say how long the device idled."""
    shown = list(device.streams.items())[:most]
    axis.set_ylim(max(len(shown), 1), 0)
    used: dict[str, None] = {}
    everything: list[Bar] = []
    for number, (_, kernels) in enumerate(shown):
        bars = [Bar(kernel.start, kernel.end, kernel_kind(kernel), short_name(kernel.name)) for kernel in kernels]
        _lane(axis, bars, DEVICE, number + 0.5, _BAR, run, scale)
        used |= dict.fromkeys(bar.kind for bar in bars)
        everything += bars
    if len(everything) <= thinning.MOST_BARS:
        _idle(axis, everything, run, scale)
    hidden = len(device.streams) - len(shown)
    labels = [_lane_label("default stream" if number == 0 else f"stream {number}", work) for number, work in shown]
    if hidden:
        labels[-1] += f"\n(+{hidden} not shown)"
    axis.set_yticks([number + 0.5 for number in range(len(shown))], labels)
    legend(axis, {label: colour for kind, (colour, label) in DEVICE.items() if kind in used}, "device")


def _bars(spans: Any) -> list[Bar]:
    return [Bar(span.start, span.end, span.kind, _COPIES.get(span.name[:11], short_name(span.name))) for span in spans]


def _lane(
    axis: Axes, bars: Sequence[Bar], colours: Mapping[str, tuple[str, str]], y: float, height: float, run: History,
    scale: float,
) -> None:  # fmt: skip
    """Bars while they are distinguishable; else how much of each time slot they fill, from the lane's bottom up."""
    span = (run.stop - run.start) / scale
    if len(bars) > thinning.MOST_BARS:
        below = [0.0] * thinning.SLOTS
        edges = [number * span / thinning.SLOTS for number in range(thinning.SLOTS + 1)]
        bottom = y + height / 2
        by_kind = thinning.shares(bars, run.start, run.stop)
        for kind in [kind for kind in colours if kind in by_kind]:
            above = [min(low + share, 1.0) for low, share in zip(below, by_kind[kind], strict=True)]
            axis.stairs(
                [bottom - height * value for value in above], edges, color=colours[kind][0], fill=True,
                baseline=[bottom - height * value for value in below], linewidth=0,
            )  # fmt: skip
            below = above
        axis.plot([0, span], [bottom, bottom], color=PALE, linewidth=0.6)
        return
    inside = thinning.clipped(bars, run.start, run.stop)
    for kind, (colour, _) in colours.items():
        mine = [bar for bar in inside if bar.kind == kind]
        if not mine:
            continue
        # If bars touch, a thin white edge separates them; if they are narrow, it would hide them.
        for edge, wide_ones in (("white", True), (colour, False)):
            axis.broken_barh(
                [
                    ((bar.start - run.start) / scale, (bar.end - bar.start) / scale)
                    for bar in mine
                    if (bar.end - bar.start > _NARROW_RATIO * (run.stop - run.start)) == wide_ones
                ],
                (y - height / 2, height), facecolor=colour, edgecolor=edge, linewidth=0.5 if wide_ones else 0.2,
            )  # fmt: skip
    for bar in inside:
        wide = (bar.end - bar.start) / scale
        if wide > span * LETTER_RATIO * (len(bar.name) + 2):
            dark = colours.get(bar.kind, (GREY, ""))[0] in _DARK
            middle = ((bar.start + bar.end) / 2 - run.start) / scale
            axis.text(middle, y, bar.name, ha="center", va="center", fontsize=7, color="white" if dark else INK)


def _regions(axis: Axes, bars: Sequence[Bar], y: float, run: History, scale: float) -> None:
    """Boxes with their names inside, or next to them where there is room until the next."""
    span = run.stop - run.start
    bars = [bar for bar in thinning.clipped(bars, run.start, run.stop) if bar.end - bar.start > _NARROWEST * span]
    for number, bar in enumerate(bars):
        x, wide = (bar.start - run.start) / scale, (bar.end - bar.start) / scale
        place = (y - 0.42 * REGION_INCHES, 0.84 * REGION_INCHES)
        axis.broken_barh([(x, wide)], place, facecolor="#F6F3EA", edgecolor=GREY, linewidth=0.5)
        inside = int((bar.end - bar.start) / span / LETTER_RATIO) - 1
        following = bars[number + 1].start if number + 1 < len(bars) else run.stop
        beside = int((following - bar.end) / span / LETTER_RATIO) - 1
        if inside >= min(len(bar.name), 6):
            name = bar.name if len(bar.name) <= inside else f"{bar.name[: inside - 1]}…"
            axis.text(x + wide / 2, y, name, ha="center", va="center", fontsize=6.5, color=INK)
        elif beside >= len(bar.name):
            axis.annotate(bar.name, (x + wide, y), (2, 0), textcoords="offset points", va="center", fontsize=6.5)


def _idle(axis: Axes, bars: Sequence[Bar], run: History, scale: float) -> None:
    """Writes how long the device had nothing to do where there is room for it."""
    span = run.stop - run.start
    for start, end in thinning.gaps(bars, run.start, run.stop):
        seconds = thinning.seconds_text(end - start)
        fitting = [
            text for text in (f"idle {seconds}", seconds) if (end - start) / span > LETTER_RATIO * (len(text) + 1)
        ]
        if fitting:
            middle = ((start + end) / 2 - run.start) / scale
            axis.text(middle, 0.5, fitting[0], ha="center", va="center", fontsize=7, style="italic", color="#666666")
