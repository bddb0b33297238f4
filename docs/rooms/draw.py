"""Draws who imports whom, from the code: docs/rooms/*.svg, which `make generated` writes.

A room stands above what it uses. An arrow that follows from two others is left out, so that few remain; hints of types
count as imports.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from html import escape
from pathlib import Path

import grimp

FOLDER = Path(__file__).parent
_PACKAGES = ("vgpu", "labkit", "gradebox", "gradebook", "grader", "cluster")
_LETTER, _HEIGHT, _GAP, _STEP, _MARGIN = 7.4, 28.0, 24.0, 64.0, 14.0
"""Pixels: a letter's width, a box's height, from box to box, from row to row, and around everything."""
_SWEEPS = 24
"""How often rows are sorted by where their arrows lead."""

Rooms = dict[str, set[str]]
"""Each room, and those that it imports."""


def drawings() -> dict[str, str]:
    """Every drawing, by the name of its file."""
    imports = grimp.build_graph(*_PACKAGES, cache_dir=None)
    return {
        "house.svg": draw(_rooms(imports, _in_house)),
        "gradebox.svg": draw(_rooms(imports, lambda module: _in_package(module, "gradebox"))),
        "vgpu.svg": draw(_rooms(imports, lambda module: _in_package(module, "vgpu"))),
        "gradebook.svg": draw(_rooms(imports, lambda module: _in_package(module, "gradebook"))),
    }


def _in_house(module: str) -> str:
    """The package that a module is in; of the course, the folder."""
    first, _, rest = module.partition(".")
    if first != "grader" or not rest:
        return first if first != "grader" else ""
    name = rest.partition(".")[0]
    return "grader/" + ("labs" if name.startswith("lab") or name in ("container", "kernels", "sharding") else name)


def _in_package(module: str, package: str) -> str:
    first, _, rest = module.partition(".")
    return rest.partition(".")[0] if first == package else ""


def _rooms(imports: grimp.ImportGraph, room_of: Callable[[str], str]) -> Rooms:
    """The imports between rooms; modules without a room are left out."""
    rooms: Rooms = {}
    for module in sorted(imports.modules):
        if room := room_of(module):
            imported = {room_of(other) for other in imports.find_modules_directly_imported_by(module)}
            rooms.setdefault(room, set()).update(imported - {room, ""})
    return rooms


def draw(rooms: Rooms) -> str:
    """An SVG of these rooms, each in a row above all that it imports.

    Raises:
        ValueError: some import each other in a circle.
    """
    level = _levels(rooms)
    arrows = [(upper, lower) for upper in rooms for lower in rooms[upper] if not _is_implied(rooms, upper, lower)]
    rows, paths = _with_points_between(rooms, level, sorted(arrows))
    _sort(rows, paths)
    place = _places(rows)
    width = max(x + _width(name) / 2 for name, (x, _) in place.items()) + _MARGIN
    height = max(y for _, y in place.values()) + _HEIGHT / 2 + _MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}" font-family="sans-serif" font-size="13">',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#667"/></marker></defs>',
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    lines += [_arrow([place[name] for name in path]) for path in paths]
    lines += [_box(name, *place[name]) for name in sorted(rooms)]
    return "\n".join([*lines, "</svg>", ""])


def _levels(rooms: Rooms) -> dict[str, int]:
    """The row of each room, 0 at the bottom: one above the highest that it imports."""
    level: dict[str, int] = {}
    while len(level) < len(rooms):
        ready = [name for name in rooms if name not in level and rooms[name] <= level.keys()]
        if not ready:
            raise ValueError(f"a circle among {sorted(rooms.keys() - level.keys())}")
        level |= {name: 1 + max((level[lower] for lower in rooms[name]), default=-1) for name in ready}
    return level


def _is_implied(rooms: Rooms, upper: str, lower: str) -> bool:
    """Whether another room that `upper` imports leads to `lower`."""
    waiting, visited = [name for name in rooms[upper] if name != lower], set[str]()
    while waiting:
        name = waiting.pop()
        if lower in rooms[name]:
            return True
        waiting += rooms[name] - visited
        visited |= rooms[name]
    return False


def _with_points_between(
    rooms: Rooms, level: dict[str, int], arrows: list[tuple[str, str]]
) -> tuple[list[list[str]], list[list[str]]]:
    """The rows, bottom first, with a nameless point wherever an arrow passes one; and the stations of each arrow."""
    rows: list[list[str]] = [[] for _ in range(max(level.values()) + 1)]
    for name in sorted(rooms):
        rows[level[name]].append(name)
    paths = []
    for upper, lower in arrows:
        path = [upper]
        for row in range(level[upper] - 1, level[lower], -1):
            path.append(f" {upper} {lower} {row}")
            rows[row].append(path[-1])
        paths.append([*path, lower])
    return rows, paths


def _sort(rows: list[list[str]], paths: list[list[str]]) -> None:
    """Order each row so that its members stand near what they are joined with: fewer arrows cross."""
    joined: dict[str, list[str]] = {}
    for path in paths:
        for above, below in itertools.pairwise(path):
            joined.setdefault(above, []).append(below)
            joined.setdefault(below, []).append(above)
    for sweep in range(_SWEEPS):
        for row in rows if sweep % 2 else reversed(rows):
            x = {name: index / len(other) for other in rows for index, name in enumerate(other, start=1)}
            row.sort(key=lambda name: sum(x[near] for near in joined.get(name, [name])) / len(joined.get(name, [name])))


def _places(rows: list[list[str]]) -> dict[str, tuple[float, float]]:
    """The middle of each member; rows are as wide as the widest."""
    widths = [sum(map(_width, row)) + _GAP * (len(row) - 1) for row in rows]
    place: dict[str, tuple[float, float]] = {}
    for number, row in enumerate(rows):
        gap = (max(widths) - sum(map(_width, row))) / (len(row) + 1)
        x = _MARGIN + gap
        for name in row:
            place[name] = (x + _width(name) / 2, _MARGIN + _HEIGHT / 2 + _STEP * (len(rows) - 1 - number))
            x += _width(name) + gap
    return place


def _width(name: str) -> float:
    return 0.0 if name.startswith(" ") else len(name) * _LETTER + 18


def _box(name: str, x: float, y: float) -> str:
    width = _width(name)
    return (
        f'<rect x="{x - width / 2:.1f}" y="{y - _HEIGHT / 2:.1f}" width="{width:.1f}" height="{_HEIGHT:.0f}" rx="5" '
        f'fill="#eef3fb" stroke="#557"/><text x="{x:.1f}" y="{y + 4.5:.1f}" text-anchor="middle">{escape(name)}</text>'
    )


def _arrow(stations: list[tuple[float, float]]) -> str:
    """A smooth line through the stations, from the lower edge of the first box to the upper edge of the last."""
    points = [(x, y) for x, y in stations]
    points[0] = (points[0][0], points[0][1] + _HEIGHT / 2)
    points[-1] = (points[-1][0], points[-1][1] - _HEIGHT / 2 - 1)
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x, y), (to_x, to_y) in itertools.pairwise(points):
        middle = (y + to_y) / 2
        path += f" C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"
    return f'<path d="{path}" fill="none" stroke="#99a" marker-end="url(#head)"/>'
