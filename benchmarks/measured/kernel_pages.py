"""Tables and the picture that the pages show of single kernels. Not here: how they come about (`cross_validation`)."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import RESULTS, percent

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
    """Put the generated parts between their marks, and draw the picture."""
    for page, name, lines in parts(result):
        _replace(page, name, lines)
    draw(result["rows"], _PICTURE)


def parts(result: Mapping[str, Any]) -> Iterator[tuple[Path, str, list[str]]]:
    """Each generated part: its page, the name of its marks, and its lines."""
    yield _SHORT, "times", table_of_times(result)
    yield _SHORT, "families", table_of_families(result)
    yield _SHORT, "order", sentence_of_order(result)
    yield _LONG, "kernels", long_table(result)


def _replace(page: Path, name: str, lines: Sequence[str]) -> None:
    page.write_text(replaced(page, name, lines), encoding="utf-8")


def replaced(page: Path, name: str, lines: Sequence[str]) -> str:
    """The page with these lines between the marks of that name. Raises SystemExit without marks."""
    text = page.read_text(encoding="utf-8")
    head, _, rest = text.partition(_BEGIN.format(name))
    _, found, tail = rest.partition(_END.format(name))
    if not found:
        raise SystemExit(f"{page} has no marks for {name!r}")
    return "\n".join((head + _BEGIN.format(name), "", *lines, "", _END.format(name) + tail))


def _family(group: str) -> str:
    name = group.removeprefix("kernel: ")
    return next(title for title, beginnings in FAMILIES.items() if name.startswith(beginnings))


def table_of_times(result: Mapping[str, Any]) -> list[str]:
    """One row for each source of measurements: single kernels, others' kernels and programs, whole steps."""
    lines = [
        "| what was measured | times | median error | within 20 % | the fit used |",
        "|---|---:|---:|---:|---|",
    ]
    everything = [size for sizes in _errors(result).values() for size in sizes]
    lines.append(_row("single kernels on our H100", everything, "the other half of them"))
    held_out = json.loads((RESULTS / "published_held_out.json").read_text(encoding="utf-8"))["rows"]
    ratios = [row["left_out"]["half left out"] if row["fitted"] else row["ratio"] for row in held_out]
    title, note = (
        "kernels on T4, V100, A100 and H100 that others measured",
        "the other half of them, but none of the products",
    )
    lines.append(_row(title, [abs(math.log(ratio)) for ratio in ratios], note))
    published = json.loads((RESULTS / "published.json").read_text(encoding="utf-8"))
    times = [figure["ratio"] for name, figure in published["figures"].items() if not name.startswith("mem-")]
    sizes = [abs(math.log(ratio)) for ratio in times]
    lines.append(_row("programs and products on ten cards that others measured", sizes, "all of them"))
    compared = json.loads((RESULTS / "h100_compared.json").read_text(encoding="utf-8"))["groups"]
    for title, group, note in (
        ("training steps on our H100", "training step, seconds", "their kernels, not the steps"),
        ("host calls on our H100", "host call", "all of them"),
    ):
        lines.append(
            f"| {title} | {compared[group]['values']} | {percent(compared[group]['median_error'])} | | {note} |"
        )
    return lines


def table_of_families(result: Mapping[str, Any]) -> list[str]:
    """One row for each family of kernels, the most exact first."""
    rows = [(statistics.median(sizes), title, sizes) for title, sizes in _errors(result).items()]
    lines = ["| kernels | number | median error | within 20 % |", "|---|---:|---:|---:|"]
    return lines + [_row(title, sizes) for _, title, sizes in sorted(rows)]


def sentence_of_order(result: Mapping[str, Any]) -> list[str]:
    """How often the faster of two variants on a card is the faster one here."""
    kernels, programs = result["order"]["half left out"], result["order"]["programs"]
    return [
        "The faster variant on the card is also the faster one on the virtual GPU:",
        "",
        f"- in {percent(kernels['share'])} of {kernels['pairs']} pairs of kernels",
        f"- in {percent(programs['share'])} of {programs['pairs']} pairs of training steps and attention",
    ]


def _errors(result: Mapping[str, Any]) -> dict[str, list[float]]:
    """Logarithms of how far each kernel is off that the fit did not use, by family."""
    errors: dict[str, list[float]] = {title: [] for title in FAMILIES}
    for row in result["rows"]:
        errors[_family(row["group"])].append(abs(row["half_left_out"]))
    return errors


def _row(title: str, sizes: Sequence[float], *notes: str) -> str:
    within = sum(size <= math.log(1.2) for size in sizes) / len(sizes)
    cells = (title, len(sizes), percent(math.expm1(statistics.median(sizes))), percent(within), *notes)
    return f"| {' | '.join(map(str, cells))} |"


def long_table(result: Mapping[str, Any]) -> list[str]:
    """Every group by every way to leave kernels out; then all, and how often the order of variants is right."""
    columns = [
        "as it is", "half left out", "shape left out", "group left out", "nothing fitted",
        "nearest neighbour, half left out", "boosted trees, half left out", "boosted trees, shape left out",
        "boosted trees, group left out",
    ]  # fmt: skip
    lines = ["| group | kernels | " + " | ".join(columns) + " |", "|---|---:|" + "---:|" * len(columns)]
    for name, group in result["groups"].items():
        cells = " | ".join(percent(group[column]) for column in columns)
        lines.append(f"| {name.removeprefix('kernel: ')} | {group['values']} | {cells} |")
    errors, order = result["errors"], result["order"]
    for title, key in (("**all**", "median_error"), ("nine in ten are within", "nine_tenths")):
        cells = " | ".join(percent(errors[column][key]) for column in columns)
        lines.append(f"| {title} | {result['kernels']} | {cells} |")
    cells = " | ".join(str(errors[column]["beyond_a_factor_of_two"]) for column in columns)
    lines.append(f"| off by more than a factor of two | {result['kernels']} | {cells} |")
    cells = " | ".join(percent(order[column]["share"]) for column in columns)
    lines.append(f"| faster variant is faster here | {order[columns[0]]['pairs']} pairs | {cells} |")
    programs = order["programs"]
    blank = " | ".join([percent(programs["share"]), *[""] * (len(columns) - 1)])
    lines.append(f"| the same for training steps and attention | {programs['pairs']} pairs | {blank} |")
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
