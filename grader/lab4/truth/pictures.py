"""Made-up results for Lab 4's plots, and whether a plot shows them: in the units and places that its task names.

Not for looks: colours, sizes, order of bars and words are free.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gradebox.run.assertions import require
from gradebox.run.input_generator import InputGenerator

Rows = list[dict[str, Any]]
_MEBIBYTE = 2**20
_NEAR = 2e-3
_ABOUT = {
    "MiB": re.compile(r"\b(mi?b|gi?b|bytes?|memory)\b", re.IGNORECASE),
    "milliseconds": re.compile(r"\b(ms|(milli)?seconds?|time|latency)\b", re.IGNORECASE),
}
"""What a label of each says, in the words that are usual; one in other words says nothing wrong."""
_PARTS = ("parameter_bytes", "gradient_bytes", "optimizer_state_bytes", "activation_bytes")


def made_up(kind: str, generator: InputGenerator) -> Rows:
    """Results whose figures are all different, in bytes and seconds that no power of ten or two hides."""
    if kind == "checkpointing":
        intervals = [None, *(generator.odd(10 * index + 11, 10 * index + 19) for index in range(3))]
        return [
            {
                "device": "cuda",
                "checkpoint_every": every,
                "step_seconds": generator.uniform(0.004, 0.09),
                "peak_bytes": generator.integer(10**8, 9 * 10**9),
            }
            for every in intervals
        ]
    if kind == "attention":
        lengths = [generator.odd(400 * index, 500 * index) for index in (1, 2, 4)]
        return [
            _attention(method, length, lengths, generator) for length in lengths for method in ("standard", "flash")
        ]
    # Far enough from each other that the length of a bar tells whose it is.
    sizes = [size * _MEBIBYTE + generator.integer(0, _MEBIBYTE) for size in generator.shuffled(range(20, 900, 8))]
    setup = {"model": "transformer", "layers": 4, "width": 512, "heads": 8, "checkpoint_every": None}
    return [
        {
            "setup": {**setup, "tokens": 4096, "optimizer": optimizer, "dtype": "float32"},
            "predicted": _parts(sizes, without_state=optimizer == "sgd"),
            "measured": _parts(sizes, without_state=optimizer == "sgd"),
        }
        for optimizer in generator.shuffled(["adam", "momentum", "sgd"])
    ]


def _attention(method: str, length: int, lengths: Sequence[int], generator: InputGenerator) -> dict[str, Any]:
    died = method == "standard" and length == max(lengths)
    return {
        "device": "cuda",
        "method": method,
        "backend": "sdpa" if method == "flash" else "torch",
        "dtype": "float16",
        "length": length,
        "seconds": None if died else generator.log_uniform(1e-4, 1e-1),
        "peak_bytes": None if died else generator.integer(10**6, 10**9),
    }


def _parts(sizes: list[int], *, without_state: bool) -> dict[str, int]:
    parts = {name: sizes.pop() for name in _PARTS}
    return {**parts, "optimizer_state_bytes": 0} if without_state else parts


def require_shown(kind: str, shown: Mapping[str, Any], rows: Rows) -> None:
    """Fail unless the plot of `kind` shows `rows`."""
    {"checkpointing": _checkpointing, "attention": _attention_shown, "memory": _memory}[kind](shown, rows)


def _checkpointing(shown: Mapping[str, Any], rows: Rows) -> None:
    points = [point for axes in shown["axes"] for point in _all_points(axes)]
    for row in rows:
        wanted = (row["step_seconds"] * 1e3, row["peak_bytes"] / _MEBIBYTE)
        require(
            _among(points, wanted),
            f"plot_checkpointing() has no point at {wanted[0]:.4g} ms and {wanted[1]:.5g} MiB, for {row}",
            "milliseconds to the right, MiB upwards: 1 MiB has 2**20 bytes",
        )
        every = row["checkpoint_every"]
        require(
            every is None or any(re.search(rf"\b{every}\b", text) for text in (*shown["texts"], *shown["legend"])),
            f"plot_checkpointing() does not say which point is that of interval {every}",
            "write the interval beside its point",
        )


def _attention_shown(shown: Mapping[str, Any], rows: Rows) -> None:
    axes = shown["axes"]
    require(len(axes) >= 2, f"plot_attention() has {len(axes)} axes, expected memory and time side by side")
    units = {"MiB": ("peak_bytes", 1 / _MEBIBYTE), "milliseconds": ("seconds", 1e3)}
    for place, one, (unit, (name, factor)) in zip(("first", "second"), axes, units.items(), strict=False):
        for method in ("standard", "flash"):
            wanted = [(row["length"], row[name] * factor) for row in rows if row["method"] == method and row[name]]
            require(
                any(all(_among(line, point) for point in wanted) for line in one["lines"]),
                f"plot_attention(): the {place} axes have no line through the {unit} of {method} attention over the "
                f"length: {', '.join(f'({x}, {y:.4g})' for x, y in wanted)}",
                "MiB in the first, milliseconds in the second; one line per method",
            )
            died = [row["length"] for row in rows if row["method"] == method and not row[name]]
            require(
                any(
                    all(_among(line, point) for point in wanted)
                    and not any(_near(x, length) for x, _ in line for length in died)
                    for line in one["lines"]
                ),
                f"plot_attention(): the line of {method} attention on the {place} axes goes on to {died} tokens, where "
                "memory ran out",
                "leave such results out: there is no value to draw, and a 0 has no place on a logarithmic axis",
            )
        require(
            "linear" not in one["scales"],
            f"plot_attention(): the scales of the {place} axes are {' and '.join(one['scales'])}",
            "both logarithmic: what grows with the square of the length is a steeper line then",
        )
        require(
            bool(one["labels"][1] or one["labels"][2]),
            f"plot_attention(): the {place} axes do not say what they show",
            "label the y axis of both",
        )
        said = " ".join(one["labels"][1:])
        own, other = (_ABOUT[name] for name in (unit, *(_ABOUT.keys() - {unit})))
        require(
            bool(own.search(said)) or not other.search(said),
            f"plot_attention(): the {place} axes show {unit}, and say {said.strip()!r}",
            "a label names what is drawn at its axis",
        )
        require(
            not one["shares_y"],
            "plot_attention(): MiB and milliseconds share one y axis",
            "new_figure(..., share_y=False): a common scale squeezes one of them into a corner",
        )
    _require_named(shown, ("standard", "flash"), "plot_attention() does not say which line is which method")


def _memory(shown: Mapping[str, Any], rows: Rows) -> None:
    bars = [bar for axes in shown["axes"] for bar in axes["bars"]]
    points = [point for axes in shown["axes"] for point in _all_points(axes)]
    if _stand(bars, rows):  # the same picture, turned
        bars = [[bottom, top, left, right] for left, right, bottom, top in bars]
        points = [(y, x) for x, y in points]
    for row in rows:
        what = f"plot_memory(), {row['setup']['optimizer']}"
        parts = [row["predicted"][name] / _MEBIBYTE for name in _PARTS]
        own = [bar for bar in bars if any(value and _near(bar[1] - bar[0], value) for value in parts)]
        told = ", ".join(f"{value:.5g}" for value in parts)
        for value in parts:
            require(
                not value or any(_near(bar[1] - bar[0], value) for bar in own),
                f"{what}: no bar is {value:.5g} MiB long; the parts predicted are {told} MiB",
                "a bar of parameters, gradients, optimizer state and activations, in MiB",
            )
        own.sort()
        total, ends = sum(parts), [0.0, *(bar[1] for bar in own)]
        require(
            all(abs(bar[0] - end) < _NEAR * total for bar, end in zip(own, ends[:-1], strict=True))
            and max(bar[2] for bar in own) < min(bar[3] for bar in own),
            f"{what}: its parts begin at {', '.join(f'{bar[0]:.5g}' for bar in own)} MiB and end at "
            f"{', '.join(f'{end:.5g}' for end in ends[1:])}",
            "stacked: each part begins where all before it end, so that the end of the bar is their sum",
        )
        measured = sum(row["measured"].values()) / _MEBIBYTE
        require(
            any(_near(x, measured) and own[0][2] <= y <= own[0][3] for x, y in points),
            f"{what}: no mark on its bar at the {measured:.5g} MiB that were measured",
            "a mark at the measured total, beside the prediction's bar",
        )
    words = ("parameter", "gradient", "optimizer", "activation")
    _require_named(shown, words, "plot_memory() does not say which part of a bar is which")


def _require_named(shown: Mapping[str, Any], words: Sequence[str], message: str) -> None:
    """Fail unless there is a legend of as many entries, in whatever words, or each of `words` stands in the picture."""
    written = " ".join([*shown["legend"], *shown["texts"]]).casefold()
    named = len(shown["legend"]) >= len(words) or all(word in written for word in words)
    require(named, message, "a legend, or names written beside them")


def _stand(bars: Sequence[Sequence[float]], rows: Rows) -> bool:
    """Whether the bars are as high as the parts predicted, rather than as wide."""
    values = [value / _MEBIBYTE for row in rows for value in row["predicted"].values() if value]
    wide = sum(any(_near(right - left, value) for value in values) for left, right, _, _ in bars)
    return sum(any(_near(top - bottom, value) for value in values) for _, _, bottom, top in bars) > wide


def _all_points(axes: Mapping[str, Any]) -> list[Sequence[float]]:
    return [*axes["marks"], *(point for line in axes["lines"] for point in line)]


def _among(points: Iterable[Sequence[float]], wanted: Sequence[float]) -> bool:
    return any(_near(x, wanted[0]) and _near(y, wanted[1]) for x, y in points)


def _near(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=_NEAR)
