"""What `gpulabs notebook export` writes, and what it never does."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grader.cli import app
from grader.notebooks.export import ExportError, plan

Write = Callable[..., Path]
AREA = "def area(size):\n    return size * size\n"


def export(notebook: Path, labs: Path, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["notebook", "export", str(notebook), "--labs", str(labs), *options])
    return result.exit_code, result.output


def text(labs: Path) -> str:
    return (labs / "lab9_shapes" / "square.py").read_text()


def test_a_stub_is_replaced_and_keeps_its_docstring(labs: Path, notebook: Write) -> None:
    code, said = export(notebook(AREA), labs)
    assert code == 0, said
    assert "return size * size" in text(labs)
    assert "        size x size.\n" in text(labs)
    assert "NotImplementedError" not in text(labs)
    assert text(labs).endswith('if __name__ == "__main__":\n    print(area(2))\n')


def test_what_was_exported_may_be_exported_again(labs: Path, notebook: Write) -> None:
    export(notebook(AREA), labs)
    code, said = export(notebook(AREA.replace("size * size", "size**2")), labs)
    assert code == 0, said
    assert "return size**2" in text(labs)


def test_newer_work_in_the_file_is_shown_and_stays(labs: Path, notebook: Write) -> None:
    export(notebook(AREA), labs)
    file = labs / "lab9_shapes" / "square.py"
    file.write_text(text(labs).replace("size * size", "abs(size) * abs(size)"))
    before = text(labs)
    code, said = export(notebook(AREA.replace("size * size", "size**2")), labs)
    assert code == 1
    assert "-    return abs(size) * abs(size)" in said
    assert "no terminal to ask at" in said
    assert text(labs) == before


def test_force_replaces_newer_work(labs: Path, notebook: Write) -> None:
    file = labs / "lab9_shapes" / "square.py"
    file.write_text(text(labs).replace("    raise Not", "    print(size)\n    raise Not"))
    assert export(notebook(AREA), labs)[0] == 1, "a stub with work in it is no stub"
    assert export(notebook(AREA), labs, "--force")[0] == 0
    assert "print(size)" not in text(labs)


def test_a_file_that_nobody_touched_holds_no_work(labs: Path, notebook: Write) -> None:
    digest = hashlib.sha256(text(labs).encode()).hexdigest()
    (labs / ".generated.json").write_text(json.dumps({"files": {"lab9_shapes/square.py": digest}}))
    assert export(notebook("def root(value):\n    return value**0.5\n"), labs)[0] == 0


def test_given_code_is_asked_for_too(labs: Path, notebook: Write) -> None:
    assert export(notebook("def root(value):\n    return value**0.5\n"), labs)[0] == 1


def test_imports_helpers_and_constants_come_along_once(labs: Path, notebook: Write) -> None:
    cell = "import math\nfrom statistics import median, mean as average\nEDGE = 2\n\n" + (
        "def half(x):  # new\n    return x / EDGE\n\n" + AREA
    )
    for _ in range(2):
        assert export(notebook(cell), labs)[0] == 0
    for line in ("import math", "from statistics import median", "from statistics import mean as average", "EDGE = 2"):
        assert text(labs).count(f"{line}\n") == 1
    assert text(labs).index("def half") < text(labs).index("def area")
    compile(text(labs), "square.py", "exec")


def test_nothing_is_written_when_one_cell_is_refused(labs: Path, notebook: Write) -> None:
    before = text(labs)
    with pytest.raises(ExportError, match="cell 2, line 2: only definitions and imports"):
        plan(notebook(AREA, "print(area(3))"), labs)
    assert text(labs) == before


@pytest.mark.parametrize("path", ["../outside.py", "/etc/passwd.py", "lab9_shapes/none.py", "lab9_shapes/notes.md"])
def test_only_modules_of_a_lab_are_written(labs: Path, notebook: Write, path: str) -> None:
    code, said = export(notebook(AREA, path=path), labs)
    assert code == 1
    assert "error: cell 1" in said


def test_a_notebook_without_marked_cells_says_how_to_mark_one(labs: Path, notebook: Write) -> None:
    code, said = export(notebook(), labs)
    assert code == 1
    assert "# export: lab1_gpu_basics/benchmark.py" in said
