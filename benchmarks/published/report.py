"""What the comparison comes to: errors by group, the page's tables and picture, the file in `benchmarks/results/`."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.measure import percent, save
from benchmarks.published.figures import Comparison

_ROOT = Path(__file__).parents[2]
_DOCS = _ROOT / "docs"
_PICTURE = _ROOT / "docs" / "images" / "published.svg"
_BEGIN, _END = "<!-- published: {} -->", "<!-- end of published -->"


def error(comparisons: Iterable[Comparison]) -> float:
    """Median of how far the ratios are from 1, the same for half as for twice."""
    return math.expm1(statistics.median(abs(math.log(comparison.ratio)) for comparison in comparisons))


def by_group(comparisons: Sequence[Comparison]) -> dict[str, list[Comparison]]:
    """The comparisons of each group, in the order of the file."""
    groups: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        groups.setdefault(comparison.figure.group, []).append(comparison)
    return groups


def group_table(comparisons: Sequence[Comparison]) -> list[str]:
    """Lines of Markdown: a row for each group, and one for all times."""
    lines = ["| what | figures | median error | largest | ratios |", "|---|---:|---:|---:|---|"]
    rows = {
        **by_group(comparisons),
        "all but memory": [comparison for comparison in comparisons if "memory" not in comparison.figure.group],
    }
    for name, members in rows.items():
        if not members:
            continue
        ratios = sorted(comparison.ratio for comparison in members)
        worst = max(1 / ratios[0], ratios[-1]) - 1
        span = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        lines.append(f"| {name} | {len(members)} | {percent(error(members), 1)} | {percent(worst)} | {span} |")
    return lines


def figure_table(comparisons: Sequence[Comparison]) -> list[str]:
    """Lines of Markdown: a row for each figure."""
    lines = ["| figure | card | published | simulated | ratio | source |", "|---|---|---:|---:|---:|---|"]
    for comparison in comparisons:
        figure = comparison.figure
        card = figure.gpu if figure.gpus == 1 else f"{figure.gpus} x {figure.gpu}"
        lines.append(
            f"| {figure.id} | {card} | {figure.value:.4g} {figure.unit} | {comparison.simulated:.4g} "
            f"| {comparison.ratio:.2f} | {figure.source} |"
        )
    return lines


def write(comparisons: Sequence[Comparison]) -> Path:
    """Write the results' file, the two tables between their marks in the pages, and the picture."""
    replace("groups", group_table(comparisons))
    replace("figures", figure_table(comparisons))
    draw(comparisons, _PICTURE)
    groups = {name: {"figures": len(rows), "median_error": error(rows)} for name, rows in by_group(comparisons).items()}
    figures = {
        comparison.figure.id: {
            "published": comparison.figure.value,
            "simulated": comparison.simulated,
            "ratio": round(comparison.ratio, 4),
        }
        for comparison in comparisons
    }
    return save("published", {"groups": groups, "figures": figures})


def replace(name: str, lines: Sequence[str]) -> None:
    """Put lines between the marks of that name, in the page that has them. Raises SystemExit unless one does."""
    page = page_of(name)
    head, begin, rest = page.read_text(encoding="utf-8").partition(_BEGIN.format(name))
    _, end, tail = rest.partition(_END)
    page.write_text("\n".join((head + begin, "", *lines, "", end + tail)), encoding="utf-8")


def page_of(name: str) -> Path:
    """The page that has the marks of that name. Raises SystemExit unless one page does."""
    begin = _BEGIN.format(name)
    pages = [page for page in sorted(_DOCS.glob("how-we-know*.md")) if begin in page.read_text(encoding="utf-8")]
    if len(pages) != 1:
        raise SystemExit(f"{len(pages)} pages {_DOCS}/how-we-know*.md have the mark {begin}, expected one")
    return pages[0]


def draw(comparisons: Sequence[Comparison], path: Path) -> None:
    """Simulated over published of each figure, group by group."""
    import matplotlib

    matplotlib.use("Agg")
    # The same file from the same numbers: no random ids, no date.
    matplotlib.rcParams["svg.hashsalt"] = "published"
    from matplotlib import pyplot

    groups = by_group(comparisons)
    figure, axes = pyplot.subplots(figsize=(8, 0.36 * len(groups) + 1.2), layout="constrained")
    axes.axvspan(math.log2(0.9), math.log2(1 / 0.9), color="#cfe3d4", label="within 10 %")
    for row, members in enumerate(groups.values()):
        places = [math.log2(comparison.ratio) for comparison in members]
        axes.scatter(places, [row] * len(places), s=22, color="#2a5d84", alpha=0.6)
        axes.scatter(
            [math.log2(statistics.median(comparison.ratio for comparison in members))],
            [row],
            marker="|",
            s=160,
            color="#b3432b",
        )
    axes.axvline(0, color="#555555", linewidth=0.8)
    marks = (0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0)
    axes.set_xticks([math.log2(mark) for mark in marks], [f"{mark:g}" for mark in marks])
    axes.set_yticks(range(len(groups)), list(groups))
    axes.invert_yaxis()
    axes.set_xlabel("simulated / published, times the other way round\nto the right the virtual GPU is too fast")
    axes.legend(loc="lower right")
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
