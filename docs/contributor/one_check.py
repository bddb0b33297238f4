"""Draws `one-check.svg`: the processes of a grading, and what passes between them.

`python -m docs.contributor.one_check` writes it again.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

WIDTH, HEIGHT = 980, 580
FILE = Path(__file__).with_name("one-check.svg")

# Name, what it does, its file; place of the box.
PROCESSES = (
    ("command", "starts the judge and waits", "gradebox/launch.py", 30, 30),
    ("judge", "compares and counts points", "run/grading.py, checks.py", 30, 150),
    ("server", "has PyTorch and probes imported", "sandbox/server.py", 370, 150),
    ("template", "ready for one kind of request", "sandbox/templates.py", 700, 150),
    ("supervisor", "process 1: namespaces, limits", "sandbox/supervisor.py", 700, 300),
    ("worker", "calls the probe, one per rank", "sandbox/worker.py, probes.py", 370, 430),
    ("device process", "the virtual GPU: time, launches", "sandbox/device_process.py", 700, 430),
)
BOX_WIDTH, BOX_HEIGHT = 250, 72
# From, to, text, where the text is, and whether the arrow leads back to the point.
MESSAGES = (
    ((155, 102), (155, 150), "options", (165, 130), False),
    ((280, 172), (370, 172), "Request", (292, 164), False),
    ((620, 186), (700, 186), "request", (632, 178), False),
    ((825, 222), (825, 300), "fork", (835, 265), False),
    ((740, 372), (600, 430), "fork, limits, files", (535, 396), False),
    ((620, 478), (700, 478), "launches", (626, 470), False),
    ((620, 450), (790, 372), "value, notes", (724, 416), True),
    ((700, 322), (540, 222), "reply", (640, 262), True),
    ((370, 200), (280, 200), "reply", (300, 216), True),
    ((930, 222), (930, 430), "starts", (890, 268), False),
    ((495, 502), (495, 524), "", (0, 0), False),
    ((850, 430), (850, 372), "readings", (860, 405), True),
)
RETURNED = (("reply: values, readings, notes.", 60, 250), ("The judge checks it: sandbox/replies.py", 60, 268))
STUDENT = (370, 524, 250, 28, "labs/lab1_gpu_basics/environment.py")


def drawing() -> str:
    """The picture as SVG."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="context-stroke"/></marker></defs>',
        '<rect x="345" y="120" width="620" height="450" rx="10" fill="#fbf6ec" stroke="#b90"/>',
        '<text x="357" y="141" fill="#7a5c00">the sandbox</text>',
    ]
    for name, role, file, x, y in PROCESSES:
        parts.append(
            f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" fill="#eef3fb" stroke="#557"/>'
            f'<text x="{x + 12}" y="{y + 22}" font-weight="bold">{escape(name)}</text>'
            f'<text x="{x + 12}" y="{y + 42}">{escape(role)}</text>'
            f'<text x="{x + 12}" y="{y + 61}" font-family="monospace" font-size="11">{escape(file)}</text>'
        )
    for (x1, y1), (x2, y2), text, (x, y), back in MESSAGES:
        colour = "#177245" if back else "#333"
        parts.append(
            f'<path d="M{x1},{y1} L{x2},{y2}" stroke="{colour}" stroke-width="1.6" fill="none" marker-end="url(#tip)"/>'
        )
        if text:
            parts.append(f'<text x="{x}" y="{y}" fill="{colour}" font-size="12">{escape(text)}</text>')
    for text, x, y in RETURNED:
        parts.append(f'<text x="{x}" y="{y}" fill="#177245" font-size="12">{escape(text)}</text>')
    x, y, width, height, name = STUDENT
    parts.append(
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="#fdeaea" stroke="#a33"/>'
        f'<text x="{x + 12}" y="{y + 18}" font-family="monospace" font-size="11">{escape(name)}</text>'
    )
    return "\n".join([*parts, "</svg>"]) + "\n"


if __name__ == "__main__":
    FILE.write_text(drawing(), encoding="utf-8")
