"""Notes and tables in a notebook, in colours that suit a light and a dark page.

Every note carries its kind in its metadata, so that a program that runs a notebook can tell what happened.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any, Literal

Kind = Literal["note", "open", "builds-on-open", "wrong", "grade", "figure"]

_EDGES = {"note": "#4a90d9", "open": "#c98a1b", "builds-on-open": "#c98a1b", "wrong": "#d0554b", "grade": "#2f9e6e"}
_CARD = (
    "border-left:4px solid {edge}; background:rgba(128,128,128,.12); padding:.5em .9em; margin:.3em 0; "
    "border-radius:0 .3em .3em 0; white-space:pre-line; overflow-wrap:anywhere;"
)
_CELL = "text-align:{side}; padding:.25em .8em; border-bottom:1px solid rgba(128,128,128,.35); vertical-align:top;"
_METADATA = "gpulabs"


def card(text: str, *, kind: Kind = "note") -> None:
    """Show a calm note; `code` between backticks is set as code.

    Args:
        text: one or a few sentences.
        kind: what happened; decides the colour.
    """
    html = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    publish(f'<div style="{_CARD.format(edge=_EDGES.get(kind, _EDGES["note"]))}">{html}</div>', text, kind)


def wrong(text: str, trace: str) -> None:
    """Show an error of the student's code, its short traceback below."""
    style = "margin:.4em 0 0; padding:0; background:none; border:none; font-size:.9em; white-space:pre-wrap;"
    html = f'<div style="{_CARD.format(edge=_EDGES["wrong"])}">{escape(text)}<pre style="{style}">{escape(trace)}</pre>'
    publish(html + "</div>", f"{text}\n{trace}", "wrong")


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str = "", kind: Kind = "note") -> None:
    """Show a table; numbers are set to the right.

    Args:
        columns: the head, with units.
        rows: one sequence per row, as long as `columns`.
        title: a line above.
    """
    numeric = [bool(rows) and all(isinstance(row[index], int | float) for row in rows) for index in range(len(columns))]
    sides = ["right" if is_number else "left" for is_number in numeric]

    def line(tag: str, cells: Sequence[object]) -> str:
        parts = (
            f'<{tag} style="{_CELL.format(side=side)}">{escape(str(cell))}</{tag}>'
            for cell, side in zip(cells, sides, strict=True)
        )
        return f"<tr>{''.join(parts)}</tr>"

    heading = f'<div style="font-weight:600; margin:.3em 0;">{escape(title)}</div>' if title else ""
    body = "".join(line("td", row) for row in rows)
    html = (
        f'{heading}<div style="overflow-x:auto"><table style="border-collapse:collapse; margin:.3em 0;">'
        f"<thead>{line('th', columns)}</thead><tbody>{body}</tbody></table></div>"
    )
    plain = "\n".join(" | ".join(map(str, row)) for row in (columns, *rows))
    publish(html, f"{title}\n{plain}" if title else plain, kind)


def publish(html: str, plain: str, kind: Kind, **details: Any) -> None:
    """Show `html`, or `plain` where there is no notebook around, as an output of the running cell."""
    from IPython.display import display

    data = {"text/html": html, "text/plain": plain}
    display(data, raw=True, metadata={_METADATA: {"kind": kind, **details}})
