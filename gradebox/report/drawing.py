"""A check's picture as inline SVG: what was seen is filled, what was expected is outlined, so that no colour is needed.

Colours are the page's variables, in both of its themes. The text says in words what is drawn, for readers who cannot
see it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup, escape

from gradebox.common.texts import printable
from gradebox.run.assertions import seconds
from gradebox.run.pictures import Mark, Panel, Picture

_WIDTH, _LEFT, _RIGHT = 480.0, 84.0, 6.0
_ROW, _HEAD, _FOOT = 16.0, 20.0, 18.0
_PLOT = 130.0
_SAME_SCALE = 4.0
"""Panels whose spans differ less share one scale."""
_COLLECTIVE = "nccl"
_KINDS = ("seen", "wanted")


def draw(picture: Picture) -> Markup:
    """A `figure` with one drawing and a caption."""
    drawing, height, text = {"timeline": _timeline, "bars": _bars, "curve": _curve}[picture.kind](picture)
    about = printable(picture.about)
    return Markup(
        '<figure class="picture"><svg viewBox="0 0 {width} {height}" role="img" aria-label="{label}">{drawing}</svg>'
        "<figcaption>{caption}</figcaption></figure>"
    ).format(
        width=f"{_WIDTH:g}",
        height=f"{height:g}",
        label=f"{about}. {text}",
        drawing=drawing,
        # Bars say their numbers themselves.
        caption=f"{about}." if picture.kind == "bars" else f"{about}. {text}",
    )


def _timeline(picture: Picture) -> tuple[Markup, float, str]:
    spans = [max((mark.at + mark.size for mark in panel.marks), default=0.0) or 1.0 for panel in picture.panels]
    if max(spans) < _SAME_SCALE * min(spans):
        spans = [max(spans)] * len(spans)
    parts, texts, top = [], [], 0.0
    for panel, span, kind in zip(picture.panels, spans, _KINDS, strict=False):
        parts.append(_text(0, top + 13, panel.title, "head"))
        lanes = sorted({mark.lane for mark in panel.marks}, key=lambda lane: (lane != "host", lane))
        for number, lane in enumerate(lanes):
            y = top + _HEAD + number * _ROW
            parts.append(_text(0, y + 11, lane))
            for mark in panel.marks:
                if mark.lane == lane:
                    parts.append(_bar(_x(mark.at, span), y + 2, _x(mark.size, span) - _LEFT, kind, mark))
        top += _HEAD + len(lanes) * _ROW
        parts.append(_line(_LEFT, top + 1, _WIDTH - _RIGHT, top + 1))
        parts += [_text(_LEFT, top + 13, "0"), _text(_WIDTH - _RIGHT, top + 13, seconds(span), "end")]
        top += _FOOT
        texts.append(f"{panel.title}: {_work(panel)}")
    return Markup("").join(parts), top, "; ".join(texts) + "."


def _work(panel: Panel) -> str:
    """In words: how long the device worked, and on what for longest."""
    on_device = [mark for mark in panel.marks if mark.lane != "host"]
    total: dict[str, float] = {}
    for mark in on_device:
        total[mark.label] = total.get(mark.label, 0.0) + mark.size
    if not total:
        return "the device did nothing"
    longest = max(total, key=lambda name: total[name])
    span = max(mark.at + mark.size for mark in panel.marks) - min(mark.at for mark in panel.marks)
    return printable(
        f"{len(on_device)} kernels, {seconds(sum(total.values()))} of work in {seconds(span)}, "
        f"most of it {longest} with {seconds(total[longest])}"
    )


def _bars(picture: Picture) -> tuple[Markup, float, str]:
    names = list(dict.fromkeys(mark.lane for panel in picture.panels for mark in panel.marks))
    largest = max((abs(mark.size) for panel in picture.panels for mark in panel.marks), default=0.0) or 1.0
    room = _WIDTH - _LEFT - 150
    parts, texts, top = [], [], 2.0
    for name in names:
        parts.append(_text(0, top + 16, name))
        for panel, kind in zip(picture.panels, _KINDS, strict=False):
            for mark in [bar for bar in panel.marks if bar.lane == name][:1]:
                width = room * abs(mark.size) / largest
                parts.append(_bar(_LEFT, top + 1, width, kind, mark))
                shown = f"{mark.size:,.4g} {picture.unit}".strip()
                parts.append(_text(_LEFT + max(width, 1.0) + 6, top + 11, f"{shown} {panel.title}"))
                texts.append(f"{name} {panel.title} {shown}")
                top += _ROW - 1
        top += 6
    return Markup("").join(parts), top, "; ".join(texts) + "."


def _curve(picture: Picture) -> tuple[Markup, float, str]:
    actual, expected = (panel.marks for panel in picture.panels)
    values = [mark.size for mark in (*actual, *expected)]
    low, high = min(values), max(values)
    last = max(mark.at for mark in actual) or 1.0
    apart = [Mark("", point.at, point.size - other.size) for point, other in zip(actual, expected, strict=True)]
    most = max(abs(mark.size) for mark in apart) or 1.0
    below = 18 + _PLOT + 24
    parts = [
        _text(0, 13, "values", "head"),
        *_frame(18, low, high, last),
        _polyline(expected, 18, low, high, last, "wanted"),
        _polyline(actual, 18, low, high, last, "seen"),
        _text(0, below + 11, "difference", "head"),
        *_frame(below + 16, -most, most, last),
    ]
    for mark in apart:
        x = _LEFT + (_WIDTH - _LEFT - _RIGHT) * mark.at / last
        y = _y(mark.size, below + 16, -most, most)
        parts.append(_line(x, _y(0.0, below + 16, -most, most), x, y, "seen"))
    text = (
        f"yours is the full line, expected the dashed one; they differ by up to {most:.4g}, "
        f"at index {max(apart, key=lambda mark: abs(mark.size)).at:g}."
    )
    return Markup("").join(parts), below + 16 + _PLOT + 20, text


def _frame(top: float, low: float, high: float, last: float) -> Iterator[Markup]:
    yield _line(_LEFT, top, _LEFT, top + _PLOT)
    yield _line(_LEFT, top + _PLOT, _WIDTH - _RIGHT, top + _PLOT)
    yield _text(_LEFT - 6, top + 9, f"{high:.4g}", "end")
    yield _text(_LEFT - 6, top + _PLOT, f"{low:.4g}", "end")
    yield _text(_LEFT, top + _PLOT + 14, "0")
    yield _text(_WIDTH - _RIGHT, top + _PLOT + 14, f"index {last:g}", "end")


def _x(moment: float, span: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * moment / span


def _y(value: float, top: float, low: float, high: float) -> float:
    return top + _PLOT * (1 - (value - low) / ((high - low) or 1.0))


def _polyline(marks: Sequence[Mark], top: float, low: float, high: float, last: float, kind: str) -> Markup:
    points = " ".join(
        f"{_LEFT + (_WIDTH - _LEFT - _RIGHT) * mark.at / last:.1f},{_y(mark.size, top, low, high):.1f}"
        for mark in marks
    )
    return Markup('<polyline class="curve {}" points="{}"/>').format(kind, points)


def _bar(x: float, y: float, width: float, kind: str, mark: Mark) -> Markup:
    collective = " collective" if mark.label.startswith(_COLLECTIVE) else ""
    return Markup('<rect class="{}{}" x="{}" y="{}" width="{}" height="{}">{}</rect>').format(
        kind,
        collective,
        f"{x:.1f}",
        f"{y:.1f}",
        f"{max(width, 0.8):.1f}",
        f"{_ROW - 5:g}",
        Markup("<title>{}</title>").format(printable(mark.label)) if mark.label else "",
    )


def _line(x: float, y: float, to_x: float, to_y: float, kind: str = "axis") -> Markup:
    return Markup('<path class="{}" d="M{} {}L{} {}"/>').format(
        kind, f"{x:.1f}", f"{y:.1f}", f"{to_x:.1f}", f"{to_y:.1f}"
    )


def _text(x: float, y: float, text: str, kind: str = "") -> Markup:
    known = Markup(' class="{}"').format(kind) if kind else ""
    return Markup("<text{} x='{}' y='{}'>{}</text>").format(known, f"{x:.1f}", f"{y:.1f}", escape(printable(text)))
