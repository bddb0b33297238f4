"""Pages show what their commands print: each program of a page is run as its reader would run it.

Only the pages whose outputs are the same on every machine: times and memory of the virtual GPU. Of an output, a page
shows some lines, and `...` where it leaves something out.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gradebox.common.configuration import ROOT

PAGES = ("docs/virtual-gpu.md", "docs/vgpu-uses.md")
_PROGRAM = re.compile(r"`(\w+\.py)`[^`]*\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ONE_LINE = re.compile(r"Write `(import [^`]*)` to `(\w+\.py)`")
_COMMANDS = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def programs(text: str) -> dict[str, str]:
    """The files that a reader of a page writes."""
    return dict(_PROGRAM.findall(text)) | {name: line + "\n" for line, name in _ONE_LINE.findall(text)}


def commands(text: str) -> list[tuple[str, list[str]]]:
    """What a reader types, and the lines that the page shows below."""
    blocks = [block for found in _COMMANDS.findall(text) for block in re.split(r"^\$ ", found, flags=re.MULTILINE)[1:]]
    return [(block.split("\n")[0], block.split("\n")[1:]) for block in blocks]


def missing(shown: list[str], printed: str) -> list[str]:
    """The lines of a page that are not in what was printed; `...` and `[...]` are anything."""
    everything = " ".join(printed.split())
    pieces = {line: [" ".join(piece.split()) for piece in re.split(r"\[?\.\.\.\]?(?= |$)", line)] for line in shown}
    return [line for line, parts in pieces.items() if not all(part in everything for part in parts)]


@pytest.mark.night
@pytest.mark.parametrize("page", PAGES)
def test_a_page_shows_what_its_commands_print(page: str, tmp_path: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for name, program in programs(text).items():
        (tmp_path / name).write_text(program, encoding="utf-8")
    wrong = {}
    for command, shown in commands(text):
        typed = re.sub("^python ", f"{sys.executable} ", re.sub("^pytest ", "python -m pytest ", command))
        done = subprocess.run(["bash", "-c", typed], cwd=tmp_path, capture_output=True, text=True, check=False)
        if lines := missing(shown, done.stdout + done.stderr):
            wrong[command] = [*lines, "printed:", done.stdout, done.stderr]
    assert commands(text)
    assert not wrong, "\n".join(
        [page, *(line for command, lines in wrong.items() for line in (f"$ {command}", *lines))]
    )


def test_a_line_that_was_not_printed_is_missing() -> None:
    printed = "time   371 ms of virtual time\nGPU 0 has 14.74 GiB of which 14.64 GiB is free\n"
    assert missing(["time 371 ms of virtual time", "...", "GPU 0 has 14.74 GiB [...]"], printed) == []
    assert missing(["time 372 ms of virtual time", "GPU 1 has [...]"], printed) == [
        "time 372 ms of virtual time",
        "GPU 1 has [...]",
    ]
