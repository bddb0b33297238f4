"""Make `notebooks/NAME.ipynb` from `notebooks/src/NAME.py`, or pages for reading.

    python -m notebooks.build [NAME ...] [--pages FOLDER]

A source is a percent file of jupytext. A notebook has no outputs, ids that depend on its cells alone, and nothing of
the machine that built it; a page shows the notebook run with the reference solutions on the virtual T4. Needs the extra
`notebooks`. Not for opening notebooks: Jupyter does that.
"""

from __future__ import annotations

import argparse
import hashlib
import html
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import jupytext
import nbformat
from nbclient import NotebookClient
from nbconvert.exporters import HTMLExporter
from pygments.formatters import HtmlFormatter
from traitlets.config import Config

HERE = Path(__file__).parent
ROOT = HERE.parent
SOURCES = HERE / "src"
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
_TIMEOUT_SECONDS = 300
_ENVIRONMENT = {"GPULABS_LABS": "solutions", "GPULABS_DEVICE": "vgpu:T4", "GPULABS_NOTEBOOK_GRADE": "0"}


def names() -> list[str]:
    """Of the notebooks there are: the chapter first, then the labs."""
    return sorted(path.stem for path in SOURCES.glob("*.py"))


def from_source(name: str) -> Any:
    """The notebook that a source stands for.

    Raises:
        OSError: there is no such source.
        ValueError: two cells would be told apart by nothing.
    """
    notebook = jupytext.reads((SOURCES / f"{name}.py").read_text(encoding="utf-8"), fmt="py:percent")
    notebook.metadata = nbformat.from_dict(_METADATA)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    counts: dict[str, int] = {}
    for cell in notebook.cells:
        digest = hashlib.sha256(cell.source.encode()).hexdigest()[:8]
        counts[digest] = counts.get(digest, 0) + 1
        cell.id = digest if counts[digest] == 1 else f"{digest}-{counts[digest]}"
        cell.metadata = nbformat.from_dict({})
    nbformat.validate(notebook)
    return notebook


def to_json(notebook: Any) -> str:
    """What stands in the `.ipynb` file."""
    return str(nbformat.writes(notebook)).rstrip("\n") + "\n"


def execute(notebook: Any, environment: Mapping[str, str], *, to_the_end: bool = False) -> Any:
    """Run a copy of the notebook from top to bottom in a kernel of its own, as if opened in `notebooks/`.

    Args:
        notebook: stays as it is.
        environment: added to that of this process, for example GPULABS_LABS.
        to_the_end: go on after an error in a cell, which then is among the outputs.

    Returns:
        The notebook with its outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell failed, where "Run All" would have stopped.
    """
    copy = nbformat.from_dict(notebook)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory() as scratch:
        # Sockets in a folder instead of ports, which another program could take.
        sockets = {"transport": "ipc", "ip": f"{scratch}/kernel"}
        settings = Config(KernelManager=sockets, NotebookClient={"timeout": _TIMEOUT_SECONDS})
        client = NotebookClient(copy, config=settings, kernel_name="python3", allow_errors=to_the_end,
                                resources={"metadata": {"path": str(HERE)}})  # fmt: skip
        client.execute(env={**os.environ, "PYTHONPATH": path, "IPYTHONDIR": f"{scratch}/ipython", **environment})
    return copy


def errors(notebook: Any) -> list[str]:
    """The error outputs of a notebook that was run, with the cells that they belong to."""
    messages = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "error":
                messages.append(f"{output.ename}: {output.evalue}\nin the cell\n{cell.source}")
    return messages


def notes(notebook: Any) -> list[str]:
    """The kinds of the notes (`labkit.notebook.notes`) that the cells of a notebook have shown."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    marks = [output.get("metadata", {}).get("gpulabs") for output in outputs]
    return [mark["kind"] for mark in marks if mark]


def render(notebook: Any, name: str) -> str:
    """A page for reading: light or dark as the reader's system is, without scripts and without other files."""
    for cell in notebook.cells:
        cell.attachments = cell.get("attachments", {}) if cell.cell_type == "markdown" else {}
    exporter = HTMLExporter(template_name="basic", exclude_input_prompt=True, exclude_output_prompt=True,
                            exclude_anchor_links=True)  # fmt: skip
    body, _ = exporter.from_notebook_node(notebook)
    body = re.sub(r'href="(\w+)\.ipynb"', r'href="\1.html"', body)
    body = body.replace("<pre>", '<pre tabindex="0">')  # a long line is scrolled by keyboard, too
    body = re.sub(r"<th([^>]*)></th>", r"<td\1></td>", body)
    heading = next((line for cell in notebook.cells for line in cell.source.splitlines() if line.startswith("# ")), "")
    light = HtmlFormatter(style="default").get_style_defs(".highlight")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".highlight")
    template = jinja2.Template((HERE / "page.html.jinja").read_text(encoding="utf-8"), trim_blocks=True)
    title = html.escape(heading.removeprefix("# ") or name)
    page = template.render(title=title, body=body, light=_colors(light), dark=_colors(dark), name=name)
    return "\n".join(line.rstrip() for line in page.splitlines()) + "\n"


def _colors(style: str) -> str:
    """Pygments' colours of code without its rules about line numbers and backgrounds."""
    lines = [line for line in style.splitlines() if line.startswith(".highlight .")]
    return "\n".join(re.sub(r"background-color: [^;}]+;?", "", line.partition("/*")[0]).strip() for line in lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the notebooks named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(names())}")
    parser.add_argument(
        "--pages", type=Path, metavar="FOLDER", help="run them, and write a page of each into FOLDER, no notebooks"
    )
    options = parser.parse_args(arguments)
    failed = False
    for name in options.names or names():
        notebook = from_source(name)
        if options.pages is None:
            (HERE / f"{name}.ipynb").write_text(to_json(notebook), encoding="utf-8")
            print(f"wrote notebooks/{name}.ipynb")
            continue
        done = execute(notebook, _ENVIRONMENT)
        for message in [*errors(done), *(f"a note of the kind {kind}" for kind in set(notes(done)) & UNWANTED)]:
            failed = True
            print(f"error in {name}: {message}", file=sys.stderr)
        page = options.pages / f"{name}.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(render(done, name), encoding="utf-8")
        print(f"wrote {page} ({page.stat().st_size / 1000:.0f} kB)")
    return int(failed)


UNWANTED = {"open", "builds-on-open", "wrong"}
"""What a notebook never shows when every task is solved."""

if __name__ == "__main__":
    sys.exit(main())
