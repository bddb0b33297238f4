"""Tables and the picture that the pages show of single kernels. Not here: how they come about (`cross_validation`)."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS

_DOCS = Path(__file__).parents[2] / "docs"
_SHORT, _LONG = _DOCS / "how-we-know.md", _DOCS / "how-we-know-figures.md"
_PICTURE = _DOCS / "images" / "kernels.svg"
_BEGIN, _END = "<!-- {} -->", "<!-- end of {} -->"
# What the short page calls groups that are alike, by how their names begin.
FAMILIES = {
    "elementwise, random, copies to another layout": ("elementwise", "random", "layout"),
    "reductions, sorting": ("reduction", "sort"),
    "softmax and norms": ("softmax", "norm"),
    "layers of a CNN: norms, pooling": ("layers of a CNN",),
    "layers of a transformer, optimizers": ("layers of a transformer", "optimizer"),
    "products, alone and batched": ("product", "batched"),
    "convolutions in 16 bits": ("convolution fp16",),
    "convolutions in TF32": ("convolution tf32",),
    "convolutions in FP32": ("convolution fp32",),
}


def write(result: Mapping[str, Any]) -> None:
    """Put the tables between their marks, and draw the picture."""
    _replace(_SHORT, "table", short_table(result))
    _replace(_LONG, "kernels", long_table(result))
    draw(result["rows"], _PICTURE)


def _replace(page: Path, name: str, lines: Sequence[str]) -> None:
    text = page.read_text(encoding="utf-8")
    head, _, rest = text.partition(_BEGIN.format(name))
    _, found, tail = rest.partition(_END.format(name))
    if not found:
        raise SystemExit(f"{page} has no marks for {name!r}")
    page.write_text("\n".join((head + _BEGIN.format(name), "", *lines, "", _END.format(name) + tail)), encoding="utf-8")


def _family(group: str) -> str:
    name = group.removeprefix("kernel: ")
    return next(title for title, beginnings in FAMILIES.items() if name.startswith(beginnings))


def short_table(result: Mapping[str, Any]) -> list[str]:
    """One row for each family of kernels, then others' kernels and whole programs."""
    errors: dict[str, list[float]] = {title: [] for title in FAMILIES}
    for row in result["rows"]:
        errors[_family(row["group"])].append(abs(row["half_left_out"]))
    lines = ["| what | figures | median error | within 20 % | left out of the fit |", "|---|---:|---:|---:|---|"]
    for title, sizes in errors.items():
        lines.append(_row(title, sizes, "half of the kernels"))
    everything = [size for sizes in errors.values() for size in sizes]
    lines.append(_row("**all single kernels**", everything, "half of the kernels"))
    published = json.loads((RESULTS / "published.json").read_text(encoding="utf-8"))
    times = [abs(figure["ratio"] - 1) for name, figure in published["figures"].items() if not name.startswith("mem-")]
    within = sum(error <= 0.2 for error in times) / len(times)
    middle = statistics.median(times)
    title = "**programs and products that others measured, ten cards**"
    lines.append(f"| {title} | {len(times)} | {middle:.0%} | {within:.0%} | nothing: constants were fitted to them |")
    held_out = json.loads((RESULTS / "published_held_out.json").read_text(encoding="utf-8"))["rows"]
    ratios = [row["left_out"]["half left out"] if row["fitted"] else row["ratio"] for row in held_out]
    title, note = (
        "**kernels that others measured, T4, V100, A100, H100**",
        "half of the convolutions and layers, all products",
    )
    lines.append(_row(title, [abs(math.log(ratio)) for ratio in ratios], note))
    compared = json.loads((RESULTS / "h100_compared.json").read_text(encoding="utf-8"))["groups"]
    for title, group, note in (
        ("training steps on our H100", "training step, seconds", "the steps, not the kernels in them"),
        ("their peak memory", "training step, peak bytes", "all: it is counted"),
        ("host calls on our H100", "host call", "nothing"),
    ):
        lines.append(f"| {title} | {compared[group]['values']} | {compared[group]['median_error']:.0%} | | {note} |")
    return lines


def _row(title: str, sizes: Sequence[float], note: str) -> str:
    within = sum(size <= math.log(1.2) for size in sizes) / len(sizes)
    return f"| {title} | {len(sizes)} | {math.expm1(statistics.median(sizes)):.0%} | {within:.0%} | {note} |"


def long_table(result: Mapping[str, Any]) -> list[str]:
    """Every group by every way to leave kernels out; then all, and how often the order of variants is right."""
    columns = [
        "as it is", "half left out", "shape left out", "group left out", "nothing fitted",
        "nearest neighbour, half left out", "boosted trees, half left out", "boosted trees, shape left out",
        "boosted trees, group left out",
    ]  # fmt: skip
    lines = ["| group | kernels | " + " | ".join(columns) + " |", "|---|---:|" + "---:|" * len(columns)]
    for name, group in result["groups"].items():
        cells = " | ".join(f"{group[column]:.0%}" for column in columns)
        lines.append(f"| {name.removeprefix('kernel: ')} | {group['values']} | {cells} |")
    errors, order = result["errors"], result["order"]
    for title, key in (("**all**", "median_error"), ("nine in ten within", "nine_tenths")):
        cells = " | ".join(f"{errors[column][key]:.0%}" for column in columns)
        lines.append(f"| {title} | {result['kernels']} | {cells} |")
    cells = " | ".join(str(errors[column]["beyond_a_factor_of_two"]) for column in columns)
    lines.append(f"| off by more than a factor of two | {result['kernels']} | {cells} |")
    cells = " | ".join(f"{order[column]['share']:.0%}" for column in columns)
    lines.append(f"| faster variant is faster here | {order[columns[0]]['pairs']} pairs | {cells} |")
    programs = order["programs"]
    blank = " | ".join([f"{programs['share']:.0%}", *[""] * (len(columns) - 1)])
    lines.append(f"| the same of training steps and attention | {programs['pairs']} pairs | {blank} |")
    return lines


def draw(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """How far each kernel is off that had no part in the fit, by family."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "kernels"  # the same file from the same numbers
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 0.36 * len(FAMILIES) + 1.2), layout="constrained")
    axes.axvspan(-math.log2(1.2), math.log2(1.2), color="#cfe3d4", label="within 20 %")
    for place, title in enumerate(FAMILIES):
        ratios = [row["half_left_out"] / math.log(2) for row in rows if _family(row["group"]) == title]
        axes.scatter(ratios, [place] * len(ratios), s=22, color="#2a5d84", alpha=0.5)
        axes.scatter([statistics.median(ratios)], [place], marker="|", s=160, color="#b3432b")
    axes.axvline(0, color="#555555", linewidth=0.8)
    marks = (0.25, 0.5, 0.67, 0.8, 1.0, 1.25, 1.5, 2.0, 4.0)
    axes.set_xticks([math.log2(mark) for mark in marks], [f"{mark:g}" for mark in marks])
    axes.set_yticks(range(len(FAMILIES)), list(FAMILIES))
    axes.invert_yaxis()
    axes.set_xlabel(
        "measured / predicted seconds of kernels that were left out\nto the right the virtual GPU is too fast"
    )
    axes.legend(loc="lower right")
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
